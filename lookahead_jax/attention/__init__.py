"""Attention of a block of rows over the committed prefix and over the block itself.

`attend` is the one function that models call; how it is computed is an object, an `Attention`:

    Dense       the reference: scores the whole cache; can be differentiated
    Split       plain XLA, as far as the prefix is written
    PallasTPU   a kernel for TPUs, likewise
    PallasGPU   a kernel for NVIDIA GPUs, likewise

`HeadParallel` puts any of them on several devices, a share of the heads each.
"""

from lookahead_jax.attention.choice import attend, default
from lookahead_jax.attention.dense import Dense
from lookahead_jax.attention.heads import HeadParallel
from lookahead_jax.attention.interface import Attention, Rules, Shapes
from lookahead_jax.attention.pallas_gpu import PallasGPU
from lookahead_jax.attention.pallas_tpu import PallasTPU
from lookahead_jax.attention.split import Split

__all__ = [
    "Attention",
    "Dense",
    "HeadParallel",
    "PallasGPU",
    "PallasTPU",
    "Rules",
    "Shapes",
    "Split",
    "attend",
    "default",
]
