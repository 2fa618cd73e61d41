"""bfloat16, float16 and int8: how far the predictions move, and that texts move at near ties only.

The benchmark that measures it, on the model that the package carries.
"""

import functools
import json
import math

import checkout
import jax
import numpy as np
import pytest

from lookahead_jax.models import load_model
from lookahead_jax.models.training.loop import mean_loss

precision = checkout.benchmark("precision")

NEAR = {"bfloat16": 0.3, "float16": 0.05}
"""Gaps that rounding may bridge. Logits are sums of 160 products; an activation of 8 is rounded by
0.016 in bfloat16, by 0.002 in float16. Tokens that are not near ties are 1 and more apart."""

QUALITY = {"float32": 1e-6, "bfloat16": 0.01, "float16": 0.002, "bfloat16, int8": 0.03}
"""Relative change of the perplexity, at most."""


@pytest.fixture(scope="module")
def whole():
    lm = load("float32")
    texts = precision.texts_of(lm, 8, 192)
    return texts, precision.predictions(lm, texts)


@functools.cache
def load(way):
    return load_model("tiny-bytes", progress=lambda done, total: None, **precision.WAYS[way])


def test_predictions_are_those_of_training(whole):
    texts, quality = whole
    lm = load("float32")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected = mean_loss(lm.params, jax.numpy.asarray(texts), lm.forward.config)
    assert quality.losses.mean() == pytest.approx(float(expected), rel=1e-4)
    assert quality.likeliest.shape == (8 * 191,)
    assert 0.3 < np.mean(quality.likeliest == texts[:, 1:].reshape(-1)) < 0.9  # English, not code


@pytest.mark.parametrize("way", sorted(QUALITY))
def test_what_fewer_bits_cost_in_quality(whole, way):
    texts, reference = whole
    quality = precision.predictions(load(way), texts)
    changed = abs(math.expm1((quality.losses - reference.losses).mean()))
    assert changed <= QUALITY[way]
    assert np.any(quality.losses != reference.losses) == (way != "float32")


@pytest.mark.parametrize("way", ["bfloat16", "float16"])
def test_lookahead_and_ordinary_decoding_part_at_near_ties_only(whole, way):
    texts, _ = whole
    prompts = [tuple(text[:48].tolist()) for text in texts[:3]]
    found = precision.divergence(load(way), prompts, 48)
    assert found["texts"] == 3
    assert found["tokens_checked"] == 3 * 48
    assert all(gap <= NEAR[way] for gap in found["gaps_at_the_parting"]), found
    assert found["greatest_gap_of_the_check"] <= NEAR[way]


def test_the_record_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(precision, "WAYS", {"float32": {}})
    output = tmp_path / "precision.json"
    precision.main("tiny-bytes", texts=2, length=64, prompts=1, max_new_tokens=8, output=output)
    record = json.loads(output.read_text(encoding="utf-8"))
    assert record["tokens"] == 2 * 63
    row = record["ways"]["float32"]
    assert row["megabytes"] == pytest.approx(1425280 * 4 / 1e6)
    assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert (row["perplexity_ratio"], row["same_likeliest"]) == (1, 1)
