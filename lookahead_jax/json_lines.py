"""Files of JSON objects, one a line: reading them, and one that a later run continues."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lookahead_jax.errors import LookaheadError

Row = dict[str, Any]


def read_rows(path: Path) -> list[tuple[int, Row]]:
    """All objects of a file, with their line numbers; empty lines are skipped.

    Raises:
        LookaheadError: If the file cannot be read, or a line is not an object in UTF-8.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from None
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append((number, parse_object(line)))
            except LookaheadError as error:
                raise LookaheadError(f"{path}, line {number}: {error}") from None
    if not rows:
        raise LookaheadError(f"{path}: expected one JSON object a line, got no rows")
    return rows


def parse_object(line: bytes) -> Row:
    """The object of one line.

    Raises:
        LookaheadError: If it is none, or holds a text that UTF-8 cannot write.
    """
    try:
        row = json.loads(line.decode())
        # JSON can spell half a surrogate pair, which is no text; it comes to light here.
        json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise LookaheadError("expected one JSON object in UTF-8 on the line") from None
    if not isinstance(row, dict):
        raise LookaheadError(f"expected a JSON object, got a {type(row).__name__}")
    return row


class GrowingFile:
    """A file of rows that one run appends to, and a later one continues.

    Opening it takes it for this process alone, shows every row that is there to `accept`, and cuts
    off a line that an earlier run did not finish. Rows are on the disk when `append` returns.

    Attributes:
        path: The file.
        count: How many rows it has.
    """

    def __init__(
        self, path: Path, first_key: str, accept: Callable[[int, Row | None], None]
    ) -> None:
        """Opens or makes the file.

        Args:
            path: The file.
            first_key: The first key of every row: tells a row that was cut from anything else.
            accept: Called with the index of each row and the row, or None for a line that is none;
                raises where it is not what this run would have written.

        Raises:
            LookaheadError: If the file cannot be written, is in use, or `accept` refuses a row.
        """
        self.path = path
        self.count = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise LookaheadError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._continue(b'{"' + first_key.encode() + b'": ', accept)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> GrowingFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._file)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Writes rows, and waits until they are safe.

        Raises:
            LookaheadError: If they cannot be written.
        """
        lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        data = "".join(lines).encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
            # Before the long wait: an interrupt in it finds them in the file, and counted.
            self.count += len(rows)
            os.fsync(self._file)
        except OSError as error:
            raise LookaheadError(f"cannot write {self.path}: {error.strerror}") from None

    def _continue(self, start: bytes, accept: Callable[[int, Row | None], None]) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise LookaheadError(f"expected a regular file as output, got {self.path}")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LookaheadError(f"{self.path} is being written by another run") from None
        end = 0
        with os.fdopen(os.dup(self._file), "rb") as existing:
            for line in existing:
                if not line.endswith(b"\n"):
                    if not line.startswith(start[: len(line)]):
                        accept(self.count, None)
                    break
                accept(self.count, _row_or_none(line))
                self.count += 1
                end += len(line)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)


def _row_or_none(line: bytes) -> Row | None:
    try:
        return parse_object(line)
    except LookaheadError:
        return None
