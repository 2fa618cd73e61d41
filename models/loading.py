"""`load_model`: from a name, a directory, a file or a hub id to a model ready to run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import jax
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from jax.sharding import Mesh, NamedSharding
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from lookahead_jax.attention import Attention, HeadParallel
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Checkpoint
from lookahead_jax.models.decoder import DecoderForward, cache_spec
from lookahead_jax.models.demo import fetch
from lookahead_jax.models.gguf_file import load_gguf
from lookahead_jax.models.huggingface import FILE_PATTERNS, load_directory, read_config
from lookahead_jax.models.manifest import is_checkpoint
from lookahead_jax.models.named_models import BUNDLED_MODELS, NAMED_MODELS
from lookahead_jax.models.orbax_file import load_checkpoint
from lookahead_jax.models.rope import reading
from lookahead_jax.models.weights import DTYPES, Progress, Sharder, Target
from lookahead_jax.sharding import MODEL, check_heads, check_mesh, sharding_of, size_of
from lookahead_jax.typing import LanguageModel

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    int8: bool = False,
    sharding: jax.sharding.Sharding | Sharder | None = None,
    mesh: Mesh | None = None,
    attention: Attention | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """Loads a model of one of the families (families.py).

    Args:
        name_or_path: A named model ("smollm2-135m", downloaded once), a Hugging Face directory
            with config.json, a .gguf file, a directory that `lookahead-jax convert` wrote, or a
            Hugging Face id "org/name".
        dtype: "float32", "bfloat16" or "float16", of weights, activations and key/value cache.
            Quantised weights are converted, too. Logits and softmax are always float32.
        int8: Whether matrices are kept as int8 with a float32 scale for each output channel: a
            quarter of float32's memory, at some loss of quality. `dtype` is that of the rest. A
            converted checkpoint that has int8 keeps it.
        sharding: Where the parameters go: one sharding for all of them, or a function of a
            parameter's path, a tuple of keys, and shape (`DecoderConfig` lists them). None: the
            default device. Matrices are [out, in], so that this shares the rows of every matrix
            out among the devices of a mesh, and puts the rest on all of them:

                def sharding(path, shape):
                    axes = ("model",) if len(shape) == 2 else ()
                    return NamedSharding(mesh, PartitionSpec(*axes))

            Tensor parallelism in the usual way shares out the columns of o and down instead:
            PartitionSpec(None, "model") where path[-2] is "o" or "down".
        mesh: The devices to run on (`lookahead_jax.make_mesh`). The parameters go where
            `lookahead_jax.sharding.RULES` say, and so will batch and cache; the copies of the model
            along its axis `lookahead` share the work of a round (parallel.py). In the place of
            `sharding`.
        attention: How attention is computed, one of `lookahead_jax.attention`, such as
            `Split(block_size=256)`. None: what serves the platform that a program is compiled for.
        progress: Called with the bytes read so far and the bytes to read. None shows a bar where
            standard error is a terminal.

    Returns:
        The model, its parameters where `sharding` or `mesh` says.

    Raises:
        LookaheadError: There is no such model, it is not supported, its files are damaged, or a
            parameter cannot be shared out as asked for.
    """
    check_dtype(dtype)
    name = os.fspath(name_or_path)
    target = Target(dtype, int8, _sharder(sharding))
    if mesh is not None:
        if sharding is not None:
            raise LookaheadError("expected a sharding or a mesh, got both")
        check_mesh(mesh)
        target = _on_mesh(target, mesh)
        if size_of(mesh, MODEL) > 1:
            attention = HeadParallel(mesh, attention)
    checkpoint = read_checkpoint(resolve(name), target, progress)
    config = checkpoint.config
    return LanguageModel(
        name=name,
        forward=DecoderForward(config, attention),
        params=checkpoint.params,
        cache_spec=cache_spec(config, dtype),
        vocab_size=config.vocab_size,
        max_length=config.max_position_embeddings,
        stop_tokens=checkpoint.stop_tokens,
        tokenizer=checkpoint.tokenizer,
        mesh=mesh,
        reading=reading(config),
    )


def check_dtype(dtype: str) -> None:
    """Refuses a dtype that a model cannot have.

    Raises:
        LookaheadError: It is none of `DTYPES`.
    """
    if dtype not in DTYPES:
        raise LookaheadError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def resolve(name: str) -> Path:
    """The file or directory of a model, downloaded where it is not there yet.

    Raises:
        LookaheadError: There is no such model, or it cannot be downloaded.
    """
    path = Path(name)
    if name in BUNDLED_MODELS:
        return BUNDLED_MODELS[name].path
    if name in NAMED_MODELS:
        return fetch(NAMED_MODELS[name])
    if (name and path.is_dir()) or path.suffix == ".gguf":
        return path
    if HUB_ID.fullmatch(name) and not path.exists():
        return _download(name)
    known = ", ".join((*BUNDLED_MODELS, *NAMED_MODELS))
    raise LookaheadError(
        f"no model named {name!r}: expected one of the named models ({known}), "
        f"a directory with config.json, a .gguf file or a Hugging Face id 'org/name'"
    )


def read_checkpoint(path: Path, target: Target, progress: Progress | None = None) -> Checkpoint:
    """Reads a checkpoint of any of the formats; arguments as for `load_model`.

    Raises:
        LookaheadError: The model is not supported, or its files are damaged.
    """
    if progress is None:
        with _bar() as bar:
            return read_checkpoint(path, target, bar)
    read = load_gguf
    if path.is_dir():
        read = load_checkpoint if is_checkpoint(path) else load_directory
    checkpoint = read(path, target, progress)
    int8 = target.int8 or checkpoint.config.int8
    return replace(checkpoint, config=replace(checkpoint.config, int8=int8))


def _on_mesh(target: Target, mesh: Mesh) -> Target:
    """The target with every parameter where the table of shardings has it."""
    return replace(
        target,
        sharder=lambda path, shape: sharding_of(mesh, "/".join(("params", *path)), shape),
        admit=lambda config: check_heads(mesh, config.num_key_value_heads),
    )


def _sharder(sharding: jax.sharding.Sharding | Sharder | None) -> Sharder | None:
    """The function that says where a parameter goes, its answers checked."""
    if sharding is None:
        return None

    def place(path: tuple[str, ...], shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        where = sharding if isinstance(sharding, jax.sharding.Sharding) else sharding(path, shape)
        if where is None:
            return None
        if not isinstance(where, jax.sharding.Sharding):
            raise LookaheadError(
                f"{'/'.join(path)} cannot go to {where!r}: expected a Sharding of jax, or None"
            )
        try:
            where.shard_shape(shape)
            fits = not isinstance(where, NamedSharding) or len(where.spec) <= len(shape)
        except (ValueError, IndexError):
            fits = False
        if not fits:
            raise LookaheadError(
                f"{'/'.join(path)} {list(shape)} cannot be shared out evenly as {where}"
            )
        return where

    return place


def _download(repository: str) -> Path:
    """Brings a hub repository to the local hub cache; the configuration first.

    An unsupported model is refused before its weights are downloaded.
    """
    try:
        small = huggingface_hub.snapshot_download(repository, allow_patterns=["config.json"])
        read_config(Path(small))
        whole = huggingface_hub.snapshot_download(repository, allow_patterns=list(FILE_PATTERNS))
    except GatedRepoError as error:
        raise LookaheadError(
            f"{repository} asks for its terms to be accepted: accept them on its page, "
            f"then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise LookaheadError(
            f"no model {repository!r} on the Hugging Face hub, or it is private"
        ) from error
    except LookaheadError:
        raise
    except (OSError, ValueError, HfHubHTTPError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LookaheadError(f"cannot download {repository}: {reason}") from error
    return Path(whole)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A progress bar on standard error that leaves no trace, and shows only on a terminal."""
    console = Console(stderr=True)
    columns = (
        TextColumn("Loading weights"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with ProgressBar(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=None, visible=False)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield show
