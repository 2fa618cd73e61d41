r"""From options to sampling, logit processors and stop strings.

An option at its default is off: it makes no object and leaves no trace in the record of a run, so
that answers of a plain run stay what they are when options are added.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lookahead_jax import processors
from lookahead_jax.cli.options import LogitOptions, SamplingOptions, StopOptions, TextOptions
from lookahead_jax.errors import LookaheadError
from lookahead_jax.sampling import Greedy, Sample

if TYPE_CHECKING:
    from lookahead_jax.processors import LogitProcessor

_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def make_sampling(options: TextOptions) -> Greedy | Sample:
    """Greedy at temperature 0, else `Sample`.

    Raises:
        LookaheadError: If a value is out of range, or there is nothing to draw that it could
            shape.
    """
    if options.temperature != 0:
        return Sample(
            **{field.name: getattr(options, field.name) for field in dataclasses.fields(Sample)}
        )
    for name in changed(options, SamplingOptions):
        raise LookaheadError(f"{_flag(name)} needs --temperature above 0")
    return Greedy()


def make_processors(options: TextOptions) -> tuple[LogitProcessor, ...]:
    """The processors that the options ask for, in the order in which transformers applies them.

    Raises:
        LookaheadError: If a value is out of range.
    """
    given = changed(options, LogitOptions, StopOptions)
    makers: dict[str, Callable[[Any], LogitProcessor]] = {
        "logit_bias": lambda biases: processors.LogitBias(parse_biases(biases)),
        "repetition_penalty": processors.RepetitionPenalty,
        "presence_penalty": processors.PresencePenalty,
        "frequency_penalty": processors.FrequencyPenalty,
        "no_repeat_ngram": processors.NoRepeatNGram,
        "min_new_tokens": processors.MinNewTokens,
        "ban": processors.BannedTokens,
    }
    return tuple(_make(name, make, given[name]) for name, make in makers.items() if name in given)


def _make(name: str, make: Callable[[Any], LogitProcessor], value: Any) -> LogitProcessor:
    if isinstance(value, float) and not math.isfinite(value):
        raise LookaheadError(f"{_flag(name)} must be a finite number, got {value}")
    try:
        return make(value)
    except LookaheadError as error:
        message = str(error)
        raise LookaheadError(
            message if message.startswith("--") else f"{_flag(name)}: {message}"
        ) from None


def policy_record(options: TextOptions) -> dict[str, Any]:
    """What the options add to the record of a run: nothing for a plain greedy one."""
    record = changed(options, SamplingOptions, LogitOptions, StopOptions)
    if options.temperature != 0:
        record = {"seed": options.seed, "method": options.method, **record}
    if "logit_bias" in record:
        biases = parse_biases(record["logit_bias"])
        record["logit_bias"] = {str(token): biases[token] for token in sorted(biases)}
    if "ban" in record:
        record["ban"] = sorted(set(record["ban"]))
    if "stop" in record:
        record["stop"] = list(parse_stops(record["stop"]))
    return record


def parse_biases(arguments: list[str]) -> dict[int, float]:
    """Biases by token id, from TOKEN=BIAS.

    Raises:
        LookaheadError: If an argument is not of this form, or a token is there twice.
    """
    biases: dict[int, float] = {}
    for argument in arguments:
        token, _, bias = argument.partition("=")
        try:
            entry = int(token), float(bias)
        except ValueError:
            entry = -1, 0.0
        if entry[0] < 0 or not math.isfinite(entry[1]):
            raise LookaheadError(
                f"--logit-bias must be TOKEN=BIAS, a token id and a finite number, got {argument!r}"
            )
        if entry[0] in biases:
            raise LookaheadError(f"--logit-bias must name a token once, got {entry[0]} again")
        biases[entry[0]] = entry[1]
    return biases


def parse_stops(arguments: list[str] | None) -> tuple[str, ...]:
    """Stop strings with their escapes resolved, each once.

    Raises:
        LookaheadError: If one is empty, or no text.
    """
    for argument in arguments or ():
        if not argument:
            raise LookaheadError("--stop must be some text, got an empty one")
        try:
            argument.encode()
        except UnicodeError:
            raise LookaheadError("--stop must be UTF-8 text; it holds other bytes") from None
    texts = (re.sub(r"\\[nt\\]", lambda m: _ESCAPES[m[0]], text) for text in arguments or ())
    return tuple(dict.fromkeys(texts))


def changed(options: TextOptions, *groups: type[Any]) -> dict[str, Any]:
    """The options of these groups that are not at their defaults."""
    values = {
        field.name: (getattr(options, field.name), field.default)
        for group in groups
        for field in dataclasses.fields(group)
    }
    # An option that can be repeated is None or an empty list where it is not there.
    return {name: value for name, (value, default) in values.items() if value not in (default, [])}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
