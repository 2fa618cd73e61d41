"""The tokenizer that a GGUF file describes in its metadata.

Two kinds exist among the models that are supported: byte-level BPE with explicit merges ("gpt2"),
where a name stands for the way in which text is split before merging, and SentencePiece BPE
("llama"), whose merges follow from the pieces' scores.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models.checkpoint import Values
from lookahead_jax.models.gguf_splitting import SPLITTINGS, Splitting
from lookahead_jax.models.tokenizer import TransformersTokenizer, wrap_tokenizer

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of tokens; all but normal ones stay whole wherever they appear in a text."""

SPACE = "\u2581"
"""How SentencePiece writes a space."""

END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""Control tokens that end an answer even where the file does not name them as such."""

STRIPS_NOTHING = ("<s>", "<unk>", "<|endoftext|>")
"""The control tokens of Phi 3 that leave the white space after them alone. No key says so."""


def tokenizer_from_metadata(metadata: Values) -> TransformersTokenizer | None:
    """Builds the tokenizer, or returns None where the file has none.

    Raises:
        LookaheadError: It is of an unknown kind, or incomplete.
    """
    kind = metadata.text(f"{PREFIX}model", "none")
    if kind == "none":
        return None
    tokens = _list(metadata, "tokens", str)
    types = [NORMAL] * len(tokens)
    if metadata.has(f"{PREFIX}token_type"):
        types = _list(metadata, "token_type", int, len(tokens))
    adds_bos, strips = True, False
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
        tokenizer = _sentencepiece(tokens, scores, types, unknown, add_prefix)
        strips = metadata.values.get("general.architecture") == "phi3"
    else:
        raise metadata.wrong(f"{PREFIX}model", "'gpt2' or 'llama'")

    _keep_whole(tokenizer, tokens, types, strips)
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
    tokenizer.pre_tokenizer = splitting.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(
    tokens: list[str], scores: list[float], types: list[int], unknown: str, add_prefix: bool
) -> Tokenizer:
    """SentencePiece BPE: merge the neighbours that form the piece of highest score."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = _merges(vocabulary, scores, types)
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


def _merges(
    vocabulary: dict[str, int], scores: list[float], types: list[int]
) -> list[tuple[str, str]]:
    """The merges that scores stand for, the first to be done first.

    Among pieces of equal score (runs of spaces, for one) SentencePiece takes the leftmost, which
    as an order of merges means: the longer left part first. Vocabularies have up to 262144 pieces,
    so nothing is sorted but what ties.
    """
    pieces = [token for token, kind in zip(vocabulary, types, strict=True) if kind == NORMAL]
    pieces.sort(key=lambda piece: -scores[vocabulary[piece]])
    pairs: list[tuple[str, str]] = []
    for _, group in groupby(pieces, key=lambda piece: scores[vocabulary[piece]]):
        tied = list(group)
        cuts = [
            (left, right)
            for piece in tied
            for cut in range(len(piece) - 1, 0, -1)
            if (left := piece[:cut]) in vocabulary and (right := piece[cut:]) in vocabulary
        ]
        if len(tied) > 1:
            cuts.sort(key=lambda cut: (-len(cut[0]), vocabulary[cut[0]], vocabulary[cut[1]]))
        pairs += cuts
    return pairs


def _keep_whole(tokenizer: Tokenizer, tokens: list[str], types: list[int], strips: bool) -> None:
    """Has control and user-defined tokens recognised in a text; the former are special.

    Where `strips`, control tokens take the white space after them along.
    """
    marked = [
        AddedToken(
            token,
            special=kind != USER_DEFINED,
            normalized=False,
            rstrip=strips and kind == CONTROL and token not in STRIPS_NOTHING,
        )
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
