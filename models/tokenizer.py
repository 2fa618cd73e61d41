"""Tokenizers and chat templates, by transformers and tokenizers, behind the package's protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A directory with none of them has no tokenizer."""


class TransformersTokenizer:
    """A tokenizer of transformers as a `lookahead_jax.typing.Tokenizer`.

    Chat templates come with checkpoints and are programs of strangers; transformers renders them
    in jinja2's immutable sandbox, which reaches neither files nor Python objects.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        """Tokens of a plain text, with the special tokens the model expects in front.

        Raises:
            LookaheadError: The text has code points that UTF-8 cannot carry.
        """
        return self._encode(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a conversation, up to where the assistant's answer begins.

        Raises:
            LookaheadError: There is no chat template, or it refuses these messages.
        """
        if not self.has_chat_template:
            raise LookaheadError("this model has no chat template: expected a plain prompt")
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages], tokenize=False, add_generation_prompt=True
            )
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise LookaheadError(f"the model's chat template failed: {reason}") from error
        return self._encode(str(text), add_special_tokens=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens left out; incomplete UTF-8 decodes to U+FFFD."""
        text = self._tokenizer.decode(
            [int(token) for token in tokens],
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        return str(text)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return bool(self._tokenizer.chat_template)

    def save(self, directory: Path) -> None:
        """Writes the tokenizer, chat template included, for `tokenizer_from_directory`."""
        self._tokenizer.save_pretrained(directory)

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise LookaheadError(f"expected text that is valid Unicode: {error}") from error
        ids: Any = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)
        return list(ids["input_ids"])


def tokenizer_from_directory(directory: Path) -> TransformersTokenizer | None:
    """The tokenizer of a Hugging Face checkpoint, None where it has none.

    tokenizer.json is taken as it stands. Code in the checkpoint is never run.

    Raises:
        LookaheadError: The tokenizer's files are damaged or of an unknown kind.
    """
    if not any((directory / name).is_file() for name in VOCABULARY_FILES):
        return None
    with _without_torch_advice():
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        complete = (directory / "tokenizer.json").is_file()
        try:
            tokenizer = (PreTrainedTokenizerFast if complete else AutoTokenizer).from_pretrained(
                directory, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # tokenizers raises bare Exception for a damaged file
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise LookaheadError(f"{directory}: cannot load the tokenizer: {reason}") from error
    return TransformersTokenizer(tokenizer)


def wrap_tokenizer(
    tokenizer: Any, special_tokens: Mapping[str, str], chat_template: str | None
) -> TransformersTokenizer:
    """A `tokenizers.Tokenizer` with special tokens ("bos_token", ...) and a chat template."""
    with _without_torch_advice():
        from transformers import PreTrainedTokenizerFast

        return TransformersTokenizer(
            PreTrainedTokenizerFast(
                tokenizer_object=tokenizer,
                chat_template=chat_template,
                clean_up_tokenization_spaces=False,
                **special_tokens,
            )
        )


@contextmanager
def _without_torch_advice() -> Iterator[None]:
    """Keeps transformers from advising, on import, to install the PyTorch that is not needed."""

    def is_not_advice(record: logging.LogRecord) -> bool:
        return "PyTorch was not found" not in record.getMessage()

    logger = logging.getLogger("transformers")
    logger.addFilter(is_not_advice)
    try:
        yield
    finally:
        logger.removeFilter(is_not_advice)
