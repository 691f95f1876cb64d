"""Compilation, or loading, of every kernel that a mode needs, before other ranks wait for the first message.

Nothing here imports torch, which is not there while gcodec is installed (tools/kernel_work.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...codec import warmup
from ...dtypes import DType
from ...format.ladders import Ladder
from ...format.modes import BitLayout
from ...truncation.evaluate import Formula, Policy, terms_of
from ...truncation.optimizers import NUMBERS, RULES, formula_for, levels_for, stock_name, view_from_dump
from ..stats import Counters
from .coder import BufferCodebooks, Coder, LevelSource
from .shared_codebooks import Refresh, SharedCodebooks

if TYPE_CHECKING:
    from ..modes import Mode

_ROWS = 250, 280  #: rows and columns of a tensor with rows that predict each other
_VALUES = 70_000  #: as many values as that has
_BLOCK = 1 << 14  #: values per block of a frame


class _AnyLevels:
    """Stands in for a level chooser."""

    def __init__(self, n_levels: int) -> None:
        self.n_levels = n_levels

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        """Write every level in turn; arguments as for a level chooser."""
        out[:] = np.arange(len(values)) % self.n_levels


class _OneParameter:
    """Stands in for the gradients of a buffer."""

    def owners(self, begin: int, end: int) -> np.ndarray:
        """Return the first segment for every block; arguments as for gradients."""
        return np.zeros(-(-(end - begin) // _BLOCK), np.int64)


class StepRules(NamedTuple):
    """Says how the levels of a near-lossless mode are chosen.

    Attributes:
        ladder: Drops per level.
        groups: Of each group of parameters, its optimizer's name and its settings, under torch's names.
    """

    ladder: Ladder
    groups: Sequence[tuple[str, Mapping[str, Any]]]


def precompile_kernels(dtype: DType, mode: Mode, refresh: Refresh | None) -> None:
    """Run what all-reduces will run: for seconds, or minutes on a fresh installation.

    Args:
        mode: How values may be changed.
        refresh: When shared codebooks are renewed; None if every frame carries its own.
    """
    from ..modes import NearLossless  # imports torch, which there is where there is a mode

    rules = None
    if isinstance(mode, NearLossless):
        groups = [(stock_name(each), group) for each in mode.optimizers for group in each.param_groups]
        rules = StepRules(mode.ladder_of(dtype), groups)
    precompile_layout(dtype, mode.bit_layout(dtype), rules, refresh)


def precompile_layout(dtype: DType, bit_layout: BitLayout, rules: StepRules | None, refresh: Refresh | None) -> None:
    """Run what all-reduces will run whose frames keep some bits of each value.

    Args:
        rules: What chooses levels; None if nothing does.
        refresh: When shared codebooks are renewed; None if every frame carries its own.
    """
    if refresh is None:
        warmup([dtype.name])
    exponents = np.random.default_rng(0).integers(1, 12, _VALUES).astype(np.uint64) << np.uint64(dtype.head_shift)
    bits = (exponents | np.arange(_VALUES, dtype=np.uint64) % np.uint64(1 << dtype.mantissa_bits)).astype(dtype.uint)
    level_chooser = _AnyLevels(len(bit_layout.levels)) if rules else None
    codebooks = SharedCodebooks(refresh or Refresh())
    codebooks.prepare([0], dtype.head_bits, len(bit_layout.levels))
    shared = BufferCodebooks(codebooks, _OneParameter(), np.zeros(1, np.int64))
    frame = np.empty(_VALUES * 16, np.uint8)
    # Frames with codebooks of their own; then with shared ones, before there are any and once there are.
    for buffer_codebooks in (None, shared, shared):
        coder = Coder(dtype, bit_layout, level_chooser, buffer_codebooks, [(_VALUES,)], 1, Counters())
        size = coder.encode(bits, 0, 0, frame)
        coder.decode(frame[:size], np.empty_like(bits))
        coder.round(bits, 0, np.empty_like(bits))
        if buffer_codebooks is not None:
            codebooks.end_step()
            codebooks.renew([0], codebooks.take(), 1 + codebooks.layers[0].cycle.step)
    if dtype.predictable and (level_chooser is not None or not bit_layout.lossy):
        _warm_prediction(dtype, bit_layout, level_chooser, shared)
    if rules:
        _warm_rules(rules, bits[:64])


def rows_alike(dtype: DType, n_rows: int, n_columns: int) -> np.ndarray:
    """Return rows that are multiples of one another, end to end: uintW[n_rows * n_columns].

    Args:
        n_columns: Values of a row.
    """
    columns, rows = np.random.default_rng(0).uniform(0.5, 0.9, (2, max(n_rows, n_columns))).astype(np.float32)
    values = rows[:n_rows, None] * columns[:n_columns]
    if dtype.name == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16).reshape(-1)
    bits: np.ndarray = values.astype(dtype.name).view(dtype.uint).reshape(-1)
    return bits


def _warm_prediction(
    dtype: DType, bit_layout: BitLayout, level_chooser: LevelSource | None, shared: BufferCodebooks
) -> None:
    """Run the trial of a piece with predicted rows, and what comes of it at the next step."""
    bits = rows_alike(dtype, *_ROWS)
    frame = np.empty(16 * _VALUES, np.uint8)
    for _ in range(2):
        coder = Coder(dtype, bit_layout, level_chooser, shared, [_ROWS], 1, Counters())
        size = coder.encode(bits, 0, 0, frame)
        coder.decode(frame[:size], np.empty_like(bits))


def _warm_rules(rules: StepRules, bits: np.ndarray) -> None:
    """Run the optimizers' formulas, before and after their first step."""
    ladder = rules.ladder
    floats = bits if bits.dtype == np.uint16 and ladder.drops[-1] <= 7 else bits.view(f"f{bits.itemsize}")
    ones = np.ones(len(bits), np.float32)
    for name, settings in rules.groups:
        after_a_step = {key: 1.0 if key in NUMBERS else ones for key in RULES[name].state}
        for state in ({}, after_a_step):
            view = view_from_dump(name, settings, state)
            levels_for(view, ones, floats, ladder=ladder)
            if floats.dtype == np.float32:
                _warm_many(formula_for(view, Policy(ladder), "float32"), Policy(ladder), floats)


def _warm_many(formula: Formula, policy: Policy, floats: np.ndarray) -> None:
    """Run the kernel that evaluates a formula for many tensors, if there is one."""
    terms = terms_of(formula, policy)
    if terms is not None:
        k, *others = terms
        none, out = np.empty((0, 7), np.int64), np.empty(len(floats), np.uint8)
        formula.kernel.of_many(out, floats, 0, none, np.array([k], np.float32), *others)
