"""`lookahead-jax` as a program: a command line in, an exit code out, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from lookahead_jax.cli.app import app
from lookahead_jax.cli.console import close_quietly, make_output_safe, say
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.processes import are_joined
from lookahead_jax.errors import LookaheadError

_INTERRUPTED = 130


def run(arguments: Sequence[str] | None = None, engine: Engine | None = None) -> int:
    """Runs one command line.

    Args:
        arguments: Without the program's name; None for those of the process.
        engine: What to call in the place of the package's own functions.

    Returns:
        The exit code: 0, 2 for bad input, 130 if interrupted.
    """
    make_output_safe()
    try:
        return app(arguments, obj=engine, prog_name="lookahead-jax", standalone_mode=False) or 0
    except LookaheadError as error:
        return _fail(str(error))
    except typer.TyperException as error:
        return _fail(f"{error.format_message().rstrip('.')} (--help lists the options)")
    finally:
        close_quietly()


def _fail(message: str) -> int:
    say("error: " + " ".join(message.split()))
    return 2


def main(engine: Engine | None = None) -> None:
    """The `lookahead-jax` program; `engine` as in `run`."""
    code = run(engine=engine)
    if code == _INTERRUPTED or (code and are_joined()):
        # A computation under way cannot be called off, and an ordinary exit would wait for it, or
        # for processes that have gone.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
