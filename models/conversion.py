"""`convert`: a model from any of the formats into a checkpoint that restores at once, sharded.

The checkpoint is made in a hidden directory beside its destination, and moved there when it is
whole. Whatever interrupts that, the destination is what it was before, or the whole new checkpoint.
(Killed between the two renames of --overwrite, it is nothing until the next run brings the old one
back: a directory cannot be replaced in one step.)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
from filelock import FileLock, Timeout
from jax.sharding import SingleDeviceSharding
from rich.console import Console
from rich.filesize import decimal

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.gguf_header import read_gguf_header
from lookahead_jax.models.huggingface import stored_tensors
from lookahead_jax.models.loading import check_dtype, read_checkpoint, resolve
from lookahead_jax.models.manifest import MANIFEST, is_checkpoint, read_manifest
from lookahead_jax.models.orbax_file import write_checkpoint
from lookahead_jax.models.weights import DTYPES, Progress, Sharder, Target


@dataclass(frozen=True)
class Converted:
    """What `convert` wrote.

    Attributes:
        path: The directory.
        dtype: Of the parameters, those apart that are int8.
        int8: Whether matrices are int8.
        size: Bytes of the parameters.
        has_tokenizer: Whether there is a tokenizer.
    """

    path: Path
    dtype: str
    int8: bool
    size: int
    has_tokenizer: bool


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    int8: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes a model as a checkpoint that `load_model` restores, with configuration and tokenizer.

    The parameters are in the host's memory meanwhile, as a whole and once, whatever the default
    device is: it may well be smaller.

    Args:
        source: What `load_model` takes.
        destination: A directory to make.
        dtype: "float32", "bfloat16" or "float16"; None: that of the source's matrices, float32
            where they are quantised or not all alike.
        int8: Whether matrices are stored as int8; see `load_model`.
        overwrite: Whether a checkpoint at the destination is replaced, once the new one is whole.
        progress: Told how far the reading is. None shows on a terminal what is going on.

    Raises:
        LookaheadError: The source cannot be loaded, or the destination exists or cannot be written.
    """
    if dtype is not None:
        check_dtype(dtype)
    target = Path(os.path.realpath(destination))
    _check_destination(target, overwrite)
    path = resolve(os.fspath(source))
    kept = dtype or stored_dtype(path)
    try:
        with _staging(target, overwrite) as directory:
            checkpoint = read_checkpoint(path, Target(kept, int8, _on_host()), progress)
            size = sum(leaf.nbytes for leaf in jax.tree.leaves(checkpoint.params))
            free = shutil.disk_usage(directory).free
            if size > free:
                raise OSError(f"{decimal(size)} are needed, {decimal(free)} are free")
            console = Console(stderr=True, quiet=progress is not None)
            with console.status(f"Writing {target.name}"):
                write_checkpoint(directory, checkpoint, kept)
    except OSError as error:
        raise LookaheadError(f"cannot write {target}: {error.strerror or error}") from error
    has_tokenizer = checkpoint.tokenizer is not None
    return Converted(target, kept, checkpoint.config.int8, size, has_tokenizer)


def stored_dtype(path: Path) -> str:
    """The dtype that a checkpoint's matrices have, float32 where they do not have one in common.

    Raises:
        LookaheadError: The checkpoint is damaged.
    """
    if path.is_dir() and is_checkpoint(path):
        return read_manifest(path).dtype
    tensors = stored_tensors(path) if path.is_dir() else read_gguf_header(path).tensors
    found = {x.encoding.dtype for x in tensors.values() if len(x.shape) > 1}
    names = [name for name, kind in DTYPES.items() if found == {kind}]
    return names[0] if names else "float32"


def _on_host() -> Sharder | None:
    """Places for parameters in the host's memory, None where JAX has no CPU among its platforms."""
    try:
        host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return None
    return lambda path, shape: host


def _check_destination(destination: Path, overwrite: bool) -> None:
    """Refuses to replace anything but a checkpoint of ours, and that only where it is wanted."""
    if not os.path.lexists(destination):
        return
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if not (destination / MANIFEST).is_file():
        raise LookaheadError(
            f"{destination} exists and is not a converted checkpoint: expected a new directory"
        )
    if not overwrite:
        raise LookaheadError(f"{destination} exists; --overwrite replaces it")


@contextmanager
def _staging(destination: Path, overwrite: bool) -> Iterator[Path]:
    """An empty directory whose content becomes the destination when the block ends well.

    What a killed run has left beside the destination is cleared away by the next one.
    """
    staging = destination.with_name(f".{destination.name}.lookahead-jax")
    new, replaced = staging / "new", staging / "replaced"

    def bring_back() -> None:
        if replaced.exists() and not destination.exists():
            replaced.rename(destination)

    staging.mkdir(parents=True, exist_ok=True)
    lock = FileLock(staging / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise LookaheadError(f"another conversion to {destination} is running") from error
    try:
        bring_back()
        _check_destination(destination, overwrite)
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        yield new
        _check_destination(destination, overwrite)
        if destination.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            destination.rename(replaced)
        new.rename(destination)
    finally:
        bring_back()
        shutil.rmtree(staging, ignore_errors=True)
        lock.release()
