"""The state of a round as an array program: shapes, dtypes, traces, donation, the compiled loop."""

import functools

import chex
import fakes
import hlo
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracle_states import TOY, jitted_round, start_batch

from lookahead_jax import LookaheadConfig, WindowAdvance, decoding, generate, stream
from lookahead_jax.generation import Lookahead
from lookahead_jax.programs import Program, Requests
from lookahead_jax.sampling import Greedy, Policy

CONFIG = LookaheadConfig(3, 4, 3)
W, N, G = CONFIG.window_size, CONFIG.ngram_size, CONFIG.guess_set_size
S = R = N - 1
B, V, A = 8, fakes.TOY_VOCAB, 96
PROMPTS = [(5,), (7, 7, 8, 1, 7, 7), tuple(range(17)), (1, 2)] * 2
ROUND = functools.partial(decoding.round, forward=TOY)


def start(config=CONFIG, prompts=PROMPTS):
    return start_batch(config, prompts, [40] * len(prompts), [[]] * len(prompts))


def leaves_of(state):
    """Every leaf with its shape: a leaf that is added must be added here."""
    text, cache, window = state.sequences, state.cache, state.window
    return [
        (text.tokens, (B, A)),
        (text.length, (B,)),
        (text.prompt_length, (B,)),
        (text.max_length, (B,)),
        (text.stop_tokens, (B, 3)),
        (text.done, (B,)),
        (text.key, (B, 2)),
        (cache.keys[0], (B, 1, A, 1)),
        (cache.values[0], (B, 1, A, 1)),
        (cache.length, (B,)),
        (cache.extent.prompt_length, (B,)),
        (cache.extent.max_length, (B,)),
        (window.base, (B, W + N - 3)),
        (window.levels, (B, R - 1, W)),
        (window.stage, (B,)),
        (state.pool.suffixes, (B, V, G * S)),
        (state.rounds, (B,)),
        (state.candidate_rounds, (B,)),
        (state.accepted_histogram, (B, S + 1)),
    ]


def test_every_leaf_has_its_shape_and_dtype_at_the_start_and_after_rounds():
    state = start()
    for _ in range(N + 1):
        expected = leaves_of(state)
        assert len(jax.tree.leaves(state)) == len(expected)
        chex.assert_shape([leaf for leaf, _ in expected], [shape for _, shape in expected])
        chex.assert_tree_has_only_ndarrays(state)
        floats = [*state.cache.keys, *state.cache.values]
        chex.assert_type(floats, jnp.float32)
        chex.assert_type(state.sequences.done, bool)
        chex.assert_type(state.sequences.key, jnp.uint32)
        apart = (id(state.sequences.done), id(state.sequences.key))
        others = [x for x, _ in expected if x.ndim != 4 and id(x) not in apart]
        chex.assert_type(others, jnp.int32)
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(state))
        state = jitted_round(CONFIG)(state, fakes.HEALTHY)


CONFIGS = [
    CONFIG,
    LookaheadConfig(1, 3, 0),
    LookaheadConfig(2, 6, 2, advance=WindowAdvance.BY_ACCEPTED),
    LookaheadConfig.pinned(4, 4, 1),
    LookaheadConfig.pinned(4, 4, 1, pool_from_prompt=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_round_returns_what_it_takes(config, batch_size):
    """Contract 10, without compiling anything."""
    state = jax.eval_shape(
        lambda: start(config, PROMPTS[:batch_size]),
    )
    after = jax.eval_shape(
        functools.partial(ROUND, config=config), state, jax.ShapeDtypeStruct((), jnp.int32)
    )
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)


def test_a_round_of_the_tiny_transformer_returns_what_it_takes(tiny):
    state = jax.eval_shape(
        lambda: start_batch(
            CONFIG,
            PROMPTS,
            [40] * B,
            [[]] * B,
            params=tiny.params,
            forward=tiny.forward,
            cache_spec=tiny.cache_spec,
            vocab_size=tiny.vocab_size,
        )
    )
    after = jax.eval_shape(
        functools.partial(decoding.round, forward=tiny.forward, config=CONFIG), state, tiny.params
    )
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert jax.tree.leaves(after) == jax.tree.leaves(state)


def test_one_trace_serves_warm_up_and_steady_state():
    """Contract 5."""
    chex.clear_trace_counter()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def counted(state, params):
        return ROUND(state, params, config=CONFIG)

    state = start()
    stages = []
    for _ in range(R + 2):
        stages.append(int(state.window.stage[0]))
        state = counted(state, fakes.HEALTHY)
    assert stages == [*range(R), R - 1, R - 1]


def test_a_round_maps_over_another_axis():
    one, other = start(), start(prompts=PROMPTS[::-1])
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    step = jax.jit(jax.vmap(functools.partial(ROUND, config=CONFIG), in_axes=(0, None)))
    for _ in range(R + 2):
        stacked = step(stacked, fakes.HEALTHY)
        one, other = (jitted_round(CONFIG)(state, fakes.HEALTHY) for state in (one, other))
    for index, single in enumerate((one, other)):
        jax.tree.map(
            lambda a, b, index=index: np.testing.assert_array_equal(a[index], b), stacked, single
        )


def test_the_state_can_be_donated():
    step = jax.jit(functools.partial(ROUND, config=CONFIG), donate_argnums=0)
    # Leaves that a program returns may share buffers; a donated one must have its own.
    state = jax.tree.map(jnp.copy, start())
    after = step(state, jnp.asarray(fakes.HEALTHY))
    for donated in (*state.cache.keys, *state.cache.values, state.pool.suffixes):
        assert donated.is_deleted()
    plain = jitted_round(CONFIG)(start(), fakes.HEALTHY)
    jax.tree.map(np.testing.assert_array_equal, after, plain)


# Whole generations.


def counted_model(name):
    forward = fakes.ToyForward(name=name)
    return fakes.toy_model(forward), forward.traces


def test_one_program_for_each_capacity_bucket():
    """Contract 5: texts of one bucket share a program, whatever the prompt and the limit."""
    lm, traces = counted_model("one program a bucket")
    call = functools.partial(generate, lm, config=CONFIG)

    def rounds_traced():
        return traces.count(CONFIG.num_rows)

    first = call([1, 2, 3], max_new_tokens=20)
    assert first.stats.compile_seconds > 0
    once = rounds_traced()
    assert once >= 1
    again = call([5, 6], max_new_tokens=30)
    assert again.stats.compile_seconds == 0
    assert rounds_traced() == once

    call(list(range(20)), max_new_tokens=30)  # a longer prompt: another prefill, the same rounds
    assert rounds_traced() == once

    call([1, 2, 3], max_new_tokens=200)
    assert rounds_traced() == 2 * once


def test_an_equal_model_shares_programs():
    """Programs are found by value: a model that is loaded again is not compiled again."""
    one, traces = counted_model("equal models")
    generate(one, [1, 2, 3], config=CONFIG, max_new_tokens=20)
    before = len(traces)
    assert before
    other, other_traces = counted_model("equal models")
    assert other.forward is not one.forward
    result = generate(
        other, [4, 5], config=LookaheadConfig(W, N, G), sampling=Greedy(), max_new_tokens=20
    )
    assert result.stats.compile_seconds == 0
    assert (len(traces), other_traces) == (before, [])


def test_a_stream_shares_the_programs_of_generate():
    lm, traces = counted_model("streams")
    generate(lm, [1, 2, 3], config=CONFIG, max_new_tokens=20)
    before = len(traces)
    for size in (1, 3):
        chunks = stream(lm, [1, 2, 3], config=CONFIG, max_new_tokens=20, rounds_per_chunk=size)
        assert len(list(chunks)) > 1
    assert len(traces) == before


@pytest.fixture(scope="module")
def compiled_loop(tiny):
    """HLO of a whole generation of the tiny model on this machine, and its cache's shape."""
    capacity = 112
    decoder = Lookahead(CONFIG, Policy(Greedy()))
    program = Program(decoder, tiny.forward, tiny.cache_spec, tiny.vocab_size, capacity)
    ints = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    key = jax.ShapeDtypeStruct((1, 2), jnp.uint32)
    requests = Requests(ints((1, 16)), ints((1,)), ints((1,)), ints((1, 1)), key)
    state = jax.eval_shape(program.start, requests, tiny.params)
    watched = jax.ShapeDtypeStruct((1,), jnp.bool_)
    lowered = jax.jit(program.advance, donate_argnums=0).lower(
        state, tiny.params, ints(()), watched
    )
    shape = f"f32[1,{tiny.cache_spec.num_kv_heads},{capacity},{tiny.cache_spec.head_dim}]"
    text = lowered.compile().as_text()
    assert text.count(shape) > 4 * tiny.cache_spec.num_layers
    return hlo.Hlo.parse(text), shape, text


def test_the_loop_is_one_loop_on_the_device(compiled_loop):
    """Contract 6: nothing in it talks to the host."""
    module, _, text = compiled_loop
    (body,) = module.loop_bodies()
    opcodes = {line.opcode for line in module.reached(body)}
    assert not opcodes & {"infeed", "outfeed", "send", "recv", "send-done", "recv-done"}
    assert "callback" not in text


def test_the_loop_does_not_copy_the_cache(compiled_loop):
    """Contract 7, on a CPU: no instruction of the body makes another cache of a layer.

    What it does with one is to read it, and to write rows into it in place.
    """
    module, shape, _ = compiled_loop
    (body,) = module.loop_bodies()
    lines = [line for line in module.reached(body) if line.shape.startswith(shape)]
    writes = [line for line in lines if line.opcode == "dynamic-update-slice"]
    assert writes
    copies = [line for line in lines if line.opcode in ("copy", "copy-start", "select", "scatter")]
    assert not copies


def test_the_loop_takes_logits_for_the_rows_of_contract_4_only(compiled_loop, tiny):
    module, _, _ = compiled_loop
    (body,) = module.loop_bodies()
    wanted, every = CONFIG.num_logit_rows, CONFIG.num_rows
    shapes = [line.shape.partition("{")[0] for line in module.reached(body)]
    assert f"f32[{tiny.vocab_size},{wanted}]" in shapes
    assert f"f32[{tiny.vocab_size},{every}]" not in shapes


def test_the_donated_cache_is_updated_in_place(tiny, compiled_loop):
    """Every buffer of the cache is an alias of an output (contract 7)."""
    _, shape, text = compiled_loop
    header = text[: text.index("\n")]
    aliases = header[header.index("input_output_alias") :].partition("entry_computation")[0]
    parameters = header[header.index("entry_computation_layout") :].partition("->")[0]
    count = parameters.count(shape)
    assert count == 2 * tiny.cache_spec.num_layers
    assert aliases.count("-alias)") >= count
