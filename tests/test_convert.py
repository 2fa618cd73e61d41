"""`convert`: what is loaded is what was converted, whatever ends a run leaves nothing by halves."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import checkpoint_files as files
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import trace_files
from gguf import GGMLQuantizationType as Kind
from test_tokenizer import CHATML, byte_level, sentencepiece

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.checkpoint import Checkpoint
from lookahead_jax.models.conversion import convert, stored_dtype
from lookahead_jax.models.gguf_tokenizer import tokenizer_from_metadata
from lookahead_jax.models.manifest import MANIFEST
from lookahead_jax.models.orbax_file import write_checkpoint
from lookahead_jax.models.tokenizer import TransformersTokenizer

TINY = trace_files.TINY_MODEL
FAMILIES = trace_files.DATA / "families"
SOME = (TINY, *(FAMILIES / name for name in ("gemma3_text", "phi3", "gpt2", "qwen3_moe")))


def quiet(done, total):
    """A progress that shows nothing."""


def load(path, **arguments):
    return load_model(path, progress=quiet, **arguments)


def assert_same(ours, theirs):
    """Parameters bit for bit, and all that goes with them but the name."""
    ours_leaves, theirs_leaves = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(x)}
        for x in (ours.params, theirs.params)
    )
    assert set(ours_leaves) == set(theirs_leaves)
    for path, leaf in theirs_leaves.items():
        assert ours_leaves[path].dtype == leaf.dtype, path
        np.testing.assert_array_equal(ours_leaves[path], leaf, err_msg=path, strict=True)
    assert ours.forward == theirs.forward
    for name in ("cache_spec", "vocab_size", "max_length", "stop_tokens"):
        assert getattr(ours, name) == getattr(theirs, name)


def line_of(call, *args, **kwargs):
    with pytest.raises(LookaheadError) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def converted(tmp_path):
    """The tiny model, converted."""
    convert(TINY, tmp_path / "tiny", progress=quiet)
    return tmp_path / "tiny"


@pytest.mark.parametrize("source", SOME, ids=lambda path: path.name)
def test_what_is_loaded_is_what_was_converted(tmp_path, source):
    done = convert(source, tmp_path / "whole", dtype="float32", progress=quiet)
    assert (done.dtype, done.int8, done.path) == ("float32", False, tmp_path / "whole")
    assert not done.has_tokenizer
    whole = load(source)
    assert done.size == sum(leaf.nbytes for leaf in jax.tree.leaves(whole.params))
    assert_same(load(tmp_path / "whole"), whole)
    convert(source, tmp_path / "half", dtype="bfloat16", progress=quiet)
    half = load(source, dtype="bfloat16")
    assert_same(load(tmp_path / "half", dtype="bfloat16"), half)
    assert_same(load(tmp_path / "whole", dtype="bfloat16"), half)  # rounded while it is read
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "whole"]


@pytest.mark.parametrize("source", [FAMILIES / "gpt2", FAMILIES / "qwen3_moe"])
def test_int8_is_stored_or_made_while_loading(tmp_path, source):
    """...and is no float again once it is stored."""
    expected = load(source, int8=True)
    assert convert(source, tmp_path / "int8", int8=True, progress=quiet).int8
    assert_same(load(tmp_path / "int8"), expected)
    convert(source, tmp_path / "whole", progress=quiet)
    assert_same(load(tmp_path / "whole", int8=True), expected)
    assert convert(tmp_path / "int8", tmp_path / "half", dtype="bfloat16", progress=quiet).int8
    half = load(tmp_path / "half", dtype="bfloat16")
    assert_same(half, load(source, int8=True, dtype="bfloat16"))
    assert half.params["embed"]["weight_scale"].dtype == jnp.float32


def test_the_dtype_is_the_sources_where_nothing_else_is_asked_for(tmp_path):
    weights = files.random_weights()
    tensors = files.hugging_face_names(weights)

    def directory(name, dtypes):
        changed = {x: tensors[x].astype(dtypes(x)) for x in tensors}
        return files.write_directory(tmp_path / name, tensors=changed)

    half = directory("half", lambda name: jnp.bfloat16 if "norm" not in name else np.float32)
    mixed = directory("mixed", lambda name: np.float16 if "mlp" in name else np.float32)
    double = directory("double", lambda name: np.float64)
    assert [stored_dtype(x) for x in (half, mixed, double)] == ["bfloat16", "float32", "float32"]
    f16 = files.write_gguf(tmp_path / "f16.gguf", kinds={x[-2:]: Kind.F16 for x in weights})
    q8 = files.write_gguf(tmp_path / "q8.gguf", kinds={("q", "weight"): Kind.Q8_0})
    assert [stored_dtype(x) for x in (f16, q8)] == ["float16", "float32"]
    assert convert(q8, tmp_path / "from_gguf", progress=quiet).dtype == "float32"
    assert_same(load(tmp_path / "from_gguf"), load(q8))
    assert convert(half, tmp_path / "kept", progress=quiet).dtype == "bfloat16"
    assert stored_dtype(tmp_path / "kept") == "bfloat16"
    assert convert(tmp_path / "kept", tmp_path / "again", progress=quiet).dtype == "bfloat16"
    assert_same(load(tmp_path / "again"), load(tmp_path / "kept"))


TEXTS = ["hello aa  lo\n\nhell", " <|im_start|>aa<|im_end|>", "Grüße, 世界 🌍", "", "  "]
CONVERSATION = [{"role": "user", "content": "aa hello"}, {"role": "assistant", "content": "lo"}]


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level({"chat_template": CHATML}, pre="llama-bpe"),
        byte_level({"ggml.add_bos_token": True}),
        sentencepiece(),
        sentencepiece({"ggml.add_space_prefix": False, "chat_template": CHATML}),
    ],
    ids=["chat", "bos", "sentencepiece", "no_prefix"],
)
def test_the_tokenizer_comes_along(tmp_path, tiny, metadata):
    tokenizer = tokenizer_from_metadata(metadata)
    config = tiny.forward.config
    write_checkpoint(tmp_path, Checkpoint(config, tiny.params, (7, 9), tokenizer), "float32")
    lm = load(tmp_path)
    assert lm.stop_tokens == (7, 9)
    assert isinstance(lm.tokenizer, TransformersTokenizer)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert lm.tokenizer.encode(text) == tokens
        assert lm.tokenizer.decode(tokens) == tokenizer.decode(tokens)
    assert lm.tokenizer.has_chat_template == tokenizer.has_chat_template
    if tokenizer.has_chat_template:
        expected = tokenizer.encode_chat(CONVERSATION)
        assert lm.tokenizer.encode_chat(CONVERSATION) == expected
    shutil.rmtree(tmp_path / "tokenizer")
    line = line_of(load, tmp_path)
    assert line == f"{tmp_path / 'tokenizer'}: expected a tokenizer, found none"


def changed(params, path, leaf):
    """The tree with one leaf changed, added, or (None) taken out."""
    tree = jax.tree.map(lambda x: x, params)
    node = tree
    for key in path[:-1]:
        node = node.setdefault(key, {})
    if leaf is None:
        del node[path[-1]]
    else:
        node[path[-1]] = leaf
    return tree


Q = ("layers_1", "attn", "q", "weight")


@pytest.mark.parametrize(
    ("path", "leaf", "line"),
    [
        (Q, None, "tensor layers_1/attn/q/weight is missing"),
        (("head", "bias"), np.ones(4), "tensor head/bias is not part of this model"),
        (Q, np.ones((64, 63), np.float32), "has shape [64, 63], expected [64, 64]"),
        (Q, np.ones((64,), np.float32), "has shape [64], expected [64, 64]"),
        (Q, np.ones((64, 64), np.int8), "is stored as int8, expected float32, bfloat16, float16"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_read(
    tmp_path, tiny, monkeypatch, path, leaf, line
):
    params = changed(tiny.params, path, leaf)
    checkpoint = Checkpoint(tiny.forward.config, params, (), None)
    write_checkpoint(tmp_path, checkpoint, "float32")
    monkeypatch.setattr("orbax.checkpoint.PyTreeCheckpointHandler.restore", None)
    assert line_of(load, tmp_path).endswith(line)


@pytest.mark.parametrize("int8", [False, True])
def test_a_configuration_that_is_wrong_about_int8(tmp_path, tiny, int8):
    config = replace(tiny.forward.config, int8=int8)
    params = tiny.params if int8 else load(TINY, int8=True).params
    write_checkpoint(tmp_path, Checkpoint(config, params, (), None), "float32")
    place = f"{tmp_path / 'params'}: tensor embed/weight"
    expected = {
        True: f"{place} is stored as float32, expected int8",
        False: f"{place} is stored as int8, expected ",
    }
    assert line_of(load, tmp_path).startswith(expected[int8])


def test_any_lost_or_damaged_file_is_one_line(converted, capfd):
    """The line names it; bits that turn inside the weights themselves are not noticed."""
    paths = sorted(path for path in (converted / "params").rglob("*") if path.is_file())
    assert len(paths) > 8
    for path in paths:
        whole = path.read_bytes()
        path.unlink()
        assert line_of(load, converted) == f"{path}: no such file"
        for part in (whole[:-1], b"", whole + b"x"):
            path.write_bytes(part)
            expected = f"{path} is damaged: expected {len(whole)} bytes, got {len(part)}"
            assert line_of(load, converted) == expected
        if "ocdbt.process_" not in str(path):
            path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
            assert line_of(load, converted).startswith(f"{path} is damaged: expected SHA-256 ")
        path.write_bytes(whole)
    load(converted)
    assert capfd.readouterr() == ("", "")


def test_damage_that_only_orbax_sees_is_one_line(converted):
    manifest = json.loads((converted / MANIFEST).read_text())
    path = converted / "params" / "_METADATA"
    path.write_text("{}")
    manifest["files"].pop("_METADATA")
    (converted / MANIFEST).write_text(json.dumps(manifest))
    assert line_of(load, converted).startswith(f"{converted} is damaged: ")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"format": 2}, "format must be 1, got 2: another version?"),
        ({"dtype": "float8"}, "dtype must be one of float32, bfloat16, float16, got 'float8'"),
        ({"dtype": []}, "dtype must be one of float32, bfloat16, float16, got []"),
        ({"stop_tokens": [-1]}, "stop_tokens must be a list of token ids, got [-1]"),
        ({"tokenizer": None}, "tokenizer must be true or false, got None"),
        (
            {"files": {"../../secret": [1, None]}},
            "files must be [size, SHA-256] for each file, got",
        ),
        ({"files": {"/secret": [1, None]}}, "files must be [size, SHA-256] for each file, got"),
        ({"files": {"x": [1]}}, "files must be [size, SHA-256] for each file, got"),
        ({"decoder": {}}, "decoder.vocab_size is missing"),
    ],
)
def test_a_damaged_manifest_is_one_line(converted, change, line):
    path = converted / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert line_of(load, converted).startswith(f"{path}: {line}")


def test_without_the_manifest_there_is_no_checkpoint(converted):
    (converted / MANIFEST).unlink()
    expected = f"{converted} is not a whole checkpoint: expected {MANIFEST}, which is written last"
    assert line_of(load, converted) == expected
    (converted / MANIFEST).write_text("{")
    assert line_of(load, converted).startswith(f"{converted / MANIFEST} is not valid JSON: ")


def test_loading_leaves_the_programs_logging_alone(converted):
    code = (
        "import logging, sys\n"
        "from lookahead_jax.models import load_model\n"
        "assert 'orbax' not in sys.modules\n"
        "load_model(sys.argv[1])\n"
        "print(logging.root.handlers)"
    )
    command = [sys.executable, "-P", "-c", code, str(converted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
