"""What has to be seen on a GPU: `python -m benchmarks.gpu_check --json`.

Exactness on the demo model, the cost of a round over that of a step by rows, and memory, in order
of worth within a budget of minutes. README.md says what each figure means.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console

from benchmarks.campaign import Budget, Record, failures, run_parts, write_json
from benchmarks.gpu_plan import Plan, parts_of
from benchmarks.gpu_rounds import Conditions
from benchmarks.gpu_tables import tables
from lookahead_jax.errors import LookaheadError


def conditions_of(plan: Plan, minutes: float) -> Record:
    """Where, with what and when."""
    device = jax.devices()[0]
    packages = ("jax", "jaxlib", "flax", "numpy", "lookahead-jax")
    plugins = [d.name for d in metadata.distributions() if "jax-cuda" in (d.name or "").lower()]
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _told("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "device": device.device_kind,
        "platform": device.platform,
        "platform_version": device.client.platform_version,
        "driver": _told("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "devices": jax.device_count(),
        "minutes": minutes,
        "model": plan.model,
        "batch": 1,
        "rounds": {
            "dtype": plan.conditions.dtype,
            "capacity": plan.conditions.capacity,
            "live_tokens": plan.conditions.live,
            "calls_a_run": plan.conditions.calls,
            "repeats": plan.conditions.repeats,
        },
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in (*packages, *sorted(plugins))},
    }


def _version(name: str) -> str | None:
    """Of a package; None for one that is not installed, as a bare checkout is not."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def _told(*command: str) -> str | None:
    """The first line that a program prints; None where it is not there or fails."""
    if shutil.which(command[0]) is None:
        return None
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            cwd=Path(__file__).parent,
        )
        lines = done.stdout.strip().splitlines()
        return lines[0].strip() if lines and done.returncode == 0 else None
    return None


def check(
    plan: Plan,
    budget: Budget,
    *,
    save: Callable[[Record], None],
    say: Callable[[str], None] = lambda line: None,
) -> Record:
    """Runs what fits.

    Args:
        plan: What is checked.
        budget: Of all of it.
        save: Called with the record after every step, and when an interrupt cuts it short.
        say: Called with a line about every step.

    Returns:
        The record, format "gpu-check/1". `interrupted` says whether an interrupt cut it short.

    Raises:
        LookaheadError: The plan is not usable.
    """
    parts = parts_of(plan)
    record: Record = {
        "format": "gpu-check/1",
        "conditions": conditions_of(plan, round(budget.seconds / 60, 2)),
        "interrupted": False,
    }
    try:
        run_parts(parts, budget, record, save=save, say=say)
    except KeyboardInterrupt:
        record["interrupted"] = True
    record["passed"] = passed(record)
    save(record)
    return record


def passed(record: Record) -> bool | None:
    """Whether no text differs and nothing has failed; None if no texts were compared."""
    if failures(record):
        return False
    exact = [part.get("exact") for part in record["parts"].values()]
    return False if False in exact else True if True in exact else None


CLOSING = {True: "passed", False: "NOT PASSED", None: "nothing was compared"}


@contextlib.contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does, with everything so far written."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def why_no_gpu() -> str | None:
    """Why there is nothing to check here, in one line; None if there is a GPU."""
    try:
        backend = jax.default_backend()
    except (RuntimeError, AssertionError) as error:  # jax asserts where JAX_PLATFORMS finds nothing
        reason = (str(error).strip() or "no platform was found").splitlines()[0]
        return f"expected a GPU, jax has no device: {reason}"
    if backend == "gpu":
        return None
    return f"expected a GPU, jax has {jax.devices()[0].device_kind!r} ({backend})"


def main(
    model: Annotated[str, typer.Option(help="Model of the exactness part.")] = Plan.model,
    shape: Annotated[
        list[str] | None, typer.Option(help="Shape to time rounds of; may be repeated.")
    ] = None,
    minutes: Annotated[float, typer.Option(min=0, help="Nothing begins that does not fit.")] = 13.0,
    output: Annotated[Path, typer.Option(help="Directory for gpu_check.json.")] = Path("."),
    capacity: Annotated[int, typer.Option(min=64, help="Tokens of the cache.")] = (
        Conditions.capacity
    ),
    live: Annotated[int, typer.Option(min=8, help="Tokens of the text.")] = Conditions.live,
    calls: Annotated[int, typer.Option(min=1, help="Model calls of a run.")] = Conditions.calls,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that count.")] = Conditions.repeats,
    dtype: Annotated[str, typer.Option(help="Of the rounds that are timed.")] = Conditions.dtype,
    as_json: Annotated[bool, typer.Option("--json", help="The record on stdout.")] = False,
    allow_cpu: Annotated[bool, typer.Option("--allow-cpu", help="Run without a GPU.")] = False,
) -> None:
    """Checks exactness, the cost of rounds and memory on a GPU; exit code 1 if one is wrong."""
    console = Console(stderr=True)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    reason = None if allow_cpu else why_no_gpu()
    if reason is not None:
        say(f"error: {reason}; --allow-cpu runs it all the same")
        raise typer.Exit(2)
    path = output / "gpu_check.json"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        say(f"error: expected a directory for the record, got {output}: {error.strerror}")
        raise typer.Exit(2) from error
    plan = Plan(
        model=model,
        shapes=tuple(shape) if shape else Plan.shapes,
        conditions=Conditions(dtype, capacity, live, calls, repeats),
    )
    try:
        with _terminated_as_interrupted():
            budget = Budget.start(60 * minutes)
            record = check(plan, budget, save=lambda r: write_json(r, path), say=say)
    except LookaheadError as error:
        say(f"error: {error}")
        raise typer.Exit(2) from error
    if as_json:
        json.dump(record, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        for table in tables(record):
            Console(width=110).print(table)
    for line in failures(record):
        say(line)
    say(f"{CLOSING[record['passed']]}; the record is {path}")
    if record["interrupted"]:
        raise typer.Exit(130)
    if not record["passed"]:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
