"""The training of `tiny-bytes`, the small model that the package carries.

`python -m lookahead_jax.models.training DIRECTORY` repeats it.
"""
