"""Find how many low mantissa bits of each value are zero, as a level."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..core.jit import kernel
from ..core.scalar import U8, U64, wrap
from ..core.simd import INDEX, Vector, constant, for_range, load, load_lane, slot_for
from ..core.unaligned import pointer, width_of

_GROUP = 64


@intrinsic
def _levels_of_group(typingctx: Any, values: Any, first: Any, masks: Any, ends: Any, n: Any, levels: Any) -> Any:
    """Do as :func:`levels_by_zeros` for the 64 values from ``first`` on, with ``n`` masks."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = values.dtype.bitwidth

        def place(kind: Any, array: Any, index: Any) -> Any:
            size = ir.Constant(INDEX, kind.dtype.bitwidth // 8)
            return pointer(context, builder, kind, array, builder.mul(index, size))

        group = load(builder, place(values, args[0], args[1]), bits, _GROUP)
        magnitudes = group & ((1 << bits - 1) - 1)
        total = slot_for(builder, constant(builder, [0] * _GROUP).value)
        with for_range(builder, args[4]) as k:
            mask, end = (load_lane(builder, place(masks, array, k), bits) for array in args[2:4])
            # Masks grow with the level and ends fall, so the levels that are met are the first ones, and their number
            # is the level: no search, and no branch that depends on a value.
            is_met = (group & mask).compare("==", 0) & magnitudes.compare("<", end)
            builder.store((Vector(builder, builder.load(total)) + is_met.to(8)).value, total)
        Vector(builder, builder.load(total)).store(place(levels, args[5], args[1]))
        return context.get_dummy_value()

    return types.void(values, types.intp, masks, ends, types.intp, levels), generate


@kernel
def levels_by_zeros(values, masks, ends, levels):
    """Count the levels whose bits are zero in each value, and which are for its magnitude.

    level 2     ######        are zero
    level 1       ####
    value     10010000        level 1

    Args:
        values: uintW[n].
        masks: uintW[n_levels - 1], the bits of each level but level 0; each holds those of the level before.
        ends: uintW[n_levels - 1], falling: magnitudes from here on are not for the level.
        levels: uint8[n], result.
    """
    whole = len(values) & -_GROUP
    for first in range(0, whole, _GROUP):
        _levels_of_group(values, first, masks, ends, len(masks), levels)
    # Fewer than a group, whose 64 values must all exist: one by one, by the same rule.
    for i in range(whole, len(values)):
        magnitude = values[i] & wrap(U64(U64(1) << U64(width_of(values) - 1)) - U64(1), values[i])
        level = 0
        for k in range(len(masks)):
            level += (values[i] & masks[k]) == 0 and magnitude < ends[k]
        levels[i] = U8(level)
