"""Runs every peer on every prompt, in turn, and keeps what each has written and taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.peers.peer import Peer, PeerError, Session, Writing
from benchmarks.peers.store import Key, Store

PAUSE = 0.25
"""Seconds before each text, in which the threads of the peer before go to sleep."""

Announce = Callable[[str], None]


@dataclass(frozen=True)
class Text:
    """A prompt.

    Attributes:
        id: Of the prompt.
        category: Of the prompt.
        tokens: Token ids.
    """

    id: str
    category: str
    tokens: tuple[int, ...]


@dataclass
class _Sessions:
    """The peers that are loaded, and why the others are not."""

    announce: Announce
    open: dict[str, Session] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason
        self.announce(f"{name}: {reason}")
        session = self.open.pop(name, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        for session in self.open.values():
            session.close()


def measure(
    peers: Sequence[Peer],
    texts: Sequence[Text],
    store: Store,
    *,
    num_tokens: int,
    repeats: int,
    pause: float = PAUSE,
    announce: Announce = lambda line: None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Mapping[str, str]:
    """Measures what the store does not have yet.

    Prompt by prompt, every peer writes the text once, in an order that rotates; only one computes
    at a time. A peer that fails is left out from there on, and stops no other.

    Args:
        peers: What to compare, by unique names.
        texts: The prompts.
        store: Where measurements go, and those of an earlier run are.
        num_tokens: Tokens of each text, at least 2.
        repeats: Repetitions of every text.
        pause: Seconds of rest before each text.
        announce: Told what goes wrong, a line at a time.
        progress: Told how many texts are written, and of how many.

    Returns:
        Why peers could not run, or not to the end, by their names.
    """
    sessions = _Sessions(announce)
    plan = list(_plan(peers, texts, repeats))
    try:
        missing = {key.peer for key, _ in plan if key not in store.measured}
        for peer in peers:
            if peer.name in missing:
                _open(peer, texts[0], num_tokens, store, sessions)
        for done, (key, text) in enumerate(plan):
            progress(done, len(plan))
            session = sessions.open.get(key.peer)
            if session is None or key in store.measured:
                continue
            time.sleep(pause)
            try:
                store.add(key, session.write(text.tokens, num_tokens))
            except PeerError as error:
                sessions.fail(key.peer, f"{error} ({key.prompt}, repetition {key.repetition})")
        progress(len(plan), len(plan))
    finally:
        sessions.close()
    return sessions.failures


def _plan(peers: Sequence[Peer], texts: Sequence[Text], repeats: int) -> Iterator[tuple[Key, Text]]:
    for repetition in range(repeats):
        for index, text in enumerate(texts):
            first = (repetition + index) % len(peers)
            for peer in [*peers[first:], *peers[:first]]:
                yield Key(peer.name, text.id, repetition), text


def _open(peer: Peer, text: Text, num_tokens: int, store: Store, sessions: _Sessions) -> None:
    """Loads a peer, and lets it write one text that does not count."""
    reason = peer.why_not()
    if reason is not None:
        sessions.fail(peer.name, reason)
        return
    try:
        session = peer.open()
        sessions.open[peer.name] = session
        store.describe(peer.name, peer.weights, session.facts)
        session.write(text.tokens, num_tokens)
    except PeerError as error:
        sessions.fail(peer.name, str(error))


def writings(store: Store, name: str, texts: Sequence[Text], repeats: int) -> list[list[Writing]]:
    """What a peer has written, by repetition and text; as far as it is complete."""
    found = []
    for repetition in range(repeats):
        row = [store.measured.get(Key(name, text.id, repetition)) for text in texts]
        if any(writing is None for writing in row):
            break
        found.append([writing for writing in row if writing is not None])
    return found
