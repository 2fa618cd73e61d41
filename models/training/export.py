"""A trained model as a Hugging Face checkpoint, which `load_model` reads like any other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.flax import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from lookahead_jax.models.config import DecoderConfig
from lookahead_jax.models.names import HUGGING_FACE
from lookahead_jax.models.training.corpus import END
from lookahead_jax.models.training.loop import TrainingSettings
from lookahead_jax.typing import Params

END_TEXT = "<|endoftext|>"


def export(directory: Path, params: Params, settings: TrainingSettings) -> None:
    """Writes config.json, weights in bfloat16, and the tokenizer.

    Args:
        directory: Made where it is missing; what it has of these files is replaced.
        params: The parameter tree.
        settings: What they were trained with.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = "/".join(key.key for key in path)
        layer = re.match(r"layers_(\d+)/", name)
        stored = HUGGING_FACE[re.sub(r"^layers_\d+", "layers", name)]
        tensors[stored.format(*([layer[1]] if layer else []))] = leaf.astype(jnp.bfloat16)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)
    _write_json(directory / "config.json", _hugging_face_config(settings.model))
    _write_json(directory / "generation_config.json", {"eos_token_id": END})
    byte_tokenizer().save(str(directory / "tokenizer.json"))
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": settings.length,
        },
    )


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose tokens are the bytes of the text; `END` is a special token."""
    letters = _byte_letters()
    vocabulary = {letter: byte for byte, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_TEXT, special=True, normalized=False)])
    return tokenizer


def _byte_letters() -> list[str]:
    """The letter that byte-level tokenizers write for each byte.

    Printable characters of Latin-1 stand for themselves, the others for what follows in Unicode.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _hugging_face_config(config: DecoderConfig) -> dict[str, object]:
    rope = config.layers[0].rope
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm.epsilon,
        "rope_theta": None if rope is None else rope.theta,
        "hidden_act": config.activation.value,
        "tie_word_embeddings": config.tie_word_embeddings,
        "eos_token_id": END,
        "torch_dtype": "bfloat16",
    }


def _write_json(path: Path, value: dict[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
