"""The authors' schedule against recorded runs of their own code: tokens and model calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.ours import decode_all, lookahead
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.typing import LanguageModel

CONFIGURATION = re.compile(r"W(\d+)N(\d+)G(\d+)pool([01])")


@dataclass(frozen=True)
class Recording:
    """A recorded run.

    Attributes:
        prompt: Name of its prompt.
        configuration: W, N, G, and whether the pool learns from prompt and output.
        prompt_tokens: Token ids.
        first_level: The first window.
        stop_tokens: What ended the text.
        max_new_tokens: Most tokens.
        output: Token ids.
        tokens: Of the output.
        calls: Model calls.
        smallest_gap: Least difference between the two best logits of any row. Where it is tiny,
            another order of adding up may choose another token, and the window goes another way.
    """

    prompt: str
    configuration: tuple[int, int, int, bool]
    prompt_tokens: tuple[int, ...]
    first_level: tuple[int, ...]
    stop_tokens: tuple[int, ...]
    max_new_tokens: int
    output: tuple[int, ...]
    tokens: int
    calls: int
    smallest_gap: float


@dataclass(frozen=True)
class Agreement:
    """A recorded run, and ours from the same first window."""

    recording: Recording
    tokens: int
    calls: int
    same_text: bool

    @property
    def exact(self) -> bool:
        """Whether text and model calls are those recorded."""
        return self.same_text and self.calls == self.recording.calls


def read_recordings(directory: Path) -> list[Recording]:
    """The runs that smollm2_compression.json lists, with their windows from the traces.

    Args:
        directory: With smollm2_compression.json and traces_smollm2.

    Raises:
        LookaheadError: They are not there, or not these.
    """
    try:
        table = json.loads((directory / "smollm2_compression.json").read_text("utf-8"))["rows"]
        return [
            _recording(directory, prompt, name, row)
            for prompt, configurations in table.items()
            for name, row in configurations.items()
        ]
    except OSError as error:
        raise LookaheadError(f"cannot read {error.filename}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LookaheadError(
            f"{directory}: expected the recorded runs of the authors' code, got something else"
        ) from error


def _recording(directory: Path, prompt: str, name: str, row: Sequence[float]) -> Recording:
    found = CONFIGURATION.fullmatch(name)
    if found is None:
        raise ValueError(name)
    w, n, g, pool = map(int, found.groups())
    trace = _trace(directory, f"smollm2_greedy_{prompt}_w{w}n{n}g{g}_pool{pool}_m128.json")
    final, stop = trace["final"], trace["eos_token_id"]
    return Recording(
        prompt=prompt,
        configuration=(w, n, g, bool(pool)),
        prompt_tokens=tuple(trace["prompt_ids"]),
        first_level=tuple(trace["init_window"]),
        stop_tokens=() if stop is None else (stop,),
        max_new_tokens=trace["max_new_tokens"],
        output=tuple(final["output_ids"]),
        tokens=int(row[0]),
        calls=int(row[1]),
        smallest_gap=final["min_gap"],
    )


def _trace(directory: Path, name: str) -> Mapping[str, Any]:
    return json.loads((directory / "traces_smollm2" / name).read_text("utf-8"))


def compare(
    lm: LanguageModel,
    recordings: Sequence[Recording],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Agreement]:
    """Decodes every recorded prompt by the authors' schedule, from the recorded first window.

    The prompts of a configuration are one batch; what a text is does not depend on the others.

    Args:
        lm: The model that was recorded, in float32.
        recordings: The runs.
        progress: Told how many runs are done, and of how many.
    """
    groups: dict[Any, list[Recording]] = {}
    for recording in recordings:
        settings = recording.configuration, recording.stop_tokens, recording.max_new_tokens
        groups.setdefault(settings, []).append(recording)
    found: list[Agreement] = []
    for (configuration, stops, limit), group in groups.items():
        progress(len(found), len(recordings))
        results = decode_all(
            lm,
            lookahead(LookaheadConfig.pinned(*configuration)),
            [recording.prompt_tokens for recording in group],
            limit,
            stops,
            [recording.first_level for recording in group],
        )
        found += [
            Agreement(
                recording,
                len(result.tokens),
                result.stats.rounds,
                result.tokens == recording.output,
            )
            for recording, result in zip(group, results, strict=True)
        ]
    progress(len(recordings), len(recordings))
    return found


HEADINGS = (
    *("W, N, G", "pool", "prompt", "recorded: tokens, calls, ratio"),
    *("ours", "the same", "smallest gap"),
)


def cells(agreement: Agreement) -> tuple[str, ...]:
    """A comparison as text, a cell for each of `HEADINGS`."""
    recorded = agreement.recording
    *numbers, learns = recorded.configuration
    same = "yes" if agreement.exact else "text" if agreement.same_text else "no"
    return (
        ", ".join(map(str, numbers)),
        "from the prompt" if learns else "from the window",
        recorded.prompt,
        _figures(recorded.tokens, recorded.calls),
        _figures(agreement.tokens, agreement.calls),
        same,
        f"{recorded.smallest_gap:.1e}",
    )


def _figures(tokens: int, calls: int) -> str:
    return f"{tokens}, {calls}, {tokens / calls:.3f}"


def as_json(agreements: Sequence[Agreement]) -> dict[str, Any]:
    """For machines: how many agree, by where the pool learns, and all runs.

    With a pool from the prompt the recorded code writes some wrong n-grams into it (README of the
    recordings), which ours does not: there only the texts must be the same.
    """

    def count(learns: bool, holds: Callable[[Agreement], bool]) -> list[int]:
        those = [each for each in agreements if each.recording.configuration[3] == learns]
        return [sum(map(holds, those)), len(those)]

    return {
        "same_text": [sum(each.same_text for each in agreements), len(agreements)],
        "same_calls_pool_from_window": count(False, lambda each: each.exact),
        "same_calls_pool_from_prompt": count(True, lambda each: each.exact),
        "runs": [dict(zip(HEADINGS, cells(each), strict=True)) for each in agreements],
    }
