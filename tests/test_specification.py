"""The specification's figures and the algorithm's laws, on the oracle."""

from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
import reference
import specification_figures as figures
import trace_files
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_llama import NumpyLlama
from reference import Schedule, Settings

RELAXED = settings(deadline=None, max_examples=200)

small_window = st.integers(1, 6)
small_ngram = st.integers(3, 6)


def level_sizes(levels: reference.Levels) -> tuple[int | None, ...]:
    return tuple(None if level is None else len(level) for level in levels)


@st.composite
def windows(draw, stage: int | None = None, vocabulary: int = 50):
    """(W, N, levels): random tokens in the given stage of the warm-up, or in any."""
    width, ngram = draw(small_window), draw(small_ngram)
    stages = reference.warm_up_sizes(width, ngram)
    sizes = stages[draw(st.integers(0, len(stages) - 1)) if stage is None else stage]
    token = st.integers(0, vocabulary - 1)
    levels = tuple(
        None if size is None else tuple(draw(st.lists(token, min_size=size, max_size=size)))
        for size in sizes
    )
    return width, ngram, levels


def scrambled(prefix: reference.Tokens) -> int:
    """A next token that depends on every token of the prefix and on its place."""
    value = 17
    for token in prefix:
        value = (value * 31 + token * 7 + 3) % 10_007
    return value % 50


# Warm-up and window: 0x03A, 0x03C.


@pytest.mark.parametrize(("window", "ngram"), figures.WARM_UP_SIZES)
def test_warm_up_sizes(window, ngram):
    expected = figures.WARM_UP_SIZES[window, ngram]
    assert reference.warm_up_sizes(window, ngram) == expected


@pytest.mark.parametrize(("window", "ngram"), list(product(range(1, 8), range(3, 9))))
def test_filling_the_window_goes_through_the_sizes(window, ngram):
    levels: reference.Levels = (tuple(range(window + ngram - 3)), *[None] * (ngram - 2))
    seen = [level_sizes(levels)]
    while levels[-1] is None:
        levels = reference.fill_window(levels, reference.set_levels(levels)[-1])
        seen.append(level_sizes(levels))
    assert seen == reference.warm_up_sizes(window, ngram)
    assert seen[-1] == (window - 1, *[window] * (ngram - 2))


def test_fill_window_keeps_the_right_tokens():
    levels = reference.fill_window(((1, 2, 3, 4, 5, 6), None, None), (11, 12, 13, 14, 15, 16))
    assert levels == ((2, 3, 4, 5, 6), (11, 12, 13, 14, 15, 16), None)
    levels = reference.fill_window(levels, (21, 22, 23, 24, 25, 26))
    assert levels == ((3, 4, 5, 6), (12, 13, 14, 15, 16), (22, 23, 24, 25, 26))


@pytest.mark.parametrize("ngram", [2, 1, 0, True, 3.0])
def test_too_short_ngrams_are_refused(ngram):
    with pytest.raises(ValueError, match="ngram_size >= 3"):
        reference.suffix_length(ngram)


def test_advance_by_one_column():
    levels, new_row = figures.EXTRACTION_LEVELS, figures.EXTRACTION_NEW_ROW
    assert reference.advance_pinned_window(levels, new_row) == figures.EXTRACTION_ADVANCED


def test_advance_at_the_smallest_depth():
    levels = ((1, 2, 3, 4), (11, 12, 13, 14, 15))
    assert reference.advance_pinned_window(levels, (21, 22, 23, 24, 25)) == (
        (12, 13, 14, 15),
        (21, 22, 23, 24, 25),
    )


def test_advance_by_accepted_tokens():
    fill = [91, 92, 93, 94, 95, 96]
    levels = reference.advance_by_accepted(
        figures.EXTRACTION_LEVELS, figures.EXTRACTION_NEW_ROW, 2, fill
    )
    assert levels == ((24, 25, 91, 92), (33, 34, 35, 93, 94), (43, 44, 45, 95, 96))


def test_advance_refuses_a_window_that_is_not_full():
    with pytest.raises(ValueError, match="level sizes"):
        reference.advance_pinned_window(((1, 2, 3, 4, 5), (1, 2, 3, 4, 5)), (1, 2, 3, 4, 5))
    with pytest.raises(ValueError, match="3 tokens to fill in, got 2"):
        reference.advance_by_accepted(((1,), (2, 3), (4, 5)), (6, 7), 1, (0, 0))


@RELAXED
@given(windows(stage=-1), st.integers(0, 8), st.data())
def test_accepted_tokens_move_the_window_like_single_columns(window, accepted, data):
    """Moving by 1 + a columns is a times moving each level by one, with the fill coming in."""
    width, ngram, levels = window
    token = st.integers(100, 200)
    new_row = tuple(data.draw(st.lists(token, min_size=width, max_size=width)))
    count = accepted * (ngram - 1)
    fill = data.draw(st.lists(token, min_size=count, max_size=count))
    moved = reference.advance_by_accepted(levels, new_row, accepted, fill)
    by_one = reference.advance_pinned_window(levels, new_row)
    stepwise = [list(level) for level in reference.set_levels(by_one)]
    for index, level in enumerate(stepwise):
        for cell in fill[index * accepted : (index + 1) * accepted]:
            level.append(cell)
            level.pop(0)
    assert [list(level) for level in reference.set_levels(moved)] == stepwise
    assert level_sizes(moved) == level_sizes(levels)


# N-grams and pool: 0x03B.


def test_extraction_example():
    ngrams = reference.extract_keyed_ngrams(
        figures.EXTRACTION_KEY, figures.EXTRACTION_LEVELS, figures.EXTRACTION_NEW_ROW
    )
    assert ngrams == figures.EXTRACTION_NGRAMS


@RELAXED
@given(windows(stage=-1))
def test_extraction_gives_one_ngram_a_column(window):
    width, ngram, levels = window
    new_row = tuple(range(900, 900 + width))
    ngrams = reference.extract_keyed_ngrams(800, levels, new_row)
    assert [len(entry) for entry in ngrams] == [ngram] * width
    assert tuple(entry[0] for entry in ngrams) == (800, *levels[0])
    for depth in range(1, ngram - 1):
        assert tuple(entry[depth] for entry in ngrams) == levels[depth]
    assert tuple(entry[-1] for entry in ngrams) == new_row


def test_prompt_ngrams():
    assert reference.prompt_ngrams([5, 6, 7, 8], 3) == [(5, 6, 7), (6, 7, 8)]
    assert reference.prompt_ngrams([5, 6], 3) == []


def test_pool_drops_the_least_recently_used():
    pool: reference.Pool = {}
    for suffix in [(1, 1), (2, 2), (3, 3)]:
        reference.upsert_suffix_lru(pool, 7, suffix, capacity=3)
    assert pool == {7: [(1, 1), (2, 2), (3, 3)]}
    reference.upsert_suffix_lru(pool, 7, (1, 1), capacity=3)
    assert pool == {7: [(2, 2), (3, 3), (1, 1)]}
    reference.upsert_suffix_lru(pool, 7, (4, 4), capacity=3)
    assert pool == {7: [(3, 3), (1, 1), (4, 4)]}
    reference.upsert_suffix_lru(pool, 8, (4, 4), capacity=3)
    assert pool == {7: [(3, 3), (1, 1), (4, 4)], 8: [(4, 4)]}


def test_a_pool_without_capacity_stays_empty():
    pool: reference.Pool = {}
    reference.upsert_suffix_lru(pool, 7, (1, 1), capacity=0)
    assert pool == {}


@RELAXED
@given(
    st.lists(st.tuples(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2)))),
    st.integers(1, 4),
)
def test_a_bucket_holds_the_latest_distinct_suffixes(inserts, capacity):
    pool: reference.Pool = {}
    for key, suffix in inserts:
        reference.upsert_suffix_lru(pool, key, suffix, capacity)
    for key in range(3):
        latest_first = dict.fromkeys(suffix for k, suffix in reversed(inserts) if k == key)
        assert pool.get(key, []) == list(latest_first)[:capacity][::-1]


# Rows, positions, mask: 0x04A, 0x05C.


def test_row_table():
    p = 128
    rows = reference.compile_rows([4, 5, 5], num_candidates=2, suffix_size=3, position=p)
    table = [
        (
            row.role,
            row.candidate_id if row.role == "verify" else row.trajectory_level,
            row.suffix_offset if row.role == "verify" else row.window_column,
            row.logical_position - p,
        )
        for row in rows
    ]
    assert table == figures.ROW_TABLE
    assert [row.packed_index for row in rows] == list(range(21))


def test_mask_and_logit_rows():
    rows = reference.compile_rows([4, 5, 5], num_candidates=2, suffix_size=3, position=0)
    assert as_text(reference.visibility_mask(rows)) == figures.MASK
    ordinary, window, verify = reference.semantic_rows(rows)
    assert ordinary == figures.ORDINARY_ROW
    assert window == list(range(21))[figures.WINDOW_LOGIT_ROWS]
    assert verify == list(range(21))[figures.VERIFY_LOGIT_ROWS]


def steady_sizes(window: int, ngram: int) -> list[int]:
    return [size for size in reference.warm_up_sizes(window, ngram)[-1] if size is not None]


def as_text(mask: list[list[bool]]) -> list[str]:
    return ["".join("01"[seen] for seen in row) for row in mask]


@pytest.mark.parametrize(("window", "ngram", "candidates"), figures.ROW_LEDGER)
def test_row_ledger(window, ngram, candidates):
    steady = steady_sizes(window, ngram)
    rows = reference.compile_rows(steady, candidates, ngram - 1, position=0)
    roles = [row.role for row in rows]
    counts = tuple(roles.count(role) for role in ("ordinary", "lookahead", "verify"))
    assert counts == figures.ROW_LEDGER[window, ngram, candidates]
    assert len(rows) == (window + candidates) * (ngram - 1)


@pytest.mark.parametrize(
    ("window", "ngram", "candidates"), list(product([1, 2, 5, 15], [3, 4, 5, 8], [0, 1, 4]))
)
def test_row_count_formulas(window, ngram, candidates):
    steady = steady_sizes(window, ngram)
    rows = reference.compile_rows(steady, candidates, ngram - 1, position=0)
    lookahead = [row for row in rows if row.role == "lookahead"]
    assert len(lookahead) == window * (ngram - 1) - 1
    assert len(rows) == (window + candidates) * (ngram - 1)
    assert sum(row.request_logit for row in rows) == 1 + window + candidates * (ngram - 1)


@pytest.mark.parametrize(
    ("case", "call"),
    [
        pytest.param(case, call, id="w{W}n{N}g{G}-step{step}".format(**case, **call))
        for case, call in trace_files.layout_calls()
    ],
)
def test_recorded_layouts(case, call):
    rows = reference.compile_rows(
        call["level_sizes"],
        call["n_candidates"],
        case["N"] - 1,
        position=call["n_past"] + call["n_in"] - 1,
        num_ordinary=call["n_in"],
    )
    assert reference.position_ids(rows) == call["position_ids"]
    assert as_text(reference.visibility_mask(rows)) == call["mask"]


def test_recorded_packed_tokens():
    """A free run of every recorded case packs the same tokens into the same rows."""
    model = NumpyLlama(trace_files.TINY_MODEL)
    cases = {id(case): case for case, _ in trace_files.layout_calls()}.values()
    for case in cases:
        calls = {call["step"]: call for call in case["calls"]}
        prompt = trace_files.prompts("tiny")[case["prompt_name"]]
        assert calls[0]["ids"][: calls[0]["n_in"]] == prompt
        run = reference.lookahead_generate(
            model.next_token,
            prompt,
            Settings(
                case["W"],
                case["N"],
                case["G"],
                max_new_tokens=64,
                schedule=Schedule.official(bool(case["pool_from_prompt"])),
            ),
            init_window=calls[0]["ids"][len(prompt) :],
        )
        for step, call in calls.items():
            record = run.steps[step]
            assert list(record.packed) == call["ids"][call["n_in"] - 1 :]
            assert record.cache_before == call["n_past"] + call["n_in"] - 1
            assert len(record.candidates) == call["n_candidates"]


@RELAXED
@given(windows(), st.integers(0, 3), st.integers(1, 4), st.data())
def test_each_row_sees_exactly_the_tokens_of_its_own_causal_call(
    window, num_candidates, prompt_length, data
):
    """Packed mask and positions against separate forwards, in every stage."""
    _, ngram, levels = window
    token = st.integers(0, 49)
    suffix = st.lists(token, min_size=ngram - 1, max_size=ngram - 1).map(tuple)
    candidates = data.draw(st.lists(suffix, min_size=num_candidates, max_size=num_candidates))
    prompt = tuple(data.draw(st.lists(token, min_size=prompt_length, max_size=prompt_length)))
    state = reference.State(prompt, prompt_length, prompt[:-1], levels, {}, prompt)
    packed = reference.pack(state, candidates)
    rows = reference.compile_rows(
        [len(level) for level in reference.set_levels(levels)],
        num_candidates,
        ngram - 1,
        position=prompt_length - 1,
    )

    def seen_by(index: int) -> reference.Tokens:
        visible = [row for row in rows if reference.may_see(rows[index], row)]
        visible.sort(key=lambda row: row.logical_position)
        positions = [row.logical_position for row in visible]
        assert positions == list(range(prompt_length - 1, prompt_length - 1 + len(visible)))
        assert visible[-1] is rows[index]
        return prompt[:-1] + tuple(packed[row.packed_index] for row in visible)

    ordinary, window_rows, verify = reference.semantic_rows(rows)
    after = [scrambled(seen_by(index)) for index in (ordinary, *window_rows, *verify)]
    expected = reference.separate_forwards(scrambled, prompt, levels, candidates)
    flat_guesses = [choice for row in expected.guess_rows for choice in row]
    assert after == [expected.out, *expected.new_row, *flat_guesses]


# Verification and publication: 0x05A, 0x05B, 0x06C.


def verify_by_survivors(next_token, tokens, candidates, max_tokens):
    """The specification's survivor view, straight from the model."""
    target = next_token(tokens)
    survivors, emitted = list(candidates), [target]
    while len(emitted) < max_tokens:
        offset = len(emitted) - 1
        survivors = [suffix for suffix in survivors if suffix[offset] == target]
        if not survivors:
            break
        conditionals = {next_token(tokens + suffix[: offset + 1]) for suffix in survivors}
        assert len(conditionals) == 1
        (target,) = conditionals
        emitted.append(target)
    return tuple(emitted)


@RELAXED
@given(st.data(), st.integers(2, 4), st.booleans())
def test_greedy_verification_is_the_survivor_view(data, suffix_size, bonus):
    token = st.integers(0, 2)
    table = data.draw(st.lists(token, min_size=27, max_size=27))
    suffix = st.lists(token, min_size=suffix_size, max_size=suffix_size).map(tuple)
    candidates = data.draw(st.lists(suffix, max_size=6))

    def next_token(prefix: reference.Tokens) -> int:
        a, b, c = prefix[-3:]
        return table[9 * a + 3 * b + c]

    tokens = (0, 1, 2)
    rows = reference.separate_forwards(next_token, tokens, ((), None), candidates)
    max_hits = suffix_size if bonus else suffix_size - 1
    verdict = reference.greedy_verify(rows.out, candidates, rows.guess_rows, max_hits)
    assert verdict.tokens == verify_by_survivors(next_token, tokens, candidates, max_hits + 1)
    assert verdict.tokens == reference.greedy_generate(next_token, tokens, verdict.hits + 1)
    assert verdict.hits == max(verdict.matches, default=0)
    if verdict.winner is None:
        assert verdict.hits == 0
    else:
        assert verdict.matches.index(verdict.hits) == verdict.winner
        assert candidates[verdict.winner][: verdict.hits] == verdict.tokens[: verdict.hits]


def test_greedy_verification_compares_one_position_ahead():
    candidates, guess_rows = [(5, 6, 7)], [(6, 7, 8)]
    capped = reference.greedy_verify(5, candidates, guess_rows, max_hits=2)
    assert (capped.tokens, capped.hits, capped.winner) == ((5, 6, 7), 2, 0)
    bonus = reference.greedy_verify(5, candidates, guess_rows, max_hits=3)
    assert (bonus.tokens, bonus.hits, bonus.winner) == ((5, 6, 7, 8), 3, 0)
    missed = reference.greedy_verify(6, candidates, guess_rows, max_hits=3)
    assert (missed.tokens, missed.hits, missed.winner) == ((6,), 0, None)


def test_the_first_of_equally_long_matches_wins():
    verdict = reference.greedy_verify(5, [(4, 1), (5, 1), (5, 2)], [(0, 0), (9, 0), (9, 0)], 2)
    assert (verdict.matches, verdict.winner, verdict.tokens) == ((0, 1, 1), 1, (5, 9))


def follow_branch(candidates, target, decisions):
    """One course of the tests: the token accepted or None, its probability, the residual."""
    probability = Fraction(1)
    residual = {token: Fraction(percent, 100) for token, percent in target.items()}

    def accept(_depth: int, candidate: int, token: int) -> bool:
        nonlocal probability, residual
        if decisions[candidate]:
            probability *= residual[token]
            return True
        left = 1 - residual[token]
        probability *= left
        residual = {key: 0 if key == token else mass / left for key, mass in residual.items()}
        return False

    verdict = reference.verify_by_tests([(token,) for token in candidates], accept, lambda _: -1)
    return (None if verdict.tokens == (-1,) else verdict.tokens[0]), probability, residual


def test_sampling_tests_keep_the_target_distribution():
    candidates, target = figures.SAMPLING_CANDIDATES, figures.SAMPLING_TARGET
    reached = dict.fromkeys(target, Fraction(0))
    rejections = [[False] * count + [True] for count in range(len(candidates))]
    for decisions in [*rejections, [False] * len(candidates)]:
        accepted, probability, residual = follow_branch(candidates, target, decisions)
        if accepted is None:
            for token, mass in residual.items():
                reached[token] += probability * mass
        else:
            reached[accepted] += probability
    assert {token: 100 * mass for token, mass in reached.items()} == target


def test_sampling_keeps_the_candidates_that_share_the_accepted_token():
    tested = []

    def accept(depth: int, candidate: int, token: int) -> bool:
        tested.append((depth, candidate, token))
        return (depth, token) in {(0, 1), (1, 4)}

    candidates = [(1, 3, 5), (2, 4, 6), (1, 4, 7), (2, 4, 8)]
    verdict = reference.verify_by_tests(candidates, accept, lambda depth: 90 + depth)
    assert tested == [(0, 0, 1), (1, 0, 3), (1, 2, 4), (2, 2, 7)]
    assert (verdict.tokens, verdict.hits, verdict.winner) == ((1, 4, 92), 2, 2)


def test_sampling_draws_nothing_after_a_full_hit():
    candidates = [(3, 4), (1, 2)]
    verdict = reference.verify_by_tests(candidates, lambda depth, c, token: c == 1, lambda _: -1)
    assert (verdict.tokens, verdict.hits, verdict.winner) == ((1, 2), 1, 1)
    verdict = reference.verify_by_tests([], lambda depth, c, token: True, lambda depth: 7)
    assert (verdict.tokens, verdict.hits, verdict.winner) == ((7,), 0, None)


def test_compaction_trace():
    plan = reference.build_commit_plan(**figures.COMPACTION, tokens=(7, 8, 9))
    assert plan.copies == figures.COMPACTION_COPIES
    assert plan.copies[0][1] == figures.COMPACTION_FRONTIER
    assert plan.trim_exclusive == figures.COMPACTION_TRIM
    assert plan.next_uncached_token == 9
    committed = reference.apply_commit_plan(range(149), plan)
    assert committed == (*range(129), 146, 147)


def test_commit_without_a_winner_keeps_the_ordinary_row_only():
    plan = reference.build_commit_plan(128, 149, 6, 3, None, (7,))
    assert plan == reference.CommitPlan((), 129, 7)
    with pytest.raises(ValueError, match="one token without a winner"):
        reference.build_commit_plan(128, 149, 6, 3, None, (7, 8))


# Jacobi decoding: 0x02.


def test_jacobi_toy_takes_four_sweeps():
    trajectory = reference.jacobi_trajectory(figures.jacobi_toy, (), figures.JACOBI_START)
    assert trajectory == [figures.JACOBI_START, *figures.JACOBI_SWEEPS]
    assert trajectory[-1] == figures.JACOBI_SOLUTION
    assert len(trajectory) - 1 == 4


def test_gauss_seidel_toy_takes_one_sweep():
    trajectory = reference.jacobi_trajectory(
        figures.jacobi_toy, (), figures.JACOBI_START, reference.gauss_seidel_sweep
    )
    assert trajectory == [figures.JACOBI_START, figures.JACOBI_SOLUTION]


@RELAXED
@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), max_size=3), st.data())
def test_jacobi_reaches_the_greedy_text_within_m_sweeps(seed, prompt, data):
    guess = tuple(data.draw(st.lists(st.integers(0, 3), max_size=8)))
    operator = random_operator(seed, reach=None, vocabulary=4)
    text = reference.greedy_generate(operator, prompt, len(guess))
    trajectory = reference.jacobi_trajectory(operator, tuple(prompt), guess)
    assert trajectory[-1] == text
    assert len(trajectory) - 1 <= len(guess)
    for sweep, state in enumerate(trajectory):
        assert state[:sweep] == text[:sweep]


# The whole algorithm.


def random_operator(seed: int, reach: int | None, vocabulary: int) -> reference.NextToken:
    """A fixed random next token that depends on the last `reach` tokens, or on all of them."""

    def next_token(prefix: reference.Tokens) -> int:
        value = seed + 1
        for token in prefix if reach is None else prefix[-reach:]:
            value = (value * 1_103_515_245 + token * 12_345 + 6_789) % (1 << 31)
        return (value >> 8) % vocabulary

    return next_token


schedules = st.builds(Schedule, *[st.booleans()] * 8)


@st.composite
def runs(draw):
    vocabulary = draw(st.integers(1, 6))
    token = st.integers(0, vocabulary - 1)
    reach = draw(st.sampled_from([1, 2, 2, 3, None]))
    next_token = random_operator(draw(st.integers(0, 10**6)), reach, vocabulary)
    prompt = tuple(draw(st.lists(token, min_size=1, max_size=9)))
    # A prompt in the model's own words fills the pool with n-grams that come again.
    prompt += reference.greedy_generate(next_token, prompt, draw(st.sampled_from([12, 6, 0])))
    window, ngram = draw(small_window), draw(small_ngram)
    length = window + ngram - 3
    return {
        "next_token": next_token,
        "prompt": prompt,
        "settings": Settings(
            window,
            ngram,
            guess_set_size=draw(st.sampled_from([4, 3, 2, 1, 0])),
            max_new_tokens=draw(st.sampled_from([30, 29, 17, 4, 2, 1])),
            stop_tokens=tuple(draw(st.lists(st.integers(0, vocabulary + 6), max_size=2))),
            schedule=draw(schedules),
        ),
        "init_window": draw(st.lists(token, min_size=length, max_size=length)),
    }


@settings(deadline=None, max_examples=600)
@given(runs())
def test_lookahead_gives_the_greedy_text_under_every_schedule(run):
    fixed: Settings = run["settings"]
    generation = reference.lookahead_generate(**run)
    text = reference.greedy_generate(
        run["next_token"], run["prompt"], fixed.max_new_tokens, fixed.stop_tokens
    )
    assert generation.tokens == text

    suffix = fixed.ngram_size - 1
    published = prompt = run["prompt"]
    for record in generation.steps:
        before, after = published, record.after
        published += record.emitted
        assert after.tokens == published
        assert 1 <= len(record.emitted) <= len(record.verdict.tokens) <= fixed.max_hits + 1
        assert after.cache[: len(before)] == before
        if not fixed.schedule.commit_overshoot or not after.finished:
            assert after.cache == published[:-1]
        assert len(record.candidates) <= fixed.guess_set_size
        assert all(len(candidate) == suffix for candidate in record.candidates)
        for bucket in after.pool.values():
            assert 0 < len(bucket) <= fixed.guess_set_size
            assert len(set(bucket)) == len(bucket)
        stage = min(record.stage + 1, suffix - 1)
        sizes = reference.warm_up_sizes(fixed.window_size, fixed.ngram_size)[stage]
        assert level_sizes(after.levels) == sizes
    if not fixed.schedule.commit_overshoot:
        assert published == prompt + text


def test_a_repeating_text_is_published_n_tokens_a_round():
    def cycle(prefix: reference.Tokens) -> int:
        return (prefix[-1] + 1) % 4

    fixed = Settings(window_size=3, ngram_size=4, guess_set_size=2, max_new_tokens=40)
    run = reference.lookahead_generate(cycle, [0, 1, 2, 3, 0, 1, 2, 3], fixed, [0, 0, 0, 0])
    assert [len(record.emitted) for record in run.steps] == [4] * 10
    official = replace(fixed, schedule=Schedule.official(True))
    run = reference.lookahead_generate(cycle, [0, 1, 2, 3, 0, 1, 2, 3], official, [0, 0, 0, 0])
    assert [len(record.emitted) for record in run.steps][:4] == [1, 1, 3, 3]
