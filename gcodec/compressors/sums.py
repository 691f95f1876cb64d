"""Sums over ranks that do not depend on how they are made: wherever a value lies, its terms are added by rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from .contract import wide


def sum_by_rank(terms: Iterable[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The sum of tensors of ``out``'s shape and dtype, in the order in which they come, into ``out``, which is none of
    them. float16 and bfloat16 are added up in float32, and rounded once."""
    total = out if wide(out.dtype) is out.dtype else torch.empty_like(out, dtype=wide(out.dtype))
    for number, term in enumerate(terms):
        if number:
            total.add_(term)
        else:  # not added to zero, which would lose the sign of -0
            total.copy_(term)
    return out if total is out else out.copy_(total)
