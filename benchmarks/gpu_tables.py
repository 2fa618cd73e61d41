"""The record of gpu_check.py for people."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from benchmarks.campaign import Record, outcome


def tables(record: Record) -> Iterator[Table]:
    """One table for each part."""
    device = record["conditions"]["device"]
    for name, part in record["parts"].items():
        if "steps" not in part:
            yield _lines(name, part)
        elif "exact" in part:
            yield _exactness(name, part)
        else:
            yield _rounds(f"{name}, on {device}", part)


def _lines(name: str, part: Record) -> Table:
    view = Table(title=name, show_header=False)
    view.add_row(outcome(part) or "")
    return view


def _exactness(name: str, part: Record) -> Table:
    view = Table("texts", "identical", "tokens per call", "where they part", title=name)
    for step, result in part["steps"].items():
        if outcome(result) is not None:
            continue
        if "mismatches" not in result:
            fine = "float32" if result["float32_is_float32"] else "ROUNDED"
            view.add_row(step, fine, "", f"relative error {result['relative_error']:.1e}")
        else:
            view.add_row(
                step,
                f"{result['identical']} of {result['texts']}",
                f"{result['tokens_per_call']:.2f}",
                "; ".join(_partings(result)),
            )
    view.caption, view.caption_justify = _missing(part), "left"
    return view


def _missing(part: Record) -> str | None:
    """The steps that have no result, those with the same reason in one line."""
    names: dict[str, list[str]] = {}
    for step, result in part["steps"].items():
        told = outcome(result)
        if told is not None:
            names.setdefault(told, []).append(step)
    return "\n".join(f"{', '.join(steps)}: {told}" for told, steps in names.items()) or None


def _partings(result: Record) -> Iterator[str]:
    golden = result.get("golden", {}).get("mismatches", ())
    for mismatch in result["mismatches"]:
        yield _parting(mismatch, "lookahead")
    for mismatch in golden:
        yield _parting(mismatch, "golden")


def _parting(mismatch: Record, who: str) -> str:
    return (
        f"{mismatch['prompt']}, token {mismatch['index'] + 1}: {who} {mismatch[who]}, ordinary "
        f"{mismatch['ordinary']}, gap {mismatch['gap']:.4g}"
    )


def _rounds(name: str, part: Record) -> Table:
    view = Table(
        "round", "over a step", "quartiles", "ms", "needs, MiB", "measured, MiB", title=name
    )
    for column in view.columns[1:]:
        column.justify = "right"
    for step, result in part["steps"].items():
        if outcome(result) is not None:
            continue
        *_, spread = result["milliseconds"].values()
        ratio, memory = result.get("ratio"), result["memory"]
        view.add_row(
            step,
            f"{ratio['median']:.3f}" if ratio else "1",
            f"{ratio['quartiles'][0]:.3f} - {ratio['quartiles'][1]:.3f}" if ratio else "",
            f"{spread['median']:.3f}",
            _mebibytes(memory["predicted_bytes"]),
            _mebibytes(memory["measured_bytes"]),
        )
    for ratio, rows in part.get("rows_at_ratio", {}).items():
        view.add_row(
            f"rows that cost {ratio} steps",
            f"more than {part['most_rows']}" if rows is None else f"{rows:.0f}",
        )
    view.caption, view.caption_justify = _missing(part), "left"
    return view


def _mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / (1 << 20):.1f}"
