"""Reads a compiled program's text: computations, instructions, the bodies of its loops."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.+?) ([a-z][a-z\-]*)\((.*)$")


@dataclass(frozen=True)
class Instruction:
    """One line of HLO: `name = shape opcode(rest`."""

    name: str
    shape: str
    """Element type, dimensions and layout, e.g. `f32[1,3,256,64]{3,2,1,0}`."""
    opcode: str
    rest: str
    """Operands and attributes, as text."""


@dataclass(frozen=True)
class Hlo:
    """Computations of a module by name; `entry` names the first to run."""

    computations: dict[str, list[Instruction]]
    entry: str

    @classmethod
    def parse(cls, text: str) -> Hlo:
        computations, entry, current = {}, "", None
        for line in text.splitlines():
            if head := _COMPUTATION.match(line):
                current = computations.setdefault(head[2], [])
                entry = head[2] if head[1] else entry
            elif current is not None and (found := _INSTRUCTION.match(line)):
                current.append(Instruction(*found.groups()))
        assert entry, "no entry computation: the text is not that of a compiled program"
        return cls(computations, entry)

    def loop_bodies(self, computation: str | None = None) -> list[str]:
        """Names of the bodies of the loops that a computation runs (the entry by default)."""
        lines = self.computations[computation or self.entry]
        return [re.search(r"body=%?([\w.\-]+)", i.rest)[1] for i in lines if i.opcode == "while"]

    def reached(self, computation: str) -> list[Instruction]:
        """Instructions of a computation and of all it calls, fusions included."""
        seen, todo, found = set(), [computation], []
        while todo:
            name = todo.pop()
            if name in seen or name not in self.computations:
                continue
            seen.add(name)
            found += self.computations[name]
            for line in self.computations[name]:
                todo += re.findall(
                    r"(?:calls|body|condition|to_apply|called_computations)=\{?%?([\w.\-]+)",
                    line.rest,
                )
                if branches := re.search(r"branch_computations=\{([^}]*)\}", line.rest):
                    todo += re.findall(r"[\w.\-]+", branches[1])
        return found
