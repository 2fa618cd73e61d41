"""The text that every machine has: the sources of Python's standard library, as bytes."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lookahead_jax.errors import LookaheadError

END = 256
"""The token behind every file; those below are the bytes themselves."""

LEFT_OUT = (
    "test",
    "tests",
    "idle_test",
    "lib2to3",
    "idlelib",
    "turtledemo",
    "ensurepip",
    "site-packages",
    "dist-packages",
    "__pycache__",
)
"""Directories with little text that is worth learning, or with the text of other people."""

HELD_OUT = 1 / 20
"""Share of the files that is not trained on."""


@dataclass(frozen=True)
class Corpus:
    """Tokens, file after file, each with `END` behind it.

    Attributes:
        training: uint16 [n].
        held_out: uint16 [m].
    """

    training: np.ndarray
    held_out: np.ndarray

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all tokens."""
        return hashlib.sha256(self.training.tobytes() + self.held_out.tobytes()).hexdigest()

    def batch(self, seed: int, step: int, batch_size: int, length: int) -> np.ndarray:
        """The training texts of a step, int32 [batch_size, length + 1]."""
        return _windows(self.training, np.random.default_rng((seed, step)), batch_size, length)

    def held_out_batches(self, batch_size: int, length: int, count: int) -> list[np.ndarray]:
        """Always the same held-out texts, int32 [batch_size, length + 1] each."""
        rng = np.random.default_rng(0)
        return [_windows(self.held_out, rng, batch_size, length) for _ in range(count)]


def _windows(
    tokens: np.ndarray, rng: np.random.Generator, batch_size: int, length: int
) -> np.ndarray:
    starts = rng.integers(0, len(tokens) - length, batch_size)
    return tokens[starts[:, None] + np.arange(length + 1)].astype(np.int32)


def standard_library() -> Path:
    """Where this Python keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


def read_corpus(directory: Path, length: int) -> Corpus:
    """All Python files under a directory, in the order of their names.

    Which part a file belongs to is decided by a hash of its name, so files that a version of Python
    adds move none of the others.

    Args:
        directory: The root.
        length: Tokens that each part must have at least, and one more.

    Raises:
        LookaheadError: There is not enough text.
    """
    parts: dict[bool, list[np.ndarray]] = {False: [], True: []}
    for path in _sources(directory):
        name = path.relative_to(directory).as_posix()
        digest = hashlib.sha256(name.encode()).digest()
        is_held_out = int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32
        parts[is_held_out] += [np.frombuffer(path.read_bytes(), np.uint8), np.array([END])]
    tokens = {
        part: np.concatenate([np.zeros(0), *texts]).astype(np.uint16)
        for part, texts in parts.items()
    }
    for part, name in ((False, "training"), (True, "held-out")):
        if len(tokens[part]) <= length:
            raise LookaheadError(
                f"{directory}: expected more than {length} bytes of {name} text in Python files, "
                f"got {len(tokens[part])}"
            )
    return Corpus(tokens[False], tokens[True])


def _sources(directory: Path) -> Iterator[Path]:
    for root, names, files in os.walk(directory):
        names[:] = sorted(name for name in names if name not in LEFT_OUT)
        yield from (Path(root, name) for name in sorted(files) if name.endswith(".py"))
