"""The oracle of sampling: filters, logit processors and verification in plain Python and float64.

Written from the specification (0x05B) and from the definitions, one row and one token at a time. It
shares nothing with the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

NOTHING = -math.inf
Row = list[float]
"""Logits, scores or probabilities of one position."""


# Filters


@dataclass(frozen=True)
class Filters:
    """Temperature, top-k, top-p, min-p, in the order in which they apply."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __call__(self, logits: Sequence[float]) -> Row:
        """Log-weights; what is removed is -inf."""
        return self.with_margin(logits)[0]

    def with_margin(self, logits: Sequence[float]) -> tuple[Row, float]:
        """The log-weights, and how far the nearest decision was from going the other way."""
        scores = [x / self.temperature for x in logits]
        margin = math.inf
        if self.top_k:
            least = sorted(scores, reverse=True)[min(self.top_k, len(scores)) - 1]
            scores = [x if x >= least else NOTHING for x in scores]
        if self.top_p < 1:
            scores, margin = _top_p(scores, self.top_p)
        if self.min_p > 0:
            best = max(scores)
            ratios = [math.exp(x - best) for x in scores]
            gaps = [abs(r - self.min_p) for r in ratios if r != 1]
            margin = min([margin, *gaps])
            kept = (r == 1 or r >= self.min_p for r in ratios)
            scores = [x if keep else NOTHING for x, keep in zip(scores, kept, strict=True)]
        return scores, margin


def _top_p(scores: Row, p: float) -> tuple[Row, float]:
    probabilities = softmax(scores)
    order = sorted(range(len(scores)), key=lambda i: scores[i])  # stable: lower ids first
    mass, kept, margin = 0.0, list(scores), math.inf
    for i in order[:-1]:
        mass += probabilities[i]
        margin = min(margin, abs(mass - (1 - p)))
        if mass <= 1 - p:
            kept[i] = NOTHING
    return kept, margin


def softmax(scores: Sequence[float]) -> Row:
    best = max(scores)
    masses = [math.exp(x - best) for x in scores]
    return [mass / sum(masses) for mass in masses]


# Processors

Processor = Callable[[Row, list[int], int], Row]
"""(logits, the whole text, length of the prompt) -> logits."""


def repetition_penalty(penalty: float) -> Processor:
    def process(logits: Row, text: list[int], _: int) -> Row:
        changed = list(logits)
        for token in set(text):
            x = logits[token]
            changed[token] = x * penalty if x < 0 else x / penalty
        return changed

    return process


def presence_penalty(penalty: float) -> Processor:
    def process(logits: Row, text: list[int], prompt_length: int) -> Row:
        written = set(text[prompt_length:])
        return [x - penalty * (token in written) for token, x in enumerate(logits)]

    return process


def frequency_penalty(penalty: float) -> Processor:
    def process(logits: Row, text: list[int], prompt_length: int) -> Row:
        written = text[prompt_length:]
        return [x - penalty * written.count(token) for token, x in enumerate(logits)]

    return process


def no_repeat_ngram(size: int) -> Processor:
    def process(logits: Row, text: list[int], _: int) -> Row:
        ngrams = {tuple(text[i : i + size]) for i in range(len(text) - size + 1)}
        tail = text[len(text) - size + 1 :]
        return [NOTHING if (*tail, token) in ngrams else x for token, x in enumerate(logits)]

    return process


def banned_tokens(tokens: Sequence[int]) -> Processor:
    return lambda logits, text, _: [
        NOTHING if token in tokens else x for token, x in enumerate(logits)
    ]


def min_new_tokens(count: int, stops: Sequence[int]) -> Processor:
    def process(logits: Row, text: list[int], prompt_length: int) -> Row:
        early = len(text) - prompt_length < count
        return [NOTHING if early and t in stops else x for t, x in enumerate(logits)]

    return process


# Verification: specification 0x05B


def acceptance_probabilities(p: Sequence[float], offered: Sequence[int]) -> tuple[Row, Row]:
    """Of each offered token, its probability when its test is reached, and the residual masses.

    Rejected mass is removed and the rest renormalised; a token that was tested has none left.
    """
    residual, found = list(p), []
    for token in offered:
        found.append(residual[token])
        left = sum(x for other, x in enumerate(residual) if other != token)
        residual = [
            0.0 if other == token or left <= 0 else x / left for other, x in enumerate(residual)
        ]
    return found, residual


Choose = Callable[[list[int], list[tuple[int, int]]], int]
"""(tokens accepted so far, nodes on offer in order with their tokens) -> chosen token."""


def walk_tree(
    parents: Sequence[int],
    tokens: Sequence[int],
    valid: Sequence[bool],
    choose: Choose,
    max_accepted: int,
) -> tuple[list[int], list[int]]:
    """Verification of a token tree, one token at a time; disjoint suffixes are a tree.

    Returns:
        The chosen tokens, one more than are accepted, and the nodes of the accepted path.
    """
    survivors: list[int] = [0]
    emitted: list[int] = []
    while True:
        children = [n for n in range(1, len(parents)) if parents[n] in survivors and valid[n]]
        token = choose(emitted, [(n, tokens[n]) for n in children])
        emitted.append(token)
        agreeing = [n for n in children if tokens[n] == token]
        if not agreeing or len(emitted) > max_accepted:
            break
        survivors = agreeing
    node = survivors[0]
    path = [node]
    while path[0]:
        path.insert(0, parents[path[0]])
    return emitted, path


# Exact distributions

Conditional = Callable[[tuple[int, ...]], Row]
"""Target distribution of the next token after a text."""


def continuations(conditional: Conditional, prompt: Sequence[int], length: int) -> np.ndarray:
    """Probability [V, ..., V] of each continuation of a prompt, of `length` tokens."""
    row = np.array(conditional(tuple(prompt)))
    if length == 1:
        return row
    size = len(row)
    rest = [
        continuations(conditional, (*prompt, token), length - 1)
        if row[token] > 0
        else np.zeros((size,) * (length - 1))
        for token in range(size)
    ]
    return np.stack([p * deeper for p, deeper in zip(row, rest, strict=True)])


Tests = Callable[[Row, list[int]], tuple[Row, Row]]
"""(p, offered) -> acceptance probabilities when reached, and the residual masses."""


def verified_continuations(
    conditional: Conditional,
    prompt: Sequence[int],
    length: int,
    candidates: Sequence[Sequence[int]],
    tests: Tests = acceptance_probabilities,
    filtered: bool = True,
) -> np.ndarray:
    """What one round of residual verification and then ordinary sampling write, exactly.

    The uniforms are integrated out, so nothing is drawn. `tests` and `filtered` plant faults: other
    acceptance tests, or suffixes that survive though they do not share the accepted token.
    """
    size = len(conditional(tuple(prompt)))
    total = np.zeros((size,) * length)

    def finish(text: tuple[int, ...], mass: float) -> None:
        if mass <= 0:
            return
        if len(text) >= length:
            total[text[:length]] += mass
            return
        total[text] += mass * continuations(conditional, (*prompt, *text), length - len(text))

    def descend(row: Row, text: tuple[int, ...], alive: list[Sequence[int]], mass: float) -> None:
        if len(text) >= length:
            finish(text, mass)
            return
        depth = len(text)
        offered = [c[depth] for c in alive if depth < len(c)]
        found, residual = tests(row, offered)
        reached = mass
        for token, probability in zip(offered, found, strict=True):
            if reached * probability > 0:
                sharing = [c for c in alive if depth < len(c) and c[depth] == token]
                # The next row belongs to a candidate: it is right if the candidate's own tokens are
                # the accepted ones.
                owner = sharing[0]
                after = tuple(owner[: depth + 1]) if depth < len(owner) else (*text, token)
                descend(
                    list(conditional((*prompt, *after))),
                    (*text, token),
                    sharing if filtered else alive,
                    reached * probability,
                )
            reached *= 1 - probability
        for token, probability in enumerate(residual):
            finish((*text, token), reached * probability)

    descend(list(conditional(tuple(prompt))), (), list(candidates), 1.0)
    return total
