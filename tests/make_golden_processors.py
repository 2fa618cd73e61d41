"""Makes tests/data/golden_processors.json: what transformers' filters and processors give.

    pip install torch 'transformers>=5' && python tests/make_golden_processors.py

Logits are small integers over 64 and -inf (null), so that the file says exactly what went in. Torch
is needed here only.

transformers sorts with `torch.sort`, which does not promise to be stable and is not on a CPU with
AVX2 from 17 entries on: which of several equal scores top-p removes is then arbitrary there, though
not how many. Such results are marked, and compared by number.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from transformers.generation import logits_process as hf

TARGET = Path(__file__).parent / "data" / "golden_processors.json"
SCALE = 64
CLOSE = 2e-5
"""Masses nearer than this to the threshold are left out: float rounding decides them."""

FILTERS = [
    # temperature, top_k, top_p, min_p
    (1.0, 0, 1.0, 0.0),
    (0.7, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 3, 1.0, 0.0),
    (1.0, 4000, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (1.0, 0, 0.45, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 0, 1.0, 1.0),
    (0.7, 20, 0.9, 0.0),
    (2.0, 5, 0.8, 0.2),
]


def logit_rows(vocab_size: int, random: np.random.RandomState) -> list[list[int | None]]:
    """Rows of integers, to be divided by SCALE: spread, flat, peaked, with ties, with -inf."""

    def normal(deviation: float, step: int = 1) -> np.ndarray:
        return np.round(random.normal(0, deviation, vocab_size) * SCALE / step).astype(int) * step

    few = random.randint(0, 3, vocab_size) * SCALE
    forbidden = normal(1.5).tolist()
    for token in random.permutation(vocab_size)[: vocab_size // 2]:
        forbidden[token] = None
    alone = [None] * vocab_size
    alone[vocab_size // 3] = -SCALE
    tied_and_forbidden = [None if value == 0 else value for value in few.tolist()]
    tied_and_forbidden[0] = SCALE
    rows = [normal(1.0).tolist(), forbidden, few.tolist(), normal(1.5, SCALE // 2).tolist()]
    if vocab_size < 500:
        rows += [normal(0.2).tolist(), normal(6.0).tolist(), alone, [0] * vocab_size]
        rows += [tied_and_forbidden, (-few).tolist()]
    return rows


def tensor(row: list[int | None]) -> torch.Tensor:
    return torch.tensor([[-math.inf if x is None else x / SCALE for x in row]])


def warpers(temperature: float, top_k: int, top_p: float, min_p: float) -> list:
    """As `generate` of transformers puts them together."""
    found = []
    if temperature != 1.0:
        found.append(hf.TemperatureLogitsWarper(temperature))
    if top_k:
        found.append(hf.TopKLogitsWarper(top_k))
    if top_p < 1.0:
        found.append(hf.TopPLogitsWarper(top_p))
    if min_p > 0.0:
        found.append(hf.MinPLogitsWarper(min_p))
    return found


def filtered(row: list[int | None], setting: tuple[float, int, float, float]) -> dict:
    """What is kept, and whether float rounding or an unstable sort had a say in it."""
    scores, close, stable = tensor(row), False, True
    for warper in warpers(*setting):
        before = scores
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
        if isinstance(warper, hf.TopPLogitsWarper):
            order = torch.sort(before.double(), stable=True)
            cumulative = order[0].softmax(-1).cumsum(-1)
            close = bool((cumulative[0, :-1] - (1 - setting[2])).abs().min() < CLOSE)
            kept = int((scores > -math.inf).sum())
            stable = bool((scores[0, order[1][0, -kept:]] > -math.inf).all())
        if isinstance(warper, hf.MinPLogitsWarper):
            ratio = (before.double() - before.double().max()).exp()
            close |= bool(((ratio != 1) & ((ratio - setting[3]).abs() < CLOSE)).any())
    if close:
        return {"close": True}
    kept = (scores[0] > -math.inf).int().tolist()
    found: dict = {"kept": f"{int(''.join(map(str, kept)), 2):x}", "stable": stable}
    if len(row) < 17:
        found["scores"] = numbers(scores)
    return found


def numbers(scores: torch.Tensor) -> list[float | None]:
    return [None if x == -math.inf else x for x in scores[0].tolist()]


VOCAB = 12
STOPS = [2, 5]


@dataclass(frozen=True)
class Text:
    tokens: list[int]
    prompt_length: int
    leftovers: list[int]
    """Stand behind the text on the device and must not matter."""


TEXTS = [
    Text([7], 1, [7, 7, 3]),
    Text([3, 4], 1, [3, 4, 3, 4]),
    Text([3, 4, 5, 3, 4], 3, [5, 5, 3]),
    Text([1, 1, 1, 1], 2, [1, 1]),
    Text([8, 9, 8, 10, 8, 9, 8], 4, [11, 8, 9, 8]),
    Text([0, 11, 0, 11, 6, 0, 11], 7, [0, 6]),
    Text([2, 5, 6, 2, 5, 7, 1, 2, 5], 6, [6, 6, 6]),
    Text([4, 3, 2, 1, 0, 1, 2, 3, 4, 3, 2, 1], 2, []),
]


def processor(name: str, args: list, text: Text):
    if name == "RepetitionPenalty":
        return hf.RepetitionPenaltyLogitsProcessor(*args)
    if name == "NoRepeatNGram":
        return hf.NoRepeatNGramLogitsProcessor(*args)
    if name == "LogitBias":
        return hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in args[0]])
    if name == "BannedTokens":
        return hf.SuppressTokensLogitsProcessor(*args)
    assert name == "MinNewTokens"
    return hf.MinNewTokensLengthLogitsProcessor(text.prompt_length, *args, STOPS)


CHAINS = [
    [("RepetitionPenalty", [1.3])],
    [("RepetitionPenalty", [0.8])],
    [("NoRepeatNGram", [1])],
    [("NoRepeatNGram", [2])],
    [("NoRepeatNGram", [3])],
    [("NoRepeatNGram", [4])],
    [("LogitBias", [[[3, 2.5], [0, -1.25], [11, 0.5], [7, -100.0]]])],
    [("BannedTokens", [[9, 0, 3]])],
    [("MinNewTokens", [1])],
    [("MinNewTokens", [3])],
    [
        ("RepetitionPenalty", [1.7]),
        ("LogitBias", [[[4, -1.5], [8, 1.5]]]),
        ("NoRepeatNGram", [2]),
        ("BannedTokens", [[6]]),
        ("MinNewTokens", [4]),
    ],
]


def processed(chain: list, text: Text, row: list[int | None]) -> list[float | None]:
    scores, ids = tensor(row), torch.tensor([text.tokens])
    for name, args in chain:
        scores = processor(name, args, text)(ids, scores)
    return numbers(scores)


def main() -> None:
    random = np.random.RandomState(20)
    vocabularies = []
    for vocab_size in (5, 33, 1000):
        rows = logit_rows(vocab_size, random)
        results = [[filtered(row, setting) for setting in FILTERS] for row in rows]
        vocabularies.append({"logits": rows, "results": results})
    logits: list[list[int | None]] = [
        [int(x) for x in random.randint(-150, 150, VOCAB)] for _ in TEXTS
    ]
    for row in logits:
        row[10], row[1] = None, 0
    golden = {
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
        "scale": SCALE,
        "filters": {"settings": FILTERS, "vocabularies": vocabularies},
        "processors": {
            "stops": STOPS,
            "texts": [vars(text) for text in TEXTS],
            "logits": logits,
            "chains": [
                {
                    "processors": chain,
                    "scores": [
                        processed(chain, text, row) for text, row in zip(TEXTS, logits, strict=True)
                    ],
                }
                for chain in CHAINS
            ],
        },
    }
    TARGET.write_text(json.dumps(golden, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
