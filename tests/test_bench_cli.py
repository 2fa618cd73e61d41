"""`lookahead-jax bench` on a model that compiles at once: files, resuming, exit codes, refusals."""

import json
from dataclasses import replace

import fakes
import jax
import pytest

from lookahead_jax.bench import measuring
from lookahead_jax.cli.program import run
from lookahead_jax.errors import LookaheadError

GRID = "W=2,3 N=3 G=2"
PROMPTS = [
    {"id": "one", "category": "letters", "turns": ["abc"]},
    {"id": "two", "category": "letters", "turns": ["bcabc", "d"]},
    {"id": "three", "category": "more", "turns": ["efgefgef"]},
]


class Models:
    """An engine that knows one model."""

    def __init__(self, **changes):
        letters = fakes.Letters()
        self.lm = fakes.toy_model(tokenizer=letters, stop_tokens=(letters.END,), **changes)
        self.loaded = 0

    def engine(self):
        from fake_engine import Fake

        return replace(Fake().engine(), load_model=self.load_model)

    def load_model(self, name, *, dtype, int8):
        self.loaded += 1
        if name != "toy":
            raise LookaheadError(f"no model named {name}")
        return self.lm


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    return str(path)


def bench(prompts, output, *more, models=None):
    models = models or Models()
    command = ["bench", "-m", "toy", "-p", prompts, "-g", GRID, "-n", "12", "-r", "2"]
    return run([*command, "-o", str(output), *more], models.engine())


def record(output):
    return json.loads((output / "results.json").read_text())


def test_a_grid_is_measured_reported_and_continued(prompts, tmp_path, capsys):
    output = tmp_path / "run"
    assert bench(prompts, output) == 0
    told = capsys.readouterr()
    assert "2,3,2" in told.out
    assert "3,3,2" in told.out
    assert "report.md has all of it, with 4 pictures" in told.err
    found = record(output)
    assert [row["point"]["window_size"] for row in found["rows"]] == [2, 3]
    for row in found["rows"]:
        assert (row["identical"], row["texts"], row["repetitions"]) == (True, 4, 2)
        assert row["tokens_per_round"] == row["tokens"] / row["rounds"] > 1
        assert sum(row["accepted_histogram"]) == row["rounds"]
        assert list(row["categories"]) == ["letters", "more"]
    assert (found["conditions"]["texts"], found["unfinished"]) == (4, 0)
    assert (output / "report.md").read_text().startswith("# ")
    assert len(list(output.glob("*.png"))) == 4
    lines = (output / "measurements.jsonl").read_text().splitlines()
    assert len(lines) == 2 + 2 * 2 * 4  # compilations; points, repetitions, groups

    (output / "report.md").unlink()
    assert bench(prompts, output, "--json") == 0
    told = capsys.readouterr()
    assert "everything is measured already" in told.err
    assert json.loads(told.out) == {**found, "conditions": json.loads(told.out)["conditions"]}
    assert (output / "report.md").exists()
    assert (output / "measurements.jsonl").read_text().splitlines() == lines

    assert bench(prompts, output, "-g", "W=3 N=3 G=2", "-r", "3") == 0
    assert "4 measurements of 12 still to be made" in capsys.readouterr().err
    assert (output / "measurements.jsonl").read_text().splitlines()[: len(lines)] == lines
    assert [row["repetitions"] for row in record(output)["rows"]] == [3]


def test_an_interrupted_run_keeps_what_was_measured(prompts, tmp_path, capsys, monkeypatch):
    output, write, calls = tmp_path / "run", measuring.Side.write, []

    def interrupted(side, tasks):
        calls.append(tasks)
        if len(calls) == 26:
            raise KeyboardInterrupt
        return write(side, tasks)

    with monkeypatch.context() as patch:
        patch.setattr(measuring.Side, "write", interrupted)
        assert bench(prompts, output) == 130
    assert "interrupted: what was measured is kept in" in capsys.readouterr().err
    kept = (output / "measurements.jsonl").read_text().splitlines()
    assert 10 < len(kept) < 17
    assert (len(record(output)["rows"]), record(output)["unfinished"]) == (1, 1)
    assert "**Not finished**: 1 setting of the grid" in (output / "report.md").read_text()
    answers = (output / "answers.jsonl").read_text()
    assert json.loads(answers)["id"] == "two/1"
    assert bench(prompts, output) == 0
    assert (output / "answers.jsonl").read_text() == answers
    assert (output / "measurements.jsonl").read_text().splitlines()[: len(kept)] == kept
    assert [row["identical"] for row in record(output)["rows"]] == [True, True]


def test_another_text_fails_the_run(prompts, tmp_path, capsys, monkeypatch):
    output, write = tmp_path / "run", measuring.Side.write

    def forged(side, tasks):
        written = write(side, tasks)
        config = getattr(side._batch.program.decoder, "config", None)
        if config is None or config.window_size != 3 or tasks[0].id != "three":
            return written
        (result,) = written.results
        return replace(written, results=(replace(result, tokens=result.tokens[:-1]),))

    monkeypatch.setattr(measuring.Side, "write", forged)
    assert bench(prompts, output, "-r", "1") == 1
    told = capsys.readouterr()
    assert "error: 1 setting of 2 wrote other texts than ordinary decoding" in told.err
    assert [row["identical"] for row in record(output)["rows"]] == [True, False]
    (difference,) = record(output)["rows"][1]["differences"]
    assert (difference["prompt"], difference["token"]) == ("three", None)
    assert "three" in (output / "report.md").read_text()


def test_a_setting_that_the_device_cannot_do_does_not_stop_the_others(
    prompts, tmp_path, capsys, monkeypatch
):
    output, write = tmp_path / "run", measuring.Side.write

    def too_large(side, tasks):
        config = getattr(side._batch.program.decoder, "config", None)
        if config is not None and config.window_size == 2:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: no room\nat length")
        return write(side, tasks)

    with monkeypatch.context() as patch:
        patch.setattr(measuring.Side, "write", too_large)
        assert bench(prompts, output, "-r", "1") == 1
    told = capsys.readouterr().err
    assert "W=2 N=3 G=2 cannot be measured: RESOURCE_EXHAUSTED: no room\n" in told
    assert "error: 1 setting could not be measured" in told
    assert [row["point"]["window_size"] for row in record(output)["rows"]] == [3]
    assert record(output)["unfinished"] == 1
    assert bench(prompts, output, "-r", "1") == 0  # with more room
    assert record(output)["unfinished"] == 0


def test_a_profile_tells_the_share_of_each_part(prompts, tmp_path, capsys):
    output, traces = tmp_path / "run", tmp_path / "traces"
    assert bench(prompts, output, "-g", "W=2 N=3 G=2", "-r", "1", "--profile", str(traces)) == 0
    told = capsys.readouterr().out
    assert list((traces / "w2n3g2").glob("plugins/profile/*/*.xplane.pb"))
    for scope in ("lookup", "pack", "forward", "verify", "commit", "insert", "advance"):
        assert scope in told
        assert scope in (output / "report.md").read_text()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["-g", "W=3"], "a grid is written"),
        (["-g", "W=3 N=1 G=3"], "ngram_size"),
        (["-r", "0"], "--repeats must be an integer >= 1, got 0"),
        (["-b", "0"], "--batch-size must be an integer >= 1, got 0"),
        (["--per-category", "0"], "--per-category must be an integer >= 1, got 0"),
        (["-n", "0"], "--max-new-tokens must be an integer >= 1, got 0"),
        (["-p", "nosuch.jsonl"], "nosuch.jsonl"),
        (["-m", "other"], "no model named other"),
        (["--top-k", "5"], "--temperature"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(prompts, tmp_path, capsys, more, words):
    models = Models()
    assert bench(prompts, tmp_path / "run", *more, models=models) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert models.loaded == (more[0] == "-m")


def test_other_conditions_need_another_directory(prompts, tmp_path, capsys):
    assert bench(prompts, tmp_path, "-g", "W=2 N=3 G=2", "-r", "1") == 0
    capsys.readouterr()
    assert bench(prompts, tmp_path, "-n", "11") == 2
    assert "was measured with max new tokens 12, now it is 11" in capsys.readouterr().err


def test_texts_that_do_not_fit_are_left_out(prompts, tmp_path, capsys):
    models = Models(max_length=26)
    assert bench(prompts, tmp_path / "run", "-r", "1", models=models) == 0
    told = capsys.readouterr().err
    assert "note: left out two/2: " in told
    assert "note: 1 text left out, 3 texts measured" in told
    found = record(tmp_path / "run")["conditions"]
    assert (found["texts"], found["left_out"]) == (3, 1)
    assert "1 more left out" in (tmp_path / "run" / "report.md").read_text()
    assert bench(prompts, tmp_path / "none", models=Models(max_length=14)) == 2
    assert "none of the 3 prompts can be used" in capsys.readouterr().err
