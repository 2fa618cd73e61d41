"""Times contenders side by side: every repetition runs each of them once, in a rotated order."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

PAUSE = 0.02
"""Seconds before each run, in which the threads of the one before go to sleep."""


@dataclass(frozen=True)
class Contender:
    """One thing to time.

    Attributes:
        run: Does it once and returns the seconds that count.
        per_token: Tokens that one run writes; 1 where a run is a single model call.
    """

    run: Callable[[], float]
    per_token: int = 1


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Quartiles are those of the values themselves, the inclusive definition."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def scaled(self, factor: float) -> dict[str, Any]:
        """As JSON, in another unit."""
        return {
            "median": round(self.median * factor, 4),
            "quartiles": [round(self.low * factor, 4), round(self.high * factor, 4)],
        }


@dataclass(frozen=True)
class Times:
    """Seconds per token of every contender, by repetition."""

    seconds: Mapping[str, Sequence[float]]

    def spread(self, name: str) -> Spread:
        """Of one contender."""
        return Spread.of(self.seconds[name])

    def fastest(self, names: Sequence[str]) -> str:
        """The contender with the smallest median."""
        return min(names, key=lambda name: self.spread(name).median)

    def ratio(self, over: str, under: str) -> Spread:
        """Of the ratios within each repetition.

        What slows the machine down for a while slows both down, so these spread less than the
        times themselves.
        """
        pairs = zip(self.seconds[over], self.seconds[under], strict=True)
        return Spread.of([a / b for a, b in pairs])


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Seconds of one call, its results ready."""
    begin = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - begin


def interleave(
    contenders: Mapping[str, Contender],
    repeats: int,
    *,
    warmups: int = 2,
    pause: float = PAUSE,
    progress: Callable[[], None] = lambda: None,
) -> Times:
    """Runs every contender `repeats` times.

    Args:
        contenders: What to time.
        repeats: Repetitions that count, at least 1.
        warmups: Repetitions before them that do not.
        pause: Seconds of rest before each run.
        progress: Called after every repetition.
    """
    names = list(contenders)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(-warmups, repeats):
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            time.sleep(pause)
            value = contenders[name].run() / contenders[name].per_token
            if repetition >= 0:
                seconds[name].append(value)
        progress()
    return Times(seconds)
