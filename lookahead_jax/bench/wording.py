"""How a benchmark's numbers and conditions are written, and what its rows come to in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lookahead_jax.bench.records import Conditions, Row
from lookahead_jax.bench.selection import best, is_faster, is_measured
from lookahead_jax.bench.timing import Spread

NAMED = 4
"""Most settings that a sentence names."""


def number(value: float) -> str:
    """Three significant digits, and all digits before the point; "-" where it is not finite."""
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 999.5 or not value:
        return f"{value:.0f}"
    return f"{value:#.3g}".rstrip(".")


def percent(share: float) -> str:
    """Whole percents, but "<1%" for what is more than nothing; "-" where it is not finite."""
    if not math.isfinite(share):
        return "-"
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def spread(value: Spread, repetitions: int) -> str:
    """A median, with its quartiles where there are repetitions to have them of."""
    if repetitions == 1:
        return number(value.median)
    return f"{number(value.median)} ({number(value.low)} - {number(value.high)})"


def counted(amount: int, noun: str) -> str:
    """A number with its noun."""
    return f"{amount} {noun}" if amount == 1 else f"{amount} {noun}s"


def same_text(row: Row) -> str:
    """Whether the texts are ordinary decoding's: yes, NO, or "-" where they need not be."""
    return {True: "yes", False: "NO", None: "-"}[row.identical]


def condition_lines(conditions: Conditions) -> dict[str, str]:
    """What holds for all rows, by what it is about."""
    mesh = "one device" if conditions.mesh is None else f"mesh {conditions.mesh}"
    repetitions = conditions.repetitions
    times = "measured once" if repetitions == 1 else f"{repetitions} repetitions"
    policy = ", ".join(f"{name}={value}" for name, value in conditions.policy.items())
    versions = ", ".join(f"{name} {version}" for name, version in conditions.versions.items())
    rest = f" ({conditions.left_out} more left out)" if conditions.left_out else ""
    commit = f", commit {conditions.commit}" if conditions.commit else ""
    return {
        "model": f"{conditions.model}, {conditions.dtype}, attention {conditions.attention}",
        "device": f"{conditions.device}, {mesh}",
        "prompts": (
            f"{conditions.prompts} ({conditions.prompts_digest}), "
            f"{counted(conditions.texts, 'text')}{rest} of up to "
            f"{counted(conditions.max_new_tokens, 'token')}, batch {conditions.batch_size}, {times}"
        ),
        "sampling": policy or "greedy",
        "software": versions + commit,
        "date": conditions.date,
    }


def conclusion(rows: Sequence[Row], conditions: Conditions) -> list[str]:
    """Whether lookahead decoding was faster here and where it breaks even, in a sentence or a few.

    Texts that are not ordinary decoding's come first.

    Args:
        rows: All that are measured.
        conditions: What they have in common.
    """
    sentences = _not_same(rows)
    measured = [row for row in rows if is_measured(row)]
    if not measured:
        return [*sentences, "No setting has been timed yet."]
    same = [row for row in measured if row.identical is not False]
    compared = same or measured
    top = best(compared)
    others = bool(sentences and same)
    sentences.append(_speed(compared, top, conditions.device, others=others))
    if top.repetitions == 1:
        sentences.append("Measured once, so how far that would vary is not known.")
    elif top.speed_up.low <= 1 <= top.speed_up.high:
        sentences.append("That is no clearer than the repetitions vary.")
    if all(row.identical is None for row in rows):
        sentences.append(
            "With this sampling the texts need not be ordinary decoding's, and were not compared."
        )
    return sentences


def _not_same(rows: Sequence[Row]) -> list[str]:
    wrong = [row for row in rows if row.identical is False]
    if not wrong:
        return []
    where = "the one setting" if len(rows) == 1 else f"{len(wrong)} of {len(rows)} settings"
    names = "; ".join(str(row.point) for row in wrong[:NAMED])
    more = f"; {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    return [f"Not exact: at {where} ({names}{more}) texts differ from ordinary decoding's."]


def _speed(rows: Sequence[Row], top: Row, device: str, *, others: bool) -> str:
    """The sentence that answers: was it faster, and where does it break even?

    Args:
        rows: Those that count.
        top: The fastest of them.
        device: Where.
        others: Whether there are more rows, which wrote other texts.
    """
    faster = sum(is_faster(row) for row in rows)
    all_of_them = f"the {len(rows)} other settings" if others else f"{len(rows)} settings"
    if len(rows) == 1:
        where = "at the other setting" if others else "at the one setting"
    elif not faster:
        where = f"at any of {all_of_them}"
    elif faster == len(rows):
        where = f"at all {all_of_them.removeprefix('the ')}"
    else:
        where = f"at {faster} of {all_of_them}"
    notes = []
    if top.repetitions > 1:
        notes.append(f"quartiles {number(top.speed_up.low)} - {number(top.speed_up.high)}")
    if top.identical is False:
        notes.append("with other texts")
    note = f" ({', '.join(notes)})" if notes else ""
    return (
        f"Lookahead decoding {'was' if faster else 'was not'} faster than ordinary decoding "
        f"{where} on {device}: {'' if len(rows) == 1 else 'at best '}"
        f"{number(top.speed_up.median)} times as fast{note}, with {top.point}, where it wrote "
        f"{number(top.tokens_per_round)} tokens per round and "
        f"{'breaks' if is_faster(top) else 'would break'} even at "
        f"{number(top.round_over_step.median)}."
    )
