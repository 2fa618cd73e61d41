"""Peak resident memory of loading a model, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from lookahead_jax.errors import LookaheadError

_PROGRAM = """
import pathlib, sys
import jax
from lookahead_jax.models import load_model

def resident(kind):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(kind)) * 1024

jax.block_until_ready(jax.numpy.zeros(1))
before = resident("VmRSS:")
lm = load_model(sys.argv[1], dtype=sys.argv[2])
weights = sum(leaf.nbytes for leaf in jax.tree.leaves(lm.params))
print(before, resident("VmHWM:"), weights)
"""


def loading_memory(model: str, dtype: str) -> dict[str, Any]:
    """Bytes of the weights, of the process before loading them, and of its peak.

    Args:
        model: As for `load_model`; there already.
        dtype: As for `load_model`.

    Raises:
        LookaheadError: The process failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM, model, dtype],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise LookaheadError(f"cannot measure the memory of loading {model}: {reason}")
    before, peak, weights = map(int, done.stdout.split())
    allowed = int(1.3 * weights) + (1 << 30)
    return {
        "weights_bytes": weights,
        "before_bytes": before,
        "peak_bytes": peak,
        "peak_over_weights": round(peak / weights, 4),
        "at_most_bytes": allowed,
    }
