"""What `lookahead-jax plan` tells people: tables, and what they come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookahead_jax.cli.plan import ALPHAS, CAVEAT, HIT_RATES, Estimate, Progress, estimate
from lookahead_jax.cli.reports import count
from lookahead_jax.deployment import USABLE, Deployment, MeshShape
from lookahead_jax.planning import all_meshes, remedies
from lookahead_jax.roofline import free_rows


def print_plan(console: Console, plan: Estimate, progress: Progress | None) -> None:
    """Prints what is asked before hardware is rented.

    Args:
        console: Where to.
        plan: The estimate.
        progress: How much is accepted; None: a table over several cases.
    """
    for line in _heading(plan.deployment):
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(_memory_table(plan))
    for line in _fitting(plan):
        console.print(Text(line), soft_wrap=True)
    console.print()
    console.print(_call_table(plan))
    for line in _verdict(plan):
        console.print(Text(line), soft_wrap=True)
    console.print()
    if progress is None:
        console.print(_outlook_table(plan))
        console.print(
            "(a hit finds candidates; they are taken as independent, which real ones are not)"
        )
    else:
        for line in _outlook_lines(plan, progress):
            console.print(Text(line), soft_wrap=True)
    ways = [estimate(way) for way in all_meshes(plan.deployment)]
    if len(ways) > 1:
        console.print()
        console.print(_mesh_table(plan, ways, progress))
        console.print(
            Text(
                "pays from: tokens a round that beat the fastest ordinary decoding here, "
                f"{_time(_fastest_step(ways).step.seconds)}"
            ),
            soft_wrap=True,
        )
    console.print()
    console.print(Text(CAVEAT, style="bold"), soft_wrap=True)


def _heading(deployment: Deployment) -> list[str]:
    shape, config, mesh, tpu = (
        deployment.shape,
        deployment.config,
        deployment.mesh,
        deployment.tpu,
    )
    chip, copies = tpu.chip, mesh.data * mesh.lookahead
    devices = "" if chip.devices == 1 else f", which jax sees as {tpu.num_devices} devices"
    unused = tpu.num_devices - mesh.size
    each = "one device" if mesh.model == 1 else f"{mesh.model} devices"
    use = "one copy of the model" if copies == 1 else f"{copies} copies of the model, each"
    rows = f"a round has {count(config.num_rows, 'row')}"
    if mesh.lookahead > 1:
        rows += f", of which a device computes {deployment.round_rows}"
    return [
        f"{shape.name}: {_number(shape.weights.count)} parameters in {deployment.form}",
        f"{tpu.name}: {count(tpu.num_chips, 'chip')}{devices}",
        f"  a chip: {chip.bf16_flops / 1e12:.0f} TFLOP/s in bfloat16, {_size(chip.hbm_bytes)} at "
        f"{chip.hbm_bandwidth / 1e9:.0f} GB/s",
        f"mesh {_mesh(mesh)}: {use} on {each}" + (f"; {unused} unused" if unused else ""),
        f"W={config.window_size} N={config.ngram_size} G={config.guess_set_size}: {rows}",
        f"{count(deployment.batch_size, 'sequence')} of up to {deployment.context} tokens",
    ]


def _number(value: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{value / size:.2f} {name}"
    return str(value)


def _memory_table(plan: Estimate) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("memory of a device", min_width=24)
    table.add_column("", justify="right")
    memory = plan.memory
    for name, size in (
        ("weights", memory.weights),
        ("key/value cache", memory.cache),
        ("pool, window, texts", memory.state),
        ("rows of a round", memory.temporary),
        ("in all", memory.total),
    ):
        table.add_row(name, _size(size))
    return table


def _fitting(plan: Estimate) -> list[str]:
    memory = plan.memory
    share = memory.total / memory.available
    if memory.fits:
        shown = f"{share:.0%}" if share >= 0.01 else "under 1%"
        return [f"fits: {shown} of {_size(memory.available)}"]
    lines = [
        f"does not fit: {share:.0%} of {_size(memory.available)}, of which {USABLE:.0%} can "
        "be planned with"
    ]
    for remedy in remedies(plan.deployment):
        used = estimate(remedy.deployment).memory
        lines.append(f"  with {remedy.change} it would: {used.total / used.available:.0%}")
    if len(lines) == 1:
        lines.append("  neither another mesh, nor --int8, nor more such chips would change that")
    return lines


def _call_table(plan: Estimate) -> Table:
    step, round_ = plan.step, plan.round
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("one call, on a device", min_width=24)
    table.add_column("ordinary step", justify="right")
    table.add_column("round", justify="right")
    table.add_row("rows of a sequence", str(step.rows), str(round_.rows))
    table.add_row("memory traffic", _size(step.bytes), _size(round_.bytes))
    table.add_row("arithmetic", _flops(step.flops), _flops(round_.flops))
    if round_.exchanged:
        table.add_row("sent to other devices", _size(step.exchanged), _size(round_.exchanged))
    table.add_row("estimated time", _time(step.seconds), _time(round_.seconds), style="bold")
    for one, other in zip(step.parts, round_.parts, strict=True):
        table.add_row(f"  {one.name}", _time(one.seconds), _time(other.seconds))
    if round_.exchanged:
        table.add_row("  exchange", _time(step.exchange_seconds), _time(round_.exchange_seconds))
    return table


def _size(value: float) -> str:
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= size:
            number = value / size
            return f"{number:.0f} {name}" if number >= 100 else f"{number:.3g} {name}"
    return f"{value:.0f} B"


def _flops(value: float) -> str:
    for size, name in ((1e12, "TFLOP"), (1e9, "GFLOP")):
        if value >= size:
            return f"{value / size:.2f} {name}"
    return f"{value / 1e6:.2f} MFLOP"


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 or not seconds else f"{seconds * 1e6:.1f} us"
    )


def _verdict(plan: Estimate) -> list[str]:
    rows, free = plan.round.rows, free_rows(plan.deployment)
    where = "within" if rows <= free else "beyond"
    return [
        f"A round takes {plan.ratio:.2f} times a step: it pays from that many tokens a round on.",
        f"Rows are free up to {free} a sequence, where arithmetic takes as long as reading",
        f"weights and cache once; this round's {rows} on a device are {where} that.",
    ]


def _outlook_lines(plan: Estimate, progress: Progress) -> list[str]:
    tokens, speed_up = progress.tokens(plan.deployment.config), plan.speed_up(progress)
    lines = []
    if progress.acceptance is not None:
        lines.append(
            f"Acceptance {progress.acceptance:g}, candidates in {progress.hit_rate:.0%} of the "
            f"rounds: {tokens:.2f} tokens a round."
        )
    each, plain = _time(plan.round.seconds / tokens), _time(plan.step.seconds)
    faster = (
        f"{speed_up:.2f} times as fast" if speed_up >= 1 else f"{1 / speed_up:.2f} times slower"
    )
    return [*lines, f"At {tokens:.2f} tokens a round, {each} a token against {plain}: {faster}."]


def _outlook_table(plan: Estimate) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("tokens a round, speed-up", min_width=24)
    for rate in HIT_RATES:
        name = "hits: all rounds" if rate == 1 else f"hits: {rate:.0%} of rounds"
        table.add_column(name, justify="right")
    for alpha in ALPHAS:
        cells = []
        for rate in HIT_RATES:
            progress = Progress(alpha, rate)
            tokens = progress.tokens(plan.deployment.config)
            cells.append(f"{tokens:.2f}, {plan.speed_up(progress):.2f} x")
        table.add_row(f"acceptance {alpha:g}", *cells)
    return table


def _mesh_table(plan: Estimate, ways: Sequence[Estimate], progress: Progress | None) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("ways to use the chips", min_width=24, no_wrap=True)
    for name in ("memory", "step", "round", "pays from"):
        table.add_column(name, justify="right")
    if progress is not None:
        table.add_column("a token", justify="right")
    best = _fastest_step(ways)
    for way in ways:
        used = way.memory.total / way.memory.available
        cells = [
            _mesh(way.deployment.mesh),
            f"{used:.0%}" if way.memory.fits else f"{used:.0%} (no)",
            _time(way.step.seconds),
            _time(way.round.seconds),
            f"{way.round.seconds / best.step.seconds:.2f}",
        ]
        if progress is not None:
            cells.append(_time(way.round.seconds / progress.tokens(way.deployment.config)))
        here = way.deployment.mesh == plan.deployment.mesh
        table.add_row(*cells, style="bold" if here else "")
    return table


def _mesh(mesh: MeshShape) -> str:
    """The axes that have more than one device."""
    sizes = [f"{axis}={size}" for axis, size in dataclasses.asdict(mesh).items() if size > 1]
    return ",".join(sizes) or "one device"


def _fastest_step(ways: Sequence[Estimate]) -> Estimate:
    """Where ordinary decoding is fastest, of the ways that fit, if any."""
    fitting = [way for way in ways if way.memory.fits] or ways
    return min(fitting, key=lambda way: way.step.seconds)
