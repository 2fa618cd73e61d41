"""Lookahead Parallelism: the text and the state of one device, on every device."""

import dataclasses
import functools

import fakes
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_chat
from checkout import benchmark
from trace_files import TINY_MODEL

from lookahead_jax import (
    Greedy,
    LookaheadConfig,
    LookaheadError,
    Sample,
    autoregressive,
    check,
    completions,
    generate,
    make_mesh,
    parallel,
    stream,
)
from lookahead_jax.generation import Lookahead
from lookahead_jax.models import load_model
from lookahead_jax.programs import Program, Requests
from lookahead_jax.sampling import Policy

LIMITS = (40, 30, 25)
NO_LIMIT = np.int32(1000)
GREEDY, DRAWN = Policy(Greedy()), Policy(Sample(temperature=0.8))


def on_devices(lm, count, **axes):
    """The model on a mesh; a toy has no parameters to put there."""
    return dataclasses.replace(lm, mesh=make_mesh(**{"lookahead": count, **axes}))


def requests(lm):
    """Three prompts of different lengths and limits."""
    rng = np.random.default_rng(0)
    return Requests(
        prompt=jnp.asarray(rng.integers(1, lm.vocab_size, (3, 12)), jnp.int32),
        prompt_length=jnp.asarray([12, 7, 10], jnp.int32),
        max_new_tokens=jnp.asarray(LIMITS, jnp.int32),
        stop_tokens=jnp.full((3, 1), -1, jnp.int32),
        key=jnp.asarray([[1, 0], [2, 0], [2, 1]], jnp.uint32),
    )


def run(lm, decoder, rounds=NO_LIMIT):
    program = Program(decoder, lm.forward, lm.cache_spec, lm.vocab_size, 128, mesh=lm.mesh)
    state = jax.jit(program.start)(requests(lm), lm.params)
    return jax.jit(program.advance)(state, lm.params, rounds, np.zeros(3, bool))


def committed(buffers, length):
    """The live part of cache buffers; what lies behind is leftover."""
    return [np.asarray(x)[b, :, :n] for x in buffers for b, n in enumerate(length)]


def assert_same_state(state, expected, *, cache=True):
    """Leaf for leaf; the cache as far as it goes, to rounding."""
    for name in ("sequences", "window", "pool", "rounds", "candidate_rounds", "accepted_histogram"):
        jax.tree.map(np.testing.assert_array_equal, getattr(state, name), getattr(expected, name))
    if cache:
        length = np.asarray(expected.cache.length)
        np.testing.assert_array_equal(state.cache.length, length)
        for name in ("keys", "values"):
            pairs = (committed(getattr(s.cache, name), length) for s in (state, expected))
            for ours, theirs in zip(*pairs, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=2e-5)


def assert_replicas_agree(state):
    """Bit for bit on every device that holds the same part."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        parts = {}
        for shard in leaf.addressable_shards:
            first = parts.setdefault(str(shard.index), np.asarray(shard.data))
            assert np.array_equal(first, np.asarray(shard.data)), jax.tree_util.keystr(path)


@functools.cache
def alone(lm_name, shape, policy):
    """The final state on one device."""
    return run(MODELS[lm_name](), Lookahead(LookaheadConfig(*shape), policy))


MODELS = {
    "toy": functools.cache(fakes.toy_model),
    "llama": functools.cache(lambda: load_model(TINY_MODEL)),
}
CASES = [
    ("toy", (5, 4, 3), 1, GREEDY, "broadcast"),
    ("toy", (5, 4, 3), 2, GREEDY, "broadcast"),
    ("toy", (5, 4, 3), 4, DRAWN, "broadcast"),
    ("toy", (3, 3, 5), 8, GREEDY, "broadcast"),
    ("toy", (3, 3, 5), 8, DRAWN, "refeed"),
    ("toy", (1, 5, 1), 2, GREEDY, "refeed"),
    ("toy", (5, 4, 3), 1, GREEDY, "refeed"),
    ("llama", (5, 4, 3), 4, GREEDY, "broadcast"),
    ("llama", (5, 4, 3), 2, DRAWN, "broadcast"),
    ("llama", (5, 4, 3), 4, DRAWN, "refeed"),
]


@pytest.mark.parametrize(
    ("lm_name", "shape", "count", "policy", "kv_exchange"),
    CASES,
    ids=lambda x: {GREEDY: "greedy", DRAWN: "coupled"}.get(x) if isinstance(x, Policy) else str(x),
)
def test_every_device_ends_with_the_state_of_one(lm_name, shape, count, policy, kv_exchange):
    config = LookaheadConfig(*shape, kv_exchange=kv_exchange)
    lm = on_devices(MODELS[lm_name](), count)
    state = run(lm, Lookahead(config, policy, num_copies=count))
    expected = alone(lm_name, shape, policy)
    assert np.asarray(expected.accepted_histogram)[:, 1:].sum() > 3  # candidates are accepted
    assert_same_state(state, expected, cache=kv_exchange == "broadcast")
    assert_replicas_agree(state)


def test_what_was_accepted_waits_for_the_next_round_when_it_is_fed_again(toy):
    """The cache is behind by the accepted tokens of the last round, and never by more."""
    config = LookaheadConfig(5, 4, 3, kv_exchange="refeed")
    lm, behind = on_devices(toy, 2), set()
    program = Program(
        Lookahead(config, GREEDY, num_copies=2),
        lm.forward,
        lm.cache_spec,
        lm.vocab_size,
        128,
        mesh=lm.mesh,
    )
    state = jax.jit(program.start)(requests(lm), lm.params)
    advance = jax.jit(program.advance)
    for _ in range(12):
        before = np.asarray(state.accepted_histogram)
        state = advance(state, lm.params, np.int32(1), np.zeros(3, bool))
        depth = (np.asarray(state.accepted_histogram) - before).argmax(axis=1)
        waiting = np.asarray(parallel.pending(state.sequences, state.cache))
        running = ~np.asarray(state.sequences.done)
        assert waiting[running].tolist() == depth[running].tolist()
        behind |= set(waiting.tolist())
    assert behind > {0, 1}


def keep_own_rows(block, rows, is_winner):
    """A fault: every device commits its own path."""
    del is_winner
    return jax.tree.map(lambda x: jnp.take_along_axis(x, rows[:, None, :, None], axis=2), block)


def test_a_device_that_keeps_its_own_rows_is_noticed(toy, monkeypatch):
    monkeypatch.setattr(parallel, "_from_winner", keep_own_rows)
    shape = (5, 4, 3)
    state = run(on_devices(toy, 2), Lookahead(LookaheadConfig(*shape), GREEDY, num_copies=2))
    with pytest.raises(AssertionError):
        assert_replicas_agree(state)
    with pytest.raises(AssertionError):
        assert_same_state(state, alone("toy", shape, GREEDY))


# The whole package on a mesh.

PROMPTS = [[3, 1, 4, 1, 5], [2, 7, 1, 8, 2, 8, 1, 8], [1, 6], [9, 9, 2], [5, 3, 5, 3, 5, 3]]
CONFIG = LookaheadConfig(5, 4, 3)
MESHES = [{"data": 2, "lookahead": 2, "model": 2}, {"model": 2}]


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_generate_on_a_mesh(axes, tiny):
    """Fewer slots than prompts, groups of one, idle places: the same results."""
    options = {"max_new_tokens": 20, "stop_tokens": (), "batch_size": 2, "logprobs": True}
    expected = generate(tiny, PROMPTS, config=CONFIG, **options)
    lm = load_model(TINY_MODEL, mesh=make_mesh(**axes))
    results = generate(lm, PROMPTS, config=CONFIG, **options)
    assert [r.tokens for r in results] == [r.tokens for r in expected]
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.stats.rounds == theirs.stats.rounds
        assert ours.stats.accepted_histogram == theirs.stats.accepted_histogram
        np.testing.assert_allclose(ours.logprobs.raw, theirs.logprobs.raw, atol=1e-4)
    again = generate(lm, PROMPTS, config=CONFIG, **options)
    assert all(result.stats.compile_seconds == 0 for result in again)
    if "data" in axes:
        ordinary = autoregressive.generate(lm, PROMPTS[0], max_new_tokens=20, stop_tokens=())
        assert ordinary.tokens == expected[0].tokens
        assert not check(lm, results[0], stop_tokens=()).divergences


def test_streams_and_completions_on_a_mesh(toy):
    lm = on_devices(toy, 2, data=2)
    options = {"config": CONFIG, "max_new_tokens": 30, "stop_tokens": ()}
    expected = generate(toy, PROMPTS, **options)
    parts = stream(lm, PROMPTS[1], **options)
    assert tuple(token for chunk in parts for token in chunk.tokens) == expected[1].tokens
    results = dict(completions(lm, PROMPTS, batch_size=3, **options))
    assert [results[i].tokens for i in range(5)] == [r.tokens for r in expected]


@pytest.mark.parametrize("kv_exchange", ["broadcast", "refeed"])
def test_conversations_on_a_mesh(kv_exchange):
    """With an idle place beside the conversation; the second turn makes the state grow."""
    lm = test_chat.model()
    config = dataclasses.replace(test_chat.CONFIG, kv_exchange=kv_exchange)
    chat = test_chat.begin(on_devices(lm, 2, data=2), config=config)
    turns = [test_chat.say(chat, lm, text) for text in ("hello", "abcabc" * 12, "what")]
    assert turns[2].read_tokens < 10
    assert sum(sum(turn.result.stats.accepted_histogram[1:]) for turn in turns) > 5


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"lookahead": 9}, "mesh data=1,lookahead=9,model=1 needs 9 devices, there are 8"),
        ({"data": 0}, "mesh axis data must be an integer >= 1, got 0"),
        ({"model": True}, "mesh axis model must be an integer >= 1, got True"),
    ],
)
def test_meshes_that_cannot_be(axes, message):
    with pytest.raises(LookaheadError) as caught:
        make_mesh(**axes)
    assert str(caught.value) == message


def test_what_does_not_go_with_a_mesh(toy):
    with pytest.raises(LookaheadError, match="model=4 must divide the model's 2 key/value heads"):
        load_model(TINY_MODEL, mesh=make_mesh(model=4))
    with pytest.raises(LookaheadError, match="expected a sharding or a mesh, got both"):
        load_model(TINY_MODEL, mesh=make_mesh(), sharding=lambda path, shape: None)
    wrong = jax.make_mesh((2,), ("x",))
    with pytest.raises(LookaheadError, match="expected a mesh of lookahead_jax"):
        load_model(TINY_MODEL, mesh=wrong)
    lm = on_devices(toy, 2)
    with pytest.raises(LookaheadError, match="expected no mesh"):
        generate(lm, PROMPTS[0], validate=True)
    with pytest.raises(LookaheadError, match="on a mesh with lookahead=2"):
        generate(lm, PROMPTS[0], sampling=Sample(method="residual"))
    with pytest.raises(LookaheadError, match='kv_exchange must be "broadcast" or "refeed"'):
        LookaheadConfig(kv_exchange="copy")


def test_the_benchmark_of_rounds(toy):
    """Rows, bytes and texts are facts; times are only there."""
    rounds = benchmark("parallel_rounds")
    record = rounds.measure(
        lambda mesh: dataclasses.replace(toy, mesh=mesh), [(3, 3, 3)], [1, 2], repeats=2
    )
    assert record["same_text"] is True
    facts = record["rounds"]
    rows = {name: fact["rows_of_a_device"] for name, fact in facts.items()}
    assert rows == {
        "(3, 3, 3) on 1": 12,
        "(3, 3, 3) on 2 broadcast": 8,
        "(3, 3, 3) on 2 refeed": 10,
    }
    ids = 4 * 2 * (1 + 3 + 2)
    spec = toy.cache_spec
    values = 4 * spec.num_layers * 2 * spec.num_kv_heads * 2 * spec.head_dim
    exchanged = [fact["bytes_exchanged"] for fact in facts.values()]
    assert exchanged == [0, ids + values, ids]
    assert facts["(3, 3, 3) on 1"]["over_one_device"]["median"] == 1.0
    assert all(fact["milliseconds"]["median"] > 0 for fact in facts.values())
    assert rounds.table(record).row_count == 3
