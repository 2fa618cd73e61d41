"""TPU chips and slices: the vendor's peak figures, and what the names of slices count.

Sources, for every chip its page of the Cloud TPU documentation (`Chip.page`). Where a page gives
the interconnect one way, in bits, it is twice that here, in bytes. v4's page gives none: it is six
links of 50 GB/s each way (Jouppi et al. 2023, "TPU v4", table 4). v5p's int8 figure is from jax's
own table of chips (jax.experimental.pallas.tpu.get_tpu_info). The pages call the same capacity GB
in one place and GiB in another; that table has GiB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lookahead_jax.errors import LookaheadError

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One kind of chip. All figures are peaks, of a whole chip.

    Attributes:
        name: As slices are named.
        bf16_flops: FLOP/s of bfloat16 products.
        int8_ops: Operations/s of int8 products; None where the vendor names none. For the record:
            int8 weights are widened before the product here, so that this is not reached.
        hbm_bytes: Memory.
        hbm_bandwidth: Bytes/s.
        ici_bandwidth: Bytes/s between chips, both directions and all links together.
        cores: TensorCores.
        names_count_cores: Whether the number in a slice's name is that of cores, not of chips.
        devices: Devices that jax sees in it, which share all of the above.
        most_chips: Of the largest slice.
        page: Where the figures are from.
    """

    name: str
    bf16_flops: float
    int8_ops: float | None
    hbm_bytes: int
    hbm_bandwidth: float
    ici_bandwidth: float
    cores: int
    names_count_cores: bool
    devices: int
    most_chips: int
    page: str


_PAGES = "https://docs.cloud.google.com/tpu/docs"

CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            Chip(
                *("v4", 275e12, 275e12, 32 * GIB, 1200e9, 600e9),
                *(2, True, 1, 4096, f"{_PAGES}/v4"),
            ),
            Chip(
                *("v5e", 197e12, 393e12, 16 * GIB, 819e9, 400e9),
                *(1, False, 1, 256, f"{_PAGES}/v5e"),
            ),
            Chip(
                *("v5p", 459e12, 918e12, 95 * GIB, 2765e9, 1200e9),
                *(2, True, 1, 6144, f"{_PAGES}/v5p"),
            ),
            Chip(
                *("v6e", 918e12, 1836e12, 32 * GIB, 1640e9, 800e9),
                *(1, False, 1, 256, f"{_PAGES}/v6e"),
            ),
            Chip(
                *("tpu7x", 2307e12, None, 192 * GIB, 7380e9, 1200e9),
                *(2, True, 2, 9216, f"{_PAGES}/tpu7x"),
            ),
        )
    }
)
"""Chips by name."""

ALIASES: Mapping[str, str] = MappingProxyType({"v5litepod": "v5e"})
"""Other names that the vendor's tools have for them."""


@dataclass(frozen=True)
class Slice:
    """Chips that are rented together.

    Attributes:
        chip: Their kind.
        num_chips: How many.
    """

    chip: Chip
    num_chips: int

    @property
    def num_devices(self) -> int:
        """Devices that jax sees: one for each chip, two for a chip of tpu7x."""
        return self.num_chips * self.chip.devices

    @property
    def name(self) -> str:
        """As it is asked for."""
        chip = self.chip
        return f"{chip.name}-{self.num_chips * (chip.cores if chip.names_count_cores else 1)}"


def parse_slice(name: str) -> Slice:
    """The slice of a name such as v5e-8, v5litepod-8 or v5p-8.

    The number counts chips for v5e and v6e, but TensorCores for v4, v5p and tpu7x, of which a chip
    has two: v5p-8 is four chips.

    Raises:
        LookaheadError: There is no such slice.
    """
    match = re.fullmatch(r"([a-z0-9]+)-([1-9][0-9]{0,5})", name.strip().lower())
    kind = match[1] if match else ""
    chip = CHIPS.get(ALIASES.get(kind, kind))
    if match is None or chip is None:
        raise LookaheadError(
            f"expected a TPU slice such as v5e-8, of {', '.join([*CHIPS, *ALIASES])}, got {name!r}"
        )
    count = int(match[2])
    if chip.names_count_cores and count % chip.cores:
        raise LookaheadError(
            f"the number in {name!r} counts TensorCores, {chip.cores} to a chip of {chip.name}: "
            f"expected a multiple of {chip.cores}"
        )
    num_chips = count // chip.cores if chip.names_count_cores else count
    if num_chips > chip.most_chips:
        raise LookaheadError(
            f"a slice of {chip.name} has at most {chip.most_chips} chips, got {num_chips} ({name})"
        )
    return Slice(chip, num_chips)
