"""Bounds that sizes are compared with (docs/benchmarks.md): the local order-0 bound and the GComp paper's layout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..dtypes import DType
from ..format.ladders import Ladder
from ..format.levels import kept_bits

BLOCK = 1 << 14  #: values; each block has statistics of its own
NO_DROPS = Ladder((0,))


@dataclass(frozen=True)
class Bound:
    """A size in bits.

    Attributes:
        symbols: Entropy of the symbols.
        kept: Sign and mantissa bits that are stored as they are.
    """

    symbols: float
    kept: int

    @property
    def bytes(self) -> float:
        """The whole size in bytes."""
        return (self.symbols + self.kept) / 8


def order0_bits(symbols: np.ndarray) -> float:
    """Return the bits that an ideal order-0 code takes for ``symbols`` (integers >= 0): n times their entropy."""
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(symbols.size * math.log2(symbols.size) - (counts * np.log2(counts)).sum()) if symbols.size else 0.0


def local_order0_bits(symbols: np.ndarray, block: int = BLOCK) -> float:
    """Return the bits that ideal order-0 codes spend, one for each block of ``symbols``."""
    return sum(order0_bits(symbols[start : start + block]) for start in range(0, symbols.size, block))


def head_symbols(bits: np.ndarray, dtype: DType) -> np.ndarray:
    """Return the head (exponent) of each value plus 1, and 0 for the value whose bits are all zero: int64."""
    heads = (bits >> bits.dtype.type(dtype.head_shift)).astype(np.int64) & dtype.head_mask
    return np.where(bits == 0, 0, heads + 1)


def joint_symbols(bits: np.ndarray, dtype: DType, levels: np.ndarray | None) -> np.ndarray:
    """Return (head, level) as one number, 0 for zero: int64.

    Args:
        bits: uintW[n].
        levels: uint8[n]; None if there is one level only.
    """
    heads = head_symbols(bits, dtype)
    if levels is None:
        return heads
    return np.where(heads == 0, 0, heads + levels.astype(np.int64) * (dtype.head_mask + 1))


def order0_bound(bits: np.ndarray, dtype: DType, levels: np.ndarray | None = None, ladder: Ladder = NO_DROPS) -> Bound:
    """Return the local order-0 bound of values as they are stored (rounded and pruned already).

    Args:
        bits: uintW[n].
        levels: Each value's index into ``ladder``, uint8[n]; None puts all at level 0.
        ladder: Mantissa bits dropped per level; fixed-bits mode is a ladder of one.

    Returns:
        The sum over blocks of 16 Ki values of n times the entropy of (head, level), zero being a symbol of its own; and
        the sign and kept mantissa bits of the values that are not zero.
    """
    kept = np.array([kept_bits(dtype, drop) for drop in ladder.drops])
    nonzero = bits != 0
    stored = int(np.count_nonzero(nonzero)) * int(kept[0]) if levels is None else int(kept[levels[nonzero]].sum())
    return Bound(local_order0_bits(joint_symbols(bits, dtype, levels)), stored)


def paper_layout(bits: np.ndarray, dtype: DType, levels: np.ndarray, ladder: Ladder) -> Bound:
    """Return the GComp paper's layout at its most favorable.

    That is an ideal code from one table of exponents for the whole dump, zeros and denormals pruned at the price of a
    symbol, and for each other value its level (2 bits for 4 levels), its sign and its kept mantissa; no header, padding
    or table.

    Args: as in :func:`order0_bound`, but values not yet rounded: truncation leaves the exponents alone.
    """
    exponents = (bits >> bits.dtype.type(dtype.mantissa_bits)).astype(np.int64) & (1 << dtype.exponent_bits) - 1
    normal = exponents != 0
    level_bits = math.ceil(math.log2(len(ladder.drops)))
    kept = np.array([level_bits + 1 + dtype.mantissa_bits - drop for drop in ladder.drops])
    return Bound(order0_bits(exponents), int(kept[levels[normal]].sum()))
