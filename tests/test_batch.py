"""Batch runs: rows in and out, what is continued, and what is refused."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import fake_engine
import pytest
from fake_engine import Fake

from lookahead_jax.cli import run
from lookahead_jax.cli.batch import in_order
from lookahead_jax.cli.rows import Prompt, fingerprint
from lookahead_jax.cli.settings import Settings
from lookahead_jax.config import LookaheadConfig


@pytest.fixture
def files(tmp_path):
    rows = [{"prompt": f"number {k}"} for k in range(1, 8)]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return source, target


def batch(files, fake=None, *options):
    engine = (fake or Fake()).engine()
    return run(["batch", *map(str, files), "--batch-size", "3", *options], engine=engine)


def answers(target):
    return [json.loads(line) for line in target.read_text().splitlines()]


def refusal(files, capsys, *options):
    """The one line of a run that must be refused before the model is loaded."""
    fake = Fake()
    before = files[1].read_bytes() if files[1].is_file() else None
    assert batch(files, fake, *options) == 2
    assert not fake.loaded
    if before is not None:
        assert files[1].read_bytes() == before
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line.removeprefix("error: ").rstrip("\n")


def test_answers_come_in_the_order_of_the_prompts(files, capsys):
    fake = Fake()
    assert batch(files, fake) == 0
    rows = answers(files[1])
    assert [row["id"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["text"] for row in rows] == [f"{k} number" for k in range(1, 8)]
    first = {k: v for k, v in rows[0].items() if k != "fingerprint"}
    assert first == {
        "id": 1,
        "text": "1 number",
        "tokens": [1, 6],
        "finish_reason": "stop",
        "rounds": 1,
        "tokens_per_round": 2.0,
    }
    assert [len(batch) for batch in fake.batches] == [7]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"7 prompts answered in {files[1]}: 14 tokens, 2.00 per round")


def test_generate_with_input_and_output_is_the_same(files):
    options = ["--input", str(files[0]), "--output", str(files[1])]
    assert run(["generate", *options], engine=Fake().engine()) == 0
    assert batch(files, fake := Fake()) == 0
    assert not fake.loaded


def test_ids_and_system_prompts(files):
    rows = [
        {"prompt": "a", "id": "x", "system": "one", "source": "left alone"},
        {"prompt": "b", "id": 40},
        {"prompt": "c"},
    ]
    files[0].write_text("\ufeff\n" + "\n\n".join(json.dumps(row) for row in rows))
    fake = Fake()
    assert batch(files, fake, "--system", "two") == 0
    assert [row["id"] for row in answers(files[1])] == ["x", 40, 6]
    assert fake.encoded == [("a", "one"), ("b", "two"), ("c", "two")]
    assert fake.batches == [["a", "b", "c"]]


def write_prompts(files, *prompts):
    files[0].write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))


def test_rows_keep_the_order_of_the_input_though_answers_come_in_another(files):
    prompts = ["long a b c d", "b", "c d", "longer a b c d e", "e", "toolong", "f g h"]
    write_prompts(files, *prompts)
    fake = Fake()
    assert batch(files, fake) == 2
    assert fake.finished == ["b", "c d", "e", "f g h", "long a b c d", "longer a b c d e"]
    texts = [row.get("text") for row in answers(files[1])]
    reverse = [" ".join(reversed(prompt.split())) for prompt in prompts]
    assert texts == [None if prompt == "toolong" else prompt for prompt in reverse]


def test_what_waits_for_its_turn_is_not_kept_when_interrupted(files, capsys):
    write_prompts(files, "long a b c d", "b", "c d", "e")
    assert batch(files, Fake(interrupt_after=3)) == 130
    assert files[1].read_bytes() == b""
    assert capsys.readouterr().err.startswith("interrupted: 0 of 4 prompts are answered")
    assert batch(files, Fake()) == 0
    assert [row["text"] for row in answers(files[1])] == ["d c b a long", "b", "d c", "e"]


def test_in_order_hands_out_each_row_in_its_turn():
    rows = [(2, {"n": 2}), (0, {"n": 0}), (3, {"n": 3}), (1, {"n": 1})]
    steps = [([row["n"] for row in ready], row["n"]) for ready, row in in_order(iter(rows))]
    assert steps == [([], 2), ([0], 0), ([], 3), ([1, 2, 3], 1)]


def test_every_answer_is_on_the_disk_as_soon_as_it_can_be(files, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        "lookahead_jax.json_lines.os.fsync", lambda file: sizes.append(os.fstat(file).st_size)
    )
    write_prompts(files, "long a b", "b", "c", "d e f g")
    assert batch(files) == 0
    lines = files[1].read_bytes().splitlines(keepends=True)
    assert sizes == [sum(map(len, lines[:3])), sum(map(len, lines))]


def test_seeds_of_rows_and_of_the_run(files):
    rows = [{"prompt": "a", "seed": 7}, {"prompt": "b"}, {"prompt": "toolong"}, {"prompt": "c"}]
    files[0].write_text("".join(json.dumps(row) + "\n" for row in rows))
    fake = Fake()
    assert batch(files, fake, "--temperature", "0.5", "--seed", "4") == 2
    assert fake.arguments[0]["seeds"] == [7, 4, 4]
    files[1].unlink()
    assert batch(files, fake) == 2
    assert "seeds" not in fake.arguments[1]


def test_a_row_s_seed_belongs_to_its_fingerprint_where_tokens_are_drawn(files, capsys):
    def write(seed):
        files[0].write_text(json.dumps({"prompt": "a", "seed": seed}) + "\n")

    write(1)
    assert batch(files) == 0
    write(2)
    assert batch(files) == 0  # greedy: no seed matters
    files[1].unlink()
    assert batch(files, Fake(), "--temperature", "1") == 0
    write(3)
    capsys.readouterr()
    assert "line 1 was made from another prompt" in refusal(files, capsys, "--temperature", "1")


def test_a_plain_run_has_the_fingerprint_that_it_always_had():
    settings = Settings("m", "float32", LookaheadConfig(), 128)
    assert fingerprint(settings, Prompt(1, "p", None)) == "17fe8995b960-79c2adbd7366"


def test_logprobs_and_stop_strings_in_the_rows(files):
    write_prompts(files, "b a")
    fake = Fake()
    assert batch(files, fake, "--logprobs", "--stop", "x") == 0
    (row,) = answers(files[1])
    assert row["logprobs"] == {"processed": [-0.5, -0.5], "raw": [None, -1.5]}
    assert row["stop_string"] is None
    assert fake.arguments[0]["logprobs"] is True
    assert fake.arguments[0]["stop_strings"] == ("x",)


def test_interrupting_keeps_finished_answers_and_the_same_command_continues(files, capsys):
    assert batch(files, Fake(interrupt_after=3)) == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == (
        f"interrupted: 3 of 7 prompts are answered and kept in {files[1]}; "
        "the same command continues there"
    )
    kept = files[1].read_bytes()
    assert kept.count(b"\n") == 3
    fake = Fake()
    assert batch(files, fake) == 0
    assert files[1].read_bytes().startswith(kept)
    assert sum(map(len, fake.batches)) == 4
    assert capsys.readouterr().err.startswith("3 of 7 prompts are already answered")
    whole = files[1].read_bytes()
    files[1].unlink()
    assert batch(files) == 0
    assert files[1].read_bytes() == whole


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_last_line_is_cut_off(files, cut):
    assert batch(files) == 0
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:-cut])
    fake = Fake()
    assert batch(files, fake) == 0
    assert fake.batches == [["number 7"]]
    assert files[1].read_bytes() == whole


def test_nothing_is_left_of_a_torn_line_that_is_longer_than_its_successor(files):
    assert batch(files) == 0
    whole = files[1].read_bytes()
    files[1].write_bytes(b'{"id": 1, "text": "' + b"x" * 5000)
    assert batch(files) == 0
    assert files[1].read_bytes() == whole


def test_a_finished_run_does_nothing_again(files, capsys):
    batch(files)
    whole = files[1].read_bytes()
    capsys.readouterr()
    fake = Fake()
    assert batch(files, fake) == 0
    assert not fake.loaded
    assert files[1].read_bytes() == whole
    assert capsys.readouterr().err == f"all 7 prompts are already answered in {files[1]}\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--model", "other"],
        ["--max-new-tokens", "5"],
        ["--window", "5"],
        ["--dtype", "bfloat16"],
        ["--no-chat-template"],
        ["--temperature", "0.5"],
        ["--ban", "3"],
        ["--stop", "x"],
        ["--pool-slots", "64"],
        ["--logprobs"],
    ],
)
def test_answers_of_other_options_are_not_continued(files, options, capsys):
    batch(files, Fake(interrupt_after=2))
    capsys.readouterr()
    assert refusal(files, capsys, *options) == (
        f"{files[1]}, line 1 was made with another model or other options: "
        "name another output file, or remove it"
    )


def test_answers_to_other_prompts_are_not_continued(files, capsys):
    batch(files)
    capsys.readouterr()
    assert "line 1 was made from another prompt" in refusal(files, capsys, "--system", "s")
    rows = files[0].read_text().splitlines()
    files[0].write_text("\n".join([rows[0], rows[2], rows[1], *rows[3:]]))
    assert "line 2 was made from another prompt" in refusal(files, capsys)
    files[0].write_text("\n".join(rows[:4]))
    assert "line 5 is one more than the input has prompts" in refusal(files, capsys)


def test_another_batch_size_continues(files):
    batch(files, Fake(interrupt_after=3))
    assert batch(files, fake := Fake(), "--batch-size", "1") == 0
    assert [len(texts) for texts in fake.batches] == [4]
    assert len(answers(files[1])) == 7


@pytest.mark.parametrize("content", ["my notes", "my notes\n", "{}\n", '{"id": 1}\n', "[1]\n"])
def test_a_file_of_something_else_is_left_alone(files, content, capsys):
    files[1].write_text(content)
    assert "line 1 is not an answer of a batch run" in refusal(files, capsys)
    assert files[1].read_text() == content


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"prompt", "expected one JSON object in UTF-8 on the line"),
        (b'{"prompt": "caf\xe9"}', "expected one JSON object in UTF-8 on the line"),
        (b'{"prompt": "\\ud800"}', "expected one JSON object in UTF-8 on the line"),
        (b"[" * 100_000, "expected one JSON object in UTF-8 on the line"),
        (b'["prompt"]', "expected a JSON object, got a list"),
        (b"{}", 'expected "prompt" to be a text, got none'),
        (b'{"prompt": 5}', 'expected "prompt" to be a text, got 5'),
        (b'{"prompt": " "}', 'expected "prompt" to be a text, got an empty one'),
        (b'{"prompt": "a", "system": []}', 'expected "system" to be a text, got []'),
        (b'{"prompt": "a", "id": true}', 'expected "id" to be a text or integer, got true'),
        (b'{"prompt": "a", "seed": "x"}', 'expected "seed" to be an integer >= 0 and below 2**32'),
        (b'{"prompt": "a", "seed": -1}', 'expected "seed" to be an integer >= 0 and below 2**32'),
        (b'{"prompt": "a", "seed": true}', 'expected "seed" to be an integer >= 0 and below 2**32'),
        (b'{"prompt": "a", "id": 2}', "every id must be there once, got 2 again"),
    ],
)
def test_a_bad_row_is_found_before_any_work(files, line, message, capsys):
    files[0].write_bytes(b'{"prompt": "a"}\n{"prompt": "b"}\n' + line + b"\n")
    assert refusal(files, capsys).startswith(f"{files[0]}, line 3: {message}")
    assert not files[1].exists()


def test_files_that_cannot_be(files, capsys, tmp_path):
    source, target = files
    nowhere = tmp_path / "missing" / "file.jsonl"
    assert refusal((nowhere, target), capsys) == f"cannot read {nowhere}: No such file or directory"
    assert refusal((source, nowhere), capsys) == (
        f"cannot write {nowhere}: No such file or directory"
    )
    assert refusal((source, tmp_path), capsys) == f"cannot write {tmp_path}: Is a directory"
    assert refusal((source, source), capsys).startswith("input and output must be two files")
    assert refusal((source, Path("/dev/null")), capsys).startswith(
        "expected a regular file as output"
    )
    assert "--batch-size must be an integer >= 1" in refusal(files, capsys, "--batch-size", "0")
    source.write_text("\n")
    assert refusal(files, capsys) == f"{source}: expected one JSON object a line, got no rows"


def test_an_output_in_use_is_refused(files, capsys):
    with files[1].open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert refusal(files, capsys) == f"{files[1]} is being written by another run"


def test_a_prompt_that_the_model_refuses_gets_an_error_and_the_others_their_text(files, capsys):
    files[0].write_text("".join(f'{{"prompt": "{text}"}}\n' for text in ["a", "toolong", "b c"]))
    assert batch(files) == 2
    rows = answers(files[1])
    assert [row.get("text") for row in rows] == ["a", None, "c b"]
    assert rows[1]["error"] == "the prompt is longer than the context of 8 tokens"
    complaint = f'error: 1 of 3 prompts have an "error" in the place of a text in {files[1]}'
    assert capsys.readouterr().err.splitlines()[-1] == complaint
    assert batch(files, fake := Fake()) == 2
    assert not fake.loaded
    assert capsys.readouterr().err.splitlines()[-1] == complaint


def test_a_bug_keeps_its_traceback_and_what_was_finished(files):
    rows = files[0].read_text()
    files[0].write_text(rows + '{"prompt": "a b bug"}\n')
    with pytest.raises(RuntimeError, match="a bug"):
        batch(files)
    assert len(answers(files[1])) == 7


def test_a_full_disk_is_one_line(files, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lookahead_jax.json_lines.os.fsync", full)
    assert batch(files) == 2
    assert capsys.readouterr().err == f"error: cannot write {files[1]}: No space left on device\n"


def test_ctrl_c_in_the_middle_of_a_batch_ends_the_program_at_once(files):
    rows = files[0].read_text()
    files[0].write_text(rows + '{"prompt": "a b slow"}\n')
    command = [sys.executable, fake_engine.__file__, "batch", *map(str, files), "-b", "7"]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr
        assert child.stderr.readline() == "working\n"
        os.kill(child.pid, signal.SIGINT)
        _, stderr = child.communicate(timeout=10)
    finally:
        child.kill()
    assert child.returncode == 130
    assert stderr.startswith("interrupted: 7 of 8 prompts are answered and kept")
    assert len(answers(files[1])) == 7
