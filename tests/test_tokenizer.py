"""Tokenizers and chat templates, from a Hugging Face directory and from GGUF metadata."""

import subprocess
import sys

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.gguf_splitting import SPLITTINGS
from lookahead_jax.models.gguf_tokenizer import stop_tokens, tokenizer_from_metadata
from lookahead_jax.models.tokenizer import tokenizer_from_directory, wrap_tokenizer
from lookahead_jax.typing import Tokenizer

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6


def byte_level(changes=None, *, pre="gpt-2", words=("aa",), merges=("a a",)):
    """Metadata of a byte-level vocabulary with a few words beyond single bytes."""
    tokens = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<think>", *ALPHABET, *words]
    types = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(ALPHABET) + len(words))
    values = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }
    changes = {f"tokenizer.{key}": value for key, value in (changes or {}).items()}
    return Values(values | changes, "model.gguf")


def sentencepiece(changes=None):
    """Metadata of a SentencePiece vocabulary: bytes, letters, and merged pieces with scores."""
    pieces = ["\u2581", "h", "e", "l", "o", "he", "ll", "hell", "hello", "\u2581hello", "lo"]
    scores = [-9.0, -9.0, -9.0, -9.0, -9.0, -1.0, -3.0, -4.0, -5.0, -6.0, -2.0]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *pieces]
    values = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    changes = {f"tokenizer.{key}": value for key, value in (changes or {}).items()}
    return Values(values | changes, "model.gguf")


def pieces(metadata, text):
    """The tokens of a text, as the vocabulary spells them."""
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer is not None
    return [metadata.values["tokenizer.ggml.tokens"][i] for i in tokenizer.encode(text)]


def error_of(call, *args):
    with pytest.raises(LookaheadError) as caught:
        call(*args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_sentencepiece_merges_by_score():
    assert pieces(sentencepiece(), "hello") == ["<s>", "\u2581", "he", "l", "lo"]
    better = sentencepiece()
    scores = better.values["tokenizer.ggml.scores"]
    scores[better.values["tokenizer.ggml.tokens"].index("ll")] = -0.5
    assert pieces(better, "hello") == ["<s>", "\u2581hello"]


def test_sentencepiece_spaces_bytes_and_markers():
    metadata = sentencepiece()
    assert pieces(metadata, "he  \n") == ["<s>", "\u2581", "he", "\u2581", "\u2581", "<0x0A>"]
    assert pieces(metadata, "\u00e9") == ["<s>", "\u2581", "<0xC3>", "<0xA9>"]
    assert pieces(metadata, "he</s>he")[-3:] == ["</s>", "\u2581", "he"]
    bare = sentencepiece({"ggml.add_space_prefix": False, "ggml.add_bos_token": False})
    assert pieces(bare, "he") == ["he"]


def test_sentencepiece_decodes_what_it_encodes():
    tokenizer = tokenizer_from_metadata(sentencepiece())
    assert tokenizer is not None
    for text in ("hello  he\n", "\u00e9\U0001f600", " hello", ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    incomplete = tokenizer.encode("\u00e9")[:-1]
    assert tokenizer.decode(incomplete) == "\ufffd"


def test_equal_scores_merge_from_the_left():
    spaces = ["\u2581" * n for n in range(1, 4)]
    values = dict(sentencepiece().values) | {
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *spaces],
        "tokenizer.ggml.scores": [0.0] * 3 + [-1e9] * 3,
        "tokenizer.ggml.token_type": [2, 3, 3] + [NORMAL] * 3,
        "tokenizer.ggml.add_space_prefix": False,
    }
    assert pieces(Values(values, "m"), " " * 5) == ["<s>", spaces[2], spaces[1]]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["11", "1", "\u0120", "11"]),
        ("smollm", ["1", "1", "1", "\u0120", "1", "1"]),
        ("llama-bpe", ["111", "\u0120", "11"]),
        ("qwen2", ["1", "1", "1", "\u0120", "1", "1"]),
        ("tekken", ["1", "1", "1", "\u0120", "1", "1"]),
        ("dbrx", ["11", "1", "\u0120", "11"]),
        ("smaug-bpe", ["11", "1", "\u0120", "11"]),
        ("gpt-4o", ["11", "1", "\u0120", "11"]),
    ],
)
def test_splitting_before_merging(pre, expected):
    metadata = byte_level(
        {"ggml.add_bos_token": False}, pre=pre, words=["11", "\u01201", "111"], merges=["1 1"]
    )
    assert pieces(metadata, "111 11") == expected


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("qwen2", ["isIt", "'s", " OK", "?\n", " ", " yes", "\n"]),
        ("dbrx", ["isIt", "'s", " OK", "?\n", " ", " yes", "\n"]),
        ("tekken", ["is", "It", "'s", " OK", "?\n", " ", " yes", "\n"]),
        ("gpt-4o", ["is", "It's", " OK", "?\n", " ", " yes", "\n"]),
        ("gpt-2", ["isIt", "'s", " OK", "?", "\n ", " yes", "\n"]),
    ],
)
def test_where_words_end(pre, expected):
    split = SPLITTINGS[pre].pre_tokenizer().pre_tokenize_str("isIt's OK?\n  yes\n")
    assert [text.replace("\u0120", " ").replace("\u010a", "\n") for text, _ in split] == expected


def test_control_tokens_of_phi_3_take_white_space_along():
    marks = ["<|user|>", "<|endoftext|>"]
    values = dict(sentencepiece().values) | {"general.architecture": "phi3"}
    for key, more in (("tokens", marks), ("scores", [0.0, 0.0]), ("token_type", [CONTROL] * 2)):
        values[f"tokenizer.ggml.{key}"] = values[f"tokenizer.ggml.{key}"] + more
    text = "<|user|>\n he<|endoftext|>\n"
    phi = pieces(Values(values, "m"), text)
    assert phi == ["<s>", "<|user|>", "\u2581", "he", "<|endoftext|>", "\u2581", "<0x0A>"]
    other = pieces(Values(values | {"general.architecture": "llama"}, "m"), text)
    assert other[1:5] == ["<|user|>", "\u2581", "<0x0A>", "\u2581"]


def test_pieces_that_are_not_normal_are_no_merges():
    """A control token is recognised where it stands whole, and is never put together."""
    values = dict(sentencepiece().values)
    types = list(values["tokenizer.ggml.token_type"])
    types[values["tokenizer.ggml.tokens"].index("he")] = 5
    assert pieces(Values(values | {"tokenizer.ggml.token_type": types}, "m"), "he")[2:] == [
        "h",
        "e",
    ]


def test_beginning_of_sequence_follows_the_kind_unless_the_file_says():
    assert pieces(byte_level(pre="llama-bpe"), "a") == ["<|begin|>", "a"]
    assert pieces(byte_level(pre="smollm"), "a") == ["a"]
    assert pieces(byte_level({"ggml.add_bos_token": True}), "a") == ["<|begin|>", "a"]
    ends = {"ggml.add_bos_token": True, "ggml.add_eos_token": True}
    assert pieces(byte_level(ends), "a") == ["<|begin|>", "a", "<|im_end|>"]


def test_byte_level_text_and_markers():
    metadata = byte_level()
    tokenizer = tokenizer_from_metadata(metadata)
    assert tokenizer is not None
    assert pieces(metadata, "aaa<|im_end|><think>") == ["aa", "a", "<|im_end|>", "<think>"]
    tokens = tokenizer.encode("aaa<|im_end|><think>\u00e9 x")
    assert tokenizer.decode(tokens) == "aaa<think>\u00e9 x"
    assert tokenizer.decode(tokenizer.encode("\u00e9")[:1]) == "\ufffd"
    assert tokenizer.decode([]) == ""


def test_chats_follow_the_template():
    tokenizer = tokenizer_from_metadata(byte_level({"chat_template": CHATML}, pre="llama-bpe"))
    assert tokenizer is not None
    assert tokenizer.has_chat_template
    chat = tokenizer.encode_chat([{"role": "user", "content": "hi"}])
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat == tokenizer.encode(text)[1:]


def test_the_protocol_without_a_template():
    tokenizer: Tokenizer | None = tokenizer_from_metadata(byte_level())
    assert tokenizer is not None
    assert not tokenizer.has_chat_template
    line = error_of(tokenizer.encode_chat, [{"role": "user", "content": "hi"}])
    assert line == "this model has no chat template: expected a plain prompt"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('only\none turn') }}",
        "{{ messages[0].content + 1 }}",
        "{% for %}",
    ],
)
def test_templates_that_fail_or_break_out_are_one_line(template):
    tokenizer = tokenizer_from_metadata(byte_level({"chat_template": template}))
    assert tokenizer is not None
    line = error_of(tokenizer.encode_chat, [{"role": "user", "content": "hi"}])
    assert line.startswith("the model's chat template failed: ")


def test_text_that_is_not_unicode_is_refused():
    tokenizer = tokenizer_from_metadata(byte_level())
    assert tokenizer is not None
    assert error_of(tokenizer.encode, "a\udcff").startswith("expected text that is valid Unicode")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (byte_level(pre="future"), "tokenizer.ggml.pre must be one of gpt-2, olmo, phi-2, "),
        (byte_level({"ggml.pre": None}), "tokenizer.ggml.pre is missing"),
        (byte_level({"ggml.model": "bert"}), "must be 'gpt2' or 'llama', got 'bert'"),
        (byte_level({"ggml.merges": 3}), "tokenizer.ggml.merges must be a list of str values"),
        (byte_level({"ggml.tokens": []}), "tokenizer.ggml.tokens must be a list of str values"),
        (byte_level({"ggml.token_type": [1]}), "must be as long as the vocabulary (261)"),
        (byte_level({"ggml.eos_token_id": 999}), "must be a token id below 261, got 999"),
        (sentencepiece({"ggml.scores": [0.5]}), "must be as long as the vocabulary (270)"),
    ],
)
def test_incomplete_metadata_is_refused(metadata, expected):
    line = error_of(tokenizer_from_metadata, metadata)
    assert line.startswith("model.gguf: ")
    assert expected in line


def test_merges_that_do_not_fit_the_vocabulary_are_refused():
    line = error_of(tokenizer_from_metadata, byte_level(merges=["a zzz"]))
    assert line.startswith("model.gguf: tokenizer.ggml.merges: ")


def test_files_without_a_tokenizer():
    assert tokenizer_from_metadata(Values({}, "model.gguf")) is None
    assert tokenizer_from_metadata(Values({"tokenizer.ggml.model": "none"}, "model.gguf")) is None


def test_stop_tokens_of_gguf_files():
    plain = dict(byte_level().values) | {"tokenizer.ggml.eos_token_id": 0}
    assert stop_tokens(Values(plain, "m")) == (0, 2)
    assert stop_tokens(byte_level({"ggml.eot_token_id": 1, "ggml.eom_token_id": 0})) == (2, 1, 0)
    ordinary = plain | {"tokenizer.ggml.token_type": [NORMAL] * 261}
    for end, ids in {
        "<end_of_turn>": (0, 1, 2),
        "<|end|>": (0, 1, 2),
        "<|eot_id|>": (0, 1, 2),
        "<|endoftext|>": (0, 2),  # not where the file names another end, as SmolLM2's does
    }.items():
        spelt = plain["tokenizer.ggml.tokens"]
        tokens = [end if token == "<|im_start|>" else token for token in spelt]
        assert stop_tokens(Values(plain | {"tokenizer.ggml.tokens": tokens}, "m")) == ids
    assert stop_tokens(Values(ordinary, "m")) == (0,)
    assert stop_tokens(Values({}, "m")) == ()


def word_tokenizer():
    vocabulary = {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "[INST]": 4}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="b"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token) for token in ("<s>", "</s>", "[INST]")])
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single=["<s>", "$A"], special_tokens=[("<s>", 0)]
    )
    return tokenizer


def test_a_directory_with_a_tokenizer(tmp_path):
    saved = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), bos_token="<s>", eos_token="</s>"
    )
    saved.chat_template = (
        "{{ bos_token }}{% for m in messages %} [INST] {{ m.content }}{% endfor %}"
    )
    saved.save_pretrained(tmp_path)
    tokenizer = tokenizer_from_directory(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("a b a") == [0, 2, 3, 2]
    assert tokenizer.encode_chat([{"role": "user", "content": "b a"}]) == [0, 4, 3, 2]
    assert tokenizer.decode([0, 2, 3, 1]) == "ab"


def test_a_directory_without_a_tokenizer(tmp_path):
    assert tokenizer_from_directory(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_one_line(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    line = error_of(tokenizer_from_directory, tmp_path)
    assert line.startswith(f"{tmp_path}: cannot load the tokenizer: ")


def test_code_in_a_checkpoint_is_never_run(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}, "tokenizer_class": "Evil"}'
    )
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "vocab.json").write_text("{}")
    error_of(tokenizer_from_directory, tmp_path)
    assert not (tmp_path / "ran").exists()


def test_no_advice_to_install_pytorch(tmp_path):
    word_tokenizer().save(str(tmp_path / "tokenizer.json"))
    code = (
        "import sys, pathlib\n"
        "from lookahead_jax.models.tokenizer import tokenizer_from_directory\n"
        "print(tokenizer_from_directory(pathlib.Path(sys.argv[1])).encode('a'))"
    )
    command = [sys.executable, "-P", "-c", code, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("[0, 2]\n", "")


def test_a_tokenizer_of_ones_own():
    tokenizer = wrap_tokenizer(word_tokenizer(), {"bos_token": "<s>"}, None)
    assert tokenizer.encode("a") == [0, 2]
