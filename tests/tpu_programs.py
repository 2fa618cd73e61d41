"""The generation loop compiled for real TPUs, ahead of time: programs, and checks that read them.

libtpu compiles for a TPU on a machine that has none. On-chip memory (VMEM) is memory space 1 in a
program's text, marked `S(1)`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hlo import Hlo, Instruction
from hlo_traffic import traffic

from lookahead_jax import Greedy, LookaheadConfig
from lookahead_jax.generation import Lookahead
from lookahead_jax.models.config import DecoderConfig, llama_config
from lookahead_jax.models.decoder import DecoderForward, abstract_params, cache_spec
from lookahead_jax.programs import Program, Requests
from lookahead_jax.sampling import Policy, Sampling

CAPACITY = 2048
CONFIG = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)
DEMO = llama_config(49152, 576, 1536, 30, 9, 3, 64, 1e-5, 1e5, tie_word_embeddings=True)
LLAMA_1B = llama_config(128256, 2048, 8192, 16, 32, 8, 64, 1e-5, 5e5, tie_word_embeddings=True)
LLAMA_8B = llama_config(128256, 4096, 14336, 32, 32, 8, 128, 1e-5, 5e5)


@dataclasses.dataclass(frozen=True)
class Chip:
    """A TPU, by the smallest slice that has it."""

    topology: str
    hbm_bytes: float
    """Of one chip, as the vendor states it."""

    @property
    def sharding(self):
        return _first_device(self.topology)


V5E = Chip("v5e:2x2", 16e9)
V5P = Chip("v5p:2x2x1", 95e9)
V6E = Chip("v6e:2x2", 32e9)


@functools.cache
def _first_device(topology: str):
    from jax.experimental import topologies

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")
        # Several processes may compile at once; only a real chip has one owner.
        patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        described = topologies.get_topology_desc(platform="tpu", topology_name=topology)
    return jax.sharding.SingleDeviceSharding(described.devices[0])


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A loop compiled for a chip, and what it was compiled from."""

    hlo: Hlo
    memory: Any
    state: Any
    model: DecoderConfig
    dtype: str
    counted_by_xla: float
    """`cost_analysis()["bytes accessed"]`."""

    @property
    def body(self) -> str:
        (body,) = self.hlo.loop_bodies()
        return body

    @functools.cached_property
    def round_bytes(self) -> int:
        """What a round moves between memory and chip (hlo_traffic.py)."""
        return traffic(self.hlo, self.body)

    @property
    def used_bytes(self) -> int:
        """Of the chip's memory, while it runs."""
        memory = self.memory
        moving = memory.output_size_in_bytes - memory.alias_size_in_bytes
        return memory.argument_size_in_bytes + memory.temp_size_in_bytes + moving


def shallow(model: DecoderConfig, depth: int) -> DecoderConfig:
    return dataclasses.replace(model, layers=model.layers[:depth])


def compile_loop(
    model,
    dtype,
    *,
    chip=V5E,
    forward=None,
    donate=True,
    batch_size=1,
    sampling: Sampling = Greedy(),  # noqa: B008
) -> Compiled:
    def on_chip(tree):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip.sharding), tree
        )

    program = Program(
        Lookahead(CONFIG, Policy(sampling)),
        forward or DecoderForward(model),
        cache_spec(model, dtype),
        model.vocab_size,
        CAPACITY,
    )
    params = abstract_params(model, dtype)
    row = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
    prompt = jax.ShapeDtypeStruct((batch_size, 64), jnp.int32)
    stops = jax.ShapeDtypeStruct((batch_size, 1), jnp.int32)
    key = jax.ShapeDtypeStruct((batch_size, 2), jnp.uint32)
    requests = Requests(prompt, row, row, stops, key)
    state = jax.eval_shape(program.start, requests, params)
    limit = jax.ShapeDtypeStruct((), jnp.int32)
    watched = jax.ShapeDtypeStruct((batch_size,), jnp.bool_)
    compiled = (
        jax.jit(program.advance, donate_argnums=(0,) if donate else ())
        .lower(*map(on_chip, (state, params, limit, watched)))
        .compile()
    )
    hlo = Hlo.parse(compiled.as_text())
    counted = compiled.cost_analysis()["bytes accessed"]
    return Compiled(hlo, compiled.memory_analysis(), state, model, dtype, counted)


def check_donated(program: Compiled) -> None:
    """Every buffer of the state comes out where it went in."""
    state_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(program.state))
    assert program.memory.alias_size_in_bytes >= state_bytes
    # What is left is padding and the tuple's table of pointers.
    assert program.memory.output_size_in_bytes - program.memory.alias_size_in_bytes < 4096


def cache_transfers(program: Compiled) -> list[Instruction]:
    """Cache-sized copies in a round, those into on-chip memory included."""
    buffer = _buffer_pattern(program)
    return [
        i
        for i in program.hlo.reached(program.body)
        if (i.opcode == "copy-start" and re.search(buffer, i.shape))
        or (i.opcode in ("copy", "transpose", "convert") and re.match(buffer, i.shape))
    ]


def _buffer_pattern(program: Compiled) -> str:
    """The shape of a cache buffer, or of one with positions along the lanes."""
    element = {"float32": "f32", "bfloat16": "bf16"}[program.dtype]
    *front, capacity, head_dim = program.state.cache.keys[0].shape
    shapes = (*front, capacity, head_dim), (*front, head_dim, capacity)
    return "|".join(re.escape(f"{element}[{','.join(map(str, shape))}]") for shape in shapes)


def check_cache_in_place(program: Compiled) -> None:
    """A round writes its rows once, and copies no buffer, not even onto the chip."""
    shape = ",".join(map(str, program.state.cache.keys[0].shape))
    writes = [
        i
        for i in program.hlo.reached(program.body)
        if i.opcode == "dynamic-update-slice" and f"[{shape}]" in i.shape
    ]
    assert len(writes) == 2 * program.model.num_hidden_layers
    assert cache_transfers(program) == [], "a cache-sized copy in the round"


def check_kernel(program: Compiled) -> None:
    """The Pallas kernel computes attention in every layer, and no choice is left to run time."""
    reached = program.hlo.reached(program.body)
    kernels = [i for i in reached if i.opcode == "custom-call" and "tpu_custom_call" in i.rest]
    assert len(kernels) == program.model.num_hidden_layers, "layers without the kernel"
    assert "conditional" not in {i.opcode for i in reached}


def check_no_host(program: Compiled) -> None:
    """Nothing in the loop reaches the host or waits for it."""
    for i in program.hlo.reached(program.body):
        assert i.opcode not in ("infeed", "outfeed", "send", "recv", "send-done", "recv-done"), i
        # S(5) is host memory.
        assert "S(5)" not in i.shape, i
        assert not (i.opcode == "custom-call" and re.search("[Hh]ost|callback", i.rest)), i


def vocabulary_rows(program: Compiled) -> list[Instruction]:
    """The float arrays of a round with the vocabulary as a dimension, the weights apart."""
    vocab, hidden = program.model.vocab_size, program.model.hidden_size
    found = []
    for i in program.hlo.reached(program.body):
        for dims in re.findall(r"(?:f32|bf16)\[([\d,]+)\]", i.shape):
            sizes = [int(d) for d in dims.split(",")]
            if vocab in sizes and hidden not in sizes:
                found.append((math.prod(sizes) // vocab, i))
    return found


def check_logit_rows(program: Compiled) -> None:
    """The head computes 1 + W + G * S rows (contract 4), once."""
    rows = {count for count, _ in vocabulary_rows(program)}
    expected = program.state.rounds.shape[0] * CONFIG.num_logit_rows
    assert max(rows) == expected, f"logits are computed for {rows} rows"
