"""A model on a slice of TPU chips: how they are used, and what each of them has to hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lookahead_jax.config import LookaheadConfig
from lookahead_jax.cost import temporary_kv_bytes
from lookahead_jax.errors import LookaheadError
from lookahead_jax.hardware import Slice
from lookahead_jax.model_shape import ModelShape, NumberFormat, Weights
from lookahead_jax.shards import build_shards

FLOAT_BYTES = 4
"""Of a logit, of a partial sum of a product, of a token id."""

USABLE = 0.95
"""Share of the memory that may be planned with; programs and gaps take the rest."""

MOST_ROWS = 1000
"""Of a round. Who sees whom is worked out for each pair of them, where copies share them out."""

CACHE_BUCKET = 64
"""A cache holds a multiple of this many tokens."""


@dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of the mesh (sharding.py).

    Raises:
        LookaheadError: A number is not an int of at least 1.
    """

    data: int = 1
    lookahead: int = 1
    model: int = 1

    def __post_init__(self) -> None:
        for axis in ("data", "lookahead", "model"):
            size = getattr(self, axis)
            if type(size) is not int or size < 1:
                raise LookaheadError(f"mesh axis {axis} must be an integer >= 1, got {size!r}")

    @property
    def size(self) -> int:
        """Devices in all."""
        return self.data * self.lookahead * self.model

    def __str__(self) -> str:
        return f"data={self.data},lookahead={self.lookahead},model={self.model}"


@dataclass(frozen=True)
class Deployment:
    """A model, how it decodes, and what on.

    Attributes:
        shape: The model.
        form: Of weights, activations and cache.
        config: W, N and G.
        tpu: The chips.
        mesh: How they are used; not all of them need be.
        batch_size: B, sequences decoded together.
        context: Tokens of prompt and output of the longest text; times are those at its end.

    Raises:
        LookaheadError: The mesh does not fit model, batch or slice, or a number is out of range.
    """

    shape: ModelShape
    form: NumberFormat
    config: LookaheadConfig
    tpu: Slice
    mesh: MeshShape
    batch_size: int = 1
    context: int = 4096

    def __post_init__(self) -> None:
        mesh, heads = self.mesh, self.shape.num_kv_heads
        for name, value in (("batch", self.batch_size), ("context", self.context)):
            if type(value) is not int or value < 1:
                raise LookaheadError(f"{name} must be an integer >= 1, got {value!r}")
        if self.config.num_rows > MOST_ROWS:
            raise LookaheadError(
                f"expected a round of at most {MOST_ROWS} rows, (W + G)(N - 1), "
                f"got {self.config.num_rows}"
            )
        if self.context > self.shape.max_length:
            raise LookaheadError(
                f"context must be at most {self.shape.max_length}, the context window of "
                f"{self.shape.name}, got {self.context}"
            )
        if mesh.size > self.tpu.num_devices:
            raise LookaheadError(
                f"mesh {mesh} needs {mesh.size} devices, {self.tpu.name} has {self.tpu.num_devices}"
            )
        if heads % mesh.model:
            raise LookaheadError(
                f"mesh axis model={mesh.model} must divide the {heads} key/value heads of "
                f"{self.shape.name}"
            )
        if self.batch_size % mesh.data:
            raise LookaheadError(
                f"mesh axis data={mesh.data} must divide the batch of {self.batch_size}"
            )

    @property
    def local_batch(self) -> int:
        """Sequences that a device decodes."""
        return self.batch_size // self.mesh.data

    @property
    def round_rows(self) -> int:
        """q, rows that a device computes in a round for one sequence, once it is warm."""
        if self.mesh.lookahead == 1:
            return self.config.num_rows
        again = self.config.suffix_length if self.config.kv_exchange == "refeed" else 0
        return build_shards(self.config, self.mesh.lookahead).num_rows + again

    @property
    def round_logit_rows(self) -> int:
        """Rows of them that go through the head."""
        if self.mesh.lookahead == 1:
            return self.config.num_logit_rows
        return build_shards(self.config, self.mesh.lookahead).logit_rows.shape[2]


@dataclass(frozen=True)
class Memory:
    """Bytes on a device.

    Attributes:
        weights: Of the model.
        cache: Keys and values of `context` tokens and a round's overhang.
        state: Pools, windows, texts.
        temporary: Rows of a round: their keys and values, logits, widest activations.
        available: What the device has.
    """

    weights: float
    cache: float
    state: float
    temporary: float
    available: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.weights + self.cache + self.state + self.temporary

    @property
    def fits(self) -> bool:
        """Whether it is at most `USABLE` of what there is."""
        return self.total <= USABLE * self.available


def memory(deployment: Deployment) -> Memory:
    """What a device holds while it decodes."""
    shape, form, config = deployment.shape, deployment.form, deployment.config
    batch, share, chip = deployment.local_batch, deployment.mesh.model, deployment.tpu.chip
    capacity = -(-(deployment.context + config.suffix_length) // CACHE_BUCKET) * CACHE_BUCKET
    suffixes = config.guess_set_size * config.suffix_length
    slots = config.pool_slots
    pool = shape.vocab_size * suffixes if slots is None else slots * (suffixes + 1)
    window = config.window_size * config.num_levels
    rows, logit_rows = deployment.round_rows, deployment.round_logit_rows
    widest = 2 * max(layer.inner_features for layer in shape.layers) / share + 2 * shape.hidden_size
    return Memory(
        weights=weight_bytes(shape, form, share),
        cache=batch * capacity * shape.kv_features * form.item_size / share,
        state=batch * (pool + window + capacity) * FLOAT_BYTES,
        temporary=temporary_kv_bytes(shape, form, rows, batch_size=batch) / share
        + batch * (logit_rows * shape.vocab_size / share + rows * widest) * FLOAT_BYTES,
        available=chip.hbm_bytes / chip.devices,
    )


def weight_bytes(shape: ModelShape, form: NumberFormat, num_devices: int = 1) -> float:
    """Bytes of a model's weights on each of the devices that share a copy (axis `model`)."""
    table = even_share(shape.vocab_size, num_devices)
    return (
        shape.embedding.num_bytes(form, table)
        + (shape.head or Weights()).num_bytes(form, table)
        + shape.final_norm.num_bytes(form)
        + sum(
            count
            * (
                layer.attention.num_bytes(form, num_devices)
                + layer.mlp.num_bytes(form, even_share(layer.inner_features, num_devices))
            )
            for layer, count in Counter(shape.layers).items()
        )
    )


def even_share(size: int, num_devices: int) -> int:
    """What an axis divides a dimension by: one that it does not divide evenly stays whole."""
    return 1 if size % num_devices else num_devices
