"""The device mesh, and the one table of what goes where on it.

A mesh has three axes:

    data       sequences of the batch; each group of devices decodes its own
    lookahead  copies of the model that share out the rows of a round (parallel.py)
    model      shares of the weights: tensor parallelism within a copy

The first two are ours (`jax.shard_map`). Along `model` XLA's partitioner follows the shardings of
the weights, so a model that does not fit one chip still gets Lookahead Parallelism, over groups.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from lookahead_jax.errors import LookaheadError

DATA, LOOKAHEAD, MODEL = "data", "lookahead", "model"
AXES = (DATA, LOOKAHEAD, MODEL)


@dataclass(frozen=True)
class Rule:
    """Where arrays of some paths go: the mesh axis of each dimension, trailing ones on all."""

    what: str
    path: str
    """A regular expression for the whole path, keys joined by slashes."""
    axes: tuple[str | None, ...]


RULES = (
    Rule("key/value cache", r"state/cache/(keys|values)/\d+", (DATA, MODEL)),
    Rule("cache length", r"state/cache/.*", (DATA,)),
    Rule("tokens", r"state/sequences/.*", (DATA,)),
    Rule("window", r"state/window/.*", (DATA,)),
    Rule("pool", r"state/pool/.*", (DATA,)),
    Rule("counts and the rest of a state", r"state/.*", (DATA,)),
    Rule("embedding and head", r"params/(embed|head)/weight(_scale)?", (MODEL,)),
    Rule("heads", r"params/.*/attn/[qkv]/.*", (MODEL,)),
    Rule("heads, gathered", r"params/.*/attn/o/weight", (None, MODEL)),
    Rule("MLP", r"params/.*/mlp/(gate|up)/.*", (MODEL,)),
    Rule("MLP, gathered", r"params/.*/mlp/down/weight", (None, MODEL)),
    Rule("experts", r"params/.*/moe/(gate|up)(_scale)?", (None, MODEL)),
    Rule("experts, gathered", r"params/.*/moe/down", (None, None, MODEL)),
    Rule("norms, biases behind a sum, all else", r"params/.*", ()),
)
"""The first rule that fits counts. A dimension that an axis does not divide stays whole."""


def make_mesh(
    *,
    data: int = 1,
    lookahead: int = 1,
    model: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh for `load_model`; a TPU's devices are placed by their links.

    Args:
        data: Groups that share the batch.
        lookahead: Copies of the model that share the rows of a round.
        model: Devices that share a copy's weights; must divide its key/value heads.
        devices: As many as the product of the three; None: the first ones there are. Where several
            processes work together, all devices must be in the mesh.

    Raises:
        LookaheadError: There are not as many devices.
    """
    sizes = {DATA: data, LOOKAHEAD: lookahead, MODEL: model}
    for axis, size in sizes.items():
        if type(size) is not int or size < 1:
            raise LookaheadError(f"mesh axis {axis} must be an integer >= 1, got {size!r}")
    found = jax.devices() if devices is None else list(devices)
    count = math.prod(sizes.values())
    written = ",".join(f"{axis}={size}" for axis, size in sizes.items())
    if count > len(found):
        raise LookaheadError(f"mesh {written} needs {count} devices, there are {len(found)}")
    if count < len(found) and jax.process_count() > 1:
        raise LookaheadError(
            f"mesh {written} has {count} devices: with {jax.process_count()} processes all "
            f"{len(found)} must be in it"
        )
    return jax.make_mesh(
        tuple(sizes.values()), AXES, axis_types=(AxisType.Auto,) * 3, devices=found[:count]
    )


def parse_mesh(text: str) -> dict[str, int]:
    """Sizes by axis of "data=1,lookahead=4,model=2"; an axis that is not named has 1.

    Raises:
        LookaheadError: It is not written like that.
    """
    sizes = dict.fromkeys(AXES, 1)
    parts = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in parts]
    right = all(re.fullmatch(r"\s*[1-9]\d{0,6}\s*", size) for _, _, size in parts)
    if not right or not set(names) <= set(AXES) or len(set(names)) < len(names):
        raise LookaheadError(
            f"a mesh is written data=1,lookahead=4,model=2 (axes may be left out), got {text!r}"
        )
    return sizes | {name: int(size) for name, (_, _, size) in zip(names, parts, strict=True)}


def manual_axes(mesh: Mesh) -> set[str]:
    """The axes that `jax.shard_map` takes; the partitioner has the other, if there is one.

    It cannot look into kernels, not even along an axis of one device.
    """
    return {DATA, LOOKAHEAD} if mesh.shape[MODEL] > 1 else set(AXES)


def size_of(mesh: Mesh | None, axis: str) -> int:
    """Devices along an axis; 1 without a mesh."""
    return 1 if mesh is None else mesh.shape[axis]


def check_mesh(mesh: object) -> None:
    """Refuses what is no mesh of `make_mesh`.

    Raises:
        LookaheadError: It has other axes, or is something else.
    """
    if not isinstance(mesh, Mesh) or mesh.axis_names != AXES:
        raise LookaheadError(f"expected a mesh of lookahead_jax.make_mesh, got {mesh!r}")


def check_heads(mesh: Mesh, num_kv_heads: int) -> None:
    """Refuses a mesh that a model cannot be put on.

    Raises:
        LookaheadError: It would cut a key/value head.
    """
    if num_kv_heads % mesh.shape[MODEL]:
        raise LookaheadError(
            f"mesh axis model={mesh.shape[MODEL]} must divide the model's {num_kv_heads} "
            f"key/value heads"
        )


def sharding_of(mesh: Mesh, path: str, shape: tuple[int, ...]) -> NamedSharding:
    """Where an array goes by the table.

    Args:
        mesh: The mesh.
        path: "params/..." or "state/...", keys joined by slashes.
        shape: The array's.
    """
    axes = next(rule.axes for rule in RULES if re.fullmatch(rule.path, path))
    fitting = (
        axis if axis is not None and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(axes, shape, strict=False)
    )
    return NamedSharding(mesh, PartitionSpec(*fitting))


def shard_params(params: Any, mesh: Mesh) -> Any:
    """Parameters of a model of one's own, put where the table says; paths as in `RULES`."""
    return jax.device_put(params, shardings(mesh, "params", params))


def shardings(mesh: Mesh, root: str, tree: Any) -> Any:
    """The tree with each array's sharding in its place; `root` is "params" or "state"."""

    def where(path: Any, leaf: Any) -> NamedSharding:
        keys = jax.tree_util.keystr(path, simple=True, separator="/")
        return sharding_of(mesh, f"{root}/{keys}", np.shape(leaf))

    return jax.tree_util.tree_map_with_path(where, tree)
