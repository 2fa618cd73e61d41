"""Every implementation of attention against a plain softmax over both segments, in float64."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from attention_cases import SHAPES, plain, random_case

from lookahead_jax import LookaheadError
from lookahead_jax.attention import (
    Dense,
    PallasGPU,
    PallasTPU,
    Shapes,
    Split,
    attend,
    default,
)

IMPLEMENTATIONS = {
    "dense": Dense(),
    "split": Split(64),
    "split, small": Split(3),
    "tpu": PallasTPU(block_size=128, interpret=True),
    "gpu": PallasGPU(block_size=16, interpret=True),
}
LENGTHS, CAPACITY = (0, 1, 65, 100, 128), 128


@functools.cache
def jitted(implementation, scale, window, softcap):
    return jax.jit(
        functools.partial(
            attend, scale=scale, window=window, softcap=softcap, implementation=implementation
        )
    )


def run(name, case):
    result = jitted(IMPLEMENTATIONS[name], **case.options)(**case.arrays)
    assert result.shape == case.arrays["queries"].shape
    assert result.dtype == case.arrays["queries"].dtype
    return np.asarray(result, np.float32)


every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


@every_implementation
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_a_plain_softmax(name, shape):
    case = random_case(1, **SHAPES[shape])
    np.testing.assert_allclose(run(name, case), plain(case), atol=2e-6)


@every_implementation
def test_large_scores_do_not_overflow(name):
    case = random_case(3, lengths=LENGTHS, capacity=CAPACITY, big=40.0)
    actual = run(name, case)
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual, plain(case), rtol=1e-4, atol=1e-3)


@every_implementation
def test_leftovers_behind_the_prefix_do_not_matter(name):
    """Dense needs finite ones: a model's keys are finite, or its logits have failed already."""
    case = random_case(4, lengths=LENGTHS, capacity=CAPACITY)
    clean = run(name, case)
    strange = [] if name == "dense" else [np.nan, np.inf]
    for leftover in (1e4, -1e30, 3e38, *strange):
        np.testing.assert_array_equal(run(name, case.with_leftovers(leftover)), clean)


@every_implementation
def test_rows_that_are_not_seen_do_not_matter(name):
    case = random_case(5, lengths=LENGTHS, capacity=CAPACITY)
    clean = run(name, case)
    case.arrays["block_mask"][:, :, 2] = False
    case.arrays["block_mask"][:, 2, 2] = True
    isolated = run(name, case)
    for array in ("block_keys", "block_values"):
        case.arrays[array][:, :, 2] = 1e6
    others = [0, 1, 3, 4]
    np.testing.assert_array_equal(run(name, case)[:, :, :, others], isolated[:, :, :, others])
    assert not np.allclose(isolated[:, :, :, others], clean[:, :, :, others])


@every_implementation
def test_bfloat16_is_summed_in_float32(name):
    """Weights are rounded to bfloat16 for the product with the values, and so is the result."""
    case = random_case(6, lengths=(120, 3), capacity=128, head_dim=8).cast(ml_dtypes.bfloat16)
    np.testing.assert_allclose(run(name, case), plain(case), atol=0.02)


@pytest.mark.parametrize("name", ["dense", "split", "tpu", "gpu"])
def test_vmap_is_a_larger_batch(name):
    cases = [random_case(seed, lengths=(40, 200), capacity=200, head_dim=8) for seed in range(3)]
    stacked = {n: np.stack([case.arrays[n] for case in cases]) for n in cases[0].arrays}
    stacked["block_mask"] = cases[0].arrays["block_mask"]  # not every argument need be mapped
    for case in cases:
        case.arrays["block_mask"] = stacked["block_mask"]
    axes = {n: None if n == "block_mask" else 0 for n in stacked}
    call = functools.partial(attend, scale=0.5, implementation=IMPLEMENTATIONS[name])
    mapped = jax.jit(jax.vmap(lambda arrays: call(**arrays), in_axes=(axes,)))(stacked)
    expected = np.stack([plain(case) for case in cases])
    np.testing.assert_allclose(np.asarray(mapped), expected, atol=2e-6)


@pytest.mark.parametrize("implementation", [None, Dense()])
def test_inside_of_shard_map_types_are_right(implementation):
    """The kernels are traced, too; interpreted, they fail there in JAX's own interpreter."""
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    case = random_case(2, lengths=(40, 200), capacity=200, head_dim=8)
    batch = jax.sharding.PartitionSpec("data")
    call = functools.partial(attend, scale=0.5, implementation=implementation)
    mapped = jax.shard_map(
        lambda arrays: call(**arrays), mesh=mesh, in_specs=batch, out_specs=batch
    )
    np.testing.assert_allclose(np.asarray(jax.jit(mapped)(case.arrays)), plain(case), atol=2e-6)


def test_dense_can_be_differentiated():
    case = random_case(8, lengths=(3, 0))
    arrays = dict(case.arrays)
    queries = arrays.pop("queries")
    call = functools.partial(attend, scale=0.5, implementation=Dense(), **arrays)
    gradient = np.asarray(jax.grad(lambda q: jnp.sum(call(q)[..., 0]))(queries))
    step = np.float32(1e-2) * np.sign(gradient)
    moved = np.asarray(call(queries + step) - call(queries - step))[..., 0].sum() / 2
    np.testing.assert_allclose(moved, np.sum(gradient * step), rtol=1e-2)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("options", [{}, {"window": 9, "softcap": 5.0}])
def test_the_gpu_kernel_can_be_written_in_tritons_language(dtype, options):
    case = random_case(0, lengths=(5,), capacity=192, head_dim=64, **options).cast(dtype)
    traced = jitted(PallasGPU(), **case.options).trace(**case.arrays)
    assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_the_platform_that_is_compiled_for_chooses():
    case = random_case(0, lengths=(5,), capacity=192, head_dim=64)
    traced = jitted(None, **case.options).trace(**case.arrays)
    cpu = traced.lower(lowering_platforms=("cpu",))
    assert "tpu_custom_call" not in cpu.as_text()
    assert "conditional" not in cpu.compile().as_text()
    tpu = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert tpu.count("@tpu_custom_call") == 1


def shapes_of(case, **changed):
    names = ("queries", "cached_keys", "block_keys")
    return dataclasses.replace(Shapes.of(*(case.arrays[name] for name in names)), **changed)


def test_defaults():
    case = random_case(0, head_dim=64)
    assert default("cpu", shapes_of(case)) == Split(64)
    assert default("tpu", shapes_of(case)) == PallasTPU()
    assert default("tpu", shapes_of(case, dtypes=("float16",) * 3)) == Split(512)
    assert default("tpu", shapes_of(case, num_rows=300)) == Split(512)
    assert default("cuda", shapes_of(case)) == Split(512)


MIXED = ("float32", "bfloat16", "float32")
REFUSED = {
    "tpu elsewhere": (PallasTPU(), {}, "expected a TPU, got cpu"),
    "tpu, dtypes": (PallasTPU(interpret=True), {"dtypes": MIXED}, "float32, bfloat16, float32"),
    "tpu, rows": (PallasTPU(interpret=True), {"num_rows": 257}, "at most 256 rows"),
    "tpu, block": (PallasTPU(100, interpret=True), {}, "a multiple of 128, got 100"),
    "gpu elsewhere": (PallasGPU(), {}, "expected a CUDA GPU, got cpu"),
    "gpu, dtypes": (PallasGPU(interpret=True), {"dtypes": MIXED}, "float32, bfloat16, float32"),
    "gpu, rows": (PallasGPU(interpret=True), {"num_rows": 257}, "at most 256 rows"),
    "gpu, block": (PallasGPU(24, interpret=True), {}, "a power of two, at least 16, got 24"),
    "gpu, shares": (PallasGPU(shares=0, interpret=True), {}, "at least 1, got 0"),
    "split, block": (Split(0), {}, "at least 1, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_choice_that_cannot_run_says_why(name):
    implementation, changed, message = REFUSED[name]
    reason = implementation.why_not("cpu", shapes_of(random_case(0), **changed))
    assert message in reason
    assert "\n" not in reason


def test_features_that_a_kernel_cannot_take():
    case = shapes_of(random_case(0), head_dim=20)
    assert "a multiple of 8, got 20" in PallasTPU().why_not("tpu", case)
    assert "a power of two, at least 16, got 20" in PallasGPU().why_not("cuda", case)


@pytest.mark.parametrize("implementation", [PallasTPU(), PallasGPU(), Split(0)])
def test_a_refused_choice_is_one_line_when_it_is_compiled(implementation):
    case = random_case(0)
    with pytest.raises(LookaheadError) as refused:
        attend(**case.arrays, scale=0.5, implementation=implementation)
    assert str(refused.value).startswith(f"{implementation} cannot run: expected")
    assert "\n" not in str(refused.value)


def test_a_window_needs_positions():
    case = random_case(0)
    del case.arrays["positions"]
    with pytest.raises(ValueError, match="positions"):
        attend(**case.arrays, scale=0.5, window=3)
