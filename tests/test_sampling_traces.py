"""Recorded sampling runs of the official implementation, event for event.

The model runs over the recorded text, the filters make the target distributions, and the recorded
uniforms go through the product's tests: the same candidates in the same order, with the same
probability and the same outcome, and a draw from the same residual. Then whole verifications run
on the recorded random numbers and publish the recorded tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import trace_files

from lookahead_jax import Sample
from lookahead_jax.kv_cache import init_cache
from lookahead_jax.layout import disjoint_suffixes
from lookahead_jax.models import load_model
from lookahead_jax.processors import TextContext
from lookahead_jax.sampling import Policy, try_offered
from lookahead_jax.verify import verify_sample

MOST_CANDIDATES, LONGEST_SUFFIX = 15, 4
NODES = 1 + MOST_CANDIDATES * LONGEST_SUFFIX


@dataclass
class Position:
    """What the official code did at one position of the text."""

    at: int
    """Index of the last token before it."""
    survivors: list[int]
    offered: list[int]
    """Their tokens here, in order."""
    tests: list[tuple[float, float, bool]] = field(default_factory=list)
    """(probability, uniform, accepted), of the first offered tokens."""
    draw: tuple[int, float, int] | None = None
    """(token, probability, support) of what was drawn when nothing was accepted."""


@dataclass
class Step:
    candidates: list[tuple[int, ...]]
    positions: list[Position]
    hits: list[int]
    winner: int | None


def read_trace(trace):
    """The full steps of a run, and the text they lead to."""
    text, steps = list(trace["prompt_ids"]), []
    for entry in trace["steps"][: trace["n_full_steps"]]:
        events = iter([event for event in entry["draws"] if event[0] in "tm"])
        candidates = [tuple(guess) for guess in entry["guess"] or []]
        tests, draws = {}, {}

        def accept(depth, candidate, token, events=events, tests=tests):
            kind, *test, probability, uniform, accepted = next(events)
            assert (kind, test) == ("t", [depth, candidate, token])
            tests.setdefault(depth, []).append((probability, uniform, bool(accepted)))
            return bool(accepted)

        def draw(depth, events=events, draws=draws):
            kind, *draws[depth] = next(events)
            assert kind == "m"
            return draws[depth][0]

        verdict = reference.verify_by_tests(candidates, accept, draw)
        assert list(verdict.tokens) == entry["hits"]
        assert next(events, None) is None
        positions = []
        for depth in range(len(verdict.tokens)):
            before = verdict.tokens[:depth]
            survivors = [
                index
                for index, candidate in enumerate(candidates)
                if depth < len(candidate) and candidate[:depth] == before
            ]
            positions.append(
                Position(
                    at=len(text) + depth - 1,
                    survivors=survivors,
                    offered=[candidates[index][depth] for index in survivors],
                    tests=tests.get(depth, []),
                    draw=draws.get(depth),
                )
            )
        steps.append(Step(candidates, positions, entry["hits"], entry["win"]))
        text += verdict.tokens
    return steps, text


def warp_all(runs):
    """Log-weights [T, V] of every run; `runs` are (sample, logits [T, V]). One program."""

    def warp(rows):
        return [
            jax.vmap(sample.warp)(logits) for (sample, _), logits in zip(runs, rows, strict=True)
        ]

    return [np.asarray(w) for w in jax.jit(warp)([logits for _, logits in runs])]


try_rows = jax.jit(jax.vmap(try_offered))


def padded(values, filler):
    return list(values) + [filler] * (MOST_CANDIDATES - len(values))


def assert_tests(runs, tolerance):
    """Holds the product against every event; `runs` are (steps, log-weights). Returns counts."""
    pairs = [
        (position, weights[position.at])
        for steps, weights in runs
        for step in steps
        for position in step.positions
    ]
    trials = jax.tree.map(
        np.asarray,
        try_rows(
            np.stack([weights for _, weights in pairs]),
            np.array([padded(position.offered, 0) for position, _ in pairs], np.int32),
            np.array([padded([True] * len(p.offered), False) for p, _ in pairs]),
            np.array([padded([u for _, u, _ in p.tests], 0.5) for p, _ in pairs], np.float32),
        ),
    )
    counts = dict.fromkeys(("tests", "accepted", "repeated", "draws", "draws after tests"), 0)
    for row, (position, _) in enumerate(pairs):
        recorded = [probability for probability, _, _ in position.tests]
        outcomes = [accepted for _, _, accepted in position.tests]
        tested = len(outcomes)
        ours = trials.probabilities[row, :tested]
        np.testing.assert_allclose(ours, recorded, atol=tolerance)
        assert trials.accepted[row, :tested].tolist() == outcomes
        counts["tests"] += tested
        counts["accepted"] += sum(outcomes)
        for index in range(tested):
            if position.offered[index] in position.offered[:index]:
                assert ours[index] == recorded[index] == 0
                counts["repeated"] += 1
        if any(outcomes):
            assert trials.token[row] == position.offered[tested - 1]
            assert position.draw is None
            continue
        assert tested == len(position.offered)
        token, probability, support = position.draw
        residual = trials.residual[row]
        masses = np.exp(residual - residual.max())
        assert np.sum(masses > 0) == support
        assert abs(masses[token] / masses.sum() - probability) < tolerance
        counts["draws"] += 1
        counts["draws after tests"] += tested > 0
    return counts


# Whole verifications


class Replayed:
    """A way of sampling whose random numbers are recorded ones, on log-weights that are ready."""

    def __init__(self, start, uniforms, drawn):
        self.start = start
        self.uniforms = uniforms  # [depths, nodes]
        self.drawn = drawn  # [depths]

    def warp(self, logits):
        return logits

    def choose(self, weights, key, position, offered, is_offered):
        depth = position - self.start
        trials = try_offered(weights, offered, is_offered, self.uniforms[depth])
        return jnp.where(jnp.any(trials.accepted), trials.token, self.drawn[depth])


def replay(tokens, valid, logits, uniforms, drawn, max_accepted):
    start = jnp.int32(7)
    nothing = TextContext(jnp.zeros(16, jnp.int32), start, start, jnp.full(1, -1, jnp.int32))
    return verify_sample(
        disjoint_suffixes(MOST_CANDIDATES, LONGEST_SUFFIX),
        np.arange(NODES, dtype=np.int32),
        tokens,
        valid,
        logits,
        nothing,
        jnp.zeros(2, jnp.uint32),
        Policy(Replayed(start, uniforms, drawn)),
        max_accepted,
    )


replay_all = jax.jit(jax.vmap(replay))


def node(candidate, depth):
    """The node of a candidate's token at a depth, from 0."""
    return 1 + candidate * LONGEST_SUFFIX + depth


def replay_inputs(step, weights):
    """One step as `replay` takes it. Rows off the accepted path are NaN, and must not be read."""
    tokens, valid = np.zeros(NODES, np.int32), np.zeros(NODES, bool)
    logits = np.full((NODES, weights.shape[1]), np.nan, np.float32)
    uniforms = np.full((LONGEST_SUFFIX + 1, NODES), np.nan, np.float32)
    drawn = np.full(LONGEST_SUFFIX + 1, -1, np.int32)
    suffix_length = len(step.candidates[0]) if step.candidates else 1
    valid[0] = True
    for index, candidate in enumerate(step.candidates):
        for depth, token in enumerate(candidate):
            tokens[node(index, depth)], valid[node(index, depth)] = token, True
    logits[0] = weights[step.positions[0].at]
    for depth, position in enumerate(step.positions):
        for survivor, (_, uniform, _) in zip(position.survivors, position.tests, strict=False):
            uniforms[depth, node(survivor, depth)] = uniform
        if position.draw is not None:
            drawn[depth] = position.draw[0]
        if depth:
            for survivor in position.survivors:
                logits[node(survivor, depth - 1)] = weights[position.at]
    return tokens, valid, logits, uniforms, drawn, np.int32(suffix_length - 1)


def assert_replayed(runs):
    """Whole verifications publish the recorded tokens, along the recorded candidate."""
    steps = [(step, weights) for steps, weights in runs for step in steps]
    columns = zip(*(replay_inputs(step, weights) for step, weights in steps), strict=True)
    verdicts = jax.tree.map(np.asarray, replay_all(*map(np.stack, columns)))
    deepest = 0
    for row, (step, _) in enumerate(steps):
        accepted = len(step.hits) - 1
        assert verdicts.accepted[row] == accepted
        assert verdicts.emitted[row, : accepted + 1].tolist() == step.hits
        if accepted:
            # Where all is accepted, the recorded winner's last token is one that the product
            # publishes and does not walk to: it stays with the first of equal candidates.
            on_path = step.candidates[step.winner][:accepted]
            first = next(i for i, c in enumerate(step.candidates) if c[:accepted] == on_path)
            expected = [node(first, depth) for depth in range(accepted)]
            assert verdicts.path[row, 1 : accepted + 1].tolist() == expected
        deepest = max(deepest, accepted)
    return deepest


def test_every_event_of_the_tiny_runs(numpy_tiny):
    traces = [trace_files.trace(name) for name in trace_files.trace_ids("tiny", "sample")]
    assert len(traces) == 13
    read = [read_trace(trace) for trace in traces]
    for trace, (_, text) in zip(traces, read, strict=True):
        output = trace["final"]["output_ids"]
        assert text[len(trace["prompt_ids"]) :][: len(output)] == output
    samples = [Sample(**trace["sampling"], method="residual") for trace in traces]
    logits = [numpy_tiny.logits(tuple(text)) for _, text in read]
    weights = warp_all(list(zip(samples, logits, strict=True)))
    runs = [(steps, w) for (steps, _), w in zip(read, weights, strict=True)]
    counts = assert_tests(runs, 1e-4)
    events = [event[0] for t in traces for step in t["steps"] for event in step["draws"]]
    assert counts["tests"] == events.count("t") > 1800
    assert counts["draws"] == events.count("m") > 300
    assert counts["accepted"] > 500
    assert counts["repeated"] > 200
    assert counts["draws after tests"] > 150
    assert assert_replayed(runs) == 3


@pytest.mark.slow
def test_every_event_of_the_demo_models_runs():
    """Full steps only. Probabilities are those of another float32 program, on 30 layers."""
    lm = load_model("smollm2-135m")
    traces = [trace_files.trace(name) for name in trace_files.trace_ids("smollm2", "sample")]
    read = [read_trace(trace) for trace in traces]
    size = 192
    forward = jax.jit(lm.forward)
    mask = jnp.tril(jnp.ones((1, size, size), bool))
    rows = jnp.arange(size, dtype=jnp.int32)[None]
    runs = []
    for trace, (steps, text) in zip(traces, read, strict=True):
        tokens = np.zeros((1, size), np.int32)
        tokens[0, : len(text)] = text
        cache = init_cache(lm.cache_spec, 1, 8)
        logits = forward(lm.params, jnp.asarray(tokens), rows, mask, cache, rows)[0][0]
        sample = Sample(**trace["sampling"], method="residual")
        # Only the rows that matter: a vocabulary is 384 times the tiny one.
        used = sorted({position.at for step in steps for position in step.positions})
        (weights,) = warp_all([(sample, np.asarray(logits)[used])])
        for position in (p for step in steps for p in step.positions):
            position.at = used.index(position.at)
        runs.append((steps, weights))
    counts = assert_tests(runs, 2e-3)
    assert counts["tests"] > 200
    assert counts["draws"] > 50
