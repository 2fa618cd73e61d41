"""Transformers' greedy `generate` on torch, with the very weights of a loaded model."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import jax

from benchmarks.streaming import num_cores
from lookahead_jax.models.config import DecoderConfig, llama_config
from lookahead_jax.models.decoder import DecoderForward
from lookahead_jax.models.names import HUGGING_FACE
from lookahead_jax.typing import LanguageModel


def why_not(lm: LanguageModel) -> str | None:
    """Why transformers cannot run here with this model; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (extra: bench)"
    if not isinstance(lm.forward, DecoderForward) or not _is_plain_llama(lm.forward.config):
        return "the comparison covers Llama models without rope scaling"
    if lm.cache_spec.dtype != "float32":
        return f"the comparison is in float32, the model is in {lm.cache_spec.dtype}"
    return None


def _is_plain_llama(config: DecoderConfig) -> bool:
    """Whether it is what `llama_config` makes, without rope scaling."""
    rope = config.layers[0].rope
    if rope is None or rope.scaling is not None:
        return False
    return config == llama_config(
        config.vocab_size,
        config.hidden_size,
        config.intermediate_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.norm.epsilon,
        rope.theta,
        None,
        config.max_position_embeddings,
        config.tie_word_embeddings,
        config.qkv_bias,
        config.mlp_bias,
    )


class TransformersModel:
    """A `LlamaForCausalLM` that shares its memory with a model of this package."""

    def __init__(self, lm: LanguageModel) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import transformers

        torch.set_num_threads(num_cores())
        assert isinstance(lm.forward, DecoderForward)
        config = lm.forward.config
        rope = config.layers[0].rope
        assert rope is not None
        theirs = transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm.epsilon,
            max_position_embeddings=config.max_position_embeddings,
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.qkv_bias,
            mlp_bias=config.mlp_bias,
            rope_parameters={"rope_type": "default", "rope_theta": rope.theta},
        )
        self.model: Any = transformers.LlamaForCausalLM(theirs).eval()
        weights = {name: torch.from_dlpack(leaf) for name, leaf in _named(lm.params)}
        if config.tie_word_embeddings:
            weights[HUGGING_FACE["head/weight"]] = weights[HUGGING_FACE["embed/weight"]]
        self.model.load_state_dict(weights, assign=True)
        self.model.tie_weights()
        self.model.generation_config.eos_token_id = None
        self._torch = torch

    @property
    def threads(self) -> int:
        """Threads that torch computes with."""
        return self._torch.get_num_threads()

    def generate(self, prompt: tuple[int, ...], num_tokens: int) -> tuple[list[int], float]:
        """Greedy text, and the seconds from its first token to its last.

        The first token is the prefill's; `num_tokens` more follow, each a call of its own.
        """
        clock = _TokenClock()
        tokens = self._torch.tensor([prompt])
        with self._torch.inference_mode():
            output = self.model.generate(
                tokens,
                attention_mask=self._torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=num_tokens + 1,
                pad_token_id=0,
                streamer=clock,
            )
        assert len(clock.times) == num_tokens + 1
        return output[0, len(prompt) :].tolist(), clock.times[-1] - clock.times[0]


class _TokenClock:
    """A streamer of transformers that notes when each token comes."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._calls = 0

    def put(self, value: Any) -> None:
        """Called with the prompt, then with every token."""
        del value
        if self._calls:
            self.times.append(time.perf_counter())
        self._calls += 1

    def end(self) -> None:
        """Called at the end."""


def _named(params: Any) -> list[tuple[str, jax.Array]]:
    """Leaves by Hugging Face's names."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = [key.key for key in path]
        head, _, layer = keys[0].partition("_")
        inside = head == "layers"
        pattern = HUGGING_FACE["/".join(["layers", *keys[1:]] if inside else keys)]
        found.append((pattern.format(layer), leaf))
    return found


def writer(
    model: TransformersModel, prompt: tuple[int, ...], num_tokens: int
) -> Callable[[], float]:
    """Seconds of `num_tokens` tokens after the prompt's own."""
    return lambda: model.generate(prompt, num_tokens)[1]


def versions() -> dict[str, str]:
    """Of the packages that are compared with."""
    return {name: metadata.version(name) for name in ("torch", "transformers")}
