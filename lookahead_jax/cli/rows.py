"""The two files of a batch run: prompts in, answers out, one JSON object a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError
from lookahead_jax.json_lines import GrowingFile, read_rows


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
    prompts = {}
    for number, row in read_rows(path):
        try:
            prompt = _read_prompt(row, number, system)
        except LookaheadError as error:
            raise LookaheadError(f"{path}, line {number}: {error}") from None
        if prompt.id in prompts:
            raise LookaheadError(
                f"{path}, line {number}: every id must be there once, got {prompt.id!r} again"
            )
        prompts[prompt.id] = prompt
    return list(prompts.values())


def _read_prompt(row: dict[str, Any], number: int, default_system: str | None) -> Prompt:
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
        failed: How many of those have an "error" in the place of a text.

    Raises:
        LookaheadError: If the file cannot be written, is in use, or holds anything else.
    """

    def __init__(self, path: Path, prompts: Sequence[Prompt], settings: Settings) -> None:
        self.path = path
        self.failed = 0
        self._prompts = prompts
        self._settings = settings
        self._file = GrowingFile(path, "id", self._check_answer)

    def __enter__(self) -> AnswerFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def finished(self) -> int:
        """How many of the prompts are answered."""
        return self._file.count

    def append(self, answers: Sequence[dict[str, Any]]) -> None:
        """Writes answers to the next prompts, in their order, and waits until they are safe."""
        prompts = self._prompts[self.finished :]
        self._file.append(
            [
                {"id": prompt.id, **answer, "fingerprint": fingerprint(self._settings, prompt)}
                for prompt, answer in zip(prompts, answers, strict=False)
            ]
        )
        self.failed += sum("error" in answer for answer in answers)

    def _check_answer(self, index: int, row: dict[str, Any] | None) -> None:
        why = self._what_is_wrong(index, row or {})
        if why is not None:
            raise LookaheadError(
                f"{self.path}, line {index + 1} {why}: name another output file, or remove it"
            )
        self.failed += "error" in (row or {})

    def _what_is_wrong(self, index: int, row: dict[str, Any]) -> str | None:
        found = row.get("fingerprint")
        if row and index == len(self._prompts):
            return "is one more than the input has prompts"
        if not isinstance(found, str):
            return "is not an answer of a batch run"
        prompt = self._prompts[index]
        expected = fingerprint(self._settings, prompt)
        if found.split("-")[0] != expected.split("-")[0]:
            return "was made with another model or other options"
        if found != expected or row.get("id") != prompt.id:
            return "was made from another prompt"
        return None
