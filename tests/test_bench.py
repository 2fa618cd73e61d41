"""What a benchmark measures, keeps and adds up. No test depends on how fast anything is."""

import json
from dataclasses import asdict, replace

import fakes
import jax
import pytest
import reference

from lookahead_jax import LookaheadConfig, LookaheadError, Sample, generate, make_mesh
from lookahead_jax.bench import measure_grid, measuring
from lookahead_jax.bench.grid import parse_grid
from lookahead_jax.bench.measuring import Contest, device_rows, measure
from lookahead_jax.bench.prompts import Prompt
from lookahead_jax.bench.records import (
    Compilation,
    Conditions,
    Difference,
    Measurement,
    Point,
)
from lookahead_jax.bench.store import Store, results
from lookahead_jax.bench.summary import summarise
from lookahead_jax.bench.texts import Reader, Task, groups
from lookahead_jax.bench.timing import Spread

POINT = Point(3, 4, 3)
LIMIT = 24
CONDITIONS = Conditions(
    model="toy",
    dtype="float32",
    device="cpu (2 cores)",
    mesh=None,
    attention="auto",
    policy={"temperature": 0.5},
    prompts="builtin",
    prompts_digest="0123456789ab",
    texts=0,
    batch_size=2,
    max_new_tokens=LIMIT,
    repetitions=2,
    versions={"jax": "0.10.2"},
    commit="abc",
    date="2026-01-02T03:04:05+00:00",
)


def tasks(count, category="letters"):
    return [Task(f"{category}{i}", category, (1, 2 + i, 5, 1, 2 + i)) for i in range(count)]


def contest(lm=None, *, size=2, count=3, **options):
    options = {"max_new_tokens": LIMIT, **options}
    made = groups([*tasks(count), *tasks(1, "other")], size)
    return Contest(lm or fakes.toy_model(), LookaheadConfig(), options, made)  # pyright: ignore


def records(this, point=POINT, places=((0, 0), (0, 1), (0, 2))):
    return list(measure(this, point, this.ordinary(), places))


# ---- grids ---------------------------------------------------------------------------------------


def test_a_grid_is_all_combinations_in_order():
    points = parse_grid("G=7,3 W=5,3,5 N=4")
    assert points == (Point(3, 4, 3), Point(5, 4, 3), Point(3, 4, 7), Point(5, 4, 7))
    assert [points[0].name, str(points[3])] == ["w3n4g3", "W=5 N=4 G=7"]


@pytest.mark.parametrize(
    "text", ["", "W=3 N=4", "W=3 N=4 G=", "W=3 W=4 N=4 G=3", "W=3,x N=4 G=3", "W=3 N=4 G=3 Q=2"]
)
def test_what_is_no_grid(text):
    with pytest.raises(LookaheadError, match="a grid is written"):
        parse_grid(text)


# ---- texts ---------------------------------------------------------------------------------------


def reader(lm, asked, refused=lambda *_: None, limit=LIMIT):
    def answer(tasks):
        asked.append([task.id for task in tasks])
        return [generate(lm, task.tokens, max_new_tokens=limit).tokens for task in tasks]

    return Reader(lm, None, limit, answer, refused)


def chat_model(**changes):
    letters = fakes.Letters()
    return fakes.toy_model(tokenizer=letters, stop_tokens=(letters.END,), **changes)


def test_later_turns_are_asked_after_the_models_own_answers():
    lm, asked = chat_model(), []
    prompts = [
        Prompt("one", "a", ("abc",)),
        Prompt("two", "b", ("bcd", "cde", "f")),
        Prompt("other", "a", ("ghi", "hij")),
    ]
    made = reader(lm, asked).tasks(prompts)
    assert [task.id for task in made] == ["one", "two/1", "two/2", "two/3", "other/1", "other/2"]
    assert asked == [["two/1", "other/1"], ["two/2"]]  # the last answers are not needed
    messages = []
    for task, turn in zip(made[1:4], prompts[1].turns, strict=True):
        messages.append({"role": "user", "content": turn})
        prompt = tuple(lm.tokenizer.encode_chat(messages))
        assert task.tokens == prompt
        said = reference.greedy_generate(fakes.toy_next, prompt, LIMIT, (lm.tokenizer.END,))
        messages.append({"role": "assistant", "content": lm.tokenizer.decode(said)})


def test_what_does_not_fit_is_left_out_with_the_turns_after_it():
    lm, asked, left_out = chat_model(max_length=LIMIT + 30), [], []
    prompts = [
        Prompt("long", "a", ("a" * 40, "b")),
        Prompt("grows", "a", ("abc", "b" * 12, "c")),
        Prompt("short", "b", ("abc",)),
    ]
    made = reader(lm, asked, lambda *told: left_out.append(told)).tasks(prompts)
    assert [task.id for task in made] == ["grows/1", "short"]
    assert [name for name, _ in left_out] == ["long/1", "grows/2"]
    assert all("context" in why for _, why in left_out)
    assert asked == [["grows/1"]]


def test_groups_are_of_one_category():
    mixed = [*tasks(2, "a"), *tasks(1, "b"), *tasks(3, "a")]
    assert [[t.category for t in group] for group in groups(mixed, 2)] == [
        *[["a", "a"]] * 2,
        ["a"],
        ["b"],
    ]


# ---- measuring -----------------------------------------------------------------------------------


def test_measurements_are_those_of_generate_and_both_decoders_run_each_text():
    lm, this = fakes.toy_model(), contest()
    compilation, *found = records(this)
    assert isinstance(compilation, Compilation)
    assert compilation.seconds > 0
    assert compilation.memory_bytes > 1000
    assert (compilation.num_rows, compilation.device_rows) == (18, 18)
    config = this.config_at(POINT)
    assert [(m.repetition, m.group, m.category) for m in found] == [
        (0, 0, "letters"),
        (0, 1, "letters"),
        (0, 2, "other"),
    ]
    for measurement in found:
        group = this.groups[measurement.group]
        alone = [generate(lm, t.tokens, config=config, max_new_tokens=LIMIT) for t in group]
        assert measurement.tokens == tuple(len(result.tokens) for result in alone)
        assert measurement.ordinary_tokens == measurement.tokens
        assert measurement.rounds == tuple(result.stats.rounds for result in alone)
        assert measurement.candidate_rounds == tuple(r.stats.candidate_rounds for r in alone)
        histograms = [result.stats.accepted_histogram for result in alone]
        assert measurement.accepted_histogram == tuple(map(sum, zip(*histograms, strict=True)))
        assert measurement.differences == ()
        assert measurement.seconds > 0 < measurement.ordinary_seconds
    assert sum(sum(m.rounds) for m in found) < sum(sum(m.tokens) for m in found)


def test_who_goes_first_takes_turns_and_what_is_compiled_first_does_not_count(monkeypatch):
    this, order = contest(size=1, count=2), []
    write = measuring.Side.write

    def noted(side, tasks):
        order.append((type(side._batch.program.decoder).__name__[0], tasks[0].id))
        return write(side, tasks)

    monkeypatch.setattr(measuring.Side, "write", noted)
    records(this, places=[(0, 1), (1, 0), (1, 1)])
    assert order == [
        *[("A", "letters1"), ("L", "letters1")],  # a warm-up
        *[("A", "letters1"), ("L", "letters1")],
        *[("A", "letters0"), ("L", "letters0")],
        *[("L", "letters1"), ("A", "letters1")],
    ]


def test_a_text_that_is_not_ordinary_decodings_is_told_with_its_place(monkeypatch):
    this, lm = contest(size=1), fakes.toy_model()
    task = this.groups[1][0]
    text = generate(lm, task.tokens, max_new_tokens=LIMIT).tokens
    write = measuring.Side.write

    def forged(side, tasks):
        written = write(side, tasks)
        if type(side._batch.program.decoder).__name__ != "Lookahead" or tasks[0].id != task.id:
            return written
        (result,) = written.results
        wrong = (*result.tokens[:4], (result.tokens[4] + 1) % 24, *result.tokens[5:])
        return replace(written, results=(replace(result, tokens=wrong),))

    monkeypatch.setattr(measuring.Side, "write", forged)
    _, first, second = records(this, places=[(0, 0), (0, 1)])
    assert first.differences == ()
    (found,) = second.differences
    # The toy model's logits are one for its choice and zero for all else.
    assert found == Difference("letters1", 4, (text[4] + 1) % 24, text[4], gap=1.0)


def test_sampled_texts_are_compared_unless_their_draws_are_others():
    coupled = contest(size=1, count=1, sampling=Sample(temperature=0.7, seed=3))
    _, first, _ = records(coupled, places=[(0, 0), (0, 1)])
    assert first.differences == ()
    lm = fakes.toy_model()
    config = coupled.config_at(POINT)
    alone = generate(lm, coupled.groups[0][0].tokens, config=config, **coupled.options)
    assert first.rounds == (alone.stats.rounds,)
    residual = contest(sampling=Sample(temperature=0.7, seed=3, method="residual"))
    written = measuring.Written((alone,), 1.0)
    other = measuring.Written((replace(alone, tokens=(1, 2)),), 1.0)
    assert measuring._differences(coupled, 0, written, other)
    assert measuring._differences(residual, 0, written, other) is None


def test_several_devices_share_rounds_and_texts():
    lm = fakes.toy_model()
    mesh = make_mesh(data=2, lookahead=2)
    shared = replace(
        lm,
        mesh=mesh,
        params=jax.device_put(
            lm.params, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        ),
    )
    one, two = records(contest(lm, size=2)), records(contest(shared, size=2))
    assert two[0].num_rows == one[0].num_rows > two[0].device_rows
    for a, b in zip(one[1:], two[1:], strict=True):
        assert (a.tokens, a.rounds, a.accepted_histogram) == (
            b.tokens,
            b.rounds,
            b.accepted_histogram,
        )
        assert b.differences == ()


def test_rows_that_are_fed_again_count():
    config = LookaheadConfig(6, 4, 6)
    again = replace(config, kv_exchange="refeed")
    assert device_rows(config, 1) == 36
    assert device_rows(config, 2) < 36
    assert device_rows(again, 2) == device_rows(config, 2) + config.suffix_length


# ---- adding up -----------------------------------------------------------------------------------


def measurement(repetition, group, category, seconds, ordinary_seconds, **changes):
    made = Measurement(
        point=POINT,
        repetition=repetition,
        group=group,
        category=category,
        tokens=(20, 10),
        ordinary_tokens=(20, 10),
        rounds=(8, 7),
        candidate_rounds=(6, 3),
        accepted_histogram=(5, 4, 3, 3),
        seconds=seconds,
        ordinary_seconds=ordinary_seconds,
        differences=(),
    )
    return replace(made, **changes)


MEASUREMENTS = [
    measurement(0, 0, "a", 4.0, 10.0),
    measurement(0, 1, "b", 2.0, 6.0, tokens=(9,), ordinary_tokens=(9,), rounds=(3,),
                candidate_rounds=(2,), accepted_histogram=(0, 0, 3, 0)),
    measurement(1, 1, "b", 1.0, 9.0, tokens=(9,), ordinary_tokens=(9,), rounds=(3,),
                candidate_rounds=(2,), accepted_histogram=(0, 0, 3, 0)),
    measurement(1, 0, "a", 3.0, 12.0),
]  # fmt: skip
COMPILATION = Compilation(POINT, 7.5, 18, 10, 12345, None)


def near(values):
    return pytest.approx(asdict(Spread.of(values)))


def test_a_row_adds_up():
    row = summarise(COMPILATION, MEASUREMENTS)
    assert (row.point, row.num_rows, row.device_rows) == (POINT, 18, 10)
    assert (row.texts, row.repetitions, row.tokens, row.rounds) == (3, 2, 39, 18)
    assert row.tokens_per_round == pytest.approx(39 / 18)
    assert row.accepted_histogram == (5, 4, 6, 3)
    assert row.hit_rate == pytest.approx(11 / 18)
    # Two texts that are decoded together share their rounds: 8 + 3 of them took 6 and 4 seconds.
    assert asdict(row.round_ms) == near([6e3 / 11, 4e3 / 11])
    assert asdict(row.step_ms) == near([16e3 / 29, 21e3 / 29])
    assert asdict(row.token_ms) == near([6e3 / 39, 4e3 / 39])
    assert row.ordinary_token_ms.median == pytest.approx((16e3 + 21e3) / 2 / 39)
    assert row.speed_up.median == pytest.approx((16 / 6 + 21 / 4) / 2)
    assert row.speed_up.low == pytest.approx(16 / 6 + (21 / 4 - 16 / 6) / 4)
    assert asdict(row.round_over_step) == near([6 / 11 / (16 / 29), 4 / 11 / (21 / 29)])
    assert (row.compile_seconds, row.memory_bytes) == (7.5, 12345)
    assert row.identical is True
    assert list(row.categories) == ["a", "b"]
    one = row.categories["b"]
    assert (one.texts, one.tokens_per_round) == (1, 3.0)
    assert one.speed_up == Spread.of([3.0, 9.0])


def test_differences_count_once_and_may_be_none():
    found = Difference("a0", 3, 1, 2, 0.25)
    twice = [replace(m, differences=(found,)) if m.group == 0 else m for m in MEASUREMENTS]
    row = summarise(COMPILATION, twice)
    assert row.differences == (found,)
    assert row.identical is False
    none = [replace(m, differences=None) for m in MEASUREMENTS]
    assert summarise(COMPILATION, none).identical is None


# ---- keeping -------------------------------------------------------------------------------------


def fill(directory, count):
    with Store(directory, CONDITIONS) as store:
        for record in [COMPILATION, *MEASUREMENTS][:count]:
            store.add(record)
        return store.rows([POINT, Point(5, 4, 3)], 2, 2)


def test_what_was_measured_is_there_again(tmp_path):
    assert fill(tmp_path / "new" / "run", 4) == []
    with Store(tmp_path / "new" / "run", CONDITIONS) as store:
        assert store.measured == 3
        assert store.missing(POINT, 2, 2) == [(1, 0)]
        assert store.missing(POINT, 3, 2) == [(1, 0), (2, 0), (2, 1)]
        assert store.missing(Point(5, 4, 3), 1, 2) == [(0, 0), (0, 1)]
        store.add(replace(COMPILATION, seconds=99.0))  # compiled again: the first one counts
        store.add(MEASUREMENTS[3])
        (row,) = store.rows([Point(5, 4, 3), POINT], 2, 2)
        (less,) = store.rows([POINT], 1, 2)
    assert row == summarise(COMPILATION, MEASUREMENTS)
    assert less == summarise(COMPILATION, MEASUREMENTS[:2])
    json.dumps(results(CONDITIONS, [row], 1), allow_nan=False)


def test_every_measurement_is_kept_at_once_and_a_torn_line_is_cut(tmp_path):
    fill(tmp_path, 5)
    path = tmp_path / "measurements.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    with Store(tmp_path, CONDITIONS) as store:
        assert store.missing(POINT, 2, 2) == [(1, 0)]
        store.add(MEASUREMENTS[3])
    assert path.read_bytes() == whole


def test_answers_are_kept(tmp_path):
    with Store(tmp_path, CONDITIONS) as store:
        store.add_answer("two/1", [3, 4])
    with Store(tmp_path, CONDITIONS) as store:
        assert store.answers == {"two/1": (3, 4)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": "TPU v5 lite"}, "measured with device cpu (2 cores), now it is TPU v5 lite"),
        ({"policy": {}}, "with policy temperature 0.5, now it is none"),
        ({"prompts_digest": "ffff"}, "prompts digest 0123456789ab, now it is ffff"),
        ({"commit": None}, "commit abc, now it is none"),
    ],
)
def test_figures_of_other_conditions_are_not_mixed(tmp_path, changes, words):
    fill(tmp_path, 2)
    with pytest.raises(LookaheadError) as refused:
        Store(tmp_path, replace(CONDITIONS, **changes))
    assert words in str(refused.value)
    later = replace(CONDITIONS, date="2027", repetitions=9, texts=4)
    with Store(tmp_path, later) as store:
        assert store.conditions == replace(later, date=CONDITIONS.date)


def test_files_of_something_else_are_left_alone(tmp_path):
    path = tmp_path / "measurements.jsonl"
    for line in [
        '{"kind": "measurement", "point": 3}\n',
        "notes\n",
        '{"kind": "x", "point": {}}\n',
    ]:
        path.write_text(line)
        with pytest.raises(
            LookaheadError, match=r"measurements.jsonl, line 1 is not of a benchmark"
        ):
            Store(tmp_path, CONDITIONS)
        assert path.read_text() == line
    path.write_text("")
    (tmp_path / "answers.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(LookaheadError, match=r"answers.jsonl, line 1"):
        Store(tmp_path, CONDITIONS)
    (tmp_path / "answers.jsonl").unlink()
    fill(tmp_path, 2)
    (tmp_path / "conditions.json").unlink()
    with pytest.raises(LookaheadError, match=r"no conditions.json"):
        Store(tmp_path, CONDITIONS)
    (tmp_path / "conditions.json").write_text("{")
    with pytest.raises(LookaheadError, match=r"conditions.json: it is no JSON"):
        Store(tmp_path, CONDITIONS)


def test_one_run_at_a_time(tmp_path):
    with Store(tmp_path, CONDITIONS), pytest.raises(LookaheadError, match="by another run"):
        Store(tmp_path, CONDITIONS)


def test_a_record_survives_json():
    assert asdict(CONDITIONS) == json.loads(json.dumps(asdict(CONDITIONS)))


# ---- as a function -------------------------------------------------------------------------------


def test_a_grid_can_be_measured_from_python():
    lm = fakes.toy_model()
    prompts = [task.tokens for task in tasks(3)]
    points = (POINT, Point(2, 3, 2))
    rows = list(measure_grid(lm, prompts, points, repetitions=2, max_new_tokens=LIMIT))
    assert [row.point for row in rows] == list(points)
    for row in rows:
        config = LookaheadConfig(*asdict(row.point).values())
        alone = [generate(lm, p, config=config, max_new_tokens=LIMIT).stats for p in prompts]
        assert row.rounds == sum(stats.rounds for stats in alone)
        assert (row.texts, row.repetitions, row.identical) == (3, 2, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"repetitions": 0}, "repetitions must be an integer >= 1, got 0"),
        ({"stop_strings": ["x"]}, "takes no stop_strings"),
        ({"prompts": []}, "at least one prompt"),
        ({"points": [Point(3, 1, 3)]}, "ngram_size"),
        ({"max_new_tokens": 4000}, "max_new_tokens=4000"),
    ],
)
def test_what_cannot_be_measured(changes, words):
    arguments = {"prompts": [(1, 2)], "points": [POINT], **changes}
    with pytest.raises(LookaheadError, match=words):
        measure_grid(fakes.toy_model(), **arguments)
