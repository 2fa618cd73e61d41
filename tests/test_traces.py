"""The package's pinned schedule against the recorded runs of the official code: free runs.

The tiny model runs freely, step for step. Without a pool from the prompt the runs are the recorded
ones. With one, the official code writes wrong n-grams (README of the traces), so there the product
is held against the oracle with that fault switched off. The demo model's runs, and single steps,
are in test_recorded_steps.
"""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
import reference
import trace_files
from oracle_states import jitted_start, live_columns, on_host, oracle_view, package_view, pool_view
from trace_configs import CAPACITY, CORRECT, greedy_by_config
from trace_replay import replay, settings_of

from lookahead_jax import Greedy, decoding
from lookahead_jax.layout import build_layout
from lookahead_jax.sampling import Policy
from lookahead_jax.sequences import Sequences


@functools.cache
def observed_round(config, forward):
    """A round, and what it saw and decided on the way to the new state."""
    layout = build_layout(config)

    def observe(state, params):
        guesses, valid = decoding._lookup(state, config)
        proposal = decoding.pack(state, guesses, valid, layout)
        logits, _ = forward(
            params,
            proposal.tokens,
            proposal.positions,
            proposal.mask,
            state.cache,
            proposal.logit_rows,
        )
        chosen = Greedy().select(logits)
        verdict, _ = decoding.verify(
            state.sequences, proposal, logits, layout.config, Policy(Greedy())
        )
        after = decoding.round(state, params, forward=forward, config=config)
        return after, (guesses, valid, chosen, verdict)

    return jax.jit(observe)


def assert_decision(config, seen, index, record):
    """Candidates, the model's choices, hits and winner of one sequence in one round."""
    guesses, valid, chosen, verdict = (jax.tree.map(lambda x: x[index], part) for part in seen)
    slots = [slot for slot in range(config.guess_set_size) if valid[slot]]
    assert [tuple(guesses[slot].tolist()) for slot in slots] == list(record.candidates)
    width, size = config.window_size, config.suffix_length
    after_guesses = chosen[1 + width :].reshape(-1, size)
    assert chosen[0] == record.rows.out
    assert chosen[1 : 1 + width].tolist() == list(record.rows.new_row)[-width:]
    assert [tuple(after_guesses[slot].tolist()) for slot in slots] == list(record.rows.guess_rows)
    assert verdict.accepted == record.verdict.hits
    accepted = verdict.path[1 : 1 + verdict.accepted]
    if record.verdict.winner is None:
        assert not len(accepted)
    else:
        first = 1 + slots[record.verdict.winner] * size
        assert accepted.tolist() == list(range(first, first + record.verdict.hits))
    assert verdict.emitted[: verdict.accepted + 1].tolist() == list(record.verdict.tokens)


QUICK = frozenset(
    f"w{sizes}"
    for sizes in [
        "1n3g1-pool1",
        "4n4g4-pool0",
        "4n8g6-pool1",
        "5n3g5-pool0",
        "7n5g7-pool0",
        "7n5g7-pool1",
        "10n3g10-pool0",
        "15n5g15-pool0",
    ]
)
"""Each is two programs of a real transformer. The others are in test_recorded_steps, too."""


@pytest.mark.parametrize(("config", "names"), greedy_by_config("tiny", quick=QUICK))
def test_free_runs_of_the_tiny_model(config, names, tiny, numpy_tiny):
    """All runs of a configuration as one batch of different prompts, limits and lengths."""
    runs = [trace_files.trace(name) for name in names]
    expected = []
    for trace in runs:
        if trace["pool_from_prompt"]:
            numpy_tiny.choices.clear()
            run = reference.lookahead_generate(
                numpy_tiny.next_token,
                trace["prompt_ids"],
                settings_of(trace, **CORRECT),
                trace["init_window"],
            )
            expected.append(run.steps)
        else:
            expected.append([record for _, record in replay(trace, **CORRECT)])
            assert trace["n_full_steps"] == len(trace["steps"])

    prompts = np.zeros((len(runs), 128), np.int32)
    for row, trace in zip(prompts, runs, strict=True):
        row[: len(trace["prompt_ids"])] = trace["prompt_ids"]
    stops = [Sequences.NO_STOP if t["eos_token_id"] is None else t["eos_token_id"] for t in runs]
    start = jitted_start(
        config, tiny.forward, tiny.cache_spec, tiny.vocab_size, capacity=CAPACITY, chunk=128
    )
    state = start(
        prompts,
        np.array([len(t["prompt_ids"]) for t in runs], np.int32),
        np.array([t["max_new_tokens"] for t in runs], np.int32),
        np.array(stops, np.int32)[:, None],
        np.array([t["init_window"] for t in runs], np.int32),
        tiny.params,
    )
    advance = observed_round(config, tiny.forward)
    for index in range(max(map(len, expected))):
        state, seen = advance(state, tiny.params)
        after, seen = without_cache(state), on_host(seen)
        for i, steps in enumerate(expected):
            if index >= len(steps):
                assert after.sequences.done[i], names[i]
                continue
            record = steps[index]
            assert_decision(config, seen, i, record)
            assert_text_window_pool(config, after, i, record.after)
            assert after.cache.length[i] == len(record.after.cache)
            if not runs[i]["pool_from_prompt"]:
                assert_recorded(runs[i], index, config, after, i)
    assert np.all(after.sequences.done)
    for i, trace in enumerate(runs):
        text = after.sequences.tokens[i, len(trace["prompt_ids"]) : after.sequences.length[i]]
        assert text.tolist() == trace["final"]["output_ids"]
        if not trace["pool_from_prompt"]:
            assert after.rounds[i] == trace["final"]["n_forward"]
            final = {key: [tuple(s) for s in bucket] for key, bucket in trace["final"]["pool"]}
            assert pool_view(after.pool.suffixes[i], config) == final


def without_cache(state):
    return on_host(replace(state, cache=replace(state.cache, keys=(), values=())))


def assert_text_window_pool(config, state, index, expected):
    wanted = oracle_view(config, expected)
    shell = replace(
        state.cache,
        keys=(np.zeros((len(state.rounds), 1, 0, 1)),),
        values=(np.zeros((len(state.rounds), 1, 0, 1)),),
        length=np.zeros_like(state.cache.length),
    )
    actual = package_view(config, replace(state, cache=shell), index)
    del wanted["cache"], actual["cache"]
    assert actual == wanted


def assert_recorded(trace, step, config, state, index):
    """The state after a step against the trace itself, not by way of the oracle."""
    entry = trace["steps"][step]
    emitted = len(entry["hits"])
    if not state.sequences.done[index]:
        assert state.cache.length[index] == entry["kv_after"]
        text = state.sequences.tokens[index, : state.sequences.length[index]]
        assert text[-emitted:].tolist() == entry["emit"] == entry["hits"]
        following = trace["steps"][step + 1]
        levels = tuple(level and tuple(level) for level in following["past"])
        stage = state.window.stage[index]
        base = state.window.base[index, : len(levels[0])].tolist()
        assert [base, *state.window.levels[index, :stage].tolist()] == live_columns(config, levels)
