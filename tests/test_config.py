"""What a configuration admits, and what it says where it does not."""

import numpy as np
import pytest

from lookahead_jax import LookaheadConfig, LookaheadError, WindowAdvance

FIELDS = {
    "window_size": ("window_size (W)", 1),
    "ngram_size": ("ngram_size (N)", 3),
    "guess_set_size": ("guess_set_size (G)", 0),
}


def refusal(**fields):
    with pytest.raises(LookaheadError) as caught:
        LookaheadConfig(**fields)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value",
    [True, False, 7.0, "7", None, np.int32(7), np.float32(7), np.array(7), (7,)],
    ids=lambda value: f"{type(value).__name__}",
)
def test_only_plain_integers_are_admitted(field, value):
    name, least = FIELDS[field]
    message = refusal(**{field: value})
    assert message.startswith(f"{name} must be an integer >= {least}, got ")
    assert type(value).__name__ in message


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("below", [1, 2, 100])
def test_values_below_the_range_are_refused_with_the_reason(field, below):
    name, least = FIELDS[field]
    message = refusal(**{field: least - below})
    assert message.startswith(f"{name} must be an integer >= {least}, got {least - below}: ")
    assert len(message.rpartition(": ")[2]) > 10


def test_the_reason_for_long_ngrams_is_the_window_schedule():
    assert "at least two trajectory levels" in refusal(ngram_size=2)


def test_the_least_values_are_admitted():
    config = LookaheadConfig(window_size=1, ngram_size=3, guess_set_size=0)
    assert (config.num_rows, config.num_logit_rows, config.max_accepted) == (2, 2, 0)


def test_derived_sizes():
    config = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)
    assert (config.suffix_length, config.num_levels) == (4, 4)
    assert (config.num_rows, config.num_logit_rows) == (56, 1 + 7 + 28)
    assert config.max_accepted == 4


def test_defaults_improve_on_the_official_schedule():
    config = LookaheadConfig()
    assert config == LookaheadConfig(
        window_size=7,
        ngram_size=5,
        guess_set_size=7,
        advance=WindowAdvance.BY_ONE,
        bonus_token=True,
        verify_during_warmup=True,
        pool_from_prompt=True,
        pool_from_output=True,
    )


@pytest.mark.parametrize("pool_from_prompt", [False, True])
def test_pinned_is_the_official_schedule(pool_from_prompt):
    config = LookaheadConfig.pinned(5, 4, 2, pool_from_prompt=pool_from_prompt)
    assert config == LookaheadConfig(
        window_size=5,
        ngram_size=4,
        guess_set_size=2,
        advance=WindowAdvance.BY_ONE,
        bonus_token=False,
        verify_during_warmup=False,
        pool_from_prompt=pool_from_prompt,
        pool_from_output=pool_from_prompt,
    )
    assert config.max_accepted == 2
    assert not LookaheadConfig.pinned(5, 4, 2).pool_from_prompt


def test_a_configuration_is_a_value():
    assert LookaheadConfig(3, 4, 2) == LookaheadConfig(3, 4, 2)
    assert hash(LookaheadConfig(3, 4, 2)) == hash(LookaheadConfig(3, 4, 2))
    assert LookaheadConfig(3, 4, 2) != LookaheadConfig(3, 4, 2, bonus_token=False)
    with pytest.raises(AttributeError):
        LookaheadConfig().window_size = 3  # pyright: ignore[reportAttributeAccessIssue]
