"""Loading onto eight devices: where the shards land, what they write, and the memory it takes."""

import json
import os
import subprocess
import sys

import checkpoint_files as files
import jax
import numpy as np
import pytest
import trace_files
from gguf import GGMLQuantizationType as Kind
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from lookahead_jax import autoregressive
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.conversion import convert

TINY = trace_files.TINY_MODEL
DEVICES = 8

COMMON = """
import json, sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from lookahead_jax import LookaheadConfig, generate
from lookahead_jax.models import load_model
jax.config.update("jax_disable_most_optimizations", True)
mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
def sharding(path, shape):
    if len(shape) != 2:
        return NamedSharding(mesh, PartitionSpec())
    columns = path[-2] in ("o", "down")
    return NamedSharding(mesh, PartitionSpec(*((None, "model") if columns else ("model",))))
"""

SHARDS = """
def leaves(tree):
    return {"/".join(k.key for k in p): x for p, x in jax.tree_util.tree_leaves_with_path(tree)}
report = {}
for name, path in json.loads(sys.argv[1]).items():
    for int8 in (False, True):
        one = leaves(load_model(path, int8=int8).params)
        lm = load_model(path, int8=int8, sharding=sharding)
        wrong, shapes = [], {}
        for key, leaf in leaves(lm.params).items():
            wanted = sharding(tuple(key.split("/")), leaf.shape)
            shards = {s.device.id: (s.index, np.asarray(s.data)) for s in leaf.addressable_shards}
            whole = np.asarray(one[key])
            right = len(shards) == 8 and leaf.sharding == wanted and leaf.dtype == whole.dtype
            for device, index in wanted.devices_indices_map(leaf.shape).items():
                right &= shards[device.id][0] == index
                right &= np.array_equal(shards[device.id][1], whole[index])
            if not right:
                wrong.append(key)
            shapes[key] = shards[0][1].shape
        report[f"{name} {int8}"] = {"wrong": wrong, "shapes": shapes}
lm = load_model(json.loads(sys.argv[1])["orbax"], sharding=sharding)
config = LookaheadConfig(2, 3, 2)
result = generate(lm, [5, 9, 2, 7], config=config, max_new_tokens=24, stop_tokens=())
report["text"] = result.tokens
print(json.dumps(report))
"""

MEMORY = """
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024
import orbax.checkpoint
jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec("model"))).block_until_ready()
before = peak()
jax.block_until_ready(load_model(sys.argv[1], sharding=sharding).params)
print(peak() - before)
"""


def start_on_eight_devices(code, *arguments):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
    }
    command = [sys.executable, "-P", "-c", COMMON + code, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process):
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(output)


@pytest.mark.slow
def test_shards_land_where_they_are_asked_for(tmp_path):
    """From every format, bit for bit, as floats and as int8; and the text stays what it is."""
    q8 = {("q", "weight"): Kind.Q8_0, ("down", "weight"): Kind.Q8_0}
    paths = {
        "safetensors": str(TINY),
        "gguf": str(files.write_gguf(tmp_path / "m.gguf", kinds=q8)),
        "orbax": str(convert(TINY, tmp_path / "orbax", progress=lambda done, total: None).path),
    }
    report = finish(start_on_eight_devices(SHARDS, json.dumps(paths)))
    for name in paths:
        for int8 in (False, True):
            assert report[f"{name} {int8}"]["wrong"] == []
    shapes = report["orbax False"]["shapes"]
    assert shapes["layers_0/attn/q/weight"] == [8, 64]
    assert shapes["layers_0/attn/o/weight"] == [64, 8]
    assert shapes["final_norm/scale"] == [64]
    ordinary = autoregressive.generate(
        load_model(TINY), [5, 9, 2, 7], max_new_tokens=24, stop_tokens=()
    )
    assert report["text"] == list(ordinary.tokens)


def test_weights_are_held_once_while_they_are_shared_out(tmp_path):
    config = files.CONFIG | {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2816}
    config |= {"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 8}
    config |= {"head_dim": 64}
    tensors = {
        name: np.zeros(array.shape, np.float32)
        for name, array in files.hugging_face_names(files.random_weights(config)).items()
    }
    directory = files.write_directory(tmp_path / "hf", config, tensors)
    size = sum(array.nbytes for array in tensors.values())
    orbax = convert(directory, tmp_path / "orbax", progress=lambda done, total: None).path
    running = [start_on_eight_devices(MEMORY, str(path)) for path in (directory, orbax)]
    for process in running:
        assert finish(process) < 1.5 * size


def one_device_mesh():
    return Mesh(np.array(jax.devices("cpu")[:1]), ("model",))


def test_one_sharding_for_all_or_the_default_device(tmp_path):
    everywhere = NamedSharding(one_device_mesh(), PartitionSpec())
    convert(TINY, tmp_path / "orbax", progress=lambda done, total: None)
    for source in (TINY, tmp_path / "orbax"):
        leaves = jax.tree.leaves(load_model(source, sharding=everywhere).params)
        assert {leaf.sharding for leaf in leaves} == {everywhere}
        leaves = jax.tree.leaves(load_model(source, sharding=lambda path, shape: None).params)
        assert {leaf.sharding for leaf in leaves} == {jax.device_put(0).sharding}


def test_a_sharding_that_does_not_fit_is_one_line(tmp_path):
    where = NamedSharding(one_device_mesh(), PartitionSpec(None, "model"))
    convert(TINY, tmp_path / "orbax", progress=lambda done, total: None)
    for source in (TINY, tmp_path / "orbax"):
        for sharding in (where, lambda path, shape: where):
            with pytest.raises(LookaheadError) as caught:
                load_model(source, sharding=sharding)
            line = str(caught.value)
            assert "_norm/scale [64] cannot be shared out evenly as NamedSharding(" in line
            assert "\n" not in line
    with pytest.raises(LookaheadError, match="layers_0/attn_norm/scale cannot go to 'x': expected"):
        load_model(TINY, sharding=lambda path, shape: "x" if path[-1] == "scale" else None)
