"""Chips, memory and time of a call, against arrays, compiled programs and sums by hand."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from lookahead_jax import LookaheadConfig, decoding
from lookahead_jax.deployment import USABLE, Deployment, MeshShape, memory, weight_bytes
from lookahead_jax.errors import LookaheadError
from lookahead_jax.hardware import GIB, parse_slice
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.model_shape import NumberFormat
from lookahead_jax.models.config import llama_config
from lookahead_jax.models.decoder import DecoderForward, abstract_params, cache_spec
from lookahead_jax.models.shapes import known_config, model_shape
from lookahead_jax.planning import all_meshes, choose_mesh, remedies
from lookahead_jax.roofline import free_rows, lookahead_round, ordinary_step
from lookahead_jax.sequences import init_sequences
from lookahead_jax.shards import build_shards

BF16, INT8 = NumberFormat("bfloat16"), NumberFormat("bfloat16", int8=True)
LLAMA_1B, LLAMA_8B, LLAMA_70B = (
    model_shape(name, known_config(name))
    for name in ("llama-3.2-1b", "llama-3.1-8b", "llama-3.1-70b")
)


def deploy(shape=LLAMA_1B, tpu="v5e-1", form=BF16, sizes=(7, 5, 7), mesh=(1, 1, 1), **more):
    config = sizes if isinstance(sizes, LookaheadConfig) else LookaheadConfig(*sizes)
    return Deployment(shape, form, config, parse_slice(tpu), MeshShape(*mesh), **more)


def tree_bytes(tree):
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


# Chips


def test_the_number_of_a_slice_counts_chips_or_cores():
    found = {
        name: parse_slice(name) for name in ("v5e-8", "v5litepod-8", "v6e-4", "v5p-8", "v4-16")
    }
    assert {name: s.num_chips for name, s in found.items()} == {
        "v5e-8": 8,
        "v5litepod-8": 8,
        "v6e-4": 4,
        "v5p-8": 4,
        "v4-16": 8,
    }
    assert found["v5litepod-8"].name == "v5e-8"
    assert all(s.name == name for name, s in found.items() if name != "v5litepod-8")
    ironwood = parse_slice("TPU7x-8")
    assert (ironwood.num_chips, ironwood.num_devices, ironwood.name) == (4, 8, "tpu7x-8")


def test_slices_have_the_devices_that_the_compiler_knows(monkeypatch):
    pytest.importorskip("libtpu", reason="needs the extra tpu-aot")
    from jax.experimental import topologies

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    monkeypatch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other workers compile for TPUs
    for name, topology in (
        ("v5e-8", "v5e:2x4"),
        ("v5p-8", "v5p:2x2x1"),
        ("tpu7x-8", "tpu7x:2x2x1"),
    ):
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
        assert len(devices) == parse_slice(name).num_devices


@pytest.mark.parametrize("name", ["", "v5e", "v5e-0", "v5e-8x", "v9-8", "h100-8", "v5e--8", "8"])
def test_what_is_no_slice_is_refused(name):
    with pytest.raises(LookaheadError, match=r"expected a TPU slice such as v5e-8, of v4, v5e,"):
        parse_slice(name)


def test_slices_that_cannot_be_are_refused():
    with pytest.raises(LookaheadError, match="counts TensorCores, 2 to a chip of v5p"):
        parse_slice("v5p-7")
    with pytest.raises(LookaheadError, match="at most 256 chips, got 512"):
        parse_slice("v5e-512")


# Rooflines


def test_flops_are_those_that_xla_counts():
    """Of the forward pass on a CPU, a quarter of it attention.

    The rest that XLA counts is norms, softmax, rotations: under 5 % (2 % when this was written).
    """
    decoder = llama_config(512, 128, 256, 2, 8, 4, 32, tie_word_embeddings=True)
    this, capacity = LookaheadConfig(8, 5, 8), 64
    shape = model_shape("small", decoder)
    params = abstract_params(decoder, "float32")
    cache = jax.eval_shape(lambda: init_cache(cache_spec(decoder, "float32"), 1, capacity))
    plan = deploy(shape, form=NumberFormat("float32"), sizes=this, context=capacity)
    for call, logit_rows in (
        (ordinary_step(plan), 1),
        (lookahead_round(plan), this.num_logit_rows),
    ):
        rows = jax.ShapeDtypeStruct((1, call.rows), jnp.int32)
        mask = jax.ShapeDtypeStruct((1, call.rows, call.rows), bool)
        wanted = jax.ShapeDtypeStruct((1, logit_rows), jnp.int32)
        lowered = jax.jit(DecoderForward(decoder)).lower(params, rows, rows, mask, cache, wanted)
        counted = lowered.compile().cost_analysis()["flops"]
        assert call.flops <= counted <= 1.05 * call.flops, (call.rows, counted / call.flops)


def test_a_step_reads_weights_and_cache_once():
    plan = deploy(context=1024)
    step = ordinary_step(plan)
    read = weight_bytes(LLAMA_1B, BF16) + 1024 * LLAMA_1B.kv_features * 2
    # Beside it: the row's own keys and values, and its logits, written and read.
    assert step.bytes == pytest.approx(read, rel=1e-3)
    assert step.bytes > read - 2 * LLAMA_1B.hidden_size
    assert step.seconds == pytest.approx(step.bytes / 819e9, rel=1e-9)
    assert step.exchanged == step.exchange_seconds == 0


@pytest.mark.parametrize(
    ("form", "most"),
    [
        # FLOP/s over bytes/s of a v5e is 240.5; a number takes two FLOPs a row.
        (NumberFormat("bfloat16"), 240.5 * 2 / 2),
        (NumberFormat("bfloat16", int8=True), 240.5 / 2),
        (NumberFormat("float32"), 240.5 / 6 * 4 / 2),
    ],
)
def test_rows_are_free_until_arithmetic_takes_as_long_as_reading(form, most):
    plan = deploy(form=form, context=1)
    assert 0.97 * most < free_rows(plan) <= 1.01 * most
    # Twice the sequences, half the rows of each.
    assert free_rows(dataclasses.replace(plan, batch_size=4)) == pytest.approx(most / 4, rel=0.05)


def test_a_round_costs_a_step_while_rows_are_free_and_more_beyond():
    plan, step = deploy(context=64), ordinary_step(deploy(context=64)).seconds
    within, beyond = deploy(sizes=(15, 5, 15), context=64), deploy(sizes=(60, 6, 60), context=64)
    assert within.round_rows < free_rows(plan) < beyond.round_rows
    assert lookahead_round(within).seconds < 1.1 * step
    parts = lookahead_round(beyond).parts
    assert {part.name: part.seconds > part.bytes / 819e9 * 1.5 for part in parts}["MLP"]
    assert lookahead_round(beyond).seconds > 2 * step
    for part in parts:
        assert part.seconds >= max(part.flops / 197e12, part.bytes / 819e9) * (1 - 1e-9)


def test_layers_with_a_window_read_no_more_than_it():
    gemma = model_shape("gemma-3-1b", known_config("gemma-3-1b"))
    whole = dataclasses.replace(
        gemma, layers=tuple(dataclasses.replace(x, window=None) for x in gemma.layers)
    )
    windowed, full = (ordinary_step(deploy(x, context=8192)).parts[1] for x in (gemma, whole))
    layers = [min(8192, layer.window or 8192) for layer in gemma.layers]
    assert sorted(set(layers)) == [512, 8192]
    short = [ordinary_step(deploy(x, context=256)).parts[1] for x in (gemma, whole)]
    assert short[0] == short[1]
    assert short[0].flops == 26 * 4 * 4 * 256 * (256 + 1)
    assert windowed.bytes / full.bytes == pytest.approx(sum(layers) / 8192 / 26, rel=1e-2)


def test_experts_are_all_computed_as_the_decoder_does():
    mixtral = model_shape("mixtral-8x7b", known_config("mixtral-8x7b"))
    part = ordinary_step(deploy(mixtral, "v5p-2")).parts[2]
    assert part.name == "experts"
    assert part.flops == 2 * 32 * (8 * 3 * 4096 * 14336 + 8 * 4096)


def test_copies_share_the_rows_of_the_sharded_layout():
    this = LookaheadConfig(15, 5, 15)
    plan = deploy(LLAMA_8B, "v5e-8", sizes=this, mesh=(1, 4, 2))
    shards = build_shards(this, 4)
    assert plan.round_rows == shards.num_rows < this.num_rows / 2
    assert plan.round_logit_rows == shards.logit_rows.shape[2]
    refed = dataclasses.replace(plan, config=dataclasses.replace(this, kv_exchange="refeed"))
    assert refed.round_rows == shards.num_rows + 4


def test_what_copies_and_shares_send():
    this, batch = LookaheadConfig(15, 5, 15), 2
    plan = deploy(LLAMA_8B, "v5p-8", sizes=this, mesh=(1, 4, 1), batch_size=batch)
    # 2 L K S D numbers a sequence, around a ring of four; token ids beside it.
    kv = batch * 2 * 32 * 8 * 4 * 128 * 2
    sent = lookahead_round(plan).exchanged
    assert 0 < sent - 2 * kv * 3 / 4 < 1024
    refed = dataclasses.replace(plan, config=dataclasses.replace(this, kv_exchange="refeed"))
    assert 0 < lookahead_round(refed).exchanged < 1024
    assert ordinary_step(plan).exchanged == 0
    # Two float32 sums of [hidden, rows] a layer, and the embedding's, around a ring of two.
    halves = deploy(LLAMA_8B, "v5e-2", sizes=this, mesh=(1, 1, 2))
    assert lookahead_round(halves).exchanged == 65 * 4096 * 120 * 4
    step = ordinary_step(halves)
    assert step.exchanged == 65 * 4096 * 4
    assert step.exchange_seconds == pytest.approx(step.exchanged / 100e9)


def test_devices_of_a_chip_share_it():
    one = deploy(LLAMA_8B, "tpu7x-2", mesh=(1, 1, 1))
    assert memory(one).available == 96 * GIB
    assert ordinary_step(one).seconds == pytest.approx(ordinary_step(one).bytes / 3690e9)


# Memory


def test_memory_is_that_of_the_arrays():
    this, batch, context = LookaheadConfig(7, 5, 7), 3, 1000
    plan = deploy(sizes=this, batch_size=batch, context=context)
    found = memory(plan)
    capacity = 1024
    assert found.weights == tree_bytes(abstract_params(known_config("llama-3.2-1b"), "bfloat16"))
    row = jax.ShapeDtypeStruct((batch,), jnp.int32)
    prompt, stops = (jax.ShapeDtypeStruct((batch, n), jnp.int32) for n in (64, 1))
    spec = cache_spec(known_config("llama-3.2-1b"), "bfloat16")
    text = jax.eval_shape(lambda *x: init_sequences(*x, capacity), prompt, row, row, stops)
    state = jax.eval_shape(
        lambda text: decoding.init_state(
            text, config=this, cache_spec=spec, vocab_size=LLAMA_1B.vocab_size
        ),
        text,
    )
    buffers = state.cache.keys + state.cache.values
    assert found.cache == tree_bytes(buffers)
    assert found.state == pytest.approx(tree_bytes(state) - tree_bytes(buffers), rel=1e-3)
    # A round writes N - 1 tokens past the longest text.
    full = memory(deploy(sizes=this, context=1024))
    assert full.cache == (1024 + 64) * LLAMA_1B.kv_features * 2
    hashed = deploy(sizes=dataclasses.replace(this, pool_slots=4096), batch_size=batch)
    assert memory(hashed).state < 0.05 * found.state
    assert found.total == found.weights + found.cache + found.state + found.temporary


def test_a_mesh_cuts_what_a_device_holds():
    whole = memory(deploy(LLAMA_8B, "v5p-16", batch_size=4))
    cut = memory(deploy(LLAMA_8B, "v5p-16", mesh=(2, 1, 4), batch_size=4))
    assert cut.weights == pytest.approx(whole.weights / 4, rel=1e-3)
    assert cut.cache == whole.cache / 8
    assert cut.state == whole.state / 2


# Plans


def test_the_smallest_share_of_the_weights_that_fits_is_chosen():
    assert choose_mesh(deploy(LLAMA_8B, "v5e-8")).mesh == MeshShape(1, 4, 2)
    assert choose_mesh(deploy(LLAMA_8B, "v5e-8", INT8, (8, 5, 7))).mesh == MeshShape(1, 8, 1)
    assert choose_mesh(deploy(LLAMA_70B, "v5p-8")).mesh == MeshShape(1, 2, 2)
    # More devices than columns and candidates: the rest takes sequences of a batch, if any.
    assert choose_mesh(deploy(LLAMA_1B, "v5e-32", batch_size=2)).mesh == MeshShape(2, 8, 1)
    gemma = model_shape("gemma-3-1b", known_config("gemma-3-1b"))
    assert [way.mesh.model for way in all_meshes(deploy(gemma, "v5e-8"))] == [1]
    for way in all_meshes(deploy(LLAMA_8B, "v5e-8")):
        assert way.mesh.size == 8


def test_what_does_not_fit_comes_with_what_would():
    plan = choose_mesh(deploy(LLAMA_70B, "v5e-8"))
    assert memory(plan).total > USABLE * 16 * GIB
    assert not memory(plan).fits
    changes = {remedy.change: remedy.deployment for remedy in remedies(plan)}
    assert "--int8" in changes
    assert all(memory(deployment).fits for deployment in changes.values())
    # More chips would not help it: 8 key/value heads are shared out among 8 devices at most.
    assert not any("--tpu" in change for change in changes)
    mixtral = model_shape("mixtral-8x7b", known_config("mixtral-8x7b"))
    (larger,) = remedies(deploy(mixtral, "v5e-1"))
    assert larger.change == "--tpu v5e-8 --mesh data=1,lookahead=1,model=8"
    # Another mesh alone is no loss, so that nothing else is proposed.
    (mesh,) = remedies(deploy(LLAMA_8B, "v5e-8", mesh=(1, 8, 1)))
    assert mesh.change == "--mesh data=1,lookahead=4,model=2"
    float32 = remedies(deploy(LLAMA_8B, "v5e-1", NumberFormat("float32")))
    assert [remedy.change for remedy in float32][:2] == ["--int8", "--dtype bfloat16 --int8"]
    long = deploy(LLAMA_1B, "v5e-1", context=131072, batch_size=4)
    assert not memory(long).fits
    assert "--context 65536" in [remedy.change for remedy in remedies(long)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": (1, 2, 1)}, "needs 2 devices, v5e-1 has 1"),
        ({"tpu": "v5e-16", "mesh": (1, 1, 16)}, "must divide the 8 key/value heads"),
        ({"tpu": "v5e-4", "mesh": (2, 1, 1)}, "data=2 must divide the batch of 1"),
        ({"context": 131073}, "context must be at most 131072, the context window of llama-3.2-1b"),
        ({"context": 0}, "context must be an integer >= 1, got 0"),
        ({"batch_size": 1.0}, "batch must be an integer >= 1, got 1.0"),
    ],
)
def test_deployments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(LookaheadError) as caught:
        deploy(**arguments)
    assert message in str(caught.value)
