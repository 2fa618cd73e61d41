"""The command line, `lookahead-jax`: the only part of the package that knows the models.

Nothing here imports the models, or what they need, before a command needs them, so that `--help`
and `explain` answer at once.
"""

from lookahead_jax.cli.program import main, run

__all__ = ["main", "run"]
