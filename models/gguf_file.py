"""GGUF files: configuration, weights, tokenizer, all in one file."""

from __future__ import annotations

from pathlib import Path

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Checkpoint, Values
from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.gguf_families import ARCHITECTURES, architecture_of, read_metadata
from lookahead_jax.models.gguf_header import GgufHeader, read_gguf_header
from lookahead_jax.models.gguf_names import mark_interleaved_heads, table_for
from lookahead_jax.models.gguf_rope import SETTINGS
from lookahead_jax.models.gguf_tokenizer import stop_tokens, tokenizer_from_metadata
from lookahead_jax.models.names import place
from lookahead_jax.models.weights import Progress, Target, load_parameters


def load_gguf(path: Path, target: Target, progress: Progress | None = None) -> Checkpoint:
    """Loads a GGUF file.

    The rows of query and key projections that llama.cpp keeps interleaved go back to Hugging Face's
    order, and quantised weights become numbers of the target dtype.

    Args:
        path: The file.
        target: What the weights become.
        progress: Told how far the reading is.

    Raises:
        LookaheadError: The model is not supported, or the file is damaged.
    """
    header, source = read_gguf_header(path), str(path)
    config = config_from_header(header, source)
    target.admit(config)
    architecture = architecture_of(header.metadata, source)
    leaves = place(
        header.tensors,
        config,
        table_for(architecture, header.tensors),
        source=source,
        ignore=lambda name: name in SETTINGS or name.endswith(".attn_rot_embd"),
    )
    if ARCHITECTURES[architecture].interleaved:
        leaves = mark_interleaved_heads(leaves, config)
    metadata = Values(header.metadata, source)
    tokenizer = tokenizer_from_metadata(metadata)
    params = load_parameters(leaves, target, progress)
    return Checkpoint(config, params, stop_tokens(metadata), tokenizer)


def config_from_header(header: GgufHeader, source: str) -> DecoderConfig:
    """The hyperparameters that a header describes.

    Raises:
        LookaheadError: Not a supported model, or a value that cannot be right.
    """
    if Values(header.metadata, source).integer("split.count", 1) > 1:
        raise LookaheadError(f"{source} is one part of a split model; expected one merged file")
    return read_metadata(header.metadata, header.tensors, source)
