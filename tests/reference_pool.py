"""The hashed pool in plain dicts and lists: one upsert after the other, a slot for one key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Suffix = tuple[int, ...]


@dataclass
class PlainHashedPool:
    """What `lookahead_jax.pool.HashedPool` holds, with a hash of the test's choice.

    Attributes:
        slot_of: The slot of a key.
        guess_set_size: Suffixes kept per key.
        owners: The key of each slot that has one.
        buckets: The suffixes of each slot, least recently seen first.
    """

    slot_of: Callable[[int], int]
    guess_set_size: int
    owners: dict[int, int] = field(default_factory=dict)
    buckets: dict[int, list[Suffix]] = field(default_factory=dict)

    def upsert(self, key: int, suffix: Suffix) -> None:
        """The newest suffix of a key; another key of its slot is forgotten."""
        slot = self.slot_of(key)
        kept = self.buckets[slot] if self.owners.get(slot) == key else []
        kept = [other for other in kept if other != suffix]
        self.owners[slot] = key
        self.buckets[slot] = [*kept, suffix][-self.guess_set_size :]

    def upsert_sequence(self, tokens: Sequence[int], suffix_length: int) -> None:
        """Every n-gram of a text, left to right."""
        for start in range(len(tokens) - suffix_length):
            key, *suffix = tokens[start : start + suffix_length + 1]
            self.upsert(key, tuple(suffix))

    def lookup(self, key: int) -> list[Suffix]:
        """The suffixes of a key, least recently seen first; none if another key has its slot."""
        slot = self.slot_of(key)
        return self.buckets[slot] if self.owners.get(slot) == key else []
