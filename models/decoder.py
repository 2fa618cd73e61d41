"""The decoder in Flax Linen: one for all families, their differences named in config.py."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from lookahead_jax.attention import Attention as AttentionImplementation
from lookahead_jax.attention import Dense, attend
from lookahead_jax.kv_cache import BlockKV, KVCache, init_cache
from lookahead_jax.models.config import DecoderConfig, LayerKind, NormPlacement, QueryKeyNorm
from lookahead_jax.models.layers import (
    MLP,
    Linear,
    Matrix,
    MixtureOfExperts,
    Normalise,
    matrix,
    softcap,
)
from lookahead_jax.models.rope import rotate, rotation
from lookahead_jax.typing import Array, CacheSpec, Params

Turn = tuple[Array, Array]
"""Cosines and sines of the rows' positions."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Block:
    """What all layers share of a forward call."""

    positions: Array  # int32 [B, T]
    mask: Array  # bool [B, T, T]
    length: Array  # int32 [B], committed prefix


class Attention(nn.Module):
    """Grouped-query attention of the block over prefix and block."""

    config: DecoderConfig
    kind: LayerKind
    implementation: AttentionImplementation | None = None

    @nn.compact
    def __call__(
        self, x: Array, turn: Turn | None, block: Block, cached: tuple[Array, Array]
    ) -> tuple[Array, Array, Array]:
        """Attends, for x [hidden, B * T].

        Returns the output [hidden, B * T], and the block's keys and values [B, K, T, D].
        """
        c, (batch_size, num_rows) = self.config, block.positions.shape
        group = c.num_attention_heads // c.num_key_value_heads

        def heads(name: str, count: int, norm: bool) -> Array:
            """[B, K, count, T, D]: rows of `count` heads for each key/value head."""
            features = c.num_key_value_heads * count * c.head_dim
            y = Linear(features, c.qkv_bias, c.int8, name=name)(x)
            if norm and c.qk_norm is QueryKeyNorm.ALL:
                y = Normalise(c.norm, name=f"{name}_norm")(y)
            y = y.reshape(c.num_key_value_heads, count, c.head_dim, batch_size, num_rows)
            if norm and c.qk_norm is QueryKeyNorm.HEADS:
                y = Normalise(c.norm, name=f"{name}_norm")(y.transpose(2, 0, 1, 3, 4))
                return y.transpose(3, 1, 2, 4, 0)
            return y.transpose(3, 0, 1, 4, 2)

        queries = heads("q", group, norm=True)
        keys = heads("k", 1, norm=True)[:, :, 0]
        values = heads("v", 1, norm=False)[:, :, 0]
        if turn is not None:
            queries, keys = rotate(queries, *turn), rotate(keys, *turn)
        mixed = attend(
            queries,
            *cached,
            block.length,
            keys,
            values,
            block.mask,
            scale=c.head_dim**-0.5 if c.attention_scale is None else c.attention_scale,
            positions=block.positions,
            window=self.kind.window,
            softcap=c.attention_softcap,
            implementation=self.implementation,
        )
        mixed = mixed.transpose(1, 2, 4, 0, 3).reshape(-1, batch_size * num_rows)
        output = Linear(x.shape[0], c.output_bias, c.int8, name="o")(mixed)
        return output, keys, values


class Layer(nn.Module):
    """One decoder layer."""

    config: DecoderConfig
    kind: LayerKind
    attention: AttentionImplementation | None = None

    @nn.compact
    def __call__(
        self, x: Array, turn: Turn | None, block: Block, cached: tuple[Array, Array]
    ) -> tuple[Array, Array, Array]:
        """Attention, then the MLP, each added to its input."""
        c, kind = self.config, self.kind

        def norm(name: str, placement: NormPlacement, x: Array) -> Array:
            if c.placement not in (placement, NormPlacement.AROUND):
                return x
            return Normalise(c.norm, name=name)(x)

        normed = norm("attn_norm", NormPlacement.BEFORE, x)
        attn = Attention(c, kind, self.attention, name="attn")
        mixed, keys, values = attn(normed, turn, block, cached)
        x = x + norm("attn_post_norm", NormPlacement.AFTER, mixed)
        normed = norm("mlp_norm", NormPlacement.BEFORE, x)
        if kind.experts is None:
            mlp = MLP(c.intermediate_size, c.activation, c.gated, c.mlp_bias, c.int8, name="mlp")
        else:
            mlp = MixtureOfExperts(kind.experts, c.activation, c.int8, name="moe")
        return x + norm("mlp_post_norm", NormPlacement.AFTER, mlp(normed)), keys, values


class Decoder(nn.Module):
    """Embedding, layers, final norm and head."""

    config: DecoderConfig
    dtype: DTypeLike = jnp.float32
    """Of the activations, and of all parameters that are not int8."""

    attention: AttentionImplementation | None = None
    """How attention is computed; None: what serves the platform (`lookahead_jax.attention`)."""

    @nn.compact
    def __call__(
        self,
        tokens: Array,
        positions: Array,
        block_mask: Array,
        cache: KVCache,
        logit_rows: Array,
    ) -> tuple[Array, BlockKV]:
        """Runs one block; see `lookahead_jax.typing.ForwardFn`."""
        c, (batch_size, num_rows) = self.config, tokens.shape
        table = Embedding(c.vocab_size, c.hidden_size, self.dtype, c.int8, name="embed")()
        x = table.rows(tokens.reshape(-1), self.dtype).T
        if c.embedding_scale != 1.0:
            x = x * jnp.asarray(c.embedding_scale, x.dtype)
        if c.learned_positions:
            last = c.max_position_embeddings - 1
            rows = Embedding(last + 1, c.hidden_size, self.dtype, name="positions")()
            x = x + rows.rows(jnp.minimum(positions.reshape(-1), last), self.dtype).T
        ropes = dict.fromkeys(kind.rope for kind in c.layers)
        turns = {
            rope: None if rope is None else rotation(rope, positions, cache.extent)
            for rope in ropes
        }
        block = Block(positions, block_mask, cache.length)
        keys, values = [], []
        for i, kind in enumerate(c.layers):
            layer = Layer(c, kind, self.attention, name=f"layers_{i}")
            x, k, v = layer(x, turns[kind.rope], block, (cache.keys[i], cache.values[i]))
            keys.append(k)
            values.append(v)

        # Only the wanted rows go through the head, which is a large share of a small model.
        flat = logit_rows + num_rows * jnp.arange(batch_size)[:, None]
        # The barrier keeps the gather's transpose out of the product, which would turn it around.
        wanted = lax.optimization_barrier(x[:, flat.reshape(-1)])
        wanted = Normalise(c.norm, name="final_norm")(wanted)
        if not c.tie_word_embeddings:
            table = Embedding(c.vocab_size, c.hidden_size, self.dtype, c.int8, name="head")()
        logits = softcap(table.times(wanted), c.final_softcap)
        logits = logits.reshape(c.vocab_size, *logit_rows.shape)
        return logits.transpose(1, 2, 0), BlockKV(tuple(keys), tuple(values))


class Embedding(nn.Module):
    """A [rows, features] table."""

    rows: int
    features: int
    dtype: DTypeLike
    int8: bool = False

    @nn.compact
    def __call__(self) -> Matrix:
        """The table itself: it is read as rows by the embedding and as a matrix by the head."""
        return matrix(self, "weight", (self.rows, self.features), self.dtype, self.int8)


@dataclass(frozen=True)
class DecoderForward:
    """The model as a `ForwardFn`: hashable, equal by configuration."""

    config: DecoderConfig

    attention: AttentionImplementation | None = None
    """How attention is computed; None: what serves the platform (`lookahead_jax.attention`)."""

    def __call__(
        self,
        params: Params,
        tokens: Array,
        positions: Array,
        block_mask: Array,
        cache: KVCache,
        logit_rows: Array,
    ) -> tuple[Array, BlockKV]:
        """See `lookahead_jax.typing.ForwardFn`."""
        dtype = params["final_norm"]["scale"].dtype
        return Decoder(self.config, dtype, self.attention).apply(
            {"params": params}, tokens, positions, block_mask, cache, logit_rows
        )  # pyright: ignore[reportReturnType]


def cache_spec(config: DecoderConfig, dtype: str) -> CacheSpec:
    """Shape of the model's key/value cache."""
    return CacheSpec(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )


def abstract_params(config: DecoderConfig, dtype: str) -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct`s, to compile or plan memory without weights."""
    row, rows = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)

    def init() -> Params:
        cache = init_cache(cache_spec(config, dtype), 1, 1)
        decoder = Decoder(config, jnp.dtype(dtype), Dense())
        return decoder.init(jax.random.key(0), row, row, rows, cache, row)["params"]

    return jax.eval_shape(init)
