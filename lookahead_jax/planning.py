"""Ways to use the chips of a slice, and what would fit where something does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lookahead_jax.deployment import Deployment, MeshShape, memory
from lookahead_jax.hardware import Slice
from lookahead_jax.model_shape import NumberFormat

SHORTEST_CONTEXT = 512
"""A shorter context is no remedy."""


def all_meshes(deployment: Deployment) -> tuple[Deployment, ...]:
    """The same on every mesh that uses the slice: few devices to a copy of the model come first.

    As many devices as divide the key/value heads share a copy's weights, the rest share the rows
    of a round, until each has a column or a candidate to itself; what is then left takes sequences
    of the batch.
    """
    shape, config, devices = deployment.shape, deployment.config, deployment.tpu.num_devices
    found = []
    for model in _divisors(math.gcd(devices, shape.num_kv_heads)):
        rest = devices // model
        most = max(config.window_size, config.guess_set_size)
        lookahead = min((size for size in _divisors(rest) if size >= most), default=rest)
        data = math.gcd(rest // lookahead, deployment.batch_size)
        found.append(replace(deployment, mesh=MeshShape(data, lookahead, model)))
    return tuple(found)


def choose_mesh(deployment: Deployment) -> Deployment:
    """The first of `all_meshes` that fits; the last one where none does."""
    ways = all_meshes(deployment)
    return next((way for way in ways if memory(way).fits), ways[-1])


@dataclass(frozen=True)
class Remedy:
    """A change by which a model fits.

    Attributes:
        change: What is changed, as options of the command line.
        deployment: The changed one.
    """

    change: str
    deployment: Deployment


def remedies(deployment: Deployment) -> tuple[Remedy, ...]:
    """What would fit in the place of a deployment that does not, smaller changes first."""
    found = []
    for change, changed in _changes(deployment):
        ways = (changed, *all_meshes(changed))
        fitting = next((way for way in ways if memory(way).fits), None)
        if fitting is not None:
            mesh = "" if fitting.mesh == deployment.mesh else f"--mesh {fitting.mesh}"
            remedy = Remedy(" ".join(filter(None, (change, mesh))), fitting)
            found.append(remedy)
            if not change:
                break  # the same on another mesh; no need to give anything up
    return tuple(found)


def _changes(deployment: Deployment) -> Iterator[tuple[str, Deployment]]:
    form, tpu = deployment.form, deployment.tpu
    yield "", deployment
    if form.dtype == "float32":
        yield "--dtype bfloat16", replace(deployment, form=NumberFormat("bfloat16", form.int8))
    if not form.int8:
        yield "--int8", replace(deployment, form=replace(form, int8=True))
        if form.dtype == "float32":
            both = replace(deployment, form=NumberFormat("bfloat16", True))
            yield "--dtype bfloat16 --int8", both
    context = deployment.context // 2
    while context >= SHORTEST_CONTEXT:
        shorter = replace(deployment, context=context)
        if any(memory(way).fits for way in (shorter, *all_meshes(shorter))):
            yield f"--context {context}", shorter
            break
        context //= 2
    chips = 2 * tpu.num_chips
    while chips <= tpu.chip.most_chips:
        larger = replace(deployment, tpu=Slice(tpu.chip, chips))
        if any(memory(way).fits for way in all_meshes(larger)):
            yield f"--tpu {larger.tpu.name}", larger
            break
        chips *= 2


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
