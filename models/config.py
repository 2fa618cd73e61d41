"""Static description of a decoder-only transformer, whatever file and family it comes from.

One decoder (decoder.py) serves every family. Where families differ, the difference has a name
here; the readers of checkpoints fill it in, and nothing else knows which family a model is of.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True)
class LinearScaling:
    """Rotary frequencies divided by `factor` (position interpolation)."""

    factor: float


@dataclass(frozen=True)
class DynamicScaling:
    """NTK-aware base that grows with the length, beyond the length of training.

    Rows of the prompt have the frequencies of its whole length, later ones at position p those of a
    text of p + 1 tokens, as in transformers' cached decoding.
    """

    factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3.1's rotary scaling: long wavelengths interpolated, short ones kept, a ramp."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: a ramp between interpolation and extrapolation, and louder rotations."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class LongRopeScaling:
    """LongRoPE: one divisor per frequency, and others for long texts.

    A text that can get longer than the original length is long from its start, as where llama.cpp
    and vLLM decide by the size of the context. (transformers decides anew for every token, and
    reads the whole text again when it crosses that length: its text is the same where prompt and
    output stay below, or where the prompt is beyond.)
    """

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float


@dataclass(frozen=True)
class FrequencyFactors:
    """One divisor per rotary frequency, as GGUF files store them; length dims / 2."""

    factors: tuple[float, ...]


RopeScaling = (
    LinearScaling
    | DynamicScaling
    | Llama3Scaling
    | YarnScaling
    | LongRopeScaling
    | FrequencyFactors
)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dims` features of a head."""

    theta: float
    dims: int
    scaling: RopeScaling | None = None


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in the place of the MLP: the `top_k` likeliest of `count`, weighted."""

    count: int
    top_k: int
    hidden_features: int
    normalise: bool = True
    """Whether the weights of the chosen ones sum to 1."""


@dataclass(frozen=True)
class LayerKind:
    """What may differ from layer to layer."""

    rope: Rope | None
    """None: the layer does not know positions."""

    window: int | None = None
    """Rows see this many positions, their own included; None: all before them."""

    experts: Experts | None = None


class NormPlacement(enum.Enum):
    """Where a layer normalises."""

    BEFORE = "before attention and MLP"
    AFTER = "after attention and MLP, before the residual sum"
    AROUND = "before and after"


class QueryKeyNorm(enum.Enum):
    """Whether queries and keys are normalised before they are rotated."""

    NONE = "not at all"
    HEADS = "each head on its own"
    ALL = "all heads together"


class Activation(enum.Enum):
    """Nonlinearity of the MLP."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU = "gelu"


@dataclass(frozen=True)
class Norm:
    """A normalisation of features."""

    epsilon: float
    centered: bool = False
    """LayerNorm, with mean and bias, in the place of RMSNorm."""

    offset: float = 0.0
    """Added to the stored scale: Gemma stores the difference from 1."""

    rounds_last: bool = False
    """Scale and bias are applied in float32; else after rounding to the activations' dtype."""


@dataclass(frozen=True)
class DecoderConfig:
    """Hyperparameters of the decoder.

    The parameter tree that goes with it (weights are [out, in], as checkpoints store them):

        embed/weight [V, hidden]
        positions/weight [max_position_embeddings, hidden], where learned_positions
        layers_{i}/attn_norm/scale [hidden], unless norms stand after
        layers_{i}/attn/{q,k,v,o}/weight, and /bias where qkv_bias, output_bias
        layers_{i}/attn/{q,k}_norm/scale, [head_dim] or all features, where qk_norm
        layers_{i}/attn_post_norm/scale [hidden], unless norms stand before
        layers_{i}/mlp_norm/scale, layers_{i}/mlp_post_norm/scale, likewise
        layers_{i}/mlp/{gate,up,down}/weight, and /bias where mlp_bias; no gate where not gated
        layers_{i}/moe/router/weight [E, hidden], layers_{i}/moe/{gate,up} [E, inner, hidden] and
            layers_{i}/moe/down [E, hidden, inner] in the place of mlp in layers of experts
        final_norm/scale [hidden]
        head/weight [V, hidden], absent where tie_word_embeddings

    Where int8, the matrices are (those of positions and router are not), and each `weight`, `gate`,
    `up`, `down` has its `weight_scale`, `gate_scale`, ... float32 [..., out] beside it.

    A centered norm has a bias beside its scale. q is [num_attention_heads * head_dim, hidden]; k
    and v [num_key_value_heads * head_dim, hidden]; o [hidden, num_attention_heads * head_dim].
    Rotary pairs are (i, i + dims / 2), Hugging Face's order.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layers: tuple[LayerKind, ...]
    max_position_embeddings: int
    norm: Norm = Norm(1e-5)
    placement: NormPlacement = NormPlacement.BEFORE
    qk_norm: QueryKeyNorm = QueryKeyNorm.NONE
    activation: Activation = Activation.SILU
    gated: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    attention_scale: float | None = None
    """Factor on the scores; None: 1 / sqrt(head_dim)."""
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float = 1.0
    learned_positions: bool = False
    tie_word_embeddings: bool = False
    int8: bool = False
    """Matrices are int8, each with a float32 scale for each of its rows beside it."""

    @property
    def num_hidden_layers(self) -> int:
        """L."""
        return len(self.layers)


def llama_config(
    vocab_size: int,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    rms_norm_eps: float = 1e-5,
    rope_theta: float = 10000.0,
    rope_scaling: RopeScaling | None = None,
    max_position_embeddings: int = 2048,
    tie_word_embeddings: bool = False,
    attention_bias: bool = False,
    mlp_bias: bool = False,
) -> DecoderConfig:
    """The Llama family; argument names follow Hugging Face's `config.json`."""
    kind = LayerKind(Rope(rope_theta, head_dim, rope_scaling))
    return DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_attention_heads=num_attention_heads,
        num_key_value_heads=num_key_value_heads,
        head_dim=head_dim,
        layers=(kind,) * num_hidden_layers,
        max_position_embeddings=max_position_embeddings,
        norm=Norm(rms_norm_eps),
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=mlp_bias,
        tie_word_embeddings=tie_word_embeddings,
    )
