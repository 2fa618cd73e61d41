"""When the first token came: a streamer for transformers."""

from __future__ import annotations

import time
from typing import Any


class TokenClock:
    """Notes when tokens come: one `put` is the prompt's, then one for every model call."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.counts: list[int] = []
        self._has_prompt = False

    def put(self, value: Any) -> None:
        """Called with a tensor of tokens."""
        if self._has_prompt:
            self.times.append(time.perf_counter())
            self.counts.append(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Called at the end."""
