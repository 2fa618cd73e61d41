"""JSON files of checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lookahead_jax.errors import LookaheadError


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
        LookaheadError: There is no such file, or something else is in it.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LookaheadError(f"{path}: no such file") from error
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LookaheadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise LookaheadError(f"{path}: expected a JSON object")
    return raw


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook` that refuses an object with a name twice, by ValueError."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"{name} appears twice")
        result[name] = value
    return result
