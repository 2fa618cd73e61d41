"""Writes the tiny checkpoints of tests/data/families as GGUF files, as llama.cpp's converter would.

Names of tensors come from the gguf package's map of Hugging Face's names, not from this package.
"""

import json
import math
import re
from pathlib import Path

import gguf
import numpy as np
from checkpoint_files import interleave
from safetensors.numpy import load_file

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "smollm3": "smollm3",
    "gpt2": "gpt2",
}
"""By `model_type`."""

EXPERT = re.compile(r"(.*experts)\.(\d+)\.(.*)\.weight")


def convert(directory: Path, path: Path) -> str:
    """Writes the checkpoint of a directory to a GGUF file; returns its architecture."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(str(path), architecture)
    write_metadata(writer, config)
    stored = load_file(directory / "model.safetensors")
    tensors = {name: np.asarray(array, np.float32) for name, array in stored.items()}
    for name, array in renamed(transformed(stacked(tensors), config), architecture, config).items():
        writer.add_tensor(name, array)
    for name, array in factors(config).items():
        writer.add_tensor(name, np.array(array, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return architecture


def rope_of(config):
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def write_metadata(writer, config):
    if config["model_type"] == "gpt2":
        writer.add_context_length(config["n_positions"])
        writer.add_embedding_length(config["n_embd"])
        writer.add_feed_forward_length(config["n_inner"])
        writer.add_block_count(config["n_layer"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    rope, heads = rope_of(config), config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    if config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    write_scaling(writer, config, rope)
    kind = config["model_type"]
    if kind in ("mistral", "gemma2", "gemma3_text", "phi3"):
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if kind.startswith("gemma"):
        writer.add_key_value(
            f"{writer.arch}.attention.scale",
            config["query_pre_attn_scalar"] ** -0.5,
            gguf.GGUFValueType.FLOAT32,
        )
        if kind == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        else:
            local = config["rope_parameters"]["sliding_attention"]
            writer.add_rope_freq_base_swa(local["rope_theta"])
            sliding = [entry == "sliding_attention" for entry in config["layer_types"]]
            writer.add_sliding_window_pattern(sliding)
    if kind in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if kind == "qwen3_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if not config["norm_topk_prob"]:
            writer.add_expert_weights_norm(False)


def write_scaling(writer, config, rope):
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind == "longrope":
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        )


def factors(config):
    """Divisors of rotary frequencies, which are stored as tensors."""
    rope = rope_of(config)
    if rope.get("rope_type") == "longrope":
        return {
            "rope_factors_short.weight": rope["short_factor"],
            "rope_factors_long.weight": rope["long_factor"],
        }
    if rope.get("rope_type") != "llama3":
        return {}
    head_dim = config["head_dim"]
    original = rope["original_max_position_embeddings"]
    low, high = (original / rope[f"{end}_freq_factor"] for end in ("low", "high"))
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        smooth = (original / wavelength - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        divisors.append(
            1.0 if wavelength < high else rope["factor"] if wavelength > low else between
        )
    return {"rope_freqs.weight": divisors}


def stacked(tensors):
    """The experts of a layer as one tensor, under a name that the gguf package knows."""
    stacks, rest = {}, {}
    for name, array in tensors.items():
        if found := EXPERT.fullmatch(name):
            block = found[1].replace("model.layers", "layers")
            block = block.replace("block_sparse_moe", "feed_forward")
            block = f"model.{block}" if "mlp" in block else block
            stacks.setdefault(f"{block}.{found[3]}.weight", {})[int(found[2])] = array
        else:
            rest[name] = array
    return rest | {
        name: np.stack([experts[i] for i in range(len(experts))])
        for name, experts in stacks.items()
    }


def transformed(tensors, config):
    """Rows of queries and keys in another order, norms of Gemma, turned matrices of GPT-2."""
    kind = config["model_type"]
    heads = {"q": config.get("num_attention_heads"), "k": config.get("num_key_value_heads")}
    for name, array in tensors.items():
        if ARCHITECTURES[kind] in ("llama", "smollm3") and "_proj." in name:
            projection = name.split("_proj.")[0][-1]
            array = interleave(array, heads[projection]) if projection in heads else array
        if kind.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        if kind == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight$", name):
            array = np.ascontiguousarray(array.T)
        yield name, array


def renamed(tensors, architecture, config):
    layers = config.get("num_hidden_layers") or config["n_layer"]
    kinds = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    maps = [
        gguf.get_tensor_name_map(kinds[name], layers)
        for name in (architecture, "llama")  # the latter for dense layers among those of experts
    ]
    result = {}
    for name, array in tensors:
        base, _, suffix = name.rpartition(".")
        new = next(found for each in maps if (found := each.get_name(base)) is not None)
        result[f"{new}.{suffix}"] = array
    return result
