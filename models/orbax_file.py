"""Parameter trees by Orbax: written chunk by chunk, read into the dtype and place that is wanted.

Orbax is imported where it is used: that takes a while.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Checkpoint
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.manifest import (
    PARAMS,
    TOKENIZER,
    Manifest,
    describe_files,
    read_manifest,
    write_manifest,
)
from lookahead_jax.models.names import parameter_shapes
from lookahead_jax.models.quantisation import is_matrix, quantise, scale_path
from lookahead_jax.models.tokenizer import TransformersTokenizer, tokenizer_from_directory
from lookahead_jax.models.weights import DTYPES, Progress, Target

CHUNK_BYTES = 1 << 22
"""Size of the pieces of a stored matrix: a device reads those that its own part lies in."""

GROUP_BYTES = 1 << 26
"""Read at a time. More is where a parameter is larger, or the tree more than 32 times as large: a
read costs some time of its own."""

Place = tuple[str, ...]
"""Keys from the root of the tree to a parameter."""


def write_checkpoint(directory: Path, checkpoint: Checkpoint, dtype: str) -> None:
    """Writes a checkpoint into an empty directory, the file that makes it one last of all.

    Parameters on a CPU are written from where they are; Orbax brings others to the host as a whole.

    Args:
        directory: Exists, and is empty.
        checkpoint: What to write.
        dtype: Of the parameters that are not int8 or their scales, a key of `DTYPES`.

    Raises:
        OSError: A file cannot be written.
    """
    import orbax.checkpoint as ocp

    params = checkpoint.params
    # Weights hardly shrink, and compression would need memory for what is under way.
    handler = ocp.PyTreeCheckpointHandler(use_compression=False)
    chunks = jax.tree.map(lambda leaf: ocp.SaveArgs(chunk_byte_size=_chunk(leaf.shape)), params)
    with _without_logging(), ocp.Checkpointer(handler) as checkpointer:
        arguments = ocp.args.PyTreeSave(params, save_args=chunks)
        try:
            checkpointer.save((directory / PARAMS).absolute(), args=arguments)
        except ValueError as error:  # what TensorStore raises where the disk is full
            raise OSError(_reason(error)) from error
    tokenizer = checkpoint.tokenizer
    if isinstance(tokenizer, TransformersTokenizer):
        tokenizer.save(directory / TOKENIZER)
    manifest = Manifest(
        config=checkpoint.config,
        dtype=dtype,
        stop_tokens=checkpoint.stop_tokens,
        has_tokenizer=isinstance(tokenizer, TransformersTokenizer),
        files=describe_files(directory / PARAMS),
    )
    write_manifest(directory, manifest)


def load_checkpoint(
    directory: Path, target: Target, progress: Progress | None = None
) -> Checkpoint:
    """Loads a checkpoint straight into the target's dtype and places.

    Each device reads its own part of a parameter; no parameter is on the host as a whole, unless it
    is rounded to int8 on the way. What the checkpoint has in int8 stays so.

    Args:
        directory: Has lookahead_jax.json.
        target: What the parameters become.
        progress: Told how far the reading is.

    Raises:
        LookaheadError: A file is missing or damaged, or does not fit the configuration.
    """
    manifest = read_manifest(directory)
    target.admit(manifest.config)
    tokenizer = tokenizer_from_directory(directory / TOKENIZER) if manifest.has_tokenizer else None
    if manifest.has_tokenizer and tokenizer is None:
        raise LookaheadError(f"{directory / TOKENIZER}: expected a tokenizer, found none")
    with _without_logging(), _damage_told(directory):
        params = _restore((directory / PARAMS).absolute(), manifest.config, target, progress)
    return Checkpoint(manifest.config, params, manifest.stop_tokens, tokenizer)


def check_stored(stored: Mapping[Place, Any], config: DecoderConfig, source: str) -> None:
    """Compares what is stored with the configuration, before anything of it is read.

    Args:
        stored: Orbax's metadata of every array.
        config: The model that they are meant to be of.
        source: Name of the checkpoint, for messages.

    Raises:
        LookaheadError: A tensor is missing, unexpected, or has another shape or dtype.
    """
    shapes = {tuple(name.split("/")): shape for name, shape in parameter_shapes(config).items()}
    for path in [*shapes, *stored]:
        name = "/".join(path)
        if path not in stored:
            raise LookaheadError(f"{source}: tensor {name} is missing")
        if path not in shapes:
            raise LookaheadError(f"{source}: tensor {name} is not part of this model")
        leaf, shape = stored[path], shapes[path]
        if getattr(leaf, "shape", None) is None:
            raise LookaheadError(f"{source}: tensor {name} is not an array")
        if tuple(leaf.shape) != shape:
            raise LookaheadError(
                f"{source}: tensor {name} has shape {list(leaf.shape)}, expected {list(shape)}"
            )
        kept = _kept_dtype(path, config)
        expected = DTYPES.values() if kept is None else (kept,)
        if leaf.dtype not in expected:
            names = ", ".join(dtype.name for dtype in expected)
            raise LookaheadError(
                f"{source}: tensor {name} is stored as {leaf.dtype}, expected {names}"
            )
        chunk = shape if leaf.storage is None else leaf.storage.chunk_shape or shape
        if any(size > most for size, most in zip(chunk, shape, strict=True)):
            raise LookaheadError(f"{source}: tensor {name} is stored in pieces of {list(chunk)}")


def _kept_dtype(path: Place, config: DecoderConfig) -> np.dtype[Any] | None:
    """The dtype of a parameter that is not converted; None for the floats that are."""
    if not config.int8:
        return None
    if is_matrix(path):
        return np.dtype(np.int8)
    return np.dtype(np.float32) if path[-1].endswith("_scale") else None


def _restore(
    directory: Any, config: DecoderConfig, target: Target, progress: Progress | None
) -> dict[str, Any]:
    """The parameter tree, read a group of parameters at a time, from a `pathlib.Path`.

    (Orbax asks for a path class of its own, and does with this one.)
    """
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler()
    stored = dict(_flat(handler.metadata(directory).tree))
    check_stored(stored, config, str(directory))
    default = jax.device_put(np.int32(0)).sharding
    sizes = {path: leaf.dtype.itemsize * math.prod(leaf.shape) for path, leaf in stored.items()}
    tree: dict[str, Any] = {}
    done = 0
    for group in _groups(sizes):
        wanted, arguments = {}, {}
        for path in group:
            shape = tuple(stored[path].shape)
            if _is_rounded(path, config, target):
                wanted[path] = jax.ShapeDtypeStruct(shape, jnp.float32)
                arguments[path] = ocp.RestoreArgs(
                    restore_type=np.ndarray, dtype=np.dtype(np.float32)
                )
                continue
            sharding = None if target.sharder is None else target.sharder(path, shape)
            dtype = _kept_dtype(path, config) or DTYPES[target.dtype]
            wanted[path] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding or default)
            arguments[path] = ocp.ArrayRestoreArgs(sharding=sharding or default, dtype=dtype)
        restored = handler.restore(
            directory,
            args=ocp.args.PyTreeRestore(
                item=_nested(wanted), restore_args=_nested(arguments), partial_restore=True
            ),
        )
        for path, leaf in _flat(restored):
            if _is_rounded(path, config, target):
                leaf, scale = quantise(leaf)
                _insert(tree, scale_path(path), target.put(scale_path(path), scale))
                leaf = target.put(path, leaf)
            _insert(tree, path, leaf)
        done += sum(sizes[path] for path in group)
        if progress is not None:
            progress(done, sum(sizes.values()))
    return tree


def _is_rounded(path: Place, config: DecoderConfig, target: Target) -> bool:
    return target.int8 and not config.int8 and is_matrix(path)


def _groups(sizes: Mapping[Place, int]) -> Iterator[list[Place]]:
    """The parameters in their order, some at a time."""
    group: list[Place] = []
    size, most = 0, max(GROUP_BYTES, sum(sizes.values()) // 32)
    for path, more in sizes.items():
        if group and size + more > most:
            yield group
            group, size = [], 0
        group.append(path)
        size += more
    if group:
        yield group


def _chunk(shape: tuple[int, ...]) -> int | None:
    """Bytes of a chunk, None for one chunk.

    Orbax divides a dimension into equal parts. The rows of a vocabulary with few divisors, which
    cannot be shared out among devices either, would each be a chunk of their own.
    """
    return CHUNK_BYTES if all(size % 64 == 0 for size in shape[-2:]) else None


def _flat(tree: Any, path: Place = ()) -> Iterator[tuple[Place, Any]]:
    if not isinstance(tree, Mapping):
        yield path, tree
        return
    for key, child in tree.items():
        yield from _flat(child, (*path, str(key)))


def _nested(leaves: Mapping[Place, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        _insert(tree, path, leaf)
    return tree


def _insert(tree: dict[str, Any], path: Place, leaf: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = leaf


@contextmanager
def _damage_told(directory: Path) -> Iterator[None]:
    """Turns what Orbax and TensorStore raise for damaged files into a line."""
    try:
        yield
    except (LookaheadError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # a bare one is what Orbax raises where a read fails
        raise LookaheadError(f"{directory} is damaged: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What a long message of TensorStore comes down to."""
    cause = error.__cause__ or error
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    code = re.search(r"os_error_code='(\d+)'", reason)
    return os.strerror(int(code[1])) if code else reason


@contextmanager
def _without_logging() -> Iterator[None]:
    """Keeps absl, which Orbax logs by, from giving the root logger a handler where it has none.

    A program that has set up logging itself sees what it wants to see.
    """
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)
