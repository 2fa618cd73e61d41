"""What the workers on torch share: loading a Llama, and timing its greedy `generate`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.workers.clock import TokenClock


class TorchLlama:
    """A `LlamaForCausalLM` of whatever transformers is installed.

    Attributes:
        versions: Of the packages that count.
        options: Further arguments of `generate`.
    """

    def __init__(
        self, directory: str, threads: int, versions: Mapping[str, str], **options: Any
    ) -> None:
        import torch  # pyright: ignore[reportMissingImports]
        import transformers

        torch.set_num_threads(threads)
        self.versions, self.options = versions, options
        self.model: Any = transformers.LlamaForCausalLM.from_pretrained(directory).eval()
        self.model.generation_config.eos_token_id = None
        if self.model.dtype != torch.float32:
            raise ValueError(f"expected float32 weights, they are {self.model.dtype}")
        # The last layer of every way through the model, also of those that are not `forward`.
        self.model.model.norm.register_forward_hook(self._count)
        self._torch = torch
        self._calls = 0

    def _count(self, *_: Any) -> None:
        self._calls += 1

    @property
    def threads(self) -> int:
        """Threads that torch computes with."""
        return self._torch.get_num_threads()

    def write(self, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
        """See `serving.Subject`; the prompt's call writes the first tokens, which are not timed."""
        clock = TokenClock()
        tokens = self._torch.tensor([list(prompt)])
        self._calls = 0
        with self._torch.inference_mode():
            output = self.model.generate(
                tokens,
                attention_mask=self._torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=num_tokens,
                pad_token_id=0,
                streamer=clock,
                **self.options,
            )
        end = time.perf_counter()
        return {
            "tokens": output[0, len(prompt) :].tolist(),
            "calls": self._calls,
            "timed_tokens": num_tokens - clock.counts[0],
            "seconds": end - clock.times[0],
        }
