"""From measurements to a table: tokens per call, time per token, our ratio, whether texts agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peers.measure import Text, writings
from benchmarks.peers.peer import Peer, Writing
from benchmarks.peers.store import Store
from lookahead_jax.bench.timing import Spread, Times
from lookahead_jax.results import first_difference


@dataclass(frozen=True)
class Parting:
    """Where a peer wrote another text than the reference.

    Attributes:
        prompt: Its id.
        index: Of the first token that differs.
    """

    prompt: str
    index: int


@dataclass(frozen=True)
class Row:
    """What a peer comes to.

    Attributes:
        name: The peer.
        weights: Their arithmetic.
        reason: Why there are no figures; None where there are.
        tokens_per_call: Over all texts of a repetition.
        token_seconds: Per token, over repetitions.
        ratio: Time per token of our lookahead decoding over the peer's, within each repetition:
            below 1 where ours is faster. None where ours was not measured.
        partings: Texts that differ from the reference's; None where there is none.
        texts: Of a repetition.
        repetitions: That are complete.
        versions: Of the peer's packages.
        threads: That it computes with.
    """

    name: str
    weights: str
    reason: str | None = None
    tokens_per_call: float | None = None
    token_seconds: Spread | None = None
    ratio: Spread | None = None
    partings: tuple[Parting, ...] | None = None
    texts: int = 0
    repetitions: int = 0
    versions: Mapping[str, str] | None = None
    threads: int | None = None


def rows(
    peers: Sequence[Peer],
    texts: Sequence[Text],
    store: Store,
    repeats: int,
    failures: Mapping[str, str],
    *,
    reference: str,
    ours: str,
) -> list[Row]:
    """A row for every peer, in their order.

    Args:
        peers: All peers that were asked for.
        texts: The prompts.
        store: What was measured.
        repeats: Repetitions asked for.
        failures: Why peers have not run to the end.
        reference: The peer whose texts the others should write.
        ours: The peer whose time is held against the others'.
    """
    found = {peer.name: writings(store, peer.name, texts, repeats) for peer in peers}
    # Where a peer failed on the way, its complete repetitions still count.
    times = Times({name: [_token_seconds(each) for each in runs] for name, runs in found.items()})
    golden = found.get(reference)
    result = []
    for peer in peers:
        runs, described = found[peer.name], store.descriptions.get(peer.name)
        if not runs:
            reason = failures.get(peer.name, "not measured")
            result.append(Row(peer.name, peer.weights, reason))
            continue
        result.append(
            Row(
                name=peer.name,
                weights=peer.weights,
                reason=failures.get(peer.name),
                tokens_per_call=_tokens_per_call(runs),
                token_seconds=times.spread(peer.name),
                ratio=_ratio(times, ours, peer.name),
                partings=_partings(texts, golden[0], runs) if golden else None,
                texts=len(texts),
                repetitions=len(runs),
                versions=None if described is None else described.versions,
                threads=None if described is None else described.threads,
            )
        )
    return result


def _ratio(times: Times, over: str, under: str) -> Spread | None:
    """Within the repetitions that both have."""
    common = min(len(times.seconds.get(name, ())) for name in (over, under))
    if not common:
        return None
    return Times({name: times.seconds[name][:common] for name in (over, under)}).ratio(over, under)


def _token_seconds(texts: Sequence[Writing]) -> float:
    return sum(text.seconds for text in texts) / sum(text.timed_tokens for text in texts)


def _tokens_per_call(runs: Sequence[Sequence[Writing]]) -> float:
    every = [text for run in runs for text in run]
    return sum(len(text.tokens) for text in every) / sum(text.calls for text in every)


def _partings(
    texts: Sequence[Text], golden: Sequence[Writing], runs: Sequence[Sequence[Writing]]
) -> tuple[Parting, ...]:
    """Over all repetitions, each prompt at most once."""
    found: dict[str, Parting] = {}
    for run in runs:
        for text, right, written in zip(texts, golden, run, strict=True):
            index = first_difference(right.tokens, written.tokens)
            if index is not None:
                found.setdefault(text.id, Parting(text.id, index))
    return tuple(found.values())


HEADINGS = ("peer", "weights", "tokens per call", "ms per token", "our lookahead's over it", "same")


def cells(row: Row) -> tuple[str, ...]:
    """A row as text, a cell for each of `HEADINGS`."""
    if row.token_seconds is None or row.tokens_per_call is None:
        return (row.name, row.weights, "-", "-", "-", "-")
    parted = row.partings
    return (
        row.name,
        row.weights,
        f"{row.tokens_per_call:.2f}",
        _spread(row.token_seconds, 1e3, 1),
        "-" if row.ratio is None else _spread(row.ratio, 1, 2),
        "-" if parted is None else f"{row.texts - len(parted)} of {row.texts}",
    )


def _spread(spread: Spread, factor: float, digits: int) -> str:
    low, median, high = (x * factor for x in (spread.low, spread.median, spread.high))
    return f"{median:.{digits}f} ({low:.{digits}f} - {high:.{digits}f})"


def notes(found: Sequence[Row]) -> list[str]:
    """What the cells do not say: why a peer is not there, and which texts part where."""
    lines = []
    for row in found:
        if row.reason is not None:
            part = f"after {row.repetitions} repetitions, " if row.repetitions else ""
            lines.append(f"{row.name}: {part}{row.reason}")
        if row.partings:
            where = ", ".join(f"{text.prompt} from token {text.index}" for text in row.partings)
            lines.append(f"{row.name} writes another text: {where}")
    return lines


def as_json(row: Row) -> dict[str, Any]:
    """A row for machines; times in milliseconds."""
    return {
        "peer": row.name,
        "weights": row.weights,
        "reason": row.reason,
        "tokens_per_call": row.tokens_per_call and round(row.tokens_per_call, 4),
        "token_ms": row.token_seconds and row.token_seconds.scaled(1e3),
        "our_lookahead_over_it": row.ratio and row.ratio.scaled(1),
        "texts": row.texts,
        "repetitions": row.repetitions,
        "partings": None
        if row.partings is None
        else [{"prompt": parting.prompt, "index": parting.index} for parting in row.partings],
        "versions": row.versions and dict(row.versions),
        "threads": row.threads,
    }


def markdown(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table for a report."""
    every = [headings, ("---",) * len(headings), *lines]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in every)
