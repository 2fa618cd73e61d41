"""The options that generating, streaming and chatting share, and their checked form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypedDict

from lookahead_jax.errors import LookaheadError
from lookahead_jax.processors import LogitProcessor
from lookahead_jax.sampling import Greedy, Policy, Sample, check_seed


class Options(TypedDict, total=False):
    """Keyword arguments; all of them can be left out.

    Attributes:
        sampling: How tokens are chosen: `Greedy()` (the default) or `Sample(...)`.
        processors: Logit processors, in the order in which they apply (processors.py).
        max_new_tokens: Most tokens to write per prompt; 128.
        chat_template: Whether a text becomes a user's message; by default where the model has a
            chat template.
        system: A system message in front of it.
        stop_tokens: Token ids that end a text; the model's own by default, none if empty.
        stop_strings: Texts that end a text, which is cut before them. Between two looks for them
            the device runs a few rounds, whose tokens are dropped.
        logprobs: Whether results have the log-probabilities of their tokens.
        seeds: One seed for each prompt, in the place of `sampling.seed`, which is everybody's.
        batch_size: Most sequences decoded at a time; 8. The others wait for one to finish.
    """

    sampling: Greedy | Sample | None
    processors: Sequence[LogitProcessor]
    max_new_tokens: int
    chat_template: bool | None
    system: str | None
    stop_tokens: Sequence[int] | None
    stop_strings: str | Sequence[str]
    logprobs: bool
    seeds: Sequence[int] | None
    batch_size: int


@dataclass(frozen=True)
class Settings:
    """`Options` with defaults filled in and values checked."""

    sampling: Greedy | Sample | None = None
    processors: Sequence[LogitProcessor] = ()
    max_new_tokens: int = 128
    chat_template: bool | None = None
    system: str | None = None
    stop_tokens: Sequence[int] | None = None
    stop_strings: str | Sequence[str] = ()
    logprobs: bool = False
    seeds: Sequence[int] | None = None
    batch_size: int = 8

    @classmethod
    def of(cls, options: Options) -> Settings:
        """Checks what can be checked without a model.

        Raises:
            LookaheadError: If a value is not in its range.
            TypeError: If there is no such option.
        """
        known = {field.name for field in fields(cls)}
        for name in options:
            if name not in known:
                raise TypeError(f"there is no option {name!r}; the options are {sorted(known)}")
        settings = cls(**options)
        settings._check()
        strings = settings.stop_strings
        return replace(
            settings,
            processors=tuple(settings.processors),
            stop_strings=(strings,) if isinstance(strings, str) else tuple(strings),
        )

    @property
    def policy(self) -> Policy:
        """How tokens are chosen, without the seed, which is data and no part of a program."""
        sampling = self.sampling
        if isinstance(sampling, Sample):
            sampling = Greedy() if sampling.temperature == 0 else replace(sampling, seed=0)
        return Policy(sampling or Greedy(), tuple(self.processors))

    def seed(self, index: int) -> int:
        """The seed of prompt `index`."""
        if self.seeds is not None:
            return self.seeds[index]
        return self.sampling.seed if isinstance(self.sampling, Sample) else 0

    def _check(self) -> None:
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise LookaheadError(f"batch_size must be an integer >= 1, got {self.batch_size!r}")
        if not isinstance(self.sampling, Greedy | Sample | None):
            raise LookaheadError(f"sampling must be Greedy() or Sample(...), got {self.sampling!r}")
        if isinstance(self.processors, str) or not isinstance(self.processors, Sequence):
            raise LookaheadError(
                f"processors must be a list of logit processors, got {self.processors!r}"
            )
        for processor in self.processors:
            _check_processor(processor)
        strings = self.stop_strings
        strings = [strings] if isinstance(strings, str) else strings
        good = isinstance(strings, Sequence) and all(isinstance(x, str) and x for x in strings)
        if not good:
            raise LookaheadError(
                f"stop_strings must be texts that are not empty, got {self.stop_strings!r}"
            )
        if not isinstance(self.logprobs, bool):
            raise LookaheadError(f"logprobs must be True or False, got {self.logprobs!r}")
        if self.seeds is not None:
            if isinstance(self.seeds, str) or not isinstance(self.seeds, Sequence):
                raise LookaheadError(
                    f"seeds must be a list, one seed for each prompt, got {self.seeds!r}"
                )
            for seed in self.seeds:
                check_seed(seed)


def _check_processor(processor: object) -> None:
    if not callable(processor) or isinstance(processor, type):
        raise LookaheadError(
            f"a logit processor is a function of logits and context, got {processor!r}"
        )
    try:
        hash(processor)
    except TypeError:
        raise LookaheadError(
            f"a logit processor must be hashable, such as a frozen dataclass, got {processor!r}"
        ) from None
