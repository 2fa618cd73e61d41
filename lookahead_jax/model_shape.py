"""What of a language model decides its costs: how many numbers it has, and where they are used.

`lookahead_jax.models.shapes` makes these records from a model's configuration; whoever brings a
model of their own can write one down.
"""

from __future__ import annotations

from dataclasses import dataclass

from lookahead_jax.errors import LookaheadError

ITEM_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

SCALE_BYTES = 4
"""Of the scale that an output channel of an int8 matrix has."""


@dataclass(frozen=True)
class NumberFormat:
    """How weights, activations and cache are kept.

    Attributes:
        dtype: A key of `ITEM_SIZES`.
        int8: Whether matrices are int8 with a float32 scale for each output channel.

    Raises:
        LookaheadError: There is no such dtype.
    """

    dtype: str = "bfloat16"
    int8: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            known = ", ".join(ITEM_SIZES)
            raise LookaheadError(f"dtype must be one of {known}, got {self.dtype!r}")

    @property
    def item_size(self) -> int:
        """Bytes of an activation, or of a cached number."""
        return ITEM_SIZES[self.dtype]

    def __str__(self) -> str:
        return f"int8 and {self.dtype}" if self.int8 else self.dtype


@dataclass(frozen=True)
class Weights:
    """Numbers of one part of a model.

    Attributes:
        matrix: In matrices that int8 applies to.
        channels: Rows of these matrices: each has a scale where they are int8.
        router: In matrices that int8 does not apply to.
        other: In norms, biases, tables of positions: no products.
    """

    matrix: int = 0
    channels: int = 0
    router: int = 0
    other: int = 0

    def __add__(self, more: Weights) -> Weights:
        return Weights(
            self.matrix + more.matrix,
            self.channels + more.channels,
            self.router + more.router,
            self.other + more.other,
        )

    @property
    def count(self) -> int:
        """All numbers, scales of int8 apart."""
        return self.matrix + self.router + self.other

    @property
    def flops_per_row(self) -> int:
        """FLOPs of the products with one row of activations: a multiplication and a sum each."""
        return 2 * (self.matrix + self.router)

    def num_bytes(self, form: NumberFormat, num_devices: int = 1) -> float:
        """Bytes on each of the devices that share the matrices out; the rest is on all of them."""
        kept = (self.router + self.other) * form.item_size
        if form.int8:
            return kept + (self.matrix + SCALE_BYTES * self.channels) / num_devices
        return kept + self.matrix * form.item_size / num_devices


@dataclass(frozen=True)
class LayerShape:
    """One decoder layer.

    Attributes:
        attention: Projections, their norms and biases.
        mlp: The MLP, or all experts, with norms and biases.
        inner_features: Of the MLP, or of one expert.
        window: Positions that a row sees, its own included; None: all before it.
        experts: How many there are, and how many of them a row is meant for; None: an MLP.
    """

    attention: Weights
    mlp: Weights
    inner_features: int
    window: int | None = None
    experts: tuple[int, int] | None = None

    def prefix_length(self, context: int) -> int:
        """Cached tokens that a row of this layer sees."""
        return context if self.window is None else min(context, self.window)


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, as far as its costs go.

    Attributes:
        name: For messages.
        vocab_size: V.
        hidden_size: Features of a row.
        num_heads: H, query heads.
        num_kv_heads: K.
        head_dim: D.
        max_length: Context window in tokens.
        layers: L of them.
        embedding: The table of tokens, and that of positions where there is one.
        head: The matrix of the head; None where it is the table of tokens.
        final_norm: The norm in front of the head.

    Raises:
        LookaheadError: A number is not positive, there is no layer, or the query heads do not
            divide among the key/value heads.
    """

    name: str
    vocab_size: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_length: int
    layers: tuple[LayerShape, ...]
    embedding: Weights
    head: Weights | None
    final_norm: Weights

    def __post_init__(self) -> None:
        for field in ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim"):
            value = getattr(self, field)
            if type(value) is not int or value < 1:
                raise LookaheadError(f"{self.name}: {field} must be an integer >= 1, got {value!r}")
        if not self.layers:
            raise LookaheadError(f"{self.name}: expected at least one layer, got none")
        if self.num_heads % self.num_kv_heads:
            raise LookaheadError(
                f"{self.name}: num_heads must be a multiple of {self.num_kv_heads} "
                f"(num_kv_heads), got {self.num_heads}"
            )

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layers)

    @property
    def layer_weights(self) -> Weights:
        """Of all layers."""
        return sum((layer.attention + layer.mlp for layer in self.layers), Weights())

    @property
    def head_weights(self) -> Weights:
        """The matrix that the head multiplies with, be it the embedding's or its own."""
        if self.head is not None:
            return self.head
        matrix = self.vocab_size * self.hidden_size
        return Weights(matrix=matrix, channels=self.vocab_size)

    @property
    def weights(self) -> Weights:
        """Of the whole model."""
        rest = self.embedding + self.final_norm + (self.head or Weights())
        return self.layer_weights + rest

    @property
    def kv_features(self) -> int:
        """Numbers that the cache keeps of one token, all layers: 2 L K D."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim
