"""The peers that are packages of their own, each in a worker process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf

from benchmarks.peers.export import write_gguf, write_hugging_face
from benchmarks.peers.peer import PeerError
from benchmarks.peers.worker import CHECKOUT, Timeouts, Worker
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.gguf_header import read_gguf_header
from lookahead_jax.typing import LanguageModel

PROBE = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name) is None))
"""
"""Prints which modules an interpreter lacks, and imports none of them."""


@dataclass(frozen=True)
class Weights:
    """The model's weights in the formats of others, written when they are first asked for."""

    lm: LanguageModel
    directory: Path

    def hugging_face(self) -> Path:
        """A directory for transformers."""
        return self._written("hugging_face", write_hugging_face)

    def gguf(self) -> Path:
        """A float32 file for llama.cpp."""
        return self._written("float32.gguf", write_gguf)

    def _written(self, name: str, write: Callable[[LanguageModel, Path], None]) -> Path:
        path, begun = self.directory / name, self.directory / f"unfinished_{name}"
        if not path.exists():
            write(self.lm, begun)
            begun.rename(path)
        return path


@dataclass(frozen=True)
class External:
    """A peer in a worker process.

    Attributes:
        name: See `Peer`.
        weights: See `Peer`.
        python: The interpreter that has its packages.
        module: The worker.
        needs: Modules that the interpreter must have.
        settings: What the worker is told; called when it is started.
        log: File for what it prints.
        timeouts: How long to wait for it.
        obstacle: Why it cannot run, where that is known without asking.
    """

    name: str
    weights: str
    python: str
    module: str
    needs: tuple[str, ...]
    settings: Callable[[], Mapping[str, Any]]
    log: Path
    timeouts: Timeouts = field(default_factory=Timeouts)
    obstacle: str | None = None

    def why_not(self) -> str | None:
        """See `Peer`."""
        if self.obstacle is not None:
            return self.obstacle
        try:
            asked = subprocess.run(
                [self.python, "-c", PROBE, *self.needs],
                capture_output=True,
                encoding="utf-8",
                timeout=60,
                cwd=CHECKOUT,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"{self.python} does not run: {str(error).splitlines()[0]}"
        missing = asked.stdout.split()
        if not missing:
            return None
        return f"{', '.join(missing)} not installed in {self.python}"

    def open(self) -> Worker:
        """See `Peer`."""
        try:
            settings = json.dumps(dict(self.settings()))
        except LookaheadError as error:
            raise PeerError(str(error)) from error
        command = [self.python, "-m", f"benchmarks.peers.workers.{self.module}", settings]
        return Worker(command, self.log, self.timeouts)


def interpreter(venvs: Mapping[str, Path], package: str) -> str:
    """The interpreter of a package: that of its own virtual environment, or this one.

    Args:
        venvs: Directories of virtual environments by package.
        package: Whose.
    """
    venv = venvs.get(package)
    return sys.executable if venv is None else str(venv.absolute() / "bin" / "python")


def file_type(path: Path) -> str:
    """What a GGUF file says most of its weights are, such as "Q4_1".

    Raises:
        LookaheadError: It is no GGUF file.
    """
    number = read_gguf_header(path).metadata.get("general.file_type")
    names = [kind.name for kind in gguf.LlamaFileType if int(kind) == number]
    return names[0].removeprefix("MOSTLY_").removeprefix("ALL_") if names else "of its own kind"
