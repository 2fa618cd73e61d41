"""Recorded runs of both models as data: their outputs are fed to the package's pinned schedule.

No near-tie of a float can interfere, so whole windows and pools are compared on the demo model.
Every recorded step is run on its own from the state before it, with the official fault in the pool
switched off; and where the fault has no effect, whole runs are replayed without loading a state.
"""

import functools
from dataclasses import replace

import fakes
import jax
import numpy as np
import pytest
import reference
import trace_files
from oracle_states import (
    jitted_round,
    live_columns,
    on_host,
    oracle_view,
    package_state,
    package_view,
)
from trace_configs import CAPACITY, CORRECT, config_of, greedy_by_config
from trace_replay import replay, settings_of

from lookahead_jax.window import Window, advance_window


def to_small_ids(trace):
    """Order-preserving small ids for the tokens of a trace, as a function on any nesting."""
    seen: set[int] = set()

    def collect(value):
        if isinstance(value, list | tuple):
            for item in value:
                collect(item)
        elif isinstance(value, int):
            seen.add(value)

    collect([trace["prompt_ids"], trace["init_window"], trace["final"]["output_ids"]])
    collect(2 if trace["eos_token_id"] is None else trace["eos_token_id"])
    for entry in trace["steps"][: trace["n_full_steps"]]:
        collect([entry["past"], entry["out"], entry["inp"], entry["guess"], entry["garg"]])
        collect([entry["hits"], entry["emit"]])
    names = {token: index for index, token in enumerate(sorted(seen))}

    def rename(value):
        if value is None:
            return None
        if isinstance(value, list | tuple):
            return tuple(map(rename, value))
        return names[value]

    return rename, len(names)


def renamed_state(rename, state):
    return replace(
        state,
        tokens=rename(state.tokens),
        cache=rename(state.cache),
        levels=rename(state.levels),
        pool={rename(key): [*rename(bucket)] for key, bucket in state.pool.items()},
        history=rename(state.tokens),
    )


def recorded_choices(config, record, rename):
    """What the rows of the product choose, int32 [1 + W + G * S]; a row that is unused says 0."""
    guesses = np.zeros((config.guess_set_size, config.suffix_length), np.int32)
    if record.candidates:
        guesses[config.guess_set_size - len(record.candidates) :] = rename(record.rows.guess_rows)
    new_row = rename(record.rows.new_row)[-config.window_size :]
    return np.array([rename(record.rows.out), *new_row, *guesses.reshape(-1)], np.int32)


SMALL_VOCAB, CHUNK = 2048, 32


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_small_ids_fit(model):
    sizes = [to_small_ids(trace)[1] for trace in trace_files.traces(model).values()]
    assert max(sizes) <= SMALL_VOCAB


@pytest.mark.parametrize(
    ("config", "names"), [*greedy_by_config("tiny"), *greedy_by_config("smollm2")]
)
def test_every_recorded_step_from_its_own_state(config, names):
    """The recorded state before a step, and the recorded outputs, give the oracle's state after."""
    cases = []
    for name in names:
        trace = trace_files.trace(name)
        rename, _ = to_small_ids(trace)
        settings = settings_of(trace, **CORRECT)
        before = reference.start(settings, trace["prompt_ids"], trace["init_window"])
        for _, record in replay(trace, commit_overshoot=False):
            clean = replace(before, history=before.tokens)
            after = reference.finish_round(
                settings, clean, record.candidates, record.rows, record.verdict, no_refill
            ).after
            cases.append(
                (
                    renamed_state(rename, clean),
                    recorded_choices(config, record, rename),
                    renamed_state(rename, after),
                    trace["max_new_tokens"],
                    [] if trace["eos_token_id"] is None else [rename(trace["eos_token_id"])],
                )
            )
            before = record.after
    advance = jitted_round(config, fakes.RecordedForward(SMALL_VOCAB))
    for start in range(0, len(cases), CHUNK):
        chunk = cases[start : start + CHUNK]
        padded = [*chunk, *[chunk[-1]] * (CHUNK - len(chunk))]
        states, choices, after, limits, stops = zip(*padded, strict=True)
        state = package_state(
            config,
            states,
            max_new_tokens=limits,
            stop_tokens=stops,
            capacity=CAPACITY,
            vocab_size=SMALL_VOCAB,
        )
        result = on_host(advance(state, np.stack(choices)))
        for i in range(len(chunk)):
            assert package_view(config, result, i) == oracle_view(config, after[i]), start + i


def no_refill(history, count):
    raise AssertionError("the greedy schedule moves by one column")


@pytest.mark.parametrize(
    ("config", "names"),
    [p for p in greedy_by_config("smollm2") if not p.values[0].pool_from_prompt],
)
def test_demo_model_runs_replayed_from_prompt_to_the_last_full_step(config, names):
    """No state is loaded: the product keeps its own, fed with the demo model's recorded outputs."""
    runs = [trace_files.trace(name) for name in names]
    steps = [[record for _, record in replay(trace, commit_overshoot=False)] for trace in runs]
    renames = [to_small_ids(trace)[0] for trace in runs]
    settings = [settings_of(trace, **CORRECT) for trace in runs]
    first = [
        renamed_state(rename, reference.start(s, t["prompt_ids"], t["init_window"]))
        for rename, s, t in zip(renames, settings, runs, strict=True)
    ]
    repeat = [0] * (CHUNK - len(runs))
    pad = [*range(len(runs)), *repeat]
    state = package_state(
        config,
        [first[i] for i in pad],
        max_new_tokens=[runs[i]["max_new_tokens"] for i in pad],
        stop_tokens=[[renames[i](runs[i]["eos_token_id"])] for i in pad],
        capacity=CAPACITY,
        vocab_size=SMALL_VOCAB,
    )
    advance = jitted_round(config, fakes.RecordedForward(SMALL_VOCAB))
    for index in range(max(map(len, steps))):
        at = [min(index, len(steps[i]) - 1) for i in pad]
        choices = [
            recorded_choices(config, steps[i][k], renames[i]) for i, k in zip(pad, at, strict=True)
        ]
        state = advance(state, np.stack(choices))
        result = on_host(state)
        for i in range(len(runs)):
            if index < len(steps[i]):
                expected = renamed_state(renames[i], steps[i][index].after)
                assert package_view(config, result, i) == oracle_view(config, expected)


@pytest.mark.parametrize(
    "name",
    [name for model in ("tiny", "smollm2") for name in trace_files.trace_ids(model, "sample")],
)
def test_windows_of_sampling_runs(name):
    """The window schedules with recorded refills (`c` draws), also by accepted tokens.

    Stop tokens in a new row are refilled by the official sampler before the window moves; that is
    its choice of guesses, so the new row is taken as the oracle hands it on.
    """
    trace = trace_files.trace(name)
    config = config_of(trace)
    by_accepted = not trace["always_fwd_one"]
    step_window = jax.jit(functools.partial(advance_window, config))
    checked = 0
    entries = trace["steps"][: trace["n_full_steps"]]
    records = [record for _, record in replay(trace)]
    for entry, record in zip(entries, records, strict=True):
        stop = trace["eos_token_id"]
        events = [event[1] for event in entry.get("draws", []) if event[0] == "c"]
        steady = record.stage == config.num_levels - 1
        new_row = list(record.rows.new_row)
        if steady:
            new_row = [events.pop(0) if token == stop else token for token in new_row]
        accepted = record.verdict.hits if by_accepted and steady else 0
        refill = np.zeros((config.num_levels, config.suffix_length), np.int32)
        assert len(events) == accepted * config.num_levels
        refill[:, :accepted] = np.array(events, np.int32).reshape(config.num_levels, accepted)
        window = package_window(config, record.levels)
        moved = on_host(
            step_window(
                window,
                np.array(new_row[-config.window_size :], np.int32),
                np.int32(accepted),
                refill,
            )
        )
        expected = package_window(config, record.after.levels)
        size = config.window_size + config.ngram_size - 3 - expected.stage
        assert moved.stage == expected.stage
        np.testing.assert_array_equal(moved.base[:size], expected.base[:size])
        np.testing.assert_array_equal(
            moved.levels[: moved.stage], expected.levels[: expected.stage]
        )
        checked += accepted
    if by_accepted:
        assert checked, "the run was to move its window by accepted tokens"


def package_window(config, levels):
    first, *deeper = live_columns(config, levels)
    base = np.zeros(config.window_size + config.ngram_size - 3, np.int32)
    base[: len(first)] = first
    stacked = np.zeros((config.num_levels - 1, config.window_size), np.int32)
    if deeper:
        stacked[: len(deeper)] = deeper
    return Window(base, stacked, np.int32(len(deeper)))


def test_one_sampling_run_moves_by_accepted_tokens():
    runs = [t for m in ("tiny", "smollm2") for t in trace_files.traces(m).values()]
    assert any(not trace["always_fwd_one"] for trace in runs)
