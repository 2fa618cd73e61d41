"""Lookahead decoding against ordinary decoding, measured side by side over W, N and G.

`lookahead-jax bench` is the convenient form: it keeps what it measures, and reports it.
"""

from lookahead_jax.bench.api import measure_grid
from lookahead_jax.bench.grid import parse_grid
from lookahead_jax.bench.records import Point, Row

__all__ = ["Point", "Row", "measure_grid", "parse_grid"]
