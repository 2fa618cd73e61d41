"""The directory of a benchmark: what is measured is in it at once, and a later run goes on there.

conditions.json     under which everything in it was measured
measurements.jsonl  single measurements, appended as they are made
answers.jsonl       the model's own answers that later turns of conversations are asked after
results.json        a row for each finished point, for programs
report.md, *.png    the same for people
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Any

from lookahead_jax.bench.measuring import Place
from lookahead_jax.bench.records import (
    Compilation,
    Conditions,
    Difference,
    Measurement,
    Point,
    Row,
)
from lookahead_jax.bench.summary import summarise
from lookahead_jax.errors import LookaheadError
from lookahead_jax.json_lines import GrowingFile

FORMAT = "lookahead-bench/1"
"""Of results.json."""

_MAY_CHANGE = {"date", "texts", "repetitions", "left_out"}
"""Conditions that a later run may have otherwise."""


class Store:
    """What is in the directory, and what is added to it.

    Raises:
        LookaheadError: It cannot be written, another run has it, or it holds something else.
    """

    def __init__(self, directory: Path, conditions: Conditions) -> None:
        self.directory = directory
        self.answers: dict[str, tuple[int, ...]] = {}
        self._compilations: dict[Point, Compilation] = {}
        self._measurements: dict[Point, dict[Place, Measurement]] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LookaheadError(f"cannot make {directory}: {error.strerror}") from None
        self._log = GrowingFile(directory / "measurements.jsonl", "kind", self._accept)
        try:
            self.conditions = self._agree(conditions)
            self._written = GrowingFile(directory / "answers.jsonl", "id", self._accept_answer)
        except BaseException:
            self._log.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._written.close()
        self._log.close()

    def add(self, record: Compilation | Measurement) -> None:
        """Keeps a record. A point that was compiled before keeps its first figures."""
        if isinstance(record, Compilation):
            if record.point in self._compilations:
                return
            kind = "compilation"
        else:
            kind = "measurement"
        self._log.append([{"kind": kind, **asdict(record)}])
        self._take(record)

    def add_answer(self, task_id: str, tokens: Sequence[int]) -> None:
        """Keeps what the model has answered."""
        self._written.append([{"id": task_id, "tokens": list(tokens)}])
        self.answers[task_id] = tuple(tokens)

    @property
    def measured(self) -> int:
        """Measurements that are there."""
        return sum(map(len, self._measurements.values()))

    def missing(self, point: Point, repetitions: int, groups: int) -> list[Place]:
        """What is still to be measured of a point, in order."""
        done = self._measurements.get(point, {})
        places = ((repetition, g) for repetition in range(repetitions) for g in range(groups))
        return [place for place in places if place not in done]

    def rows(self, points: Sequence[Point], repetitions: int, groups: int) -> list[Row]:
        """The rows of the finished points among these; further repetitions do not count."""
        found = []
        for point in points:
            if point in self._compilations and not self.missing(point, repetitions, groups):
                places = self._measurements[point].items()
                counted = [m for (repetition, _), m in places if repetition < repetitions]
                found.append(summarise(self._compilations[point], counted))
        return found

    def write(self, name: str, text: str) -> Path:
        """Writes a file of the directory, as a whole or not at all."""
        path = self.directory / name
        part = path.with_name(name + ".part")
        try:
            part.write_text(text, encoding="utf-8")
            os.replace(part, path)
        except OSError as error:
            raise LookaheadError(f"cannot write {path}: {error.strerror}") from None
        return path

    def _take(self, record: Compilation | Measurement) -> None:
        if isinstance(record, Compilation):
            self._compilations[record.point] = record
        else:
            places = self._measurements.setdefault(record.point, {})
            places[record.repetition, record.group] = record

    def _accept(self, index: int, row: dict[str, Any] | None) -> None:
        try:
            self._take(_record(row or {}))
        except (KeyError, TypeError, ValueError):
            raise _foreign(self.directory / "measurements.jsonl", index) from None

    def _accept_answer(self, index: int, row: dict[str, Any] | None) -> None:
        try:
            self.answers[str((row or {})["id"])] = tuple(map(int, (row or {})["tokens"]))
        except (KeyError, TypeError, ValueError):
            raise _foreign(self.directory / "answers.jsonl", index) from None

    def _agree(self, conditions: Conditions) -> Conditions:
        """The conditions of the directory, which must be these; the date is that of the first."""
        path = self.directory / "conditions.json"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if self._log.count:
                raise LookaheadError(
                    f"{self.directory} has measurements but no conditions.json: expected another "
                    "directory"
                ) from None
            self.write("conditions.json", json.dumps(asdict(conditions), indent=1) + "\n")
            return conditions
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
            raise LookaheadError(f"cannot read {path}: {reason}") from None
        now = json.loads(json.dumps(asdict(conditions)))
        for field in fields(Conditions):
            if field.name in _MAY_CHANGE:
                continue
            before = found.get(field.name) if isinstance(found, dict) else None
            if before != now[field.name]:
                raise LookaheadError(
                    f"{self.directory} was measured with {field.name.replace('_', ' ')} "
                    f"{_shown(before)}, now it is {_shown(now[field.name])}: name another directory"
                )
        return Conditions(**{**asdict(conditions), "date": found.get("date", conditions.date)})


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {it}" for key, it in value.items()) or "none"
    return "none" if value is None else str(value)


def _foreign(path: Path, index: int) -> LookaheadError:
    return LookaheadError(f"{path}, line {index + 1} is not of a benchmark: name another directory")


def _record(row: dict[str, Any]) -> Compilation | Measurement:
    kind = row["kind"]
    values = {name: value for name, value in row.items() if name != "kind"}
    values["point"] = Point(**values["point"])
    if kind == "compilation":
        return Compilation(**values)
    if kind != "measurement":
        raise ValueError(kind)
    for name in ("tokens", "ordinary_tokens", "rounds", "candidate_rounds", "accepted_histogram"):
        values[name] = tuple(values[name])
    if values["differences"] is not None:
        values["differences"] = tuple(Difference(**found) for found in values["differences"])
    return Measurement(**values)


def results(conditions: Conditions, rows: Sequence[Row], unfinished: int) -> dict[str, Any]:
    """results.json."""
    return {
        "format": FORMAT,
        "conditions": asdict(conditions),
        "unfinished": unfinished,
        "rows": [{**asdict(row), "identical": row.identical} for row in rows],
    }
