"""Reads all weights once through memory, in several ways, to find what the machine can do.

A decoding step must read every weight once, so the time of one such reading is what no step can
beat. Which way of reading is fastest differs from machine to machine: all of them are timed in the
same run as the step, and the step is held against the fastest. Each reads every byte and does next
to no arithmetic; the results are a few numbers per weight.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.bench.timing import Contender, timed

PIECE = 4 << 20
"""Bytes that one thread reads before it takes the next piece."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name() -> str:
    """What the kernel calls the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def stream_contenders(params: Any, executor: ThreadPoolExecutor) -> dict[str, Contender]:
    """Ways of reading all weights once with all cores, by name.

    Args:
        params: The weights, on a CPU.
        executor: Threads, one a core.
    """
    leaves = jax.tree.leaves(params)
    words = pieces(leaves)
    ones = np.ones(PIECE // 4, np.float32)

    def dot(piece: np.ndarray) -> Any:
        numbers = piece.view(np.float32)
        return np.dot(numbers, ones[: len(numbers)])

    readers = {
        "stream: threads, maximum": threaded(np.max, words, executor),
        "stream: threads, bitwise or": threaded(np.bitwise_or.reduce, words, executor),
        "stream: XLA, row products": compiled(_row_products, leaves),
        "stream: XLA, row maxima": compiled(_row_maxima, leaves),
    }
    if all(leaf.dtype == jnp.float32 for leaf in leaves):
        readers["stream: threads, dot product"] = threaded(dot, words, executor)
    return {name: Contender(reader) for name, reader in readers.items()}


def pieces(leaves: Sequence[jax.Array]) -> list[np.ndarray]:
    """The memory of all leaves, without a copy: runs of int64, and the few bytes left over."""
    found = []
    for leaf in leaves:
        raw = np.asarray(leaf).reshape(-1).view(np.uint8)
        whole = len(raw) // 8 * 8
        words = raw[:whole].view(np.int64)
        step = PIECE // 8
        found += [words[i : i + step] for i in range(0, len(words), step)]
        if whole < len(raw):
            found.append(raw[whole:])
    return found


def threaded(
    reduce: Callable[[np.ndarray], Any], parts: list[np.ndarray], executor: ThreadPoolExecutor
) -> Callable[[], float]:
    """Numpy reductions, which let go of the interpreter's lock, on all cores."""

    def read() -> None:
        for _ in executor.map(reduce, parts):
            pass

    return lambda: timed(read)


def compiled(
    read: Callable[[Sequence[jax.Array]], list[jax.Array]], leaves: Sequence[jax.Array]
) -> Callable[[], float]:
    """One program over all leaves."""
    program = jax.jit(read)
    return lambda: timed(program, leaves)


def _row_products(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    return [leaf @ jnp.ones(leaf.shape[-1:], leaf.dtype) for leaf in leaves]


def _row_maxima(leaves: Sequence[jax.Array]) -> list[jax.Array]:
    return [jnp.max(leaf, axis=-1) for leaf in leaves]
