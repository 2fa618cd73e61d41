"""The worker's side of the conversation: one JSON object a line, in by stdin, out by stdout."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class Subject(Protocol):
    """A loaded model."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages that count."""
        ...

    @property
    def threads(self) -> int:
        """Threads that it computes with."""
        ...

    def write(self, prompt: Sequence[int], num_tokens: int) -> Mapping[str, Any]:
        """Greedy text, never stopped by a token.

        Args:
            prompt: Token ids.
            num_tokens: Tokens to write.

        Returns:
            `tokens` int [num_tokens]; `calls`, model calls that wrote them, the prompt's included
            where it wrote one; `timed_tokens`, those written within `seconds`; `seconds`, from the
            end of reading the prompt to the last token.
        """
        ...


def serve(load: Callable[[Mapping[str, Any]], Subject]) -> None:
    """Loads a model by the settings of the command line, and writes what it is asked for.

    The first line out says what was loaded, or has an `error`. Then every line in, with `prompt`
    and `num_tokens`, gets one out. An error ends the worker.

    Args:
        load: Makes the subject from the settings.
    """
    # What libraries print goes where errors go.
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: Mapping[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    try:
        subject = load(json.loads(sys.argv[1]))
        say({"versions": dict(subject.versions), "threads": subject.threads})
        for line in sys.stdin:
            request = json.loads(line)
            say(subject.write(request["prompt"], request["num_tokens"]))
    except Exception as error:  # whatever it is, the other side must hear of it
        traceback.print_exc()
        reason = (str(error).strip() or "no message").splitlines()[0]
        say({"error": f"{type(error).__name__}: {reason}"})
