"""Writes small random Llama checkpoints, in Hugging Face's layout and as GGUF."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}

LAYER_NAMES = {
    ("attn_norm", "scale"): ("input_layernorm.weight", "attn_norm.weight"),
    ("mlp_norm", "scale"): ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("attn", "q", "weight"): ("self_attn.q_proj.weight", "attn_q.weight"),
    ("attn", "k", "weight"): ("self_attn.k_proj.weight", "attn_k.weight"),
    ("attn", "v", "weight"): ("self_attn.v_proj.weight", "attn_v.weight"),
    ("attn", "o", "weight"): ("self_attn.o_proj.weight", "attn_output.weight"),
    ("mlp", "gate", "weight"): ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp", "up", "weight"): ("mlp.up_proj.weight", "ffn_up.weight"),
    ("mlp", "down", "weight"): ("mlp.down_proj.weight", "ffn_down.weight"),
}
TOP_NAMES = {
    ("embed", "weight"): ("model.embed_tokens.weight", "token_embd.weight"),
    ("final_norm", "scale"): ("model.norm.weight", "output_norm.weight"),
    ("head", "weight"): ("lm_head.weight", "output.weight"),
}


def random_weights(config=CONFIG, seed=0):
    """float32 arrays by path, a tuple of keys; biases where the configuration has them."""
    rng = np.random.default_rng(seed)
    hidden, inner, vocab = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {("embed", "weight"): (vocab, hidden), ("final_norm", "scale"): (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["head", "weight"] = (vocab, hidden)
    layer = {
        ("attn_norm", "scale"): (hidden,),
        ("mlp_norm", "scale"): (hidden,),
        ("attn", "q", "weight"): (queries, hidden),
        ("attn", "k", "weight"): (keys, hidden),
        ("attn", "v", "weight"): (keys, hidden),
        ("attn", "o", "weight"): (hidden, queries),
        ("mlp", "gate", "weight"): (inner, hidden),
        ("mlp", "up", "weight"): (inner, hidden),
        ("mlp", "down", "weight"): (hidden, inner),
    }
    for block, key in (("attn", "attention_bias"), ("mlp", "mlp_bias")):
        if config.get(key):
            matrices = [path for path in layer if path[0] == block]
            layer |= {(*path[:2], "bias"): layer[path][:1] for path in matrices}
    for i in range(config["num_hidden_layers"]):
        shapes |= {(f"layers_{i}", *path): shape for path, shape in layer.items()}
    return {path: rng.standard_normal(shape, np.float32) for path, shape in shapes.items()}


def file_name(path, *, column):
    """Name of a leaf in a Hugging Face checkpoint (column 0) or a GGUF file (column 1)."""
    if path in TOP_NAMES:
        return TOP_NAMES[path][column]
    layer, *rest = path
    weight = LAYER_NAMES[*rest[:2], "weight"] if len(rest) == 3 else LAYER_NAMES[tuple(rest)]
    name = weight[column].removesuffix("weight") + ("bias" if rest[-1] == "bias" else "weight")
    return f"{('model.layers.{}.', 'blk.{}.')[column].format(layer.removeprefix('layers_'))}{name}"


def hugging_face_names(weights):
    return {file_name(path, column=0): array for path, array in weights.items()}


def write_directory(directory: Path, config=CONFIG, tensors=None, shards=1):
    """Writes config.json and safetensors, by default of `random_weights`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    tensors = hugging_face_names(random_weights(config)) if tensors is None else tensors
    if shards == 1:
        save_file(tensors, directory / "model.safetensors")
        return directory
    weight_map = {name: f"model-{i % shards}.safetensors" for i, name in enumerate(tensors)}
    for shard in set(weight_map.values()):
        part = {name: tensors[name] for name in tensors if weight_map[name] == shard}
        save_file(part, directory / shard)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def interleave(array, heads):
    """The order of rows that llama.cpp's converter writes: the two halves of a head in turn."""
    half = len(array) // heads // 2
    rows = [
        head * 2 * half + side * half + i
        for head in range(heads)
        for i in range(half)
        for side in (0, 1)
    ]
    return array[rows]


def add_metadata(writer, key, value):
    """A key of a GGUF file, in the type that llama.cpp has for such a value; none for None."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    elif value is not None:
        writer.add_string(key, value)


def write_gguf(
    path: Path, config=CONFIG, weights=None, kinds=None, metadata=None, extra=(), tokenizer=None
):
    """Writes a GGUF file as llama.cpp's converter would.

    `kinds` gives the GGML type of matrices by path suffix, `metadata` further numbers or strings
    (None removes one), `extra` further (name, array) pairs, `tokenizer` calls to make on the
    writer.
    """
    weights = random_weights(config) if weights is None else weights
    writer = gguf.GGUFWriter(str(path), (metadata or {}).get("architecture", "llama"))
    numbers = {
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.block_count": config["num_hidden_layers"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
    } | {key: value for key, value in (metadata or {}).items() if key != "architecture"}
    for key, value in numbers.items():
        add_metadata(writer, key, value)
    if tokenizer is not None:
        tokenizer(writer)
    for leaf, array in weights.items():
        if leaf[1:3] == ("attn", "q"):
            array = interleave(array, config["num_attention_heads"])
        if leaf[1:3] == ("attn", "k"):
            array = interleave(array, config["num_key_value_heads"])
        kind = (kinds or {}).get(leaf[-2:], Kind.F32) if array.ndim == 2 else Kind.F32
        stored = gguf.quants.quantize(array, kind)
        writer.add_tensor(file_name(leaf, column=1), stored, raw_dtype=kind)
    for name, array in extra:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def leaf_at(params, path):
    for key in path:
        params = params[key]
    return np.asarray(params)


def paths_of(params, prefix=()):
    if not isinstance(params, dict):
        return {prefix}
    return set().union(*(paths_of(child, (*prefix, key)) for key, child in params.items()))


def peak_memory_of_loading(path, dtype):
    """Peak resident bytes of a process, before and after it loads a checkpoint.

    From the kernel's own mark: `ru_maxrss` of a child starts at its parent's.
    """
    code = (
        "import sys, jax, transformers\n"
        "from lookahead_jax.models import load_model\n"
        "def peak():\n"
        "    lines = open('/proc/self/status').read().splitlines()\n"
        "    line = next(line for line in lines if line.startswith('VmHWM'))\n"
        "    return int(line.split()[1]) * 1024\n"
        "jax.device_put(1.0).block_until_ready()\n"
        "before = peak()\n"
        "lm = load_model(sys.argv[1], dtype=sys.argv[2])\n"
        "jax.block_until_ready(lm.params)\n"
        "print(before, peak())\n"
    )
    command = [sys.executable, "-P", "-c", code, str(path), dtype]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after = result.stdout.split()
    return int(before), int(after)
