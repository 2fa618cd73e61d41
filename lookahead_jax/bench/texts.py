"""The texts that a benchmark has a model write: every turn of every prompt, as tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lookahead_jax.bench.prompts import Prompt, encode_turn
from lookahead_jax.errors import LookaheadError
from lookahead_jax.prompts import check_lengths
from lookahead_jax.typing import LanguageModel


@dataclass(frozen=True)
class Task:
    """One text to write.

    Attributes:
        id: The prompt's, and behind a slash the turn where the prompt has several.
        category: The prompt's.
        tokens: What the model reads.
    """

    id: str
    category: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Reader:
    """Makes tasks of prompts.

    Attributes:
        lm: The model.
        chat_template: As in `Options`.
        max_new_tokens: Room for each answer.
        answer: Writes the answer to each of some tasks, as ordinary decoding does: tokens.
        refused: Called with the id of a text that the model has no room for, and why.
    """

    lm: LanguageModel
    chat_template: bool | None
    max_new_tokens: int
    answer: Callable[[Sequence[Task]], Sequence[Sequence[int]]]
    refused: Callable[[str, str], None]

    def tasks(self, prompts: Sequence[Prompt]) -> tuple[Task, ...]:
        """The tasks of all prompts, in their order; turns follow each other.

        A later turn has the model's own answers to those before it, so it is the same for both
        decoders. What does not fit the model's context is left out, with the turns after it.
        """
        made: dict[str, list[Task]] = {prompt.id: [] for prompt in prompts}
        answers: dict[str, list[str]] = {prompt.id: [] for prompt in prompts}
        open_prompts = list(prompts)
        while open_prompts:
            for prompt in open_prompts:
                made[prompt.id].extend(self._next(prompt, answers[prompt.id]))
            open_prompts = [
                prompt
                for prompt in open_prompts
                if len(answers[prompt.id]) + 1 == len(made[prompt.id]) < len(prompt.turns)
            ]
            self._answer(open_prompts, made, answers)
        return tuple(task for prompt in prompts for task in made[prompt.id])

    def _next(self, prompt: Prompt, answers: Sequence[str]) -> Iterator[Task]:
        several = len(prompt.turns) > 1
        task_id = f"{prompt.id}/{len(answers) + 1}" if several else prompt.id
        try:
            tokens = encode_turn(self.lm, prompt, answers, chat_template=self.chat_template)
            check_lengths(self.lm, len(tokens), self.max_new_tokens)
        except LookaheadError as error:
            self.refused(task_id, str(error))
            return
        yield Task(task_id, prompt.category, tokens)

    def _answer(
        self,
        prompts: Sequence[Prompt],
        made: Mapping[str, Sequence[Task]],
        answers: Mapping[str, list[str]],
    ) -> None:
        """Appends the model's answer to the last turn of each of some prompts."""
        tokenizer = self.lm.tokenizer
        if not prompts:
            return
        assert tokenizer is not None  # the first turn was a text
        written = self.answer([made[prompt.id][-1] for prompt in prompts])
        for prompt, tokens in zip(prompts, written, strict=True):
            answers[prompt.id].append(tokenizer.decode(tokens))


def groups(tasks: Sequence[Task], size: int) -> tuple[tuple[Task, ...], ...]:
    """Tasks that are decoded together: of one category, which can so be timed; `size` at most."""
    by_category: dict[str, list[Task]] = {}
    for task in tasks:
        by_category.setdefault(task.category, []).append(task)
    return tuple(
        tuple(alike[i : i + size])
        for alike in by_category.values()
        for i in range(0, len(alike), size)
    )


def longest(tasks: Iterable[Task]) -> int:
    """Tokens of the longest one."""
    return max(len(task.tokens) for task in tasks)
