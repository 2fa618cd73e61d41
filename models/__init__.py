"""Models for lookahead decoding: loading from files, and the Llama family in Flax."""

from lookahead_jax.models.loading import load_model

__all__ = ["load_model"]
