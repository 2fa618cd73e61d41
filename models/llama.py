"""The Llama family (Llama 2, 3, 3.1 and later, SmolLM2) in Flax Linen."""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.attention import attend
from lookahead_jax.kv_cache import BlockKV, KVCache, init_cache
from lookahead_jax.models.config import LlamaConfig
from lookahead_jax.models.layers import GatedMLP, Linear, RMSNorm, product
from lookahead_jax.models.rope import rotate, rotation
from lookahead_jax.typing import Array, CacheSpec, Params


class Attention(nn.Module):
    """Grouped-query attention of the block over prefix and block."""

    config: LlamaConfig

    @nn.compact
    def __call__(
        self,
        x: Array,
        turn: tuple[Array, Array],
        block_mask: Array,
        cached: tuple[Array, Array],
        length: Array,
    ) -> tuple[Array, Array, Array]:
        """Attends, for x [hidden, B * T].

        Returns the output [hidden, B * T], and the block's keys and values [B, K, T, D].
        """
        c, (batch_size, num_rows) = self.config, block_mask.shape[:2]
        group, bias = c.num_attention_heads // c.num_key_value_heads, c.attention_bias

        def heads(name: str, count: int) -> Array:
            """[B, K, count, T, D]: rows of `count` heads for each key/value head."""
            features = c.num_key_value_heads * count * c.head_dim
            y = Linear(features, bias, name=name)(x)
            y = y.reshape(c.num_key_value_heads, count, c.head_dim, batch_size, num_rows)
            return y.transpose(3, 0, 1, 4, 2)

        queries = rotate(heads("q", group), *turn)
        keys = rotate(heads("k", 1)[:, :, 0], *turn)
        values = heads("v", 1)[:, :, 0]
        mixed = attend(queries, *cached, length, keys, values, block_mask, scale=c.head_dim**-0.5)
        mixed = mixed.transpose(1, 2, 4, 0, 3).reshape(-1, batch_size * num_rows)
        return Linear(x.shape[0], bias, name="o")(mixed), keys, values


class Layer(nn.Module):
    """One pre-norm decoder layer."""

    config: LlamaConfig

    @nn.compact
    def __call__(
        self,
        x: Array,
        turn: tuple[Array, Array],
        block_mask: Array,
        cached: tuple[Array, Array],
        length: Array,
    ) -> tuple[Array, Array, Array]:
        """Attention, then the gated MLP, each added to its input."""
        c = self.config
        normed = RMSNorm(c.rms_norm_eps, name="attn_norm")(x)
        mixed, keys, values = Attention(c, name="attn")(normed, turn, block_mask, cached, length)
        x = x + mixed
        normed = RMSNorm(c.rms_norm_eps, name="mlp_norm")(x)
        return x + GatedMLP(c.intermediate_size, c.mlp_bias, name="mlp")(normed), keys, values


class Llama(nn.Module):
    """The decoder: embedding, layers, final norm and head."""

    config: LlamaConfig

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
        table = Embedding(c, name="embed")()
        x = table[tokens.reshape(-1)].T
        turn = rotation(c, positions)
        keys, values = [], []
        for i in range(c.num_hidden_layers):
            layer = Layer(c, name=f"layers_{i}")
            x, k, v = layer(x, turn, block_mask, (cache.keys[i], cache.values[i]), cache.length)
            keys.append(k)
            values.append(v)

        # Only the wanted rows go through the head, which is a large share of a small model.
        flat = logit_rows + num_rows * jnp.arange(batch_size)[:, None]
        # The barrier keeps the gather's transpose out of the product, which would turn it around.
        wanted = lax.optimization_barrier(x[:, flat.reshape(-1)])
        wanted = RMSNorm(c.rms_norm_eps, name="final_norm")(wanted)
        weight = table if c.tie_word_embeddings else Embedding(c, name="head")()
        logits = product(weight, wanted).reshape(c.vocab_size, *logit_rows.shape)
        return logits.transpose(1, 2, 0), BlockKV(tuple(keys), tuple(values))


class Embedding(nn.Module):
    """A [V, hidden] table."""

    config: LlamaConfig

    @nn.compact
    def __call__(self) -> Array:
        """The table itself: it is read as rows by the embedding and as a matrix by the head."""
        shape = (self.config.vocab_size, self.config.hidden_size)
        return self.param("weight", nn.initializers.normal(0.02), shape)


@dataclass(frozen=True)
class LlamaForward:
    """The model as a `ForwardFn`: hashable, equal by configuration."""

    config: LlamaConfig

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
        return Llama(self.config).apply(
            {"params": params}, tokens, positions, block_mask, cache, logit_rows
        )  # pyright: ignore[reportReturnType]


def cache_spec(config: LlamaConfig, dtype: str) -> CacheSpec:
    """Shape of the model's key/value cache."""
    return CacheSpec(
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        dtype=dtype,
    )


def abstract_params(config: LlamaConfig, dtype: str) -> Params:
    """The parameter tree as `jax.ShapeDtypeStruct`s, to compile or plan memory without weights."""
    row, rows = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)

    def init() -> Params:
        cache = init_cache(cache_spec(config, "float32"), 1, 1)
        return Llama(config).init(jax.random.key(0), row, row, rows, cache, row)["params"]

    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, dtype), jax.eval_shape(init))
