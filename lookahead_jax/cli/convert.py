"""`lookahead-jax convert`: a model as a checkpoint that restores at once, sharded."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from rich.filesize import decimal

from lookahead_jax.cli.console import say_dimly


def run_convert(
    source: str, destination: Path, dtype: str | None, int8: bool, overwrite: bool
) -> None:
    """Converts, and tells what came of it.

    Raises:
        LookaheadError: The source cannot be loaded, or the destination exists or cannot be written.
    """
    from lookahead_jax.models.conversion import convert

    start = time.perf_counter()
    done = convert(source, destination, dtype=dtype, int8=int8, overwrite=overwrite)
    seconds = time.perf_counter() - start
    kind = f"int8 and {done.dtype}" if done.int8 else done.dtype
    dtype_option = "" if done.dtype == "float32" else f" --dtype {done.dtype}"
    say_dimly(
        f"{decimal(done.size)} in {kind}{'' if done.has_tokenizer else ', without tokenizer'}, "
        f"{seconds:.1f} s; use it with --model {shlex.quote(str(destination))}{dtype_option}"
    )
