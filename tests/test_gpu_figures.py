"""What the check for GPUs makes of texts, programs, times and memory, seen on a CPU."""

import dataclasses
import types

import checkout
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lookahead_jax import Greedy, LookaheadConfig, autoregressive
from lookahead_jax.attention import Dense, Split
from lookahead_jax.autoregressive import Autoregressive
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Lookahead
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models.config import llama_config
from lookahead_jax.results import GenerationResult, GenerationStats
from lookahead_jax.sampling import Policy

exactness, memory, plans, products, rounds, tables = map(
    checkout.benchmark,
    ("gpu_exactness", "gpu_memory", "gpu_plan", "gpu_products", "gpu_rounds", "gpu_tables"),
)

SMALL = LookaheadConfig(2, 3, 2)
CONDITIONS = rounds.Conditions("float32", capacity=96, live=20, calls=2, repeats=2, pause=0.0)


@dataclasses.dataclass(frozen=True)
class OtherInRounds:
    """A planted fault: in blocks as wide as a round the first row prefers another token."""

    inner: object
    num_rows: int
    token: int
    from_position: int

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        logits, block = self.inner(params, tokens, positions, block_mask, cache, logit_rows)
        if tokens.shape[1] == self.num_rows:
            late = positions[:, 0] >= self.from_position
            best = jnp.max(logits[:, 0], axis=-1) + 1
            faulty = logits.at[:, 0, self.token].set(best)
            logits = jnp.where(late[:, None, None], faulty, logits)
        return logits, block


def compared(lm, case, prompts):
    (step,) = exactness.exactness_steps(lm, prompts, [case], 24)
    return step.run()


def test_a_text_that_differs_is_caught_with_its_position_and_gap(toy):
    (prompt, *_) = exactness.prompts_of(toy)
    assert prompt.golden is None
    case = exactness.Case(None, Greedy(), SMALL)
    fault = OtherInRounds(toy.forward, SMALL.num_rows, 1, len(prompt.tokens) + 5)
    record = compared(dataclasses.replace(toy, forward=fault), case, [prompt])
    (found,) = record["mismatches"]
    # The first row at that position or behind it decides the token behind it.
    assert (found["prompt"], found["lookahead"]) == (prompt.name, 1)
    assert 6 <= found["index"] < 6 + SMALL.ngram_size
    assert found["ordinary"] != 1
    assert found["gap"] == 1
    assert found["separate_pass_agrees_with"] == ["other"]
    assert exactness.verdict({"x": record}) == {"exact": False}
    part = {"exact": False, "steps": {case.name: record}}
    (table,) = tables.tables({"conditions": {"device": "d"}, "parts": {"p": part}})
    (cell,) = table.columns[3].cells
    assert f"token {found['index'] + 1}: lookahead 1, ordinary {found['ordinary']}, gap 1" in cell


def written(*tokens):
    stats = GenerationStats(len(tokens), 1.0, (), 0.5, 0.0, 2.0, 1.0)
    return GenerationResult(None, tokens, (1,), "length", stats)


def test_texts_that_part_at_once_or_at_the_end_are_mismatches():
    prompts = [exactness.Prompt(name, (1,)) for name in ("same", "first", "longer")]
    ours = [written(4, 5), written(9, 5), written(4, 5, 6)]
    theirs = [written(4, 5)] * 3
    record = exactness.compare(prompts, ours, theirs, lambda one, other, at: {"gap": at})
    assert record["identical"] == 1
    assert record["mismatches"] == [
        {"prompt": "first", "index": 0, "lookahead": 9, "ordinary": 4, "gap": 0},
        {"prompt": "longer", "index": 2, "lookahead": 6, "ordinary": None, "gap": 2},
    ]
    assert (record["tokens"], record["model_calls"], record["compile_seconds"]) == (7, 7, 3)


def test_golden_texts_are_compared_too(toy):
    (prompt, *_) = exactness.prompts_of(toy)
    case = exactness.Case(None, Greedy(), SMALL)
    text = autoregressive.generate(toy, prompt.tokens, max_new_tokens=24, stop_tokens=()).tokens
    other = (text[9] + 1) % toy.vocab_size
    prompts = [
        dataclasses.replace(prompt, name="right", golden=text[:12]),
        dataclasses.replace(prompt, name="wrong", golden=(*text[:9], other, *text[10:])),
    ]
    record = compared(toy, case, prompts)
    assert record["identical"] == record["texts"] == 2
    assert record["tokens"] == 48
    assert record["tokens_per_call"] > 1
    (found,) = record["golden"]["mismatches"]
    assert (found["prompt"], found["index"]) == ("wrong", 9)
    assert (found["golden"], found["ordinary"]) == (other, text[9])
    assert found["gap"] == 1
    assert exactness.verdict({"x": record}) == {"exact": False}
    assert exactness.verdict({}) == {"exact": None}


def test_the_demo_model_has_golden_prompts_that_share_a_program():
    lm = types.SimpleNamespace(name="smollm2-135m")
    prompts = exactness.prompts_of(lm)
    assert len(prompts) == 6
    tokens = plans.Plan().max_new_tokens
    assert all(len(p.golden) >= tokens for p in prompts)
    lengths = [len(p.tokens) for p in prompts]
    assert 32 < min(lengths) <= max(lengths) <= 64
    assert 64 < min(lengths) + tokens < max(lengths) + tokens + 4 <= 128


def test_attention_that_cannot_be_chosen_says_so(toy):
    with pytest.raises(LookaheadError, match="toy does not let its attention be chosen"):
        exactness.with_attention(toy, Dense())


def lowered_for_cuda(function, *args):
    return jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_every_float32_product_of_a_gpu_program_asks_for_float32(tiny):
    row, mask = jnp.zeros((1, 8), jnp.int32), jnp.ones((1, 8, 8), bool)
    args = (tiny.params, row, row, mask, init_cache(tiny.cache_spec, 1, 1024), row)
    counted = products.products(lowered_for_cuda(tiny.forward, *args))
    # Seven matrices a layer and the head; attention's are inside of functions that layers share.
    assert counted["f32 f32 HIGHEST"] >= 2 * 7 + 1 + 4
    assert products.rounded(counted) == []

    def default(x, y):
        return jnp.dot(x, y), jnp.dot(x.astype(jnp.bfloat16), y.astype(jnp.bfloat16))

    counted = products.products(lowered_for_cuda(default, jnp.ones((4, 4)), jnp.ones((4, 4))))
    assert counted == {"f32 f32 DEFAULT": 1, "bf16 bf16 DEFAULT": 1}
    assert products.rounded(counted) == ["f32 f32 DEFAULT"]


def test_the_precision_of_a_product_is_measured(tiny):
    def as_tf32(x, y):
        def cut(z):  # to the 10 bits of mantissa that TF32 keeps, rounded
            bits = jax.lax.bitcast_convert_type(z, jnp.uint32) + np.uint32(1 << 12)
            return jax.lax.bitcast_convert_type(bits & np.uint32(0xFFFFE000), jnp.float32)

        return jnp.dot(cut(x), cut(y))

    assert products.product_error() < 1e-6
    assert products.TF32_ERROR < products.product_error(as_tf32) < 1e-3
    record = exactness.precision(tiny)
    assert record["float32_is_float32"]
    rounded = record | {"float32_is_float32": False}
    text = {"mismatches": []}
    assert exactness.verdict({"p": record, "x": text}) == {"exact": True}
    assert exactness.verdict({"p": rounded, "x": text}) == {"exact": False}


def test_rows_are_interpolated_between_points():
    points = [(56, 1.2), (16, 1.0), (120, 2.2), (8, 0.9)]
    assert rounds.rows_at(points, 1.1) == pytest.approx(36)
    assert rounds.rows_at(points, 1.2) == pytest.approx(56)
    assert rounds.rows_at(points, 1.7) == pytest.approx(88)
    assert rounds.rows_at(points, 2.3) is None
    # Below the first point the line begins at one row, one step; the first crossing counts.
    assert rounds.rows_at([(5, 1.4), (9, 1.0), (13, 1.4)], 1.2) == pytest.approx(3)
    assert rounds.rows_at([], 1.1) is None
    steps = {
        str(q): {"rows": q, "ratio": {"median": r}, "attention": "default attention"}
        for q, r in points
    }
    steps["other"] = {"rows": 4, "ratio": {"median": 9.0}, "attention": "Dense()"}
    told = rounds.thresholds(steps | {"ordinary step": {"memory": {}}})
    assert told == {"rows_at_ratio": {"1.1": 36, "1.5": 75.2, "2.0": 107.2}, "most_rows": 120}
    assert rounds.thresholds({}) == {}


def test_made_up_weights_have_the_shapes_of_the_model(tiny):
    made = rounds.random_params(tiny.forward.config, "bfloat16")
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, tiny.params)
    assert {str(x.dtype) for x in jax.tree.leaves(made)} == {"bfloat16"}
    assert jnp.all(made["final_norm"]["scale"] == 1)
    one, other = (np.asarray(made[f"layers_{i}"]["mlp"]["up"]["weight"], float) for i in (0, 1))
    assert abs(one.std() - 0.02) < 0.001
    assert not np.array_equal(one, other)


class FakeMemory:
    """An allocator that counts what it is told, with the peak of an earlier program."""

    def __init__(self, peak, limit=1 << 40):
        self.held, self.peak, self.limit = 1000, peak, limit
        self.ballast = 0

    def allocate(self, size):
        self.held += size
        self.ballast = size
        self.peak = max(self.peak, self.held)
        return jnp.zeros(())

    def memory_stats(self):
        return {
            "bytes_in_use": self.held,
            "peak_bytes_in_use": self.peak,
            "bytes_limit": self.limit,
        }


def fake_call(device, needs):
    def program(x):
        device.peak = max(device.peak, device.held + needs)
        return x

    analysis = types.SimpleNamespace(
        argument_size_in_bytes=5000,
        temp_size_in_bytes=300,
        output_size_in_bytes=5100,
        alias_size_in_bytes=5000,
    )
    program.memory_analysis = lambda: analysis
    return types.SimpleNamespace(program=program, args=(jnp.zeros(3),), donate=(0,))


@pytest.mark.parametrize("peak", [1000, 1200, 90_000])
def test_a_programs_memory_is_measured_whatever_the_peak_was(peak):
    """Without the filling, a program below the peak of an earlier one would go unseen."""
    device = FakeMemory(peak)
    record = memory.memory_of(fake_call(device, 450), device, allocate=device.allocate)
    assert record["measured_bytes"] == 450
    assert record["predicted_bytes"] == 300 + 100
    assert record["argument_bytes"] == 5000
    assert record["in_use_bytes"] == 1000
    assert record["unseen_bytes"] == 0
    assert device.ballast == peak - 1000


def test_memory_that_cannot_be_measured_says_why():
    full = FakeMemory(90_000, limit=90_100)
    record = memory.memory_of(fake_call(full, 450), full, allocate=full.allocate)
    assert record["measured_bytes"] is None
    assert record["reason"] == "the peak so far, 90000 bytes, leaves no room to measure"
    assert full.ballast == 0

    def fail(size):
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {size} bytes\nand more")

    record = memory.memory_of(fake_call(full, 450), FakeMemory(1200), allocate=fail)
    assert record["measured_bytes"] is None
    assert record["reason"] == "RESOURCE_EXHAUSTED: 200 bytes"
    silent = types.SimpleNamespace(memory_stats=lambda: None)
    record = memory.memory_of(fake_call(full, 450), silent)
    assert record["reason"] == "the device does not count its memory"
    assert record["predicted_bytes"] == 400


def test_what_is_timed_is_the_loop_of_generate():
    shape = llama_config(48, 16, 16, 1, 2, 1, 8)
    model = rounds._Model.make(shape, CONDITIONS)
    step = model.call(Autoregressive(Policy(Greedy())), None)
    call = model.call(Lookahead(SMALL, Policy(Greedy())), Split(32))
    before, after = model.live_tokens(call)
    assert before == 20
    assert 22 <= after <= 20 + 2 * 3
    assert model.live_tokens(step) == [20, 22]
    # The same weights and text: both write the same, from a cache that is full of real numbers.
    texts = [np.asarray(c.result().sequences.tokens[0]) for c in (step, call)]
    assert texts[0][:22].tolist() == texts[1][:22].tolist()
    cache = step.args[0].cache
    assert int(cache.length[0]) == 19
    assert float(jnp.std(cache.keys[0])) > 0.9
    one = dataclasses.replace(step, args=(*step.args[:2], jnp.int32(1), step.args[3]))
    with pytest.raises(RuntimeError, match="expected 2 model calls, 1 were made"):
        model.live_tokens(one)
