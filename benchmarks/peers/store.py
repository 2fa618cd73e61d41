"""The file of measurements, which a later run continues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import Facts, Writing
from lookahead_jax.errors import LookaheadError
from lookahead_jax.json_lines import GrowingFile, Row

FILE_NAME = "measurements.jsonl"


@dataclass(frozen=True)
class Key:
    """What is measured once: a peer, a prompt's id, a repetition from 0."""

    peer: str
    prompt: str
    repetition: int


@dataclass(frozen=True)
class Description:
    """What is known of a peer that was loaded once.

    Attributes:
        weights: Their arithmetic.
        versions: Of its packages.
        threads: Threads that it computes with.
    """

    weights: str
    versions: Mapping[str, str]
    threads: int


class Store:
    """Measurements in the order in which they came, each safe on the disk when it is added.

    Attributes:
        measured: All of them.
        descriptions: Of the peers, by name.
    """

    def __init__(self, directory: Path, conditions: Mapping[str, Any]) -> None:
        """Opens the file of a directory, or begins it.

        Args:
            directory: Made where it does not exist.
            conditions: Of this run, for JSON; those of the file must be the same.

        Raises:
            LookaheadError: The file was written under other conditions, is damaged, in use, or
                cannot be written.
        """
        self.measured: dict[Key, Writing] = {}
        self.descriptions: dict[str, Description] = {}
        self._conditions = dict(conditions)
        self._path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LookaheadError(f"cannot make {directory}: {error.strerror}") from None
        self._file = GrowingFile(self._path, "row", self._accept)
        if self._file.count == 0:
            self._file.append([{"row": "conditions", **self._conditions}])

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, key: Key, writing: Writing) -> None:
        """Keeps a measurement."""
        self._file.append([{"row": "measurement", **asdict(key), **asdict(writing)}])
        self.measured[key] = writing

    def describe(self, name: str, weights: str, facts: Facts) -> None:
        """Keeps what is known of a peer.

        Raises:
            LookaheadError: An earlier run measured it in another version, or with other threads.
        """
        new = Description(weights, dict(facts.versions), facts.threads)
        old = self.descriptions.setdefault(name, new)
        if old != new:
            raise LookaheadError(
                f"{self._path}: {name} was measured as {_told(old)}, and is {_told(new)} now: "
                "expected another output directory"
            )
        self._file.append([{"row": "peer", "name": name, **asdict(new)}])

    def _accept(self, index: int, row: Row | None) -> None:
        kind = None if row is None else row.get("row")
        content = {key: value for key, value in (row or {}).items() if key != "row"}
        if (index == 0) != (kind == "conditions"):
            raise self._damaged(index)
        if index == 0:
            self._check(content)
            return
        try:
            self._take(kind, content)
        except (KeyError, TypeError):
            raise self._damaged(index) from None

    def _take(self, kind: Any, row: Row) -> None:
        if kind == "peer":
            name = row.pop("name")
            self.descriptions[name] = Description(**row)
            return
        if kind != "measurement":
            raise KeyError(kind)
        key = Key(row.pop("peer"), row.pop("prompt"), row.pop("repetition"))
        row["tokens"] = tuple(row["tokens"])
        self.measured[key] = Writing(**row)

    def _check(self, before: Row) -> None:
        for name in {**before, **self._conditions}:
            old, new = before.get(name), self._conditions.get(name)
            if old != new:
                raise LookaheadError(
                    f"{self._path} was measured with {name} {old!r}, this run has {new!r}: "
                    "expected another output directory"
                )

    def _damaged(self, index: int) -> LookaheadError:
        return LookaheadError(f"{self._path}, line {index + 1}: expected a row of this benchmark's")


def _told(description: Description) -> str:
    versions = " ".join(f"{name} {number}" for name, number in description.versions.items())
    return f"{versions} ({description.weights}, {description.threads} threads)"
