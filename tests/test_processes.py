"""Several processes that answer a file together, and what becomes of them when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from lookahead_jax.attention import Split

MESH = ("--mesh", "data=2,lookahead=2")
COMMON = ("--model", "tiny-bytes", "--batch-size", "2", "--no-chat-template", "-W3", "-N3", "-G3")
LENGTH = "64"
TEXTS = ["def add(a, b):\n", "import os\n", "class Point:\n", "for i in range(3):\n", "x = 1\n"]


def write_prompts(path):
    lines = [json.dumps({"id": str(i), "prompt": text}) for i, text in enumerate(TEXTS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def start(arguments, devices=2):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "TPU_SKIP_MDS_QUERY": "1",
    }
    command = [sys.executable, "-P", "-c", "from lookahead_jax.cli import main; main()", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def batch(prompts, answers):
    """The same programs in every run, compiled once."""
    cache = ("--cache-dir", str(prompts.parent / "compiled"))
    return ["batch", str(prompts), str(answers), *COMMON, *cache, "-n", LENGTH]


def start_two(prompts, answers):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        meeting = f"localhost:{free.getsockname()[1]}"
    where = ("--coordinator", meeting, "--num-processes", "2")
    return [
        start([*batch(prompts, answers), *MESH, *where, "--process-id", str(i)]) for i in range(2)
    ]


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer_alone(prompts, path):
    process = start(batch(prompts, path), devices=1)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


@pytest.mark.slow
def test_two_processes_with_two_devices_each_and_one_that_dies(tmp_path):
    """The answers of one process; then a death, within bounded time, and a run that goes on."""
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    answer_alone(prompts, tmp_path / "alone.jsonl")
    expected = rows(tmp_path / "alone.jsonl")
    assert sum(row["tokens_per_round"] for row in expected) > 1.2 * len(expected)

    together = tmp_path / "together.jsonl"
    processes = start_two(prompts, together)
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert rows(together) == expected
    assert "5 prompts answered" in outputs[0][1]
    # Gloo, which carries what CPUs exchange, has lines of its own.
    said = [line for line in outputs[1][0].splitlines() if not line.startswith("[Gloo]")]
    assert said == []
    assert "answered" not in outputs[1][1]

    left = tmp_path / "left.jsonl"
    first, second = start_two(prompts, left)
    deadline = time.monotonic() + 300
    while not (left.exists() and left.read_text().count("\n")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    second.send_signal(signal.SIGKILL)
    second.wait()
    killed = time.monotonic()
    _, errors = first.communicate(timeout=90)
    assert time.monotonic() - killed < 60
    assert first.returncode != 0
    # Ours where a computation is cut, else that of JAX's own service, which ends the process.
    assert (
        "what 2 processes computed together failed, as it does when one of them ends" in errors
        or "This most likely indicates that another task died" in errors
    )
    assert "Traceback" not in errors
    kept = rows(left)
    assert 0 < len(kept) < len(TEXTS)

    assert f"{len(kept)} of 5 prompts are already answered" in answer_alone(prompts, left)
    assert rows(left) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--process-id", "0"], "--coordinator, --num-processes and --process-id go together"),
        (["--distributed"], "work together on a mesh of all their devices: expected --mesh"),
        (["--mesh", "lookahead=x"], "a mesh is written data=1,lookahead=4,model=2"),
        (["--mesh", "look=2"], "a mesh is written data=1,lookahead=4,model=2"),
        (["--mesh", "data=1,data=2"], "a mesh is written data=1,lookahead=4,model=2"),
        (
            ["--mesh", "data=1", "--distributed"],
            "cannot join the other processes: ",
        ),
    ],
)
def test_what_is_asked_for_wrongly_is_one_line(arguments, message, capsys, monkeypatch):
    from fake_engine import Fake

    from lookahead_jax.cli.program import run

    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    fake = Fake()
    assert run(["generate", "a b", *arguments], engine=fake.engine()) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not fake.loaded


def test_an_implementation_that_cannot_run_says_why(capsys):
    from lookahead_jax.cli.program import run

    arguments = ["--model", "tiny-bytes", "--no-chat-template", "--attention", "pallas-tpu"]
    assert run(["generate", "a b", *arguments]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert "cannot run: expected a TPU, got cpu" in lines[-1]
    assert len(lines) == 1


def test_a_mesh_is_handed_on():
    from fake_engine import Fake

    from lookahead_jax.cli.program import run

    fake = Fake()
    arguments = ["generate", "a b", "--mesh", "lookahead=4, model=2", "--kv-exchange", "refeed"]
    arguments += ["--attention", "split"]
    assert run(arguments, engine=fake.engine()) == 0
    axes = {"data": 1, "lookahead": 4, "model": 2}
    assert fake.loaded == [("smollm2-135m", "float32", axes, Split())]
    assert fake.arguments[0]["config"].kv_exchange == "refeed"
