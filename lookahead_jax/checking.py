"""Re-verification of a finished text by forward passes of its own.

The text is read as it stands, many tokens a call, in rows that see all tokens before them and
nothing else: no window, no candidates, no pool, and another cache. At each output token the choice
that ordinary decoding would make there is compared with what was written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax import autoregressive
from lookahead_jax.batch import CAPACITY_BUCKET, padded_prompt, round_up
from lookahead_jax.errors import LookaheadError
from lookahead_jax.kv_cache import commit
from lookahead_jax.options import Options, Settings
from lookahead_jax.prefill import prefill
from lookahead_jax.processors import TextContext
from lookahead_jax.programs import MAX_PREFILL_CHUNK, compiled
from lookahead_jax.prompts import stop_ids
from lookahead_jax.results import GenerationResult
from lookahead_jax.sampling import Greedy, Policy, Sample
from lookahead_jax.sequences import Sequences, init_sequences
from lookahead_jax.typing import Array, CacheSpec, ForwardFn, LanguageModel, Params

CHUNK = 32
"""Output tokens checked in one model call."""


@dataclass(frozen=True)
class Divergence:
    """An output token that a separate pass would not have written, given the text before it.

    Attributes:
        index: Of the token in the output.
        written: The token.
        chosen: What the separate pass chooses.
        gap: Score of `chosen` less that of `written`: logits for greedy decoding; log-weights and
            noise for sampling. Infinite where `written` cannot be chosen at all.
    """

    index: int
    written: int
    chosen: int
    gap: float


@dataclass(frozen=True)
class CheckReport:
    """What a separate pass says about an output.

    Attributes:
        tokens: Tokens that were checked.
        divergences: Those that differ, in order. What follows the first one is judged as a
            continuation of the text as it was written.
        smallest_margin: Least difference between the best and the second-best score of a position.
            Rounding errors of about this size can change a text.
    """

    tokens: int
    divergences: tuple[Divergence, ...]
    smallest_margin: float

    @property
    def first(self) -> Divergence | None:
        """The first divergence."""
        return self.divergences[0] if self.divergences else None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Judgement:
    """Of every token of the text; what lies before the output is leftover."""

    chosen: Array  # int32 [A]
    gap: Array  # float32 [A], score of the choice less that of the token
    margin: Array  # float32 [A], score of the choice less that of the second best


def check(
    lm: LanguageModel, result: GenerationResult, *, sample: int = 0, **options: Unpack[Options]
) -> CheckReport:
    """Compares an output with what separate forward passes over the same text choose.

    In float32 nothing differs but near ties; in bfloat16 and float16 rounding decides more often,
    and each divergence comes with its gap.

    Args:
        lm: The model that wrote it.
        result: The output.
        sample: Which of the `n` texts of its prompt it is.
        **options: Those that it was written with; `seeds` with the seed of this prompt alone.

    Raises:
        LookaheadError: If an option is not usable, or the text was drawn with
            `Sample(method="residual")`: those draws depend on the candidates.
    """
    settings = Settings.of(options)
    if type(sample) is not int or sample < 0:
        raise LookaheadError(f"sample must be an integer >= 0, got {sample!r}")
    sampling = settings.policy.sampling
    if isinstance(sampling, Sample) and sampling.method == "residual":
        raise LookaheadError(
            'method="residual" draws by the candidates of each round: there is nothing to compare '
            'a text with; method="coupled" can be checked'
        )
    prompt_length, text = len(result.prompt_tokens), result.prompt_tokens + result.tokens
    if not result.tokens:
        return CheckReport(0, (), float("inf"))
    padded = padded_prompt(prompt_length)
    capacity = round_up(max(padded, len(text) + CHUNK), CAPACITY_BUCKET)
    buffer = np.zeros((1, capacity), np.int32)
    buffer[0, : len(text)] = text
    stops = stop_ids(lm, settings.stop_tokens) or (Sequences.NO_STOP,)
    one = init_sequences(
        jnp.asarray(buffer),
        jnp.asarray([prompt_length], jnp.int32),
        jnp.asarray([len(result.tokens)], jnp.int32),
        jnp.asarray([stops], jnp.int32),
        capacity,
        jnp.asarray(np.array([[settings.seed(0), sample]], np.uint32)),
    )
    chunk = min(padded, MAX_PREFILL_CHUNK)
    program = _Reading(lm.forward, lm.cache_spec, settings.policy, chunk)
    judge, _ = compiled(program, "judge", one, lm.params)
    judgement = jax.device_get(judge(one, lm.params))
    output = slice(prompt_length, len(text))
    chosen, gap = judgement.chosen[output], judgement.gap[output]
    divergences = tuple(
        Divergence(i, result.tokens[i], int(chosen[i]), float(gap[i]))
        for i in np.flatnonzero(chosen != np.array(result.tokens)).tolist()
    )
    return CheckReport(len(result.tokens), divergences, float(judgement.margin[output].min()))


@dataclass(frozen=True)
class _Reading:
    """The program that reads a text and judges each output token."""

    forward: ForwardFn
    cache_spec: CacheSpec
    policy: Policy
    chunk: int

    def judge(self, text: Sequences, params: Params) -> _Judgement:
        """Judges the output of one text, B = 1, whose tokens stand behind its `length`."""
        cache = autoregressive.init_state(text, cache_spec=self.cache_spec).cache
        cache = prefill(cache, text, params, forward=self.forward, chunk=self.chunk)
        offset = jnp.arange(CHUNK, dtype=jnp.int32)[None]
        mask = offset[:, :, None] >= offset[:, None, :]
        last = text.max_length - 1
        capacity = text.tokens.shape[1]
        nothing = jnp.zeros((capacity,), jnp.float32)

        def unfinished(carry: tuple) -> Array:
            return carry[0].length[0] < last[0]

        def read(carry: tuple) -> tuple:
            cache, judgement = carry
            start = cache.length[0]
            tokens = lax.dynamic_slice_in_dim(text.tokens, start, CHUNK, axis=1)
            positions = start + offset
            logits, block = self.forward(params, tokens, positions, mask, cache, offset)
            found = jax.vmap(self._judge_token, in_axes=(None, 0, 0))(
                text, logits[0], positions[0] + 1
            )
            judgement = jax.tree.map(
                lambda kept, new: lax.dynamic_update_slice(kept, new, (start + 1,)),
                judgement,
                found,
            )
            return commit(cache, block, offset, jnp.minimum(CHUNK, last - cache.length)), judgement

        empty = _Judgement(nothing.astype(jnp.int32), nothing, nothing)
        return lax.while_loop(unfinished, read, (cache, empty))[1]

    def _judge_token(self, text: Sequences, logits: Array, position: Array) -> _Judgement:
        """Judges the token at a position, from the logits float32 [V] of the row before it."""
        context = TextContext(
            tokens=text.tokens[0],
            length=position,
            prompt_length=text.prompt_length[0],
            stop_tokens=text.stop_tokens[0],
        )
        weights = self.policy.weights(logits, context)
        scores = self.policy.sampling.scores(weights, text.key[0], position)
        chosen = Greedy().select(scores)
        best = scores[chosen]
        written = scores[text.tokens[0, jnp.minimum(position, text.tokens.shape[1] - 1)]]
        others = jnp.where(jnp.arange(scores.shape[0]) == chosen, -jnp.inf, scores)
        return _Judgement(chosen, best - written, best - jnp.max(others))
