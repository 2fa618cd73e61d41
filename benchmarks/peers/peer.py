"""What a peer is: something that writes the greedy text of a prompt, and says what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class PeerError(Exception):
    """A peer cannot run, or no more; one line that says why."""


@dataclass(frozen=True)
class Writing:
    """One text.

    Attributes:
        tokens: Token ids, as many as were asked for.
        calls: Model calls that wrote them. Reading the prompt is one of them where it writes the
            first token, so that it is 1 for each token for all ordinary decoding.
        timed_tokens: Tokens written within `seconds`: all, or all but those of the prompt's call.
        seconds: From the end of reading the prompt to the last token.
    """

    tokens: tuple[int, ...]
    calls: int
    timed_tokens: int
    seconds: float


@dataclass(frozen=True)
class Facts:
    """What a peer says of itself once it is loaded.

    Attributes:
        versions: Of its packages.
        threads: Threads that it computes with.
    """

    versions: Mapping[str, str]
    threads: int


class Session(Protocol):
    """A loaded peer."""

    @property
    def facts(self) -> Facts:
        """Versions and threads."""
        ...

    def write(self, prompt: tuple[int, ...], num_tokens: int) -> Writing:
        """Greedy text that no token stops.

        Args:
            prompt: Token ids.
            num_tokens: Tokens to write, at least 2.

        Raises:
            PeerError: It did not, or something else came.
        """
        ...

    def close(self) -> None:
        """Frees its memory and ends its process."""
        ...


class Peer(Protocol):
    """Something to compare."""

    @property
    def name(self) -> str:
        """Short, for tables and the command line."""
        ...

    @property
    def weights(self) -> str:
        """Their arithmetic: "float32", or what a quantised file has."""
        ...

    def why_not(self) -> str | None:
        """Why it cannot run here, in one line; None where nothing is known against it."""
        ...

    def open(self) -> Session:
        """Loads it.

        Raises:
            PeerError: It cannot be loaded.
        """
        ...
