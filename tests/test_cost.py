"""The ledger: rows, bytes and FLOPs against tables and programs, expectations by enumeration."""

import dataclasses
import itertools
import math
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files
from jax.sharding import AbstractMesh, AxisType
from specification_figures import ROW_LEDGER

from lookahead_jax import LookaheadConfig, sharding
from lookahead_jax.cost import (
    block_mask_bytes,
    dense_mask_bytes,
    expected_progress,
    head_flops,
    pays_off,
    row_ledger,
    step_compression,
    temporary_kv_bytes,
    token_time,
    tokens_per_round,
)
from lookahead_jax.deployment import MeshShape, weight_bytes
from lookahead_jax.errors import LookaheadError
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.layout import Role, build_layout, level_sizes
from lookahead_jax.model_shape import ModelShape, NumberFormat
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.decoder import DecoderForward, abstract_params, cache_spec
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.shapes import KNOWN_SHAPES, known_config, model_shape

SIZES = [(5, 4, 2), (7, 5, 7), (1, 3, 1), (4, 3, 0), (15, 5, 15), (2, 6, 3)]
FAMILIES = sorted(
    path.parent.name for path in (trace_files.DATA / "families").glob("*/config.json")
)
BF16 = NumberFormat("bfloat16")


def config(width, length, guesses, **more):
    return LookaheadConfig(width, length, guesses, **more)


# Rows


@pytest.mark.parametrize("sizes", ROW_LEDGER)
def test_the_specification_s_rows(sizes):
    width, length, candidates = sizes
    ledger = row_ledger(config(*sizes))
    assert (ledger.ordinary, ledger.lookahead, ledger.verification) == ROW_LEDGER[sizes]
    assert ledger.total == (width + candidates) * (length - 1)


@pytest.mark.parametrize("sizes", SIZES)
def test_rows_are_those_of_the_tables_at_every_stage_and_for_every_candidate_count(sizes):
    this = config(*sizes)
    for stage, rows in enumerate(build_layout(this).rows):
        for candidates in range(this.guess_set_size + 1):
            found = Counter(row.role for row in rows if row.candidate < candidates)
            ledger = row_ledger(this, stage, candidates)
            assert ledger.ordinary == found[Role.ORDINARY]
            assert ledger.lookahead == found[Role.LOOKAHEAD]
            assert ledger.verification == found[Role.VERIFY]
            assert ledger.total + found[Role.PADDING] == this.num_rows - this.suffix_length * (
                this.guess_set_size - candidates
            )
    steady = row_ledger(this)
    assert steady.lookahead == sum(level_sizes(this, this.num_levels - 1))
    assert steady.total == this.num_rows


# Bytes and FLOPs of a round


def test_masks_take_the_bytes_of_the_arrays_they_are():
    dense = np.zeros((2, 8, 21, 128 + 21), np.float16)
    assert dense_mask_bytes(21, 128, batch_size=2, mask_heads=8) == dense.nbytes
    assert dense_mask_bytes(21, 128, item_size=4) == 21 * 149 * 4
    layout = build_layout(config(5, 4, 2))
    assert block_mask_bytes(21) == layout.mask[-1].nbytes
    # Contract 1: the context does not come in.
    assert dense_mask_bytes(56, 4096) > 100 * block_mask_bytes(56)


def test_temporary_keys_and_head_are_those_of_the_traced_forward_pass():
    this, tiny = config(5, 4, 2), read_config(trace_files.TINY_MODEL)
    shape, q, batch = model_shape("tiny", tiny), this.num_rows, 3
    cache = jax.eval_shape(lambda: init_cache(cache_spec(tiny, "bfloat16"), batch, 64))
    rows = jax.ShapeDtypeStruct((batch, q), jnp.int32)
    wanted = jax.ShapeDtypeStruct((batch, this.num_logit_rows), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch, q, q), bool)
    params = abstract_params(tiny, "bfloat16")
    logits, block = jax.eval_shape(DecoderForward(tiny), params, rows, rows, mask, cache, wanted)
    assert temporary_kv_bytes(shape, BF16, q, batch_size=batch) == tree_bytes(block)
    ours = head_flops(shape, this.num_logit_rows, batch_size=batch)
    assert ours == 2 * logits.size * tiny.hidden_size
    # Specification 0x04C and 0x05C: all 21 rows through the head of a Llama 7B.
    llama = dataclasses.replace(shape, hidden_size=4096, vocab_size=32000)
    assert head_flops(llama, 21) == 2 * 21 * 4096 * 32000
    assert head_flops(llama, this.num_logit_rows) == 2 * 12 * 4096 * 32000


def tree_bytes(tree):
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


# Acceptance


def enumerated_progress(acceptance, depth, candidates):
    """E[R_b] over every outcome of every token of every candidate; no formula."""
    total = 0.0
    for outcome in itertools.product((False, True), repeat=depth * candidates):
        chance = math.prod(acceptance if hit else 1 - acceptance for hit in outcome)
        longest = 0
        for c in range(candidates):
            tokens = outcome[c * depth : (c + 1) * depth]
            longest = max(longest, len(list(itertools.takewhile(bool, tokens))))
        total += chance * (1 + longest)
    return total


@pytest.mark.parametrize(("depth", "candidates"), [(0, 3), (3, 0), (1, 1), (4, 1), (3, 3), (4, 3)])
@pytest.mark.parametrize("acceptance", [0, 0.1, 0.5, 0.9, 1])
def test_expected_progress_is_that_of_all_outcomes(acceptance, depth, candidates):
    assert expected_progress(acceptance, depth, candidates) == pytest.approx(
        enumerated_progress(acceptance, depth, candidates), abs=1e-12
    )


def test_one_candidate_is_the_geometric_sum():
    for acceptance, depth in itertools.product((0.2, 0.7), (1, 4, 9)):
        closed = (1 - acceptance ** (depth + 1)) / (1 - acceptance)
        assert expected_progress(acceptance, depth, 1) == pytest.approx(closed, rel=1e-12)


def test_progress_grows_with_acceptance_depth_and_candidates():
    def at(acceptance=0.4, depth=3, candidates=3):
        return expected_progress(acceptance, depth, candidates)

    assert at(acceptance=0.3) < at() < at(acceptance=0.5)
    assert at(depth=2) < at() < at(depth=4) < 5
    assert at(candidates=2) < at() < at(candidates=4)


def test_step_compression_is_the_mean_of_a_simulated_run():
    draw = random.Random(5)
    this, acceptance, hit_rate, rounds = config(7, 5, 3), 0.6, 0.4, 40000

    def publish():
        if draw.random() >= hit_rate:
            return 1
        accepted = 0
        for _ in range(this.guess_set_size):
            tokens = [draw.random() < acceptance for _ in range(this.ngram_size - 1)]
            accepted = max(accepted, len(list(itertools.takewhile(bool, tokens))))
        return 1 + accepted

    published = [publish() for _ in range(rounds)]
    mean, deviation = np.mean(published), np.std(published) / rounds**0.5
    expected = tokens_per_round(this, acceptance, hit_rate)
    assert abs(mean - expected) < 4 * deviation
    progress = expected_progress(acceptance, 4, 3)
    assert expected == pytest.approx(step_compression(progress, 1 / hit_rate))
    assert step_compression(progress, 1) == progress
    assert step_compression(3.0, 2) == 2.0
    assert tokens_per_round(this, acceptance, 0) == 1


def test_without_a_bonus_token_a_round_ends_one_token_sooner():
    assert tokens_per_round(config(7, 5, 7), 1) == 5
    assert tokens_per_round(LookaheadConfig.pinned(7, 5, 7), 1) == 4
    assert tokens_per_round(config(7, 5, 0), 1) == 1


PROFILES = [
    ("light acceptance, rare hits, many rows", (15, 5, 15), 0.3, 4.0),
    ("middling, few rows", (5, 4, 5), 0.5, 2.0),
    ("strong acceptance, a hit every round", (7, 5, 7), 0.8, 1.0),
]
"""Ours: the specification's text (0x05C) has lost the cells of its synthetic table. Kept is what
it says of them: T_AR = 1, T_round = 0.90 + 0.02 Q, the first profile takes fewer steps and loses
time nevertheless, and the third wins, under strong assumptions only. (W, N, G), alpha, f."""


def test_the_synthetic_sensitivity_coordinate():
    times = []
    for _, sizes, acceptance, period in PROFILES:
        this = config(*sizes)
        steps = step_compression(
            expected_progress(acceptance, this.max_accepted, this.guess_set_size), period
        )
        assert steps == pytest.approx(tokens_per_round(this, acceptance, 1 / period))
        assert steps > 1  # fewer steps than ordinary decoding, all of them
        round_time = 0.90 + 0.02 * row_ledger(this).total
        times.append(token_time(round_time, steps))
        assert pays_off(round_time, steps, 1.0) == (times[-1] < 1)
    assert times[0] > 1.5
    assert times[2] < 0.5
    assert times[0] > times[1] > times[2]
    # The third one's assumptions taken away, each by itself: less is gained, then nothing.
    _, sizes, acceptance, _ = PROFILES[2]
    round_time = 0.90 + 0.02 * config(*sizes).num_rows
    assert pays_off(round_time, tokens_per_round(config(*sizes), acceptance), 1.0)
    assert not pays_off(round_time, tokens_per_round(config(*sizes), acceptance, 0.25), 1.0)
    assert not pays_off(round_time, tokens_per_round(config(*sizes), 0.1), 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row_ledger(config(5, 4, 2), stage=3), "stage must be an integer in 0..2, got 3"),
        (lambda: row_ledger(config(5, 4, 2), candidates=-1), "in 0..2, got -1"),
        (lambda: expected_progress(1.2, 3, 3), "acceptance must be a number from 0 to 1, got 1.2"),
        (lambda: expected_progress(math.nan, 3, 3), "from 0 to 1, got nan"),
        (lambda: expected_progress(0.5, 1.5, 3), "depth must be an integer >= 0, got 1.5"),
        (lambda: expected_progress(0.5, 3, -1), "candidates must be an integer >= 0, got -1"),
        (lambda: step_compression(0.5, 1), "progress must be a number of at least 1, got 0.5"),
        (lambda: step_compression(2, math.inf), "period must be a number of at least 1, got inf"),
        (lambda: tokens_per_round(config(5, 4, 2), 0.5, True), "hit rate must be"),
        (lambda: NumberFormat("float8"), "dtype must be one of float32, bfloat16, float16"),
        (lambda: MeshShape(model=0), "mesh axis model must be an integer >= 1, got 0"),
    ],
)
def test_bad_numbers_are_refused_in_one_line(call, message):
    with pytest.raises(LookaheadError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Shapes

PARTS = {
    "embed": "embedding",
    "positions": "embedding",
    "head": "head",
    "final_norm": "final_norm",
    "attn": "attention",
    "attn_norm": "attention",
    "attn_post_norm": "attention",
    "mlp": "mlp",
    "moe": "mlp",
    "mlp_norm": "mlp",
    "mlp_post_norm": "mlp",
}


def tree_by_part(params):
    """(layer or None, part) -> numbers without scales, and bytes, of a parameter tree."""
    counts, sizes = Counter(), Counter()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        keys = [entry.key for entry in path]
        layer = int(keys[0].removeprefix("layers_")) if keys[0].startswith("layers_") else None
        place = (layer, PARTS[keys[0] if layer is None else keys[1]])
        counts[place] += 0 if keys[-1].endswith("_scale") else leaf.size
        sizes[place] += leaf.size * leaf.dtype.itemsize
    return counts, sizes


def shape_by_part(shape: ModelShape, form: NumberFormat):
    parts = {(None, "embedding"): shape.embedding, (None, "final_norm"): shape.final_norm}
    if shape.head is not None:
        parts[None, "head"] = shape.head
    for i, layer in enumerate(shape.layers):
        parts[i, "attention"], parts[i, "mlp"] = layer.attention, layer.mlp
    counts = {place: weights.count for place, weights in parts.items()}
    return counts, {place: weights.num_bytes(form) for place, weights in parts.items()}


def check_shape(decoder: DecoderConfig, dtype: str, int8: bool):
    decoder = dataclasses.replace(decoder, int8=int8)
    shape, form = model_shape("model", decoder), NumberFormat(dtype, int8)
    params = abstract_params(decoder, dtype)
    assert shape_by_part(shape, form) == tree_by_part(params)
    assert weight_bytes(shape, form) == tree_bytes(params)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_has_the_numbers_and_bytes_of_the_parameter_tree(family):
    decoder = read_config(trace_files.DATA / "families" / family)
    check_shape(decoder, "bfloat16", int8=False)
    check_shape(decoder, "float32", int8=True)


@pytest.mark.parametrize("name", ["llama-3.2-1b", "llama-3.1-8b", "gemma-3-270m", "mixtral-8x7b"])
def test_and_so_have_real_models(name):
    check_shape(known_config(name), "bfloat16", int8=True)


PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "qwen3-0.6b": 596_049_920,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-27b": 27_009_346_304,
    "phi-4": 14_659_507_200,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
}
"""Parameters, as the hub and GGUF files of these models give them (Gemma 3: the text part)."""


def test_known_shapes_have_the_parameters_that_are_published():
    ours = {name: model_shape(name, known_config(name)).weights.count for name in KNOWN_SHAPES}
    assert ours == PUBLISHED


@pytest.mark.parametrize(
    ("name", "int8"), [("llama-3.1-8b", True), ("gemma-3-4b", False), ("mixtral-8x7b", True)]
)
def test_a_device_s_weights_are_those_of_the_sharding_table(name, int8):
    decoder = dataclasses.replace(known_config(name), int8=int8)
    mesh = AbstractMesh((1, 1, 4), sharding.AXES, axis_types=(AxisType.Auto,) * 3)
    params = abstract_params(decoder, "bfloat16")
    placed = sharding.shardings(mesh, "params", params)
    local = sum(
        math.prod(where.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf, where in zip(jax.tree.leaves(params), jax.tree.leaves(placed), strict=True)
    )
    # Scales of the gathered matrices are whole on every device there, and are small.
    ours = weight_bytes(model_shape(name, decoder), NumberFormat("bfloat16", int8), 4)
    assert ours == pytest.approx(local, rel=2e-3)
    assert local < 0.3 * tree_bytes(params)
