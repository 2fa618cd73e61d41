"""Lookahead Decoding for JAX: the text of ordinary decoding, exactly, in fewer model calls."""

from lookahead_jax import autoregressive, jacobi
from lookahead_jax.batch import TextStream
from lookahead_jax.config import LookaheadConfig, WindowAdvance
from lookahead_jax.errors import LookaheadError, RoundCheckError
from lookahead_jax.generation import generate, stream
from lookahead_jax.results import GenerationResult, GenerationStats, StreamChunk
from lookahead_jax.sampling import Greedy
from lookahead_jax.typing import CacheSpec, ForwardFn, LanguageModel, Tokenizer

__all__ = [
    "CacheSpec",
    "ForwardFn",
    "GenerationResult",
    "GenerationStats",
    "Greedy",
    "LanguageModel",
    "LookaheadConfig",
    "LookaheadError",
    "RoundCheckError",
    "StreamChunk",
    "TextStream",
    "Tokenizer",
    "WindowAdvance",
    "autoregressive",
    "generate",
    "jacobi",
    "stream",
]
