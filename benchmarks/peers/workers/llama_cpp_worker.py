"""llama.cpp's greedy decoding, through `llama-cpp-python`.

    python -m benchmarks.peers.workers.llama_cpp_worker SETTINGS

Settings: `path` of a GGUF file, `threads`, `context` (tokens), `float32_cache`: whether keys and
values are kept in float32, and not in llama.cpp's default, float16.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from benchmarks.peers.workers.serving import serve


class LlamaCpp:
    """A loaded GGUF file."""

    def __init__(self, path: str, threads: int, context: int, float32_cache: bool) -> None:
        import llama_cpp  # pyright: ignore[reportMissingImports]

        self.versions = {"llama-cpp-python": metadata.version("llama-cpp-python")}
        self.threads = threads
        kind = llama_cpp.GGML_TYPE_F32 if float32_cache else None
        self._llama = llama_cpp.Llama(
            model_path=path,
            n_ctx=context,
            n_batch=context,
            n_threads=threads,
            n_threads_batch=threads,
            type_k=kind,
            type_v=kind,
            logits_all=False,
            verbose=False,
        )

    def write(self, prompt: Sequence[int], num_tokens: int) -> dict[str, Any]:
        """See `serving.Subject`; the prompt's call writes the first token, which is not timed."""
        self._llama.reset()  # nothing of the text before is kept
        written: list[int] = []
        begin = 0.0
        for token in self._llama.generate(list(prompt), temp=0.0, repeat_penalty=1.0, reset=False):
            written.append(int(token))
            if len(written) == 1:
                begin = time.perf_counter()
            if len(written) == num_tokens:
                break
        return {
            "tokens": written,
            "calls": len(written),
            "timed_tokens": num_tokens - 1,
            "seconds": time.perf_counter() - begin,
        }


def load(settings: Mapping[str, Any]) -> LlamaCpp:
    """The model of a file."""
    names = ("path", "threads", "context", "float32_cache")
    return LlamaCpp(**{name: settings[name] for name in names})


if __name__ == "__main__":
    serve(load)
