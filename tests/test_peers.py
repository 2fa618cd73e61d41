"""The comparison with other implementations: its processes, its file, its figures, its exports."""

import importlib.util
import json
import sys
from dataclasses import replace

import checkout
import jax
import numpy as np
import pytest
import trace_files
import typer
from typer.testing import CliRunner

from lookahead_jax import LookaheadError, autoregressive
from lookahead_jax.models.loading import load_model

contenders, export, external_peers, measure, official, ours, peer_types, table = map(
    checkout.benchmark,
    (
        *("peers.contenders", "peers.export", "peers.external", "peers.measure"),
        *("peers.official", "peers.ours", "peers.peer", "peers.table"),
    ),
)
store_files, workers, program = map(
    checkout.benchmark, ("peers.store", "peers.worker", "peers.__main__")
)
External, Weights, file_type = (
    external_peers.External,
    external_peers.Weights,
    external_peers.file_type,
)
Facts, PeerError, Writing = peer_types.Facts, peer_types.PeerError, peer_types.Writing
Key, Store, Text = store_files.Key, store_files.Store, measure.Text
Timeouts, Worker = workers.Timeouts, workers.Worker

# A worker on the real serving loop whose prompt says how it behaves.
WORKER = """
import os, signal, sys, time
from benchmarks.peers.workers.serving import serve
class Subject:
    versions, threads = {"fake": "1.2"}, 3
    def write(self, prompt, num_tokens):
        kind = prompt[0]
        print("noise on standard output")
        if kind == 1: os.kill(os.getpid(), signal.SIGSEGV)
        if kind == 2: time.sleep(60)
        if kind == 3: raise RuntimeError("out of\\nmemory")
        if kind == 4: print("the last words", file=sys.stderr); sys.stderr.flush(); os._exit(7)
        answer = {"tokens": [kind] * num_tokens, "calls": 2, "timed_tokens": 3, "seconds": 0.5}
        answer.update({
            5: {"tokens": [1]}, 6: {"tokens": "text"}, 7: {"calls": 0}, 8: {"timed_tokens": 9},
            9: {"seconds": -1.0}, 10: {"seconds": float("nan")}, 11: {"calls": num_tokens + 1},
        }.get(kind, {}))
        return answer
def load(settings):
    if settings: raise ImportError(settings["why"])
    return Subject()
serve(load)
"""
QUICK = Timeouts(load=30, write=30, close=5)


def fake_worker(tmp_path, settings="{}", code=WORKER, timeouts=QUICK):
    return Worker([sys.executable, "-c", code, settings], tmp_path / "logs" / "x.log", timeouts)


def test_a_worker_writes_what_it_is_asked_for(tmp_path):
    worker = fake_worker(tmp_path)
    assert worker.facts == Facts({"fake": "1.2"}, 3)
    assert worker.write((42, 1), 4) == Writing((42,) * 4, 2, 3, 0.5)
    assert worker.write((43,), 5) == Writing((43,) * 5, 2, 3, 0.5)
    worker.close()
    assert worker._process.returncode == 0
    assert (tmp_path / "logs/x.log").read_text().count("noise on standard output") == 2


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (1, "was ended by SIGSEGV: noise"),
        (3, "RuntimeError: out of"),
        (4, "ended with exit code 7: the last words"),
    ],
)
def test_what_ends_a_worker(tmp_path, kind, complaint):
    worker = fake_worker(tmp_path)
    for expected in (complaint, "ended"):  # it has nothing more to say afterwards
        with pytest.raises(PeerError) as caught:
            worker.write((kind,), 4)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    worker.close()
    assert worker._process.returncode is not None


def test_wrong_answers_of_a_worker(tmp_path):
    worker = fake_worker(tmp_path)
    for kind, complaint in {
        5: "wrote 1 tokens, expected 4",
        6: "expected token ids",
        7: "counted 0 model calls for 4 tokens",
        11: "counted 5 model calls for 4 tokens",
        8: "timed 9 of 4 tokens",
        9: "took -1.0 seconds",
        10: "took nan seconds",
    }.items():
        with pytest.raises(PeerError, match=complaint):
            worker.write((kind,), 4)
    assert worker.write((42,), 4).calls == 2
    worker.close()


def test_a_worker_that_hangs_is_ended(tmp_path):
    worker = fake_worker(tmp_path, timeouts=Timeouts(30, 0.3, 0.3))
    with pytest.raises(PeerError, match=r"said nothing for 0\.3 seconds, and was ended"):
        worker.write((2,), 4)
    worker.close()
    assert worker._process.returncode == -9


@pytest.mark.parametrize(
    ("code", "settings", "complaint"),
    [
        (WORKER, '{"why": "no such thing"}', "ImportError: no such thing"),
        ("print('hello')", "{}", "answered with 'hello', expected a JSON object"),
        ("print('{}')", "{}", "expected versions and threads"),
        ("raise SystemExit('never mind')", "{}", "ended with exit code 1: never mind"),
    ],
)
def test_a_worker_that_cannot_load(tmp_path, code, settings, complaint):
    with pytest.raises(PeerError) as caught:
        fake_worker(tmp_path, settings, code)
    assert complaint in str(caught.value)


def external(tmp_path, **changes):
    peer = External("x", "float32", sys.executable, "none", (), dict, tmp_path / "x.log", QUICK)
    return replace(peer, **changes)


def test_why_an_external_peer_cannot_run(tmp_path):
    assert external(tmp_path, needs=("json", "numpy")).why_not() is None
    reason = external(tmp_path, needs=("json", "no_such_module")).why_not()
    assert reason == f"no_such_module not installed in {sys.executable}"
    reason = external(tmp_path, python="/no/such/python").why_not()
    assert "/no/such/python does not run" in reason
    assert "\n" not in reason
    with pytest.raises(PeerError, match="cannot start /no/such/python: No such file"):
        external(tmp_path, python="/no/such/python").open()

    def refuse():
        raise LookaheadError("the model is of another kind")

    with pytest.raises(PeerError, match="the model is of another kind"):
        external(tmp_path, settings=refuse).open()


class Fake:
    """A peer in this process that takes the seconds it is told."""

    weights = "float32"

    def __init__(self, name, log, *, seconds=1.0, calls=2, reason=None, fails_at=None, text=7):
        self.name, self.log, self.reason, self.text = name, log, reason, text
        self.seconds, self.calls, self.fails_at = seconds, calls, fails_at
        self.facts = Facts({"fake": "1"}, 2)

    def why_not(self):
        return self.reason

    def open(self):
        self.log.append(("open", self.name))
        return self

    def write(self, prompt, num_tokens):
        self.log.append((self.name, prompt))
        if len(self.log) == self.fails_at:
            raise PeerError("fell over")
        return Writing((self.text,) * num_tokens, self.calls, num_tokens - 1, self.seconds)

    def close(self):
        self.log.append(("close", self.name))


TEXTS = (Text("a", "chat", (1,)), Text("b", "code", (2,)))


def run(tmp_path, peers, repeats=2, conditions=None, **options):
    with Store(tmp_path / "out", {"model": "m"} if conditions is None else conditions) as store:
        options = {"num_tokens": 4, "pause": 0, **options}
        failures = measure.measure(peers, TEXTS, store, repeats=repeats, **options)
    return store, failures


def test_peers_take_turns_and_rotate(tmp_path):
    log, steps = [], []
    peers = [Fake(name, log) for name in "xyz"]
    store, failures = run(tmp_path, peers, progress=lambda done, total: steps.append((done, total)))
    assert failures == {}
    # Each is opened and writes one text that does not count.
    assert log[:6] == [step for name in "xyz" for step in (("open", name), (name, (1,)))]
    order = "".join(name for name, _ in log[6:-3])
    assert order == "xyz" + "yzx" + "yzx" + "zxy"
    assert [prompt for _, prompt in log[6:-3]] == [(1,)] * 3 + [(2,)] * 3 + [(1,)] * 3 + [(2,)] * 3
    assert log[-3:] == [("close", name) for name in "xyz"]
    assert steps == [(done, 12) for done in range(13)]
    assert set(store.measured) == {Key(n, t, r) for n in "xyz" for t in "ab" for r in range(2)}


def test_one_that_fails_stops_no_other(tmp_path):
    log, lines = [], []
    peers = [
        Fake("x", log, fails_at=8),  # its third text, the first that counts being a second
        Fake("away", log, reason="not installed"),
        Fake("y", log),
    ]
    store, failures = run(tmp_path, peers, announce=lines.append)
    assert failures == {"away": "not installed", "x": "fell over (b, repetition 0)"}
    assert [key for key in store.measured if key.peer == "x"] == [Key("x", "a", 0)]
    assert lines == [f"{name}: {reason}" for name, reason in failures.items()]
    assert [key for key in store.measured if key.peer == "y"] == [
        Key("y", t, r) for r in range(2) for t in "ab"
    ]
    assert log.count(("close", "x")) == 1
    assert ("open", "away") not in log


def test_what_is_measured_is_not_measured_again(tmp_path):
    log = []
    first, _ = run(tmp_path, [Fake("x", log), Fake("y", log, reason="not yet")], repeats=1)
    log.clear()
    again, failures = run(tmp_path, [Fake("x", log), Fake("y", log)], repeats=1)
    assert failures == {}
    assert {name for name, _ in log} == {"open", "y", "close"}
    assert again.measured.items() > first.measured.items()
    log.clear()
    run(tmp_path, [Fake("x", log), Fake("y", log)], repeats=1)
    assert log == []
    # One repetition more: both are opened, and only the new one is measured.
    run(tmp_path, [Fake("x", log), Fake("y", log)], repeats=2)
    assert [prompt for name, prompt in log if name == "x"] == [(1,), (1,), (2,)]


def test_a_torn_line_is_measured_again(tmp_path):
    log = []
    run(tmp_path, [Fake("x", log)])
    path = tmp_path / "out" / "measurements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    log.clear()
    store, _ = run(tmp_path, [Fake("x", log)])
    assert log[2:-1] == [("x", (2,))]
    assert path.read_bytes().count(b'"measurement"') == whole.count(b'"measurement"')
    assert len(store.measured) == 4


def test_files_of_other_runs_are_refused(tmp_path):
    run(tmp_path, [Fake("x", [])])
    with pytest.raises(LookaheadError, match="with model 'm', this run has 'other'"):
        run(tmp_path, [], conditions={"model": "other"})
    other = Fake("x", [])
    other.facts = Facts({"fake": "2"}, 2)
    with pytest.raises(LookaheadError, match=r"x was measured as fake 1 .* and is fake 2 "):
        run(tmp_path, [other], repeats=3)
    path = tmp_path / "out" / "measurements.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for broken in ('{"row": "measurement", "peer": "x"}\n', "nonsense\n", '{"row": "other"}\n'):
        path.write_text(lines[0] + broken)
        with pytest.raises(LookaheadError, match="line 2: expected a row of this benchmark"):
            run(tmp_path, [])
    path.write_text(lines[1])
    with pytest.raises(LookaheadError, match="line 1"):
        run(tmp_path, [])


def test_the_figures_of_the_table(tmp_path):
    log = []
    seconds = {"ordinary": [3.0, 6.0], "lookahead": [1.5, 1.5], "other": [6.0, 6.0]}
    peers = [Fake("ordinary", log, calls=4), Fake("lookahead", log, calls=2), Fake("other", log)]
    peers += [Fake("away", log, reason="not installed")]
    with Store(tmp_path, {}) as store:
        for peer in peers[:3]:
            store.describe(peer.name, "float32", peer.facts)
            for repetition, text in ((r, text) for r in range(2) for text in TEXTS):
                tokens = (7, 7, 8, 7) if (peer.name, text.id) == ("other", "b") else (7,) * 4
                writing = Writing(tokens, peer.calls, 3, seconds[peer.name][repetition])
                store.add(Key(peer.name, text.id, repetition), writing)
        found = table.rows(
            *(peers, TEXTS, store, 3, {"away": "not installed"}),
            reference="ordinary",
            ours="lookahead",
        )
    rows = {row.name: row for row in found}
    assert list(rows) == ["ordinary", "lookahead", "other", "away"]
    assert [rows[name].tokens_per_call for name in seconds] == [1, 2, 2]
    assert rows["ordinary"].token_seconds.median == 1.5  # of 3 / 3 and 6 / 3 seconds
    assert rows["ordinary"].ratio.median == (0.5 + 0.25) / 2
    assert (rows["lookahead"].ratio.low, rows["lookahead"].ratio.high) == (1, 1)
    assert rows["other"].ratio.median == 0.25
    assert rows["lookahead"].partings == ()
    assert rows["other"].partings == (table.Parting("b", 2),)
    assert all(rows[name].repetitions == 2 for name in seconds)
    assert rows["other"].versions == {"fake": "1"}
    assert table.cells(rows["ordinary"]) == (
        *("ordinary", "float32", "1.00", "1500.0 (1250.0 - 1750.0)"),
        *("0.38 (0.31 - 0.44)", "2 of 2"),
    )
    assert table.cells(rows["other"])[-1] == "1 of 2"
    assert table.cells(rows["away"]) == ("away", "float32", "-", "-", "-", "-")
    assert table.notes(found) == [
        "other writes another text: b from token 2",
        "away: not installed",
    ]
    written = json.loads(json.dumps([table.as_json(row) for row in found]))
    assert written[0]["token_ms"]["median"] == 1500
    assert written[2]["partings"] == [{"prompt": "b", "index": 2}]
    assert written[3]["reason"] == "not installed"


def bits(params):
    return {
        jax.tree_util.keystr(path): np.asarray(leaf).tobytes()
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


@pytest.mark.parametrize("name", ["tiny", "tiny-bytes"])
def test_exports_load_back_as_they_were(tmp_path, request, name):
    """An untied head and grouped heads in the one, a tied head in the other."""
    lm = request.getfixturevalue(name) if name == "tiny" else load_model(name)
    weights = Weights(lm, tmp_path)
    path, directory = weights.gguf(), weights.hugging_face()
    assert (weights.gguf(), weights.hugging_face()) == (path, directory)
    for place in (path, directory):
        loaded = load_model(place, progress=lambda done, total: None)
        norm = loaded.forward.config.norm
        assert np.float32(norm.epsilon) == np.float32(lm.forward.config.norm.epsilon)
        but_for_rounding = replace(loaded.forward.config, norm=lm.forward.config.norm)
        assert but_for_rounding == lm.forward.config
        assert bits(loaded.params) == bits(lm.params)
    assert file_type(path) == "F32"


def test_what_cannot_be_compared_says_so(tmp_path, toy):
    assert export.why_not(toy) == "the comparison covers Llama models without rope scaling"
    half = load_model(trace_files.TINY_MODEL, dtype="bfloat16", progress=lambda done, total: None)
    assert export.why_not(half) == "the comparison is in float32, the model is in bfloat16"
    for write in (export.write_gguf, export.write_hugging_face):
        with pytest.raises(LookaheadError, match="is in bfloat16"):
            write(half, tmp_path / "x")


def test_half_an_export_is_not_used(tmp_path, tiny, monkeypatch):
    weights = Weights(tiny, tmp_path)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(export, "save_file", full)
        for _ in range(2):
            with pytest.raises(LookaheadError, match=r"cannot write the weights to .* No space"):
                weights.hugging_face()
    assert load_model(weights.hugging_face()).vocab_size == tiny.vocab_size


def test_the_official_schedule_makes_the_recorded_model_calls(tiny):
    """From the recorded window, and from one that the package draws in the authors' way."""
    names = ("tiny_greedy_short3_w5n3g5_pool0_m64", "tiny_greedy_two_w5n3g5_pool0_m64")
    runs = [trace_files.trace(name) for name in names]
    for trace in runs:
        draw = ours.lade_first_level(trace["W"], trace["N"], trace["python_seed"])
        assert draw(trace["prompt_ids"]) == trace["init_window"]
    recordings = [recording_of(trace) for trace in runs]
    agreements = official.compare(tiny, recordings)
    assert all(each.exact for each in agreements)
    assert [each.calls for each in agreements] == [t["final"]["n_forward"] for t in runs]
    other = replace(recordings[0], calls=recordings[0].calls + 1)
    near, far = agreements[0], replace(agreements[0], recording=other)
    counted = official.as_json([near, far])
    assert counted["same_calls_pool_from_window"] == [1, 2]
    assert counted["same_text"] == [2, 2]
    assert counted["same_calls_pool_from_prompt"] == [0, 0]
    assert [each["the same"] for each in counted["runs"]] == ["yes", "text"]


def test_no_token_stops_our_texts(tiny):
    prompt = tuple(range(3, 20))
    golden = autoregressive.generate(tiny, prompt, max_new_tokens=8, stop_tokens=()).tokens
    peer = ours.Ours("ordinary", replace(tiny, stop_tokens=(golden[2],)), ours.ordinary())
    written = peer.write(prompt, 8)
    assert (written.tokens, written.calls, written.timed_tokens) == (golden, 8, 8)
    assert peer.facts.threads >= 1


def recording_of(trace):
    final = trace["final"]
    return official.Recording(
        prompt=trace["prompt_name"],
        configuration=(trace["W"], trace["N"], trace["G"], bool(trace["pool_from_prompt"])),
        prompt_tokens=tuple(trace["prompt_ids"]),
        first_level=tuple(trace["init_window"]),
        stop_tokens=() if trace["eos_token_id"] is None else (trace["eos_token_id"],),
        max_new_tokens=trace["max_new_tokens"],
        output=tuple(final["output_ids"]),
        tokens=final["n_generated"],
        calls=final["n_forward"],
        smallest_gap=final["min_gap"],
    )


def test_recordings_are_read(tmp_path):
    name = "smollm2_greedy_json_w7n5g7_pool0_m128"
    trace = trace_files.trace(name)
    rows = {"json": {"W7N5G7pool0": trace_files.compression()["json"]["W7N5G7pool0"]}}
    (tmp_path / "smollm2_compression.json").write_text(json.dumps({"rows": rows}))
    with pytest.raises(LookaheadError, match=f"cannot read .*{name}.json: No such file"):
        official.read_recordings(tmp_path)
    (tmp_path / "traces_smollm2").mkdir()
    (tmp_path / "traces_smollm2" / f"{name}.json").write_text(json.dumps(trace))
    assert official.read_recordings(tmp_path) == [recording_of(trace)]
    (tmp_path / "smollm2_compression.json").write_text('{"rows": {"json": {"W7": []}}}')
    with pytest.raises(LookaheadError, match="expected the recorded runs"):
        official.read_recordings(tmp_path)


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    row = {"id": "init", "category": "code", "turns": ["def __init__("], "continues": True}
    path.write_text(json.dumps(row))
    return str(path)


def invoke(*arguments):
    app = typer.Typer()
    app.command()(program.main)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_program_from_end_to_end(tmp_path, prompts):
    """Ours on the smallest model; a peer without its package says so."""
    output = tmp_path / "out"
    arguments = ["--model", "tiny-bytes", "--prompts", prompts, "--max-new-tokens", 12]
    arguments += ["--window", 3, "--ngram", 3, "--guesses", 3, "--repeats", 1]
    arguments += [part for name in ("ordinary", "official", "lade") for part in ("--only", name)]
    result = invoke(*arguments, "--output", output, "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((output / "results.json").read_text())
    rows = {row["peer"]: row for row in record["peers"]}
    assert list(rows) == ["ordinary", "official", "lade"]
    assert rows["ordinary"]["tokens_per_call"] == 1
    assert rows["official"]["tokens_per_call"] >= 1
    assert rows["official"]["partings"] == []
    assert rows["official"]["our_lookahead_over_it"] is None  # it was not asked for
    if importlib.util.find_spec("lade") is None:
        assert "lade" in rows["lade"]["reason"]
        assert "lade: lade" in (output / "report.md").read_text()
    assert record["conditions"]["texts"] == ["init"]
    written = [json.loads(line) for line in (output / "measurements.jsonl").open()]
    prompt = tuple(load_model("tiny-bytes").tokenizer.encode("def __init__("))
    golden = autoregressive.generate(
        load_model("tiny-bytes"), prompt, max_new_tokens=12, stop_tokens=()
    )
    texts = [row["tokens"] for row in written if row["row"] == "measurement"]
    assert texts == [list(golden.tokens)] * 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--only", "vllm"], "no peer 'vllm': expected one of ordinary, lookahead"),
        (["--venv", "lade"], "--venv takes PACKAGE=DIRECTORY"),
        (["--venv", "vllm=/tmp"], "--venv takes PACKAGE=DIRECTORY"),
        (["--venv", "lade=/no/such"], "/no/such is no virtual environment"),
        (["--reference", "/no/such"], "cannot read /no/such/smollm2_compression.json"),
        (["--max-new-tokens", "4000"], "512"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, prompts, arguments, complaint):
    common = ["--model", "tiny-bytes", "--prompts", prompts, "--output", tmp_path / "out"]
    result = invoke(*common, *arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert result.output.startswith("error: ")
    assert len(result.output.splitlines()) == 1


def test_all_names_are_there(tmp_path, tiny):
    weights = Weights(tiny, tmp_path)
    setting = contenders.Setting(
        *(weights, weights.gguf(), contenders.SMALL_POINT, 64, {}, tmp_path, QUICK)
    )
    peers = contenders.all_peers(setting)
    assert tuple(peer.name for peer in peers) == contenders.NAMES
    assert peers[-1].weights == "F32"
    assert json.loads(json.dumps(dict(peers[-2].settings())))["path"] == str(weights.gguf())
    lacking = contenders.all_peers(replace(setting, source=None))[-1]
    assert (lacking.weights, lacking.why_not()) == ("-", "the model is no GGUF file")
    chosen = contenders.chosen(peers, ["lade", "ordinary"])
    assert [peer.name for peer in chosen] == ["ordinary", "lade"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("name", [contenders.TRANSFORMERS, contenders.PROMPT_LOOKUP])
def test_transformers_write_our_text(tmp_path, tiny, name):
    weights = Weights(tiny, tmp_path)
    setting = contenders.Setting(
        *(weights, None, contenders.SMALL_POINT, 64, {}, tmp_path, Timeouts())
    )
    peer = contenders.chosen(contenders.all_peers(setting), [name])[0]
    assert peer.why_not() is None
    session = peer.open()
    prompt = tuple(range(3, 20)) * 2
    found = session.write(prompt, 24)
    session.close()
    golden = autoregressive.generate(tiny, prompt, max_new_tokens=24, stop_tokens=())
    assert found.tokens == golden.tokens
    if name == contenders.TRANSFORMERS:
        assert (found.calls, found.timed_tokens) == (24, 23)
    else:
        assert found.calls < 24
