"""A language model of a few lines behind the real command line; also a program of its own.

The answer to a prompt is its words in reverse, one token a word (the word's length), a word a
round except that long words come two at a time. Prompts with special words misbehave.
"""

import math
import sys
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lookahead_jax.cli import main
from lookahead_jax.cli.engine import Engine
from lookahead_jax.errors import LookaheadError


def result(text, *, rounds=None, decode_seconds=0.5, tokens=None):
    words = text.split()
    tokens = tuple(len(word) for word in words) if tokens is None else tokens
    rounds = max(1, len(words) // 2) if rounds is None else rounds
    stats = SimpleNamespace(
        rounds=rounds,
        tokens_per_round=len(tokens) / rounds if rounds else math.nan,
        accepted_histogram=(1, rounds - 1),
        compile_seconds=1.25,
        prefill_seconds=0.1,
        decode_seconds=decode_seconds,
        tokens_per_second=len(tokens) / decode_seconds if decode_seconds else math.nan,
    )
    return SimpleNamespace(
        text=text, tokens=tokens, prompt_tokens=(1, 2, 3), finish_reason="stop", stats=stats
    )


def answer(prompt):
    return " ".join(reversed(prompt.split()))


@dataclass
class TextStream:
    words: list
    result: object

    def __iter__(self):
        for index, word in enumerate(self.words):
            if word == "interrupt":
                raise KeyboardInterrupt
            yield SimpleNamespace(text=word if index == 0 else " " + word, tokens=(), accepted=0)


@dataclass
class Fake:
    """Records the calls; `interrupt_after` groups, `generate` is interrupted."""

    interrupt_after: int | None = None
    ordinary_result: object = None
    stats: dict = field(default_factory=dict)
    loaded: list = field(default_factory=list)
    groups: list = field(default_factory=list)
    arguments: list = field(default_factory=list)

    def load_model(self, name, *, dtype) -> Any:
        self.loaded.append((name, dtype))
        if name == "nosuch":
            raise LookaheadError("no model named nosuch")
        return SimpleNamespace(name=name)

    def generate(self, lm, prompt, **arguments):
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if self.interrupt_after is not None and len(self.groups) >= self.interrupt_after:
            raise KeyboardInterrupt
        if any("toolong" in text for text in prompts):
            raise LookaheadError("the prompt is longer than the context of 8 tokens")
        if any("bug" in text for text in prompts):
            raise RuntimeError("a bug")
        if any("slow" in text for text in prompts):
            # Like a computation under way: an ordinary exit of the interpreter waits for it.
            threading.Thread(target=time.sleep, args=(30,)).start()
            print("working", file=sys.stderr, flush=True)
            time.sleep(30)
        self.groups.append(list(prompts))
        self.arguments.append(arguments)
        results = [result(answer(text), **self.stats) for text in prompts]
        return results[0] if isinstance(prompt, str) else results

    def stream(self, lm, prompt, **arguments) -> Any:
        self.arguments.append(arguments)
        words = answer(prompt).split()
        return TextStream(words, result(" ".join(words), **self.stats))

    def ordinary(self, lm, prompt, **arguments):
        self.arguments.append(arguments)
        return self.ordinary_result or result(answer(prompt), rounds=len(prompt.split()))

    def engine(self):
        return Engine(self.load_model, self.generate, self.stream, self.ordinary)


if __name__ == "__main__":
    main(Fake().engine())
