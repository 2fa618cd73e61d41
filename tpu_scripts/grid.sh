#!/usr/bin/env bash
# A W/N/G grid, on one machine: answers the prompts of a file once for each (W, N, G), into
# results/w7n5g7.jsonl and so on, and continues where it stopped. Every line has tokens and rounds.
#   grid.sh PROMPTS.jsonl W,N,G [W,N,G ...] [-- options of `lookahead-jax batch`]
set -euo pipefail

fail() {
    printf 'grid.sh: %s\n' "$*" >&2
    exit 2
}

(($# >= 2)) || fail "expected PROMPTS.jsonl W,N,G [W,N,G ...] [-- OPTION ...]"
prompts=$1
shift
grid=()
while (($#)) && [[ $1 != -- ]]; do
    [[ $1 =~ ^[0-9]+,[0-9]+,[0-9]+$ ]] || fail "expected W,N,G such as 7,5,7, got '$1'"
    grid+=("$1")
    shift
done
((${#grid[@]})) || fail "expected at least one W,N,G"
[[ ${1:-} != -- ]] || shift
for point in "${grid[@]}"; do
    IFS=, read -r window ngram guesses <<<"$point"
    lookahead-jax batch "$prompts" "results/w${window}n${ngram}g${guesses}.jsonl" \
        --window "$window" --ngram "$ngram" --guesses "$guesses" "$@"
done
