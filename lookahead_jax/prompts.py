"""Prompts to token lists, with the checks that need no device."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from lookahead_jax.errors import LookaheadError
from lookahead_jax.typing import LanguageModel, Tokenizer

Prompt = str | Sequence[int]


def encode_prompt(
    lm: LanguageModel, prompt: Prompt, *, chat_template: bool | None, system: str | None
) -> tuple[int, ...]:
    """Tokens of one prompt.

    Args:
        lm: The model.
        prompt: A text, or token ids that are taken as they are.
        chat_template: Whether a text becomes a user's message; None does so where the model has a
            chat template.
        system: A system message in front of it.

    Raises:
        LookaheadError: If the prompt is empty or not of this model.
    """
    if isinstance(prompt, str):
        tokens = _encode_text(lm, prompt, chat_template, system)
    else:
        tokens = tuple(_token_id(t, lm.vocab_size, "a prompt's token ids") for t in prompt)
    if not tokens:
        raise LookaheadError("the prompt is empty: expected at least one token")
    return tokens


def _encode_text(
    lm: LanguageModel, prompt: str, chat_template: bool | None, system: str | None
) -> tuple[int, ...]:
    tokenizer = lm.tokenizer
    if tokenizer is None:
        raise LookaheadError(
            f"model {lm.name} has no tokenizer: expected token ids, got a text prompt"
        )
    if not prompt.strip():
        raise LookaheadError("the prompt is empty: expected some text")
    if tokenizer.has_chat_template if chat_template is None else chat_template:
        return tuple(tokenizer.encode_chat(_messages(prompt, system)))
    return _plain(tokenizer, prompt, system)


def _messages(prompt: str, system: str | None) -> list[dict[str, str]]:
    before = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": prompt}]


def _plain(tokenizer: Tokenizer, prompt: str, system: str | None) -> tuple[int, ...]:
    if system is not None:
        raise LookaheadError("a system message needs a chat template, and none is used here")
    return tuple(tokenizer.encode(prompt))


def stop_ids(lm: LanguageModel, stop_tokens: Sequence[int] | None) -> tuple[int, ...]:
    """Token ids that end a text: the model's own where None are given.

    Raises:
        LookaheadError: If they are not token ids of this model.
    """
    if stop_tokens is None:
        return lm.stop_tokens
    if isinstance(stop_tokens, str) or not hasattr(stop_tokens, "__iter__"):
        raise LookaheadError(f"stop_tokens must be a list of token ids, got {stop_tokens!r}")
    return tuple(_token_id(t, lm.vocab_size, "stop_tokens") for t in stop_tokens)


def _token_id(token: object, vocab_size: int, what: str) -> int:
    try:
        value = operator.index(token)  # pyright: ignore[reportArgumentType]
    except TypeError:
        value = -1
    if isinstance(token, bool) or not 0 <= value < vocab_size:
        raise LookaheadError(f"{what} must be integers in [0, {vocab_size}), got {token!r}")
    return value


def prepare(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    chat_template: bool | None,
    system: str | None,
    max_new_tokens: int,
) -> tuple[int, ...]:
    """Tokens of one prompt that fits the model's context with its answer.

    Raises:
        LookaheadError: If it is empty, not of this model, or too long.
    """
    tokens = encode_prompt(lm, prompt, chat_template=chat_template, system=system)
    check_lengths(lm, len(tokens), max_new_tokens)
    return tokens


def check_lengths(lm: LanguageModel, prompt_length: int, max_new_tokens: int) -> None:
    """Refuses what does not fit the model's context, before anything is compiled."""
    if type(max_new_tokens) is not int or max_new_tokens < 1:
        raise LookaheadError(f"max_new_tokens must be an integer >= 1, got {max_new_tokens!r}")
    if prompt_length >= lm.max_length:
        raise LookaheadError(
            f"the prompt has {prompt_length} tokens, but the context of {lm.name} holds "
            f"{lm.max_length} tokens, prompt and output together"
        )
    if prompt_length + max_new_tokens > lm.max_length:
        raise LookaheadError(
            f"a prompt of {prompt_length} tokens leaves room for {lm.max_length - prompt_length} "
            f"new tokens in the context of {lm.name} ({lm.max_length}), got max_new_tokens="
            f"{max_new_tokens}"
        )
