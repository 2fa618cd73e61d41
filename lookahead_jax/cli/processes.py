"""Several processes that run one command together: who speaks, and what they must agree on."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    import typer

    from lookahead_jax.cli.options import DeviceOptions

HEARTBEAT_SECONDS = 30
"""A process that has not been heard of for this long ends the others."""

JOIN_SECONDS = 300
"""How long the first processes wait for the last one."""


@dataclass(frozen=True)
class Processes:
    """One of `count` processes. The first one reads and writes files, and prints."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one speaks for all."""
        return self.index == 0

    def agree(self, value: int) -> int:
        """The first process's value, in all of them."""
        if self.count == 1:
            return value
        import numpy as np
        from jax.experimental import multihost_utils

        return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def join(context: typer.Context, options: DeviceOptions) -> Processes:
    """Waits for the other processes of the run, if there are to be any.

    All but the first are silent from then on: what goes to their stdout and stderr is dropped while
    the command runs. An error still ends them with its line.

    Raises:
        LookaheadError: The options do not go together, or the others do not come.
    """
    place = (options.coordinator, options.num_processes, options.process_id)
    is_named = [value is not None for value in place]
    if any(is_named) and not all(is_named):
        raise LookaheadError("--coordinator, --num-processes and --process-id go together")
    if not options.distributed and not any(is_named):
        return Processes()
    if options.mesh is None:
        raise LookaheadError(
            "processes work together on a mesh of all their devices: expected --mesh"
        )
    import jax

    try:
        jax.distributed.initialize(
            *place,
            initialization_timeout=JOIN_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
        processes = Processes(jax.process_index(), jax.process_count())
    except (ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LookaheadError(f"cannot join the other processes: {reason}") from error
    if not processes.is_first:
        nowhere = context.with_resource(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        context.with_resource(contextlib.redirect_stdout(nowhere))
        context.with_resource(contextlib.redirect_stderr(nowhere))
    return processes


def are_joined() -> bool:
    """Whether this process has joined others."""
    return "jax" in sys.modules and sys.modules["jax"].distributed.is_initialized()
