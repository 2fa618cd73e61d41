"""Static description of a Llama-family model, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """Rotary frequencies divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rotary scaling: long wavelengths interpolated, short ones kept, a ramp."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class FrequencyFactors:
    """One divisor per rotary frequency, as GGUF files store them; length head_dim / 2."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | FrequencyFactors


@dataclass(frozen=True)
class LlamaConfig:
    """Hyperparameters; field names follow Hugging Face's `config.json` for Llama.

    The parameter tree that goes with it (weights are [out, in], as checkpoints store them):

        embed/weight [V, hidden]
        layers_{i}/attn_norm/scale [hidden]
        layers_{i}/attn/{q,k,v,o}/weight, and /bias where attention_bias
        layers_{i}/mlp_norm/scale [hidden]
        layers_{i}/mlp/{gate,up,down}/weight, and /bias where mlp_bias
        final_norm/scale [hidden]
        head/weight [V, hidden], absent where tie_word_embeddings

    q is [num_attention_heads * head_dim, hidden]; k and v [num_key_value_heads * head_dim, hidden];
    o [hidden, num_attention_heads * head_dim]. Rotary pairs are (i, i + head_dim / 2), Hugging
    Face's order.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
