"""What the commands call: the package's own functions, handed over as one object.

The commands take an `Engine` instead of importing, which keeps model code out of `--help` and lets
tests run the whole command line on a model of a few lines.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookahead_jax.cli.console import say
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from lookahead_jax import Chat, CheckReport, GenerationResult, LanguageModel, TextStream


@dataclass(frozen=True)
class Engine:
    """The functions behind the commands, with the signatures of `lookahead_jax`'s own."""

    make_mesh: Callable[..., Any]
    """`lookahead_jax.make_mesh`."""
    load_model: Callable[..., LanguageModel]
    """`lookahead_jax.models.load_model`."""
    generate: Callable[..., Any]
    """`lookahead_jax.generate`: one result for a prompt, a list for a list."""
    stream: Callable[..., TextStream]
    """`lookahead_jax.stream`."""
    ordinary: Callable[..., Any]
    """`lookahead_jax.autoregressive.generate`."""
    encode: Callable[..., tuple[int, ...]]
    """`lookahead_jax.prompts.prepare`: a prompt's tokens, checked against the context."""
    completions: Callable[..., Iterator[tuple[int, GenerationResult]]]
    """`lookahead_jax.completions`."""
    chat: Callable[..., Chat]
    """`lookahead_jax.Chat`."""
    check: Callable[..., CheckReport]
    """`lookahead_jax.check`."""


def jax_engine(cache_dir: Path | None, *, keep_programs: bool = True) -> Engine:
    """The real engine. Imports jax and has it keep compiled programs on disk.

    Args:
        cache_dir: Where compiled programs are kept between runs; None for `compiled` in the
            package's cache directory, unless jax's own JAX_COMPILATION_CACHE_DIR names a place.
        keep_programs: Whether they are kept where nobody names a place.

    Raises:
        LookaheadError: If `cache_dir` cannot be written.
    """
    import jax

    from lookahead_jax import (
        Chat,
        autoregressive,
        check,
        completions,
        generate,
        make_mesh,
        stream,
    )
    from lookahead_jax.models import load_model
    from lookahead_jax.models.demo import cache_directory
    from lookahead_jax.prompts import prepare

    named = cache_dir is not None or bool(os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    if cache_dir is not None or (keep_programs and not named):
        directory = compile_cache(cache_dir, cache_directory() / "compiled")
        jax.config.update("jax_compilation_cache_dir", directory and str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return Engine(
        make_mesh=make_mesh,
        load_model=load_model,
        generate=generate,
        stream=stream,
        ordinary=autoregressive.generate,
        encode=prepare,
        completions=completions,
        chat=Chat,
        check=check,
    )


def compile_cache(wanted: Path | None, default: Path) -> Path | None:
    """A directory for compiled programs that can be written, or None: they only save time.

    Raises:
        LookaheadError: If the directory that the user wanted cannot be written.
    """
    directory = (wanted or default).expanduser()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        reason = f"cannot keep compiled programs in {directory}: {error.strerror}"
        if wanted is not None:
            raise LookaheadError(reason) from None
        say(f"note: {reason}; --cache-dir names another place")
        return None
    return directory
