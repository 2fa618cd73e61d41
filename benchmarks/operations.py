"""Counts what a compiled program gives its device to do, from the program's text."""

from __future__ import annotations

import importlib.util
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax

from lookahead_jax.errors import LookaheadError

FREE = frozenset(
    (
        *("parameter", "constant", "bitcast", "tuple", "get-tuple-element"),
        *("after-all", "opt-barrier", "partition-id", "replica-id"),
    )
)
"""Opcodes that name or regroup values and run nothing."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.+?) ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(r"(?:to_apply|body|condition|calls)=\{?%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")

Instruction = tuple[str, str, str]
"""Shape, opcode, and the rest of the line."""


def computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The computations of a compiled module by name, and the name of the entry."""
    found: dict[str, list[Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = found.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.append((match[1], match[2], match[3]))
    if not entry:
        raise ValueError("expected the text of a compiled program, found no entry computation")
    return found, entry


def device_operations(text: str) -> Counter[str]:
    """Operations by opcode that one run of a program starts on the device.

    A fusion is one operation whatever it fuses. What calls, loops and branches run is counted once;
    the second half of an asynchronous pair is part of the first.
    """
    found, entry = computations(text)

    def operations(name: str) -> Iterator[str]:
        for _, opcode, rest in found[name]:
            if opcode in ("call", "while", "conditional"):
                called = _CALLED.findall(rest)
                for branches in _BRANCHES.findall(rest):
                    called += re.findall(r"[\w.\-]+", branches)
                for callee in called:
                    yield from operations(callee)
            elif opcode not in FREE and not opcode.endswith(("-done", "-update")):
                yield opcode

    return Counter(operations(entry))


def copies_of(text: str, shape: tuple[int, ...]) -> int:
    """Copies of whole arrays of this shape, wherever they are in the program."""
    wanted = re.compile(rf"\(?\w+\[{','.join(map(str, shape))}\]")
    found, _ = computations(text)
    return sum(
        opcode in ("copy", "copy-start") and bool(wanted.match(result))
        for lines in found.values()
        for result, opcode, _ in lines
    )


def aliased_outputs(text: str) -> int:
    """Outputs that take over the buffer of a donated argument."""
    header = text.splitlines()[0]
    return len(re.findall(r"(?:may|must)-alias", header))


def compile_for_tpu(function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = ()) -> str:
    """The program of a v5e chip for arguments of these shapes. Needs libtpu, but no TPU.

    Raises:
        LookaheadError: libtpu is not installed.
    """
    from jax.experimental import topologies

    if importlib.util.find_spec("libtpu") is None:
        raise LookaheadError("a TPU's programs need libtpu (extra: tpu-aot)")

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    chip = jax.sharding.SingleDeviceSharding(topology.devices[0])
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=chip), args)
    program = jax.jit(function, donate_argnums=donate).lower(*abstract).compile()
    return str(program.as_text())
