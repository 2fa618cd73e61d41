"""Lookahead Decoding for JAX: the text of ordinary decoding, exactly, in fewer model calls."""

from lookahead_jax import autoregressive, jacobi, processors
from lookahead_jax.chat import Chat, TurnStats
from lookahead_jax.checking import CheckReport, Divergence, check
from lookahead_jax.config import LookaheadConfig, WindowAdvance, WindowProposals
from lookahead_jax.errors import LookaheadError, RoundCheckError
from lookahead_jax.generation import completions, generate, stream
from lookahead_jax.options import Options
from lookahead_jax.processors import LogitProcessor, TextContext
from lookahead_jax.results import GenerationResult, GenerationStats, StreamChunk, TokenLogProbs
from lookahead_jax.sampling import Greedy, Sample
from lookahead_jax.sharding import make_mesh
from lookahead_jax.streaming import TextStream
from lookahead_jax.typing import CacheSpec, ForwardFn, LanguageModel, Tokenizer

__all__ = [
    "CacheSpec",
    "Chat",
    "CheckReport",
    "Divergence",
    "ForwardFn",
    "GenerationResult",
    "GenerationStats",
    "Greedy",
    "LanguageModel",
    "LogitProcessor",
    "LookaheadConfig",
    "LookaheadError",
    "Options",
    "RoundCheckError",
    "Sample",
    "StreamChunk",
    "TextContext",
    "TextStream",
    "TokenLogProbs",
    "Tokenizer",
    "TurnStats",
    "WindowAdvance",
    "WindowProposals",
    "autoregressive",
    "check",
    "completions",
    "generate",
    "jacobi",
    "make_mesh",
    "processors",
    "stream",
]
