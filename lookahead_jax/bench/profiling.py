"""Where the time of a round goes: a profiler trace, and the share of each named scope in it.

    path = trace(directory, run)                    # `run` decodes some rounds
    print(table({point: shares(path, compiled.as_text(), rounds=32)}))

The directory is what `jax.profiler.start_trace` writes. `xprof --port 8791 DIRECTORY` (package
xprof) shows it in a browser, and so does https://ui.perfetto.dev, which opens the file
`perfetto_trace.json.gz` in it (docs.jax.dev, "Profiling computation").

The trace tells when each instruction of the compiled program ran, and hlo_scopes.py which scope it
is from. Loops, calls and branches only run other instructions: what they take besides is the
runtime's, and the profiler's. An operation that other devices have a part in (Lookahead
Parallelism, in "verify" and "commit") waits for them, and its time includes that.

Seen on CPUs only. GPUs (streams of kernels, each with the stats `hlo_op` and `hlo_module`) and TPUs
(the lines "XLA Ops" and "XLA Modules", whose events have an instruction's text and a module's name
for a name) are read by what XLA's and XProf's sources say; tests have made-up traces of both.
Kernels of a GPU's command buffers (CUDA graphs) that do not say which program they are of are not
counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.profiler import ProfileData
from rich.table import Table

from lookahead_jax.bench.hlo_scopes import OTHER, SCOPES, Program
from lookahead_jax.bench.records import Point
from lookahead_jax.bench.wording import number
from lookahead_jax.errors import LookaheadError

_OPS, _MODULES = "XLA Ops", "XLA Modules"
_DERIVED = ("Framework ", "TensorFlow ", "Steps", "Async XLA Ops", "Source code", _MODULES)
"""Lines of a device (or their beginnings) that show once more what other lines show."""


@dataclass(frozen=True)
class Shares:
    """Seconds of a device by scope; the mean over devices where there are several.

    Attributes:
        seconds: By scope, `OTHER` included. Operations that ran at the same time share that time,
            so the sum is the time in which the device did anything for the program.
        rounds: Rounds in the trace.
        span: Seconds from the first operation's beginning to the last one's end. While no operation
            ran, the runtime was between two of them, and the profiler at its notes.
        wall: Seconds on the host's clock, if they were taken.
    """

    seconds: Mapping[str, float]
    rounds: int
    span: float
    wall: float | None = None

    @property
    def total(self) -> float:
        """Seconds of all scopes and of `OTHER`."""
        return sum(self.seconds.values())

    def share(self, name: str) -> float:
        """Of a scope in the total, 0 to 1; all of them come to 1."""
        return self.seconds[name] / self.total


def trace(directory: Path, run: Callable[[], object]) -> Path:
    """Runs something under the profiler.

    Args:
        directory: Where the trace goes, in a folder named by the second: give every trace a
            directory of its own. It is made if it is not there.
        run: What is traced. It must have been compiled and run before, and wait for its results.

    Returns:
        The trace's .xplane.pb file.

    Raises:
        LookaheadError: The directory cannot be made, or another trace is being taken.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LookaheadError(
            f"expected a directory to write a trace to, cannot make {directory}: {error.strerror}"
        ) from error
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python's functions tell nothing here, and slow it all down
    try:
        jax.profiler.start_trace(
            directory,
            create_perfetto_trace=jax.process_count() == 1,  # it expects one process's trace
            profiler_options=options,
        )
    except RuntimeError as error:
        raise LookaheadError(f"cannot take a trace: {error}") from error
    try:
        run()
    finally:
        jax.profiler.stop_trace()
    files = list(directory.glob("plugins/profile/*/*.xplane.pb"))
    if not files:
        raise LookaheadError(f"expected a trace in {directory}, the profiler has written none")
    return max(files, key=lambda path: path.stat().st_mtime_ns)


def shares(xplane: Path, compiled_text: str, *, rounds: int, wall: float | None = None) -> Shares:
    """The seconds of each scope of a program in a trace.

    Args:
        xplane: The file (`trace`).
        compiled_text: The program (`jax.stages.Compiled.as_text`). Others in the trace don't count.
        rounds: Rounds that were traced.
        wall: Seconds they took on the host's clock, to compare.

    Raises:
        LookaheadError: There is no such file, or no operation of the program in it.
    """
    program = Program.parse(compiled_text)
    if not xplane.is_file():
        raise LookaheadError(f"expected a trace of the profiler, there is no file {xplane}")
    try:
        planes = list(ProfileData.from_file(str(xplane)).planes)
    except Exception as error:  # whatever the reader has to say
        raise LookaheadError(f"expected a trace of the profiler, cannot read {xplane}") from error
    # Where there are devices, the host's threads only tell what they launched there.
    accelerators = [plane for plane in planes if plane.name.startswith("/device:")]
    devices = [x for plane in accelerators for x in _devices(plane, program)]
    devices = devices or [x for plane in planes for x in _devices(plane, program)]
    if not devices:
        raise LookaheadError(
            f"expected operations of the program {program.module}, "
            f"the trace has none of those in its text: {xplane}"
        )
    seconds: dict[str, float] = dict.fromkeys((*SCOPES, OTHER), 0.0)
    for pieces in devices:
        for scope, nanoseconds in _shared(pieces).items():
            seconds[scope] += nanoseconds / 1e9 / len(devices)
    spans = [max(p.end for p in pieces) - min(p.begin for p in pieces) for pieces in devices]
    return Shares(seconds, rounds, sum(spans) / 1e9 / len(devices), wall)


@dataclass(frozen=True)
class _Piece:
    """Some time of an operation, in nanoseconds.

    Attributes:
        begin: When.
        end: When.
        what: The instruction, or its scope.
    """

    begin: float
    end: float
    what: str


def _devices(plane: Any, program: Program) -> Iterator[list[_Piece]]:
    """What the devices of a plane did for the program, by scope: a list for each that did."""
    lines = list(plane.lines)
    has_ops = any(line.name == _OPS for line in lines)
    modules = [event for line in lines if line.name == _MODULES for event in line.events]
    runs = [e for e in modules if e.name.partition("(")[0] == program.module]
    found: dict[int, list[_Piece]] = defaultdict(list)
    begun: list[tuple[int, int, _Piece]] = []  # what tells its end apart: device, id, piece
    ends: dict[int, float] = {}
    for line in lines:
        if line.name.startswith(_DERIVED) or (has_ops and line.name != _OPS):
            continue
        operations: dict[int, list[_Piece]] = defaultdict(list)
        for event in line.events:
            stats = dict(event.stats)
            name = _operation(event, stats, program.module, runs)
            if name is not None:
                device = stats.get("device_ordinal", 0)
                piece = _Piece(event.start_ns, event.end_ns, name)
                operations[device].append(piece)
                if "_p" in stats and name not in program.containers:
                    begun.append((device, stats["_p"], piece))
            elif "_c" in stats and event.name.startswith("end: "):
                ends[stats["_c"]] = event.start_ns
        for device, pieces in operations.items():
            found[device] += _own_time(pieces, program.containers)
    # An operation of a CPU may go on, on other threads, after the one that began it has left it.
    for device, key, piece in begun:
        if ends.get(key, 0) > piece.end:
            found[device].append(_Piece(piece.end, ends[key], piece.what))
    for pieces in found.values():
        if any(piece.what in program.scopes for piece in pieces):
            yield [_Piece(p.begin, p.end, program.scopes.get(p.what, OTHER)) for p in pieces]


def _operation(
    event: Any, stats: Mapping[str, Any], module: str, runs: Sequence[Any]
) -> str | None:
    """The instruction of a module that an event shows, if it does."""
    if "hlo_op" in stats and "hlo_module" in stats:
        is_ours = str(stats["hlo_module"]).partition("(")[0] == module
        return str(stats["hlo_op"]) if is_ours else None
    if any(run.start_ns <= event.start_ns < run.end_ns for run in runs):
        return event.name.partition(" = ")[0].removeprefix("%")
    return None


def _own_time(operations: Iterable[_Piece], containers: frozenset[str]) -> Iterator[_Piece]:
    """The time of each operation of a line that it does not spend in others, nested in it."""
    open_ones: list[_Piece] = []  # each begins where its last inner one has ended
    parents: set[int] = set()

    def close() -> Iterator[_Piece]:
        depth = len(open_ones)
        last = open_ones.pop()
        if last.end > last.begin and not (depth in parents and last.what in containers):
            yield last
        parents.discard(depth)
        if open_ones:
            outer = open_ones[-1]
            open_ones[-1] = _Piece(max(outer.begin, last.end), outer.end, outer.what)

    for piece in sorted(operations, key=lambda x: (x.begin, -x.end)):
        while open_ones and open_ones[-1].end <= piece.begin:
            yield from close()
        if open_ones:
            outer = open_ones[-1]
            parents.add(len(open_ones))
            if outer.what not in containers and piece.begin > outer.begin:
                yield _Piece(outer.begin, piece.begin, outer.what)
        open_ones.append(piece)
    while open_ones:
        yield from close()


def _shared(pieces: Iterable[_Piece]) -> Mapping[str, float]:
    """Nanoseconds by scope; pieces at the same time have equal parts of it."""
    edges = [(p.begin, 1, p.what) for p in pieces] + [(p.end, -1, p.what) for p in pieces]
    total: dict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    before = 0.0
    for at, step, scope in sorted(edges):
        if active := running.total():
            for name, count in running.items():
                total[name] += (at - before) * count / active
        running[scope] += step
        before = at
    return total


def table(points: Mapping[Point, Shares]) -> Table:
    """The shares by point, for a terminal of at least 80 columns."""
    view = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in ("W,N,G", *SCOPES, OTHER, "ms/\nround", "idle\nms"):
        view.add_column(name, justify="right", no_wrap=True)
    for point, found in points.items():
        view.add_row(point.sizes, *_cells(found))
    return view


def markdown(points: Mapping[Point, Shares]) -> str:
    """The same for a report."""
    head = ["", *SCOPES, OTHER, "ms/round", "idle, ms"]
    rows = [[str(point), *_cells(found)] for point, found in points.items()]
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
    told = (
        "Shares of a round by what is computed, traced apart from other times; ms/round without "
        "the time in which nothing ran (idle: the runtime's, and the profiler's)."
    )
    return "\n".join(["## Where the time of a round goes", "", told, "", *lines, ""])


def _cells(found: Shares) -> list[str]:
    milliseconds = 1e3 / max(found.rounds, 1)
    idle = (found.span - found.total) * milliseconds
    shares_of = (_percent(found.share(name)) for name in (*SCOPES, OTHER))
    return [*shares_of, number(found.total * milliseconds), number(idle)]


def _percent(share: float) -> str:
    return "<0.1%" if 0 < share < 0.0005 else f"{share:.1%}"
