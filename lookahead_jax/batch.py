"""Sequences being decoded on the device: the host's side of their state."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from lookahead_jax.errors import LookaheadError, RoundCheckError
from lookahead_jax.options import Settings
from lookahead_jax.pool import pool_bytes
from lookahead_jax.processors import check_processors
from lookahead_jax.programs import (
    BATCH,
    MAX_PREFILL_CHUNK,
    WHOLE,
    Decoder,
    Program,
    Requests,
    State,
    compiled,
    grow_state,
)
from lookahead_jax.prompts import check_lengths, stop_ids
from lookahead_jax.results import GenerationResult, GenerationStats, TokenLogProbs
from lookahead_jax.sequences import Sequences
from lookahead_jax.sharding import DATA, size_of
from lookahead_jax.stopping import TextWriter
from lookahead_jax.typing import LanguageModel

CAPACITY_BUCKET = 64
"""Capacities are rounded up to a multiple of this: texts of similar size share a program."""

NO_LIMIT = np.iinfo(np.int32).max
"""A number of rounds that is never reached."""


@dataclass(frozen=True)
class Request:
    """One text to write."""

    tokens: tuple[int, ...]
    seed: int = 0
    sample: int = 0


@dataclass(frozen=True)
class Progress:
    """What the device has written so far, on the host; all of it with the batch axis."""

    tokens: np.ndarray  # int32 [B, A]
    prompt_length: np.ndarray  # int32 [B]
    length: np.ndarray  # int32 [B]
    done: np.ndarray  # bool [B]
    rounds: np.ndarray  # int32 [B]

    def output(self, slot: int, start: int = 0) -> list[int]:
        """Output tokens of one sequence from the `start`-th on."""
        first = self.prompt_length[slot] + start
        return self.tokens[slot, first : self.length[slot]].tolist()


class Batch:
    """The state of some sequences, the programs that move it, and the seconds spent.

    Every sequence has a slot. A finished one can be given to another request (`admit`), and a text
    can be continued (`extend`).
    """

    def __init__(
        self, lm: LanguageModel, decoder: Decoder[Any], settings: Settings, validate: bool = False
    ) -> None:
        self.lm = lm
        self.settings = settings
        self.validate = validate
        if validate and lm.mesh is not None:
            raise LookaheadError("validate looks at every round on one device: expected no mesh")
        self.stops = stop_ids(lm, settings.stop_tokens)
        check_processors(settings.processors, lm.vocab_size)
        if settings.stop_strings and lm.tokenizer is None:
            raise LookaheadError(
                f"model {lm.name} has no tokenizer: stop_strings need one, stop_tokens do not"
            )
        self.program = Program(
            decoder, lm.forward, lm.cache_spec, lm.vocab_size, 0, settings.logprobs, lm.mesh
        )
        self.state: Any = None
        self.compile_seconds = 0.0
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self.programs: dict[str, Any] = {}
        """The compiled programs that have run last, by name."""
        self._padded_length = 0

    @property
    def num_slots(self) -> int:
        """Sequences decoded at a time: every group of a mesh has as many."""
        return round_up(self.settings.batch_size, size_of(self.lm.mesh, DATA))

    def start(self, requests: Sequence[Request], longest: int | None = None) -> None:
        """Reads the first prompts, one slot each.

        Args:
            requests: The prompts.
            longest: Tokens of the longest prompt that is to come, these or later ones.

        Raises:
            LookaheadError: If they do not fit the model's context; nothing is compiled then.
        """
        longest = max(len(r.tokens) for r in requests) if longest is None else longest
        max_new_tokens = self.settings.max_new_tokens
        check_lengths(self.lm, longest, max_new_tokens)
        self._padded_length = padded_prompt(longest)
        wanted = longest + max_new_tokens + self.program.decoder.overhang
        capacity = round_up(max(wanted, self._padded_length), CAPACITY_BUCKET)
        self.program = replace(self.program, capacity=capacity)
        args = (self.requests(requests, self._padded_length), self.lm.params)
        self.state = self._read("start", *args)

    def admit(self, slot: int, request: Request) -> None:
        """Gives a finished sequence's slot to another request, which must fit the capacity."""
        args = (
            self.state,
            self._put(np.int32(slot)),
            self.requests([request], self._padded_length, one=True),
            self.lm.params,
        )
        self.state = self._read("admit", *args, donate=(0,))

    def extend(self, kept: int, request: Request) -> None:
        """Continues the only sequence: `kept` of its tokens stay, those of the request follow."""
        padded = padded_prompt(len(request.tokens))
        length = kept + len(request.tokens) + self.settings.max_new_tokens
        # A cache that is behind may need a chunk more.
        more = min(padded, MAX_PREFILL_CHUNK) if self.program.decoder.lag else 0
        wanted = max(length + self.program.decoder.overhang, kept + padded + more)
        if wanted > self.program.capacity:
            # Doubling keeps the number of programs small however long the text becomes.
            capacity = max(round_up(wanted, CAPACITY_BUCKET), 2 * self.program.capacity)
            self.program = replace(self.program, capacity=capacity)
            self.state = grow_state(self.state, capacity)
        num_slots = self.state.rounds.shape[0]
        args = (
            self.state,
            self.requests([request], padded),
            self._put(np.full((num_slots,), kept, np.int32), BATCH),
            self.lm.params,
        )
        self.state = self._read("extend", *args, donate=(0,))

    def run(self, num_rounds: int = NO_LIMIT, watched: Sequence[int] = ()) -> None:
        """Decodes until all are done, or one of the `watched` slots is, or for a number of rounds.

        All of it is one program on the device, unless each round is to be validated.
        """
        mask = np.isin(np.arange(self.state.rounds.shape[0]), np.array(watched, int))
        if self.validate:
            self._run_checked(num_rounds, mask)
            return
        args = (
            self.state,
            self.lm.params,
            self._put(np.int32(num_rounds)),
            self._put(mask, BATCH),
        )
        call = self._compiled("advance", *args, donate=(0,))
        begin = time.perf_counter()
        self.state = None  # donated: an interrupt from here on loses it
        self.state = _result_of(call, args)
        self.decode_seconds += time.perf_counter() - begin

    def progress(self) -> Progress:
        """What has been written so far."""
        state: State = self.state
        text = state.sequences
        return Progress(
            *map(to_host, (text.tokens, text.prompt_length, text.length, text.done, state.rounds))
        )

    def finish(self, slots: Sequence[int]) -> None:
        """Ends sequences where they are."""
        text = self.state.sequences
        done = text.done | np.isin(np.arange(text.done.shape[0]), np.array(slots, int))
        self.state = replace(self.state, sequences=replace(text, done=done))

    def close(self) -> None:
        """Frees the state's memory on the device now, whoever still refers to it."""
        for leaf in jax.tree.leaves(self.state):
            leaf.delete()
        self.state = None

    def result(
        self,
        slot: int,
        request: Request,
        progress: Progress,
        writer: TextWriter | None = None,
        text: str = "",
        *,
        prompt: tuple[int, ...] | None = None,
        seconds_before: float = 0.0,
    ) -> GenerationResult:
        """What one sequence has written.

        Args:
            slot: Its slot.
            request: What was asked for.
            progress: The host's last look at the batch, which has not moved since.
            writer: What looked for stop strings in it, and shows where it ends.
            text: What the writer made of it.
            prompt: The whole prompt, where the request is only its end.
            seconds_before: Decoding time before the sequence came into the batch.
        """
        state: State = self.state
        output = progress.output(slot)
        if writer is None:
            tokenizer = self.lm.tokenizer
            shown = None if tokenizer is None else tokenizer.decode(output)
        else:
            output, shown = output[: writer.num_tokens], text
        stop_string = None if writer is None else writer.stop_string
        stopped = stop_string is not None or (bool(output) and output[-1] in self.stops)
        rounds = int(progress.rounds[slot])
        seconds = self.decode_seconds - seconds_before
        pool = getattr(state, "pool", None)
        candidates = getattr(state, "candidate_rounds", None)
        stats = GenerationStats(
            rounds=rounds,
            tokens_per_round=len(output) / max(rounds, 1),
            accepted_histogram=tuple(to_host(state.accepted_histogram)[slot].tolist()),
            compile_seconds=self.compile_seconds,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=seconds,
            tokens_per_second=len(output) / max(seconds, 1e-9),
            pool_bytes=0 if pool is None else pool_bytes(pool) // len(progress.done),
            candidate_rounds=0 if candidates is None else int(to_host(candidates)[slot]),
        )
        return GenerationResult(
            text=shown,
            tokens=tuple(output),
            prompt_tokens=request.tokens if prompt is None else prompt,
            finish_reason="stop" if stopped else "length",
            stats=stats,
            logprobs=self._logprobs(slot, int(progress.prompt_length[slot]), len(output)),
            stop_string=stop_string,
        )

    def _logprobs(self, slot: int, start: int, count: int) -> TokenLogProbs | None:
        logprobs = self.state.sequences.logprobs
        if logprobs is None:
            return None
        return TokenLogProbs(
            *(
                tuple(to_host(x)[slot, start : start + count].tolist())
                for x in (logprobs.processed, logprobs.raw)
            )
        )

    def requests(
        self, requests: Sequence[Request], padded_length: int, *, one: bool = False
    ) -> Requests:
        """The requests as arrays, on the device.

        Args:
            requests: The requests.
            padded_length: P.
            one: Whether it is a single request that every group of a mesh gets. Else the groups
                share them out, and what is missing to as many for each asks for no tokens.
        """
        groups = 1 if one else size_of(self.lm.mesh, DATA)
        idle = -len(requests) % groups
        requests = [*requests, *[requests[0]] * idle]
        count = len(requests)
        padded = np.zeros((count, padded_length), np.int32)
        for row, request in zip(padded, requests, strict=True):
            row[: len(request.tokens)] = request.tokens
        wanted = np.full((count,), self.settings.max_new_tokens, np.int32)
        wanted[count - idle :] = 0
        stops = np.array(self.stops or (Sequences.NO_STOP,), np.int32)
        arrays = (
            padded,
            np.array([len(r.tokens) for r in requests], np.int32),
            wanted,
            np.tile(stops, (count, 1)),
            np.array([(r.seed, r.sample) for r in requests], np.uint32),
        )
        return Requests(*self._put(arrays, WHOLE if one else BATCH))

    def _put(self, values: Any, spec: PartitionSpec = WHOLE) -> Any:
        """Arrays from the host to where the programs want them."""
        mesh = self.lm.mesh
        return jax.device_put(values, None if mesh is None else NamedSharding(mesh, spec))

    def _read(self, method: str, *args: Any, donate: tuple[int, ...] = ()) -> Any:
        call = self._compiled(method, *args, donate=donate)
        begin = time.perf_counter()
        self.state = None  # donated, if there was one
        state = _result_of(call, args)
        self.prefill_seconds = time.perf_counter() - begin
        return state

    def _run_checked(self, num_rounds: int, watched: np.ndarray) -> None:
        """Round by round; one whose checks fail raises, and the state before it is kept."""
        call = self._compiled("checked_step", self.state, self.lm.params)
        begin = time.perf_counter()
        for _ in range(num_rounds):
            done = np.asarray(self.state.sequences.done)
            if np.all(done) or np.any(done & watched):
                break
            error, state = call(self.state, self.lm.params)
            message = error.get()
            if message is not None:
                before, self.state = self.state, None  # it is the error's now
                raise RoundCheckError(message.partition(" (`check` failed)")[0], before)
            self.state = state
        self.decode_seconds += time.perf_counter() - begin

    def _compiled(self, method: str, *args: Any, donate: tuple[int, ...] = ()) -> Any:
        call, seconds = compiled(self.program, method, *args, donate=donate)
        self.compile_seconds += seconds
        self.programs[method] = call
        return call


def _result_of(call: Any, args: tuple[Any, ...]) -> Any:
    """What a program computes.

    Raises:
        LookaheadError: It failed, and other processes had a part in it.
    """
    try:
        return jax.block_until_ready(call(*args))
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        reason = str(error).strip().splitlines()[0]
        raise LookaheadError(
            f"what {jax.process_count()} processes computed together failed, as it does when one "
            f"of them ends: {reason}"
        ) from error


def to_host(x: Any) -> np.ndarray:
    """An array of the device, the parts that other processes have included."""
    if x.is_fully_addressable:
        return np.asarray(x)
    return multihost_utils.process_allgather(x, tiled=True)


def round_up(value: int, multiple: int) -> int:
    """The least multiple that is not less."""
    return -(-value // multiple) * multiple


def padded_prompt(length: int) -> int:
    """A power of two, or whole prefill chunks: few programs then serve all prompts."""
    if length > MAX_PREFILL_CHUNK:
        return round_up(length, MAX_PREFILL_CHUNK)
    return max(16, 1 << (length - 1).bit_length())
