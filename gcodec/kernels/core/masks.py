"""Masks of 64 values: which of them differ, which are large, and where the set bits are.

Bit i of a mask, a uint64, stands for value i of the group. Reading a group reads 64 values, all of which must exist.

    values     v0 v1 v2 v3 ... v63
    mask        0  1  1  0 ...  1         bit 0 first
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .intrinsics import HAS_BMI2
from .jit import kernel
from .scalar import U64
from .simd import INDEX, Vector, call, constant, from_lanes
from .unaligned import pointer

_GROUP = 64


def _group(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Vector:
    """Return values ``start ... start + 63`` of an array, in LLVM's terms."""
    bits = kind.dtype.bitwidth
    offset = builder.mul(start, ir.Constant(INDEX, bits // 8))
    vector = ir.VectorType(ir.IntType(bits), _GROUP).as_pointer()
    at = builder.bitcast(pointer(context, builder, kind, array, offset), vector)
    return Vector(builder, builder.load(at, align=1))


def _mask(marked: Vector) -> Any:
    return marked.builder.bitcast(marked.value, INDEX)


def _members(kinds: Any, context: Any, builder: Any, args: Any) -> Vector:
    """Return which values of a group are of each class, a lane each; arguments as of :func:`pass_group`.

    values at least t0     0 1 1 0 1 0 ...     as magnitudes, without their sign
                    t1     0 0 1 0 0 0 ...
    class 0                1 0 0 1 0 1 ...
    class 1                0 1 0 0 1 0 ...
    """
    values, thresholds, valid = kinds[0], kinds[3], args[2]
    reached = [valid]
    if not isinstance(values, types.NoneType):
        magnitudes = _group(context, builder, values, args[0], args[1]) & ((1 << values.dtype.bitwidth - 1) - 1)
        ends = [builder.extract_value(args[3], c) for c in range(thresholds.count - 1)]
        reached += [_mask(magnitudes.compare(">=", end)) for end in ends]
    reached += [ir.Constant(INDEX, 0)] * (thresholds.count + 1 - len(reached))
    lower, upper = from_lanes(builder, reached[:-1]), from_lanes(builder, reached[1:])
    return lower & valid & (upper ^ -1)


def _numbers(context: Any, builder: Any, kind: Any, array: Any, count: int) -> Any:
    """Return the address of the first elements of an array of 64-bit numbers, as a vector."""
    at = pointer(context, builder, kind, array, ir.Constant(INDEX, 0))
    return builder.bitcast(at, ir.VectorType(INDEX, count).as_pointer())


def _flags(marked: Vector) -> Any:
    """Return a mask of lanes as the bits of a number, the first one lowest."""
    builder = marked.builder
    return builder.zext(builder.bitcast(marked.value, ir.IntType(marked.n)), INDEX)


@intrinsic
def pass_group(typingctx: Any, values: Any, first: Any, valid: Any, thresholds: Any, gaps: Any, members: Any) -> Any:
    """Pass by a group of values.

    Args:
        values: uintW[n], which classes are of; or None: all values are of class 0.
        first: First value of the group.
        valid: Which of the group's values there are.
        thresholds: Tuple of uintW, the least magnitude that is of no class up to this one; the last one's is ignored.
        gaps: int64[], values of each class that are to be passed; less by those of the group afterwards.
        members: uint64[], result: which values are of each class.

    Returns:
        The classes whose gap has become negative, a bit each.
    """
    kinds = (values, first, valid, thresholds, gaps, members)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        masks = _members(kinds, context, builder, args)
        place = _numbers(context, builder, gaps, args[4], masks.n)
        left = Vector(builder, builder.load(place, align=8)) - masks.each_count()
        builder.store(masks.value, _numbers(context, builder, members, args[5], masks.n), align=8)
        builder.store(left.value, place, align=8)
        return _flags(left.negative())

    return types.uint64(values, types.intp, types.uint64, thresholds, gaps, members), generate


@intrinsic
def put_gap(typingctx: Any, gaps: Any, thresholds: Any, c: Any, gap: Any) -> Any:
    """Set the gap of one class by a blend of all: after a store of one number, :func:`pass_group` would wait until that
    has reached the cache, as no load takes its bytes from two stores.

    Args:
        gaps: int64[], as of :func:`pass_group`.
        thresholds: As there, for their number.
        c: The class.
        gap: Its new gap.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _numbers(context, builder, gaps, args[0], thresholds.count)
        lanes = constant(builder, list(range(thresholds.count)), 64)
        chosen = lanes.compare("==", args[2])
        before = Vector(builder, builder.load(place, align=8))
        builder.store(chosen.choose(args[3], before).value, place, align=8)
        return context.get_dummy_value()

    return types.void(gaps, thresholds, types.int64, types.int64), generate


@intrinsic
def count_group(
    typingctx: Any, values: Any, first: Any, valid: Any, thresholds: Any, changed: Any, totals: Any, members: Any
) -> Any:
    """Count the values of each class in a group; arguments as of :func:`pass_group`.

    Args:
        changed: Values that somebody looks for.
        totals: int64[], to which the number of values of each class is added.

    Returns:
        The classes with values among ``changed``, a bit each.
    """
    kinds = (values, first, valid, thresholds)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        masks = _members(kinds, context, builder, args)
        place = _numbers(context, builder, totals, args[5], masks.n)
        totals_after = Vector(builder, builder.load(place, align=8)) + masks.each_count()
        builder.store(totals_after.value, place, align=8)
        builder.store(masks.value, _numbers(context, builder, members, args[6], masks.n), align=8)
        return _flags((masks & args[4]).compare("!=", 0))

    return types.uint64(values, types.intp, types.uint64, thresholds, types.uint64, totals, members), generate


@intrinsic
def differences(typingctx: Any, values: Any, base: Any, start: Any) -> Any:
    """Return which of values ``start ... start + 63`` (uintW) differ from those of ``base`` (uintW), or from 0 if that
    is None."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        group = _group(context, builder, signature.args[0], args[0], args[2])
        none = isinstance(base, types.NoneType)
        other = 0 if none else _group(context, builder, signature.args[1], args[1], args[2])
        return _mask(group.compare("!=", other))

    return types.uint64(values, base, types.intp), generate


@intrinsic
def count_ones(typingctx: Any, mask: Any) -> Any:
    """Return how many bits of a uint64 are set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def lowest_one(typingctx: Any, mask: Any) -> Any:
    """Return the place of the lowest bit of a uint64 that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def highest_one(typingctx: Any, number: Any) -> Any:
    """Return the place of the highest bit of a uint64 above 0 that is set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zeros = builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.sub(ir.Constant(INDEX, 63), zeros)

    return types.int64(types.uint64), generate


@intrinsic
def _deposit(typingctx: Any, bits: Any, mask: Any) -> Any:
    """Return the bits, from the lowest on, at the places of a mask's set bits (BMI2)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "llvm.x86.bmi.pdep.64", INDEX, list(args))

    return types.uint64(types.uint64, types.uint64), generate


if HAS_BMI2:

    @kernel
    def place_of_one(mask, k):
        """Return the place of the set bit of a uint64 that has ``k`` set bits below it.

        mask       0 1 1 0 0 1        bit 0 first; k = 2
        place                5
        """
        return lowest_one(_deposit(U64(U64(1) << U64(k)), mask))

else:

    @kernel
    def place_of_one(mask, k):
        """Return the place of the set bit of a uint64 that has ``k`` set bits below it."""
        for _ in range(k):
            mask = U64(mask & U64(mask - U64(1)))
        return lowest_one(mask)
