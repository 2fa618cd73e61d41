"""Where each parameter of a decoder lives in a checkpoint: tables, and nothing else trusted.

A checkpoint is matched against the table and the configuration before any weight is read: every
tensor must be there, once, with the shape the configuration gives it, and nothing else may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import DecoderConfig, NormPlacement, QueryKeyNorm
from lookahead_jax.models.quantisation import int8_shapes
from lookahead_jax.models.weights import StoredTensor

Leaf = tuple[tuple[str, ...], StoredTensor | tuple[StoredTensor, ...]]
"""The keys from the root of the parameter tree to a leaf, and the stored tensor it is made of, or
the tensors that it stacks."""


@dataclass(frozen=True)
class Part:
    """A parameter that is stored as some rows of a larger matrix, or turned around.

    Attributes:
        name: Of the stored tensor.
        of: Patterns of all parameters in it, in their order.
        transposed: Stored as [in, out].
    """

    name: str
    of: tuple[str, ...]
    transposed: bool = False


Table = Mapping[str, "str | Part"]
"""Parameter path, layer number left out, to the name in a checkpoint. `{}` stands for the number of
the layer, a second one for the number of the expert; without it, experts are one stored stack."""

_ATTENTION = "model.layers.{}.self_attn."
_MLP = "model.layers.{}.mlp."

HUGGING_FACE: dict[str, str] = {
    "embed/weight": "model.embed_tokens.weight",
    "layers/attn_norm/scale": "model.layers.{}.input_layernorm.weight",
    **{
        f"layers/attn/{name}/{kind}": f"{_ATTENTION}{name}_proj.{kind}"
        for name in "qkvo"
        for kind in ("weight", "bias")
    },
    "layers/attn/q_norm/scale": f"{_ATTENTION}q_norm.weight",
    "layers/attn/k_norm/scale": f"{_ATTENTION}k_norm.weight",
    "layers/mlp_norm/scale": "model.layers.{}.post_attention_layernorm.weight",
    **{
        f"layers/mlp/{name}/{kind}": f"{_MLP}{name}_proj.{kind}"
        for name in ("gate", "up", "down")
        for kind in ("weight", "bias")
    },
    "final_norm/scale": "model.norm.weight",
    "head/weight": "lm_head.weight",
}
"""Llama's names, which most families share."""

_AROUND = {
    "layers/attn_post_norm/scale": "model.layers.{}.post_attention_layernorm.weight",
    "layers/mlp_norm/scale": "model.layers.{}.pre_feedforward_layernorm.weight",
    "layers/mlp_post_norm/scale": "model.layers.{}.post_feedforward_layernorm.weight",
}


def parts(name: str, prefix: str, names: Sequence[str], kind: str) -> dict[str, Part]:
    """Entries of a table for parameters that one stored tensor holds, one below the other."""
    of = tuple(f"{prefix}{part}/{kind}" for part in names)
    return {path: Part(name, of) for path in of}


def _turned(name: str, prefix: str, names: Sequence[str]) -> dict[str, str | Part]:
    """GPT-2's linear layers: weights [in, out], biases as they are."""
    weights = parts(f"{name}.weight", prefix, names, "weight")
    return {
        **{path: replace(part, transposed=True) for path, part in weights.items()},
        **parts(f"{name}.bias", prefix, names, "bias"),
    }


HUGGING_FACE_BY_FAMILY: dict[str, Table] = {
    "gemma2": {**HUGGING_FACE, **_AROUND},
    "gemma3_text": {**HUGGING_FACE, **_AROUND},
    "olmo2": {**HUGGING_FACE, **_AROUND},
    "phi3": {
        **HUGGING_FACE,
        **parts(f"{_ATTENTION}qkv_proj.weight", "layers/attn/", "qkv", "weight"),
        **parts(f"{_MLP}gate_up_proj.weight", "layers/mlp/", ("gate", "up"), "weight"),
    },
    "mixtral": {
        **HUGGING_FACE,
        "layers/moe/router/weight": "model.layers.{}.block_sparse_moe.gate.weight",
        "layers/moe/gate": "model.layers.{}.block_sparse_moe.experts.{}.w1.weight",
        "layers/moe/up": "model.layers.{}.block_sparse_moe.experts.{}.w3.weight",
        "layers/moe/down": "model.layers.{}.block_sparse_moe.experts.{}.w2.weight",
    },
    "qwen3_moe": {
        **HUGGING_FACE,
        "layers/moe/router/weight": f"{_MLP}gate.weight",
        **{
            f"layers/moe/{name}": f"{_MLP}experts.{{}}.{name}_proj.weight"
            for name in ("gate", "up", "down")
        },
    },
    "gpt2": {
        "embed/weight": "transformer.wte.weight",
        "positions/weight": "transformer.wpe.weight",
        **{
            f"{path}/{kind}": f"transformer.{name}.{stored}"
            for path, name in (
                ("layers/attn_norm", "h.{}.ln_1"),
                ("layers/mlp_norm", "h.{}.ln_2"),
                ("final_norm", "ln_f"),
            )
            for kind, stored in (("scale", "weight"), ("bias", "bias"))
        },
        **_turned("transformer.h.{}.attn.c_attn", "layers/attn/", "qkv"),
        **_turned("transformer.h.{}.attn.c_proj", "layers/attn/", "o"),
        **_turned("transformer.h.{}.mlp.c_fc", "layers/mlp/", ("up",)),
        **_turned("transformer.h.{}.mlp.c_proj", "layers/mlp/", ("down",)),
        "head/weight": "lm_head.weight",
    },
}
"""The families whose names are not all Llama's."""


def parameter_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter, by its path as `DecoderConfig` documents it."""
    hidden, vocab = config.hidden_size, config.vocab_size
    shapes: dict[str, tuple[int, ...]] = {"embed/weight": (vocab, hidden)}

    def norm(path: str, size: int = hidden) -> None:
        shapes[f"{path}/scale"] = (size,)
        if config.norm.centered:
            shapes[f"{path}/bias"] = (size,)

    def linear(path: str, shape: tuple[int, int], has_bias: bool) -> None:
        shapes[f"{path}/weight"] = shape
        if has_bias:
            shapes[f"{path}/bias"] = shape[:1]

    if config.learned_positions:
        shapes["positions/weight"] = (config.max_position_embeddings, hidden)
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    before = config.placement is not NormPlacement.AFTER
    after = config.placement is not NormPlacement.BEFORE
    for i, kind in enumerate(config.layers):
        layer = f"layers_{i}"
        for block in ("attn", "mlp"):
            if before:
                norm(f"{layer}/{block}_norm")
            if after:
                norm(f"{layer}/{block}_post_norm")
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            linear(f"{layer}/attn/{name}", (size, hidden), config.qkv_bias)
            if name != "v" and config.qk_norm is not QueryKeyNorm.NONE:
                whole = config.qk_norm is QueryKeyNorm.ALL
                norm(f"{layer}/attn/{name}_norm", size if whole else config.head_dim)
        linear(f"{layer}/attn/o", (hidden, queries), config.output_bias)
        if kind.experts is not None:
            count, inner = kind.experts.count, kind.experts.hidden_features
            shapes[f"{layer}/moe/router/weight"] = (count, hidden)
            shapes[f"{layer}/moe/gate"] = shapes[f"{layer}/moe/up"] = (count, inner, hidden)
            shapes[f"{layer}/moe/down"] = (count, hidden, inner)
            continue
        inner = config.intermediate_size
        if config.gated:
            linear(f"{layer}/mlp/gate", (inner, hidden), config.mlp_bias)
        linear(f"{layer}/mlp/up", (inner, hidden), config.mlp_bias)
        linear(f"{layer}/mlp/down", (hidden, inner), config.mlp_bias)
    norm("final_norm")
    if not config.tie_word_embeddings:
        shapes["head/weight"] = (vocab, hidden)
    return int8_shapes(shapes) if config.int8 else shapes


@dataclass(frozen=True)
class _Wanted:
    """A stored tensor that must be there, and what becomes of it."""

    name: str
    shape: tuple[int, ...]
    take: Callable[[StoredTensor], StoredTensor]


def place(
    tensors: Mapping[str, StoredTensor],
    config: DecoderConfig,
    table: Table,
    *,
    source: str,
    ignore: Callable[[str], bool] = lambda _: False,
) -> list[Leaf]:
    """Matches a checkpoint's tensors with the parameter tree.

    Args:
        tensors: What the file holds, by the file's names.
        config: The model that the file claims to be.
        table: `HUGGING_FACE`, one of `HUGGING_FACE_BY_FAMILY`, or what gguf_names.py gives.
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
    shapes = parameter_shapes(config)
    wanted = {path: _stored(path, shapes, table) for path in shapes}
    names = dict.fromkeys(piece.name for pieces in wanted.values() for piece in pieces)
    missing = [name for name in names if name not in tensors]
    if missing:
        raise LookaheadError(f"{source}: tensor {_first_of(missing)} is missing")
    extra = [name for name in tensors if name not in names and not ignore(name)]
    if extra:
        raise LookaheadError(f"{source}: tensor {_first_of(extra)} is not part of this model")
    order = {name: position for position, name in enumerate(tensors)}
    leaves: list[tuple[int, Leaf]] = []
    for path, pieces in wanted.items():
        for piece in pieces:
            shape = tensors[piece.name].shape
            if shape != piece.shape:
                raise LookaheadError(
                    f"{source}: tensor {piece.name} has shape {list(shape)}, expected "
                    f"{list(piece.shape)}"
                )
        taken = tuple(piece.take(tensors[piece.name]) for piece in pieces)
        apart = len(pieces[0].shape) < len(shapes[path])
        leaf = (tuple(path.split("/")), taken if apart else taken[0])
        leaves.append((order[pieces[0].name], leaf))
    return [leaf for _, leaf in sorted(leaves, key=lambda entry: entry[0])]


def _stored(path: str, shapes: Mapping[str, tuple[int, ...]], table: Table) -> list[_Wanted]:
    """The stored tensors that a parameter is made of."""
    layer = re.match(r"layers_(\d+)/", path)
    numbers = [int(layer[1])] if layer else []
    entry = table[re.sub(r"^layers_\d+", "layers", path)]
    shape = shapes[path]
    if isinstance(entry, str):
        if len(shape) < 3 or entry.count("{}") == len(numbers):
            return [_Wanted(entry.format(*numbers), shape, lambda stored: stored)]
        return [
            _Wanted(entry.format(*numbers, expert), shape[1:], lambda stored: stored)
            for expert in range(shape[0])
        ]
    prefix = f"layers_{numbers[0]}" if numbers else ""
    siblings = [name.replace("layers", prefix, 1) for name in entry.of]
    rows = [shapes[name][0] for name in siblings]
    first, count = sum(rows[: siblings.index(path)]), shape[0]
    whole = (sum(rows), *shape[1:])
    whole = whole[::-1] if entry.transposed else whole

    def take(stored: StoredTensor) -> StoredTensor:
        if entry.transposed:
            return replace(stored, columns=(first, count))
        return stored.rows(first, count)

    return [_Wanted(entry.name.format(*numbers), whole, take)]


def _first_of(names: list[str]) -> str:
    rest = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"{names[0]}{rest}"
