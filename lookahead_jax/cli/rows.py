"""The two files of a batch run: prompts in, answers out, one JSON object a line."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError


@dataclass(frozen=True)
class Prompt:
    """One row of the input file."""

    id: int | str
    text: str
    system: str | None
    seed: int | None = None


def read_prompts(path: Path, system: str | None = None) -> list[Prompt]:
    """Reads every prompt, so that a bad row is found before the first is answered.

    Keys other than prompt, id, system and seed are left alone; empty lines are skipped.

    Args:
        path: JSON lines.
        system: System prompt of the rows that name none.

    Raises:
        LookaheadError: If the file cannot be read or a row is not what the help describes.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from None
    prompts = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt = _parse_prompt(line, number, system)
        except LookaheadError as error:
            raise LookaheadError(f"{path}, line {number}: {error}") from None
        if prompt.id in prompts:
            raise LookaheadError(
                f"{path}, line {number}: every id must be there once, got {prompt.id!r} again"
            )
        prompts[prompt.id] = prompt
    if not prompts:
        raise LookaheadError(f"{path}: expected one JSON object a line, got no rows")
    return list(prompts.values())


def _parse_prompt(line: bytes, number: int, default_system: str | None) -> Prompt:
    row = _parse_object(line)
    text, system, row_id = row.get("prompt"), row.get("system"), row.get("id", number)
    if not isinstance(text, str):
        got = "none" if "prompt" not in row else json.dumps(text)[:40]
        raise LookaheadError(f'expected "prompt" to be a text, got {got}')
    if not text.strip():
        raise LookaheadError('expected "prompt" to be a text, got an empty one')
    if system is not None and not isinstance(system, str):
        raise LookaheadError(f'expected "system" to be a text, got {json.dumps(system)[:40]}')
    if isinstance(row_id, bool) or not isinstance(row_id, int | str):
        raise LookaheadError(
            f'expected "id" to be a text or integer, got {json.dumps(row_id)[:40]}'
        )
    seed = row.get("seed")
    if seed is not None and not (type(seed) is int and 0 <= seed < 2**32):
        raise LookaheadError(
            f'expected "seed" to be an integer >= 0 and below 2**32, got {json.dumps(seed)[:40]}'
        )
    return Prompt(row_id, text, default_system if system is None else system, seed)


def _parse_object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
        # JSON can spell half a surrogate pair, which is no text; it comes to light here.
        json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise LookaheadError("expected one JSON object in UTF-8 on the line") from None
    if not isinstance(row, dict):
        raise LookaheadError(f"expected a JSON object, got a {type(row).__name__}")
    return row


def fingerprint(settings: Settings, prompt: Prompt) -> str:
    """Tells answers of other settings (first half) or of another prompt (second half) apart."""
    run, row = settings.record(), [prompt.text, prompt.system]
    if settings.logprobs:
        run["logprobs"] = True
    if settings.is_sampling and prompt.seed is not None:
        row.append(prompt.seed)
    return _digest(run) + "-" + _digest(row)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


class AnswerFile:
    """The output of a batch run, which a later run of the same command continues.

    Opening it checks that what is there are answers to the first of these prompts under these
    settings, and cuts off a line that an earlier run did not finish. Answers are on the disk when
    `append` returns.

    Attributes:
        finished: How many of the prompts are answered.
        failed: How many of those have an "error" in the place of a text.

    Raises:
        LookaheadError: If the file cannot be written, is in use, or holds anything else.
    """

    def __init__(self, path: Path, prompts: Sequence[Prompt], settings: Settings) -> None:
        self.path = path
        self.finished = 0
        self.failed = 0
        self._prompts = prompts
        self._settings = settings
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise LookaheadError(f"cannot write {path}: {error.strerror}") from None
        try:
            self._continue()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def append(self, answers: Sequence[dict[str, Any]]) -> None:
        """Writes answers to the next prompts, in their order, and waits until they are safe."""
        lines = []
        for number, answer in enumerate(answers, start=self.finished):
            prompt = self._prompts[number]
            row = {"id": prompt.id, **answer, "fingerprint": fingerprint(self._settings, prompt)}
            lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        data = "".join(lines).encode()
        try:
            while data:
                data = data[os.write(self._file, data) :]
            # Before the long wait: an interrupt in it finds them in the file, and counted.
            self.finished += len(answers)
            self.failed += sum("error" in answer for answer in answers)
            os.fsync(self._file)
        except OSError as error:
            raise LookaheadError(f"cannot write {self.path}: {error.strerror}") from None

    def _continue(self) -> None:
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
                    self._check_torn(line)
                    break
                self._check_answer(line)
                end += len(line)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def _check_torn(self, line: bytes) -> None:
        start = b'{"id": '
        if not line.startswith(start[: len(line)]):
            self._refuse("is not an answer of a batch run")

    def _check_answer(self, line: bytes) -> None:
        if self.finished == len(self._prompts):
            self._refuse("is one more than the input has prompts")
        prompt = self._prompts[self.finished]
        try:
            row = _parse_object(line)
        except LookaheadError:
            row = {}
        expected, found = fingerprint(self._settings, prompt), row.get("fingerprint")
        if not isinstance(found, str):
            self._refuse("is not an answer of a batch run")
        elif found.split("-")[0] != expected.split("-")[0]:
            self._refuse("was made with another model or other options")
        elif found != expected or row.get("id") != prompt.id:
            self._refuse("was made from another prompt")
        self.finished += 1
        self.failed += "error" in row

    def _refuse(self, why: str) -> None:
        raise LookaheadError(
            f"{self.path}, line {self.finished + 1} {why}: name another output file, or remove it"
        )
