"""The oracle against the recorded runs of the official implementation."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import reference
import trace_files
from numpy_llama import NumpyLlama
from reference import Schedule
from trace_replay import lists, replay, settings_of, sorted_pool, trace_fields

ALL_TRACES = [*trace_files.trace_ids("tiny"), *trace_files.trace_ids("smollm2")]
GREEDY_TRACES = [name for name in ALL_TRACES if trace_files.trace(name)["mode"] == "greedy"]
SEEDED_GREEDY_TRACES = [
    name for name in GREEDY_TRACES if trace_files.trace(name)["pool_from_prompt"]
]
SHORT_PROMPTS = ("one", "two", "short3", "p30", "rnd12", "eos_in_prompt")
FREE_RUNS = [
    name
    for name in trace_files.trace_ids("tiny", "greedy")
    if trace_files.trace(name)["prompt_name"] in SHORT_PROMPTS
    and trace_files.trace(name)["max_new_tokens"] == 64
    and trace_files.trace(name)["W"] < 15
]
FREE_RUNS += [
    "tiny_greedy_eos_a_w7n5g7_pool0_m256",
    "tiny_greedy_p14_w4n4g4_pool1_m128",
    "tiny_greedy_p14_w7n5g7_pool1_m2",
    "tiny_greedy_p100_w7n5g7_pool1_m96",
]


def assert_step(expected: dict, actual: dict) -> None:
    """A field that a trace leaves out is one of which there was nothing in that step."""
    assert actual == {name: expected.get(name, []) for name in actual}


@pytest.mark.parametrize("name", ALL_TRACES)
def test_every_recorded_step_is_reproduced(name):
    trace = trace_files.trace(name)
    replayed = list(replay(trace))
    assert len(replayed) == trace["n_full_steps"]
    for index, (step, record) in enumerate(replayed):
        assert_step(step, trace_fields(index, record))
        committed = record.after.tokens[: -len(record.emitted)]
        assert record.after.cache == committed + record.verdict.tokens[:-1]
        following = (
            trace["steps"][index + 1]["past"]
            if index + 1 < trace["n_full_steps"]
            else trace["final"]["past"]
            if index + 1 == len(trace["steps"])
            else None
        )
        if following is not None:
            assert lists(record.after.levels) == following
    if trace["n_full_steps"] == len(trace["steps"]):
        final, state = trace["final"], replayed[-1][1].after
        assert sorted_pool(state.pool) == final["pool"]
        assert lists(state.output[: trace["max_new_tokens"]]) == final["output_ids"]
        assert len(state.output) == final["untruncated_generated"]
        assert state.finished


@pytest.mark.parametrize("name", ALL_TRACES)
def test_prompt_ngrams_are_the_recorded_ones(name):
    trace = trace_files.trace(name)
    if trace["pool_from_prompt"]:
        ngrams = reference.prompt_ngrams(trace["prompt_ids"], trace["N"])
        assert lists(ngrams) == trace["prompt_pool"]
    else:
        assert trace["prompt_pool"] is None


@pytest.mark.parametrize("name", trace_files.trace_ids("smollm2"))
def test_abridged_steps_publish_consistently(name):
    trace = trace_files.trace(name)
    settings = settings_of(trace)
    output: list[int] = []
    cache_length = 0
    for step in trace["steps"]:
        assert step["kv_before"] == cache_length
        assert step["key"] == (output[-1] if output else None)
        assert len(step["hits"]) == step["max_hit"] + 1 <= trace["N"] - 1
        assert trace["mode"] == "sample" or step["hits"][0] == step["out"]
        assert lists(reference.cut(step["hits"], settings.stop_tokens)) == step["emit"]
        rows_before = cache_length or len(trace["prompt_ids"]) - 1
        plan = reference.build_commit_plan(
            rows_before, 10_000, 0, trace["N"] - 1, step["win"], tuple(step["hits"])
        )
        cache_length = plan.trim_exclusive
        assert cache_length == step["kv_after"]
        output += step["emit"]
    assert output[: trace["max_new_tokens"]] == trace["final"]["output_ids"]


@pytest.mark.parametrize("name", SEEDED_GREEDY_TRACES)
def test_the_official_history_fault_shows_first_in_the_output_ngrams(name):
    trace = trace_files.trace(name)
    several_emitted = False
    for index, (step, record) in enumerate(replay(trace, wrong_history=False)):
        actual, recorded_ngrams = trace_fields(index, record), step.get("gen", [])
        assert_step({**step, "gen": actual["gen"]}, actual)
        several_emitted |= len(step["emit"]) > 1
        if actual["gen"] != recorded_ngrams:
            assert several_emitted
            text = record.after.tokens
            in_text = set(reference.prompt_ngrams(text, trace["N"]))
            assert in_text >= set(record.output_ngrams)
            assert not in_text >= set(map(tuple, recorded_ngrams))
            return


def test_without_the_fault_most_seeded_traces_differ():
    def differs(name: str) -> bool:
        pairs = enumerate(replay(trace_files.trace(name), wrong_history=False))
        return any(
            trace_fields(index, record)["gen"] != step.get("gen", [])
            for index, (step, record) in pairs
        )

    assert sum(map(differs, SEEDED_GREEDY_TRACES)) > len(SEEDED_GREEDY_TRACES) // 2


@pytest.fixture(scope="module")
def tiny_model() -> NumpyLlama:
    return NumpyLlama(trace_files.TINY_MODEL)


def test_numpy_model_agrees_with_the_recorded_forward_pass(tiny_model):
    check = trace_files.forward_check("tiny")
    ids = tuple(check["ids"])
    logits = tiny_model.logits(ids)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, check["logits_all_positions"], atol=1e-4)
    assert logits.argmax(-1).tolist() == check["argmax"]
    tiny_model.choices.clear()
    tiny_model.logits((5, 6, 7))
    stepwise = [tiny_model.next_token(ids[: end + 1]) for end in range(len(ids))]
    assert stepwise == check["argmax"]


def test_rows_as_separate_forwards_give_the_recorded_logits(tiny_model):
    recorded = trace_files.tiny_logits()
    trace = recorded["trace"]
    records = list(replay(trace))
    for entry in recorded["logits"]:
        step, record = records[entry["i"]]
        committed = record.after.tokens[: -len(record.emitted)]
        asked: list[np.ndarray] = []

        def next_token(prefix: reference.Tokens, asked=asked) -> int:
            asked.append(tiny_model.logits(prefix, last_only=True)[-1])
            return int(asked[-1].argmax())

        candidates = tuple(map(tuple, step["guess"] or ()))
        rows = reference.separate_forwards(next_token, committed, record.levels, candidates)
        assert rows == record.rows
        np.testing.assert_allclose(
            asked, [entry["out"], *entry["inp"], *(entry["guess"] or [])], atol=2e-4
        )


@pytest.mark.parametrize("name", FREE_RUNS)
def test_a_free_run_reproduces_the_trace(name, tiny_model):
    trace = trace_files.trace(name)
    tiny_model.choices.clear()
    run = reference.lookahead_generate(
        tiny_model.next_token, trace["prompt_ids"], settings_of(trace), trace["init_window"]
    )
    assert len(run.steps) == len(trace["steps"])
    for index, (step, record) in enumerate(zip(trace["steps"], run.steps, strict=True)):
        assert_step(step, trace_fields(index, record))
    assert lists(run.tokens) == trace["final"]["output_ids"]
    assert sorted_pool(run.state.pool) == trace["final"]["pool"]
    assert lists(run.state.levels) == trace["final"]["past"]


@pytest.mark.parametrize("prompt_name", ["one", "p14", "eos_a", "rnd12"])
def test_better_schedules_give_the_same_text_in_fewer_calls(prompt_name, tiny_model):
    trace = next(
        trace
        for trace in trace_files.traces("tiny").values()
        if trace["prompt_name"] == prompt_name and trace["mode"] == "greedy" and trace["W"] == 7
    )
    tiny_model.choices.clear()
    settings = replace(settings_of(trace), schedule=Schedule())
    run = reference.lookahead_generate(
        tiny_model.next_token, trace["prompt_ids"], settings, trace["init_window"]
    )
    assert lists(run.tokens) == trace["final"]["output_ids"]
    assert len(run.steps) <= trace["final"]["n_forward"]


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
def test_trace_files_are_whole_and_reproducible(model):
    traces = trace_files.traces(model)
    assert len(traces) == {"tiny": 66, "smollm2": 54}[model]
    assert list(traces) == sorted(traces)
    for name, trace in traces.items():
        assert trace["format"] == "lade-trace/1"
        assert trace["model"] == model
        assert len(trace["steps"]) == trace["final"]["n_forward"], name
    path = trace_files.TRACES / f"{model}.jsonl.gz"
    assert path.read_bytes()[4:8] == b"\0\0\0\0"
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == len(traces)


def test_compression_table_agrees_with_the_traces():
    for name in trace_files.trace_ids("smollm2", "greedy"):
        trace = trace_files.trace(name)
        rows = trace_files.compression().get(trace["prompt_name"], {})
        key = "W{W}N{N}G{G}pool{pool_from_prompt}".format_map(trace)
        if trace["max_new_tokens"] == 128 and key in rows:
            final = trace["final"]
            assert rows[key][:2] == [final["n_generated"], final["n_forward"]]
