"""The peers of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.peers.external import External, Timeouts, Weights, file_type, interpreter
from benchmarks.peers.ours import Ours, lade_first_level, lookahead, ordinary
from benchmarks.peers.peer import Peer
from benchmarks.streaming import num_cores
from lookahead_jax.bench.records import Point
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.errors import LookaheadError

ORDINARY, LOOKAHEAD, SMALL, OFFICIAL = "ordinary", "lookahead", "lookahead-small", "official"
TRANSFORMERS, PROMPT_LOOKUP, LADE = "transformers", "transformers-prompt-lookup", "lade"
LLAMA_CPP, LLAMA_CPP_QUANTISED = "llama.cpp", "llama.cpp-quantised"
NAMES = (
    *(ORDINARY, LOOKAHEAD, SMALL, OFFICIAL),
    *(TRANSFORMERS, PROMPT_LOOKUP, LADE),
    *(LLAMA_CPP, LLAMA_CPP_QUANTISED),
)


@dataclass(frozen=True)
class Kind:
    """What some external peers have in common.

    Attributes:
        package: Who can have a virtual environment of its own.
        worker: The module of `workers`.
        modules: What the interpreter must have.
    """

    package: str
    worker: str
    modules: tuple[str, ...]


ON_TORCH = Kind("transformers", "transformers_worker", ("torch", "transformers"))
OFFICIAL_RELEASE = Kind("lade", "lade_worker", ("lade", "torch", "transformers"))
OF_LLAMA_CPP = Kind("llama-cpp", "llama_cpp_worker", ("llama_cpp",))
PACKAGES = tuple(kind.package for kind in (ON_TORCH, OFFICIAL_RELEASE, OF_LLAMA_CPP))

SMALL_POINT = Point(3, 3, 3)
"""A round of few rows, which a CPU of few cores runs almost as fast as an ordinary step."""

PROMPT_LOOKUP_TOKENS = 10
"""`prompt_lookup_num_tokens`: the value of transformers' documentation."""


@dataclass(frozen=True)
class Setting:
    """What the peers are made of.

    Attributes:
        weights: The loaded model and its exports.
        source: The model's own file, where it is a GGUF file; else None.
        point: W, N and G of lookahead decoding, and of the authors'.
        context: Most tokens of a prompt and its text.
        venvs: Virtual environments by the names of `PACKAGES`.
        logs: Directory for what the workers print.
        timeouts: How long to wait for them.
    """

    weights: Weights
    source: Path | None
    point: Point
    context: int
    venvs: Mapping[str, Path]
    logs: Path
    timeouts: Timeouts


def all_peers(setting: Setting) -> list[Peer]:
    """All peers, in the order of `NAMES`."""
    return [*_ours(setting), *_on_torch(setting), *_llama_cpp(setting)]


def chosen(peers: Sequence[Peer], only: Sequence[str]) -> list[Peer]:
    """The peers of these names, in their own order; all of them where there are no names.

    Raises:
        LookaheadError: There is no such peer.
    """
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        raise LookaheadError(f"no peer {unknown[0]!r}: expected one of {', '.join(NAMES)}")
    return [peer for peer in peers if not only or peer.name in only]


def _ours(setting: Setting) -> list[Peer]:
    lm, (w, n, g) = setting.weights.lm, _numbers(setting.point)
    official = lookahead(LookaheadConfig.pinned(w, n, g))
    return [
        Ours(ORDINARY, lm, ordinary()),
        Ours(LOOKAHEAD, lm, lookahead(_config(setting.point))),
        Ours(SMALL, lm, lookahead(_config(SMALL_POINT))),
        Ours(OFFICIAL, lm, official, lade_first_level(w, n)),
    ]


def _on_torch(setting: Setting) -> list[Peer]:
    w, n, g = _numbers(setting.point)

    def plain() -> dict[str, Any]:
        return {"directory": str(setting.weights.hugging_face()), "threads": num_cores()}

    def lookup() -> dict[str, Any]:
        return {**plain(), "options": {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}}

    def official() -> dict[str, Any]:
        return {**plain(), "window": w, "ngram": n, "guesses": g}

    return [
        _external(setting, TRANSFORMERS, ON_TORCH, plain),
        _external(setting, PROMPT_LOOKUP, ON_TORCH, lookup),
        _external(setting, LADE, OFFICIAL_RELEASE, official),
    ]


def _llama_cpp(setting: Setting) -> list[Peer]:
    common, source = {"threads": num_cores(), "context": setting.context}, setting.source

    def same() -> dict[str, Any]:
        return {"path": str(setting.weights.gguf()), "float32_cache": True, **common}

    def own() -> dict[str, Any]:
        return {"path": str(source), "float32_cache": False, **common}

    quantised = _external(setting, LLAMA_CPP_QUANTISED, OF_LLAMA_CPP, own)
    if source is None:
        quantised = replace(quantised, obstacle="the model is no GGUF file", weights="-")
    else:
        quantised = replace(quantised, weights=file_type(source))
    return [_external(setting, LLAMA_CPP, OF_LLAMA_CPP, same), quantised]


def _external(
    setting: Setting,
    name: str,
    kind: Kind,
    settings: Callable[[], Mapping[str, Any]],
) -> External:
    return External(
        name=name,
        weights="float32",
        python=interpreter(setting.venvs, kind.package),
        module=kind.worker,
        needs=kind.modules,
        settings=settings,
        log=setting.logs / f"{name}.log",
        timeouts=setting.timeouts,
    )


def _numbers(point: Point) -> tuple[int, int, int]:
    return point.window_size, point.ngram_size, point.guess_set_size


def _config(point: Point) -> LookaheadConfig:
    w, n, g = _numbers(point)
    return LookaheadConfig(window_size=w, ngram_size=n, guess_set_size=g)
