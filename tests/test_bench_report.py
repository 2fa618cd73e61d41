"""report.md and the table of a benchmark: every figure where it belongs, and true sentences."""

import dataclasses
import math
import re

import pytest
from bench_rows import CONDITIONS, DIFFERENCE, make_grid, make_row
from rich.console import Console

from lookahead_jax.bench import report
from lookahead_jax.bench.records import CategoryRow, Difference, Point, Row
from lookahead_jax.bench.selection import best
from lookahead_jax.bench.timing import Spread
from lookahead_jax.bench.wording import conclusion, number, percent, spread

ODD = Row(
    point=Point(5, 4, 6),
    num_rows=33,
    device_rows=18,
    texts=19,
    repetitions=7,
    tokens=2345,
    rounds=1678,
    tokens_per_round=1.397,
    accepted_histogram=(1201, 310, 102, 65),
    hit_rate=0.823,
    round_ms=Spread(41.26, 40.11, 43.37),
    token_ms=Spread(29.53, 28.74, 30.95),
    step_ms=Spread(34.48, 33.81, 35.66),
    ordinary_token_ms=Spread(34.62, 33.92, 35.72),
    round_over_step=Spread(1.1966, 1.1655, 1.2277),
    speed_up=Spread(1.1744, 1.1388, 1.2099),
    compile_seconds=8.765,
    memory_bytes=613 * 2**20,
    allocator_peak_bytes=1536 * 2**20,
    differences=(),
    categories={
        "translation": CategoryRow(9, 1.542, Spread(1.291, 1.262, 1.313)),
        "a|b": CategoryRow(10, 1.276, Spread(1.069, 1.041, 1.083)),
    },
)
"""Every number is another one."""
SLOWER = make_row((7, 5, 7), 31.5, 5.45, 1.88)
FASTER = make_row((3, 3, 3), 30.5, 1.2, 1.5)
CPU = make_grid((2, 3, 5, 7), (3, 5), (2, 3, 7), step_ms=31.5, row_cost=0.055)


def tables(text):
    """Lists of cells, line by line, of each table."""
    found = re.findall(r"(?:^\|.*\|\n?)+", text, re.MULTILINE)
    return [
        [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in t.splitlines()]
        for t in found
    ]


def section(text, heading):
    return text.partition(f"## {heading}")[2].partition("\n## ")[0]


def with_differences(row, *found):
    return dataclasses.replace(row, differences=found or (DIFFERENCE,))


def first_words(rows):
    return report.markdown(rows, CONDITIONS).split("\n\n")[1]


def test_every_figure_is_in_its_column():
    rows = [SLOWER, ODD]
    heads, rules, first, second = tables(report.markdown(rows, CONDITIONS))[0]
    assert len({len(line) for line in (heads, rules, first, second)}) == 1
    assert dict(zip(heads, second, strict=True)) == {
        "W": "**5**",
        "N": "**4**",
        "G": "**6**",
        "Q": "**33 (18)**",
        "tokens/round": "**1.40**",
        "hit rate": "**82%**",
        "ms/round": "**41.3**",
        "ms/token": "**29.5**",
        "T_round/T_AR": "**1.20 (1.17 - 1.23)**",
        "speed-up": "**1.17 (1.14 - 1.21)**",
        "compile, s": "**8.77**",
        "memory, MiB": "**613**",
        "same text": "**yes**",
    }
    assert dict(zip(heads, first, strict=True))["Q"] == "56"
    assert "**" not in "".join(first)
    meanings = report.markdown(rows, CONDITIONS)
    for head in heads[3:]:
        assert f"\n- {head.partition(',')[0]}: " in meanings
    assert "allocator gave out at most 1.50 GiB" in meanings


def test_categories_are_those_of_the_best_setting():
    text = report.markdown([SLOWER, ODD], CONDITIONS)
    part = section(text, "By category, at W=5 N=4 G=6")
    (table,) = tables(part)
    assert table[0] == ["category", "texts", "tokens/round", "speed-up"]
    assert table[2:] == [
        ["translation", "9", "1.54", "1.29 (1.26 - 1.31)"],
        ["a\\|b", "10", "1.28", "1.07 (1.04 - 1.08)"],
        ["**all**", "**19**", "**1.40**", "**1.17 (1.14 - 1.21)**"],
    ]


def test_accepted_lengths_are_shares():
    text = report.markdown([SLOWER, ODD], CONDITIONS)
    (table,) = tables(section(text, "Candidate tokens accepted in a round"))
    assert table[0] == ["", "0", "1", "2", "3", "4"]
    (line,) = [line for line in table if line[0].startswith("W=5 N=4 G=6 (fastest")]
    assert line[1:] == ["72%", "18%", "6%", "4%", ""]


def test_drift_is_told_from_ordinary_steps():
    text = report.markdown([SLOWER, FASTER, ODD], CONDITIONS)
    assert "30.5 ms (W=3 N=3 G=3) to 34.5 ms (W=5 N=4 G=6)" in text
    assert "by 13.0%" in text


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [FASTER, ODD],
            "Lookahead decoding was faster than ordinary decoding at all 2 settings on cpu "
            "(2 cores): at best 1.25 times as fast (quartiles 1.23 - 1.29), with W=3 N=3 G=3, "
            "where it wrote 1.50 tokens per round and breaks even at 1.20.",
        ),
        (
            [SLOWER, ODD, FASTER, SLOWER],
            "Lookahead decoding was faster than ordinary decoding at 2 of 4 settings on",
        ),
        (
            [SLOWER, make_row((3, 3, 3), 31.5, 2.0, 1.9)],
            "Lookahead decoding was not faster than ordinary decoding at any of 2 settings on cpu "
            "(2 cores): at best 0.950 times as fast (quartiles 0.931 - 0.978), with W=3 N=3 G=3, "
            "where it wrote 1.90 tokens per round and would break even at 2.00.",
        ),
        (
            [SLOWER],
            "was not faster than ordinary decoding at the one setting on cpu (2 cores): 0.3",
        ),
        ([FASTER], "was faster than ordinary decoding at the one setting on cpu (2 cores): 1.25"),
        # 1.002 is written as 1.00, which is no gain.
        ([make_row((3, 3, 3), 30, 1.5, 1.503)], "Lookahead decoding was not faster"),
        ([make_row((3, 3, 3), 30, 1.5, 1.512)], "no clearer than the repetitions vary"),
        ([make_row((3, 3, 3), 30, 1.5, 1.9, repetitions=1)], "Measured once"),
        ([dataclasses.replace(FASTER, differences=None)], "need not be ordinary decoding's"),
        ([], "No setting has been timed yet."),
    ],
)
def test_the_first_sentence_answers(rows, words):
    assert words in first_words(rows)


def test_what_is_clear_is_not_called_noise():
    for rows in ([FASTER, SLOWER], [SLOWER]):
        words = first_words(rows)
        assert "vary" not in words
        assert "need not" not in words
        assert "Not exact" not in words


def test_texts_that_differ_come_first():
    wrong = with_differences(make_row((15, 5, 15), 31.5, 1.1, 3.0))
    words = first_words([SLOWER, wrong, FASTER])
    assert words.startswith(
        "Not exact: at 1 of 3 settings (W=15 N=5 G=15) texts differ from ordinary decoding's. "
        "Lookahead decoding was faster than ordinary decoding at 1 of the 2 other settings on cpu "
        "(2 cores): at best 1.25 times as fast (quartiles 1.23 - 1.29), with W=3 N=3 G=3,"
    )
    # The faster setting is the wrong one: what is left is slower.
    words = first_words([SLOWER, wrong])
    assert "was not faster than ordinary decoding at the other setting on" in words
    assert "with W=7 N=5 G=7" in words
    words = first_words([wrong])
    assert words.startswith("Not exact: at the one setting (W=15 N=5 G=15)")
    assert "quartiles 2.67 - 2.81, with other texts)" in words
    many = [with_differences(row) for row in CPU[:9]]
    assert "; 5 more) texts differ" in first_words([*many, *CPU[9:]])


def test_differences_are_listed():
    found = (
        Difference("81/2", 17, 345, 678, 0.01234),
        Difference("9|x", 0, None, 11, None),
        Difference("9|x", 0, None, 11, None),  # in another repetition
    )
    text = report.markdown([ODD, with_differences(FASTER, *found)], CONDITIONS)
    (table,) = tables(section(text, "Differences from ordinary decoding"))
    assert table[2:] == [
        ["W=3 N=3 G=3", "81/2", "17", "345", "678", "0.0123"],
        ["W=3 N=3 G=3", "9\\|x", "0", "(ended)", "11", "not known"],
    ]
    assert "Differences" not in report.markdown([ODD], CONDITIONS)
    many = with_differences(FASTER, *(Difference(str(k), k, 1, 2, 3.0) for k in range(70)))
    part = section(report.markdown([many], CONDITIONS), "Differences from ordinary decoding")
    assert len(tables(part)[0]) == 42
    assert "30 more" in part
    heads, _, line, *_ = tables(report.markdown([many], CONDITIONS))[0]
    assert line[heads.index("same text")] == "**NO**"


def test_one_repetition_shows_no_quartiles():
    once = make_row((3, 3, 3), 30, 1.5, 1.9, repetitions=1)
    text = report.markdown([once], CONDITIONS)
    assert "quartiles" not in text
    assert not re.search(r"\d \(\d", " ".join(map(" ".join, tables(text)[0])))


def test_conditions_pictures_and_command_are_told():
    text = report.markdown(
        [ODD],
        dataclasses.replace(CONDITIONS, policy={"temperature": 0.7}, mesh="data=2", commit=None),
        unfinished=3,
        pictures=["speedup_map.png", "rounds.png"],
        command="lookahead-jax bench --model x",
    )
    for part in (
        "# Lookahead decoding of smollm2-135m, measured",
        "- model: smollm2-135m, float32, attention split",
        "- device: cpu (2 cores), mesh data=2",
        "- prompts: builtin (0123456789ab), 22 texts of up to 128 tokens, batch 1, 3 repetitions",
        "- sampling: temperature=0.7",
        "- software: lookahead-jax 0.1.0, jax 0.10.2, jaxlib 0.10.1, python 3.11.9\n",
        "- date: 2026-11-30T11:57:43Z",
        "**Not finished**: 3 settings of the grid not measured yet.",
        "![speedup map](speedup_map.png)\n\n![rounds](rounds.png)",
        "```sh\nlookahead-jax bench --model x\n```",
    ):
        assert part in text
    plain = report.markdown([ODD], CONDITIONS)
    assert "commit 88e2f42+" in plain
    assert "Not finished" not in plain
    assert "![" not in plain
    assert "```" not in plain
    assert "sampling: greedy" in plain


def test_numbers_that_are_missing_do_not_stop_a_report():
    nan = Spread(math.nan, math.nan, math.nan)
    untimed = dataclasses.replace(
        SLOWER,
        tokens_per_round=math.nan,
        hit_rate=math.nan,
        accepted_histogram=(0,) * 5,
        **dict.fromkeys(("speed_up", "round_ms", "token_ms", "step_ms", "round_over_step"), nan),
    )
    text = report.markdown([untimed, ODD], CONDITIONS)
    assert best([untimed, ODD]) is ODD
    assert "at the one setting" in text
    assert "nan" not in text.lower()
    alone = report.markdown([untimed], CONDITIONS)
    assert "No setting has been timed yet." in alone
    wrong = report.markdown([with_differences(untimed)], CONDITIONS)
    assert "Not exact: at the one setting (W=7 N=5 G=7)" in wrong
    assert "nan" not in alone.lower()


def printed(rows, width):
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(report.table(rows))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_the_table_fits_a_terminal(width):
    wide = make_row(
        (31, 10, 31), 1234.5, 9.87, 1.23, compile_seconds=1234.5, memory_bytes=123 * 2**30
    )
    rows = [wide, ODD, with_differences(FASTER), dataclasses.replace(SLOWER, differences=None)]
    lines = printed(rows, width)
    assert len(lines) == 2 + len(rows)  # nothing is broken
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["tokens/", "ms/", "ms/", "round/", "comp.", "memory", "same"]
    assert lines[1].split() == [
        "W,N,G",
        "Q",
        "round",
        "hits",
        "round",
        "token",
        "step",
        "speed-up",
        "s",
        "GiB",
        "text",
    ]
    assert lines[3].split() == [
        "5,4,6",
        "33",
        "1.40",
        "82%",
        "41.3",
        "29.5",
        "1.20",
        "1.17",
        "(1.14-1.21)",
        "8.77",
        "0.599",
        "yes",
    ]
    assert [line.split()[-1] for line in lines[2:]] == ["yes", "yes", "NO", "-"]


def test_the_best_line_of_the_table_is_bold_and_wrong_ones_are_red():
    rows = [ODD, with_differences(FASTER), SLOWER]
    styles = [str(row.style) for row in report.table(rows).rows]
    assert styles == ["bold", " red", ""]
    assert printed([], 80)  # only heads


def test_numbers_have_three_digits():
    values = [1.0, 31.46, 99.96, 171.7, 1234.5, 0.01234, 0.0, math.nan, 9.996, 999.6]
    assert [number(value) for value in values] == [
        "1.00", "31.5", "100", "172", "1234", "0.0123", "0", "-", "10.0", "1000",
    ]  # fmt: skip
    assert [percent(x) for x in (0, 0.001, 0.006, 0.5, 1, math.nan)] == [
        "0%", "<1%", "1%", "50%", "100%", "-",
    ]  # fmt: skip
    assert spread(Spread(1.234, 1.2, 1.3), 2) == "1.23 (1.20 - 1.30)"
    assert spread(Spread(1.234, 1.2, 1.3), 1) == "1.23"


def test_break_even_beside_what_was_written():
    """The same numbers as in the table, whatever the texts around them."""
    (sentence,) = conclusion([ODD], CONDITIONS)
    assert sentence.endswith("it wrote 1.40 tokens per round and breaks even at 1.20.")
