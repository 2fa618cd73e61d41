"""Bytes that a computation of a compiled TPU program moves to and from its memory (HBM).

XLA's own figure, `cost_analysis()["bytes accessed"]`, also counts what moves between on-chip memory
(`S(1)` in the text) and the core, so it has a weight that is prefetched twice or three times. Here
an operand counts if it is in HBM, at its size there: whole tiles, padding included. Loops count one
turn. A kernel counts all of its operands, so its cache counts at full capacity.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from hlo import Hlo, Instruction

ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\](?:\{([^}]*)\})?")
BITS = {"pred": 8, "bf16": 16}
FREE = {
    *("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "iota", "after-all"),
    *("while", "conditional", "call", "partition-id", "replica-id"),
}
SLICES = ("dynamic-slice", "slice", "gather")


@dataclass(frozen=True)
class Buffer:
    """An array of the program's text."""

    size: int
    """Bytes, in whole tiles."""
    in_memory: bool

    @property
    def moved(self) -> int:
        return self.size if self.in_memory else 0


def buffers(shape: str) -> list[Buffer]:
    """The arrays of a shape, in their order."""
    return [_buffer(*found.groups()) for found in ARRAY.finditer(shape)]


def _buffer(element: str, dims: str, layout: str | None) -> Buffer:
    sizes = [int(d) for d in dims.split(",") if d]
    order, _, rest = (layout or "").partition(":")
    if sizes and (tile := re.match(r"T\(([\d,]+)\)", rest)):
        tiles = [int(t) for t in tile[1].split(",")][-len(sizes) :]
        minor = [int(d) for d in order.split(",")]
        for dim, tile_size in zip(minor, reversed(tiles), strict=False):
            sizes[dim] = -(-sizes[dim] // tile_size) * tile_size
    bits = BITS.get(element) or int(re.sub(r"\D", "", element) or 32)
    return Buffer(math.prod(sizes) * bits // 8, not re.search(r"S\(\d+\)", rest))


def traffic(hlo: Hlo, computation: str) -> int:
    """Bytes moved by a computation and by the loops that it runs, one turn each."""
    lines = hlo.computations[computation]
    by_name = {i.name: i for i in lines}
    total = sum(moved_by(hlo, i, by_name) for i in lines)
    return total + sum(traffic(hlo, body) for body in hlo.loop_bodies(computation))


def moved_by(hlo: Hlo, i: Instruction, by_name: dict[str, Instruction]) -> int:
    """Bytes moved by one instruction of a computation."""
    if i.opcode in FREE or i.opcode.endswith("-done") or "ConcatBitcast" in i.rest:
        return 0
    out = buffers(i.shape)
    if i.opcode == "copy-start":  # (target, source, context)
        return out[0].moved + out[1].moved
    if i.opcode == "slice-start":  # ((source), target, context)
        return out[1].moved + (out[1].size if out[0].in_memory else 0)
    operands = [buffers(by_name[name].shape) for name in names(i) if name in by_name]
    if i.opcode in SLICES:
        return out[0].moved + (out[0].size if operands[0][0].in_memory else 0)
    if i.opcode == "dynamic-update-slice":
        return operands[1][0].moved + (operands[1][0].size if out[0].in_memory else 0)
    written = sum(buffer.moved for buffer in out)
    if i.opcode != "fusion":
        return written + sum(buffer.moved for operand in operands for buffer in operand)
    inner = hlo.computations[re.search(r"calls=%?([\w.\-]+)", i.rest)[1]]
    if updates := [u for u in inner if u.opcode == "dynamic-update-slice"]:
        shapes = {u.name: u for u in inner}
        sizes = [buffers(shapes[names(u)[1]].shape)[0].size for u in updates]
        whole = sum(buffers(u.shape)[0].size for u in updates if out[0].in_memory)
        written = max(written - whole, 0) + sum(sizes) * out[0].in_memory
    return written + sum(
        read(inner, index) if read(inner, index) is not None else sum(b.moved for b in operand)
        for index, operand in enumerate(operands)
        if any(b.in_memory for b in operand)
    )


def read(inner: list[Instruction], index: int) -> int | None:
    """What a fusion reads of an operand that it only slices or updates; None: all of it."""
    (parameter,) = [i for i in inner if i.opcode == "parameter" and i.rest.startswith(f"{index})")]
    aliases, total = {parameter.name}, 0
    for i in inner:
        if not aliases & set(names(i)):
            continue
        if i.opcode == "bitcast":
            aliases.add(i.name)
        elif i.opcode in SLICES and names(i)[0] in aliases:
            total += buffers(i.shape)[0].size
        elif not (i.opcode == "dynamic-update-slice" and names(i)[0] in aliases):
            return None
    return total


def names(i: Instruction) -> list[str]:
    """Operands of an instruction."""
    return re.findall(r"%([\w.\-]+)", i.rest.partition(")")[0])
