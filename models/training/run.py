"""A whole training, which can be interrupted: checkpoints by Orbax, losses in a text file."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.training.corpus import Corpus
from lookahead_jax.models.training.loop import (
    TrainingSettings,
    TrainingState,
    init_state,
    mean_loss,
    train_step,
)
from lookahead_jax.typing import Params

SETTINGS_FILE = "settings.json"
LOSSES_FILE = "losses.jsonl"
CHECKPOINTS = "checkpoints"

HELD_OUT_BATCHES = 4
"""Held-out batches that a loss is the mean of."""


@dataclass(frozen=True)
class Loss:
    """Mean cross-entropy, in nats a byte, after a number of steps."""

    step: int
    training: float
    held_out: float | None = None


Progress = Callable[[Loss], None]
"""Told of every step."""


def train(
    directory: Path,
    corpus: Corpus,
    settings: TrainingSettings,
    *,
    save_every: int = 100,
    progress: Progress = lambda loss: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> TrainingState:
    """Trains until `settings.steps`, from where an earlier run in the directory ended.

    A resumed run is the uninterrupted one, bit for bit: the texts of a step depend on its number
    alone. A run that dies goes on from its last checkpoint.

    Args:
        directory: For checkpoints, losses and settings; made where it is missing.
        corpus: The text.
        settings: What decides the weights.
        save_every: Steps between two checkpoints, each with a held-out loss.
        progress: Told of every step.
        should_stop: Asked after every step; if it says so, the state is saved and returned early.

    Raises:
        LookaheadError: The directory belongs to a training with other settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _claim(directory / SETTINGS_FILE, {**asdict(settings), "text": corpus.fingerprint})
    step_once, measure = _compiled(settings)
    held_out = corpus.held_out_batches(settings.batch_size, settings.length, HELD_OUT_BATCHES)
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=False)
    with ocp.CheckpointManager((directory / CHECKPOINTS).absolute(), options=options) as manager:
        state = _restored(manager, init_state(settings))
        losses = read_losses(directory, int(state.step))
        _write_losses(directory, losses)
        step = int(state.step)
        stopping = False
        while step < settings.steps and not stopping:
            texts = corpus.batch(settings.seed, step, settings.batch_size, settings.length)
            state, value = step_once(state, jnp.asarray(texts))
            step += 1
            loss = Loss(step, float(value))
            due = step % save_every == 0 or step == settings.steps
            stopping = should_stop()
            if due:
                whole = np.mean([measure(state.params, jnp.asarray(x)) for x in held_out])
                loss = Loss(step, float(value), float(whole))
            _append_loss(directory, loss)  # before the checkpoint, which promises it is there
            if due or stopping:
                _save(manager, state, step)
            progress(loss)
    return state


@functools.lru_cache(maxsize=4)
def _compiled(settings: TrainingSettings) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The step and the loss, compiled once for equal settings."""
    step_once = jax.jit(functools.partial(train_step, settings=settings), donate_argnums=0)
    return step_once, jax.jit(functools.partial(mean_loss, config=settings.model))


def held_out_loss(params: Params, corpus: Corpus, settings: TrainingSettings) -> float:
    """Mean cross-entropy of held-out text, in nats a byte."""
    _, measure = _compiled(settings)
    texts = corpus.held_out_batches(settings.batch_size, settings.length, 8 * HELD_OUT_BATCHES)
    return float(np.mean([measure(params, jnp.asarray(x)) for x in texts]))


def read_losses(directory: Path, last: int | None = None) -> list[Loss]:
    """The losses of the steps so far, up to a step where one is given."""
    path = directory / LOSSES_FILE
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left half a line
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except ValueError as error:
        raise LookaheadError(f"{path} is damaged: {error}") from error
    return [Loss(**line) for line in lines if last is None or line["step"] <= last]


def _write_losses(directory: Path, losses: list[Loss]) -> None:
    text = "".join(f"{json.dumps(asdict(loss))}\n" for loss in losses)
    (directory / LOSSES_FILE).write_text(text, encoding="utf-8")


def _append_loss(directory: Path, loss: Loss) -> None:
    with (directory / LOSSES_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(asdict(loss))}\n")


def _claim(path: Path, ours: dict[str, Any]) -> None:
    """Writes settings and text down, or compares them with those of an earlier run."""
    if not path.exists():
        path.write_text(json.dumps(ours, indent=1) + "\n", encoding="utf-8")
        return
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise LookaheadError(f"{path} is damaged: {error}") from error
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise LookaheadError(
                f"{path.parent} holds a training with {name} = {theirs.get(name)}, and {value} was "
                f"asked for: use the same settings and text, or another directory"
            )


def _save(manager: ocp.CheckpointManager, state: TrainingState, step: int) -> None:
    manager.save(step, args=ocp.args.StandardSave(_tree(state)))


def _restored(manager: ocp.CheckpointManager, fresh: TrainingState) -> TrainingState:
    """The state of the latest checkpoint, or the fresh one where there is none."""
    step = manager.latest_step()
    if step is None:
        return fresh
    target = jax.tree.map(ocp.utils.to_shape_dtype_struct, _tree(fresh))
    tree: Any = manager.restore(step, args=ocp.args.StandardRestore(target))
    return TrainingState(tree["params"], tree["optimiser"], tree["step"])


def _tree(state: TrainingState) -> dict[str, Any]:
    return {"params": state.params, "optimiser": state.optimiser, "step": state.step}
