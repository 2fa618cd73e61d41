"""What a benchmark keeps: single measurements, and what they come to for each W, N and G."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lookahead_jax.bench.timing import Spread
from lookahead_jax.config import LookaheadConfig


@dataclass(frozen=True, order=True)
class Point:
    """One setting of a grid."""

    window_size: int
    ngram_size: int
    guess_set_size: int

    @property
    def name(self) -> str:
        """For file names, such as w7n5g7."""
        return f"w{self.window_size}n{self.ngram_size}g{self.guess_set_size}"

    @property
    def sizes(self) -> str:
        """For narrow columns, such as 7,5,7."""
        return f"{self.window_size},{self.ngram_size},{self.guess_set_size}"

    def of(self, config: LookaheadConfig) -> LookaheadConfig:
        """A configuration with these sizes.

        Raises:
            LookaheadError: There is none.
        """
        return replace(config, **asdict(self))

    def __str__(self) -> str:
        return f"W={self.window_size} N={self.ngram_size} G={self.guess_set_size}"


@dataclass(frozen=True)
class Difference:
    """Where lookahead decoding wrote another text than ordinary decoding.

    Attributes:
        prompt: Its id, and its turn: "81/2" is the second turn of prompt 81.
        index: Of the first token that differs, in the output.
        token: What lookahead decoding wrote; None where its text ended before.
        ordinary: What ordinary decoding wrote; None where its text ended before.
        gap: By how much a separate forward pass prefers the one to the other, in logits; 0 where
            they tie. None: not known.
    """

    prompt: str
    index: int
    token: int | None
    ordinary: int | None
    gap: float | None = None


@dataclass(frozen=True)
class Measurement:
    """Some texts decoded together, once by ordinary and once by lookahead decoding.

    Attributes:
        point: W, N and G.
        repetition: From 0.
        group: Which texts, from 0.
        category: Of all of them.
        tokens: Output tokens of each text, of lookahead decoding.
        ordinary_tokens: The same of ordinary decoding.
        rounds: Model calls of each text; of ordinary decoding that is its number of tokens.
        candidate_rounds: Rounds of each text in which the pool had candidates.
        accepted_histogram: Rounds of all texts by number of accepted tokens, N entries.
        seconds: Decoding time of lookahead decoding, prefill apart.
        ordinary_seconds: The same of ordinary decoding.
        differences: Texts that differ; None where they need not be the same.
    """

    point: Point
    repetition: int
    group: int
    category: str
    tokens: tuple[int, ...]
    ordinary_tokens: tuple[int, ...]
    rounds: tuple[int, ...]
    candidate_rounds: tuple[int, ...]
    accepted_histogram: tuple[int, ...]
    seconds: float
    ordinary_seconds: float
    differences: tuple[Difference, ...] | None


@dataclass(frozen=True)
class Compilation:
    """What a point took to compile, and takes on the device.

    Attributes:
        point: W, N and G.
        seconds: Tracing and compiling the programs of lookahead decoding.
        num_rows: Q, rows of a round.
        device_rows: Those of one device; fewer where devices share them.
        memory_bytes: Most that a program of it has on one device at a time, weights, cache and
            pool included: the compiler's figure.
        allocator_peak_bytes: The most that the device's allocator has ever given out in this run;
            None where it does not count. It never falls, so it is of this point and those before.
    """

    point: Point
    seconds: float
    num_rows: int
    device_rows: int
    memory_bytes: int
    allocator_peak_bytes: int | None = None


@dataclass(frozen=True)
class CategoryRow:
    """What one category of prompts comes to at a point.

    Attributes:
        texts: How many.
        tokens_per_round: Over all its texts.
        speed_up: Median and quartiles over repetitions.
    """

    texts: int
    tokens_per_round: float
    speed_up: Spread


@dataclass(frozen=True)
class Row:
    """What one W, N and G comes to. All spreads are over the repetitions.

    Attributes:
        point: W, N and G.
        num_rows: Q, rows of a round.
        device_rows: Those of one device.
        texts: Texts of one repetition.
        repetitions: How many.
        tokens: Output tokens of one repetition.
        rounds: Model calls of one repetition, summed over its texts.
        tokens_per_round: The ratio of the two.
        accepted_histogram: Rounds by number of accepted candidate tokens, 0 to N - 1; a round
            writes one token more.
        hit_rate: Share of rounds in which the pool had candidates.
        round_ms: Milliseconds of a round (of all texts that are decoded together).
        token_ms: Milliseconds of lookahead decoding for each token of a text.
        step_ms: Milliseconds of a step of ordinary decoding, measured beside it.
        ordinary_token_ms: Milliseconds of ordinary decoding for each token of a text.
        round_over_step: T_round / T_AR: tokens per round from which lookahead decoding is faster.
        speed_up: Time for each token of ordinary decoding over that of lookahead decoding.
        compile_seconds: Tracing and compiling.
        memory_bytes: As in `Compilation`.
        allocator_peak_bytes: As in `Compilation`.
        differences: Texts that were not ordinary decoding's; None where they need not be.
        categories: By category of prompts, in order of appearance.
    """

    point: Point
    num_rows: int
    device_rows: int
    texts: int
    repetitions: int
    tokens: int
    rounds: int
    tokens_per_round: float
    accepted_histogram: tuple[int, ...]
    hit_rate: float
    round_ms: Spread
    token_ms: Spread
    step_ms: Spread
    ordinary_token_ms: Spread
    round_over_step: Spread
    speed_up: Spread
    compile_seconds: float
    memory_bytes: int
    allocator_peak_bytes: int | None
    differences: tuple[Difference, ...] | None
    categories: Mapping[str, CategoryRow]

    @property
    def identical(self) -> bool | None:
        """Whether all texts were ordinary decoding's; None where they need not be."""
        return None if self.differences is None else not self.differences


@dataclass(frozen=True)
class Conditions:
    """Under which everything was measured.

    Attributes:
        model: Its name.
        dtype: Of weights, activations and cache; "int8" behind a comma where matrices are int8.
        device: Kind and number of devices, and cores where they are CPUs: "cpu (2 cores)".
        mesh: As on the command line; None: one device.
        attention: As on the command line.
        policy: Sampling and logit options that are not at their default.
        prompts: Where they come from: "builtin", or the file's name.
        prompts_digest: SHA-256 of the prompts, 12 digits.
        texts: Texts of a repetition: turns of prompts.
        batch_size: Texts decoded together.
        max_new_tokens: Most tokens of a text.
        repetitions: Of every text at every point.
        versions: Of lookahead-jax, jax, jaxlib, python.
        commit: Of the checkout; None outside of one. "+" behind it: with changes.
        date: When it began, ISO 8601, UTC.
        left_out: Texts of the prompts that the model's context has no room for.
    """

    model: str
    dtype: str
    device: str
    mesh: str | None
    attention: str
    policy: Mapping[str, Any]
    prompts: str
    prompts_digest: str
    texts: int
    batch_size: int
    max_new_tokens: int
    repetitions: int
    versions: Mapping[str, str]
    commit: str | None
    date: str
    left_out: int = 0
