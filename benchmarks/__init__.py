"""Measurements of lookahead_jax; README.md says what each figure means and how to take it."""
