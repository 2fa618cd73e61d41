"""The check for GPUs on a CPU, with tiny shapes: budget, record, command. None asserts a time."""

import dataclasses
import json
import signal

import checkout
import jax
import pytest
import trace_files
import typer

from lookahead_jax import Greedy, LookaheadConfig, Sample
from lookahead_jax.attention import PallasGPU, Split
from lookahead_jax.errors import LookaheadError

campaign, gpu_check, exactness, plans, rounds, tables = map(
    checkout.benchmark,
    (
        "campaign",
        "gpu_check",
        "gpu_exactness",
        "gpu_plan",
        "gpu_rounds",
        "gpu_tables",
    ),
)

SMALL = LookaheadConfig(2, 3, 2)
CONDITIONS = rounds.Conditions("float32", capacity=96, live=20, calls=2, repeats=2, pause=0.0)


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def working(clock, name, seconds, result=None):
    def run():
        clock.now += seconds
        return dict(result or {"value": name})

    return campaign.Step(name, run)


def run(parts, seconds, clock):
    saved, lines, record = [], [], {"format": "x"}
    campaign.run_parts(
        parts,
        campaign.Budget.start(seconds, clock),
        record,
        save=lambda r: saved.append(json.dumps(r)),
        say=lines.append,
    )
    assert json.loads(saved[-1]) == record
    return record, lines, [json.loads(s) for s in saved]


def test_what_no_longer_fits_is_skipped_with_a_line():
    clock = Clock()
    steps = [working(clock, name, s) for name, s in (("a", 10), ("b", 30), ("c", 1))]
    part = campaign.Part("first", 5, 8, lambda: steps, lambda done: {"ran": list(done)})
    tiny = campaign.Part("tiny", 1, 2, lambda: [working(clock, "d", 1)])
    large = campaign.Part("large", 5, 8, lambda: pytest.fail("it does not fit"))
    record, lines, saved = run([part, large, tiny], 50, clock)
    first, later = record["parts"]["first"], record["parts"]["large"]
    assert first["steps"]["a"] == {"value": "a", "seconds": 10}
    # After a step of 30 seconds the next is believed to take as long, and 10 are left.
    assert first["steps"]["c"] == {"skipped": "about 30 s needed, 10 s left of 0.833 minutes"}
    assert first["ran"] == ["a", "b"]
    assert later["skipped"] == "about 13 s needed, 10 s left of 0.833 minutes"
    assert record["parts"]["tiny"]["steps"]["d"]["value"] == "d"
    assert "large: skipped, about 13 s needed, 10 s left of 0.833 minutes" in lines
    assert campaign.failures(record) == []
    # Every step was on disk before the next one began.
    assert [list(s["parts"]["first"].get("steps", ())) for s in saved[:3]] == [
        [],
        ["a"],
        ["a", "b"],
    ]


def test_a_failure_does_not_take_the_rest_along():
    clock = Clock()

    def fail():
        raise ValueError("what is wrong\nand more")

    def refuse():
        raise LookaheadError("cannot run: expected a CUDA GPU, got cpu")

    def steps():
        return [
            campaign.Step("bad", fail),
            campaign.Step("impossible", refuse),
            working(clock, "good", 1),
        ]

    parts = [
        campaign.Part("shut", 1, 1, refuse),
        campaign.Part("needed", 1, 1, steps, lambda done: {"ran": list(done)}),
        campaign.Part("optional", 1, 1, lambda: steps()[1:], optional=True),
    ]
    record, lines, _ = run(parts, 60, clock)
    entry = record["parts"]["needed"]
    assert entry["steps"]["bad"]["error"] == "ValueError: what is wrong"
    assert any("in fail" in line for line in entry["steps"]["bad"]["traceback"])
    assert entry["ran"] == ["good"]
    assert campaign.failures(record) == [
        "shut: cannot: cannot run: expected a CUDA GPU, got cpu",
        "needed, bad: error: ValueError: what is wrong",
        "needed, impossible: cannot: cannot run: expected a CUDA GPU, got cpu",
    ]
    assert "needed, good: done in 1.0 s" in lines


def test_a_record_replaces_the_one_before_it_whole(tmp_path, monkeypatch):
    path = tmp_path / "new" / "gpu_check.json"
    campaign.write_json({"a": 1}, path)
    with pytest.raises(TypeError):
        campaign.write_json({"a": object()}, path)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_plan_is_in_order_of_worth_and_fits_its_capacity():
    plan = plans.Plan()
    names = [part.name for part in plans.parts_of(plan)]
    assert names[:3] == ["exactness", "rounds, llama-3.2-1b", "rounds, llama-3.1-8b"]
    # A kernel that fails can take the device along.
    assert [n for n in names if "kernels" in n] == names[-3:]
    assert {point.config.num_rows for point in plan.grid} >= {4, 8, 16, 56, 120, 240}
    assert {type(case.attention) for case in plan.kernel_cases} == {PallasGPU}
    attentions = {case.attention for case in plan.cases}
    assert attentions == {None, Split(64)}
    for attention in attentions:
        kinds = {type(case.sampling) for case in plan.cases if case.attention == attention}
        assert kinds == {Greedy, Sample}
    assert len({case.config for case in plan.cases}) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shapes": ("llama-9",)}, "no shape named 'llama-9'"),
        ({"conditions": rounds.Conditions(capacity=256, live=200)}, "capacity of at least 285 for"),
        ({"conditions": rounds.Conditions(dtype="int3")}, "expected a dtype of .*, got 'int3'"),
    ],
)
def test_a_plan_that_is_not_usable_says_why(change, message):
    with pytest.raises(LookaheadError, match=message):
        plans.parts_of(dataclasses.replace(plans.Plan(), **change))


@pytest.fixture(scope="module")
def whole():
    """A check of everything, and what was saved on the way."""
    model, saved = str(trace_files.TINY_MODEL), []
    plan = plans.Plan(
        model=model,
        max_new_tokens=16,
        cases=(exactness.Case(Split(64), Greedy(), SMALL),),
        shapes=(model,),
        conditions=CONDITIONS,
        grid=(rounds.Point(SMALL),),
        compared=(),
        kernel_cases=(exactness.Case(PallasGPU(), Greedy(), SMALL),),
        kernel_rounds=(),
    )
    budget = campaign.Budget.start(3600)
    return gpu_check.check(plan, budget, save=lambda r: saved.append(json.dumps(r))), saved


def test_a_whole_check_and_its_record(whole):
    record, saved = whole
    assert record["format"] == "gpu-check/1"
    assert record["passed"] is True
    assert not record["interrupted"]
    assert json.loads(saved[-1]) == record
    assert len(saved) > 6
    assert {"date", "commit", "device", "driver", "versions", "rounds"} < set(record["conditions"])
    first, _, kernels = record["parts"].values()
    assert first["exact"] is True
    assert first["steps"]["precision of products"]["float32_is_float32"]
    (refused,) = kernels["steps"].values()
    assert "expected a CUDA GPU, got cpu" in refused["cannot"]
    shown = list(tables.tables(record))
    assert [table.row_count for table in shown] == [2, 5, 0]
    assert "expected a CUDA GPU" in shown[2].caption


def test_a_step_and_a_round_make_the_record_of_a_part(whole):
    _, part, _ = whole[0]["parts"].values()
    ordinary, point = part["steps"].values()
    assert ordinary["weights_bytes"] > 0
    assert ordinary["memory"]["predicted_bytes"] > 0
    assert ordinary["memory"]["reason"] == "the device does not count its memory"
    assert (point["rows"], point["logit_rows"]) == (8, 7)
    assert set(point["milliseconds"]) == {"ordinary step", "round"}
    low, high = point["ratio"]["quartiles"]
    assert 0 < low <= point["ratio"]["median"] <= high
    assert part["most_rows"] == 8
    assert set(part["rows_at_ratio"]) == {"1.1", "1.5", "2.0"}


SAME = {"mismatches": [], "texts": 1, "identical": 1, "tokens_per_call": 1.0}
TEXT = {"prompt": "p", "index": 2, "lookahead": 5, "ordinary": 6, "gap": 0.25}


def with_steps(monkeypatch, *results):
    """A check whose exactness part has these results, and whose rounds are interrupted."""
    steps = [campaign.Step(f"case {i}", lambda r=r: {**r}) for i, r in enumerate(results)]

    def cut(*args):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(
        plans, "precision", lambda lm: {"float32_is_float32": True, "relative_error": 1e-7}
    )
    monkeypatch.setattr(plans, "exactness_steps", lambda *args: steps)
    monkeypatch.setattr(plans, "round_steps", cut)


@pytest.fixture
def command(tmp_path, capsys):
    def run(**options):
        chosen = {
            "model": str(trace_files.TINY_MODEL),
            "output": tmp_path,
            "allow_cpu": True,
        }
        with pytest.raises(typer.Exit) as stop:
            gpu_check.main(**chosen | options)
        return stop.value.exit_code, capsys.readouterr(), tmp_path / "gpu_check.json"

    return run


def test_an_interrupt_leaves_what_was_done(monkeypatch, command):
    """SIGTERM is what `timeout` sends."""
    with_steps(monkeypatch, SAME)
    before = signal.getsignal(signal.SIGTERM)
    code, told, path = command()
    assert code == 130
    assert "passed; the record is" in told.err
    assert signal.getsignal(signal.SIGTERM) is before
    record = json.loads(path.read_text())
    assert record["interrupted"]
    assert record["parts"]["exactness"]["exact"] is True
    assert record["parts"]["exactness"]["steps"]["case 0"]["identical"] == 1
    assert list(record["parts"]) == ["exactness", "rounds, llama-3.2-1b"]


def test_the_exit_code_tells_whether_a_text_differs(monkeypatch, command, capsys):
    monkeypatch.setattr(gpu_check, "parts_of", lambda plan: plans.parts_of(plan)[:1])
    with_steps(monkeypatch, SAME, SAME | {"mismatches": [TEXT], "identical": 0})
    code, told, path = command(as_json=True)
    assert code == 1
    assert "NOT PASSED; the record is" in told.err
    assert json.loads(told.out) == json.loads(path.read_text())
    with_steps(monkeypatch, SAME, None)  # it raises
    code, told, path = command()
    assert code == 1
    assert "exactness, case 1: error: TypeError" in told.err
    assert json.loads(path.read_text())["parts"]["exactness"]["exact"] is True
    with_steps(monkeypatch, SAME)
    gpu_check.main(model=str(trace_files.TINY_MODEL), output=path.parent, allow_cpu=True)
    assert json.loads(path.read_text())["passed"] is True
    shown = capsys.readouterr()
    assert "1 of 1" in shown.out
    assert "passed; the record is" in shown.err
    code, told, path = command(minutes=0.0, as_json=True)
    assert code == 1
    assert "nothing was compared; the record is" in told.err
    assert "skipped" in json.loads(told.out)["parts"]["exactness"]


def no_device():
    raise AssertionError


def test_the_command_wants_a_gpu_and_a_directory(command, tmp_path, monkeypatch):
    code, told, path = command(allow_cpu=False)
    assert code == 2
    assert told.err == (
        "error: expected a GPU, jax has 'cpu' (cpu); --allow-cpu runs it all the same\n"
    )
    assert not path.exists()
    monkeypatch.setattr(jax, "default_backend", no_device)
    code, told, path = command(allow_cpu=False)
    assert code == 2
    assert told.err.startswith("error: expected a GPU, jax has no device: no platform was found;")
    file = tmp_path / "file"
    file.touch()
    code, told, path = command(output=file)
    assert code == 2
    assert told.err.startswith(f"error: expected a directory for the record, got {file}: ")
    assert told.err.count("\n") == 1
    code, told, path = command(shape=["nothing"])
    assert code == 2
    assert told.err.startswith("error: no shape named 'nothing'")
    assert told.err.count("\n") == 1
    assert not path.exists()
