"""The two ends of the terminal: answers go to stdout, everything about them to stderr."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_CONTROL = {code: None for code in [*range(0x20), *range(0x7F, 0xA0)] if chr(code) not in "\n\t"}


def stderr_console() -> Console:
    """A console for progress and closing lines. Made when used, so that it sees today's stderr."""
    return Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Prints one line to stderr, as it is."""
    print(line, file=sys.stderr, flush=True)


def say_dimly(line: str) -> None:
    """Prints one line to stderr, dim where a terminal can."""
    stderr_console().out(line, style="dim", highlight=False)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Shows on a terminal that something is going on."""
    console = stderr_console()
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        yield


def progress_bar() -> Progress:
    """A bar on stderr with the time left, where that is a terminal. Gone when it is done."""
    console = stderr_console()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def make_output_safe() -> None:
    """Lets text outside the locale's character set appear as `?` instead of ending the run."""
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")


def close_quietly() -> None:
    """Flushes stdout; a reader that has gone (`| head`) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes again on its way out: give it something that takes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_text(text: str, style: str | None = None) -> None:
    """Writes a piece of the answer at once.

    Args:
        text: The piece. A terminal gets it without control characters.
        style: A colour for it, where stdout is a terminal that has any.
    """
    if sys.stdout.isatty():
        text = text.translate(_CONTROL)
    if style is None:
        sys.stdout.write(text)
    else:
        Console().out(text, style=style, highlight=False, end="")
    sys.stdout.flush()


def has_colours() -> bool:
    """Whether a style changes how text looks on stdout."""
    console = Console()
    return console.color_system is not None and not console.no_color


def write_json(record: dict[str, Any]) -> None:
    """Prints one JSON object on one line, ASCII where the locale knows no more."""
    ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
    print(json.dumps(record, ensure_ascii=ascii_only, allow_nan=False), flush=True)


def finite(number: float) -> float:
    """The number, or 0.0 where nothing was measured: JSON knows no NaN and no infinity."""
    return float(number) if math.isfinite(number) else 0.0
