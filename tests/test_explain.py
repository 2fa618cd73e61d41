"""The drawing of a round, held against the specification's own figures (0x04A)."""

import io

import numpy as np
import pytest
from rich.console import Console

from lookahead_jax.cli import run
from lookahead_jax.cli.explain import _QUADRANTS, drawing, meaning, picture, print_explanation
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.layout import Role

W5N4G2 = LookaheadConfig(window_size=5, ngram_size=4, guess_set_size=2)
W7N5G7 = LookaheadConfig(window_size=7, ngram_size=5, guess_set_size=7)
W15N5G15 = LookaheadConfig(window_size=15, ngram_size=5, guess_set_size=15)

# Base stripe, levels 1 and 2, two candidates: which row sees which, o for yes.
SPECIFIED_MASK = """\
o....|.....|.....|...|...
oo...|.....|.....|...|...
ooo..|.....|.....|...|...
oooo.|.....|.....|...|...
ooooo|.....|.....|...|...
o....|o....|.....|...|...
oo...|.o...|.....|...|...
ooo..|..o..|.....|...|...
oooo.|...o.|.....|...|...
ooooo|....o|.....|...|...
o....|o....|o....|...|...
oo...|.o...|.o...|...|...
ooo..|..o..|..o..|...|...
oooo.|...o.|...o.|...|...
ooooo|....o|....o|...|...
o....|.....|.....|o..|...
o....|.....|.....|oo.|...
o....|.....|.....|ooo|...
o....|.....|.....|...|o..
o....|.....|.....|...|oo.
o....|.....|.....|...|ooo
""".splitlines()
SPECIFIED_POSITIONS = [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6, 1, 2, 3, 1, 2, 3]


def printed(config, *, width=80, stage=None, candidates=None, full=False, encoding="utf-8"):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_explanation(
        Console(file=file, width=width, highlight=False), config, stage, candidates, full
    )
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()


def test_the_specified_mask_is_drawn_in_80_columns():
    lines = printed(W5N4G2)
    assert max(map(len, lines)) <= 80
    drawn = lines[-21:]
    as_specified = [
        line[23:].replace(" ", "").translate(str.maketrans("●■▲·│", "ooo.|")) for line in drawn
    ]
    assert as_specified == SPECIFIED_MASK
    assert [int(line[:3]) for line in drawn] == list(range(21))
    positions = [int(line[19:23].strip().removeprefix("p") or 0) for line in drawn]
    assert positions == SPECIFIED_POSITIONS


def test_each_branch_has_its_own_sign():
    last_of_each = [line[23:] for line in printed(W5N4G2)[-21:]]
    assert last_of_each[0].count("●") == 1
    assert last_of_each[14].count("■") == 6
    assert last_of_each[20].count("▲") == 3
    assert "■" not in last_of_each[20]


def test_the_meaning_gives_q_and_the_slices():
    text = "\n".join(meaning(W5N4G2, picture(W5N4G2, None, None)))
    for part in (
        "Q = (W + G)(N - 1) = 21 rows",
        "rows 1:15   the window: 3 levels; the logits of 10:15 give the next level",
        "rows 15:21  2 candidates of 3 tokens from the pool; their logits verify them",
    ):
        assert part in text
    assert "= 56 rows" in meaning(W7N5G7, picture(W7N5G7, None, None))[0]


def test_the_table_has_a_line_for_each_row():
    lines = printed(W5N4G2)
    start = next(i for i, line in enumerate(lines) if line.startswith("row"))
    table = [line.split() for line in lines[start + 1 : start + 22]]
    assert table[0] == ["0", "ordinary", "-", "-", "-", "-", "p", "yes"]
    assert table[4] == ["4", "lookahead", "0", "3", "-", "-", "p+4"]
    assert table[10] == ["10", "lookahead", "2", "0", "-", "-", "p+2", "yes"]
    assert table[20] == ["20", "verify", "-", "-", "1", "2", "p+3", "yes"]


def test_many_rows_are_listed_by_branch_unless_asked_for():
    assert "21..27  lookahead      3    0..6" in "\n".join(printed(W7N5G7))
    full = printed(W7N5G7, full=True)
    assert sum("verify" in line for line in full) >= 28


def test_warm_up_stages_and_fewer_candidates():
    shown = picture(W5N4G2, 0, 1)
    assert [row.role for row in shown.rows] == (
        [Role.ORDINARY] + [Role.LOOKAHEAD] * 6 + [Role.VERIFY] * 3
    )
    assert shown.padding == 11
    assert not shown.mask[7:, 1:7].any()
    lines = printed(W5N4G2, stage=0, candidates=1)
    assert "  11 of the 21 rows are unused here" in lines
    assert "the logits of 2:7 give the next level" in "\n".join(lines)
    assert "verify" not in "\n".join(printed(W5N4G2, candidates=0)).split("the mask")[0]


def test_without_unicode_the_drawing_is_ascii():
    lines = printed(W5N4G2, encoding="ascii")
    assert lines[-1].endswith("o . . . . | . . . . . | . . . . . | . . . | v v v")
    wide = printed(W15N5G15, encoding="ascii")
    assert wide[-2] == "the mask of 120 rows is too wide for 80 columns: it needs 124"


def test_56_rows_fit_into_80_columns_one_column_a_row():
    lines = printed(W7N5G7)
    assert max(map(len, lines)) <= 80
    assert lines[-1] == " 55 ●" + "·" * 51 + "▲▲▲▲"


def test_120_rows_fit_into_80_columns_as_blocks_that_read_back_as_the_mask():
    shown = picture(W15N5G15, None, None)
    lines = [text.plain for text in drawing(shown, 80, ascii_only=False)[-60:]]
    assert {len(line) for line in lines} == {60}
    read = np.zeros((120, 120), bool)
    for i, line in enumerate(lines):
        for j, character in enumerate(line):
            block = _QUADRANTS.index(character)
            read[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = [
                [block & 1, block & 2],
                [block & 4, block & 8],
            ]
    np.testing.assert_array_equal(read, shown.mask)


def test_a_mask_that_fits_in_no_size_says_what_it_needs():
    line, _ = drawing(picture(W15N5G15, None, None), 50, ascii_only=False)
    assert line.plain == "the mask of 120 rows is too wide for 50 columns: it needs 60"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "3"], "--stage must be in 0..2 (N - 2, the steady state), got 3"),
        (["--candidates", "3"], "--candidates must be in 0..2 (G), got 3"),
        (["--ngram", "2"], "ngram_size (N) must be an integer >= 3, got 2"),
    ],
)
def test_errors(arguments, message, capsys):
    assert run(["explain", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_the_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["explain", "--window", "5", "--ngram", "4", "--guesses", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == printed(W5N4G2)
