"""`lookahead-jax explain`: the rows of a round and what each of them sees, drawn.

The picture is read off the tables that the compiled round uses, so it cannot tell another story.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.layout import Role, Row, build_layout

_STYLES = {Role.ORDINARY: "bold yellow", Role.LOOKAHEAD: "cyan", Role.VERIFY: "magenta"}
_GLYPHS = {Role.ORDINARY: "●", Role.LOOKAHEAD: "■", Role.VERIFY: "▲"}
_ASCII_GLYPHS = {Role.ORDINARY: "o", Role.LOOKAHEAD: "x", Role.VERIFY: "v"}
_QUADRANTS = " ▘▝▀▖▌▞▛▗▚▐▜▄▙▟█"
_LONGEST_TABLE = 40


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """The rows in use of one warm-up stage, and which of them each may attend to.

    Attributes:
        rows: n records, in packed order.
        mask: bool [n, n].
        padding: How many further rows of the program this stage leaves unused.
    """

    rows: tuple[Row, ...]
    mask: np.ndarray
    padding: int


def picture(config: LookaheadConfig, stage: int | None, candidates: int | None) -> Picture:
    """Takes one stage's rows from the round's tables.

    Args:
        config: W, N and G.
        stage: Number of the deepest level that is set; None for the steady state, N - 2.
        candidates: How many candidates the pool gave; None for all G.

    Raises:
        LookaheadError: If there is no such stage or candidate.
    """
    last_stage, most = config.num_levels - 1, config.guess_set_size
    stage = last_stage if stage is None else stage
    candidates = most if candidates is None else candidates
    if not 0 <= stage <= last_stage:
        raise LookaheadError(
            f"--stage must be in 0..{last_stage} (N - 2, the steady state), got {stage}"
        )
    if not 0 <= candidates <= most:
        raise LookaheadError(f"--candidates must be in 0..{most} (G), got {candidates}")
    layout = build_layout(config)
    kept = [
        row
        for row in layout.rows[stage]
        if row.role is not Role.PADDING and row.candidate < candidates
    ]
    indices = [row.packed_index for row in kept]
    return Picture(
        rows=tuple(kept),
        mask=layout.mask[stage][np.ix_(indices, indices)],
        padding=config.num_rows - len(kept),
    )


def print_explanation(
    console: Console, config: LookaheadConfig, stage: int | None, candidates: int | None, full: bool
) -> None:
    """Prints the meaning of Q, the row table and the mask.

    Args:
        console: Where to; its width and character set decide how the mask is drawn.
        config: W, N and G.
        stage: As in `picture`.
        candidates: As in `picture`.
        full: One table line for each row, however many there are.
    """
    shown = picture(config, stage, candidates)
    for line in meaning(config, shown):
        console.print(line, soft_wrap=True)
    console.print()
    one_each = full or len(shown.rows) <= _LONGEST_TABLE
    console.print(row_table(shown.rows, one_each))
    console.print()
    for line in drawing(shown, console.width, ascii_only=console.options.ascii_only):
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def meaning(config: LookaheadConfig, shown: Picture) -> list[str]:
    """What the rows are for, a line each, with their slices."""
    width, length, guesses = config.window_size, config.ngram_size, config.guess_set_size
    window = [r for r in shown.rows if r.role is Role.LOOKAHEAD]
    verify = [r for r in shown.rows if r.role is Role.VERIFY]
    deepest = [r for r in shown.rows if r.request_logit and r.role is Role.LOOKAHEAD]
    levels = 1 + max((r.trajectory_level for r in window), default=0)
    lines = [
        f"W={width} N={length} G={guesses}: one model call with Q = (W + G)(N - 1) "
        f"= {config.num_rows} rows.",
        "  row 0       the last token; its logits give the next, as in ordinary decoding",
    ]
    if window:
        lines.append(
            f"  rows {_slice(window):6} the window: "
            + (f"{levels} levels; " if levels > 1 else "1 level; ")
            + f"the logits of {_slice(deepest) if deepest else 'row 0'} give the next level"
        )
    if verify:
        count = 1 + verify[-1].candidate
        lines.append(
            f"  rows {_slice(verify):6} {count} candidate{'s' * (count > 1)} of {length - 1} tokens"
            " from the pool; their logits verify them"
        )
    if shown.padding:
        lines.append(f"  {shown.padding} of the {config.num_rows} rows are unused here")
    return lines


def _slice(rows: Sequence[Row]) -> str:
    return f"{rows[0].packed_index}:{rows[-1].packed_index + 1}"


def row_table(rows: Sequence[Row], one_each: bool) -> Table:
    """The records as a table; a line for a whole level or candidate unless `one_each`."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("row", "role", "level", "column", "candidate", "offset", "position", "logits"):
        table.add_column(name, justify="left" if name == "role" else "right")
    for group in [[row] for row in rows] if one_each else _branches(rows):
        first = group[0]
        asked = [row for row in group if row.request_logit]
        table.add_row(
            _span(group, "packed_index"),
            first.role.name.lower(),
            _span(group, "trajectory_level"),
            _span(group, "window_column"),
            _span(group, "candidate"),
            _span(group, "suffix_offset"),
            _position(group),
            ""
            if not asked
            else "yes"
            if len(asked) == len(group)
            else _span(asked, "packed_index"),
            style=_STYLES[first.role],
        )
    return table


def _span(group: Sequence[Row], field: str) -> str:
    first, last = getattr(group[0], field), getattr(group[-1], field)
    if first < 0:
        return "-"
    return str(first) if first == last else f"{first}..{last}"


def _position(group: Sequence[Row]) -> str:
    first, last = group[0].position_offset, group[-1].position_offset
    ends = [f"p+{offset}" if offset else "p" for offset in (first, last)]
    return ends[0] if first == last else "..".join(ends)


def _branches(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The ordinary row, each level, each candidate."""
    for _, group in itertools.groupby(
        rows, key=lambda row: (row.role, row.trajectory_level, row.candidate)
    ):
        yield list(group)


def drawing(shown: Picture, width: int, *, ascii_only: bool) -> list[Text]:
    """The mask in the largest of three sizes that fits into `width` columns.

    Args:
        shown: Rows and mask.
        width: Columns of the terminal.
        ascii_only: Whether the terminal knows no block characters.

    Returns:
        The lines, at most `width` columns wide each, or a line that says how much room is needed.
    """
    glyphs = _ASCII_GLYPHS if ascii_only else _GLYPHS
    count = len(shown.rows)
    legend = "the mask: a row may attend to "
    key = Text.assemble(
        legend,
        *_joined([(f"{glyphs[role]} {role.name.lower()}", _STYLES[role]) for role in _STYLES]),
        " rows",
    )
    prefix = Text("(all rows also see every token before the last one)", style="dim")
    for lines in (_labelled(shown, glyphs, ascii_only), _dense(shown, glyphs)):
        if lines[0].cell_len <= width:
            return [key, prefix, Text(), *lines]
    if not ascii_only and (count + 1) // 2 <= width:
        note = Text(
            "the mask, two by two cells a character: filled where a row may attend", style="dim"
        )
        return [note, prefix, Text(), *_quadrants(shown)]
    narrowest = count + 4 if ascii_only else (count + 1) // 2
    return [
        Text(f"the mask of {count} rows is too wide for {width} columns: it needs {narrowest}"),
        Text("(widen the terminal, set COLUMNS, or choose smaller W, N, G)"),
    ]


def _joined(parts: list[tuple[str, str]]) -> Iterator[tuple[str, str] | str]:
    for index, part in enumerate(parts):
        if index:
            yield ", "
        yield part


def _labelled(shown: Picture, glyphs: dict[Role, str], ascii_only: bool) -> list[Text]:
    """Two columns a cell, a rule between branches, every row with its name and position."""
    bar = "| " if ascii_only else "│ "
    starts = _branch_starts(shown.rows)
    names = [_name(row) for row in shown.rows]
    label_width = max(map(len, names))
    tens, units = (Text(" " * (label_width + 10), "dim") for _ in range(2))
    for j, row in enumerate(shown.rows):
        rule = bar if j in starts else ""
        tens.append(f"{rule}{row.packed_index // 10 or ' '} ")
        units.append(f"{rule}{row.packed_index % 10} ")
    lines = [tens, units] if len(shown.rows) > 10 else [units]
    for i, row in enumerate(shown.rows):
        line = Text(f"{row.packed_index:>3} {names[i]:<{label_width}} {_position([row]):>4} ")
        line.stylize(_STYLES[row.role])
        for j, seen in enumerate(shown.rows):
            if j in starts:
                line.append(bar, "dim")
            line.append(*_cell(shown.mask[i, j], seen.role, glyphs))
            line.append(" ")
        lines.append(line)
    for line in lines:
        line.rstrip()
    return lines


def _dense(shown: Picture, glyphs: dict[Role, str]) -> list[Text]:
    """One column a cell, the row's number in front."""
    lines = []
    for i, row in enumerate(shown.rows):
        line = Text(f"{row.packed_index:>3} ", _STYLES[row.role])
        for j, seen in enumerate(shown.rows):
            line.append(*_cell(shown.mask[i, j], seen.role, glyphs))
        lines.append(line)
    return lines


def _quadrants(shown: Picture) -> list[Text]:
    """Two by two cells a character."""
    count = len(shown.rows)
    even = np.zeros((count + count % 2,) * 2, bool)
    even[:count, :count] = shown.mask
    index = even[::2, ::2] + 2 * even[::2, 1::2] + 4 * even[1::2, ::2] + 8 * even[1::2, 1::2]
    return [
        Text.assemble(
            *((_QUADRANTS[k], _STYLES[shown.rows[2 * j].role]) for j, k in enumerate(line))
        )
        for line in index
    ]


def _cell(sees: bool, role: Role, glyphs: dict[Role, str]) -> tuple[str, str]:
    if sees:
        return glyphs[role], _STYLES[role]
    return (".", "dim") if glyphs is _ASCII_GLYPHS else ("·", "dim")


def _branch_starts(rows: Sequence[Row]) -> set[int]:
    """Where a new branch begins; the ordinary row and level 0 are one stripe."""
    key = [(row.role is Role.VERIFY, max(row.trajectory_level, 0), row.candidate) for row in rows]
    return {i for i in range(1, len(rows)) if key[i] != key[i - 1]}


def _name(row: Row) -> str:
    if row.role is Role.ORDINARY:
        return "ordinary"
    if row.role is Role.LOOKAHEAD:
        return f"level {row.trajectory_level} col {row.window_column}"
    return f"cand {row.candidate} tok {row.suffix_offset}"
