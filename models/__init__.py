"""Models for lookahead decoding: loading from files, and one decoder in Flax for all families."""

from lookahead_jax.models.loading import load_model

__all__ = ["load_model"]
