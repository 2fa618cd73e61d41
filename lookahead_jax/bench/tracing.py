"""Lookahead decoding under the profiler."""

from __future__ import annotations

import time
from pathlib import Path

from lookahead_jax.bench.measuring import Contest
from lookahead_jax.bench.profiling import Shares, shares, trace
from lookahead_jax.bench.records import Point


def traced(contest: Contest, point: Point, directory: Path) -> Shares:
    """Traces the rounds of the first texts, and tells how their time is shared out.

    Args:
        contest: What is measured.
        point: W, N and G.
        directory: Where the trace goes.
    """
    side, group = contest.lookahead(point), contest.groups[0]
    side.write(group)
    batch = side.open(group)
    seconds = []

    def run() -> None:
        begin = time.perf_counter()
        batch.run()
        seconds.append(time.perf_counter() - begin)

    path = trace(directory, run)
    rounds = int(batch.progress().rounds.max())
    batch.close()
    text = side.programs["advance"].as_text()
    return shares(path, text, rounds=rounds, wall=seconds[0])
