"""`--check`, `--int8` and the dtypes on the command line."""

import json
import math

import pytest
from fake_engine import Fake

from lookahead_jax import CheckReport, Divergence
from lookahead_jax.cli import run

CLEAN = CheckReport(3, (), 0.12345678)
TWO = CheckReport(3, (Divergence(1, 7, 9, 0.0004), Divergence(2, 1, 2, math.inf)), 1e-5)


def test_a_clean_check_is_one_line(capsys):
    fake = Fake(report=CLEAN)
    assert run(["generate", "a b c", "--check"], engine=fake.engine()) == 0
    captured = capsys.readouterr()
    assert captured.out == "c b a\n"
    assert captured.err.splitlines()[1] == (
        "check: a separate pass chooses the same 3 tokens; the closest choice was won by 0.1235"
    )
    (text, sample, arguments), *others = fake.checked
    assert (text, sample, others) == ("c b a", 0, [])
    assert arguments["max_new_tokens"] == 128


def test_a_divergence_is_shown_with_its_gap(capsys):
    assert run(["generate", "a b c", "--check"], engine=Fake(report=TWO).engine()) == 0
    assert capsys.readouterr().err.splitlines()[1] == (
        "check: token 2 of 3 is 7; a separate pass chooses 9 by 0.0004; 1 more differ"
    )


def test_in_json(capsys):
    assert run(["generate", "a b c", "--check", "--json"], engine=Fake(report=TWO).engine()) == 0
    assert json.loads(capsys.readouterr().out)["check"] == {
        "tokens": 3,
        "smallest_margin": 1e-5,
        "divergences": [
            {"index": 1, "written": 7, "chosen": 9, "gap": 0.0004},
            {"index": 2, "written": 1, "chosen": 2, "gap": None},
        ],
    }


def test_every_sample_is_checked_as_itself(capsys):
    fake = Fake(report=CLEAN)
    arguments = ["generate", "a b", "--check", "--samples", "2", "--temperature", "0.5"]
    assert run(arguments, engine=fake.engine()) == 0
    assert [sample for _, sample, _ in fake.checked] == [0, 1]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines[-2:]] == ["sample 1", "sample 2"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["a", "--check", "--temperature", "0.5", "--method", "residual"],
            "--check compares with what ordinary decoding writes: it needs --method coupled",
        ),
        (
            ["--check", "--input", "x", "--output", "y"],
            "--input takes the place of PROMPT, and goes without --json, --baseline, --check, "
            "--samples",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(arguments, line, capsys):
    assert run(["generate", *arguments], engine=Fake().engine()) == 2
    assert capsys.readouterr().err == f"error: {line}\n"


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_int8_and_float16_reach_the_loader(command, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", open("/dev/null", encoding="utf-8"))  # noqa: SIM115
    fake = Fake()
    arguments = [command, *(["a b"] if command == "generate" else [])]
    assert run([*arguments, "-m", "m", "--dtype", "float16", "--int8"], engine=fake.engine()) == 0
    assert fake.loaded == [("m", "float16", "int8")]


def test_json_tells_of_int8(capsys):
    for flags, expected in (([], None), (["--int8"], True)):
        assert run(["generate", "a b", "--json", *flags], engine=Fake().engine()) == 0
        assert json.loads(capsys.readouterr().out).get("int8") is expected
