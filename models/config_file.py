"""`DecoderConfig` as JSON and back, field by field; what has a default may be left out.

Where a value may be of several classes, its object has a "kind" that says of which.
"""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import MOST_LAYERS, check_heads
from lookahead_jax.models.config import (
    DecoderConfig,
    DynamicScaling,
    FrequencyFactors,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)

KIND = "kind"
KINDS: Mapping[str, type] = {
    "linear": LinearScaling,
    "dynamic": DynamicScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "longrope": LongRopeScaling,
    "frequency_factors": FrequencyFactors,
}
"""What "kind" may say."""

_NUMBERS = {
    int: (int, 1, 2**31 - 1, "a positive integer of 32 bits"),
    float: (int | float, 0.0, sys.float_info.max, "a finite number of at least 0"),
}
"""For each type: what it may be made of, the least, the most, and how messages say it."""


def config_to_json(config: DecoderConfig) -> dict[str, Any]:
    """The configuration as what `json.dump` takes."""
    return _written(config)


def config_from_json(raw: Any, source: str) -> DecoderConfig:
    """The configuration that `config_to_json` wrote.

    Args:
        raw: What the JSON file holds.
        source: Name of the file and of the place in it, for messages.

    Raises:
        LookaheadError: A field is unknown, missing, or has a value that cannot be right.
    """
    config: DecoderConfig = _read(DecoderConfig, raw, source)
    if not 1 <= len(config.layers) <= MOST_LAYERS:
        raise LookaheadError(
            f"{source}.layers must be a list of 1 to {MOST_LAYERS}, got {len(config.layers)}"
        )
    for i, kind in enumerate(config.layers):
        where, experts = f"{source}.layers[{i}]", kind.experts
        if kind.rope is not None:
            _check_rope(kind.rope, config.head_dim, f"{where}.rope")
        if experts is not None and experts.top_k > experts.count:
            raise _wrong(f"{where}.experts.top_k", f"at most {experts.count}", experts.top_k)
    return check_heads(config, source)


def _check_rope(rope: Rope, head_dim: int, where: str) -> None:
    if rope.dims % 2 or rope.dims > head_dim:
        raise _wrong(f"{where}.dims", f"even and at most {head_dim}", rope.dims)
    for field in fields(rope.scaling) if rope.scaling is not None else ():
        value = getattr(rope.scaling, field.name)
        if isinstance(value, tuple) and len(value) != rope.dims // 2:
            place = f"{where}.scaling.{field.name}"
            raise _wrong(place, f"a list of {rope.dims // 2}", value)


def _written(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    if is_dataclass(value):
        written = {field.name: _written(getattr(value, field.name)) for field in fields(value)}
        names = [name for name, which in KINDS.items() if which is type(value)]
        return {KIND: names[0], **written} if names else written
    return value


def _read(hint: Any, raw: Any, where: str) -> Any:
    """A value of one of the types that config.py's fields have."""
    if isinstance(hint, types.UnionType):
        options = [option for option in get_args(hint) if option is not types.NoneType]
        if raw is None and len(options) < len(get_args(hint)):
            return None
        return _read(_of_kind(options, raw, where) if len(options) > 1 else options[0], raw, where)
    if get_origin(hint) is tuple:
        if not isinstance(raw, list):
            raise _wrong(where, "a list", raw)
        return tuple(_read(get_args(hint)[0], x, f"{where}[{i}]") for i, x in enumerate(raw))
    if is_dataclass(hint):
        return _read_dataclass(hint, raw, where)
    if issubclass(hint, enum.Enum):
        members = {member.name.lower(): member for member in hint}
        if not isinstance(raw, str) or raw not in members:
            raise _wrong(where, f"one of {', '.join(members)}", raw)
        return members[raw]
    if hint is bool:
        if not isinstance(raw, bool):
            raise _wrong(where, "true or false", raw)
        return raw
    kinds, least, most, expected = _NUMBERS[hint]
    if isinstance(raw, bool) or not isinstance(raw, kinds) or not least <= raw <= most:
        raise _wrong(where, expected, raw)
    return hint(raw)


def _of_kind(options: list[type], raw: Any, where: str) -> type:
    """The class that an object's "kind" names."""
    kinds = {name: which for name, which in KINDS.items() if which in options}
    kind = raw.get(KIND) if isinstance(raw, dict) else raw
    if not isinstance(raw, dict) or not isinstance(kind, str) or kind not in kinds:
        raise _wrong(f"{where}.{KIND}", f"one of {', '.join(kinds)}", kind)
    return kinds[kind]


def _read_dataclass(which: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise _wrong(where, "an object", raw)
    hints = get_type_hints(which)
    tagged = which in KINDS.values()
    values = {name: value for name, value in raw.items() if not (tagged and name == KIND)}
    if unknown := [name for name in values if name not in hints]:
        raise LookaheadError(f"{where}.{unknown[0]} is not known: written by another version?")
    for field in fields(which):
        if field.name not in values and field.default is MISSING:
            raise LookaheadError(f"{where}.{field.name} is missing")
    return which(**{name: _read(hints[name], x, f"{where}.{name}") for name, x in values.items()})


def _wrong(where: str, expected: str, got: Any) -> LookaheadError:
    shown = repr(got)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return LookaheadError(f"{where} must be {expected}, got {shown}")
