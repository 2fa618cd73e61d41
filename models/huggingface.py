"""Hugging Face checkpoints: a directory with config.json, safetensors files and a tokenizer."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Checkpoint, Values
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.families import FAMILIES
from lookahead_jax.models.json_file import read_json, without_duplicates
from lookahead_jax.models.names import HUGGING_FACE, HUGGING_FACE_BY_FAMILY, place
from lookahead_jax.models.tokenizer import tokenizer_from_directory
from lookahead_jax.models.weights import FLOATS, Progress, StoredTensor, Target, load_parameters

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HARMLESS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of the names of buffers that old checkpoints hold beside the weights."""

FILE_PATTERNS = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    INDEX_FILE,
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "vocab.json",
    "merges.txt",
)
"""All the files of a hub repository that loading may need."""


def load_directory(directory: Path, target: Target, progress: Progress | None = None) -> Checkpoint:
    """Loads a checkpoint from a directory.

    Args:
        directory: Has config.json, and model.safetensors or an index of shards.
        target: What the weights become.
        progress: Told how far the reading is.

    Raises:
        LookaheadError: The model is not supported, or a file is missing or damaged.
    """
    family, config = _read_family(directory)
    target.admit(config)
    table = HUGGING_FACE_BY_FAMILY.get(family, HUGGING_FACE)
    tensors = stored_tensors(directory)

    def ignore(name: str) -> bool:
        tied_head = config.tie_word_embeddings and name == table["head/weight"]
        return tied_head or name.endswith(HARMLESS)

    leaves = place(tensors, config, table, source=str(directory), ignore=ignore)
    tokenizer = tokenizer_from_directory(directory)
    params = load_parameters(leaves, target, progress)
    return Checkpoint(config, params, _stop_tokens(directory), tokenizer)


def read_config(directory: Path) -> DecoderConfig:
    """Reads config.json, in the spelling of transformers 5 or of earlier versions.

    Raises:
        LookaheadError: Not a supported model, or a value that cannot be right.
    """
    return _read_family(directory)[1]


def _read_family(directory: Path) -> tuple[str, DecoderConfig]:
    """What config.json says: the family, and the configuration."""
    path = directory / "config.json"
    values = Values(read_json(path), str(path))
    family = values.text("model_type")
    if family not in FAMILIES:
        raise LookaheadError(
            f"{path}: model type {family!r} is not supported; supported: {', '.join(FAMILIES)}"
        )
    if values.has("quantization_config"):
        raise LookaheadError(
            f"{path}: quantised safetensors are not supported; use the unquantised checkpoint, "
            f"or a GGUF file"
        )
    return family, FAMILIES[family].read(values)


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by name, from one file or from the shards of an index."""
    index = directory / INDEX_FILE
    if (directory / SINGLE_FILE).is_file():
        return read_safetensors_header(directory / SINGLE_FILE)
    if not index.is_file():
        if any(directory.glob("pytorch_model*.bin")):
            raise LookaheadError(
                f"{directory}: only pytorch_model.bin, a pickle, which is never loaded; "
                f"expected {SINGLE_FILE}"
            )
        raise LookaheadError(f"{directory}: expected {SINGLE_FILE} or {INDEX_FILE}, found neither")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise LookaheadError(f"{index}: weight_map must be an object that names the shards")
    tensors: dict[str, StoredTensor] = {}
    for shard in weight_map.values():
        if not _is_shard_name(shard):
            raise LookaheadError(f"{index}: a shard must be a file beside it, got {shard!r}")
    for shard in dict.fromkeys(weight_map.values()):
        for name, tensor in read_safetensors_header(directory / shard).items():
            if name in tensors:
                raise LookaheadError(
                    f"{directory}: tensor {name} is in both {tensors[name].file.name} and {shard}"
                )
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise LookaheadError(f"{index}: tensor {name} is not in {shard}")
    return tensors


def _is_shard_name(name: Any) -> bool:
    """Whether this is the name of a safetensors file, with no way out of the directory."""
    return isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file, in the order of their bytes.

    Raises:
        LookaheadError: The file is missing, damaged, truncated, or has a tensor twice or in an
            encoding that weights do not come in.
    """
    try:
        with safe_open(path, framework="numpy"):  # checks that extents, shapes and size agree
            pass
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length), object_pairs_hook=without_duplicates)
    except FileNotFoundError as error:
        raise LookaheadError(f"{path}: no such file") from error
    except OSError as error:
        raise LookaheadError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise LookaheadError(f"{path} is damaged or truncated: {reason}") from error
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        if entry["dtype"] not in FLOATS:
            raise LookaheadError(
                f"{path}: tensor {name} is stored as {entry['dtype']}; "
                f"expected one of {', '.join(FLOATS)}"
            )
        tensors[name] = StoredTensor(
            name=name,
            file=path,
            offset=8 + length + entry["data_offsets"][0],
            shape=tuple(entry["shape"]),
            encoding=FLOATS[entry["dtype"]],
        )
    return tensors


def _stop_tokens(directory: Path) -> tuple[int, ...]:
    """End-of-sequence ids: generation_config.json's, else config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if name != "config.json" and not path.is_file():
            continue
        raw = read_json(path).get("eos_token_id")
        if raw is None:
            continue
        ids = raw if isinstance(raw, list) else [raw]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise LookaheadError(f"{path}: eos_token_id must be a token id or a list, got {raw!r}")
        return tuple(ids)
    return ()
