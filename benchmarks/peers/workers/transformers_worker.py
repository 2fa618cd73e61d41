"""Transformers' greedy `generate` on torch, plain or with prompt lookup.

    python -m benchmarks.peers.workers.transformers_worker SETTINGS

Settings: `directory`, `threads`, and `options`, further arguments of `generate`, such as
`prompt_lookup_num_tokens` (transformers' documentation, "Generation strategies").
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from benchmarks.peers.workers.serving import serve
from benchmarks.peers.workers.torch_llama import TorchLlama


def load(settings: Mapping[str, Any]) -> TorchLlama:
    """The model of a directory."""
    versions = {name: metadata.version(name) for name in ("torch", "transformers")}
    return TorchLlama(
        settings["directory"], settings["threads"], versions, **settings.get("options", {})
    )


if __name__ == "__main__":
    serve(load)
