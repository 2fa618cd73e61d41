"""The header of a GGUF file: metadata and tensor extents, every length checked before it is used.

The `gguf` package has a reader too. It maps the file, trusts the counts and lengths in it, and
builds several arrays per vocabulary entry, which takes seconds for a tokenizer of usual size; a
header from a stranger needs each of them checked against the file's size, so that is done here,
once, while reading. The package's tables of value types, block sizes and dequantisers are used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)
from gguf.quants import dequantize

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.weights import FLOATS, Encoding, StoredTensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4

SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.FLOAT64: "<f8",
    GGUFValueType.BOOL: "?",
}

QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")

SMALLEST_VALUE = 8 + 4 + 1
"""Bytes of the shortest metadata entry: key length, type, one byte."""

SMALLEST_TENSOR = 8 + 4 + 4 + 8
"""Bytes of the shortest tensor entry: name length, dimension count, type, offset."""


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file says before its weights begin.

    Attributes:
        metadata: Keys and values; arrays are lists.
        tensors: Tensors by name, in file order, inside the file for certain.
    """

    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]


def encoding_of(name: str) -> Encoding | None:
    """The encoding with this GGML name, None where it is not supported."""
    if name in FLOATS:
        return FLOATS[name]
    if name not in QUANTISED:
        return None
    quantisation = GGMLQuantizationType[name]
    block_size, block_bytes = GGML_QUANT_SIZES[quantisation]
    return Encoding(block_size, block_bytes, partial(dequantize, qtype=quantisation))


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads and checks the header.

    Raises:
        LookaheadError: Not a GGUF file, damaged, truncated, or with tensors in an unsupported
            encoding.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Reader(path, file, size).header()
    except FileNotFoundError as error:
        raise LookaheadError(f"{path}: no such file") from error
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from error


class _Reader:
    """Takes values off the front of a file, none longer than what is left of it."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path = path
        self._file = file
        self._size = size
        self._left = size

    def header(self) -> GgufHeader:
        if self._size < len(MAGIC) or self._take(len(MAGIC)) != MAGIC:
            raise LookaheadError(f"{self._path} is not a GGUF file")
        version = self._number("<u4")
        if version & 0xFFFF == 0:
            raise LookaheadError(f"{self._path}: big-endian GGUF files are not supported")
        if version not in VERSIONS:
            raise LookaheadError(f"{self._path}: expected GGUF version 2 or 3, got {version}")
        num_tensors = self._number("<u8")
        num_values = self._number("<u8")
        self._expect(num_values * SMALLEST_VALUE, f"{num_values} metadata entries")
        metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"key {key!r} appears twice")
            metadata[key] = self._value(self._value_type())
        self._expect(num_tensors * SMALLEST_TENSOR, f"{num_tensors} tensors")
        entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(num_tensors):
            name = self._string()
            if name in entries:
                raise self._damaged(f"tensor {name} appears twice")
            entries[name] = (self._shape(name), self._number("<u4"), self._number("<u8"))
        return GgufHeader(metadata, self._place(entries, self._alignment(metadata)))

    def _place(
        self, entries: Mapping[str, tuple[tuple[int, ...], int, int]], alignment: int
    ) -> dict[str, StoredTensor]:
        position = self._size - self._left
        start = position + -position % alignment
        tensors = {}
        for name, (shape, kind, offset) in entries.items():
            tensor = StoredTensor(
                name, self._path, start + offset, shape, self._encoding(name, kind)
            )
            block_size = tensor.encoding.block_size
            if block_size > 1 and (len(shape) < 2 or shape[-1] % block_size):
                raise self._damaged(
                    f"tensor {name} has shape {list(shape)}, not blocks of {block_size}"
                )
            if tensor.offset + tensor.size > self._size:
                raise LookaheadError(
                    f"{self._path} is truncated: tensor {name} ends at byte "
                    f"{tensor.offset + tensor.size}, the file has {self._size}"
                )
            tensors[name] = tensor
        return tensors

    def _encoding(self, name: str, kind: int) -> Encoding:
        try:
            kind_name = GGMLQuantizationType(kind).name
        except ValueError:
            kind_name = f"GGML type {kind}"
        encoding = encoding_of(kind_name)
        if encoding is None:
            raise LookaheadError(
                f"{self._path}: tensor {name} is stored as {kind_name}; "
                f"expected one of {', '.join((*FLOATS, *QUANTISED))}"
            )
        return encoding

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"general.alignment is {alignment!r}, expected a power of two")
        return alignment

    def _shape(self, name: str) -> tuple[int, ...]:
        count = self._number("<u4")
        if not 1 <= count <= MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name} has {count} dimensions")
        shape = tuple(self._number("<u8") for _ in range(count))[::-1]
        if math.prod(shape) == 0:
            raise self._damaged(f"tensor {name} has shape {list(shape)}")
        return shape

    def _value(self, kind: GGUFValueType) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string()
        if kind == GGUFValueType.ARRAY:
            return self._array()
        return self._number(SCALARS[kind])

    def _array(self) -> list[Any]:
        kind = self._value_type()
        count = self._number("<u8")
        if kind == GGUFValueType.ARRAY:
            raise self._damaged("an array holds arrays")
        if kind == GGUFValueType.STRING:
            self._expect(count * 8, f"an array of {count} strings")
            return [self._string() for _ in range(count)]
        dtype = np.dtype(SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()

    def _value_type(self) -> GGUFValueType:
        kind = self._number("<u4")
        try:
            return GGUFValueType(kind)
        except ValueError as error:
            raise self._damaged(f"unknown value type {kind}") from error

    def _string(self) -> str:
        (length,) = struct.unpack("<Q", self._take(8))
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged("a string is not UTF-8") from error

    def _number(self, dtype: str) -> Any:
        kind = np.dtype(dtype)
        return np.frombuffer(self._take(kind.itemsize), kind).item()

    def _take(self, count: int) -> bytes:
        self._expect(count, f"{count} bytes")
        self._left -= count
        return self._file.read(count)

    def _expect(self, count: int, what: str) -> None:
        if count > self._left:
            raise LookaheadError(
                f"{self._path} is damaged or truncated: its header announces {what} "
                f"where {self._left} bytes are left"
            )

    def _damaged(self, reason: str) -> LookaheadError:
        return LookaheadError(f"{self._path} is damaged: {reason}")
