"""The benchmark: what it makes of times and programs. No test depends on how fast anything is."""

import importlib.util
import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor

import checkout
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files

from lookahead_jax import autoregressive
from lookahead_jax.bench import timing

operations, rivals, round_cost, streaming, subjects = map(
    checkout.benchmark, ("operations", "rivals", "round_cost", "streaming", "subjects")
)


def test_every_repetition_runs_every_contender_in_a_rotated_order():
    ran = []

    def contender(name, seconds):
        return timing.Contender(lambda: ran.append(name) or next(seconds), per_token=4)

    names = {"a": 1.0, "b": 2.0, "c": 4.0}
    contenders = {name: contender(name, itertools.count(start, 4)) for name, start in names.items()}
    times = timing.interleave(contenders, 3, warmups=1, pause=0)
    assert "".join(ran) == "cab" + "abc" + "bca" + "cab"
    assert times.seconds["a"] == [5 / 4, 9 / 4, 13 / 4]  # the warm-up's 1 / 4 does not count
    assert times.fastest(["b", "c"]) == "b"
    ratios = sorted([8 / 5, 12 / 9, 16 / 13])
    assert times.ratio("c", "a").median == pytest.approx(ratios[1])


def test_quartiles():
    spread = timing.Spread.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (spread.low, spread.median, spread.high) == (2, 3, 4)
    assert spread.scaled(10) == {"median": 30, "quartiles": [20, 40]}
    assert timing.Spread.of([7.0]) == timing.Spread(7, 7, 7)


PROGRAM = """\
HloModule jit_f, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias), \
{1}: (1, {}, must-alias) }

%fused (p: f32[1,3,8,4]) -> f32[1,3,8,4] {
  %p = f32[1,3,8,4]{3,2,1,0} parameter(0)
  ROOT %copy.9 = f32[1,3,8,4]{3,1,2,0} copy(%p)
}

%inner (q: (s32[], f32[8])) -> (s32[], f32[8]) {
  %q = (s32[], f32[8]) parameter(0)
  %x = f32[8]{0} get-tuple-element(%q), index=1
  %y = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %r = (s32[], f32[8]) tuple(%z, %y)
}

%test (q: (s32[], f32[8])) -> pred[] {
  %q = (s32[], f32[8]) parameter(0)
  ROOT %c = pred[] compare(%a, %b), direction=LT
}

ENTRY %main (a: f32[1,3,8,4], b: f32[8]) -> f32[8] {
  %a = f32[1,3,8,4]{3,2,1,0} parameter(0)
  %b = f32[8]{0} parameter(1)
  %k = f32[] constant(1)
  %d = f32[8]{0} dot(%a, %b), lhs_contracting_dims={1}
  %s = (f32[1,3,8,4]{3,2,1,0:S(1)}, f32[1,3,8,4]{3,2,1,0}, u32[]) copy-start(%a)
  %e = f32[1,3,8,4]{3,2,1,0:S(1)} copy-done(%s)
  %f = f32[1,3,8,4]{3,2,1,0} fusion(%e), kind=kLoop, calls=%fused
  %w = (s32[], f32[8]) while(%t), condition=%test, body=%inner
  ROOT %g = f32[8]{0} bitcast(%d)
}
"""


def test_device_operations_of_a_program():
    counted = operations.device_operations(PROGRAM)
    assert counted == {"dot": 1, "copy-start": 1, "fusion": 2, "compare": 1}
    assert operations.copies_of(PROGRAM, (1, 3, 8, 4)) == 2
    assert operations.copies_of(PROGRAM, (1, 3, 8)) == 0
    assert operations.aliased_outputs(PROGRAM) == 2
    with pytest.raises(ValueError, match="no entry computation"):
        operations.device_operations("HloModule nothing")


def test_device_operations_of_a_real_program():
    def chain(x, n):
        for _ in range(n):
            x = jnp.sin(x @ x)
        return x

    def count(n):
        program = jax.jit(chain, static_argnums=1).lower(jnp.ones((64, 64)), n).compile()
        return operations.device_operations(program.as_text()).total()

    assert count(6) - count(3) == count(9) - count(6) >= 3


def test_streaming_touches_every_byte():
    leaves = [jnp.arange(7, dtype=jnp.float32), jnp.zeros((3, 1 << 20)), jnp.ones((2, 3), jnp.int8)]
    parts = streaming.pieces(leaves)
    assert sum(part.nbytes for part in parts) == sum(leaf.nbytes for leaf in leaves)
    assert max(part.nbytes for part in parts) <= streaming.PIECE
    assert b"".join(part.tobytes() for part in parts) == b"".join(
        np.asarray(leaf).tobytes() for leaf in leaves
    )
    assert np.shares_memory(parts[0], np.asarray(leaves[0]))
    read = []
    with ThreadPoolExecutor(2) as executor:
        streaming.threaded(lambda part: read.append(part.nbytes), parts, executor)()
    assert sorted(read) == sorted(part.nbytes for part in parts)


@pytest.fixture(scope="module")
def scene(tiny):
    return subjects.Scene.open(tiny, tuple(range(3, 43)), 128)


@pytest.fixture(scope="module")
def small_round(scene):
    return scene.lookahead(round_cost.EIGHT_ROWS)


def test_what_is_timed_is_the_generation(scene, small_round, tiny):
    """The states come from the middle of the text that `generate` writes."""
    prompt = tuple(range(3, 43))
    golden = autoregressive.generate(tiny, prompt, max_new_tokens=128, stop_tokens=()).tokens
    for call in (small_round, scene.ordinary()):
        before = call.args[0]
        after = call.result()
        written = [int(state.sequences.length[0]) - len(prompt) for state in (before, after)]
        assert subjects.ROUNDS_BEFORE <= written[0] < written[1] <= 128
        tokens = after.sequences.tokens[0, len(prompt) : len(prompt) + written[1]]
        assert tokens.tolist() == list(golden[: written[1]])
        # Timing leaves the arguments as they were, donated or not.
        assert call.seconds() > 0
        assert int(call.args[0].sequences.length[0]) == len(prompt) + written[0]
    many = scene.generation(32).result()
    assert many.sequences.tokens[0, 40:72].tolist() == list(golden[:32])
    assert int(many.sequences.length[0]) == 72


def test_the_bare_forward_pass_decides_what_the_round_publishes(scene, small_round):
    config, state = round_cost.EIGHT_ROWS, small_round.args[0]
    logits, block = scene.forward(config, state).result()
    assert logits.shape == (1, config.num_logit_rows, 128)
    assert block.keys[0].shape[2] == config.num_rows
    length = int(state.sequences.length[0])
    assert int(jnp.argmax(logits[0, 0])) == int(small_round.result().sequences.tokens[0, length])


@pytest.fixture(scope="module")
def record(tiny):
    return round_cost.measure(tiny, repeats=2)


def test_the_record_is_complete(record):
    assert json.loads(json.dumps(record)) == record
    figures, times = record["figures"], record["milliseconds"]
    assert set(round_cost.AT_MOST) < set(figures)
    streams = {name for name in times if name.startswith("stream: ")}
    assert len(streams) == 5
    for name in ("round_over_forward", "step_over_stream", "q8_over_step", "q16_over_step"):
        check_spread(figures[name])
        assert {figures[name]["over"], figures[name]["under"]} < set(times)
        assert figures[name]["at_most"] == round_cost.AT_MOST[name]
    check_spread(figures["decoding_over_stream"])
    assert figures["decoding_over_stream"]["at_most"] is None
    for spread in times.values():
        check_spread(spread)
    assert figures["step_over_stream"]["under"] == min(streams, key=lambda n: times[n]["median"])
    assert {"repeats", "capacity", "cpu", "cores", "dtype", "versions"} < set(record["conditions"])
    assert round_cost.table(record).row_count > len(figures)


def check_spread(spread):
    low, high = spread["quartiles"]
    assert 0 < low <= spread["median"] <= high < math.inf


def test_the_record_reads_the_programs(record):
    counted = record["figures"]["device_operations"]["cpu"]
    assert counted["added"] == counted["round"] - counted["forward"]
    assert 0 < counted["added"] < 150
    assert sum(counted["round_by_opcode"].values()) == counted["round"]
    copies = record["figures"]["cache_copies"]
    assert copies["copies"] == 0
    assert copies["buffers"] == 4
    assert copies["aliased_outputs"] == copies["state_leaves"]


def test_without_torch_the_comparison_says_why(record, tiny, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )
    assert rivals.why_not(tiny) == "torch is not installed (extra: bench)"
    figure = record["figures"]["step_over_transformers"]
    if find_spec("torch") is None:
        assert figure["median"] is None
        assert figure["reason"] == rivals.why_not(tiny)
    else:
        check_spread(figure)
        assert figure["identical"]


def test_the_program_prints_one_json_object(monkeypatch, capsys, record, tiny):
    monkeypatch.setattr(round_cost, "measure", lambda lm, **options: json.loads(json.dumps(record)))
    round_cost.main(model=str(trace_files.TINY_MODEL), repeats=1, as_json=True)
    written = json.loads(capsys.readouterr().out)
    memory = written["figures"].pop("loading_memory")
    assert written == record
    weights = written["conditions"]["weights_bytes"]
    assert memory["weights_bytes"] == weights == sum(x.nbytes for x in jax.tree.leaves(tiny.params))
    assert weights < memory["peak_bytes"] <= memory["at_most_bytes"]
    assert memory["peak_bytes"] >= memory["before_bytes"]
