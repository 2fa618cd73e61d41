"""Weights from files to the device, one tensor at a time.

Only plain reads of the byte ranges that a checked header names: no pickle, and no memory mapping,
because mapped pages would count as resident memory beside the weights themselves.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.quantisation import is_matrix, quantise, scale_path
from lookahead_jax.typing import Array

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the bytes to read."""

CHUNK_ELEMENTS = 1 << 18
"""Elements converted at a time; small enough for the scratch memory to stay in the CPU's cache."""

DEVICE_ALIGNMENT = 64
"""Host memory aligned to this many bytes becomes a CPU array of JAX without a copy."""

DTYPES = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(jnp.bfloat16),
    "float16": np.dtype(np.float16),
}
"""What weights, activations and the key/value cache may be."""

Sharder = Callable[[tuple[str, ...], tuple[int, ...]], jax.sharding.Sharding | None]
"""Where a parameter of this path and shape goes; None: the default device."""


@dataclass(frozen=True)
class Target:
    """What a checkpoint's parameters become, and where they go.

    Attributes:
        dtype: Of weights, activations and cache, a key of `DTYPES`.
        int8: Whether matrices are rounded to int8 on the way (quantisation.py).
        sharder: Where each of them goes; None: all to the default device.
        admit: Called with the model's configuration before a weight is read, to refuse it.
    """

    dtype: str = "float32"
    int8: bool = False
    sharder: Sharder | None = None
    admit: Callable[[DecoderConfig], None] = lambda config: None

    def put(self, path: tuple[str, ...], values: Any) -> Array:
        """Brings one parameter from the host to its place."""
        sharding = None if self.sharder is None else self.sharder(path, values.shape)
        return jax.device_put(values, sharding)


@dataclass(frozen=True)
class Encoding:
    """How numbers are laid out in a file.

    Attributes:
        block_size: Elements of one block; blocks run along the last axis.
        block_bytes: Bytes of one block.
        decode: uint8 [rows, bytes] to floats [rows, elements].
        dtype: The numpy dtype where the file's bytes are an array of it, else None.
    """

    block_size: int
    block_bytes: int
    decode: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype[Any] | None = None

    def size(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of this shape, whose last axis holds whole blocks."""
        return math.prod(shape) // self.block_size * self.block_bytes


def _float(dtype: Any) -> Encoding:
    kind = np.dtype(dtype)
    return Encoding(1, kind.itemsize, lambda raw: raw.view(kind), kind)


FLOATS = {
    "F64": _float("<f8"),
    "F32": _float("<f4"),
    "F16": _float("<f2"),
    "BF16": _float(jnp.bfloat16),
}
"""The unquantised encodings, under the names that both file formats use."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, its extent already checked against the file's size.

    Attributes:
        name: Its name in the file.
        file: The file.
        offset: First byte.
        shape: Shape, outermost axis first.
        encoding: How its numbers are laid out.
        interleaved_heads: 0, or the number of heads whose rows are stored in the order
            0, d/2, 1, d/2 + 1, ... and are wanted in the order 0, 1, 2, ...
        columns: None, or the first and the number of the columns that are wanted, as rows: the
            matrix is stored turned around.
    """

    name: str
    file: pathlib.Path
    offset: int
    shape: tuple[int, ...]
    encoding: Encoding
    interleaved_heads: int = 0
    columns: tuple[int, int] | None = None

    def rows(self, first: int, count: int) -> StoredTensor:
        """Some rows of it, as a tensor of its own."""
        offset = self.offset + self.encoding.size((first, *self.shape[1:]))
        return replace(self, offset=offset, shape=(count, *self.shape[1:]))

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self.encoding.size(self.shape)


def load_parameters(
    leaves: Iterable[tuple[tuple[str, ...], StoredTensor | tuple[StoredTensor, ...]]],
    target: Target,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Reads tensors into a parameter tree on the device.

    Every leaf has the target dtype, norms and biases too, unless it becomes int8. At most one
    tensor is on the host beside the tree; on a CPU the device takes over the very memory that was
    read into.

    Args:
        leaves: Path in the tree and stored tensor, or tensors to be stacked, in the order of
            reading.
        target: Their dtype and place.
        progress: Told after every tensor how far it is.

    Raises:
        LookaheadError: A file cannot be read or ends early.
    """
    leaves = list(leaves)
    pieces = [(path, x if isinstance(x, tuple) else (x,)) for path, x in leaves]
    stacked = {path for path, x in leaves if isinstance(x, tuple)}
    total, done = sum(x.size for _, tensors in pieces for x in tensors), 0
    tree: dict[str, Any] = {}
    for path, tensors in pieces:
        rounded = target.int8 and is_matrix(path)
        dtype = DTYPES["float32" if rounded else target.dtype]
        read = _read_stack(tensors, dtype) if path in stacked else read_tensor(tensors[0], dtype)
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        if rounded:
            read, scale = quantise(read)
            node[scale_path(path)[-1]] = target.put(scale_path(path), scale)
        node[path[-1]] = target.put(path, read)
        done += sum(tensor.size for tensor in tensors)
        if progress is not None:
            progress(done, total)
    return tree


def read_tensor(tensor: StoredTensor, dtype: np.dtype[Any]) -> np.ndarray:
    """Reads and converts one tensor, in bounded pieces.

    Returns:
        An array of its own memory, aligned to `DEVICE_ALIGNMENT`.

    Raises:
        LookaheadError: The file cannot be read or ends early.
    """
    if tensor.columns is not None:
        first, count = tensor.columns
        whole = read_tensor(replace(tensor, columns=None), dtype).reshape(tensor.shape[0], -1)
        out = _aligned_empty((count, len(whole)), dtype)
        out[...] = whole[:, first : first + count].T
        return out
    out = _aligned_empty(tensor.shape, dtype)
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.offset)
            if tensor.encoding.dtype == dtype and not tensor.interleaved_heads:
                _fill(out.reshape(-1).view(np.uint8), file, tensor)
            else:
                _convert(out, file, tensor)
    except OSError as error:
        raise LookaheadError(f"cannot read {tensor.file}: {error.strerror}") from error
    return out


def _read_stack(tensors: Sequence[StoredTensor], dtype: np.dtype[Any]) -> np.ndarray:
    """Tensors of one shape, stacked; one of them is on the host beside the stack."""
    out = _aligned_empty((len(tensors), *tensors[0].shape), dtype)
    for target, tensor in zip(out, tensors, strict=True):
        target[...] = read_tensor(tensor, dtype)
    return out


def _convert(out: np.ndarray, file: BufferedReader, tensor: StoredTensor) -> None:
    """Decodes rows of the tensor, a piece at a time, into their places in `out`."""
    encoding = tensor.encoding
    rows = out.reshape(len(out), -1) if tensor.shape else out.reshape(1, 1)
    order = _row_order(len(rows), tensor.interleaved_heads)
    row_bytes = encoding.size(rows.shape[1:])
    step = max(1, CHUNK_ELEMENTS // rows.shape[1])
    buffer = np.empty((min(step, len(rows)), row_bytes), np.uint8)
    for start in range(0, len(rows), step):
        stop = min(start + step, len(rows))
        raw = buffer[: stop - start]
        _fill(raw.reshape(-1), file, tensor)
        values = encoding.decode(raw)
        if order is None:
            rows[start:stop] = values
        else:
            rows[order[start:stop]] = values


def _row_order(num_rows: int, interleaved_heads: int) -> np.ndarray | None:
    """Where each stored row belongs; int [num_rows], or None where it stays in place."""
    if not interleaved_heads:
        return None
    wanted = np.arange(num_rows).reshape(interleaved_heads, 2, -1)
    return wanted.swapaxes(1, 2).reshape(-1)


def _fill(view: np.ndarray, file: BufferedReader, tensor: StoredTensor) -> None:
    """Fills a contiguous uint8 view from the file."""
    target, filled = view.data, 0
    while filled < len(target):
        count = file.readinto(target[filled:])
        if not count:
            raise LookaheadError(f"{tensor.file} is truncated: it ends inside tensor {tensor.name}")
        filled += count


def _aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + DEVICE_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % DEVICE_ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
