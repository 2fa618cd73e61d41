"""The installed program on real weights: a tiny model that speaks letters, and the demo model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

TINY_MODEL = Path(__file__).parent / "data" / "tiny_model"
SMALL = ["--window", "4", "--ngram", "3", "--guesses", "3"]
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with `model`, the tiny checkpoint with a tokenizer of one token a character."""
    place = tmp_path_factory.mktemp("program")
    shutil.copytree(TINY_MODEL, place / "model")
    letters = [*map(chr, range(0x20, 0x7F)), *map(chr, range(0xC0, 0xDE))]
    vocabulary = {token: k for k, token in enumerate(["<pad>", "<s>", "</s>", *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(place / "model" / "tokenizer.json"))
    return place


def command(place, *arguments):
    program = shutil.which("lookahead-jax", path=str(Path(sys.executable).parent))
    assert program, "the package is not installed in this environment"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    return {
        "args": [program, *map(str, arguments), "--cache-dir", str(place / "compiled")],
        "env": environment,
        "cwd": place,
        "text": True,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }


def program(place, *arguments):
    return subprocess.run(**command(place, *arguments), timeout=300)


def generate(place, prompt, *options):
    return program(place, "generate", prompt, "-m", "model", "-n", NUM_TOKENS, *SMALL, *options)


@pytest.fixture(scope="module")
def record(place):
    """The JSON object for the prompt "hello"; its programs are compiled and kept afterwards."""
    done = generate(place, "hello", "--json", "--baseline")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def kept_programs(place):
    return sorted(path.name for path in (place / "compiled").glob("*-cache"))


def test_json_agrees_with_ordinary_decoding(record):
    assert record["baseline"]["identical"] is True
    assert record["baseline"]["rounds"] == len(record["tokens"]) == NUM_TOKENS
    assert sum(record["accepted_histogram"]) == record["rounds"] <= NUM_TOKENS
    assert record["finish_reason"] == "length"
    assert record["prompt_tokens"] == len("hello")


def test_streamed_text_is_the_same_and_is_not_compiled_again(place, record):
    kept = kept_programs(place)
    assert kept
    done = generate(place, "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout == record["text"] + "\n"
    assert done.stderr.startswith(f"{NUM_TOKENS} tokens in {record['rounds']} model calls (")
    assert done.stderr.count("\n") == 1
    assert kept_programs(place) == kept


def test_batch_answers_equal_single_ones_and_long_prompts_get_an_error(place, record):
    prompts = ["hello", "a", "x" * 2000, "the same for all"]
    source, target = place / "in.jsonl", place / "out.jsonl"
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    done = program(place, "batch", source, target, "-m", "model", "-n", NUM_TOKENS, *SMALL)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith('error: 1 of 4 prompts have an "error"')
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert "1024" in rows[2]["error"]
    assert len(rows[1]["tokens"]) == len(rows[3]["tokens"]) == NUM_TOKENS
    assert rows[0]["tokens"] == record["tokens"]
    assert rows[0]["text"] == record["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x" * 2000, "-m", "model"], "1024"),
        (["hello", "-m", "model", "-n", "2000"], "1024"),
        (["hello", "-m", "nowhere"], "no model named 'nowhere'"),
        (["hello", "-m", "."], "config.json"),
        (["hello", "-m", "model", "--system", "be kind"], "chat template"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(place, arguments, message):
    done = program(place, "generate", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_interrupting_a_batch_run_loses_nothing(place):
    source, target = place / "many.jsonl", place / "answers.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"number {k}"}) + "\n" for k in range(400)))
    options = ["-m", "model", "-n", NUM_TOKENS, "--batch-size", "1", *SMALL]
    child = subprocess.Popen(**command(place, "batch", source, target, *options))
    try:
        deadline = time.monotonic() + 120
        while not (target.exists() and target.read_bytes().count(b"\n") >= 2):
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    assert f"interrupted: {len(rows)} of 400 prompts" in stderr
    assert [row["id"] for row in rows] == list(range(1, len(rows) + 1))

    source.write_text("".join(source.read_text().splitlines(keepends=True)[: len(rows) + 2]))
    done = program(place, "batch", source, target, *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"{len(rows)} of {len(rows) + 2} prompts are already answered")
    assert target.read_bytes().count(b"\n") == len(rows) + 2


def test_a_chat_reads_only_what_is_new(place):
    """A piped script; a message that is too long is none."""
    model = place / "chatty"
    shutil.copytree(place / "model", model)
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}assistant: "
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    options = ["-m", model, "-n", NUM_TOKENS, *SMALL]
    script = "\n".join(["hello", "x" * 2000, "and again?", "/stats"])
    done = subprocess.run(**command(place, "chat", *options), input=script, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    lines = done.stderr.splitlines()
    start = len("user: hello assistant: ")
    assert lines[0].startswith(f"{NUM_TOKENS} tokens in ")
    assert f"{start} tokens read; cut at" in lines[0]
    assert lines[1].startswith("error: ")
    assert "1024" in lines[1]
    # The answer's last token is not in the cache yet, so it is read too.
    new = 1 + len(" user: and again? assistant: ")
    assert f"{new} tokens read; cut at" in lines[2]
    assert f"tokens read   {start} + {new}; " in done.stderr
    assert first != second


@pytest.mark.slow
def test_the_demo_model_answers_as_ordinary_decoding_does(tmp_path):
    options = ["-n", "32", *SMALL, "--json", "--baseline"]
    done = program(tmp_path, "generate", "Why is the sky blue?", *options)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["baseline"]["identical"] is True
    assert record["rounds"] < len(record["tokens"]) == 32
    assert "sky" in record["text"]
