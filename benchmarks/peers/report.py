"""What a run leaves behind: results.json and report.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import official, table
from benchmarks.peers.official import Agreement
from lookahead_jax.errors import LookaheadError

FORMAT = "peers/1"


def record(
    conditions: Mapping[str, Any],
    found: Sequence[table.Row],
    agreements: Sequence[Agreement] | None,
    load_average: Sequence[float],
) -> dict[str, Any]:
    """Everything, for JSON.

    Args:
        conditions: Of the run.
        found: The table.
        agreements: With the recorded runs, where they were compared.
        load_average: Of the last minute, before and after.
    """
    return {
        "format": FORMAT,
        "conditions": {**conditions, "load_average": [round(load, 2) for load in load_average]},
        "peers": [table.as_json(row) for row in found],
        "official": None if agreements is None else official.as_json(agreements),
    }


def write(
    directory: Path,
    results: Mapping[str, Any],
    found: Sequence[table.Row],
    agreements: Sequence[Agreement] | None,
) -> None:
    """Writes both files.

    Raises:
        LookaheadError: They cannot be written.
    """
    try:
        text = json.dumps(results, indent=1) + "\n"
        (directory / "results.json").write_text(text, encoding="utf-8")
        text = _report(results["conditions"], found, agreements)
        (directory / "report.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise LookaheadError(f"cannot write {error.filename}: {error.strerror}") from error


def _report(
    conditions: Mapping[str, Any],
    found: Sequence[table.Row],
    agreements: Sequence[Agreement] | None,
) -> str:
    lines = [f"# Peers of lookahead_jax: {conditions['model']}\n"]
    lines += [f"- {name.replace('_', ' ')}: {_plain(value)}" for name, value in conditions.items()]
    lines += ["", table.markdown(table.HEADINGS, map(table.cells, found))]
    lines += [f"- {note}" for note in table.notes(found)]
    lines += ["", "| peer | versions | threads |", "| --- | --- | --- |"]
    lines += [
        f"| {row.name} | {_plain(row.versions)} | {row.threads} |" for row in found if row.versions
    ]
    if agreements is not None:
        lines += ["", "## The authors' schedule against recorded runs of their code", ""]
        lines.append(table.markdown(official.HEADINGS, map(official.cells, agreements)))
    return "\n".join(lines).rstrip() + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {content}" for name, content in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return str(value)
