"""What a benchmark asks a model: the built-in prompts, and files of the formats in use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from itertools import zip_longest
from pathlib import Path

from lookahead_jax.errors import LookaheadError
from lookahead_jax.json_lines import Row, read_rows
from lookahead_jax.prompts import encode_prompt
from lookahead_jax.typing import LanguageModel

BUILTIN = "builtin"
"""Names the built-in prompts where a file is expected; a file of that name is ./builtin."""

_MULTI_TURN = frozenset(
    ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"]
)
"""The categories of MT-bench, which make up one column of Spec-Bench's table (Xia et al. 2024)."""


@dataclass(frozen=True)
class Prompt:
    """One conversation, or one text to be continued.

    Attributes:
        id: Names it; every id is there once.
        category: What results are grouped by.
        turns: The user's messages, in order, at least one. A later turn is asked after the model's
            own answers to those before it.
        system: A system message in front of them.
        continues: It is plain text to be continued, such as code, and is never put into a chat
            template.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    system: str | None = None
    continues: bool = False


def builtin_prompts() -> tuple[Prompt, ...]:
    """The prompts that come with the package, written for it: builtin.jsonl."""
    file = resources.files("lookahead_jax.bench") / "builtin.jsonl"
    with resources.as_file(file) as path:
        return _read(path)


def read_prompts(source: str) -> tuple[Prompt, ...]:
    """Prompts of a file of JSON objects, one a line, whose keys tell the format.

    Any of these, the same in all lines; other keys are left alone:

    - id, category, turns (a list of texts), and where wanted system and continues (true or false);
    - prompt, and where wanted id, category and system: what `lookahead-jax batch` reads. The id is
      the number of the line where there is none, the category "prompt";
    - Spec-Bench: question_id, category, turns. The eight categories of MT-bench are one,
      "multi-turn", as in Spec-Bench's own table;
    - HumanEval: task_id, prompt. The category is "humaneval", and the code is to be continued.

    Args:
        source: The file's name, or "builtin" for the built-in prompts.

    Raises:
        LookaheadError: If the file cannot be read, or a line is none of these.
    """
    return builtin_prompts() if source == BUILTIN else _read(Path(source))


def per_category(prompts: Iterable[Prompt], count: int | None) -> tuple[Prompt, ...]:
    """The first `count` prompts of each category, in their order; None: all of them.

    Raises:
        LookaheadError: If `count` is below 1.
    """
    if count is None:
        return tuple(prompts)
    if count < 1:
        raise LookaheadError(f"expected at least 1 prompt of each category, got {count}")
    kept: list[Prompt] = []
    taken: dict[str, int] = {}
    for prompt in prompts:
        taken[prompt.category] = taken.get(prompt.category, 0) + 1
        if taken[prompt.category] <= count:
            kept.append(prompt)
    return tuple(kept)


def digest(prompts: Iterable[Prompt]) -> str:
    """Tells sets of prompts apart: 12 hexadecimal digits of a SHA-256.

    It is of the prompts and their order, and not of the file: another format of the same prompts
    has the same one.
    """
    rows = [asdict(prompt) for prompt in prompts]
    canonical = json.dumps(rows, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def encode_turn(
    lm: LanguageModel, prompt: Prompt, answers: Sequence[str], *, chat_template: bool | None
) -> tuple[int, ...]:
    """Tokens of a prompt's next turn, with all that was said before it.

    Without a chat template that is one plain text: system message, turns and answers in their
    order, a blank line between two of them.

    Args:
        lm: The model.
        prompt: The prompt.
        answers: The model's own answers to the turns before.
        chat_template: As for `lookahead_jax.prompts.encode_prompt`; a prompt that is to be
            continued never goes into one.

    Raises:
        LookaheadError: If the model cannot read it, or there is no such turn.
    """
    if len(answers) >= len(prompt.turns):
        raise LookaheadError(
            f"prompt {prompt.id} has {len(prompt.turns)} turns: "
            f"expected answers to fewer, got {len(answers)}"
        )
    if chat_template is None:
        chat_template = lm.tokenizer is not None and lm.tokenizer.has_chat_template
    messages = list(_messages(prompt, answers))
    if prompt.continues or not chat_template:
        # An answer may be empty: where it ends at once.
        text = "\n\n".join(message["content"] for message in messages if message["content"])
        return encode_prompt(lm, text, chat_template=False, system=None)
    if lm.tokenizer is None or not answers:
        return encode_prompt(lm, prompt.turns[0], chat_template=True, system=prompt.system)
    return tuple(lm.tokenizer.encode_chat(messages))


def _messages(prompt: Prompt, answers: Sequence[str]) -> Iterator[dict[str, str]]:
    if prompt.system is not None:
        yield {"role": "system", "content": prompt.system}
    for turn, answer in zip_longest(prompt.turns[: len(answers) + 1], answers):
        yield {"role": "user", "content": turn}
        if answer is not None:
            yield {"role": "assistant", "content": answer}


@dataclass(frozen=True)
class _Format:
    """A way to write prompts down: rows that have all of `keys`."""

    name: str
    keys: tuple[str, ...]
    parse: Callable[[Row, int], Prompt]


def _read(path: Path) -> tuple[Prompt, ...]:
    prompts: dict[str, Prompt] = {}
    known: _Format | None = None
    for number, row in read_rows(path):
        try:
            found = _format_of(row)
            known = found if known is None else known
            if found is not known:
                raise LookaheadError(
                    f"expected a row of {known.name}, as those before it, got one of {found.name}"
                )
            prompt = found.parse(row, number)
            if prompt.id in prompts:
                raise LookaheadError(f"every id must be there once, got {prompt.id!r} again")
        except LookaheadError as error:
            raise LookaheadError(f"{path}, line {number}: {error}") from None
        prompts[prompt.id] = prompt
    return tuple(prompts.values())


def _format_of(row: Row) -> _Format:
    for candidate in _FORMATS:
        if all(key in row for key in candidate.keys):
            return candidate
    expected = "; or ".join(f"{' and '.join(known.keys)} ({known.name})" for known in _FORMATS)
    got = json.dumps(list(row), ensure_ascii=False)
    raise LookaheadError(f"expected the keys {expected}; got {got[:60]}")


def _parse_spec_bench(row: Row, number: int) -> Prompt:
    category = _text(row, "category")
    return Prompt(
        id=_id(row, "question_id"),
        category="multi-turn" if category in _MULTI_TURN else category,
        turns=_turns(row),
    )


def _parse_human_eval(row: Row, number: int) -> Prompt:
    return Prompt(_id(row, "task_id"), "humaneval", (_text(row, "prompt"),), continues=True)


def _parse_conversation(row: Row, number: int) -> Prompt:
    continues = row.get("continues", False)
    if not isinstance(continues, bool):
        raise _unexpected(row, "continues", "true or false")
    return Prompt(_id(row, "id"), _text(row, "category"), _turns(row), _system(row), continues)


def _parse_text(row: Row, number: int) -> Prompt:
    return Prompt(
        id=_id(row, "id") if "id" in row else str(number),
        category=_text(row, "category") if "category" in row else "prompt",
        turns=(_text(row, "prompt"),),
        system=_system(row),
    )


_FORMATS = (
    _Format("Spec-Bench", ("question_id", "turns"), _parse_spec_bench),
    _Format("HumanEval", ("task_id", "prompt"), _parse_human_eval),
    _Format("conversations", ("id", "turns"), _parse_conversation),
    _Format("single prompts", ("prompt",), _parse_text),
)
"""The first whose keys a row has is the row's."""


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise _unexpected(row, key, "a text that is not empty")
    return value


def _id(row: Row, key: str) -> str:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise _unexpected(row, key, "an integer or a text that is not empty")
    return str(value)


def _turns(row: Row) -> tuple[str, ...]:
    turns = row["turns"]
    if not isinstance(turns, list) or not turns:
        raise _unexpected(row, "turns", "a list of texts")
    for turn in turns:
        if not isinstance(turn, str) or not turn.strip():
            raise _unexpected(row, "turns", "a list of texts that are not empty")
    return tuple(turns)


def _system(row: Row) -> str | None:
    system = row.get("system")
    if system is not None and not isinstance(system, str):
        raise _unexpected(row, "system", "a text")
    return system


def _unexpected(row: Row, key: str, expected: str) -> LookaheadError:
    got = json.dumps(row[key], ensure_ascii=False) if key in row else "none"
    return LookaheadError(f'expected "{key}" to be {expected}, got {got[:40]}')
