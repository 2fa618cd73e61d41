"""Whether float32 products are float32: GPUs round the factors to TF32 unless told otherwise.

https://docs.jax.dev/en/latest/201/precision.html: "float32 dot products may be computed with
reduced-precision arithmetic internally (bfloat16 on TPU, TF32 on recent GPUs)".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.models.layers import product
from lookahead_jax.typing import Array

Record = dict[str, Any]

PRODUCT = re.compile(r"stablehlo\.dot_general.*?: \(tensor<([^>]*)>, tensor<([^>]*)>\)")
PRECISION = re.compile(r"precision = \[(\w+), (\w+)\]")

TF32_ERROR = 1e-4
"""Relative error from which a product of float32 was not one: TF32 keeps 10 bits, about 3e-4."""


def products(lowered: str) -> Counter[str]:
    """Matrix products of a lowered program (StableHLO) by element types and precision.

    Those inside of kernels (custom calls) are not seen.
    """
    found: Counter[str] = Counter()
    for line in lowered.splitlines():
        if match := PRODUCT.search(line):
            left, right = (shape.rpartition("x")[2] for shape in match.groups())
            precision = PRECISION.search(line)
            told = " ".join(dict.fromkeys(precision.groups())) if precision else "DEFAULT"
            found[f"{left} {right} {told}"] += 1
    return found


def rounded(counted: Counter[str]) -> list[str]:
    """Kinds of products of float32 that a GPU may round."""
    return [kind for kind in counted if "f32" in kind.split()[:2] and "HIGHEST" not in kind]


def product_error(multiply: Callable[[Array, Array], Array] = product, size: int = 512) -> float:
    """Relative error of the decoder's product of float32 matrices against float64, on the device.

    Args:
        multiply: [out, in] and [in, M] to [out, M].
        size: Of the matrices.
    """
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    exact = x.astype(np.float64) @ y.astype(np.float64)
    found = np.asarray(jax.jit(multiply)(jnp.asarray(x), jnp.asarray(y)), np.float64)
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))
