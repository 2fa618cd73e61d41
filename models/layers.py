"""The building blocks of a decoder, with activations kept features-first.

Activations are [features, M] for M = B * T rows, and a weight is [out, in] as checkpoints store it.
This is the one place that decides the orientation of the matrix products: `weight @ x` is two to
three times as fast as `x.T @ weight.T` for the few rows of a decoding step on XLA:CPU, and makes no
difference on accelerators, where XLA chooses the layouts of both operands itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from lookahead_jax.models.config import Activation, Experts, Norm
from lookahead_jax.typing import Array


@dataclass(frozen=True)
class Matrix:
    """A weight [out, in], or a stack of them, as it is or as int8 with a scale for each row."""

    values: Array  # [..., out, in]
    scale: Array | None = None  # float32 [..., out]

    def times(self, x: Array) -> Array:
        """Product with x [in, M], accumulated and returned in float32, [out, M]."""
        if self.scale is None:
            return product(self.values, x)
        # Integers up to 127 are exact in every dtype, and the scale waits until after the sum.
        return product(self.values.astype(x.dtype), x) * self.scale[:, None]

    def rows(self, index: Array, dtype: DTypeLike) -> Array:
        """Rows [n, in] of an index int32 [n]."""
        taken = self.values[index]
        if self.scale is None:
            return taken.astype(dtype)
        return (taken.astype(jnp.float32) * self.scale[index][:, None]).astype(dtype)


def matrix(
    module: nn.Module, name: str, shape: tuple[int, ...], dtype: DTypeLike, int8: bool
) -> Matrix:
    """A module's weight of this name; where it is int8, `{name}_scale` stands beside it."""
    normal, ones = nn.initializers.normal(0.02), nn.initializers.ones_init()
    if not int8:
        return Matrix(module.param(name, normal, shape, dtype))
    values = module.param(name, nn.initializers.zeros_init(), shape, jnp.int8)
    return Matrix(values, module.param(f"{name}_scale", ones, shape[:-1], jnp.float32))


class Linear(nn.Module):
    """[in, M] to [out, M]."""

    features: int
    use_bias: bool = False
    int8: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Applies the weight, and the bias where there is one."""
        shape = (self.features, x.shape[0])
        weight = matrix(self, "weight", shape, x.dtype, self.int8)
        y = weight.times(x).astype(x.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros_init(), shape[:1], x.dtype)
            y = y + bias[:, None]
        return y


class Normalise(nn.Module):
    """A norm over the features, in float32."""

    norm: Norm

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalises the features of x [features, M] or [features, ...]."""
        shape = (x.shape[0], *(1,) * (x.ndim - 1))
        scale = self.param("scale", nn.initializers.ones_init(), x.shape[:1], x.dtype)
        wide = x.astype(jnp.float32)
        if self.norm.centered:
            wide = wide - jnp.mean(wide, axis=0, keepdims=True)
        mean_square = jnp.mean(jnp.square(wide), axis=0, keepdims=True)
        wide = wide * lax.rsqrt(mean_square + self.norm.epsilon)
        # Families differ in when they round to the dtype of the activations.
        y = wide if self.norm.rounds_last else wide.astype(x.dtype)
        scale = scale.astype(y.dtype)
        if self.norm.offset:
            scale = scale + np.asarray(self.norm.offset, y.dtype)
        y = y * scale.reshape(shape)
        if self.norm.centered:
            bias = self.param("bias", nn.initializers.zeros_init(), x.shape[:1], x.dtype)
            y = y + bias.astype(y.dtype).reshape(shape)
        return y.astype(x.dtype)


class MLP(nn.Module):
    """down(activation(gate(x)) * up(x)), or down(activation(up(x))) where there is no gate."""

    hidden_features: int
    activation: Activation
    gated: bool = True
    use_bias: bool = False
    int8: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [features, M] to itself."""

        def linear(name: str, features: int, x: Array) -> Array:
            return Linear(features, self.use_bias, self.int8, name=name)(x)

        up = linear("up", self.hidden_features, x)
        if self.gated:
            inner = activate(self.activation, linear("gate", self.hidden_features, x)) * up
        else:
            inner = activate(self.activation, up)
        return linear("down", x.shape[0], inner)


class MixtureOfExperts(nn.Module):
    """Each row goes to its likeliest experts, which are gated MLPs; their outputs are weighted.

    Every expert computes every row, and what is not chosen is weighted with 0: the shapes are
    static, and a round's rows together choose most of the experts anyway.
    """

    experts: Experts
    activation: Activation
    int8: bool = False

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [features, M] to itself."""
        e, features = self.experts, x.shape[0]
        logits = Linear(e.count, name="router")(x).astype(jnp.float32)
        probabilities = jax.nn.softmax(logits, axis=0)
        chosen, which = lax.top_k(probabilities.T, e.top_k)  # [M, k]
        if e.normalise:
            chosen = chosen / jnp.sum(chosen, axis=-1, keepdims=True)
        is_expert = which[:, :, None] == jnp.arange(e.count)[None, None]
        weights = jnp.sum(jnp.where(is_expert, chosen[:, :, None], 0.0), axis=1)  # [M, E]

        def stacked(name: str, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
            stack = matrix(self, name, (e.count, *shape), x.dtype, self.int8)
            return stack.values, stack.scale

        stacks = (
            stacked("gate", (e.hidden_features, features)),
            stacked("up", (e.hidden_features, features)),
            stacked("down", (features, e.hidden_features)),
        )

        def add(total: Array, expert: tuple) -> tuple[Array, None]:
            (gate, up, down), weight = expert
            inner = activate(self.activation, Matrix(*gate).times(x).astype(x.dtype))
            inner = inner * Matrix(*up).times(x).astype(x.dtype)
            return total + weight[None, :] * Matrix(*down).times(inner), None

        total = jnp.zeros(x.shape, jnp.float32)
        total, _ = lax.scan(add, total, (stacks, weights.T))
        return total.astype(x.dtype)


def activate(activation: Activation, x: Array) -> Array:
    """The nonlinearity of an MLP."""
    match activation:
        case Activation.SILU:
            return jax.nn.silu(x)
        case Activation.GELU_TANH:
            return jax.nn.gelu(x, approximate=True)
        case Activation.GELU:
            return jax.nn.gelu(x, approximate=False)


def softcap(x: Array, cap: float | None) -> Array:
    """Squeezed smoothly between -cap and cap; as it is where there is none."""
    return x if cap is None else jnp.tanh(x / np.float32(cap)) * np.float32(cap)


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
