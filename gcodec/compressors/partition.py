"""Who adds up what: as many contiguous parts of a flat tensor as there are ranks."""

from __future__ import annotations


def parts_of(n_values: int, size: int) -> list[slice]:
    """One part per rank, as even as can be; empty ones last."""
    length = -(-n_values // size)
    return [slice(min(r * length, n_values), min((r + 1) * length, n_values)) for r in range(size)]
