"""GGUF files: weights in every encoding and order, and files that are damaged on purpose."""

import struct
from pathlib import Path

import checkpoint_files as files
import gguf
import jax.numpy as jnp
import k_quants
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFValueType

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.config import FrequencyFactors, LinearScaling, llama_config
from lookahead_jax.models.gguf_file import load_gguf
from lookahead_jax.models.gguf_header import QUANTISED, encoding_of, read_gguf_header
from lookahead_jax.models.weights import Target, read_tensor

BIASED = files.CONFIG | {"attention_bias": True, "mlp_bias": True}
WRITABLE = [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
"""The encodings that the gguf package can also write."""
TIED = files.CONFIG | {"tie_word_embeddings": True}


def load_error(path: Path):
    """The line of the LookaheadError that loading raises."""
    with pytest.raises(LookaheadError) as caught:
        load_model(path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


@pytest.mark.parametrize("config", [files.CONFIG, BIASED, TIED], ids=["plain", "biased", "tied"])
def test_every_tensor_arrives_in_the_order_of_hugging_face(tmp_path, config):
    weights = files.random_weights(config)
    checkpoint = load_gguf(
        files.write_gguf(tmp_path / "m.gguf", config, weights), Target("float32")
    )
    assert files.paths_of(checkpoint.params) == set(weights)
    for path, expected in weights.items():
        np.testing.assert_array_equal(
            files.leaf_at(checkpoint.params, path), expected, err_msg=str(path)
        )
    assert checkpoint.config == llama_config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        rms_norm_eps=float(np.float32(1e-5)),
        max_position_embeddings=256,
        tie_word_embeddings=config["tie_word_embeddings"],
        attention_bias=config.get("attention_bias", False),
        mlp_bias=config.get("mlp_bias", False),
    )


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
)
@pytest.mark.parametrize("wanted", ["float32", "bfloat16"])
def test_encodings_are_decoded(tmp_path, kind, wanted):
    weights = files.random_weights()
    kinds = {path[-2:]: kind for path in weights if path[-1] == "weight"}
    path = files.write_gguf(tmp_path / "m.gguf", weights=weights, kinds=kinds)
    params = load_gguf(path, Target(wanted)).params
    for leaf, array in weights.items():
        stored = gguf.quants.quantize(array, kind) if leaf[-1] == "weight" else array
        decoded = gguf.quants.dequantize(stored, kind) if leaf[-1] == "weight" else array
        expected = decoded.astype(jnp.dtype(wanted))
        np.testing.assert_array_equal(files.leaf_at(params, leaf), expected, err_msg=str(leaf))
        if leaf[-1] == "weight" and kind not in (Kind.F16, Kind.BF16):
            assert np.abs(decoded - array).max() < 0.5


@pytest.mark.parametrize("name", QUANTISED)
def test_every_announced_encoding_has_a_decoder(name):
    encoding = encoding_of(name)
    assert encoding is not None
    blocks = np.zeros((2, 3 * encoding.block_bytes), np.uint8)
    np.testing.assert_array_equal(encoding.decode(blocks), np.zeros((2, 3 * encoding.block_size)))


HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where the scales of a super-block are; random bytes there may not be numbers."""


@pytest.mark.parametrize("name", k_quants.SIZES)
def test_k_quants_are_decoded_as_described(tmp_path, name):
    """Random bytes: every bit has its meaning checked. The gguf package cannot write these."""
    rng = np.random.default_rng(len(name))
    encoding = encoding_of(name)
    assert (encoding.block_size, encoding.block_bytes) == (256, k_quants.SIZES[name])
    raw = rng.integers(0, 256, (3, 2 * encoding.block_bytes), np.uint8)
    blocks = raw.reshape(-1, encoding.block_bytes)
    for at in HALVES[name]:
        scales = rng.uniform(-0.01, 0.01, len(blocks)).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    expected = [[k_quants.DECODERS[name](bytes(b), i) for i in range(256)] for b in blocks]
    np.testing.assert_allclose(
        encoding.decode(raw), np.array(expected).reshape(3, 512), rtol=2e-6, atol=1e-6
    )

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("x", raw, raw_dtype=Kind[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tensor,) = read_gguf_header(path).tensors.values()
    assert tensor.shape == (3, 512)
    np.testing.assert_array_equal(read_tensor(tensor, np.dtype(np.float32)), encoding.decode(raw))


def test_a_quantised_matrix_keeps_its_place_in_the_file_beside_others(tmp_path):
    config = files.CONFIG | {"hidden_size": 256, "intermediate_size": 256}
    weights = files.random_weights(config)
    path = files.write_gguf(tmp_path / "m.gguf", config, weights)
    reader = gguf.GGUFReader(path)
    ours = read_gguf_header(path).tensors
    assert list(ours) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        assert ours[tensor.name].offset == tensor.data_offset
        assert ours[tensor.name].size == tensor.n_bytes
        assert ours[tensor.name].shape == tuple(tensor.shape.tolist())[::-1]


def test_metadata_agrees_with_the_reader_of_the_gguf_package(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    values = {
        "u8": (200, GGUFValueType.UINT8),
        "i8": (-100, GGUFValueType.INT8),
        "u16": (60000, GGUFValueType.UINT16),
        "i16": (-30000, GGUFValueType.INT16),
        "u32": (4000000000, GGUFValueType.UINT32),
        "i32": (-2000000000, GGUFValueType.INT32),
        "u64": (1 << 60, GGUFValueType.UINT64),
        "i64": (-(1 << 60), GGUFValueType.INT64),
        "f32": (0.5, GGUFValueType.FLOAT32),
        "f64": (0.1, GGUFValueType.FLOAT64),
        "bool": (True, GGUFValueType.BOOL),
        "string": ("sm\u00f6rg\u00e5s", GGUFValueType.STRING),
    }
    for key, (value, kind) in values.items():
        writer.add_key_value(key, value, kind)
    writer.add_array("strings", ["a", "", "\u2581b"])
    writer.add_array("numbers", [1, -2, 3])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = read_gguf_header(path).metadata
    expected = {key: value for key, (value, _) in values.items()}
    expected |= {
        "general.architecture": "llama",
        "strings": ["a", "", "\u2581b"],
        "numbers": [1, -2, 3],
    }
    assert metadata == expected
    fields = gguf.GGUFReader(path).fields
    assert {key: fields[key].contents() for key in expected} == expected


def test_rotary_scaling(tmp_path):
    def scaling(**arguments):
        return (
            load_gguf(files.write_gguf(tmp_path / "m.gguf", **arguments), Target("float32"))
            .config.layers[0]
            .rope.scaling
        )

    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    factors = np.array([1, 1.5, 4, 8], np.float32)
    assert scaling() is None
    assert scaling(metadata={"llama.rope.scaling.type": "none"}) is None
    assert scaling(metadata=linear) == LinearScaling(2.0)
    assert scaling(metadata={"llama.rope.scale_linear": 4.0}) == LinearScaling(4.0)
    assert scaling(extra=[("rope_freqs.weight", factors)]) == FrequencyFactors((1, 1.5, 4, 8))
    bad = {
        "rope scaling 'ntk' is not supported": {"metadata": {"llama.rope.scaling.type": "ntk"}},
        "got both": {"metadata": linear, "extra": [("rope_freqs.weight", factors)]},
        "rope_freqs.weight has shape [3], expected [4]": {
            "extra": [("rope_freqs.weight", factors[:3])]
        },
        "must hold positive numbers": {"extra": [("rope_freqs.weight", factors - 1)]},
    }
    for expected, arguments in bad.items():
        assert expected in load_error(files.write_gguf(tmp_path / "m.gguf", **arguments))


def test_per_layer_head_counts_must_be_equal(tmp_path):
    key = "llama.attention.head_count_kv"
    path = files.write_gguf(tmp_path / "m.gguf", metadata={key: [2, 2]})
    assert load_gguf(path, Target("float32")).config.num_key_value_heads == 2
    path = files.write_gguf(tmp_path / "m.gguf", metadata={key: [2, 1]})
    assert load_error(path).endswith(f"{key} must be the same in all layers, got [2, 1]")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (
            {"architecture": "gemma4"},
            "architecture 'gemma4' is not supported; supported: llama, qwen2, qwen3, qwen3moe, ",
        ),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"split.count": 3}, "is one part of a split model; expected one merged file"),
        ({"llama.embedding_length": None}, "llama.embedding_length is missing"),
        (
            {"llama.block_count": "two"},
            "llama.block_count must be a positive integer, got 'two'",
        ),
        ({"llama.block_count": 1 << 31}, "llama.block_count must be at most 1000, got 2147483648"),
        (
            {"llama.rope.dimension_count": 4, "llama.attention.key_length": 8},
            "llama.rope.dimension_count must be the head dimension (8), got 4",
        ),
        (
            {"llama.attention.key_length": 8, "llama.attention.value_length": 16},
            "llama.attention.value_length must be the head dimension (8), got 16",
        ),
        ({"llama.block_count": 1}, "tensor blk.1.attn_norm.weight (and 8 more) is not part of"),
        ({"llama.feed_forward_length": 96}, "has shape [64, 32], expected [96, 32]"),
        ({"general.alignment": 24}, "is damaged: general.alignment is 24, expected a power of two"),
        ({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]}, "'gpt2' or 'llama'"),
    ],
)
def test_unsupported_files_are_refused(tmp_path, metadata, expected):
    path = files.write_gguf(tmp_path / "m.gguf", metadata=metadata)
    assert expected in load_error(path)


def test_missing_and_unknown_tensors_are_named(tmp_path):
    weights = files.random_weights()
    for leaf, name in {
        ("layers_1", "attn", "v", "weight"): "blk.1.attn_v.weight",
        ("embed", "weight"): "token_embd.weight",
    }.items():
        rest = {path: array for path, array in weights.items() if path != leaf}
        line = load_error(files.write_gguf(tmp_path / "m.gguf", weights=rest))
        assert line.endswith(f"tensor {name} is missing")
    extra = [("blk.0.attn_q_norm.weight", np.ones(8, np.float32))]
    line = load_error(files.write_gguf(tmp_path / "m.gguf", extra=extra))
    assert line.endswith("tensor blk.0.attn_q_norm.weight is not part of this model")


def test_unsupported_encodings_are_named(tmp_path):
    extra = [("x", np.ones((2, 2), np.int32))]
    line = load_error(files.write_gguf(tmp_path / "m.gguf", extra=extra))
    assert "tensor x is stored as I32; expected one of F64, F32, F16, BF16, Q8_0, Q4_0" in line


def test_a_file_cut_anywhere_is_one_line(tmp_path):
    whole = files.write_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    for keep in (*range(0, 2500, 97), *range(2500, len(whole) - 32, 4999)):
        path.write_bytes(whole[:keep])
        line = load_error(path)
        assert "truncated" in line or "is not a GGUF file" in line, line
    path.write_bytes(whole[:-200])
    assert load_error(path).startswith(f"{path} is truncated: tensor ")


def test_flipped_bytes_of_the_header_never_escape(tmp_path):
    """Whatever a header says, the outcome is a model or one line, never another error."""
    whole = bytearray(files.write_gguf(tmp_path / "whole.gguf").read_bytes())
    tensors = read_gguf_header(tmp_path / "whole.gguf").tensors
    header_size = min(tensor.offset for tensor in tensors.values())
    path = tmp_path / "flipped.gguf"
    lines = []
    for position in range(0, header_size, 7):
        for value in (0x00, 0x7F, 0xFF):
            changed = whole.copy()
            changed[position] = value
            path.write_bytes(changed)
            try:
                load_gguf(path, Target("float32"))
            except LookaheadError as error:
                lines.append(str(error))
    assert len(lines) > header_size // 7
    assert not any("\n" in line for line in lines)


def header_bytes(*, magic=b"GGUF", version=3, tensors=0, values=0, rest=b""):
    return magic + struct.pack("<IQQ", version, tensors, values) + rest


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


ARRAY, STRING, UINT8 = 9, 8, 0


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not a GGUF file"),
        (header_bytes(magic=b"GGML"), "is not a GGUF file"),
        (header_bytes(version=1), "expected GGUF version 2 or 3, got 1"),
        (header_bytes(version=3 << 24), "big-endian GGUF files are not supported"),
        (
            header_bytes(tensors=1 << 60),
            f"is damaged or truncated: its header announces {1 << 60} tensors where 0 bytes are",
        ),
        (
            header_bytes(values=1 << 60),
            f"its header announces {1 << 60} metadata entries where 0 bytes are left",
        ),
        (
            header_bytes(values=1, rest=struct.pack("<Q", 1 << 62) + b"\0" * 64),
            f"its header announces {1 << 62} bytes where 64 bytes are left",
        ),
        (
            header_bytes(
                values=1, rest=string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 61) + b"\0" * 9
            ),
            f"its header announces an array of {1 << 61} strings where 9 bytes are left",
        ),
        (
            header_bytes(values=1, rest=string("k") + struct.pack("<IIQ", ARRAY, UINT8, 1 << 40)),
            f"its header announces {1 << 40} bytes where 0 bytes are left",
        ),
        (
            header_bytes(
                values=1, rest=string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) + b"\0" * 64
            ),
            "is damaged: an array holds arrays",
        ),
        (
            header_bytes(values=1, rest=string("k") + struct.pack("<I", 77) + b"\0" * 64),
            "is damaged: unknown value type 77",
        ),
        (
            header_bytes(values=1, rest=string(b"\xff\xfe") + struct.pack("<IB", UINT8, 1)),
            "is damaged: a string is not UTF-8",
        ),
        (
            header_bytes(values=2, rest=(string("k") + struct.pack("<IB", UINT8, 1)) * 2),
            "is damaged: key 'k' appears twice",
        ),
        (
            header_bytes(tensors=2, rest=(string("t") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2),
            "is damaged: tensor t appears twice",
        ),
        (
            header_bytes(tensors=1, rest=string("t") + struct.pack("<I", 1 << 31) + b"\0" * 64),
            "is damaged: tensor t has 2147483648 dimensions",
        ),
        (
            header_bytes(tensors=1, rest=string("t") + struct.pack("<IQQIQ", 2, 0, 4, 0, 0)),
            "is damaged: tensor t has shape [4, 0]",
        ),
        (
            header_bytes(
                tensors=1, rest=string("t") + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0)
            ),
            "is truncated: tensor t ends at byte ",
        ),
        (
            header_bytes(tensors=1, rest=string("t") + struct.pack("<IQIQ", 1, 1, 0, 1 << 63)),
            "is truncated: tensor t ends at byte ",
        ),
        (
            header_bytes(
                tensors=1,
                rest=string("t") + struct.pack("<IQQIQ", 2, 33, 1, Kind.Q8_0, 0) + b"\0" * 99,
            ),
            "is damaged: tensor t has shape [1, 33], not blocks of 32",
        ),
        (
            header_bytes(tensors=1, rest=string("t") + struct.pack("<IQIQ", 1, 1, 999, 0)),
            "tensor t is stored as GGML type 999",
        ),
    ],
)
def test_headers_that_lie(tmp_path, content, expected):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert expected in load_error(path)


def test_a_directory_named_like_a_file(tmp_path):
    (tmp_path / "m.gguf").mkdir()
    with pytest.raises(LookaheadError, match="cannot read"):
        read_gguf_header(tmp_path / "m.gguf")
