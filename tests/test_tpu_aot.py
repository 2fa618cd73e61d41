"""The generation loop compiled for real TPUs, ahead of time, and read.

What is checked is the program that a TPU would run: that attention is the Pallas kernel, that the
state is donated and the cache updated in place, that no round copies the cache or talks to the
host, that the head computes the rows of contract 4 and no others, and that a round moves little
more than what it must read.

Whole models take long to compile, so these have few layers. What a layer takes is the difference
between programs of two layers and of one, and what the model takes follows from it. `-s` prints
these figures.
"""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import pytest
from tpu_programs import (
    DEMO,
    LLAMA_1B,
    LLAMA_8B,
    V5E,
    V5P,
    V6E,
    Compiled,
    cache_transfers,
    check_cache_in_place,
    check_donated,
    check_kernel,
    check_logit_rows,
    check_no_host,
    compile_loop,
    shallow,
)

from lookahead_jax import Sample
from lookahead_jax.attention import Dense, PallasTPU
from lookahead_jax.models.decoder import DecoderForward, abstract_params

pytest.importorskip("libtpu", reason="needs the extra tpu-aot: libtpu compiles for TPUs")

CHIPS = {"v5e": V5E, "v5p": V5P, "v6e": V6E}
MODELS = {"1b": LLAMA_1B, "8b": LLAMA_8B}
SMALL = dataclasses.replace(shallow(LLAMA_1B, 2), vocab_size=32000)


def check_round(program: Compiled) -> None:
    check_kernel(program)
    check_donated(program)
    check_cache_in_place(program)
    check_no_host(program)
    check_logit_rows(program)


def layer_needs(program: Compiled) -> int:
    """Bytes of a layer's weights and of its keys and values at full capacity."""
    weights = abstract_params(program.model, program.dtype)["layers_0"]
    buffer = program.state.cache.keys[0]
    arrays = [*jax.tree.leaves(weights), buffer, buffer]
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("chip", CHIPS)
def test_a_round_runs_the_kernel_in_place_and_moves_little_more_than_it_must(chip, model):
    """One test for each pair of programs, so that no two workers compile the same."""
    whole, hbm_bytes = MODELS[model], CHIPS[chip].hbm_bytes
    one, two = (
        compile_loop(shallow(whole, depth), "bfloat16", chip=CHIPS[chip]) for depth in (1, 2)
    )
    check_round(two)

    moved, needed = two.round_bytes - one.round_bytes, layer_needs(one)
    by_xla = (two.counted_by_xla - one.counted_by_xla) / needed
    used = one.used_bytes + (whole.num_hidden_layers - 1) * (two.used_bytes - one.used_bytes)
    print(
        f"{model} on {chip}: a layer moves {moved / 1e6:.1f} MB of {needed / 1e6:.1f} MB, "
        f"{moved / needed:.3f} (XLA, which counts on-chip transfers too: {by_xla:.2f}); "
        f"the model takes {used / 1e9:.2f} of {hbm_bytes / 1e9:.0f} GB"
    )
    assert 0.99 * needed < moved < 1.15 * needed
    assert (used < hbm_bytes) == ((chip, model) != ("v5e", "8b"))


@pytest.mark.slow
def test_float32_is_in_place_too():
    check_round(compile_loop(shallow(DEMO, 4), "float32"))


def test_a_sampled_batch_is_written_in_place_too_and_sorts_nothing():
    """Filters and walk included: all of it stays on the chip, and no vocabulary is sorted."""
    sampling = Sample(temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)
    batch = compile_loop(SMALL, "bfloat16", batch_size=4, sampling=sampling)
    check_kernel(batch)
    check_donated(batch)
    assert cache_transfers(batch) == []
    check_no_host(batch)
    check_logit_rows(batch)
    assert not [i for i in batch.hlo.reached(batch.body) if i.opcode == "sort"]


def wide_matrices(program: Compiled) -> list[str]:
    """Arrays outside of fusions that have the shape of a weight and are no longer int8."""
    shapes = {x.shape for x in jax.tree.leaves(abstract_params(program.model, program.dtype))}
    matrices = "|".join(",".join(map(str, shape)) for shape in shapes if len(shape) == 2)
    wide = re.compile(rf"(?:bf16|f32)\[(?:{matrices})\]")
    around = program.hlo.computations[program.hlo.entry] + program.hlo.computations[program.body]
    return [i.name for i in around if wide.match(i.shape)]


def test_int8_weights_are_read_as_they_are():
    """Into on-chip memory, at half of bfloat16's bytes; widened only inside of a product."""
    model = dataclasses.replace(SMALL, int8=True)
    int8 = compile_loop(model, "bfloat16")
    assert wide_matrices(int8) == []
    check_donated(int8)
    params = int8.memory.argument_size_in_bytes - int8.memory.alias_size_in_bytes
    weights = jax.tree.leaves(abstract_params(model, "bfloat16"))
    assert params < 1.01 * sum(math.prod(x.shape) * x.dtype.itemsize for x in weights)


@dataclasses.dataclass(frozen=True)
class AllRows:
    """A planted fault: the head computes every packed row, of which the wanted ones are taken."""

    inner: DecoderForward

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        every = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        logits, block = self.inner(params, tokens, positions, block_mask, cache, every)
        # A gather at indices known only at run time, which XLA cannot push through the product.
        return jnp.take_along_axis(logits, logit_rows[:, :, None], axis=1), block


@dataclasses.dataclass(frozen=True)
class Staged(PallasTPU):
    """A planted fault: XLA may move a whole cache buffer on chip for the kernel to read."""

    def _in_memory(self, cached):
        return cached


def test_the_checks_fail_on_programs_that_break_the_contracts():
    kept = compile_loop(SMALL, "bfloat16", donate=False, forward=DecoderForward(SMALL, Dense()))
    with pytest.raises(AssertionError):
        check_donated(kept)
    with pytest.raises(AssertionError, match="without the kernel"):
        check_kernel(kept)
    assert wide_matrices(kept)
    faulty = AllRows(DecoderForward(SMALL, Staged()))
    every_row = compile_loop(SMALL, "bfloat16", forward=faulty)
    with pytest.raises(AssertionError, match="logits are computed for"):
        check_logit_rows(every_row)
    with pytest.raises(AssertionError, match="cache-sized copy"):
        check_cache_in_place(every_row)
