"""Grids of W, N and G, as people write them."""

from __future__ import annotations

import re

from lookahead_jax.bench.records import Point
from lookahead_jax.errors import LookaheadError

MOST_POINTS = 400
"""Of a grid."""


def parse_grid(text: str) -> tuple[Point, ...]:
    """The points of "W=3,5,7 N=3,5 G=3,7", by N, then G, then W.

    Raises:
        LookaheadError: It is not written like that, or has too many points.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for part in text.split():
        match = re.fullmatch(r"([WNG])=(\d{1,4}(?:,\d{1,4})*)", part)
        if match is None or match[1] in sizes:
            sizes = {}
            break
        sizes[match[1]] = tuple(sorted({int(size) for size in match[2].split(",")}))
    if set(sizes) != set("WNG"):
        raise LookaheadError(f'a grid is written "W=3,5,7,15 N=3,5 G=3,7,15", got {text!r}')
    count = len(sizes["W"]) * len(sizes["N"]) * len(sizes["G"])
    if count > MOST_POINTS:
        raise LookaheadError(f"a grid has at most {MOST_POINTS} points, got {count}")
    return tuple(
        Point(width, length, guesses)
        for length in sizes["N"]
        for guesses in sizes["G"]
        for width in sizes["W"]
    )
