"""The profile of a round: scopes from a program's text, times from a trace, real and made up."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.profiler import ProfileData
from rich.console import Console

from lookahead_jax import Greedy, LookaheadConfig
from lookahead_jax.batch import Batch, Request
from lookahead_jax.bench.hlo_scopes import OTHER, SCOPES, Program
from lookahead_jax.bench.profiling import Shares, markdown, shares, table, trace
from lookahead_jax.bench.records import Point
from lookahead_jax.errors import LookaheadError
from lookahead_jax.generation import Lookahead
from lookahead_jax.options import Settings
from lookahead_jax.programs import compiled
from lookahead_jax.sampling import Policy

TEXT = """HloModule jit_advance, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%fused_forward (param_0: f32[4]) -> f32[4] {
  %param_0 = f32[4]{0} parameter(0)
  ROOT %multiply.1 = f32[4]{0} multiply(%param_0, %param_0), metadata={op_name="mul"}
}

%fused_mixed (param_1: f32[4]) -> f32[4] {
  %param_1 = f32[4]{0} parameter(0)
  %gather.1 = f32[4]{0} negate(%param_1), metadata={op_name="jit(advance)/while/body/lookup/neg"}
  %gather.2 = f32[4]{0} negate(%gather.1), metadata={op_name="jit(advance)/while/body/lookup/neg"}
  ROOT %add.9 = f32[4]{0} add(%gather.2, %param_1), metadata={op_name="jit(advance)/while/body/pack/add"}
}

%fused_nameless (param_2: f32[4]) -> f32[4] {
  %param_2 = f32[4]{0} parameter(0)
  %add.5 = f32[4]{0} add(%param_2, %param_2), metadata={op_name="jit(advance)/while/body/verify/add"}
  ROOT %copy.5 = f32[4]{0} copy(%add.5)
}

%inner_body (arg.1: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg.1 = (s32[], /*index=1*/f32[4]{0}) parameter(0)
  %gte.1 = f32[4]{0} get-tuple-element(%arg.1), index=1
  %gte.2 = s32[] get-tuple-element(%arg.1), index=0
  %custom.1 = f32[4]{0} fusion(%gte.1), kind=kCustom, calls=%fused_forward, metadata={op_name="cond/branch_0_fun/while/body/mul"}
  ROOT %tuple.1 = (s32[], f32[4]{0}) tuple(%gte.2, %custom.1)
}

%inner_condition (arg.2: (s32[], f32[4])) -> pred[] {
  %arg.2 = (s32[], f32[4]{0}) parameter(0)
  %gte.3 = s32[] get-tuple-element(%arg.2), index=0
  ROOT %compare.1 = pred[] compare(%gte.3, %gte.3), direction=LT
}

%body (arg.3: (pred[], f32[4])) -> (pred[], f32[4]) {
  %arg.3 = (pred[], f32[4]{0}) parameter(0)
  %gte.4 = f32[4]{0} get-tuple-element(%arg.3), index=1
  %mixed = f32[4]{0} fusion(%gte.4), kind=kLoop, calls=%fused_mixed, metadata={op_name="jit(advance)/while/body/pack/add" stack_frame_id=3}
  %copy.1 = f32[4]{0} copy(%mixed)
  %tuple.2 = (s32[], f32[4]{0}) tuple(%constant.1, %copy.1)
  %while.1 = (s32[], f32[4]{0}) while(%tuple.2), condition=%inner_condition, body=%inner_body, metadata={op_name="jit(advance)/while/body/forward/Decoder/pack/while"}
  %gte.5 = f32[4]{0} get-tuple-element(%while.1), index=1
  %nameless = f32[4]{0} fusion(%gte.5), kind=kLoop, calls=%fused_nameless
  %copy.2 = f32[4]{0} copy(%gte.4)
  %write = f32[4]{0} add(%copy.2, %nameless), metadata={op_name="jit(advance)/while/body/insert/scatter"}
  %count = pred[] compare(%write, %write), direction=LT, metadata={op_name="jit(advance)/while/body/and"}
  ROOT %tuple.3 = (pred[], f32[4]{0}) tuple(%count, %write)
}

%condition (arg.4: (pred[], f32[4])) -> pred[] {
  %arg.4 = (pred[], f32[4]{0}) parameter(0)
  ROOT %gte.6 = pred[] get-tuple-element(%arg.4), index=0
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %copy.9 = f32[4]{0} copy(%x.1)
  %while.2 = (pred[], f32[4]{0}) while(%copy.9), condition=%condition, body=%body, metadata={op_name="jit(advance)/while"}
  ROOT %gte.7 = f32[4]{0} get-tuple-element(%while.2), index=1
}
"""  # noqa: E501


def test_an_instruction_has_the_scope_of_its_name_or_of_what_is_next_to_it():
    program = Program.parse(TEXT)
    assert program.module == "jit_advance"
    assert program.containers == {"while.1", "while.2"}
    expected = {
        "mixed": "pack",  # the root's, though more of it is lookup
        "while.1": "forward",  # the outermost: a layer of a model may be called pack, too
        "custom.1": "forward",  # by the loop that it is in
        "multiply.1": "forward",  # by the loop of the fusion
        "compare.1": "forward",
        "nameless": "verify",  # by what it fuses
        "copy.2": "insert",  # by what uses it
        "copy.1": "pack",  # nothing but a tuple uses it: by what it copies
        "count": OTHER,
        "while.2": OTHER,
        "copy.9": OTHER,
    }
    assert {name: program.scopes[name] for name in expected} == expected


def test_a_text_that_is_no_program():
    with pytest.raises(LookaheadError, match="begins with HloModule, found 'jit_advance'"):
        Program.parse("jit_advance")


def made_up(path, *planes):
    """A trace of planes {name: lines}, lines {name: events}, events (name, begin, end, stats)."""
    text = []
    for name, lines in planes:
        events, stats, body = {}, {}, []
        for number, (line, entries) in enumerate(lines):
            body.append(f'lines {{ id: {number} name: "{line}" timestamp_ns: 500')
            for what, begin, end, values in entries:
                key = events.setdefault(what, len(events) + 1)
                inner = ""
                for stat, value in values.items():
                    at = stats.setdefault(stat, len(stats) + 1)
                    kind = (
                        f'str_value: "{value}"'
                        if isinstance(value, str)
                        else f"int64_value: {value}"
                    )
                    inner += f" stats {{ metadata_id: {at} {kind} }}"
                body.append(
                    f"events {{ metadata_id: {key} offset_ps: {begin}000000"
                    f" duration_ps: {end - begin}000000{inner} }}"
                )
            body.append("}")
        for kind, names in (("event_metadata", events), ("stat_metadata", stats)):
            body += [
                f'{kind} {{ key: {key} value {{ id: {key} name: "{what}" }} }}'
                for what, key in names.items()
            ]
        text += [f'planes {{ name: "{name}"', *body, "}"]
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace("\n".join(text)))
    return path


def op(name, begin, end, module="jit_advance", **stats):
    """An event of a CPU or GPU; microseconds."""
    return name, begin, end, {"hlo_op": name, "hlo_module": module, **stats}


def microseconds(found):
    return {name: round(s * 1e6, 3) for name, s in found.seconds.items() if s}


def test_times_are_own_times_and_only_of_the_program(tmp_path):
    issuing = [
        op("while.2", 0, 100),
        ("ThunkExecutor::Execute", 1, 99, {}),
        op("mixed", 2, 12),
        op("while.1", 12, 60),  # forward: what it runs, and not the 8 that it takes besides
        op("custom.1", 20, 60),
        op("nameless", 60, 70),
        op("count", 80, 84),
        op("custom.1", 84, 99, module="jit_start"),
    ]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", [("a", issuing)]))
    found = shares(path, TEXT, rounds=2, wall=1e-3)
    assert microseconds(found) == {"pack": 10, "forward": 40, "verify": 10, "other": 4}
    assert found.total == pytest.approx(64e-6)
    assert found.span == pytest.approx(82e-6)  # from `mixed` to `count`
    assert sum(map(found.share, found.seconds)) == pytest.approx(1)
    assert found.share("forward") == pytest.approx(40 / 64)
    assert (found.rounds, found.wall) == (2, 1e-3)


def test_an_operation_within_another_is_not_counted_twice(tmp_path):
    events = [op("write", 0, 20), op("mixed", 5, 10), op("nameless", 12, 14)]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", [("a", events)]))
    found = shares(path, TEXT, rounds=1)
    assert microseconds(found) == {"insert": 13, "pack": 5, "verify": 2}
    assert found.total == pytest.approx(found.span)


def test_what_runs_at_the_same_time_shares_it(tmp_path):
    lines = [
        ("a", [op("mixed", 0, 10, _p=7), ("end: mixed", 30, 31, {"_c": 7}), op("write", 20, 40)]),
        ("b", [op("nameless", 20, 40)]),
    ]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", lines))
    # `mixed` goes on until 30 on other threads: alone to 20, then as one of three.
    expected = {"pack": 20 + 10 / 3, "insert": 10 / 3 + 5, "verify": 10 / 3 + 5}
    found = shares(path, TEXT, rounds=1)
    assert microseconds(found) == pytest.approx(expected, abs=1e-3)
    assert found.total == pytest.approx(found.span)


def test_devices_of_one_host_are_apart_and_their_mean_counts(tmp_path):
    events = [
        op("mixed", 0, 10, device_ordinal=0),
        op("mixed", 10, 30, device_ordinal=1),
        op("nameless", 30, 34, device_ordinal=1),
    ]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", [("a", events)]))
    found = shares(path, TEXT, rounds=1)
    assert microseconds(found) == {"pack": 15, "verify": 2}
    assert found.span == pytest.approx((10 + 24) / 2 * 1e-6)


def test_a_gpu_has_kernels_on_streams(tmp_path):
    kernel = {"hlo_op": "custom.1", "hlo_module": "jit_advance"}
    device = [
        ("Stream #13(Compute)", [("gemm_128x64", 0, 90, kernel), op("write", 90, 100)]),
        ("XLA Modules", [("jit_advance", 0, 100, {})]),
        ("Framework Name Scope", [op("custom.1", 0, 100)]),
    ]
    host = [("python", [op("custom.1", 0, 2), op("write", 2, 4)])]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", host), ("/device:GPU:0", device))
    assert microseconds(shares(path, TEXT, rounds=1)) == {"forward": 90, "insert": 10}


def test_a_tpu_has_instructions_within_modules(tmp_path):
    def instruction(name, begin, end):
        return f"%{name} = f32[4]{{0}} fusion(%x)", begin, end, {"hlo_category": "fusion"}

    device = [
        ("Steps", [("1", 0, 200, {})]),
        ("XLA Modules", [("jit_start(7)", 0, 100, {}), ("jit_advance(8)", 100, 200, {})]),
        (
            "XLA Ops",
            [
                instruction("custom.1", 0, 100),
                instruction("while.2", 100, 200),
                instruction("custom.1", 110, 170),
                instruction("write", 170, 190),
            ],
        ),
        ("Async XLA Ops", [instruction("mixed", 100, 200)]),
        ("Anything else", [instruction("mixed", 100, 200)]),
    ]
    path = made_up(tmp_path / "t.xplane.pb", ("/device:TPU:0", device))
    assert microseconds(shares(path, TEXT, rounds=1)) == {"forward": 60, "insert": 20}


def test_traces_that_cannot_be_read(tmp_path):
    missing = tmp_path / "none.xplane.pb"
    with pytest.raises(LookaheadError, match=r"there is no file .*none\.xplane\.pb"):
        shares(missing, TEXT, rounds=1)
    garbage = tmp_path / "garbage.xplane.pb"
    garbage.write_text("not a trace")
    with pytest.raises(LookaheadError, match="cannot read"):
        shares(garbage, TEXT, rounds=1)
    foreign = [("a", [op("mixed", 0, 9, module="jit_start"), op("unheard.1", 0, 9)])]
    path = made_up(tmp_path / "t.xplane.pb", ("/host:CPU", foreign))
    with pytest.raises(LookaheadError, match="operations of the program jit_advance") as error:
        shares(path, TEXT, rounds=1)
    assert "\n" not in str(error.value)


def test_a_directory_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LookaheadError, match="cannot make"):
        trace(tmp_path / "file" / "below", lambda: None)


@dataclass(frozen=True)
class Laborious(Lookahead):
    """Does heavy work that nobody needs, in one of the scopes."""

    scope: str = "insert"

    def step(self, state, params, forward):
        state = super().step(state, params, forward)
        with jax.named_scope(self.scope):
            x = jnp.full((256, 256), 1e-3) * state.rounds[0].astype(jnp.float32)
            work = sum(jnp.linalg.matrix_power(x + i, 8).sum() for i in range(4))
            return replace(state, rounds=state.rounds + (work == 0.5).astype(jnp.int32))


CONFIG = LookaheadConfig(window_size=4, ngram_size=3, guess_set_size=4)
ROUNDS = 6


@pytest.fixture(scope="module")
def batch(toy):
    decoder = Lookahead(CONFIG, Policy(Greedy(), ()))
    batch = Batch(toy, decoder, Settings(max_new_tokens=ROUNDS * 3, stop_tokens=()))
    batch.start([Request((1, 2, 3, 1, 2))])
    return batch


def profile(batch, directory, decoder=None):
    """A traced run of the loop of `generate`."""
    args = (batch.state, batch.lm.params, np.int32(ROUNDS), np.zeros(1, bool))
    program = replace(batch.program, decoder=decoder or batch.program.decoder)
    call, _ = compiled(program, "advance", *args)
    jax.block_until_ready(call(*args))
    path = trace(directory, lambda: jax.block_until_ready(call(*args)))
    assert path.name.endswith(".xplane.pb")
    assert path.is_relative_to(directory)
    assert (path.parent / "perfetto_trace.json.gz").is_file()
    assert set(Program.parse(call.as_text()).scopes.values()) == {*SCOPES, OTHER}
    return shares(path, call.as_text(), rounds=ROUNDS)


@pytest.fixture(scope="module")
def plain(batch, tmp_path_factory):
    return profile(batch, tmp_path_factory.mktemp("plain"))


def test_the_scopes_of_real_rounds(plain):
    assert set(plain.seconds) == {*SCOPES, OTHER}
    assert sum(map(plain.share, plain.seconds)) == pytest.approx(1)
    # What looks up and packs may be fused into what uses it.
    assert min(plain.seconds[x] for x in ("forward", "verify", "commit", "insert", "advance")) > 0
    assert plain.share(OTHER) < 0.5  # little, were it not that a thread may have to wait anywhere
    assert 0 < plain.total <= plain.span


@pytest.mark.parametrize(("scope", "another"), [("insert", "lookup"), ("lookup", "insert")])
def test_heavy_work_shows_in_its_scope(scope, another, batch, tmp_path):
    decoder = Laborious(CONFIG, Policy(Greedy(), ()), scope=scope)
    heavy = profile(batch, tmp_path, decoder)
    assert heavy.share(scope) > 0.8
    assert heavy.share(another) < 0.1


def test_only_one_trace_at_a_time(tmp_path):
    def another():
        trace(tmp_path / "inner", lambda: None)

    with pytest.raises(LookaheadError, match="cannot take a trace"):
        trace(tmp_path / "outer", another)
    # What has failed has ended its trace: the next one can be taken.
    assert trace(tmp_path / "next", lambda: None).is_file()


def test_tables():
    points = {
        Point(7, 5, 7): Shares(
            {**dict.fromkeys((*SCOPES, OTHER), 0.0), "forward": 0.9998, "pack": 0.0002},
            rounds=100,
            span=1.5,
            wall=2.0,
        ),
        Point(3, 3, 3): Shares(
            {**dict.fromkeys((*SCOPES, OTHER), 0.25), "forward": 2.0}, rounds=10, span=3.75
        ),
    }
    lines = markdown(points).splitlines()[4:]
    assert len(lines) == 4
    assert len({line.count("|") for line in lines}) == 1
    cells = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert cells == [
        *("W=7 N=5 G=7", "0.0%", "<0.1%", "100.0%", *["0.0%"] * 5),
        *("10.0", "5.00"),
    ]
    assert lines[3].endswith("| 375 | 0 |")
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table(points))
    assert "53.3%" in shown.get()
    for name in (*SCOPES, OTHER):
        assert name in shown.get()
