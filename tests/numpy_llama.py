"""A Llama forward pass in numpy float32, one token list at a time: the oracle's model.

It exists to be read against the definition and shares nothing with the package's model. Supported
is what the tiny test model needs: grouped queries, plain rotary embedding, an untied head.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def _rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(eps)) * weight


def _rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding of [T, heads, D], first half paired with second half."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class NumpyLlama:
    """Answers `next_token(prefix)` and `logits(prefix)` by plain causal passes.

    The keys and values of the last prefix are kept, and a new prefix only runs the tokens behind
    what it has in common with it.
    """

    def __init__(self, directory: Path) -> None:
        self.config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self.weights = load_file(directory / "model.safetensors")
        self.heads = self.config["num_attention_heads"]
        self.kv_heads = self.config["num_key_value_heads"]
        self.head_dim = self.config["head_dim"]
        self.layers = self.config["num_hidden_layers"]
        length = self.config["max_position_embeddings"]
        half = np.arange(0, self.head_dim, 2, dtype=np.float32) / self.head_dim
        angles = np.arange(length, dtype=np.float32)[:, None] / self.config["rope_theta"] ** half
        self.cos = np.cos(angles).astype(np.float32)[:, None]
        self.sin = np.sin(angles).astype(np.float32)[:, None]
        self.keys = np.zeros((self.layers, length, self.kv_heads, self.head_dim), np.float32)
        self.values = np.zeros_like(self.keys)
        self.cached: tuple[int, ...] = ()
        self.choices: dict[tuple[int, ...], int] = {}

    def next_token(self, prefix: tuple[int, ...]) -> int:
        if prefix not in self.choices:
            self.choices[prefix] = int(self.logits(prefix, last_only=True)[-1].argmax())
        return self.choices[prefix]

    def logits(self, prefix: tuple[int, ...], last_only: bool = False) -> np.ndarray:
        """Logits [T, V] of all positions, or of the last one only."""
        start = 0
        if last_only:
            shared = zip(self.cached, prefix[:-1], strict=False)
            start = next(
                (index for index, (old, new) in enumerate(shared) if old != new),
                min(len(self.cached), len(prefix) - 1),
            )
        self.cached = prefix
        return self._forward(prefix[start:], start)

    def _forward(self, tokens: tuple[int, ...], start: int) -> np.ndarray:
        end = start + len(tokens)
        cos, sin = self.cos[start:end], self.sin[start:end]
        causal = np.arange(end) <= np.arange(start, end)[:, None]
        eps = self.config["rms_norm_eps"]
        x = self.weights["model.embed_tokens.weight"][list(tokens)]
        for layer in range(self.layers):
            name = f"model.layers.{layer}."
            normed = _rms_norm(x, self.weights[name + "input_layernorm.weight"], eps)
            x = x + self._attend(layer, normed, causal, cos, sin)
            normed = _rms_norm(x, self.weights[name + "post_attention_layernorm.weight"], eps)
            gate = self._linear(normed, name + "mlp.gate_proj")
            up = self._linear(normed, name + "mlp.up_proj")
            x = x + self._linear(gate / (1 + np.exp(-gate)) * up, name + "mlp.down_proj")
        x = _rms_norm(x, self.weights["model.norm.weight"], eps)
        return self._linear(x, "lm_head")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name + ".weight"].T

    def _attend(
        self, layer: int, x: np.ndarray, causal: np.ndarray, cos: np.ndarray, sin: np.ndarray
    ) -> np.ndarray:
        rows, end = causal.shape
        name = f"model.layers.{layer}.self_attn."

        def project(which: str, heads: int) -> np.ndarray:
            return self._linear(x, name + which).reshape(rows, heads, self.head_dim)

        query = _rotate(project("q_proj", self.heads), cos, sin)
        self.keys[layer, end - rows : end] = _rotate(project("k_proj", self.kv_heads), cos, sin)
        self.values[layer, end - rows : end] = project("v_proj", self.kv_heads)
        group = self.heads // self.kv_heads
        key = np.repeat(self.keys[layer, :end], group, axis=1)
        value = np.repeat(self.values[layer, :end], group, axis=1)
        scores = np.einsum("qhd,khd->hqk", query, key) / np.float32(np.sqrt(self.head_dim))
        scores = np.where(causal, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, value).reshape(rows, -1)
        return self._linear(mixed, name + "o_proj")
