"""The errors that callers are meant to catch."""

from __future__ import annotations

from typing import Any


class LookaheadError(ValueError):
    """Bad input: a single line that says what was expected and what came.

    The command line prints the line and exits with code 2. Anything else that escapes is a bug of
    this package and keeps its traceback.
    """


class RoundCheckError(RuntimeError):
    """A round's publication plan failed its checks; nothing of that round was published.

    `state` is the state before the round. It is whole, and can be continued.
    """

    def __init__(self, message: str, state: Any) -> None:
        super().__init__(message)
        self.state = state
