"""The peers that have a process of their own: one that crashes or hangs takes no other along."""

from __future__ import annotations

import contextlib
import json
import math
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.peers.peer import Facts, PeerError, Writing

CHECKOUT = Path(__file__).resolve().parents[2]
"""Where workers start, so that another interpreter finds `benchmarks`."""


@dataclass(frozen=True)
class Timeouts:
    """Seconds after which a worker that says nothing is ended."""

    load: float = 300.0
    write: float = 300.0
    close: float = 10.0


class Worker:
    """A process that answers each line with one (workers/serving.py), as a `Session`."""

    def __init__(self, command: Sequence[str], log: Path, timeouts: Timeouts) -> None:
        """Starts the process and waits until it has loaded its model.

        Args:
            command: Program and arguments.
            log: Gets what it writes to standard error.
            timeouts: How long to wait.

        Raises:
            PeerError: It did not start, or said why it cannot load.
        """
        self._log, self._timeouts = log, timeouts
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w", encoding="utf-8") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=CHECKOUT,
                    encoding="utf-8",
                    errors="replace",
                )
        except OSError as error:
            raise PeerError(f"cannot start {command[0]}: {error.strerror or error}") from error
        threading.Thread(target=self._listen, args=(self._process.stdout,), daemon=True).start()
        try:
            self.facts = _facts(self._hear(timeouts.load))
        except BaseException:
            self.close()
            raise

    def write(self, prompt: tuple[int, ...], num_tokens: int) -> Writing:
        """See `Session`."""
        request = json.dumps({"prompt": list(prompt), "num_tokens": num_tokens})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(request + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise PeerError(self._ended()) from error
        return _writing(self._hear(self._timeouts.write), num_tokens)

    def close(self) -> None:
        """See `Session`. A process that does not end by itself is killed."""
        assert self._process.stdin is not None
        # It may be gone, with a request that it did not read.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        if self._process.poll() is None:
            try:
                self._process.wait(self._timeouts.close)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self._lines.put(line)
        self._lines.put(None)

    def _hear(self, seconds: float) -> Mapping[str, Any]:
        """The next message."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self._process.kill()
            raise PeerError(f"said nothing for {seconds:g} seconds, and was ended") from None
        if line is None:
            raise PeerError(self._ended())
        try:
            message = json.loads(line)
        except json.JSONDecodeError:
            message = None
        if not isinstance(message, dict):
            raise PeerError(f"answered with {line.strip()[:60]!r}, expected a JSON object")
        if "error" in message:
            raise PeerError(str(message["error"]))
        return message

    def _ended(self) -> str:
        """Why the process is gone, as far as can be told."""
        try:
            code = self._process.wait(self._timeouts.close)
        except subprocess.TimeoutExpired:
            return "closed its output, expected an answer"
        if code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        else:
            how = f"ended with exit code {code}"
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how


def _facts(message: Mapping[str, Any]) -> Facts:
    versions, threads = message.get("versions"), message.get("threads")
    if not isinstance(versions, dict) or type(threads) is not int:
        raise PeerError(f"began with {_short(message)}, expected versions and threads")
    return Facts({str(name): str(version) for name, version in versions.items()}, threads)


def _writing(message: Mapping[str, Any], num_tokens: int) -> Writing:
    """The text that a message has, checked."""
    tokens, calls = message.get("tokens"), message.get("calls")
    timed, seconds = message.get("timed_tokens"), message.get("seconds")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise PeerError(f"answered {_short(message)}, expected token ids")
    if len(tokens) != num_tokens:
        raise PeerError(f"wrote {len(tokens)} tokens, expected {num_tokens}")
    if type(calls) is not int or not 1 <= calls <= num_tokens:
        raise PeerError(f"counted {calls!r} model calls for {num_tokens} tokens")
    if type(timed) is not int or not 1 <= timed <= num_tokens:
        raise PeerError(f"timed {timed!r} of {num_tokens} tokens")
    if not isinstance(seconds, float) or not 0 < seconds < math.inf:
        raise PeerError(f"took {seconds!r} seconds")
    return Writing(tuple(tokens), calls, timed, seconds)


def _short(message: Mapping[str, Any]) -> str:
    return repr(json.dumps(message)[:60])
