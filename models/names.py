"""Where each parameter of a Llama model lives in a checkpoint: tables, and nothing else trusted.

A checkpoint is matched against the table and the configuration before any weight is read: every
tensor must be there, once, with the shape the configuration gives it, and nothing else may be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import LlamaConfig
from lookahead_jax.models.weights import StoredTensor

Leaf = tuple[tuple[str, ...], StoredTensor]
"""The keys from the root of the parameter tree to a leaf, and the stored tensor it is made of."""

HUGGING_FACE = {
    "embed/weight": "model.embed_tokens.weight",
    "layers/attn_norm/scale": "model.layers.{}.input_layernorm.weight",
    "layers/attn/q/weight": "model.layers.{}.self_attn.q_proj.weight",
    "layers/attn/q/bias": "model.layers.{}.self_attn.q_proj.bias",
    "layers/attn/k/weight": "model.layers.{}.self_attn.k_proj.weight",
    "layers/attn/k/bias": "model.layers.{}.self_attn.k_proj.bias",
    "layers/attn/v/weight": "model.layers.{}.self_attn.v_proj.weight",
    "layers/attn/v/bias": "model.layers.{}.self_attn.v_proj.bias",
    "layers/attn/o/weight": "model.layers.{}.self_attn.o_proj.weight",
    "layers/attn/o/bias": "model.layers.{}.self_attn.o_proj.bias",
    "layers/mlp_norm/scale": "model.layers.{}.post_attention_layernorm.weight",
    "layers/mlp/gate/weight": "model.layers.{}.mlp.gate_proj.weight",
    "layers/mlp/gate/bias": "model.layers.{}.mlp.gate_proj.bias",
    "layers/mlp/up/weight": "model.layers.{}.mlp.up_proj.weight",
    "layers/mlp/up/bias": "model.layers.{}.mlp.up_proj.bias",
    "layers/mlp/down/weight": "model.layers.{}.mlp.down_proj.weight",
    "layers/mlp/down/bias": "model.layers.{}.mlp.down_proj.bias",
    "final_norm/scale": "model.norm.weight",
    "head/weight": "lm_head.weight",
}
"""Parameter path, layer number left out, to the name in a Hugging Face checkpoint."""

GGUF = {
    "embed/weight": "token_embd.weight",
    "layers/attn_norm/scale": "blk.{}.attn_norm.weight",
    "layers/attn/q/weight": "blk.{}.attn_q.weight",
    "layers/attn/q/bias": "blk.{}.attn_q.bias",
    "layers/attn/k/weight": "blk.{}.attn_k.weight",
    "layers/attn/k/bias": "blk.{}.attn_k.bias",
    "layers/attn/v/weight": "blk.{}.attn_v.weight",
    "layers/attn/v/bias": "blk.{}.attn_v.bias",
    "layers/attn/o/weight": "blk.{}.attn_output.weight",
    "layers/attn/o/bias": "blk.{}.attn_output.bias",
    "layers/mlp_norm/scale": "blk.{}.ffn_norm.weight",
    "layers/mlp/gate/weight": "blk.{}.ffn_gate.weight",
    "layers/mlp/gate/bias": "blk.{}.ffn_gate.bias",
    "layers/mlp/up/weight": "blk.{}.ffn_up.weight",
    "layers/mlp/up/bias": "blk.{}.ffn_up.bias",
    "layers/mlp/down/weight": "blk.{}.ffn_down.weight",
    "layers/mlp/down/bias": "blk.{}.ffn_down.bias",
    "final_norm/scale": "output_norm.weight",
    "head/weight": "output.weight",
}
"""Parameter path, layer number left out, to the name in a GGUF file."""


def parameter_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, by path with the layer number left out.

    Args:
        config: The model; decides which biases there are and whether there is a head.
    """
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed/weight": (vocab, hidden),
        "layers/attn_norm/scale": (hidden,),
        "layers/mlp_norm/scale": (hidden,),
        "final_norm/scale": (hidden,),
    }
    attention = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden)}
    attention["o"] = (hidden, queries)
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    for block, matrices, has_bias in (
        ("attn", attention, config.attention_bias),
        ("mlp", mlp, config.mlp_bias),
    ):
        for name, shape in matrices.items():
            shapes[f"layers/{block}/{name}/weight"] = shape
            if has_bias:
                shapes[f"layers/{block}/{name}/bias"] = shape[:1]
    if not config.tie_word_embeddings:
        shapes["head/weight"] = (vocab, hidden)
    return shapes


def place(
    tensors: Mapping[str, StoredTensor],
    config: LlamaConfig,
    table: Mapping[str, str],
    *,
    source: str,
    ignore: Callable[[str], bool] = lambda _: False,
) -> list[Leaf]:
    """Matches a checkpoint's tensors with the parameter tree.

    Args:
        tensors: What the file holds, by the file's names.
        config: The model that the file claims to be.
        table: `HUGGING_FACE` or `GGUF`.
        source: Name of the checkpoint, for messages.
        ignore: Says which further tensors are harmless.

    Returns:
        Every leaf of the tree once, in the order of `tensors`.

    Raises:
        LookaheadError: A tensor is missing, unexpected or has another shape; the line names it.
    """
    if config.num_hidden_layers > len(tensors):
        raise LookaheadError(
            f"{source}: expected {config.num_hidden_layers} layers, but there are only "
            f"{len(tensors)} tensors"
        )
    wanted: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}
    for pattern, shape in parameter_shapes(config).items():
        first, *rest = pattern.split("/")
        if first == "layers":
            for i in range(config.num_hidden_layers):
                wanted[table[pattern].format(i)] = ((f"layers_{i}", *rest), shape)
        else:
            wanted[table[pattern]] = ((first, *rest), shape)

    missing = [name for name in wanted if name not in tensors]
    if missing:
        raise LookaheadError(f"{source}: tensor {_first_of(missing)} is missing")
    extra = [name for name in tensors if name not in wanted and not ignore(name)]
    if extra:
        raise LookaheadError(f"{source}: tensor {_first_of(extra)} is not part of a Llama model")
    leaves = []
    for name, tensor in tensors.items():
        if name not in wanted:
            continue
        path, shape = wanted[name]
        if tensor.shape != shape:
            raise LookaheadError(
                f"{source}: tensor {name} has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        leaves.append((path, tensor))
    return leaves


def mark_interleaved_heads(leaves: list[Leaf], config: LlamaConfig) -> list[Leaf]:
    """Notes the row order that llama.cpp's converter gave to the query and key projections.

    Its kernels rotate neighbouring rows (2i, 2i + 1) of a head, Hugging Face's convention rotates
    (i, i + head_dim / 2), so its converter interleaves the two halves of every head; biases too.
    """
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    return [
        (path, replace(tensor, interleaved_heads=heads[path[2]]))
        if path[1:2] == ("attn",) and path[2] in heads
        else (path, tensor)
        for path, tensor in leaves
    ]


def _first_of(names: list[str]) -> str:
    rest = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{rest}"
