"""How a token is chosen from logits.

Functions here take one row without a batch axis. `warp` turns processed logits into log-weights
(-inf: cannot be chosen), `choose` takes a token from them. The ordinary decoder and verification
call the same two functions, one with no candidates on offer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lookahead_jax.errors import LookaheadError
from lookahead_jax.filters import keep_min_p, keep_top_k, keep_top_p
from lookahead_jax.noise import Purpose, gumbel, uniforms
from lookahead_jax.processors import LogitProcessor, TextContext
from lookahead_jax.typing import Array


class Sampling(Protocol):
    """A way to choose tokens: hashable, static under `jax.jit`."""

    def warp(self, logits: Array) -> Array:
        """Logits float32 [V] to log-weights float32 [V], not normalised."""
        ...

    def scores(self, weights: Array, key: Array, position: Array) -> Array:
        """float32 [V]: where nothing is on offer, the greatest of them is chosen."""
        ...

    def choose(
        self, weights: Array, key: Array, position: Array, offered: Array, is_offered: Array
    ) -> Array:
        """The token int32 [] at a position of the text.

        Args:
            weights: float32 [V], what `warp` made.
            key: uint32 [2], see noise.py.
            position: int32 [], index of the token in the text.
            offered: int32 [n], tokens that candidates propose here, in the order of their tests.
            is_offered: bool [n], which of them count.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """The most likely token; of equal ones, the lowest id."""

    def select(self, logits: Array) -> Array:
        """Tokens int32 [...] of logits [..., V]."""
        # Two plain reductions: the (value, index) pair reduction of argmax is scalar code on a CPU.
        vocab_size = logits.shape[-1]
        best = jnp.max(logits, axis=-1, keepdims=True)
        index = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
        token = jnp.min(jnp.where(logits == best, index, vocab_size), axis=-1)
        return jnp.minimum(token, vocab_size - 1)  # logits that are all NaN equal nothing

    def warp(self, logits: Array) -> Array:
        """The logits as they are."""
        return logits

    def scores(self, weights: Array, key: Array, position: Array) -> Array:
        """The weights."""
        del key, position
        return weights

    def choose(
        self, weights: Array, key: Array, position: Array, offered: Array, is_offered: Array
    ) -> Array:
        """The most likely token, whatever is offered."""
        del key, position, offered, is_offered
        return self.select(weights)


@dataclass(frozen=True)
class Sample:
    """Sampling from the filtered distribution, exactly, and reproducibly (design: Sampling).

    Both methods write texts of exactly the ordinary sampler's distribution, and accept a candidate
    with the same probability.

    Attributes:
        temperature: Logits are divided by it; 0 is greedy.
        top_k: Only the k most likely tokens, and their equals; 0 for all.
        top_p: Only the most likely tokens that make up this much of the mass; 1 for all.
        min_p: Only tokens at least this likely, as a fraction of the likeliest; 0 for all.
        seed: The same seed gives the same text; at least 0, below 2**32.
        method: "coupled": the noise of a position decides its token, and a candidate is accepted
            where it equals that token. The same seed gives the same text with and without
            lookahead, for every W, N, G, batch and stream.
            "residual": each distinct candidate is tested against its probability in what is left
            of the distribution (specification 0x05B, as the official implementation does). The
            same seed gives the same text under the same W, N, G and schedule only.

    Raises:
        LookaheadError: If a value is not in its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    method: Literal["coupled", "residual"] = "coupled"

    def __post_init__(self) -> None:
        _admit_number("temperature", self.temperature, "at least 0", lambda x: x >= 0)
        if type(self.top_k) is not int or self.top_k < 0:
            raise LookaheadError(f"top_k must be an integer >= 0 (0: off), got {self.top_k!r}")
        _admit_number("top_p", self.top_p, "above 0 and at most 1", lambda x: 0 < x <= 1)
        _admit_number("min_p", self.min_p, "between 0 and 1", lambda x: 0 <= x <= 1)
        check_seed(self.seed)
        if self.method not in ("coupled", "residual"):
            raise LookaheadError(f'method must be "coupled" or "residual", got {self.method!r}')

    def warp(self, logits: Array) -> Array:
        """Temperature, top-k, top-p, min-p, in this order, as transformers has it."""
        if self.temperature == 0:
            return logits
        # Less the greatest, so that a tiny temperature cannot make two infinities.
        greatest = jnp.maximum(jnp.max(logits), jnp.finfo(jnp.float32).min)
        scores = (logits - greatest) / np.float32(max(self.temperature, 1e-30))
        if self.top_k:
            scores = keep_top_k(scores, self.top_k)
        if self.top_p < 1:
            scores = keep_top_p(scores, self.top_p)
        if self.min_p > 0:
            scores = keep_min_p(scores, self.min_p)
        return scores

    def scores(self, weights: Array, key: Array, position: Array) -> Array:
        """Gumbel-max: weights and noise."""
        if self.temperature == 0:
            return weights
        purpose = Purpose.COUPLED if self.method == "coupled" else Purpose.RESIDUAL
        return weights + gumbel(key, position, weights.shape[0], purpose)

    def choose(
        self, weights: Array, key: Array, position: Array, offered: Array, is_offered: Array
    ) -> Array:
        """See `Sampling`."""
        if self.temperature == 0 or self.method == "coupled":
            return Greedy().select(self.scores(weights, key, position))
        draws = uniforms(key, position, offered.shape[0])
        trials = try_offered(weights, offered, is_offered, draws)
        drawn = Greedy().select(self.scores(trials.residual, key, position))
        return jnp.where(jnp.any(trials.accepted), trials.token, drawn)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trials:
    """Candidates of one position, tested one after the other."""

    probabilities: Array  # float32 [n], acceptance probability of each if its test is reached
    accepted: Array  # bool [n], at most one
    token: Array  # int32 [], the accepted token
    residual: Array  # float32 [V], log-weights to draw from where none was accepted


def try_offered(weights: Array, offered: Array, is_offered: Array, uniforms: Array) -> Trials:
    """Tests each distinct offered token once (specification 0x05B).

    The r-th distinct token c is accepted with probability p(c) / (1 - mass tested before it), which
    is its mass after the rejected ones are removed and the rest is renormalised. A repeated token
    has no mass left.

    Args:
        weights: float32 [V], log-weights of the target distribution p, not normalised.
        offered: int32 [n], in the order of the tests.
        is_offered: bool [n], which of them count.
        uniforms: float32 [n], one for each test.
    """
    count, vocab_size = offered.shape[0], weights.shape[0]
    if count == 0:
        nothing = jnp.zeros((0,), jnp.float32)
        return Trials(nothing, nothing.astype(bool), jnp.zeros((), jnp.int32), weights)
    p = jax.nn.softmax(weights)
    earlier = np.arange(count)[None, :] < np.arange(count)[:, None]
    same = (offered[:, None] == offered[None, :]) & is_offered[None, :]
    distinct = is_offered & ~jnp.any(same & earlier, axis=1)
    mass = jnp.where(distinct, p[offered], 0.0)
    left = jnp.sum(p) - jnp.sum(jnp.where(earlier, mass[None, :], 0.0), axis=1)
    residual = weights.at[jnp.where(is_offered, offered, vocab_size)].set(-jnp.inf, mode="drop")
    # Where the offered tokens have all the mass, the last one that has some is certain once its
    # test is reached; in floats its share could come out just below 1, with nothing left to draw.
    nothing_left = ~jnp.any(residual > -jnp.inf)
    has_mass = mass > 0
    is_last = has_mass & ~jnp.any(has_mass[None, :] & earlier.T, axis=1)
    share = jnp.minimum(mass / jnp.maximum(left, mass), 1.0)
    share = jnp.where(has_mass, jnp.where(is_last & nothing_left, 1.0, share), 0.0)
    passes = uniforms < share
    accepted = passes & ~jnp.any(passes[None, :] & earlier, axis=1)
    token = jnp.sum(jnp.where(accepted, offered, 0), dtype=jnp.int32)
    return Trials(share, accepted, token, residual)


@dataclass(frozen=True)
class Policy:
    """How the next token comes out of a row's logits: processors, then sampling. Hashable."""

    sampling: Sampling
    processors: tuple[LogitProcessor, ...] = ()

    @property
    def is_argmax(self) -> bool:
        """Whether the choice is the argmax of the logits as they are."""
        return isinstance(self.sampling, Greedy) and not self.processors

    def weights(self, logits: Array, context: TextContext) -> Array:
        """Processed log-weights float32 [V] of logits float32 [V]."""
        for processor in self.processors:
            logits = processor(logits, context)
        return self.sampling.warp(logits)


def check_seed(seed: object) -> None:
    """Refuses what is not a seed.

    Raises:
        LookaheadError: If it is not an integer from 0 to 2**32 - 1.
    """
    if type(seed) is not int or not 0 <= seed < 2**32:
        raise LookaheadError(f"seed must be an integer >= 0 and below 2**32, got {seed!r}")


def _admit_number(name: str, value: object, what: str, holds: object) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not holds(value):  # pyright: ignore[reportCallIssue]
        raise LookaheadError(f"{name} must be a number {what}, got {value!r}")
