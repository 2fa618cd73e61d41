"""The pictures of a benchmark: what they show, and that it can be read."""

import dataclasses
import itertools
import sys

import pytest
from bench_rows import CONDITIONS, DIFFERENCE, make_grid, make_row
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from test_architecture import ROOT, imports

from lookahead_jax import heat_map
from lookahead_jax.bench import pictures, scatter
from lookahead_jax.bench.marks import Mark, label_marks
from lookahead_jax.bench.selection import best, chosen
from lookahead_jax.bench.timing import Spread
from lookahead_jax.errors import LookaheadError

CPU = make_grid((2, 3, 5, 7), (3, 5), (2, 3, 7), step_ms=31.5, row_cost=0.055)
TPU = make_grid((3, 5, 7, 15), (3, 5, 7), (3, 7), step_ms=8.2, row_cost=0.002, gain=0.5)
MANY = make_grid(
    (2, 3, 4, 5, 7, 10, 15, 20), (4,), (2, 3, 4, 5, 7, 10, 15, 20), step_ms=30, row_cost=0.1
)
THREE = make_grid((3, 5, 7), (5,), (7,), step_ms=31.5, row_cost=0.05)
SIX = [
    dataclasses.replace(row, differences=(DIFFERENCE,))
    for row in make_grid((3, 7), (3, 4, 5, 6, 7), (3,), step_ms=8.2, row_cost=0.002, gain=0.5)
]
ONE = [make_row((7, 5, 7), 31.5, 5.45, 1.88)]
ONCE = [make_row((4, 3, 4), 31.5, 1.2, 1.4, repetitions=1)]
WRONG = [
    dataclasses.replace(row, differences=(DIFFERENCE,)) if i in (3, 23) else row
    for i, row in enumerate(TPU)
]
EVERY = {"cpu": CPU, "tpu": TPU, "many": MANY, "three": THREE, "one": ONE, "once": ONCE}
EVERY["wrong"] = WRONG
LONG = dataclasses.replace(
    CONDITIONS,
    model="/models/" + "very_long_name-" * 12 + "$x$",
    policy={"temperature": 0.8, "method": "residual"},
    mesh="data=1,lookahead=4,model=2",
    prompts="cost$^^$more.jsonl",
)


def labelled(axes, words):
    """What the legend names so."""
    (found,) = [a for a in axes.get_children() if str(a.get_label()).startswith(words)]
    return found


def series(axes):
    """x, y and N of every mark."""
    return [
        (x, y, int(container.get_label().split()[2]))
        for container in axes.containers
        for x, y in container.lines[0].get_xydata()
    ]


def by_length(rows):
    return [
        r
        for n in sorted({r.point.ngram_size for r in rows})
        for r in rows
        if r.point.ngram_size == n
    ]


def boxes(figure, texts):
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    return [text.get_window_extent(renderer) for text in texts]


def legend_words(figure):
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def test_speed_up_by_rows_shows_every_setting():
    figure = scatter.speedup_by_rows(CPU, CONDITIONS)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "Q, rows of a round"
    assert axes.get_ylabel() == "speed-up over ordinary decoding (times)"
    assert axes.get_xscale() == "log"  # 8 to 56
    rows = by_length(CPU)
    drawn = series(axes)
    assert len(drawn) == 24
    for row, (x, y, length) in zip(rows, drawn, strict=True):
        assert y == row.speed_up.median
        assert x == pytest.approx(row.num_rows, rel=0.03)
        assert length == row.point.ngram_size
    # (2, 3) and (3, 2) have the same Q, and are not drawn at the same place.
    assert len({x for x, _, _ in drawn}) == 24
    ends = [segment for c in axes.containers for segment in c.lines[2][0].get_segments()]
    for row, ((_, low), (_, high)) in zip(rows, ends, strict=True):
        assert (low, high) == pytest.approx((row.speed_up.low, row.speed_up.high))
    assert list(labelled(axes, "ordinary decoding").get_ydata()) == [1, 1]
    side = labelled(axes, "lookahead decoding is faster")
    assert side.get_y() == 1
    assert side.get_y() + side.get_height() >= axes.get_ylim()[1]
    ring = labelled(axes, "the fastest").get_xydata()[0]
    assert ring[1] == best(CPU).speed_up.median
    shapes = {c.lines[0].get_marker() for c in axes.containers}
    assert len(shapes) == 2  # not colour alone
    (bold,) = [text for text in axes.texts if text.get_weight() == "bold"]
    point = best(CPU).point
    assert bold.get_text() == f"({point.window_size}, {point.guess_set_size})"
    assert tuple(bold.xy) == pytest.approx(tuple(ring))


def test_rows_close_together_are_not_drawn_on_a_logarithmic_axis():
    (axes,) = scatter.speedup_by_rows(THREE, CONDITIONS).axes
    assert axes.get_xscale() == "linear"
    assert [x for x, _, _ in series(axes)] == pytest.approx([40, 48, 56])


@pytest.mark.parametrize("name", ["cpu", "many"])
def test_rounds_break_even_where_tokens_are_steps(name):
    rows = EVERY[name]
    (axes,) = scatter.rounds(rows, CONDITIONS).axes
    assert axes.get_xlabel() == "time of a round (ms)"
    assert axes.get_ylabel() == "tokens per round"
    assert axes.get_xscale() == ("log" if name == "many" else "linear")
    step = Spread.of([row.step_ms.median for row in rows]).median
    line = labelled(axes, "break-even").get_xydata()
    assert line[:, 1] == pytest.approx(line[:, 0] / step)
    assert line[0, 0] < step < line[1, 0]
    ((x, y),) = labelled(axes, "an ordinary step").get_xydata()
    assert (x, y) == (step, 1)
    drawn = series(axes)
    for row, (x, y, _) in zip(by_length(rows), drawn, strict=True):
        assert (x, y) == (row.round_ms.median, row.tokens_per_round)
    shaded = labelled(axes, "lookahead decoding is faster").get_paths()[0]
    steps = sorted(row.step_ms.median for row in rows)
    for row, (x, y, _) in zip(by_length(rows), drawn, strict=True):
        if not x / steps[-1] < y < x / steps[0]:  # where the machine did not decide
            assert shaded.contains_point((x, y)) == (row.speed_up.median > 1)
    (low, high) = axes.get_xlim()
    assert all(low < x < high for x, _, _ in drawn)


def test_labels_name_the_settings_beside_them():
    (axes,) = scatter.rounds(TPU, CONDITIONS).axes
    at = {
        (row.round_ms.median, row.tokens_per_round): (
            row.point.window_size,
            row.point.guess_set_size,
        )
        for row in TPU
    }
    assert len(axes.texts) > 5
    for text in axes.texts:
        assert text.get_text() == "({}, {})".format(*at[tuple(text.xy)])


@pytest.mark.parametrize("draw", [scatter.speedup_by_rows, scatter.rounds])
@pytest.mark.parametrize("name", EVERY)
def test_labels_lie_apart_and_inside(name, draw):
    rows = EVERY[name]
    figure = draw(rows, CONDITIONS)
    (axes,) = figure.axes
    words = boxes(figure, axes.texts)
    assert not [(a, b) for a, b in itertools.combinations(words, 2) if a.overlaps(b)]
    frame = axes.get_window_extent()
    for box in words:
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1
    assert len(words) <= min(len(rows), 24)
    if len(rows) <= 3:
        assert len(words) == len(rows)
    marks = [axes.transData.transform((x, y)) for x, y, _ in series(axes)]
    top = [text.get_weight() == "bold" for text in axes.texts]
    assert sum(top) == 1  # the best is always labelled, and may cover a mark in a crowd
    others = [box for box, bold in zip(words, top, strict=True) if not bold]
    assert not [1 for box in others for mark in marks if box.contains(*mark)]


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("one", pictures.speedup_map),
        ("wrong", pictures.speedup_map),
        ("one", scatter.speedup_by_rows),
        ("wrong", scatter.rounds),
        ("one", pictures.accepted),
        ("wrong", pictures.accepted),
    ],
)
def test_the_heading_has_room_and_tells_the_conditions(name, draw):
    """With names as long as they get."""
    figure = draw(EVERY[name], LONG)
    title, small = figure.texts
    upper, lower = boxes(figure, [title, small])
    frame = figure.bbox
    tops = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
    for box in (upper, lower):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert box.y1 <= frame.y1
    assert upper.y0 > lower.y1
    assert lower.y0 > max(box.y1 for box in tops)
    told = small.get_text().replace("\n", " ")
    for part in (
        "float32",
        "cpu (2 cores)",
        "mesh data=1,lookahead=4,model=2",
        "batch 1",
        "cost$^^$more.jsonl",
        "22 texts of up to 128 tokens",
        "3 repetitions",
        "2026-11-30",
        "temperature=0.8, method=residual",
        "very_long_name-$x$",
    ):
        assert part in told


def test_the_map_shows_every_setting():
    figure = pictures.speedup_map(WRONG, CONDITIONS)
    panels = [axes for axes in figure.axes if axes.get_title()]
    assert [axes.get_title() for axes in panels] == [f"N = {n} tokens" for n in (3, 5, 7)]
    seen = {}
    for axes in panels:
        n = int(axes.get_title().split()[2])
        for text, patch in zip(axes.texts, axes.patches, strict=True):
            x, y = text.get_position()
            place = (
                int(axes.get_xticklabels()[round(x)].get_text()),
                n,
                int(axes.get_yticklabels()[round(y)].get_text()),
            )
            seen[place] = (text.get_text().splitlines(), text.get_weight(), patch)
    assert len(seen) == 24
    for row in WRONG:
        point = row.point
        lines, weight, patch = seen[point.window_size, point.ngram_size, point.guess_set_size]
        wrong = row.identical is False
        assert lines[0] == f"{row.speed_up.median:.2f}x"
        assert lines[1] == f"{row.tokens_per_round:.2f} tokens"
        assert lines[2:] == (["other texts"] if wrong else [])
        assert bool(patch.get_hatch()) == wrong
        assert (weight == "bold") == (row is best(WRONG))
    assert max(WRONG, key=lambda row: row.speed_up.median).identical is False
    assert best(WRONG).identical
    assert "hatched: wrote other texts" in figure.texts[1].get_text()
    bar = figure.axes[-1]
    assert bar.get_ylabel() == "speed-up (times)"


def test_other_texts_are_crossed_out():
    for draw in (scatter.speedup_by_rows, scatter.rounds):
        figure = draw(WRONG, CONDITIONS)
        crosses = labelled(figure.axes[0], "wrote other texts").get_xydata()
        assert len(crosses) == 2
        assert "wrote other texts: not exact" in legend_words(figure)
        assert "wrote other texts: not exact" not in legend_words(draw(THREE, CONDITIONS))
    rows = [row for row in WRONG if row.identical is False]
    assert list(crosses[:, 1]) == [row.tokens_per_round for row in rows]


@pytest.mark.parametrize("rows", [CPU, WRONG, ONE, SIX], ids=["cpu", "wrong", "one", "six"])
def test_accepted_lengths_are_shares_of_rounds(rows):
    figure = pictures.accepted(rows, CONDITIONS)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    expected = chosen(rows)
    assert len(panels) == len(expected) <= 6
    for axes, (why, row) in zip(panels, expected.items(), strict=True):
        shares = [bar.get_height() for bar in axes.patches]
        total = sum(row.accepted_histogram)
        assert shares == pytest.approx([n / total for n in row.accepted_histogram])
        assert [t.get_text() for t in axes.get_xticklabels()] == [
            str(k) for k in range(row.point.ngram_size)
        ]
        title = axes.get_title().replace("\n", " ")
        assert title.startswith(f"{row.point} {why}")
        assert ("other texts" in title) == (row.identical is False)
        assert axes.get_xlabel() == "accepted candidate tokens"
    assert panels[0].get_ylabel() == "share of the rounds"
    words = [text for axes in panels for text in [*axes.texts, axes.title]]
    placed = boxes(figure, words)
    assert not [1 for a, b in itertools.combinations(placed, 2) if a.overlaps(b)]
    for axes in panels:
        assert axes.title.get_window_extent().width <= axes.get_window_extent().width


def test_settings_of_interest_are_told_apart():
    reasons = chosen(CPU)
    assert list(reasons) == [
        "fastest",
        "most tokens per round, most rows",
        "fewest rows",
        "fastest of N=5",
    ]
    assert str(reasons["fastest"].point) == "W=3 N=3 G=2"
    assert str(reasons["fewest rows"].point) == "W=2 N=3 G=2"
    assert reasons["fastest of N=5"].point.ngram_size == 5
    assert list(chosen(ONE)) == ["the only setting"]


def test_texts_that_need_not_be_the_same_are_not_marked():
    rows = [dataclasses.replace(row, differences=None) for row in THREE]
    (panel, _) = pictures.speedup_map(rows, CONDITIONS).axes
    assert not [patch for patch in panel.patches if patch.get_hatch()]
    assert "wrote other texts: not exact" not in legend_words(scatter.rounds(rows, CONDITIONS))


def test_labels_at_the_edge_are_moved_inside():
    axes = Figure((4, 3), 100).add_subplot()
    spots = [(0.0, 0.5), (1.0, 0.5), (0.5, 0.0), (0.5, 1.0)]
    corners = [make_row((w, 3, 3), 30, 2.0, 1.5) for w in (2, 3, 4, 5)]
    found = [Mark(row, at, (at, at)) for row, at in zip(corners, spots, strict=True)]
    assert label_marks(axes, found) == 4
    frame = axes.get_window_extent()
    for box in boxes(axes.figure, axes.texts):
        assert frame.x0 <= box.x0
        assert box.x1 <= frame.x1
        assert frame.y0 <= box.y0
        assert box.y1 <= frame.y1


def test_one_repetition_has_no_spread():
    for draw in (scatter.speedup_by_rows, scatter.rounds):
        figure = draw(ONCE, CONDITIONS)
        (container,) = figure.axes[0].containers
        assert container.lines[2] == ()
        assert "measured once" in figure.texts[1].get_text()
        assert "quartiles" not in figure.texts[1].get_text()


def test_all_pictures_are_written(tmp_path):
    untimed = dataclasses.replace(ONE[0], speed_up=Spread(*[float("nan")] * 3))
    paths = pictures.draw_all(tmp_path, [*THREE, untimed], CONDITIONS)
    names = ["speedup_map.png", "speedup_by_rows.png", "rounds.png", "accepted.png"]
    assert paths == [tmp_path / name for name in names]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    for path in paths:
        height, width = imread(path).shape[:2]
        assert 900 <= width <= 1200
        assert 300 <= height <= 1000
    assert pictures.draw_all(tmp_path, [untimed], CONDITIONS) == []
    assert pictures.draw_all(tmp_path, [], CONDITIONS) == []


def test_what_cannot_be_drawn_is_said_in_a_line(tmp_path, monkeypatch):
    assert pictures.why_not() is None
    with pytest.raises(LookaheadError, match=r"cannot write .*speedup_map.png: No such file"):
        pictures.draw_all(tmp_path / "nowhere", ONE, CONDITIONS)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = pictures.why_not()
    assert line is not None
    assert line.endswith("pip install 'lookahead-jax[plot]'")
    assert "\n" not in line
    with pytest.raises(LookaheadError, match="matplotlib"):
        pictures.draw_all(tmp_path, ONE, CONDITIONS)


def test_matplotlib_is_imported_when_something_is_drawn():
    paths = [*(ROOT / "lookahead_jax/bench").glob("*.py"), ROOT / "lookahead_jax/heat_map.py"]
    for path in paths:
        assert not [name for name in imports(path, lazy=False) if "matplotlib" in name]
    assert not [name for path in paths for name in imports(path) if "pyplot" in name]


@pytest.mark.parametrize(("widest", "panels"), [(40.0, 3), (9.0, 2), (3.0, 1)])
def test_a_map_has_as_many_panels_beside_each_other_as_fit(widest, panels):
    cells = [heat_map.Cell((w, n, 3), 1 + w / n, (str(w),)) for w in (2, 3, 4) for n in (3, 4, 5)]
    form = heat_map.Form(widest=widest, narrowest=1.0)
    figure = heat_map.draw(cells, heat_map.Scale("times"), form)
    shown = [axes for axes in figure.axes if axes.get_title()]
    tops = [axes.get_subplotspec().rowspan.start for axes in shown]
    assert tops.count(0) == panels
    assert figure.get_size_inches()[0] <= max(widest, 4.3)


def test_colours_part_at_one_also_where_all_values_are_on_one_side():
    cells = [heat_map.Cell((w, 3, 3), value, ("",)) for w, value in ((2, 1.2), (3, 1.4))]
    shades = {}
    for covers in ((), (0.5, 2.0)):
        figure = heat_map.draw(cells, heat_map.Scale("times", covers=covers))
        shades[covers] = [patch.get_facecolor() for patch in figure.axes[0].patches]
    plain, parted = shades.values()
    assert plain[0] != parted[0]
    assert all(blue > red for red, _, blue, _ in parted)
    slower = [heat_map.Cell((2, 3, 3), 0.8, ("",))]
    figure = heat_map.draw(slower, heat_map.Scale("times", covers=(0.5, 2.0)))
    red, _, blue, _ = figure.axes[0].patches[0].get_facecolor()
    assert red > blue
