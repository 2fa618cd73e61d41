"""Weight-only int8: a scale for each output channel, the greatest of its weights being 127."""

from __future__ import annotations

import numpy as np

MOST = 127
"""Greatest int8 in use: symmetric, so that -128 stays free."""

ELEMENTS = 1 << 20
"""Quantised at a time, which bounds the scratch memory."""

MATRICES = ("weight", "gate", "up", "down")
"""Last keys of matrices, and of stacks of them."""

KEPT = ("positions", "router")
"""Matrices that stay as they are: small ones that decide much."""


def is_matrix(path: tuple[str, ...]) -> bool:
    """Whether the parameter of this path becomes int8."""
    return path[-1] in MATRICES and not any(key in KEPT for key in path)


def scale_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Where the scales of a matrix are in the tree."""
    return (*path[:-1], f"{path[-1]}_scale")


def int8_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Shapes of all parameters, the scales of the matrices among them."""
    result = {}
    for name, shape in shapes.items():
        path = tuple(name.split("/"))
        result[name] = shape
        if is_matrix(path):
            result["/".join(scale_path(path))] = shape[:-1]
    return result


def quantise(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounds a matrix, or a stack of them, row by row.

    Args:
        weights: Floats [..., out, in].

    Returns:
        int8 [..., out, in], and float32 [..., out]: their product is within half a scale of
        `weights`. A row of zeros has scale 1.
    """
    rows = weights.reshape(-1, weights.shape[-1])
    values = np.empty(rows.shape, np.int8)
    scales = np.ones(len(rows), np.float32)
    step = max(1, ELEMENTS // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step].astype(np.float32)
        greatest = np.max(np.abs(part), axis=1)
        scale = np.where(greatest > 0, greatest / np.float32(MOST), np.float32(1))
        scales[start : start + step] = scale
        values[start : start + step] = np.rint(part / scale[:, None])
    return values.reshape(weights.shape), scales.reshape(weights.shape[:-1])
