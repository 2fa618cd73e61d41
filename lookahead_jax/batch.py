"""A batch of prompts on the device, being decoded: the host's side of a generation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.errors import LookaheadError, RoundCheckError
from lookahead_jax.programs import MAX_PREFILL_CHUNK, Decoder, Program, State, compiled
from lookahead_jax.prompts import check_lengths, stop_ids
from lookahead_jax.results import GenerationResult, GenerationStats, StreamChunk
from lookahead_jax.sequences import Sequences
from lookahead_jax.text import TextDecoder
from lookahead_jax.typing import LanguageModel

CAPACITY_BUCKET = 64
"""Capacities are rounded up to a multiple of this: texts of similar size share a program."""


class Batch:
    """Prompts of one batch, their state on the device, and the seconds spent."""

    def __init__(self, lm: LanguageModel, program: Program, prompts: list[tuple[int, ...]]) -> None:
        self.lm = lm
        self.program = program
        self.prompts = prompts
        self.state: Any = None
        self.compile_seconds = 0.0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0

    @classmethod
    def start(
        cls,
        lm: LanguageModel,
        decoder: Decoder[Any],
        prompts: list[tuple[int, ...]],
        max_new_tokens: int,
        stop_tokens: Sequence[int] | None,
    ) -> Batch:
        """Checks what can be checked, compiles, and reads the prompts."""
        longest = max(map(len, prompts))
        check_lengths(lm, longest, max_new_tokens)
        stops = stop_ids(lm, stop_tokens)
        padded_length = _padded_prompt(longest)
        capacity = _round_up(
            max(longest + max_new_tokens + decoder.overhang, padded_length), CAPACITY_BUCKET
        )
        program = Program(decoder, lm.forward, lm.cache_spec, lm.vocab_size, capacity)
        batch = cls(lm, program, prompts)

        padded = np.zeros((len(prompts), padded_length), np.int32)
        for row, tokens in zip(padded, prompts, strict=True):
            row[: len(tokens)] = tokens
        stop_row = np.array(stops or (Sequences.NO_STOP,), np.int32)
        args = (
            jnp.asarray(padded),
            jnp.asarray([len(p) for p in prompts], jnp.int32),
            jnp.full((len(prompts),), max_new_tokens, jnp.int32),
            jnp.broadcast_to(jnp.asarray(stop_row), (len(prompts), len(stop_row))),
            lm.params,
        )
        call = batch._compiled("start", *args)
        begin = time.perf_counter()
        batch.state = jax.block_until_ready(call(*args))
        batch.prefill_seconds = time.perf_counter() - begin
        return batch

    def run(self, num_rounds: int = np.iinfo(np.int32).max, *, validate: bool = False) -> None:
        """Decodes until done, or for a number of rounds.

        All of it is one program on the device, unless each round is to be validated.
        """
        if validate:
            self._run_checked(num_rounds)
            return
        limit = jnp.asarray(num_rounds, jnp.int32)
        call = self._compiled("advance", self.state, self.lm.params, limit, donate=(0,))
        begin = time.perf_counter()
        self.state = jax.block_until_ready(call(self.state, self.lm.params, limit))
        self.decode_seconds += time.perf_counter() - begin

    def _run_checked(self, num_rounds: int) -> None:
        """Round by round; one whose checks fail raises, and the state before it is kept."""
        call = self._compiled("checked_step", self.state, self.lm.params)
        begin = time.perf_counter()
        for _ in range(num_rounds):
            if np.all(self.state.sequences.done):
                break
            error, state = call(self.state, self.lm.params)
            message = error.get()
            if message is not None:
                raise RoundCheckError(message.partition(" (`check` failed)")[0], self.state)
            self.state = state
        self.decode_seconds += time.perf_counter() - begin

    def results(self) -> list[GenerationResult]:
        """What has been written so far."""
        state: State = self.state
        text = state.sequences
        tokens, length, rounds, histogram = (
            np.asarray(x)
            for x in (text.tokens, text.length, state.rounds, state.accepted_histogram)
        )
        stops = np.asarray(text.stop_tokens)
        results = []
        for i, prompt in enumerate(self.prompts):
            output = tuple(tokens[i, len(prompt) : length[i]].tolist())
            stats = GenerationStats(
                rounds=int(rounds[i]),
                tokens_per_round=len(output) / max(int(rounds[i]), 1),
                accepted_histogram=tuple(histogram[i].tolist()),
                compile_seconds=self.compile_seconds,
                prefill_seconds=self.prefill_seconds,
                decode_seconds=self.decode_seconds,
                tokens_per_second=len(output) / max(self.decode_seconds, 1e-9),
            )
            tokenizer = self.lm.tokenizer
            stopped = bool(output) and output[-1] in stops[i]
            results.append(
                GenerationResult(
                    text=None if tokenizer is None else tokenizer.decode(output),
                    tokens=output,
                    prompt_tokens=prompt,
                    finish_reason="stop" if stopped else "length",
                    stats=stats,
                )
            )
        return results

    def _compiled(self, method: str, *args: Any, donate: tuple[int, ...] = ()) -> Any:
        call, seconds = compiled(self.program, method, *args, donate=donate)
        self.compile_seconds += seconds
        return call


class TextStream:
    """Chunks of one generation as they come; `result` holds the whole of it at the end."""

    def __init__(self, batch: Batch, rounds_per_chunk: int, validate: bool = False) -> None:
        self._batch = batch
        self._validate = validate
        self._rounds_per_chunk = rounds_per_chunk
        self._result: GenerationResult | None = None

    def __iter__(self) -> Iterator[StreamChunk]:
        """Runs rounds until the text ends."""
        batch, tokenizer = self._batch, self._batch.lm.tokenizer
        decoder = None if tokenizer is None else TextDecoder(tokenizer)
        seen, rounds_seen = len(batch.prompts[0]), 0
        finished = False
        while not finished:
            batch.run(self._rounds_per_chunk, validate=self._validate)
            text = batch.state.sequences
            length, rounds = int(text.length[0]), int(batch.state.rounds[0])
            finished = bool(text.done[0])
            tokens = tuple(np.asarray(text.tokens)[0, seen:length].tolist())
            yield StreamChunk(
                text=None if decoder is None else decoder.push(tokens, last=finished),
                tokens=tokens,
                accepted=len(tokens) - (rounds - rounds_seen),
            )
            seen, rounds_seen = length, rounds
        self._result = batch.results()[0]

    @property
    def result(self) -> GenerationResult:
        """The whole generation; there once the stream is exhausted."""
        if self._result is None:
            raise LookaheadError("the stream has not ended: read it to its end before its result")
        return self._result


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _padded_prompt(length: int) -> int:
    """A power of two, or whole prefill chunks: few programs then serve all prompts."""
    if length > MAX_PREFILL_CHUNK:
        return _round_up(length, MAX_PREFILL_CHUNK)
    return max(16, 1 << (length - 1).bit_length())
