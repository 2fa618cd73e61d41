"""Made-up results of benchmarks."""

import dataclasses
import math

from lookahead_jax.bench.records import CategoryRow, Conditions, Difference, Point, Row
from lookahead_jax.bench.timing import Spread

CONDITIONS = Conditions(
    model="smollm2-135m",
    dtype="float32",
    device="cpu (2 cores)",
    mesh=None,
    attention="split",
    policy={},
    prompts="builtin",
    prompts_digest="0123456789ab",
    texts=22,
    batch_size=1,
    max_new_tokens=128,
    repetitions=3,
    versions={"lookahead-jax": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.1", "python": "3.11.9"},
    commit="88e2f42+",
    date="2026-11-30T11:57:43Z",
)
DIFFERENCE = Difference("81/2", 17, 345, 678, 0.0123)


def around(median, share=0.04):
    return Spread(median, median * (1 - share), median * (1 + 1.5 * share))


def make_row(place, step_ms, ratio, tokens, *, repetitions=3, **changes):
    """A row whose numbers hang together.

    Args:
        place: W, N and G.
        step_ms: Of ordinary decoding.
        ratio: T_round / T_AR.
        tokens: Per round.
        repetitions: With 1 there is no spread.
        changes: To the row.
    """
    point = Point(*place)
    length = point.ngram_size
    rows = (point.window_size + point.guess_set_size) * (length - 1)
    share = 0.0 if repetitions == 1 else 0.04
    # Geometric, with about that mean.
    keep = (tokens - 1) / tokens
    histogram = tuple(round(1000 * keep**k * (1 - keep)) for k in range(length))
    speed_up = tokens / ratio
    row = Row(
        point=point,
        num_rows=rows,
        device_rows=rows,
        texts=22,
        repetitions=repetitions,
        tokens=round(1000 * tokens),
        rounds=1000,
        tokens_per_round=tokens,
        accepted_histogram=histogram,
        hit_rate=0.87,
        round_ms=around(step_ms * ratio, share),
        token_ms=around(step_ms * ratio / tokens, share),
        step_ms=around(step_ms, share),
        ordinary_token_ms=around(step_ms, share),
        round_over_step=around(ratio, share / 2),
        speed_up=around(speed_up, share / 2),
        compile_seconds=12.3,
        memory_bytes=700 * 2**20,
        allocator_peak_bytes=None,
        differences=(),
        categories={
            "chat": CategoryRow(8, tokens * 0.9, around(speed_up * 0.9, share)),
            "code": CategoryRow(14, tokens * 1.1, around(speed_up * 1.1, share)),
        },
    )
    return dataclasses.replace(row, **changes)


def make_grid(widths, lengths, guesses, *, step_ms, row_cost, gain=0.35, repetitions=3):
    """A grid as machines give it: a round costs more with more rows, and writes more tokens.

    Args:
        widths: W.
        lengths: N.
        guesses: G.
        step_ms: Of ordinary decoding; it drifts by a few percent.
        row_cost: What each row adds to a round, in steps.
        gain: How quickly tokens per round rise.
        repetitions: With 1 there is no spread.
    """
    found = []
    for n in lengths:
        for w in widths:
            for g in guesses:
                drift = 1 + 0.03 * math.sin(1.7 * len(found))
                ratio = 1 + row_cost * (w + g) * (n - 1) * (1 + 0.05 * math.cos(len(found)))
                tokens = 1 + gain * math.log(w) * math.log1p(g) / 2 * (n - 1) ** 0.5 / 1.4
                tokens = min(tokens, n - 0.1)
                found.append(
                    make_row((w, n, g), step_ms * drift, ratio, tokens, repetitions=repetitions)
                )
    return found
