"""Whatever ends a conversion, its destination is what it was before, or whole; and the command."""

import gc
import json
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import trace_files
from filelock import FileLock

from lookahead_jax.cli import run
from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import conversion, load_model, orbax_file
from lookahead_jax.models.conversion import convert
from lookahead_jax.models.manifest import MANIFEST

TINY = trace_files.TINY_MODEL
OTHER = trace_files.DATA / "families" / "llama"


def quiet(done, total):
    """A progress that shows nothing."""


def line_of(call, *args, **kwargs):
    with pytest.raises(LookaheadError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_whole(path, source):
    """Whether the checkpoint loads, and is the source's."""
    ours, theirs = (load_model(x, progress=quiet).params for x in (path, source))
    return jax.tree.structure(ours) == jax.tree.structure(theirs) and all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    )


MOMENTS = {
    "before Orbax calls it a checkpoint": ("os.rename", "params"),
    "before the manifest": ("open", MANIFEST),
    "before the old one is moved away": ("os.rename", "replaced"),
    "before the new one takes its place": ("os.rename", "/new',"),
}
KILLED = """
import os, signal, sys
source, destination, event, place = sys.argv[1:]
def kill(name, arguments):
    if name == event and "lookahead-jax" in str(arguments) and place in str(arguments):
        os.kill(os.getpid(), signal.SIGKILL)
from lookahead_jax.models.conversion import convert
sys.addaudithook(kill)
convert(source, destination, overwrite=True)
print("not killed")
"""


@pytest.mark.slow
def test_a_killed_conversion_leaves_the_old_checkpoint_or_none(tmp_path):
    """By SIGKILL, at each of the moments that count; the next run needs no help."""
    running = {}
    for i, (moment, (event, place)) in enumerate(MOMENTS.items()):
        destination = tmp_path / str(i) / "model"
        convert(OTHER, destination, progress=quiet)
        command = [sys.executable, "-P", "-c", KILLED, str(TINY), str(destination), event, place]
        running[moment] = (destination, subprocess.Popen(command, stdout=subprocess.PIPE))
    for moment, (destination, process) in running.items():
        output, _ = process.communicate(timeout=120)
        assert (process.returncode, output) == (-9, b""), moment
        litter = [x.name for x in destination.parent.iterdir() if x != destination]
        assert litter == [".model.lookahead-jax"], moment
        if moment == "before the new one takes its place":
            assert line_of(load_model, destination).startswith("no model named")
            # The old one comes back first of all, so that nothing is lost.
            line = line_of(convert, TINY, destination, progress=quiet)
            assert line == f"{destination} exists; --overwrite replaces it"
        assert is_whole(destination, OTHER), moment
        convert(TINY, destination, overwrite=True, progress=quiet)
        assert is_whole(destination, TINY), moment
        assert list(destination.parent.iterdir()) == [destination], moment


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (conversion, "read_checkpoint"),
        (orbax_file, "write_manifest"),
        (orbax_file, "describe_files"),
        (conversion, "_check_destination"),
    ],
)
def test_an_interrupt_leaves_nothing_behind(tmp_path, monkeypatch, where, name, overwrite):
    destination = tmp_path / "model"
    if overwrite:
        convert(OTHER, destination, progress=quiet)
    real, calls = getattr(where, name), []

    def interrupt(*args, **kwargs):
        calls.append(name)
        if name != "_check_destination" or len(calls) == 3:  # the last look at the destination
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(TINY, destination, overwrite=overwrite, progress=quiet)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["model"] * overwrite
    if overwrite:
        assert is_whole(destination, OTHER)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_full_disk_is_one_line(tmp_path):
    """(Orbax leaves the writes beside the one that failed to the garbage collector.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        line = line_of(convert, TINY, tmp_path / "model", progress=quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert line.startswith(f"cannot write {tmp_path / 'model'}: ")
    assert line.endswith(": File too large")
    assert not any(tmp_path.iterdir())
    gc.collect()


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=100_000))
    monkeypatch.setattr(conversion, "write_checkpoint", None)
    line = line_of(convert, TINY, tmp_path / "model", progress=quiet)
    expected = f"cannot write {tmp_path / 'model'}: 288.0 kB are needed, 100.0 kB are free"
    assert line == expected
    assert not any(tmp_path.iterdir())


def test_a_destination_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    line = line_of(convert, TINY, tmp_path / "file" / "model", progress=quiet)
    assert line == f"cannot write {tmp_path / 'file' / 'model'}: Not a directory"


def test_only_a_converted_checkpoint_is_ever_replaced(tmp_path):
    destination = tmp_path / "model"
    destination.mkdir()
    convert(TINY, destination, progress=quiet)  # an empty directory is none to lose
    stamp = (destination / MANIFEST).stat()
    line = line_of(convert, OTHER, destination, progress=quiet)
    assert line == f"{destination} exists; --overwrite replaces it"
    assert line_of(convert, tmp_path / "absent", destination, overwrite=True).startswith("no model")
    assert (destination / MANIFEST).stat() == stamp
    convert(OTHER, destination, overwrite=True, progress=quiet)
    assert is_whole(destination, OTHER)
    convert(destination, destination, overwrite=True, dtype="float32", progress=quiet)
    assert json.loads((destination / MANIFEST).read_text())["dtype"] == "float32"
    assert is_whole(destination, OTHER)

    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("")
    for path in (tmp_path / "precious", tmp_path / "precious" / "file"):
        line = line_of(convert, TINY, path, overwrite=True, progress=quiet)
        expected = "exists and is not a converted checkpoint: expected a new directory"
        assert line == f"{path} {expected}"
    assert sorted(os.listdir(tmp_path)) == ["model", "precious"]


def test_one_conversion_at_a_time(tmp_path):
    staging = tmp_path / ".model.lookahead-jax"
    staging.mkdir()
    with FileLock(staging / "lock"):
        line = line_of(convert, TINY, tmp_path / "model", progress=quiet)
    assert line == f"another conversion to {tmp_path / 'model'} is running"
    convert(TINY, tmp_path / "model", progress=quiet)
    assert os.listdir(tmp_path) == ["model"]


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["convert", str(TINY), "my model", "--dtype", "bfloat16"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    line = "144.0 kB in bfloat16, without tokenizer, "
    assert captured.err.startswith(line)
    assert captured.err.endswith("use it with --model 'my model' --dtype bfloat16\n")
    assert run(arguments) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path / 'my model'} exists; --overwrite replaces it\n"
    )
    assert run([*arguments, "--overwrite", "--int8"]) == 0
    assert " in int8 and bfloat16, without tokenizer, " in capsys.readouterr().err
    assert load_model("my model").forward.config.int8
    assert run(["convert", "absent", "x"]) == 2
    assert capsys.readouterr().err.startswith("error: no model named 'absent'")
    assert run(["convert", str(TINY), "x", "--dtype", "float8"]) == 2
    assert "float8" in capsys.readouterr().err
