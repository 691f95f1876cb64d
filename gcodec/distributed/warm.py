"""Compiling, or loading, every kernel that a mode needs, before other ranks wait for the first message."""

from __future__ import annotations

import numpy as np
import torch

from ..codec import warmup
from ..ladders import Ladder
from ..optimizers import STATE, formula_for, levels_for, stock_name, view_from_dump
from ..truncation import OF_MANY, Formula, Policy, terms_of
from ..valuetypes import ValueType
from .codebooks import Codebooks, Refresh
from .coder import Coder, Shared
from .gradients import Gradients, Segment
from .modes import Mode, NearLossless
from .stats import Tally

_VALUES = 70_000


class _AnyLevels:
    """Stands in for a rule."""

    def __init__(self, n_levels: int) -> None:
        self.n_levels = n_levels

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        """Every level."""
        out[:] = np.arange(len(values)) % self.n_levels


def warm(dtype: ValueType, mode: Mode, refresh: Refresh | None) -> None:
    """Run what all-reduces of ``dtype`` under ``mode`` will run: seconds, or minutes on a fresh installation."""
    if refresh is None:
        warmup([dtype.name])
    exponents = np.random.default_rng(0).integers(1, 12, _VALUES).astype(np.uint64) << np.uint64(dtype.head_shift)
    bits = (exponents | np.arange(_VALUES, dtype=np.uint64) % np.uint64(1 << dtype.mantissa_bits)).astype(dtype.uint)
    scheme = mode.scheme(dtype)
    rule = _AnyLevels(len(scheme.levels)) if isinstance(mode, NearLossless) else None
    codebooks = Codebooks(refresh or Refresh())
    codebooks.prepare([0], dtype.head_bits, len(scheme.levels))
    shared = Shared(codebooks, Gradients([Segment(0, _VALUES, torch.empty(0), (1,))]), np.zeros(1, np.int64))
    room = np.empty(_VALUES * 16, np.uint8)
    for books in (None, shared, shared):
        coder = Coder(dtype, scheme, rule, books, [(_VALUES,)], 1, Tally())
        size = coder.encode(bits, 0, 0, room)
        coder.decode(room[:size], np.empty_like(bits))
        coder.round(bits, 0, np.empty_like(bits))
        if books is not None:
            codebooks.end_step()
            codebooks.renew([0], codebooks.take(), 1 + codebooks.layers[0].cycle.step)
    if isinstance(mode, NearLossless):
        _warm_rules(mode, mode.ladder_of(dtype), bits[:64])


def _warm_rules(mode: NearLossless, ladder: Ladder, bits: np.ndarray) -> None:
    """The optimizers' formulas, before and after their first step."""
    floats = bits if bits.dtype == np.uint16 and ladder.drops[-1] <= 7 else bits.view(f"f{bits.itemsize}")
    ones = np.ones(len(bits), np.float32)
    for optimizer in mode.optimizers:
        name = stock_name(optimizer)
        later = {key: 1.0 if key == "step" else ones for key in STATE[name]}
        for group in optimizer.param_groups:
            for state in ({}, later):
                known = view_from_dump(name, group, state)
                levels_for(known, ones, floats, ladder=ladder)
                if floats.dtype == np.float32:
                    _warm_many(formula_for(known, Policy(ladder), "float32"), Policy(ladder), floats)


def _warm_many(formula: Formula, policy: Policy, floats: np.ndarray) -> None:
    """The kernel that does so for many tensors."""
    terms = terms_of(formula, policy)
    if terms is not None:
        k, *others = terms
        none, out = np.empty((0, 7), np.int64), np.empty(len(floats), np.uint8)
        OF_MANY[formula.kernel](out, floats, 0, none, np.array([k], np.float32), *others)
