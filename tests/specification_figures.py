"""The specification's own figures, as data: tests of the oracle and of the package share them."""

from __future__ import annotations

WARM_UP_SIZES = {
    (4, 3): [(4, None), (3, 4)],
    (5, 3): [(5, None), (4, 5)],
    (5, 4): [(6, None, None), (5, 6, None), (4, 5, 5)],
    (7, 5): [(9, None, None, None), (8, 9, None, None), (7, 8, 8, None), (6, 7, 7, 7)],
    (1, 3): [(1, None), (0, 1)],
}
"""0x03A, 0x03C: (W, N) -> level sizes before each call, up to the steady state."""

EXTRACTION_KEY = 10
EXTRACTION_LEVELS = ((11, 12, 13, 14), (21, 22, 23, 24, 25), (31, 32, 33, 34, 35))
EXTRACTION_NEW_ROW = (41, 42, 43, 44, 45)
EXTRACTION_NGRAMS = [
    (10, 21, 31, 41),
    (11, 22, 32, 42),
    (12, 23, 33, 43),
    (13, 24, 34, 44),
    (14, 25, 35, 45),
]
"""0x03B: N = 4, W = 5."""
EXTRACTION_ADVANCED = ((22, 23, 24, 25), (31, 32, 33, 34, 35), (41, 42, 43, 44, 45))
"""0x03C: the same window, one column later."""

ROW_TABLE = (
    [("ordinary", None, None, 0)]
    + [("lookahead", 0, column, column + 1) for column in range(4)]
    + [("lookahead", 1, column, column + 1) for column in range(5)]
    + [("lookahead", 2, column, column + 2) for column in range(5)]
    + [("verify", 0, offset, offset + 1) for offset in range(3)]
    + [("verify", 1, offset, offset + 1) for offset in range(3)]
)
"""0x04A: W = 5, N = 4, G = 2. (role, level or candidate, column or offset, position - p)."""

MASK = [
    "100000000000000000000",
    "110000000000000000000",
    "111000000000000000000",
    "111100000000000000000",
    "111110000000000000000",
    "100001000000000000000",
    "110000100000000000000",
    "111000010000000000000",
    "111100001000000000000",
    "111110000100000000000",
    "100001000010000000000",
    "110000100001000000000",
    "111000010000100000000",
    "111100001000010000000",
    "111110000100001000000",
    "100000000000000100000",
    "100000000000000110000",
    "100000000000000111000",
    "100000000000000000100",
    "100000000000000000110",
    "100000000000000000111",
]
"""0x04A: the mask of the same 21 rows."""

ORDINARY_ROW = 0
WINDOW_LOGIT_ROWS = slice(10, 15)
VERIFY_LOGIT_ROWS = slice(15, 21)

ROW_LEDGER = {(7, 5, 7): (1, 27, 28), (5, 4, 2): (1, 14, 6)}
"""0x05C: (W, N, candidates) -> ordinary, lookahead and verification rows; 56 and 21 in all."""

COMPACTION = {
    "cache_length": 128,
    "step_length": 149,
    "num_guess_tokens": 6,
    "suffix_size": 3,
    "winner": 1,
}
COMPACTION_FRONTIER = 129
COMPACTION_COPIES = ((146, 129), (147, 130))
COMPACTION_TRIM = 131
"""0x06C: max_hit = 2, three tokens are published."""

JACOBI_START = (9, 9, 9, 9)
JACOBI_SWEEPS = [(2, 0, 8, 0), (2, 3, 2, 9), (2, 3, 5, 3), (2, 3, 5, 6)]
JACOBI_SOLUTION = (2, 3, 5, 6)


def jacobi_toy(prefix: tuple[int, ...]) -> int:
    """0x02C: the triangular operator T1() .. T4(y1, y2, y3)."""
    if not prefix:
        return 2
    if len(prefix) == 2:
        return (prefix[0] + prefix[1]) % 10
    return (prefix[-1] + 1) % 10


SAMPLING_TARGET = {0: 20, 1: 30, 2: 10, 3: 40}
"""0x05B: token -> percent, for the tokens A, B, C, D."""
SAMPLING_CANDIDATES = [0, 0, 1]
"""0x05B: the candidate rows A, A, B."""
