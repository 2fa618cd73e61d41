"""Device memory that a program takes: what the compiler says, and what the allocator saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from benchmarks.subjects import Call
from lookahead_jax.typing import Array

Record = dict[str, Any]

PEAK, IN_USE, LIMIT = "peak_bytes_in_use", "bytes_in_use", "bytes_limit"


class Memory(Protocol):
    """A device's allocator; `jax.Device` is one."""

    def memory_stats(self) -> Mapping[str, int] | None:
        """Bytes by name since the process began; None where the device does not count."""
        ...


def _ballast(size: int) -> Array:
    return jnp.zeros((size,), jnp.uint8)


def memory_of(call: Call, device: Memory, *, allocate: Callable[[int], Any] = _ballast) -> Record:
    """Bytes that a program needs besides its arguments, told by the compiler and measured.

    The allocator's peak is that of the whole process and never falls, so memory is first filled up
    to the peak: what the program takes then raises it by just that much.

    Args:
        call: The program and its arguments; a copy of what it is donated is made.
        device: Where it runs.
        allocate: Fills so many bytes of the device, as long as its result lives.

    Returns:
        `predicted_bytes` (temporaries, and outputs that reuse no argument), `argument_bytes`, both
        from the compiler; `measured_bytes` and more from the allocator, or why not, `reason`.
    """
    analysis = call.program.memory_analysis()
    record: Record = {
        "argument_bytes": analysis.argument_size_in_bytes,
        "predicted_bytes": analysis.temp_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes,
        "temporary_bytes": analysis.temp_size_in_bytes,
    }
    stats = device.memory_stats()
    if stats is None or not {PEAK, IN_USE, LIMIT} <= set(stats):
        reason = "the device does not count its memory"
    elif stats[PEAK] + record["predicted_bytes"] > stats[LIMIT]:
        reason = f"the peak so far, {stats[PEAK]} bytes, leaves no room to measure"
    else:
        try:
            return record | _measured(call, device, allocate)
        except jax.errors.JaxRuntimeError as error:
            # The times of this program are worth keeping.
            reason = str(error).splitlines()[0]
    return record | {"measured_bytes": None, "reason": reason}


def _measured(call: Call, device: Memory, allocate: Callable[[int], Any]) -> Record:
    fresh = [
        jax.tree.map(jnp.copy, arg) if i in call.donate else arg for i, arg in enumerate(call.args)
    ]
    jax.block_until_ready(fresh)
    before = _stats(device)
    missing = before[PEAK] - before[IN_USE]
    ballast = jax.block_until_ready(allocate(missing)) if missing > 0 else None
    filled = _stats(device)
    result = jax.block_until_ready(call.program(*fresh))
    after = _stats(device)
    del ballast, result
    return {
        "in_use_bytes": before[IN_USE],
        "measured_bytes": after[PEAK] - filled[IN_USE],
        # Where the filling ended below the peak, so much may have gone unseen.
        "unseen_bytes": filled[PEAK] - filled[IN_USE],
        "peak_bytes": after[PEAK],
        "limit_bytes": before[LIMIT],
    }


def _stats(device: Memory) -> Mapping[str, int]:
    stats = device.memory_stats()
    assert stats is not None
    return stats
