"""Which named scope each instruction of a compiled program is from, by the program's text.

The text is what `jax.stages.Compiled.as_text` gives: computations of instructions, of which many
have `metadata={op_name="jit(advance)/while/body/forward/..."}`, with the names of `jax.named_scope`
in the path. A fusion has the name of its root, whatever else is in it.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lookahead_jax.errors import LookaheadError

SCOPES = ("lookup", "pack", "forward", "verify", "commit", "insert", "advance")
"""The named scopes of a round (decoding.py, parallel.py), in order."""

OTHER = "other"
"""What is in none of them: the loop's condition, and the counts of rounds."""

_CONTAINERS = ("while", "call", "conditional")
_HEAD = re.compile(r"^HloModule ([\w.\-]+)")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = .+? ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(r"\b(?:to_apply|body|condition|calls|\w+_computations?)=(\{[^}]*\}|[^,\s]+)")
_OP_NAME = re.compile(r'\bop_name="([^"]*)"')
_NAME = re.compile(r"[\w.\-]+")


@dataclass(frozen=True)
class Program:
    """What is to be known of a compiled program.

    Attributes:
        module: Its name, such as jit_advance.
        scopes: The scope of each of its instructions, `OTHER` where there is none.
        containers: Instructions that only run others: loops, calls, branches.
    """

    module: str
    scopes: Mapping[str, str]
    containers: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Program:
        """Reads the text of a compiled program.

        Raises:
            LookaheadError: It is not one.
        """
        head = _HEAD.match(text)
        if head is None:
            raise LookaheadError(
                "expected the text of a compiled program, which begins with HloModule, "
                f"found {text[:40]!r}"
            )
        found = _instructions(text)
        containers = (name for name, one in found.items() if one.opcode in _CONTAINERS)
        return cls(head[1], _scopes(found), frozenset(containers))


@dataclass(frozen=True)
class _Instruction:
    computation: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    named: str | None
    """Scope by its own name."""


def _instructions(text: str) -> dict[str, _Instruction]:
    """By name, which is unique within a module."""
    found: dict[str, _Instruction] = {}
    computation = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            computation = head[1]
        elif match := _INSTRUCTION.match(line):
            name, opcode, rest = match.groups()
            operands, _, attributes = rest.partition("), ")
            op_name = _OP_NAME.search(attributes)
            found[name] = _Instruction(
                computation,
                opcode,
                tuple(_NAME.findall(operands)),
                tuple(_NAME.findall(" ".join(_CALLED.findall(attributes)))),
                _named_scope(op_name[1] if op_name else ""),
            )
    return found


def _named_scope(op_name: str) -> str | None:
    """The outermost scope in a name; `OTHER` if a whole name has none, None if it tells nothing."""
    for part in op_name.split("/"):
        if part in SCOPES:
            return part
    return OTHER if op_name.startswith("jit(") else None


def _scopes(found: Mapping[str, _Instruction]) -> dict[str, str]:
    """The scope of every instruction.

    The compiler drops names: library calls and copies have none, and what is in a loop or a branch
    may have lost the beginning of its own. Such an instruction has the scope of what runs it, else
    of what it runs, else of what uses its result, else of what it uses.
    """
    callers = {callee: name for name, one in found.items() for callee in one.called}
    contents: dict[str, list[str | None]] = defaultdict(list)
    for one in found.values():
        contents[one.computation].append(one.named)

    def of_caller(name: str) -> str | None:
        while (caller := callers.get(found[name].computation)) is not None:
            if found[caller].named in SCOPES:
                return found[caller].named
            name = caller
        return None

    def of_contents(name: str) -> str | None:
        return _most(scope for callee in found[name].called for scope in contents[callee])

    scopes = {
        name: one.named or of_caller(name) or of_contents(name) for name, one in found.items()
    }
    uses, users = _links(found)
    _spread(scopes, users)
    _spread(scopes, uses)
    return {name: scope or OTHER for name, scope in scopes.items()}


def _links(
    found: Mapping[str, _Instruction],
) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]]]:
    """Of each instruction, those whose results it uses, and those that use its own."""
    # A tuple and a parameter (what goes round in a loop) have to do with everything.
    linked = {name for name, one in found.items() if one.opcode not in ("tuple", "parameter")}
    uses = {name: [x for x in found[name].operands if x in linked] for name in linked}
    users: dict[str, list[str]] = {name: [] for name in linked}
    for name, operands in uses.items():
        for operand in operands:
            users[operand].append(name)
    return uses, users


def _spread(scopes: dict[str, str | None], neighbours: Mapping[str, list[str]]) -> None:
    """Gives instructions without a scope that of most of their neighbours, from near to far."""
    waiting = [name for name in scopes if scopes[name] is None and name in neighbours]
    while waiting:
        scopes.update({name: _most(scopes[x] for x in neighbours[name]) for name in waiting})
        still = [name for name in waiting if scopes[name] is None]
        if len(still) == len(waiting):
            break
        waiting = still


def _known(scopes: Iterable[str | None]) -> Iterator[str]:
    return (scope for scope in scopes if scope in SCOPES)


def _most(scopes: Iterable[str | None]) -> str | None:
    """The most frequent; of equals the earliest in a round, whatever the order of the text."""
    counted = Counter(_known(scopes))
    return max(SCOPES, key=counted.__getitem__) if counted else None
