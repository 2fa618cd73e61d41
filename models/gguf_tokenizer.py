"""The tokenizer that a GGUF file describes in its metadata.

Two kinds exist among Llama models: byte-level BPE with explicit merges ("gpt2"), where a name
stands for the way in which text is split before merging, and SentencePiece BPE ("llama"), whose
merges follow from the pieces' scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.tokenizer import TransformersTokenizer, wrap_tokenizer

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4
"""Token types that stay whole wherever they appear in a text."""

SPACE = "\u2581"
"""How SentencePiece writes a space."""

END_OF_TURN = ("<|eot_id|>", "<|im_end|>")
"""Control tokens that end an answer even where the file does not name them as such."""

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3_SPLIT = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")
TEKKEN_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Splitting:
    """How a byte-level vocabulary splits text before merging.

    Attributes:
        pattern: Its own expression; None for GPT-2's.
        single_digits: Digits are split off one by one, before GPT-2's expression.
        whole_words: A piece that is in the vocabulary is taken whole, whatever the merges say.
        adds_bos: A beginning-of-sequence token goes in front unless the file says otherwise.
    """

    pattern: str | None = None
    single_digits: bool = False
    whole_words: bool = False
    adds_bos: bool = False


_GPT2 = Splitting()
_SINGLE_DIGITS = Splitting(single_digits=True)
_LLAMA3 = Splitting(LLAMA3_SPLIT, whole_words=True, adds_bos=True)
_QWEN2 = Splitting(QWEN2_SPLIT)

SPLITTINGS = {
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "smaug-bpe": Splitting(LLAMA3_SPLIT),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": Splitting(TEKKEN_SPLIT, whole_words=True, adds_bos=True),
}
"""`tokenizer.ggml.pre` to the splitting it stands for."""


def tokenizer_from_metadata(metadata: Values) -> TransformersTokenizer | None:
    """Builds the tokenizer, or returns None where the file has none.

    Raises:
        LookaheadError: It is of an unknown kind, or incomplete.
    """
    kind = metadata.text(f"{PREFIX}model", "none")
    if kind == "none":
        return None
    tokens = _list(metadata, "tokens", str)
    adds_bos = True
    if kind == "gpt2":
        name = metadata.text(f"{PREFIX}pre")
        if name not in SPLITTINGS:
            raise metadata.wrong(f"{PREFIX}pre", f"one of {', '.join(SPLITTINGS)}")
        splitting = SPLITTINGS[name]
        adds_bos = splitting.adds_bos
        tokenizer = _byte_level(metadata, tokens, splitting)
    elif kind == "llama":
        add_prefix = metadata.flag(f"{PREFIX}add_space_prefix", True)
        unknown = tokens[_token_id(metadata, "unknown", tokens) or 0]
        scores = _list(metadata, "scores", float, len(tokens))
        tokenizer = _sentencepiece(tokens, scores, unknown, add_prefix)
    else:
        raise metadata.wrong(f"{PREFIX}model", "'gpt2' or 'llama'")

    if metadata.has(f"{PREFIX}token_type"):
        types = _list(metadata, "token_type", int, len(tokens))
        _keep_whole(tokenizer, tokens, types)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _token_id(metadata, key, tokens) for name, key in names.items()}
    special = {name: tokens[i] for name, i in ids.items() if i is not None}
    before = ["bos_token"] if metadata.flag(f"{PREFIX}add_bos_token", adds_bos) else []
    after = ["eos_token"] if metadata.flag(f"{PREFIX}add_eos_token", False) else []
    around = [name for name in (*before, *after) if name in special]
    if around:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[special[name] for name in before if name in special]
            + ["$A"]
            + [special[name] for name in after if name in special],
            special_tokens=[(special[name], ids[name]) for name in around],
        )
    template = metadata.text("tokenizer.chat_template", "")
    return wrap_tokenizer(tokenizer, special, template or None)


def stop_tokens(metadata: Values) -> tuple[int, ...]:
    """Ids that end an answer: end of sequence, end of turn, end of message.

    Files made before llama.cpp had a key for the end of a turn name it only by its text.
    """
    named = [f"{PREFIX}{name}_token_id" for name in ("eos", "eot", "eom")]
    ids = [metadata.values[key] for key in named if metadata.has(key)]
    if metadata.has(f"{PREFIX}tokens") and metadata.has(f"{PREFIX}token_type"):
        tokens, types = metadata.values[f"{PREFIX}tokens"], metadata.values[f"{PREFIX}token_type"]
        by_text = zip(tokens, types, strict=False)
        ids += [
            i for i, (text, kind) in enumerate(by_text) if kind == CONTROL and text in END_OF_TURN
        ]
    return tuple(dict.fromkeys(ids))


def _byte_level(metadata: Values, tokens: list[str], splitting: Splitting) -> Tokenizer:
    merges = _list(metadata, "merges", str)
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    try:
        bpe = models.BPE(vocabulary, pairs, ignore_merges=splitting.whole_words)
    except Exception as error:  # what tokenizers raises for a merge of unknown tokens
        raise LookaheadError(f"{metadata.source}: {PREFIX}merges: {error}") from error
    tokenizer = Tokenizer(bpe)
    steps: list[Any] = []
    if splitting.single_digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    if splitting.pattern is not None:
        steps.append(pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated"))
    own_expression = splitting.pattern is None
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own_expression))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    tokens: list[str], scores: list[float], unknown: str, add_prefix: bool
) -> Tokenizer:
    """SentencePiece BPE: merge the neighbours that form the piece of highest score.

    Among pieces of equal score (runs of spaces, for one) SentencePiece takes the leftmost, which
    as an order of merges means: the longer left part first.
    """
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [
        (-score, -cut, vocabulary[token[:cut]], vocabulary[token[cut:]])
        for token, score in zip(tokens, scores, strict=True)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    pairs = [(tokens[left], tokens[right]) for *_, left, right in sorted(merges)]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", SPACE)
    plain = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
        tokenizer.decoder = decoders.Sequence([*plain, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = spaces
        tokenizer.decoder = decoders.Sequence(plain)
    return tokenizer


def _keep_whole(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Has control and user-defined tokens recognised in a text; the former are special."""
    marked = [
        AddedToken(token, special=kind != USER_DEFINED, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token in marked if token.special])
    tokenizer.add_tokens([token for token in marked if not token.special])


def _list(metadata: Values, name: str, kind: type, length: int | None = None) -> list[Any]:
    key = f"{PREFIX}{name}"
    values = metadata.values.get(key)
    if not isinstance(values, list) or not values or not isinstance(values[0], kind):
        raise metadata.wrong(key, f"a list of {kind.__name__} values")
    if length is not None and len(values) != length:
        raise metadata.wrong(key, f"as long as the vocabulary ({length})")
    return values


def _token_id(metadata: Values, name: str, tokens: list[str]) -> int | None:
    key = f"{PREFIX}{name}_token_id"
    value = metadata.values.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens):
        raise metadata.wrong(key, f"a token id below {len(tokens)}")
    return value
