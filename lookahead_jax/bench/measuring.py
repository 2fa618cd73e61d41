"""Measures lookahead decoding beside ordinary decoding, group by group, in turns.

Each measurement decodes the same texts twice, by one decoder and right after it by the other, which
of them first taking turns. What slows a machine down for a while then slows both, and their ratio
stays what it is. Both run as in `generate`: one loop on the device from the first token to the
last, with nothing of the host in between. Prefill and compilation are timed apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from lookahead_jax.autoregressive import Autoregressive
from lookahead_jax.batch import Batch, Request
from lookahead_jax.bench.records import Compilation, Difference, Measurement, Point
from lookahead_jax.bench.texts import Task, longest
from lookahead_jax.checking import check
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.generation import lookahead
from lookahead_jax.options import Options, Settings
from lookahead_jax.programs import Decoder, device_bytes
from lookahead_jax.results import GenerationResult, first_difference
from lookahead_jax.sampling import Sample
from lookahead_jax.sharding import LOOKAHEAD, size_of
from lookahead_jax.shards import build_shards
from lookahead_jax.typing import LanguageModel


@dataclass(frozen=True)
class Written:
    """What a decoder has written, and the seconds that its rounds took."""

    results: tuple[GenerationResult, ...]
    seconds: float


class Side:
    """One of the two decoders, with programs that serve all texts."""

    def __init__(
        self, lm: LanguageModel, decoder: Decoder[Any], settings: Settings, room: int
    ) -> None:
        """A decoder that has written nothing yet.

        Args:
            lm: The model.
            decoder: The decoder.
            settings: Everything else.
            room: Tokens of the longest prompt: all texts share one capacity, hence one program.
        """
        self._batch = Batch(lm, decoder, settings)
        self._settings = settings
        self._room = room

    @property
    def compile_seconds(self) -> float:
        """All that was compiled so far."""
        return self._batch.compile_seconds

    @property
    def programs(self) -> dict[str, Any]:
        """Its compiled programs; "advance" is the loop of rounds."""
        return self._batch.programs

    def open(self, tasks: Sequence[Task]) -> Batch:
        """Reads some prompts; the batch is ready to run."""
        seed = self._settings.seed(0)
        self._batch.start([Request(task.tokens, seed) for task in tasks], self._room)
        return self._batch

    def write(self, tasks: Sequence[Task]) -> Written:
        """Writes some texts together, from their prompts to their ends."""
        batch = self.open(tasks)
        before = batch.decode_seconds
        batch.run()
        seconds = batch.decode_seconds - before
        progress, seed = batch.progress(), self._settings.seed(0)
        results = [
            batch.result(slot, Request(task.tokens, seed), progress)
            for slot, task in enumerate(tasks)
        ]
        batch.close()
        return Written(tuple(results), seconds)


@dataclass(frozen=True)
class Contest:
    """What all points have in common.

    Attributes:
        lm: The model.
        config: The schedule; W, N and G are each point's.
        options: How texts are written.
        groups: The texts, by groups that are decoded together.
    """

    lm: LanguageModel
    config: LookaheadConfig
    options: Options
    groups: tuple[tuple[Task, ...], ...]

    @property
    def settings(self) -> Settings:
        """The options, checked."""
        return Settings.of(self.options)

    @property
    def room(self) -> int:
        """Tokens of the longest prompt."""
        return longest(task for group in self.groups for task in group)

    def config_at(self, point: Point) -> LookaheadConfig:
        """The schedule of a point.

        Raises:
            LookaheadError: There is none with these sizes.
        """
        return point.of(self.config)

    def ordinary(self) -> Side:
        """Ordinary decoding, the same at all points."""
        settings = self.settings
        return Side(self.lm, Autoregressive(settings.policy), settings, self.room)

    def lookahead(self, point: Point) -> Side:
        """Lookahead decoding at a point."""
        settings = self.settings
        decoder = lookahead(self.lm, self.config_at(point), settings)
        return Side(self.lm, decoder, settings, self.room)


Place = tuple[int, int]
"""Repetition and group of a measurement."""


def measure(
    contest: Contest, point: Point, ordinary: Side, places: Sequence[Place]
) -> Iterator[Compilation | Measurement]:
    """Measures one point: what it took to compile, then each of `places`.

    Every size of group that is measured is decoded once before, which does not count.

    Args:
        contest: What is measured.
        point: W, N and G.
        ordinary: Ordinary decoding, as used for the other points.
        places: What is still to be measured.
    """
    ours = contest.lookahead(point)
    sizes: dict[int, int] = {}
    for _, group in places:
        sizes.setdefault(len(contest.groups[group]), group)
    for number, group in enumerate(sizes.values()):
        ordinary.write(contest.groups[group])
        ours.write(contest.groups[group])
        if number == 0:
            yield _compilation(contest, point, ours)
    for repetition, group in places:
        tasks = contest.groups[group]
        if (repetition + group) % 2:
            theirs, written = ordinary.write(tasks), ours.write(tasks)
        else:
            written = ours.write(tasks)
            theirs = ordinary.write(tasks)
        yield _measurement(contest, point, (repetition, group), written, theirs)


def _compilation(contest: Contest, point: Point, side: Side) -> Compilation:
    config = contest.config_at(point)
    return Compilation(
        point=point,
        seconds=side.compile_seconds,
        num_rows=config.num_rows,
        device_rows=device_rows(config, size_of(contest.lm.mesh, LOOKAHEAD)),
        memory_bytes=max(map(device_bytes, side.programs.values())),
        allocator_peak_bytes=_allocator_peak(),
    )


def device_rows(config: LookaheadConfig, num_copies: int) -> int:
    """Rows of a round on one device, those that are fed again included."""
    if num_copies == 1:
        return config.num_rows
    again = config.suffix_length if config.kv_exchange == "refeed" else 0
    return build_shards(config, num_copies).num_rows + again


def _allocator_peak() -> int | None:
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else stats.get("peak_bytes_in_use")


def _measurement(
    contest: Contest, point: Point, place: Place, ours: Written, theirs: Written
) -> Measurement:
    repetition, group = place
    stats = [result.stats for result in ours.results]
    histograms = [result.accepted_histogram for result in stats]
    return Measurement(
        point=point,
        repetition=repetition,
        group=group,
        category=contest.groups[group][0].category,
        tokens=tuple(len(result.tokens) for result in ours.results),
        ordinary_tokens=tuple(len(result.tokens) for result in theirs.results),
        rounds=tuple(result.rounds for result in stats),
        candidate_rounds=tuple(result.candidate_rounds for result in stats),
        accepted_histogram=tuple(map(sum, zip(*histograms, strict=True))),
        seconds=ours.seconds,
        ordinary_seconds=theirs.seconds,
        differences=_differences(contest, group, ours, theirs),
    )


def _differences(
    contest: Contest, group: int, ours: Written, theirs: Written
) -> tuple[Difference, ...] | None:
    """Where texts part; None where sampling by residuals makes them differ as it should."""
    sampling = contest.settings.policy.sampling
    if isinstance(sampling, Sample) and sampling.method == "residual":
        return None
    found = []
    for task, one, other in zip(contest.groups[group], ours.results, theirs.results, strict=True):
        index = first_difference(one.tokens, other.tokens)
        if index is not None:
            a, b = (dict(enumerate(result.tokens)).get(index) for result in (one, other))
            gap = None if a is None or b is None else _gap(contest, one, other, index)
            found.append(Difference(task.id, index, a, b, gap))
    return tuple(found)


def _gap(contest: Contest, one: GenerationResult, other: GenerationResult, index: int) -> float:
    """By how much a separate forward pass prefers the one token to the other."""
    for result in (one, other):
        report = check(contest.lm, result, **contest.options)
        for divergence in report.divergences:
            if divergence.index == index:
                return divergence.gap
    return 0.0
