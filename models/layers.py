"""The building blocks of a decoder, with activations kept features-first.

Activations are [features, M] for M = B * T rows, and a weight is [out, in] as checkpoints store it.
This is the one place that decides the orientation of the matrix products: `weight @ x` is two to
three times as fast as `x.T @ weight.T` for the few rows of a decoding step on XLA:CPU, and makes no
difference on accelerators, where XLA chooses the layouts of both operands itself.
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from lookahead_jax.typing import Array


class Linear(nn.Module):
    """[in, M] to [out, M]."""

    features: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Applies the weight, and the bias where there is one."""
        shape = (self.features, x.shape[0])
        weight = self.param("weight", nn.initializers.normal(0.02), shape, x.dtype)
        y = product(weight, x).astype(x.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), shape[:1], x.dtype)
            y = y + bias[:, None]
        return y


class RMSNorm(nn.Module):
    """Root-mean-square norm over the features, in float32."""

    epsilon: float

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises x [features, M]."""
        scale = self.param("scale", nn.initializers.ones_init(), x.shape[:1], x.dtype)
        wide = x.astype(jnp.float32)
        inverse = lax.rsqrt(jnp.mean(jnp.square(wide), axis=0, keepdims=True) + self.epsilon)
        return (wide * inverse).astype(x.dtype) * scale[:, None]


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    hidden_features: int
    use_bias: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [features, M] to itself."""
        gate = Linear(self.hidden_features, self.use_bias, name="gate")(x)
        up = Linear(self.hidden_features, self.use_bias, name="up")(x)
        return Linear(x.shape[0], self.use_bias, name="down")(jax.nn.silu(gate) * up)


def product(weight: Array, x: Array) -> Array:
    """Product of weight [out, in] and x [in, M], accumulated and returned in float32."""
    return lax.platform_dependent(weight, x, cpu=_product_of_few, default=_product)


def _product(weight: Array, x: Array) -> Array:
    # HIGHEST: float32 means float32. Accelerators would round the factors by default, and a round
    # and an ordinary step would then part at near ties. It changes nothing for bfloat16.
    return lax.dot_general(
        weight,
        x,
        (((1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def _product_of_few(weight: Array, x: Array) -> Array:
    """The product for XLA:CPU, whose kernels lose a fifth of their speed on 5, 7 or 13 columns."""
    columns = x.shape[1]
    if not 1 < columns < 32:
        return _product(weight, x)
    padded = max(8, 1 << (columns - 1).bit_length())
    return _product(weight, jnp.pad(x, ((0, 0), (0, padded - columns))))[:, :columns]
