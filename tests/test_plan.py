"""`lookahead-jax plan`: what is printed, recorded and drawn, and what is refused."""

import json
import math
import shlex
import sys

import checkpoint_files as files
import huggingface_hub
import pytest
import trace_files
from safetensors import safe_open

from lookahead_jax.cli import run
from lookahead_jax.cli.plan import CAVEAT
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.cost import tokens_per_round
from lookahead_jax.models.conversion import convert
from lookahead_jax.models.huggingface import read_config
from lookahead_jax.models.named_models import BUNDLED_MODELS
from lookahead_jax.models.shapes import KNOWN_SHAPES, find_shape, model_shape

EXAMPLE = "--model llama-3.1-8b --tpu v5e-8 --window 15 --ngram 5 --guesses 15"
PNG = b"\x89PNG\r\n\x1a\n"


def printed(capsys, arguments):
    assert run(["plan", *shlex.split(arguments)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def record(capsys, arguments):
    out = printed(capsys, arguments + " --json")
    assert out.count("\n") == 1
    return json.loads(out)


def failure(capsys, arguments):
    assert run(["plan", *shlex.split(arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_example_answers_what_a_user_asks(capsys):
    out = printed(capsys, EXAMPLE)
    for part in (
        "llama-3.1-8b: 8.03 billion parameters in bfloat16",
        "v5e-8: 8 chips",
        "mesh lookahead=4,model=2: 4 copies of the model, each on 2 devices",
        "a round has 120 rows, of which a device computes 40",
        "fits: 49% of 16 GiB",
        "memory traffic",
        "arithmetic",
        "A round takes 1.05 times a step",
        "Rows are free up to 216 a sequence",
        "acceptance 0.5",
        "model=8",
    ):
        assert part in out
    lines = out.splitlines()
    assert sum(CAVEAT in line for line in lines) == 1
    assert sum("estimate" in line.lower() and "measured" in line for line in lines) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        EXAMPLE,
        "-m llama-3.1-70b --tpu v5e-8 -a 0.5 --hit-rate 0.8 --kv-exchange refeed",
        "-m qwen3-30b-a3b --tpu v5p-8 --mesh lookahead=2 --int8 --tokens-per-round 1.7",
        "-m gemma-3-27b --tpu tpu7x-8 --batch 16 --context 131072",
        "-m mixtral-8x7b --tpu v4-8 --dtype float32 -a 0",
        "-m tiny-bytes --tpu v6e-1",
    ],
)
def test_it_stays_within_80_columns(capsys, arguments):
    out = printed(capsys, arguments)
    assert max(map(len, out.splitlines())) <= 80
    assert "nan" not in out
    assert "…" not in out


def test_the_record_has_the_same_figures(capsys):
    out, data = printed(capsys, EXAMPLE), record(capsys, EXAMPLE)
    assert data["note"] == CAVEAT
    assert data["mesh"] == {"data": 1, "lookahead": 4, "model": 2}
    assert data["rows"]["total"] == 120
    assert data["rows"]["lookahead"] == 15 * 4 - 1
    assert data["memory"]["fits"] is True
    for side in ("step", "round"):
        call = data[side]
        parts = call["parts"]
        assert call["flops"] == pytest.approx(sum(part["flops"] for part in parts))
        seconds = sum(part["seconds"] for part in parts) + call["exchange_seconds"]
        assert call["seconds"] == pytest.approx(seconds)
        assert f"{1e3 * call['seconds']:.2f} ms" in out
    ratio = data["round"]["seconds"] / data["step"]["seconds"]
    assert data["round_over_step"] == pytest.approx(ratio)
    config = LookaheadConfig(15, 5, 15)
    for case in data["predictions"]:
        tokens = tokens_per_round(config, case["acceptance"], case["hit_rate"])
        assert case["tokens_per_round"] == pytest.approx(tokens)
        assert case["speed_up"] == pytest.approx(tokens / ratio)
        assert f"{tokens:.2f}, {tokens / ratio:.2f} x" in out
    assert [way["mesh"]["model"] for way in data["meshes"]] == [1, 2, 4, 8]
    assert "remedies" not in data


def test_what_does_not_fit_is_said_with_remedies_that_work(capsys):
    arguments = "-m llama-3.1-8b --tpu v5e-1 --context 65536"
    out, data = printed(capsys, arguments), record(capsys, arguments)
    assert "does not fit: " in out
    assert data["memory"]["fits"] is False
    assert len(data["remedies"]) >= 2
    for remedy in data["remedies"]:
        assert f"with {remedy['options']} it would" in out
        # Later options stand in the place of earlier ones.
        assert record(capsys, f"{arguments} {remedy['options']}")["memory"]["fits"] is True
    hopeless = printed(capsys, "-m gemma-3-27b --tpu v5e-1 --dtype float32 --batch 999983")
    assert "neither another mesh, nor --int8, nor more such chips" in hopeless


def test_measured_tokens_per_round_are_taken(capsys, tmp_path):
    measured = tmp_path / "run.json"
    told = {"tokens_per_round": 1.88, "window_size": 7, "ngram_size": 5, "guess_set_size": 7}
    measured.write_text(json.dumps(told))
    plain = "-m llama-3.2-1b --tpu v5e-1"
    (from_file,) = record(capsys, f"{plain} --measured {measured}")["predictions"]
    (from_option,) = record(capsys, f"{plain} --tokens-per-round 1.88")["predictions"]
    assert from_file == from_option
    assert from_file["tokens_per_round"] == 1.88
    assert "At 1.88 tokens a round" in printed(capsys, f"{plain} --measured {measured}")
    slower = printed(capsys, "-m llama-3.2-1b --tpu v5e-1 -W 40 -G 40 --tokens-per-round 1.0")
    assert "times slower" in slower
    other = f"{plain} -W 5 --measured {measured}"
    assert "was measured with W=7 N=5 G=7, the plan is for W=5 N=5 G=7" in failure(capsys, other)


def test_the_results_of_a_benchmark_are_taken_too(capsys, tmp_path):
    measured = tmp_path / "results.json"
    sizes = ("window_size", "ngram_size", "guess_set_size")
    rows = [
        {"point": dict(zip(sizes, point, strict=True)), "tokens_per_round": tokens}
        for point, tokens in (((3, 5, 7), 1.25), ((7, 5, 7), 1.75))
    ]
    measured.write_text(json.dumps({"format": "lookahead-bench/1", "rows": rows}))
    plain = f"-m llama-3.2-1b --tpu v5e-1 --measured {measured}"
    for options, tokens in (("", 1.75), ("-W 3", 1.25)):
        (found,) = record(capsys, f"{plain} {options}")["predictions"]
        assert found["tokens_per_round"] == tokens
    assert "was measured with W=3 N=5 G=7" in failure(capsys, f"{plain} -W 5")
    measured.write_text('{"rows": [3]}')
    assert f"{measured}: expected" in failure(capsys, plain)


def test_batch_context_and_refeeding_change_what_they_should(capsys):
    base = "-m llama-3.1-8b --tpu v5p-8 --mesh lookahead=4"
    one = record(capsys, base)
    many = record(capsys, f"{base} --batch 8")
    assert many["memory"]["cache"] == 8 * one["memory"]["cache"]
    assert many["rows"]["free"] < one["rows"]["free"] / 4
    long = record(capsys, f"{base} --context 32768")
    assert long["memory"]["cache"] > 7.5 * one["memory"]["cache"]
    assert long["step"]["seconds"] > one["step"]["seconds"]
    fed = record(capsys, f"{base} --kv-exchange refeed")
    assert fed["rows"]["on_a_device"] == one["rows"]["on_a_device"] + 4
    assert fed["round"]["exchanged"] < one["round"]["exchanged"] / 100
    assert (
        record(capsys, f"{base} --pool-slots 512")["memory"]["state"] < one["memory"]["state"] / 10
    )


GRID = '-m llama-3.2-1b --tpu v5e-1 --grid "W=3,15,40 N=3,5 G=3,40"'


@pytest.mark.parametrize("acceptance", ["", "-a 0.1", "-a 0.6 --hit-rate 0.5"])
def test_a_grid_is_drawn(capsys, tmp_path, acceptance):
    picture = tmp_path / "grid.png"
    out = printed(capsys, f"{GRID} --output {picture} {acceptance}")
    assert out.splitlines()[-1] == f"12 settings are drawn in {picture}"
    assert picture.read_bytes().startswith(PNG)
    points = record(capsys, f"{GRID} -o {picture} {acceptance}")["grid"]
    assert len(points) == 12
    for point in points:
        w, n, g = (point[name] for name in ("window_size", "ngram_size", "guess_set_size"))
        assert point["rows"] == (w + g) * (n - 1)
        same = record(capsys, f"-m llama-3.2-1b --tpu v5e-1 -W {w} -N {n} -G {g} {acceptance}")
        assert point["round_over_step"] == pytest.approx(same["round_over_step"])
        if acceptance:
            assert point["speed_up"] == pytest.approx(same["predictions"][0]["speed_up"])


def test_the_picture_shows_every_value(tmp_path, capsys, monkeypatch):
    """Read off the figure before it is written."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    data = record(capsys, f"{GRID} -o {tmp_path}/grid.png -a 0.3")
    (figure,) = figures
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == ["N = 3 tokens", "N = 5 tokens"]
    assert panels[0].get_xlabel() == "W, columns of the window"
    assert panels[0].get_ylabel() == "G, candidates a round"
    widths, guesses = [3, 15, 40], [3, 40]
    drawn = {
        (widths[round(text.get_position()[0])], n, guesses[round(text.get_position()[1])]): text
        for n, axis in zip((3, 5), panels, strict=True)
        for text in axis.texts
    }
    for point in data["grid"]:
        place = tuple(point[name] for name in ("window_size", "ngram_size", "guess_set_size"))
        shown = drawn[place].get_text().splitlines()
        assert shown == [f"{point['speed_up']:.2f}", f"{point['rows_on_a_device']} rows"]
    best = max(data["grid"], key=lambda point: point["speed_up"])
    bold = [place for place, text in drawn.items() if text.get_weight() == "bold"]
    assert bold == [tuple(best[n] for n in ("window_size", "ngram_size", "guess_set_size"))]
    assert "not measured" in figure.get_suptitle()


def test_without_matplotlib_there_is_a_clear_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    message = failure(capsys, f"{GRID} -o {tmp_path}/grid.png")
    assert "pip install 'lookahead-jax[plot]'" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--model llama-3.1-8b", "Missing option '--tpu'"),
        ("--tpu v5e-8", "Missing option '--model'"),
        ("-m llama-9 --tpu v5e-8", "no model named 'llama-9': expected one of smollm2-135m"),
        ("-m tiny-bytes --tpu v5q-8", "expected a TPU slice such as v5e-8"),
        ("-m tiny-bytes --tpu v5p-3", "counts TensorCores, 2 to a chip of v5p"),
        ("-m tiny-bytes --tpu v5e-1 -c 513", "context must be at most 512"),
        ("-m llama-3.1-8b --tpu v5e-8 --mesh model=3", "must divide the 8 key/value heads"),
        ("-m llama-3.1-8b --tpu v5e-8 --mesh model=two", "a mesh is written data=1,lookahead=4"),
        ("-m llama-3.1-8b --tpu v5e-8 --mesh lookahead=16", "needs 16 devices, v5e-8 has 8"),
        ("-m llama-3.1-8b --tpu v5e-8 --mesh data=2", "must divide the batch of 1"),
        ("-m llama-3.1-8b --tpu v5e-8 --batch 0", "batch must be an integer >= 1, got 0"),
        ("-m llama-3.1-8b --tpu v5e-8 -N 2", "ngram_size (N) must be an integer >= 3, got 2"),
        ("-m llama-3.1-8b --tpu v5e-8 -W 5000", "at most 1000 rows, (W + G)(N - 1), got 20028"),
        ("-m llama-3.1-8b --tpu v5e-8 --dtype float16", "'float16' is not one of"),
        ("-m llama-3.1-8b --tpu v5e-8 -a 1.5", "--acceptance must be a number from 0 to 1"),
        ("-m llama-3.1-8b --tpu v5e-8 -a nan", "--acceptance must be a number from 0 to 1"),
        ("-m llama-3.1-8b --tpu v5e-8 --hit-rate 0.5", "--hit-rate needs --acceptance"),
        ("-m llama-3.1-8b --tpu v5e-8 -a 0.5 --tokens-per-round 2", "say the same"),
        ("-m llama-3.1-8b --tpu v5e-8 --tokens-per-round 6", "a number from 1 to N = 5, got 6"),
        ("-m llama-3.1-8b --tpu v5e-8 --measured /no/such", "cannot read /no/such"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3 G=3'", "--grid and --output go together"),
        ("-m llama-3.1-8b --tpu v5e-8 --output x.png", "--grid and --output go together"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3' -o x.png", "a grid is written"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3 G=3 G=5' -o x.png", "a grid is written"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=2 G=3' -o x.png", "must be an integer >= 3"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3 G=3' -o x.pdf", "must name a .png file"),
        ("-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3 G=3' -o /no/such/x.png", "no directory"),
        (
            "-m llama-3.1-8b --tpu v5e-8 --grid 'W=3 N=3 G=3' -o x.png --tokens-per-round 2",
            "--grid goes with --acceptance",
        ),
    ],
)
def test_bad_input_gets_one_line(capsys, arguments, message):
    assert message in failure(capsys, arguments)


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"tokens_per_round": "2"}', "[" * 100000])
def test_a_measured_file_that_is_none_gets_one_line(capsys, tmp_path, text):
    path = tmp_path / "run.json"
    path.write_text(text)
    message = failure(capsys, f"-m llama-3.1-8b --tpu v5e-8 --measured {path}")
    assert 'expected a JSON object with "tokens_per_round"' in message


def test_the_help_teaches(capsys):
    assert run(["plan", "--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    shown = " ".join(shown.replace("│", " ").split())
    for part in ("W: future", "--acceptance", "v5p-8 is four chips", "• lookahead-jax plan"):
        assert part in shown


# Models


def test_shapes_are_found_in_files_without_reading_weights(tmp_path):
    directory = files.write_directory(tmp_path / "hf")
    whole = find_shape(str(directory)).weights
    assert find_shape(str(files.write_gguf(tmp_path / "model.gguf"))).weights == whole
    convert(str(directory), tmp_path / "orbax", int8=True)
    assert find_shape(str(tmp_path / "orbax")).weights == whole
    (directory / "model.safetensors").unlink()
    assert find_shape(f"{directory}/").weights == whole
    assert find_shape(f"{directory}/").name == "hf"
    assert whole == model_shape("x", read_config(directory)).weights


def test_names_of_models_that_can_be_loaded_are_known():
    with safe_open(BUNDLED_MODELS["tiny-bytes"].path / "model.safetensors", "numpy") as file:
        stored = sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    assert find_shape("tiny-bytes").weights.count == stored
    assert find_shape("gemma3-270m").weights == find_shape("gemma-3-270m").weights
    assert "smollm2-135m" in KNOWN_SHAPES


def test_of_a_hub_id_config_json_alone_is_fetched(monkeypatch, capsys):
    asked = []

    def download(repository, name):
        asked.append((repository, name))
        if repository == "org/none":
            raise OSError("there is no network\nand more")
        return str(trace_files.TINY_MODEL / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    tiny = model_shape("x", read_config(trace_files.TINY_MODEL))
    assert find_shape("org/tiny").weights == tiny.weights
    assert asked == [("org/tiny", "config.json")]
    message = failure(capsys, "-m org/none --tpu v5e-1")
    assert message == "error: cannot download config.json of org/none: there is no network\n"
