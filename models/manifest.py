"""The file that makes a directory a checkpoint of this package: lookahead_jax.json.

    lookahead_jax.json   configuration, dtype, stop tokens, and what is in params/
    params/              the parameter tree, by Orbax (orbax_file.py)
    tokenizer/           what transformers' save_pretrained wrote; absent where there is none

It is written last, so that a directory without it is no checkpoint. It knows the files of params/:
a lost or shortened one is told by name, before Orbax meets it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.config_file import config_from_json, config_to_json
from lookahead_jax.models.json_file import read_json
from lookahead_jax.models.weights import DTYPES

MANIFEST = "lookahead_jax.json"
PARAMS = "params"
TOKENIZER = "tokenizer"
FORMAT = 1

TENSORS = "ocdbt.process_"
"""Start of the names, under params/, of the large files. The small ones describe these."""


@dataclass(frozen=True)
class Manifest:
    """What lookahead_jax.json says.

    Attributes:
        config: The model.
        dtype: Of all parameters that are not int8 or their scales, a key of `DTYPES`.
        stop_tokens: Token ids that end an answer.
        has_tokenizer: Whether there is one.
        files: For every file under params/, by its path there, size and SHA-256; of a large one the
            size alone.
    """

    config: DecoderConfig
    dtype: str
    stop_tokens: tuple[int, ...]
    has_tokenizer: bool
    files: Mapping[str, tuple[int, str | None]]


def is_checkpoint(directory: Path) -> bool:
    """Whether this is meant to be such a checkpoint, be it whole or not."""
    if (directory / MANIFEST).is_file():
        return True
    return (directory / PARAMS).is_dir() and not (directory / "config.json").exists()


def describe_files(directory: Path) -> dict[str, tuple[int, str | None]]:
    """`Manifest.files` for a directory of parameters."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): _described(path) for path in paths}


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Writes lookahead_jax.json, down to the disk.

    Raises:
        OSError: It cannot be written.
    """
    values = {
        "format": FORMAT,
        "dtype": manifest.dtype,
        "stop_tokens": manifest.stop_tokens,
        "tokenizer": manifest.has_tokenizer,
        "decoder": config_to_json(manifest.config),
        "files": manifest.files,
    }
    with (directory / MANIFEST).open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())


def read_manifest(directory: Path) -> Manifest:
    """Reads lookahead_jax.json, and checks the files of params/ against it.

    Raises:
        LookaheadError: The checkpoint is not whole, is damaged, or is of another version.
    """
    path = directory / MANIFEST
    if not path.is_file():
        raise LookaheadError(
            f"{directory} is not a whole checkpoint: expected {MANIFEST}, which is written last"
        )
    raw = read_json(path)
    version = raw.get("format")
    if version != FORMAT:
        raise LookaheadError(f"{path}: format must be {FORMAT}, got {version!r}: another version?")
    manifest = Manifest(
        config=config_from_json(raw.get("decoder"), f"{path}: decoder"),
        dtype=_checked(raw, "dtype", f"one of {', '.join(DTYPES)}", _is_dtype, path),
        stop_tokens=tuple(_checked(raw, "stop_tokens", "a list of token ids", _are_tokens, path)),
        has_tokenizer=_checked(raw, "tokenizer", "true or false", _is_flag, path),
        files=_checked(raw, "files", "[size, SHA-256] for each file", _are_files, path),
    )
    for name, (size, digest) in manifest.files.items():
        _check_file(directory / PARAMS / name, size, digest)
    return manifest


def _described(path: Path) -> tuple[int, str | None]:
    size = path.stat().st_size
    if any(part.startswith(TENSORS) for part in path.parts):
        return size, None
    return size, hashlib.sha256(path.read_bytes()).hexdigest()


def _check_file(path: Path, size: int, digest: str | None) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            raise LookaheadError(f"{path} is damaged: expected {size} bytes, got {found}")
        if digest is not None and hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise LookaheadError(f"{path} is damaged: expected SHA-256 {digest}")
    except FileNotFoundError as error:
        raise LookaheadError(f"{path}: no such file") from error
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror}") from error


def _checked(raw: Mapping[str, Any], name: str, expected: str, is_right: Any, path: Path) -> Any:
    value = raw.get(name)
    if not is_right(value):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise LookaheadError(f"{path}: {name} must be {expected}, got {shown}")
    return value


def _is_dtype(value: Any) -> bool:
    return isinstance(value, str) and value in DTYPES


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _are_files(value: Any) -> bool:
    """Names lead nowhere out of params/, so that no other file is read."""
    return isinstance(value, dict) and all(
        not Path(name).is_absolute()
        and ".." not in Path(name).parts
        and isinstance(entry, list)
        and len(entry) == 2
        and type(entry[0]) is int
        and isinstance(entry[1], str | None)
        for name, entry in value.items()
    )
