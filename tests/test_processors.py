"""Logit processors: transformers' results, and lookahead's text equals ordinary decoding's.

Every row of a verification is processed with the text of its own path. The models are tables of
logits (enumerated.py) whose greedy texts go round in circles, so that candidates are accepted and
every processor has something to say.
"""

import functools
import json
import math
from dataclasses import dataclass

import enumerated
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_sampling as oracle
import trace_files

from lookahead_jax import (
    Greedy,
    LookaheadConfig,
    LookaheadError,
    Sample,
    decoding,
    generate,
)
from lookahead_jax.processors import (
    BannedTokens,
    FrequencyPenalty,
    LogitBias,
    MinNewTokens,
    NoRepeatNGram,
    PresencePenalty,
    RepetitionPenalty,
    TextContext,
)
from lookahead_jax.sampling import Policy

# Golden results

CAPACITY = 16


@functools.cache
def golden():
    text = (trace_files.DATA / "golden_processors.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return data["processors"], data["scale"]


def golden_rows():
    """Logits [n, V] and the contexts of all golden texts, as one batch."""
    data, scale = golden()
    logits = [[-math.inf if x is None else x / scale for x in row] for row in data["logits"]]
    return np.array(logits, np.float32), contexts(
        [(text["tokens"], text["prompt_length"], text["leftovers"]) for text in data["texts"]],
        data["stops"],
    )


def contexts(texts, stops):
    tokens = np.full((len(texts), CAPACITY), -7, np.int32)
    for row, (text, _, leftovers) in zip(tokens, texts, strict=True):
        row[: len(text)] = text
        row[len(text) : len(text) + len(leftovers)] = leftovers
    padded_stops = np.array([*stops, -1], np.int32)
    return TextContext(
        tokens=tokens,
        length=np.array([len(text) for text, _, _ in texts], np.int32),
        prompt_length=np.array([length for _, length, _ in texts], np.int32),
        stop_tokens=np.broadcast_to(padded_stops, (len(texts), len(padded_stops))),
    )


def process_all(chains):
    """Every chain of processors in one compiled program."""
    policies = [Policy(Greedy(), tuple(chain)) for chain in chains]

    def run(logits, contexts):
        return [jax.vmap(policy.weights)(logits, contexts) for policy in policies]

    return jax.jit(run)


CLASSES = (RepetitionPenalty, NoRepeatNGram, LogitBias, BannedTokens, MinNewTokens)
BY_NAME = {cls.__name__: cls for cls in CLASSES}


def test_processors_are_those_of_transformers():
    data, _ = golden()
    chains = [[BY_NAME[name](*args) for name, args in c["processors"]] for c in data["chains"]]
    assert {type(p) for chain in chains for p in chain} == set(CLASSES)
    logits, context = golden_rows()
    changed = set()
    for case, ours in zip(data["chains"], process_all(chains)(logits, context), strict=True):
        theirs = [[-math.inf if x is None else x for x in row] for row in case["scores"]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=str(case["processors"]))
        if not np.array_equal(np.asarray(theirs, np.float32), logits):
            changed.add(str(case["processors"]))
    assert len(changed) == len(chains)


def test_penalties_of_the_output_are_their_formulas():
    """OpenAI's: the prompt does not count, nor does what lies behind the text."""
    logits, context = golden_rows()
    texts = golden()[0]["texts"]
    chains = {
        (PresencePenalty(0.75),): lambda count: 0.75 * (count > 0),
        (FrequencyPenalty(0.75),): lambda count: 0.75 * count,
        (FrequencyPenalty(-0.5), PresencePenalty(1.5)): lambda c: 1.5 * (c > 0) - 0.5 * c,
    }
    results = process_all(chains)(logits, context)
    most = 0
    for result, penalty in zip(results, chains.values(), strict=True):
        for text, row, ours in zip(texts, logits, np.asarray(result), strict=True):
            output = text["tokens"][text["prompt_length"] :]
            count = np.array([output.count(token) for token in range(len(row))])
            most = max(most, count.max())
            np.testing.assert_allclose(ours, row - penalty(count), rtol=1e-6)
    assert most > 1


def test_processors_of_tokens_that_the_model_lacks_change_nothing():
    logits, context = golden_rows()
    vocab_size = logits.shape[1]
    chain = [LogitBias({vocab_size: 5.0}), BannedTokens([vocab_size, 4000]), LogitBias({})]
    (result,) = process_all([chain])(logits, context)
    np.testing.assert_array_equal(result, logits)


# Values


def test_processors_are_values():
    bias = LogitBias({7: 1.0, 3: -2.0})
    assert bias == LogitBias([(3, -2.0), (7, 1.0)])
    assert bias.biases == ((3, -2.0), (7, 1.0))
    assert BannedTokens([9, 3, 9]) == BannedTokens((3, 9))
    processors = [
        RepetitionPenalty(1.2),
        PresencePenalty(1.2),
        FrequencyPenalty(1.2),
        NoRepeatNGram(2),
        MinNewTokens(2),
        bias,
        BannedTokens([3]),
    ]
    assert len({*processors, NoRepeatNGram(2), LogitBias({3: -2.0, 7: 1.0})}) == len(processors)
    assert hash(Policy(Sample(0.7), tuple(processors)))


@pytest.mark.parametrize(
    ("make", "came"),
    [
        (lambda: RepetitionPenalty(0.0), "0.0"),
        (lambda: RepetitionPenalty(-1.0), "-1.0"),
        (lambda: RepetitionPenalty("1"), "'1'"),
        (lambda: RepetitionPenalty(math.nan), "nan"),
        (lambda: PresencePenalty(None), "None"),
        (lambda: PresencePenalty(True), "True"),
        (lambda: FrequencyPenalty([1]), "[1]"),
        (lambda: NoRepeatNGram(0), "0"),
        (lambda: NoRepeatNGram(2.0), "2.0"),
        (lambda: MinNewTokens(-1), "-1"),
        (lambda: MinNewTokens("3"), "'3'"),
        (lambda: LogitBias({-1: 1.0}), "-1"),
        (lambda: LogitBias({"a": 1.0}), "'a'"),
        (lambda: LogitBias({3: "high"}), "'high'"),
        (lambda: BannedTokens([1.5]), "1.5"),
        (lambda: BannedTokens([True]), "True"),
    ],
)
def test_bad_values_say_what_was_expected_and_what_came(make, came):
    with pytest.raises(LookaheadError) as error:
        make()
    assert came in str(error.value)
    assert "\n" not in str(error.value)


# The text is ordinary decoding's

SIZE, NEW_TOKENS, STOP = 24, 40, 20
TABLE = enumerated.loop_table(SIZE, seed=4)
CONFIG = LookaheadConfig(3, 5, 4)


@dataclass(frozen=True)
class NoEcho:
    """A user's own: what the text said `distance` tokens ago is less likely now."""

    distance: int

    def __call__(self, logits, context):
        echo = context.tokens[jnp.maximum(context.length - self.distance, 0)]
        return logits.at[echo].add(-1.5)


def no_echo(distance):
    def process(logits, text, _):
        echo = text[max(len(text) - distance, 0)]
        return [x - 1.5 * (token == echo) for token, x in enumerate(logits)]

    return process


@dataclass(frozen=True)
class ByFirstToken:
    """Another user's own: the first token of the text says which processor applies.

    So one compiled program, and one batch, has sequences with every processor.
    """

    processors: tuple

    def __call__(self, logits, context):
        results = jnp.stack([processor(logits, context) for processor in self.processors])
        return results[context.tokens[0]]


VARIANTS = {
    "repetition": (RepetitionPenalty(1.3), oracle.repetition_penalty(1.3)),
    "presence": (PresencePenalty(0.8), oracle.presence_penalty(0.8)),
    "frequency": (FrequencyPenalty(0.3), oracle.frequency_penalty(0.3)),
    "ngram": (NoRepeatNGram(7), oracle.no_repeat_ngram(7)),
    "minimum": (MinNewTokens(25), oracle.min_new_tokens(25, [STOP])),
    "banned": (BannedTokens([1, 6]), oracle.banned_tokens([1, 6])),
    "own": (NoEcho(9), no_echo(9)),
}
CHAIN = (ByFirstToken(tuple(ours for ours, _ in VARIANTS.values())), LogitBias({STOP: -0.25}))
NAMES = [name for name in VARIANTS for _ in range(4)]
FIRST = {"minimum": 18, "banned": 6}
"""A token of the circle that a prompt goes round: three tokens from a multiple of three on."""


def make_prompt(name, index):
    """The processor, some of its circle, and perhaps something before."""
    first = FIRST.get(name, [0, 3, 6, 21][index % 4])
    other = np.random.RandomState(index).randint(0, 12, index % 5).tolist()
    return [
        list(VARIANTS).index(name),
        *other,
        *(first + k % 3 for k in range(1 + 3 * (index % 3))),
    ]


PROMPTS = [make_prompt(name, index) for index, name in enumerate(NAMES)]


def oracle_text(prompt, process):
    """Ordinary decoding in plain Python."""
    text = list(prompt)
    while len(text) < len(prompt) + NEW_TOKENS and text[-1:] != [STOP]:
        logits = process(enumerated.pair_logits(TABLE, text), text, len(prompt))
        logits[STOP] -= 0.25
        text.append(int(np.argmax(np.array(logits, np.float32))))
    return text[len(prompt) :]


@functools.cache
def expected_texts():
    return [
        oracle_text(prompt, VARIANTS[name][1]) for name, prompt in zip(NAMES, PROMPTS, strict=True)
    ]


SAMPLED = Sample(temperature=0.6, top_k=12, top_p=0.95)
WAYS = enumerated.ByKey((Greedy(), SAMPLED))


def decode(config, sampled=False, label=""):
    """The whole batch: the greedy texts, or the sampled ones."""
    return enumerated.decode(
        TABLE,
        PROMPTS,
        config=config,
        sampling=WAYS,
        processors=CHAIN,
        max_new_tokens=NEW_TOKENS,
        stop_tokens=[STOP],
        keys=[[index, int(sampled)] for index in range(len(PROMPTS))],
        label=label,
    )


def by_name(values):
    groups = {name: [] for name in VARIANTS}
    for name, value in zip(NAMES, values, strict=True):
        groups[name].append(value)
    return groups


def test_every_processor_changes_the_text_somewhere():
    plain = [oracle_text(prompt, lambda logits, text, _: list(logits)) for prompt in PROMPTS]
    differs = by_name(a != b for a, b in zip(plain, expected_texts(), strict=True))
    assert all(map(any, differs.values())), differs


def test_greedy_text_is_ordinary_decodings_and_the_oracles():
    ordinary, run = decode(None), decode(CONFIG)
    assert ordinary.texts == expected_texts()
    assert run.texts == expected_texts()
    accepted = by_name(run.accepted)
    assert all(sum(tokens) > 9 for tokens in accepted.values()), accepted


def test_a_context_without_the_candidate_tokens_writes_something_else(monkeypatch):
    """The planted fault: rows are processed with the committed text only."""
    verify = decoding.verify_sample

    class CommittedOnly(Policy):
        processors = ()  # so that verification hands on the committed text

        def weights(self, logits, context):
            return Policy(WAYS, CHAIN).weights(logits, context)

    def faulty(*args, **options):
        *before, policy, max_accepted = args
        assert policy == Policy(WAYS, CHAIN)
        return verify(*before, CommittedOnly(WAYS), max_accepted, **options)

    monkeypatch.setattr(decoding, "verify_sample", faulty)
    run = decode(CONFIG, label="committed text only")
    assert sum(run.accepted) > 0
    wrong = by_name(a != b for a, b in zip(run.texts, expected_texts(), strict=True))
    for name in ("presence", "frequency", "ngram", "own"):
        assert any(wrong[name]), name
    assert not any(wrong["banned"])  # does not look at the text


def test_coupled_sampling_with_processors_writes_ordinary_samplings_text():
    ordinary, run = decode(None, sampled=True), decode(CONFIG, sampled=True)
    assert run.texts == ordinary.texts
    assert run.texts != expected_texts()
    assert sum(run.accepted) > 30
    assert not any(token in (1, 6) for text in by_name(run.texts)["banned"] for token in text)
    assert all(len(text) >= 25 for text in by_name(run.texts)["minimum"])


class UnhashableProcessor:
    __hash__ = None

    def __eq__(self, other):
        return self is other

    def __call__(self, logits, context):
        return logits


@pytest.mark.parametrize(
    "processors",
    [[3], [[1, 2]], [NoEcho], [UnhashableProcessor()], "abc", 5],
    ids=["number", "list", "class", "unhashable", "text", "no list"],
)
def test_what_is_no_processor_is_refused(processors):
    lm = enumerated.pair_model(TABLE)
    with pytest.raises(LookaheadError, match="processor") as error:
        generate(lm, [1, 2], processors=processors)
    assert "\n" not in str(error.value)
