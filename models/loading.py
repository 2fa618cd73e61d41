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
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Checkpoint
from lookahead_jax.models.decoder import DecoderForward, cache_spec
from lookahead_jax.models.demo import NAMED_MODELS, fetch
from lookahead_jax.models.gguf_file import load_gguf
from lookahead_jax.models.huggingface import FILE_PATTERNS, load_directory, read_config
from lookahead_jax.models.weights import DTYPES, Progress, Sharder, Target
from lookahead_jax.typing import LanguageModel

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_model(
    name_or_path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    int8: bool = False,
    sharding: jax.sharding.Sharding | Sharder | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """Loads a model of one of the families (families.py).

    Args:
        name_or_path: A named model ("smollm2-135m", downloaded once), a Hugging Face directory
            with config.json, a .gguf file, or a Hugging Face id "org/name".
        dtype: "float32", "bfloat16" or "float16", of weights, activations and key/value cache.
            Quantised weights are converted, too. Logits and softmax are always float32.
        int8: Whether matrices are kept as int8 with a float32 scale for each output channel: a
            quarter of float32's memory, at some loss of quality. `dtype` is that of the rest.
        sharding: Where the parameters go: one sharding for all of them, or a function of a
            parameter's path and shape (`DecoderConfig` lists them). None: the default device.
        progress: Called with the bytes read so far and the bytes to read. None shows a bar where
            standard error is a terminal.

    Returns:
        The model, its weights on the default device.

    Raises:
        LookaheadError: There is no such model, it is not supported, or its files are damaged.
    """
    if dtype not in DTYPES:
        raise LookaheadError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    name = os.fspath(name_or_path)
    target = Target(dtype, int8, _sharder(sharding))
    if progress is not None:
        return _language_model(name, _load(name, target, progress), target)
    with _bar() as bar:
        return _language_model(name, _load(name, target, bar), target)


def _sharder(sharding: jax.sharding.Sharding | Sharder | None) -> Sharder | None:
    if isinstance(sharding, jax.sharding.Sharding):
        return lambda path, shape: sharding
    return sharding


def _load(name: str, target: Target, progress: Progress) -> Checkpoint:
    path = Path(name)
    if name in NAMED_MODELS:
        return load_gguf(fetch(NAMED_MODELS[name]), target, progress)
    if name and path.is_dir():
        return load_directory(path, target, progress)
    if path.suffix == ".gguf":
        return load_gguf(path, target, progress)
    if HUB_ID.fullmatch(name) and not path.exists():
        return load_directory(_download(name), target, progress)
    raise LookaheadError(
        f"no model named {name!r}: expected one of the named models ({', '.join(NAMED_MODELS)}), "
        f"a directory with config.json, a .gguf file or a Hugging Face id 'org/name'"
    )


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


def _language_model(name: str, checkpoint: Checkpoint, target: Target) -> LanguageModel:
    config = replace(checkpoint.config, int8=checkpoint.config.int8 or target.int8)
    return LanguageModel(
        name=name,
        forward=DecoderForward(config),
        params=checkpoint.params,
        cache_spec=cache_spec(config, target.dtype),
        vocab_size=config.vocab_size,
        max_length=config.max_position_embeddings,
        stop_tokens=checkpoint.stop_tokens,
        tokenizer=checkpoint.tokenizer,
    )


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
