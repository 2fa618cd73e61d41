"""How byte-level vocabularies split text before merging: what `tokenizer.ggml.pre` stands for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenizers import Regex, pre_tokenizers

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3_SPLIT = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_SPLIT = LLAMA3_SPLIT.replace("{1,3}", "")

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(ending: str, digits: str) -> str:
    """Words end where an upper-case letter follows a lower-case one."""
    return (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{ending}"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{ending}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


TEKKEN_SPLIT = _by_case("", r"\p{N}")
GPT4O_SPLIT = _by_case(f"{CONTRACTIONS}?", r"\p{N}{1,3}")


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

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps that do it, the last of which spells bytes as letters."""
        steps: list[Any] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        gpt2 = self.pattern is None
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2))
        return pre_tokenizers.Sequence(steps)


_GPT2 = Splitting()
_SINGLE_DIGITS = Splitting(single_digits=True)
_LLAMA3 = Splitting(LLAMA3_SPLIT, whole_words=True, adds_bos=True)
_THREE_DIGITS = Splitting(LLAMA3_SPLIT)
_QWEN2 = Splitting(QWEN2_SPLIT)

SPLITTINGS = {
    "gpt-2": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "pixtral": _LLAMA3,
    "smaug-bpe": _THREE_DIGITS,
    "dbrx": _THREE_DIGITS,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "stablelm2": _QWEN2,
    "tekken": Splitting(TEKKEN_SPLIT, whole_words=True, adds_bos=True),
    "gpt-4o": Splitting(GPT4O_SPLIT),
}
"""By `tokenizer.ggml.pre`, as llama.cpp has them. SmolLM 3 has smaug-bpe, OLMo 2 and Phi 4 dbrx,
Phi 4 mini gpt-4o, Mistral Nemo tekken."""
