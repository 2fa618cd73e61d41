"""A language model of a few lines behind the real command line; also a program of its own.

The answer to a prompt is its words in reverse, one token a word (the word's length). A text streams
one word a model call; a word of over four letters counts as a run with an accepted token. In a
batch, short prompts finish before long ones. Prompts with special words misbehave.
"""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from lookahead_jax import CacheSpec
from lookahead_jax.cli import main
from lookahead_jax.cli.engine import Engine
from lookahead_jax.errors import LookaheadError

VOCAB_SIZE = 100


def result(text, *, rounds=None, decode_seconds=0.5, tokens=None, finish_reason="stop"):
    words = text.split()
    tokens = tuple(len(word) for word in words) if tokens is None else tokens
    rounds = max(1, len(words) // 2) if rounds is None else rounds
    stats = SimpleNamespace(
        rounds=rounds,
        tokens_per_round=len(tokens) / rounds if rounds else math.nan,
        accepted_histogram=(1, rounds - 1),
        candidate_rounds=1,
        compile_seconds=1.25,
        prefill_seconds=0.1,
        decode_seconds=decode_seconds,
        tokens_per_second=len(tokens) / decode_seconds if decode_seconds else math.nan,
        pool_bytes=2000,
    )
    logprobs = SimpleNamespace(
        processed=(-0.5,) * len(tokens), raw=(-math.inf,) + (-1.5,) * (len(tokens) - 1)
    )
    return SimpleNamespace(
        text=text,
        tokens=tokens,
        prompt_tokens=(1, 2, 3),
        finish_reason=finish_reason,
        stats=stats,
        logprobs=logprobs,
        stop_string=None,
    )


def answer(prompt):
    return " ".join(reversed(prompt.split()))


def chunks(words):
    for index, word in enumerate(words):
        if word == "interrupt":
            signal.raise_signal(signal.SIGINT)
        if word == "pause":
            time.sleep(0.1)
        text = word if index == 0 else " " + word
        yield SimpleNamespace(text=text, tokens=(), accepted=int(len(word) > 4))


@dataclass
class TextStream:
    words: list
    result: object

    def __iter__(self):
        return chunks(self.words)


class Chat:
    """Keeps a conversation as `lookahead_jax.Chat` does."""

    def __init__(self, lm, *, config=None, system=None, **arguments):
        if lm.name == "plain":
            raise LookaheadError("model plain has no chat template: expected a chat model")
        self.given = {"config": config, "system": system, **arguments}
        self.reset()

    def reset(self):
        self.messages: list[dict[str, str]] = []
        self.turns: list[Any] = []

    def send(self, message):
        if "toolong" in message:
            raise LookaheadError("the prompt is longer\nthan the context of 8 tokens")
        if "bug" in message:
            raise RuntimeError("a bug")
        self.messages.append({"role": "user", "content": message})
        return ChatStream(self, message)


class ChatStream:
    def __init__(self, chat, message):
        self.chat = chat
        self.message = message
        self.written = []
        self.chunks = self.run()

    def __iter__(self):
        return self.chunks

    def run(self):
        try:
            for chunk in chunks(answer(self.message).split()):
                self.written.append(chunk.text)
                yield chunk
        finally:
            text = "".join(self.written)
            prompt = sum(len(message["content"].split()) for message in self.chat.messages)
            self.chat.messages.append({"role": "assistant", "content": text})
            self.chat.turns.append(
                SimpleNamespace(
                    prompt_tokens=prompt,
                    read_tokens=len(self.message.split()),
                    result=result(text),
                )
            )

    def close(self):
        self.chunks.close()


@dataclass
class Fake:
    """Records the calls; a batch is interrupted after `interrupt_after` results."""

    interrupt_after: int | None = None
    ordinary_result: object = None
    stats: dict = field(default_factory=dict)
    make_result: Callable[..., Any] = result
    loaded: list = field(default_factory=list)
    encoded: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    finished: list = field(default_factory=list)
    arguments: list = field(default_factory=list)
    chats: list = field(default_factory=list)
    checked: list = field(default_factory=list)
    report: Any = None

    def make_mesh(self, **axes):
        return axes

    def load_model(self, name, *, dtype, int8=False, mesh=None, attention=None) -> Any:
        extra = [*(["int8"] if int8 else []), *(x for x in (mesh, attention) if x is not None)]
        self.loaded.append((name, dtype, *extra))
        if name == "nosuch":
            raise LookaheadError("no model named nosuch")
        return SimpleNamespace(
            name=name,
            vocab_size=VOCAB_SIZE,
            max_length=64,
            cache_spec=CacheSpec(2, 1, 5),
            tokenizer=None,
        )

    def _results(self, prompt, n, **stats):
        made = [self.make_result(answer(prompt), **stats) for _ in range(n or 1)]
        return made if n else made[0]

    def generate(self, lm, prompt, *, n=None, **arguments):
        if "bug" in prompt:
            raise RuntimeError("a bug")
        self.arguments.append({"n": n, **arguments} if n else arguments)
        return self._results(prompt, n, **self.stats)

    def stream(self, lm, prompt, **arguments) -> Any:
        self.arguments.append(arguments)
        words = answer(prompt).split()
        return TextStream(words, self._results(prompt, None, **self.stats))

    def ordinary(self, lm, prompt, *, n=None, **arguments):
        self.arguments.append({"n": n, **arguments} if n else arguments)
        if self.ordinary_result is not None:
            return self.ordinary_result
        return self._results(prompt, n, rounds=len(prompt.split()))

    def encode(self, lm, text, *, system, chat_template, max_new_tokens):
        self.encoded.append((text, system))
        if "toolong" in text:
            raise LookaheadError("the prompt is longer than the context of 8 tokens")
        return tuple(text.encode())

    def completions(self, lm, prompts, *, n=1, batch_size=8, **arguments):
        self.arguments.append(arguments)
        texts = [p if isinstance(p, str) else bytes(p).decode() for p in prompts]
        self.batches.append(texts)
        waiting = list(enumerate(text for text in texts for _ in range(n)))
        slots = []
        while waiting or slots:
            while waiting and len(slots) < batch_size:
                slots.append(waiting.pop(0))
            index, text = slots.pop(slots.index(min(slots, key=lambda slot: len(slot[1].split()))))
            if self.interrupt_after is not None and len(self.finished) >= self.interrupt_after:
                raise KeyboardInterrupt
            if "bug" in text:
                raise RuntimeError("a bug")
            if "slow" in text:
                # Like a computation under way: an ordinary exit of the interpreter waits for it.
                threading.Thread(target=time.sleep, args=(30,)).start()
                print("working", file=sys.stderr, flush=True)
                time.sleep(30)
            self.finished.append(text)
            yield index, self.make_result(answer(text), **self.stats)

    def chat(self, lm, **arguments) -> Any:
        self.chats.append(Chat(lm, **arguments))
        return self.chats[-1]

    def check(self, lm, result, *, sample, **arguments) -> Any:
        self.checked.append((result.text, sample, arguments))
        return self.report

    def engine(self):
        return Engine(
            make_mesh=self.make_mesh,
            load_model=self.load_model,
            generate=self.generate,
            stream=self.stream,
            ordinary=self.ordinary,
            encode=self.encode,
            completions=self.completions,
            chat=self.chat,
            check=self.check,
        )


if __name__ == "__main__":
    main(Fake().engine())
