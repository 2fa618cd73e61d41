"""Transformers' greedy `generate` on torch, with the very weights of a loaded model."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib import metadata
from typing import Any

from benchmarks.peers import export
from benchmarks.peers.workers.clock import TokenClock
from benchmarks.streaming import num_cores
from lookahead_jax.models.names import HUGGING_FACE
from lookahead_jax.typing import LanguageModel


def why_not(lm: LanguageModel) -> str | None:
    """Why transformers cannot run here with this model; None where it can."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed (extra: bench)"
    return export.why_not(lm)


class TransformersModel:
    """A `LlamaForCausalLM` that shares its memory with a model of this package."""

    def __init__(self, lm: LanguageModel) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import transformers

        torch.set_num_threads(num_cores())
        config = export.decoder_config(lm)
        theirs = transformers.LlamaConfig(
            **export.hugging_face_config(config),
            rope_parameters={"rope_type": "default", "rope_theta": export.rope_theta(config)},
        )
        self.model: Any = transformers.LlamaForCausalLM(theirs).eval()
        leaves = export.named(lm.params, HUGGING_FACE)
        weights = {name: torch.from_dlpack(leaf) for name, leaf in leaves}
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
        clock = TokenClock()
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


def writer(
    model: TransformersModel, prompt: tuple[int, ...], num_tokens: int
) -> Callable[[], float]:
    """Seconds of `num_tokens` tokens after the prompt's own."""
    return lambda: model.generate(prompt, num_tokens)[1]


def versions() -> dict[str, str]:
    """Of the packages that are compared with."""
    return {name: metadata.version(name) for name in ("torch", "transformers")}
