"""Work on rented time: parts in order of worth, within a budget, with every result kept at once.

A part opens what its steps share (a model, say) and then runs them one after the other. What no
longer fits is left out with a line that says so; what fails does not take the rest along.
"""

from __future__ import annotations

import gc
import json
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookahead_jax.errors import LookaheadError

Record = dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """Seconds from now on.

    Attributes:
        seconds: All of them.
        begin: When they began, by the clock.
        clock: Tells seconds.
    """

    seconds: float
    begin: float
    clock: Callable[[], float]

    @classmethod
    def start(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Budget:
        """Begins now."""
        return cls(seconds, clock(), clock)

    @property
    def left(self) -> float:
        """Seconds."""
        return self.begin + self.seconds - self.clock()

    def why_not(self, needed: float) -> str | None:
        """Why something is left out that takes so many seconds; None if it fits."""
        if needed <= self.left:
            return None
        return (
            f"about {needed:.0f} s needed, {max(self.left, 0):.0f} s left of "
            f"{self.seconds / 60:.3g} minutes"
        )


@dataclass(frozen=True)
class Step:
    """One piece of work, which gives a record for JSON.

    It raises LookaheadError where it is not possible.
    """

    name: str
    run: Callable[[], Record]


@dataclass(frozen=True)
class Part:
    """Steps that share something.

    Attributes:
        name: In the record.
        opening: Estimated seconds until the first step begins.
        step: Estimated seconds of a step, until one has run: after that, the longest one counts.
        open: Makes what the steps share.
        summarise: What follows from the records of the steps that have run, by name; merged into
            the part's record after each step.
        optional: Whether it is fine that a step cannot run here.
    """

    name: str
    opening: float
    step: float
    open: Callable[[], Sequence[Step]]
    summarise: Callable[[Mapping[str, Record]], Record] = lambda steps: {}
    optional: bool = False


def run_parts(
    parts: Sequence[Part],
    budget: Budget,
    record: Record,
    *,
    save: Callable[[Record], None],
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Runs all that fits.

    The record gets a key "parts": by name of the part its `seconds`, `steps` by name, and what
    `summarise` gives. In the place of a result a step, or a part, has `skipped` (no time left),
    `cannot` (not possible here, and why) or `error` (a failure, with its traceback).

    Args:
        parts: The most worthwhile first.
        budget: Nothing begins that would not fit.
        record: Filled in place, so that it is whole whenever an interrupt comes.
        save: Called after every step.
        say: Called with a line about every step.
    """
    entries = record.setdefault("parts", {})
    for part in parts:
        entry: Record = {"optional": part.optional}
        entries[part.name] = entry
        _run_part(part, budget, entry, lambda: save(record), say)
        save(record)
        # A model is large: what the part has made must be gone before the next one begins.
        gc.collect()


def _run_part(
    part: Part,
    budget: Budget,
    entry: Record,
    save: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    reason = budget.why_not(part.opening + part.step)
    if reason is not None:
        entry["skipped"] = reason
        say(f"{part.name}: skipped, {reason}")
        return
    begin, opened = budget.clock(), {}

    def open_steps() -> Record:
        opened["steps"] = part.open()
        return {}

    entry.update(_attempt(open_steps))
    entry["opening_seconds"] = round(budget.clock() - begin, 2)
    say(f"{part.name}: {outcome(entry) or 'opened'} in {entry['opening_seconds']:.1f} s")
    save()
    needed, results = None, entry.setdefault("steps", {})
    for step in opened.get("steps", ()):
        reason = budget.why_not(part.step if needed is None else needed)
        if reason is not None:
            results[step.name] = {"skipped": reason}
            say(f"{part.name}, {step.name}: skipped, {reason}")
            continue
        start = budget.clock()
        results[step.name] = result = _attempt(step.run)
        seconds = budget.clock() - start
        result["seconds"] = round(seconds, 2)
        told = outcome(result)
        if told is None:
            needed = max(seconds, needed or 0.0)
        entry.update(part.summarise({n: r for n, r in results.items() if outcome(r) is None}))
        entry["seconds"] = round(budget.clock() - begin, 2)
        say(f"{part.name}, {step.name}: {told or 'done'} in {seconds:.1f} s")
        save()


def _attempt(run: Callable[[], Record]) -> Record:
    try:
        return run()
    except LookaheadError as error:
        return {"cannot": str(error)}
    except Exception as error:
        # Time is rented: whatever has gone wrong, the other steps are worth having.
        line = (str(error).strip() or "no message").splitlines()[0]
        return {
            "error": f"{type(error).__name__}: {line}",
            "traceback": traceback.format_exc().splitlines(),
        }


def outcome(entry: Mapping[str, Any]) -> str | None:
    """What a part or step has in the place of a result, in one line; None if it has one."""
    for word in ("skipped", "cannot", "error"):
        if word in entry:
            return f"{word}: {entry[word]}"
    return None


def failures(record: Mapping[str, Any]) -> list[str]:
    """Lines about the parts that did not open, and the steps that failed or had to run."""
    lines = []
    for name, entry in record.get("parts", {}).items():
        if "cannot" in entry or "error" in entry:
            lines.append(f"{name}: {outcome(entry)}")
        words = {"error"} if entry["optional"] else {"error", "cannot"}
        steps = entry.get("steps", {})
        lines += [f"{name}, {step}: {outcome(r)}" for step, r in steps.items() if words & set(r)]
    return lines


def write_json(record: Record, path: Path) -> None:
    """Writes a record so that a cut leaves the one before it, or this one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)
