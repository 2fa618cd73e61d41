"""The authors' own lookahead decoding, from its release on the package index (`lade`).

    python -m benchmarks.peers.workers.lade_worker SETTINGS

Settings: `directory`, `threads`, `window`, `ngram`, `guesses`. The release replaces methods
of transformers 4.34, and is switched on by the environment variable USE_LADE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from benchmarks.peers.workers.serving import serve
from benchmarks.peers.workers.torch_llama import TorchLlama


def load(settings: Mapping[str, Any]) -> TorchLlama:
    """The model of a directory, its greedy search replaced by the authors'."""
    os.environ["USE_LADE"] = "1"
    import lade  # pyright: ignore[reportMissingImports]

    lade.augment_all()
    lade.config_lade(
        WINDOW_SIZE=settings["window"],
        LEVEL=settings["ngram"],
        GUESS_SET_SIZE=settings["guesses"],
        DEBUG=0,
    )
    versions = {name: metadata.version(name) for name in ("lade", "torch", "transformers")}
    return TorchLlama(settings["directory"], settings["threads"], versions)


if __name__ == "__main__":
    serve(load)
