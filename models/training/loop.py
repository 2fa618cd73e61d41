"""One step of training: a pure function `(state, tokens) -> (state, loss)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lookahead_jax.attention import Dense
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.models.config import DecoderConfig, llama_config
from lookahead_jax.models.decoder import Decoder, DecoderForward, cache_spec
from lookahead_jax.models.training.corpus import END
from lookahead_jax.typing import Array, Params


@dataclass(frozen=True)
class TrainingSettings:
    """What decides the weights that come out, the text apart.

    Attributes:
        steps: Updates.
        batch_size: Texts of an update.
        length: Tokens of a text, and the context of the model.
        learning_rate: Its greatest value, after `warm_up` steps; it falls to a tenth on a cosine.
        warm_up: Steps of linear warm-up, at most.
        weight_decay: Of AdamW.
        clip: Greatest norm of a gradient.
        seed: Of the initial weights and of the order of the texts.
        hidden_size: Features.
        num_layers: Layers.
        num_heads: Query heads of 32 features; one key/value head serves them all.
    """

    steps: int = 1300
    batch_size: int = 8
    length: int = 512
    learning_rate: float = 3e-3
    warm_up: int = 100
    weight_decay: float = 0.05
    clip: float = 1.0
    seed: int = 0
    hidden_size: int = 160
    num_layers: int = 5
    num_heads: int = 5

    @property
    def model(self) -> DecoderConfig:
        """A Llama over bytes."""
        return llama_config(
            vocab_size=END + 1,
            hidden_size=self.hidden_size,
            intermediate_size=self.hidden_size * 14 // 5,
            num_hidden_layers=self.num_layers,
            num_attention_heads=self.num_heads,
            num_key_value_heads=1,
            head_dim=32,
            max_position_embeddings=self.length,
            tie_word_embeddings=True,
        )

    @property
    def optimiser(self) -> optax.GradientTransformation:
        """AdamW behind a clipped gradient."""
        schedule = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=min(self.warm_up, self.steps // 4),
            decay_steps=self.steps,
            end_value=self.learning_rate / 10,
        )
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(schedule, b2=0.95, weight_decay=self.weight_decay, mask=_is_matrix),
        )


def _is_matrix(params: Params) -> Any:
    return jax.tree.map(lambda leaf: leaf.ndim > 1, params)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainingState:
    """What a step changes."""

    params: Params
    optimiser: Any
    step: Array  # int32 []


def init_state(settings: TrainingSettings) -> TrainingState:
    """The state before the first step."""
    config = settings.model
    row, mask = jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1, 1), bool)
    cache = init_cache(cache_spec(config, "float32"), 1, 1)
    key = jax.random.key(settings.seed)
    # Dense, which can be differentiated.
    decoder = Decoder(config, attention=Dense())
    params = jax.jit(decoder.init)(key, row, row, mask, cache, row)["params"]
    return TrainingState(params, settings.optimiser.init(params), jnp.zeros((), jnp.int32))


def mean_loss(params: Params, tokens: Array, config: DecoderConfig) -> Array:
    """Mean cross-entropy, in nats, of each token after the first, float32 [].

    The forward pass is the very one that decodes, over an empty cache.

    Args:
        params: The weights.
        tokens: int32 [B, T + 1].
        config: The model.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    batch_size, length = inputs.shape
    rows = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), inputs.shape)
    mask = jnp.broadcast_to(
        jnp.tril(jnp.ones((length, length), bool)), (batch_size, length, length)
    )
    cache = init_cache(cache_spec(config, "float32"), batch_size, 1)
    logits, _ = DecoderForward(config, Dense())(params, inputs, rows, mask, cache, rows)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))


def train_step(
    state: TrainingState, tokens: Array, *, settings: TrainingSettings
) -> tuple[TrainingState, Array]:
    """One update on texts int32 [B, T + 1]; the loss, float32 [], is that before it."""
    loss, gradient = jax.value_and_grad(mean_loss)(state.params, tokens, settings.model)
    updates, optimiser = settings.optimiser.update(gradient, state.optimiser, state.params)
    params = optax.apply_updates(state.params, updates)
    return TrainingState(params, optimiser, state.step + 1), loss
