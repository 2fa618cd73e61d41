"""Lookahead Parallelism compiled for TPU slices, ahead of time, and read: what crosses devices.

A round may exchange token ids and the winner's keys and values (parallel.py), and between the
devices of one copy of the model what tensor parallelism needs. Everything else would be a mistake
of ours or of XLA's partitioner, and shows here.
"""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from hlo import Hlo
from jax.sharding import NamedSharding, PartitionSpec

from lookahead_jax import Greedy, LookaheadConfig, make_mesh
from lookahead_jax.attention import HeadParallel
from lookahead_jax.generation import Lookahead
from lookahead_jax.models.config import llama_config
from lookahead_jax.models.decoder import DecoderForward, abstract_params, cache_spec
from lookahead_jax.programs import Program, Requests
from lookahead_jax.sampling import Policy
from lookahead_jax.sharding import LOOKAHEAD, shardings
from lookahead_jax.shards import build_shards

pytest.importorskip("libtpu", reason="needs the extra tpu-aot: libtpu compiles for TPUs")

LAYERS = 2
MODEL = llama_config(32000, 2048, 8192, LAYERS, 32, 8, 64, 1e-5, 5e5, tie_word_embeddings=True)
"""The layers of Llama 3.2 1B, two of them; what a round exchanges is the same sum over layers."""
CONFIG = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)
CROSSING = re.compile(r"(all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)")
ELEMENT_BYTES = {"s32": 4, "u32": 4, "f32": 4, "bf16": 2, "pred": 1}


@dataclasses.dataclass(frozen=True)
class Crossing:
    """One collective operation of a round."""

    opcode: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  # element type and shape of each result
    groups: frozenset[frozenset[int]]
    scope: str

    @property
    def size(self) -> int:
        """Bytes of its results."""
        return sum(ELEMENT_BYTES[kind] * math.prod(shape) for kind, shape in self.arrays)


def groups_of(text):
    """Devices that exchange with each other, from either way of writing them."""
    if listed := re.search(r"replica_groups=\{(\{[\d,{}]*\})\}", text):
        parts = re.findall(r"\{([\d,]+)\}", listed[1])
        return frozenset(frozenset(map(int, part.split(","))) for part in parts)
    count, size, total = map(
        int, re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[(\d+)\]", text).groups()
    )
    assert count * size == total
    return frozenset(frozenset(range(i * size, (i + 1) * size)) for i in range(count))


def crossings(hlo: Hlo) -> list[Crossing]:
    """The collective operations of a round."""
    (body,) = hlo.loop_bodies()
    return [
        Crossing(
            CROSSING.match(i.opcode)[1],
            tuple(
                (kind, tuple(int(d) for d in dims.split(",") if d))
                for kind, dims in re.findall(r"\b([a-z]+\d+)\[([\d,]*)\]", i.shape)
            ),
            groups_of(i.rest),
            re.search(r'op_name="([^"]*)"', i.rest)[1],
        )
        for i in hlo.reached(body)
        if CROSSING.match(i.opcode) and not i.opcode.endswith("-done")
    ]


def compile_round(topology, lookahead, model=1, kv_exchange="broadcast", forward=None):
    """The rounds of one sequence on a slice; and the state that they take."""
    from jax.experimental import topologies

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPU_SKIP_MDS_QUERY", "1")
        patch.setenv("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    mesh = make_mesh(lookahead=lookahead, model=model, devices=devices)
    config = dataclasses.replace(CONFIG, kv_exchange=kv_exchange)
    policy = Policy(Greedy())
    attention = HeadParallel(mesh) if model > 1 else None
    program = Program(
        Lookahead(config, policy, num_copies=lookahead),
        (forward or DecoderForward)(MODEL, attention),
        cache_spec(MODEL, "bfloat16"),
        MODEL.vocab_size,
        1024,
        mesh=mesh,
    )

    def integers(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    def placed(root, tree):
        return jax.tree.map(
            lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
            tree,
            shardings(mesh, root, tree),
        )

    params = abstract_params(MODEL, "bfloat16")
    keys = jax.ShapeDtypeStruct((1, 2), jnp.uint32)
    requests = Requests(integers(1, 64), integers(1), integers(1), integers(1, 1), keys)
    state = jax.eval_shape(program.start, requests, params)
    whole = NamedSharding(mesh, PartitionSpec())
    compiled = (
        jax.jit(program.advance, donate_argnums=0)
        .lower(
            placed("state", state),
            placed("params", params),
            jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
            jax.ShapeDtypeStruct((1,), jnp.bool_, sharding=whole),
        )
        .compile()
    )
    return compiled, state


compile_round = functools.cache(compile_round)


def token_exchange(devices):
    """Of every device: the length of its path, its tokens, its columns of the window's new row."""
    columns = -(-CONFIG.window_size // devices)
    ids = 1 + CONFIG.ngram_size + columns
    return "all-gather", (("s32", (devices, 1, ids)),)


def row_exchange(heads):
    """Keys and values of S rows, of every layer."""
    return "all-reduce", (("bf16", (1, heads, CONFIG.suffix_length, 64)),) * (2 * LAYERS)


def kinds(found):
    return sorted((c.opcode, c.arrays) for c in found)


@pytest.mark.parametrize(("topology", "devices"), [("v5e:2x2", 4), ("v5e:2x4", 8)])
def test_token_ids_and_the_winners_rows_and_nothing_else(topology, devices):
    compiled, _ = compile_round(topology, devices)
    found = crossings(Hlo.parse(compiled.as_text()))
    assert kinds(found) == sorted([token_exchange(devices), row_exchange(8)])
    for crossing in found:
        assert crossing.groups == {frozenset(range(devices))}
        assert "/forward/" not in crossing.scope
    print(f"{topology}: bytes a round {[(c.opcode, c.size) for c in found]}")
    ids = 4 * devices * token_exchange(devices)[1][0][1][2]
    rows = LAYERS * 2 * 8 * CONFIG.suffix_length * 64 * 2
    assert sum(c.size for c in found) == ids + rows


def test_no_keys_or_values_cross_when_they_are_fed_again():
    compiled, _ = compile_round("v5e:2x2", 4, kv_exchange="refeed")
    found = crossings(Hlo.parse(compiled.as_text()))
    assert kinds(found) == [token_exchange(4)]


def test_groups_of_two_share_a_copy_of_the_model():
    """Within a copy: the embedding's sum, two sums a layer, the greatest logit's value and id."""
    compiled, state = compile_round("v5e:2x4", 4, 2)
    found = crossings(Hlo.parse(compiled.as_text()))
    copies = {frozenset(pair) for pair in ((0, 1), (2, 3), (4, 5), (6, 7))}
    across = {frozenset((0, 2, 4, 6)), frozenset((1, 3, 5, 7))}
    assert {c.groups for c in found} == {frozenset(copies), frozenset(across)}
    assert kinds(c for c in found if c.groups == across) == sorted(
        [token_exchange(4), row_exchange(4)]
    )
    within = [c for c in found if c.groups == copies]
    rows = build_shards(CONFIG, 4).num_rows
    sums = [c for c in within if c.size == 2 * MODEL.hidden_size * rows]
    assert len(sums) == 1 + 2 * LAYERS
    assert {c.opcode for c in within} == {"all-reduce"}
    choices = [c for c in within if c not in sums]
    assert sorted(kind for c in choices for kind, _ in c.arrays) == ["f32", "s32"]
    assert max(c.size for c in choices) < 200

    # Half of the weights, and half of the cache, on each.
    weights = sum(2 * x.size for x in jax.tree.leaves(abstract_params(MODEL, "bfloat16")))
    whole = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.cache.keys))
    memory = compiled.memory_analysis()
    pool = sum(4 * x.size for x in jax.tree.leaves(state.pool))
    assert memory.argument_size_in_bytes < 0.51 * weights + 1.1 * (2 * whole / 2 + pool) * 2


@pytest.mark.parametrize(
    "arguments", [("v5e:2x2", 4), ("v5e:2x4", 4, 2)], ids=["v5e-4", "v5e-8 in pairs"]
)
def test_on_a_mesh_too_the_kernel_reads_and_the_state_is_updated_in_place(arguments):
    compiled, state = compile_round(*arguments)
    hlo = Hlo.parse(compiled.as_text())
    (body,) = hlo.loop_bodies()
    round_ = hlo.reached(body)
    assert any(i.opcode == "custom-call" and "tpu_custom_call" in i.rest for i in round_)
    heads = 8 // (arguments[2] if len(arguments) > 2 else 1)
    buffer = f"bf16[1,{heads},{state.cache.keys[0].shape[2]},64]"
    writes = [
        i for i in round_ if i.opcode == "dynamic-update-slice" and i.shape.startswith(buffer)
    ]
    assert len(writes) == 2 * LAYERS
    assert not [i for i in round_ if i.opcode == "copy" and i.shape.startswith(buffer)]
    memory = compiled.memory_analysis()
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 4096


@dataclasses.dataclass(frozen=True)
class Talkative(DecoderForward):
    """A planted fault: a model that asks the other copies in the middle of a forward pass."""

    def __call__(self, params, tokens, positions, block_mask, cache, logit_rows):
        logits, block = super().__call__(params, tokens, positions, block_mask, cache, logit_rows)
        return logits + jax.lax.pmean(logits, LOOKAHEAD), block


def test_a_word_in_the_forward_pass_is_noticed():
    compiled, _ = compile_round("v5e:2x2", 4, forward=Talkative)
    found = crossings(Hlo.parse(compiled.as_text()))
    assert any("/forward/" in crossing.scope for crossing in found)
    assert len(found) > 2
