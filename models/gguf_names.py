"""Where each parameter lives in a GGUF file, in llama.cpp's names."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.names import Leaf, Part, Table, parts
from lookahead_jax.models.weights import StoredTensor

HEAD = "output.weight"
"""Missing where the head is the embedding."""

EMBEDDING = "token_embd.weight"

ROUTER = "blk.{}.ffn_gate_inp.weight"
"""In the layers that have experts."""

BIASES = {
    "qkv_bias": ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias"),
    "output_bias": ("blk.0.attn_output.bias",),
    "mlp_bias": ("blk.0.ffn_up.bias",),
}
"""Fields of `DecoderConfig`, and tensors of which one is there where they are true."""

_NORMS = {
    "layers/attn_norm": "blk.{}.attn_norm",
    "layers/attn_post_norm": "blk.{}.post_attention_norm",
    "layers/mlp_norm": "blk.{}.ffn_norm",
    "layers/mlp_post_norm": "blk.{}.post_ffw_norm",
    "layers/attn/q_norm": "blk.{}.attn_q_norm",
    "layers/attn/k_norm": "blk.{}.attn_k_norm",
    "final_norm": "output_norm",
}
_LINEAR = {
    "layers/attn/q": "blk.{}.attn_q",
    "layers/attn/k": "blk.{}.attn_k",
    "layers/attn/v": "blk.{}.attn_v",
    "layers/attn/o": "blk.{}.attn_output",
    "layers/mlp/gate": "blk.{}.ffn_gate",
    "layers/mlp/up": "blk.{}.ffn_up",
    "layers/mlp/down": "blk.{}.ffn_down",
}

GGUF: dict[str, str] = {
    "embed/weight": EMBEDDING,
    "positions/weight": "position_embd.weight",
    **{f"{path}/scale": f"{name}.weight" for path, name in _NORMS.items()},
    **{f"{path}/bias": f"{name}.bias" for path, name in _NORMS.items()},
    **{
        f"{path}/{kind}": f"{name}.{kind}"
        for path, name in _LINEAR.items()
        for kind in ("weight", "bias")
    },
    "layers/moe/router/weight": ROUTER,
    "layers/moe/gate": "blk.{}.ffn_gate_exps.weight",
    "layers/moe/up": "blk.{}.ffn_up_exps.weight",
    "layers/moe/down": "blk.{}.ffn_down_exps.weight",
    "head/weight": HEAD,
}
"""The names that all architectures share; experts are stacks."""

_QKV = {
    **parts("blk.{}.attn_qkv.weight", "layers/attn/", "qkv", "weight"),
    **parts("blk.{}.attn_qkv.bias", "layers/attn/", "qkv", "bias"),
}
_GATE_UP = parts("blk.{}.ffn_up.weight", "layers/mlp/", ("gate", "up"), "weight")
_EXPERTS_APART = {
    f"layers/moe/{n}": f"blk.{{}}.ffn_{n}.{{}}.weight" for n in ("gate", "up", "down")
}
"""How files of Mixtral were written before April 2024."""


def table_for(architecture: str, tensors: Container[str]) -> Table:
    """The table for a file.

    Args:
        architecture: What the file says it is.
        tensors: The names of its tensors. Some are stored as one, or one by one, in some files of
            an architecture and not in others.
    """
    table: dict[str, str | Part] = dict(GGUF)
    if "blk.0.attn_qkv.weight" in tensors:
        table |= _QKV
    if architecture == "phi3":
        table |= _GATE_UP
    if "blk.0.ffn_gate.0.weight" in tensors:
        table |= _EXPERTS_APART
    return table


def mark_interleaved_heads(leaves: list[Leaf], config: DecoderConfig) -> list[Leaf]:
    """Notes the row order that llama.cpp's converter gave to the query and key projections.

    For some architectures its kernels rotate neighbouring rows (2i, 2i + 1) of a head, where
    Hugging Face's convention rotates (i, i + head_dim / 2), so its converter interleaves the two
    halves of every head; biases too.
    """
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    return [
        (path, replace(tensor, interleaved_heads=heads[path[2]]))
        if path[1:2] == ("attn",) and path[2] in heads and isinstance(tensor, StoredTensor)
        else (path, tensor)
        for path, tensor in leaves
    ]
