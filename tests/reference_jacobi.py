"""Ordinary greedy decoding and vanilla Jacobi decoding (specification 0x02), for the oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Tokens = tuple[int, ...]
NextToken = Callable[[Tokens], int]


def greedy_generate(
    next_token: NextToken, prompt: Sequence[int], max_new_tokens: int, stop_tokens: Tokens = ()
) -> Tokens:
    """Ordinary decoding: one token a call."""
    output: Tokens = ()
    while len(output) < max_new_tokens and not (output and output[-1] in stop_tokens):
        output += (next_token(tuple(prompt) + output),)
    return output


def jacobi_sweep(next_token: NextToken, prompt: Tokens, guess: Tokens) -> Tokens:
    """Updates every position from the previous vector."""
    return tuple(next_token(prompt + guess[:position]) for position in range(len(guess)))


def gauss_seidel_sweep(next_token: NextToken, prompt: Tokens, guess: Tokens) -> Tokens:
    """Updates positions left to right, each from the already updated ones."""
    updated: Tokens = ()
    for _ in guess:
        updated += (next_token(prompt + updated),)
    return updated


def jacobi_trajectory(
    next_token: NextToken,
    prompt: Tokens,
    guess: Tokens,
    sweep: Callable[[NextToken, Tokens, Tokens], Tokens] = jacobi_sweep,
) -> list[Tokens]:
    """The guess and every new vector up to the fixed point, which is the last entry, once.

    A causal sweep over m positions reaches it within m sweeps (specification 0x02A); one that does
    not raises ArithmeticError.
    """
    trajectory = [guess]
    while (updated := sweep(next_token, prompt, trajectory[-1])) != trajectory[-1]:
        if len(trajectory) > len(guess):
            raise ArithmeticError(f"no fixed point after {len(guess)} sweeps")
        trajectory.append(updated)
    return trajectory
