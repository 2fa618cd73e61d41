"""Memory, bytes, FLOPs and time of a call on a slice of TPU chips, before any is rented.

A roofline (Williams et al. 2009): each part of a call takes as long as its arithmetic or its memory
traffic takes at the vendor's peak, whichever is longer; the parts, and what crosses between devices
after them, come one after the other. So these are least times. Left out: latencies of programs and
collectives, activations (they stay on the chip), padding of tiles, and everything that is not the
model (pool, verification, sampling), which the benchmarks measure.

All figures are per device: a chip, or for tpu7x half a chip. Shardings are those of sharding.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from lookahead_jax.cost import head_flops, temporary_kv_bytes
from lookahead_jax.deployment import FLOAT_BYTES, Deployment, even_share
from lookahead_jax.model_shape import Weights

FLOAT32_PASSES = 6
"""Products of bfloat16 that one of float32 takes (jax.lax.Precision.HIGHEST, which is used)."""

LINKS = 1 / 4
"""Of the bandwidth of all links, both ways, what an exchange gets: one way, on half of the links.
In a slice of one host a chip has neighbours on about half of them."""


@dataclass(frozen=True)
class Part:
    """A part of a call, all layers together.

    Attributes:
        name: What is done.
        flops: FLOPs of its products.
        bytes: Read from memory and written there.
        seconds: The longer of its two times, summed over layers.
    """

    name: str
    flops: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Call:
    """One call of the model on a device.

    Attributes:
        rows: Rows of one sequence.
        parts: What is done, in order.
        exchanged: Bytes that the device sends to others.
        exchange_seconds: Time of that.
    """

    rows: int
    parts: tuple[Part, ...]
    exchanged: float
    exchange_seconds: float

    @property
    def flops(self) -> float:
        """FLOPs of all products."""
        return sum(part.flops for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes read and written."""
        return sum(part.bytes for part in self.parts)

    @property
    def seconds(self) -> float:
        """Estimated time."""
        return sum(part.seconds for part in self.parts) + self.exchange_seconds


def ordinary_step(deployment: Deployment) -> Call:
    """A step of ordinary decoding: one row a sequence. The axis `lookahead` does not help it."""
    return _call(deployment, 1, 1, _all_reduce(deployment, 1))


def lookahead_round(deployment: Deployment) -> Call:
    """A round of lookahead decoding, once it is warm and with all G candidates."""
    exchanged = _all_reduce(deployment, deployment.round_rows) + _publication(deployment)
    return _call(deployment, deployment.round_rows, deployment.round_logit_rows, exchanged)


def peak_flops(deployment: Deployment) -> float:
    """FLOP/s of a device in the model's dtype. int8 weights are widened before the product."""
    chip = deployment.tpu.chip
    passes = FLOAT32_PASSES if deployment.form.dtype == "float32" else 1
    return chip.bf16_flops / chip.devices / passes


def free_rows(deployment: Deployment) -> int:
    """Rows of one sequence, on a device, that cost about as much as one.

    Up to here the layers' arithmetic takes no longer than reading their weights and cache once.
    """
    call = _call(deployment, 1, 1, 0)
    layers = call.parts[:-1]
    chip = deployment.tpu.chip
    read = sum(part.bytes for part in layers) / (chip.hbm_bandwidth / chip.devices)
    return math.floor(read / (sum(part.flops for part in layers) / peak_flops(deployment)))


def _call(deployment: Deployment, rows: int, logit_rows: int, exchanged: float) -> Call:
    """A call of `rows` rows a sequence."""
    shape, form, chip = deployment.shape, deployment.form, deployment.tpu.chip
    batch, share = deployment.local_batch, deployment.mesh.model
    bandwidth, peak = chip.hbm_bandwidth / chip.devices, peak_flops(deployment)

    def summed(name: str, pieces: Iterable[tuple[float, float, int]]) -> Part:
        """A part of pieces (FLOPs, bytes, how often)."""
        pieces = list(pieces)
        return Part(
            name,
            sum(flops * count for flops, _, count in pieces),
            sum(size * count for _, size, count in pieces),
            sum(max(flops / peak, size / bandwidth) * count for flops, size, count in pieces),
        )

    def products(weights: Weights, divisor: int, count: int) -> tuple[float, float, int]:
        # The router, which is small, is on all devices.
        flops = 2 * (weights.matrix / divisor + weights.router) * rows * batch
        return flops, weights.num_bytes(form, divisor), count

    def attention(prefix: int, count: int) -> tuple[float, float, int]:
        seen = 4 * shape.num_heads * shape.head_dim * (prefix + rows)  # scores, and their mixture
        kv = 2 * shape.num_kv_heads * shape.head_dim * form.item_size
        # The block's own keys and values are written and read.
        return batch * rows * seen / share, batch * kv * (prefix + 2 * rows) / share, count

    layers = Counter(shape.layers)
    prefixes: Counter[int] = Counter()
    for layer, count in layers.items():
        prefixes[layer.prefix_length(deployment.context)] += count
    table = even_share(shape.vocab_size, share)
    logits = batch * logit_rows * shape.vocab_size * FLOAT_BYTES
    head = (
        head_flops(shape, logit_rows, batch_size=batch) / table,
        shape.head_weights.num_bytes(form, table) + 2 * logits / table,
        1,
    )
    links = LINKS * chip.ici_bandwidth / chip.devices
    return Call(
        rows=rows,
        parts=(
            summed("projections", (products(x.attention, share, n) for x, n in layers.items())),
            summed("attention", (attention(*item) for item in prefixes.items())),
            summed(
                "experts" if any(x.experts for x in layers) else "MLP",
                (
                    products(x.mlp, even_share(x.inner_features, share), n)
                    for x, n in layers.items()
                ),
            ),
            summed("head", [head]),
        ),
        exchanged=exchanged,
        exchange_seconds=exchanged / links,
    )


def _ring(size: float, num_devices: int) -> float:
    """Bytes that a device sends in an all-reduce of `size` bytes around a ring."""
    return 2 * size * (num_devices - 1) / num_devices


def _all_reduce(deployment: Deployment, rows: int) -> float:
    """Bytes sent for tensor parallelism.

    Two sums over `model` a layer, of float32 [hidden, rows], and one for the embedding's rows.
    """
    shape = deployment.shape
    size = deployment.local_batch * rows * shape.hidden_size * FLOAT_BYTES
    return _ring((2 * shape.num_layers + 1) * size, deployment.mesh.model)


def _publication(deployment: Deployment) -> float:
    """Lookahead Parallelism: the winner's keys and values, 2 L K S D, and every device's tokens."""
    shape, config, mesh = deployment.shape, deployment.config, deployment.mesh
    if mesh.lookahead == 1:
        return 0.0
    columns = -(-config.window_size // mesh.lookahead)
    tokens = (2 + config.suffix_length + columns) * FLOAT_BYTES * (mesh.lookahead - 1)
    kv = 0.0
    if config.kv_exchange == "broadcast":
        size = temporary_kv_bytes(shape, deployment.form, config.suffix_length)
        kv = _ring(size / mesh.model, mesh.lookahead)
    return deployment.local_batch * (kv + tokens)
