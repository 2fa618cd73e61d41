"""What a benchmark comes to: a table for the terminal, and report.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePosixPath

from rich.table import Table
from rich.text import Text

from lookahead_jax.bench.records import Conditions, Row
from lookahead_jax.bench.selection import best, chosen, is_measured
from lookahead_jax.bench.wording import (
    conclusion,
    condition_lines,
    counted,
    number,
    percent,
    same_text,
    spread,
)

DIFFERENCES = 40
"""Most differences that a report lists."""

COLUMNS = {
    "W, N, G": "columns of the window, length of the n-grams, candidates per round",
    "Q": "rows that a round computes, (W + G)(N - 1); in brackets: on one device, if fewer",
    "tokens/round": "output tokens per model call; ordinary decoding writes 1",
    "hit rate": "share of rounds in which the pool had candidates",
    "ms/round": "time of a round, for all texts that are decoded together",
    "ms/token": "time of lookahead decoding for each token of a text",
    "T_round/T_AR": (
        "time of a round over that of an ordinary step measured beside it: the tokens per round "
        "at which lookahead decoding breaks even"
    ),
    "speed-up": "time per token of ordinary decoding over that of lookahead decoding",
    "compile": "tracing and compiling, not part of the other times",
    "memory": (
        "the most that a program of lookahead decoding has on one device at a time, weights and "
        "cache included (the compiler's figure)"
    ),
    "same text": "whether every text was ordinary decoding's, token for token",
}
"""Columns of the table, and what they mean."""


def table(rows: Sequence[Row]) -> Table:
    """All settings, for a terminal of at least 80 columns; the best in bold.

    Args:
        rows: A line each.
    """
    unit, size = _memory_unit(rows)
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for name in (
        "W,N,G",
        "Q",
        "tokens/\nround",
        "hits",
        "ms/\nround",
        "ms/\ntoken",
        "round/\nstep",
        "speed-up",
        "comp.\ns",
        f"memory\n{unit}",
        "same\ntext",
    ):
        made.add_column(name, justify="right", no_wrap=True)
    top = best(rows) if rows else None
    for row in rows:
        cells = [
            row.point.sizes,
            str(row.num_rows),
            number(row.tokens_per_round),
            percent(row.hit_rate),
            number(row.round_ms.median),
            number(row.token_ms.median),
            number(row.round_over_step.median),
            _narrow(row),
            number(row.compile_seconds),
            number(row.memory_bytes / size),
            same_text(row),
        ]
        style = "bold" if row is top else ""
        made.add_row(*map(Text, cells), style=f"{style} red" if row.identical is False else style)
    return made


def markdown(
    rows: Sequence[Row],
    conditions: Conditions,
    *,
    unfinished: int = 0,
    pictures: Sequence[str] = (),
    command: str | None = None,
) -> str:
    """The whole report.md.

    Args:
        rows: A line of the table each.
        conditions: What they have in common.
        unfinished: Settings of the grid that are not measured yet.
        pictures: Names of the pictures beside it, in order.
        command: What to type to repeat it, if known.
    """
    parts = [
        f"# Lookahead decoding of {_plain(conditions.model)}, measured",
        _plain(" ".join(conclusion(rows, conditions))),
    ]
    if unfinished:
        parts.append(
            f"**Not finished**: {counted(unfinished, 'setting')} of the grid not measured yet."
        )
    parts.append(
        "\n".join(f"- {name}: {_plain(it)}" for name, it in condition_lines(conditions).items())
    )
    if rows:
        parts += ["## All settings", _settings(rows), _drift(rows)]
        parts += [f"![{_alternative(name)}]({name})" for name in pictures]
        parts += ["What the columns mean:", _meanings(rows)]
        parts += _by_category(best(rows))
        parts += _accepted(rows)
        parts += _differences(rows)
    if command is not None:
        parts += ["## To repeat it", f"```sh\n{command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _narrow(row: Row) -> str:
    """Speed-up and quartiles, with two decimals: a terminal has little room."""
    values = row.speed_up
    shown = f"{values.median:.2f}"
    return shown if row.repetitions == 1 else f"{shown} ({values.low:.2f}-{values.high:.2f})"


def _settings(rows: Sequence[Row]) -> str:
    unit, size = _memory_unit(rows)
    times = ["ms/round", "ms/token", "T_round/T_AR", "speed-up", "compile, s"]
    heads = ["W", "N", "G", "Q", "tokens/round", "hit rate", *times, f"memory, {unit}", "same text"]
    top = best(rows)
    lines = []
    for row in rows:
        shared = f" ({row.device_rows})" if row.device_rows != row.num_rows else ""
        point, several = row.point, row.repetitions
        cells = [
            str(point.window_size),
            str(point.ngram_size),
            str(point.guess_set_size),
            f"{row.num_rows}{shared}",
            number(row.tokens_per_round),
            percent(row.hit_rate),
            number(row.round_ms.median),
            number(row.token_ms.median),
            spread(row.round_over_step, several),
            spread(row.speed_up, several),
            number(row.compile_seconds),
            number(row.memory_bytes / size),
            same_text(row),
        ]
        lines.append([f"**{cell}**" for cell in cells] if row is top else cells)
    return _table(heads, lines)


def _meanings(rows: Sequence[Row]) -> str:
    lines = [f"- {name}: {meaning}" for name, meaning in COLUMNS.items()]
    several = any(row.repetitions > 1 for row in rows)
    lines.append(
        "- in bold: the fastest setting"
        + (", of those with the same texts" if any(r.identical is False for r in rows) else "")
        + ("; in brackets: quartiles over the repetitions, beside the median" if several else "")
    )
    peak = max((row.allocator_peak_bytes or 0 for row in rows), default=0)
    if peak:
        lines.append(f"- the device's allocator gave out at most {_size(peak)} in this run")
    return "\n".join(lines)


def _drift(rows: Sequence[Row]) -> str:
    """How much the machine changed while it was measured, by the ordinary steps."""
    steady = [row for row in rows if is_measured(row)]
    if not steady:
        return ""
    low = min(steady, key=lambda row: row.step_ms.median)
    high = max(steady, key=lambda row: row.step_ms.median)
    if low is high:
        return f"An ordinary step took {number(low.step_ms.median)} ms beside it (median)."
    apart = high.step_ms.median / low.step_ms.median - 1
    return (
        f"An ordinary step, measured beside every setting, took {number(low.step_ms.median)} ms "
        f"({low.point}) to {number(high.step_ms.median)} ms ({high.point}), medians: so far did "
        f"the machine itself change, by {apart:.1%}."
    )


def _by_category(top: Row) -> list[str]:
    if not top.categories:
        return []
    lines = [
        [
            _plain(name),
            str(category.texts),
            number(category.tokens_per_round),
            spread(category.speed_up, top.repetitions),
        ]
        for name, category in top.categories.items()
    ]
    whole = [
        "all",
        str(top.texts),
        number(top.tokens_per_round),
        spread(top.speed_up, top.repetitions),
    ]
    lines.append([f"**{cell}**" for cell in whole])
    return [
        f"## By category, at {top.point}",
        _table(["category", "texts", "tokens/round", "speed-up"], lines, left=1),
    ]


def _accepted(rows: Sequence[Row]) -> list[str]:
    lines = []
    most = max(row.point.ngram_size for row in rows)
    for why, row in chosen(rows).items():
        rounds = sum(row.accepted_histogram)
        if not rounds:
            continue
        shares = [percent(amount / rounds) for amount in row.accepted_histogram]
        lines.append([f"{row.point} ({why})", *shares, *([""] * (most - len(shares)))])
    if not lines:
        return []
    return [
        "## Candidate tokens accepted in a round",
        "Share of the rounds; a round writes one token more than it accepts.",
        _table(["", *map(str, range(most))], lines, left=1),
    ]


def _differences(rows: Sequence[Row]) -> list[str]:
    found = [(row, it) for row in rows for it in dict.fromkeys(row.differences or ())]
    if not found:
        return []
    lines = [
        [
            str(row.point),
            _plain(it.prompt),
            str(it.index),
            "(ended)" if it.token is None else str(it.token),
            "(ended)" if it.ordinary is None else str(it.ordinary),
            "not known" if it.gap is None else number(it.gap),
        ]
        for row, it in found[:DIFFERENCES]
    ]
    more = len(found) - len(lines)
    return [
        "## Differences from ordinary decoding",
        "The first token of a text that differs, its index in the output from 0, and by how much a "
        "separate forward pass prefers the one token to the other, in logits: where that is near "
        "0, rounding decided."
        + (f" {more} more are not listed here, but in the records." if more else ""),
        _table(["setting", "prompt", "index", "token", "ordinary", "gap"], lines, left=2),
    ]


def _table(heads: Iterable[str], lines: Iterable[Sequence[str]], *, left: int = 0) -> str:
    """A table in Markdown; all but the first `left` columns are flush right."""
    heads = list(heads)
    rules = ["---" if i < left else "--:" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rules, *lines])


def _plain(text: str) -> str:
    """Text that neither ends a cell nor becomes formatting."""
    text = " ".join(text.split())
    return "".join(f"\\{sign}" if sign in "\\|*`<[" else sign for sign in text)


def _memory_unit(rows: Sequence[Row]) -> tuple[str, int]:
    most = max((row.memory_bytes for row in rows), default=0)
    return ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)


def _size(size: int) -> str:
    unit, factor = ("GiB", 2**30) if size >= 2**30 else ("MiB", 2**20)
    return f"{number(size / factor)} {unit}"


def _alternative(name: str) -> str:
    """Words for readers who do not see the picture."""
    return PurePosixPath(name).stem.replace("_", " ")
