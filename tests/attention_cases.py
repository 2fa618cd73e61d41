"""Attention in plain numpy, and cases for every implementation of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Case:
    """Arguments of `attend`."""

    arrays: dict[str, np.ndarray]
    scale: float = 0.5
    window: int | None = None
    softcap: float | None = None

    @property
    def options(self):
        return {"scale": self.scale, "window": self.window, "softcap": self.softcap}

    @property
    def behind(self):
        """Which cached entries are leftovers, bool [B, 1, C, 1]."""
        at = np.arange(self.arrays["cached_keys"].shape[2])
        return (at[None, :] >= self.arrays["length"][:, None])[:, None, :, None]

    def cast(self, dtype):
        """Floats in another dtype."""
        floats = {n: x.astype(dtype) for n, x in self.arrays.items() if x.dtype == np.float32}
        return replace(self, arrays=self.arrays | floats)

    def with_leftovers(self, value):
        """The same, with all leftovers of one value."""
        return replace(
            self,
            arrays=self.arrays
            | {
                name: np.where(self.behind, np.float32(value), self.arrays[name])
                for name in ("cached_keys", "cached_values")
            },
        )


def plain(case: Case) -> np.ndarray:
    """One sequence, query head and row at a time, in float64."""
    a = {name: x.astype(np.float64) for name, x in case.arrays.items() if x.dtype.kind == "f"}
    a |= {name: x for name, x in case.arrays.items() if name not in a}
    # bfloat16 is no float of numpy's.
    a = {n: x.astype(np.float64) if x.dtype.kind == "V" else x for n, x in a.items()}
    out = np.zeros(a["queries"].shape)
    for b, k, g in np.ndindex(out.shape[:3]):
        n = a["length"][b]
        keys = np.concatenate([a["cached_keys"][b, k, :n], a["block_keys"][b, k]])
        values = np.concatenate([a["cached_values"][b, k, :n], a["block_values"][b, k]])
        at = np.concatenate([np.arange(n), a["positions"][b]])
        for t, query in enumerate(a["queries"][b, k, g]):
            seen = np.concatenate([np.ones(n, bool), a["block_mask"][b, t]])
            if case.window is not None:
                seen = seen & (at > a["positions"][b, t] - case.window)
            scores = case.scale * keys[seen] @ query
            if case.softcap is not None:
                scores = case.softcap * np.tanh(scores / case.softcap)
            weights = np.exp(scores - scores.max())
            out[b, k, g, t] = (weights / weights.sum()) @ values[seen]
    return out


def random_case(
    seed,
    *,
    lengths=(0, 1, 4),
    kv_heads=2,
    group=3,
    rows=5,
    capacity=11,
    head_dim=4,
    big=1.0,
    **options,
) -> Case:
    """Random numbers, a random mask, and rows of isolated branches that share positions."""
    rng = np.random.default_rng(seed)
    batch_size = len(lengths)

    def normal(*shape):
        return (big * rng.normal(size=shape)).astype(np.float32)

    mask = rng.random((batch_size, rows, rows)) < 0.5
    mask |= np.eye(rows, dtype=bool)
    length = np.array(lengths, np.int32)
    # Depths repeat, as those of a window's columns and of candidates do.
    depth = np.sort(rng.integers(0, max(rows // 2, 1), (batch_size, rows)), axis=1)
    arrays = {
        "queries": normal(batch_size, kv_heads, group, rows, head_dim),
        "cached_keys": normal(batch_size, kv_heads, capacity, head_dim),
        "cached_values": normal(batch_size, kv_heads, capacity, head_dim),
        "length": length,
        "block_keys": normal(batch_size, kv_heads, rows, head_dim),
        "block_values": normal(batch_size, kv_heads, rows, head_dim),
        "block_mask": mask,
        "positions": (length[:, None] + depth).astype(np.int32),
    }
    return Case(arrays, **options)


SHAPES = {
    "grouped": {},
    "one of everything": {
        "lengths": (1,),
        "kv_heads": 1,
        "group": 1,
        "rows": 1,
        "capacity": 1,
        "head_dim": 2,
    },
    "an ordinary step": {"lengths": (0, 63, 64), "rows": 1, "capacity": 64, "head_dim": 8},
    "a round": {"lengths": (97,), "kv_heads": 1, "rows": 56, "capacity": 192, "head_dim": 8},
    "odd rows": {"lengths": (64, 192), "group": 1, "rows": 13, "capacity": 192, "head_dim": 8},
    "no whole block": {"lengths": (200, 129, 0), "rows": 7, "capacity": 200, "head_dim": 8},
    "lanes": {
        "lengths": (300, 20),
        "kv_heads": 1,
        "group": 2,
        "capacity": 320,
        "head_dim": 128,
        "scale": 0.1,
    },
    "window": {"lengths": (128, 130), "rows": 9, "capacity": 192, "head_dim": 8, "window": 3},
    "both": {"lengths": (150, 9), "rows": 3, "capacity": 192, "softcap": 2.0, "window": 40},
}
"""Arguments of `random_case`: what a kernel may get wrong at its edges."""
