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
from .simd import INDEX, Vector, call, constant, for_range, from_lanes, load, slot_for, store
from .unaligned import pointer

_GROUP = 64
ROW_GROUPS = 512  #: groups that are looked at together: numbers of their values take 16 bits
ROW_MASKS = ROW_GROUPS + 8  #: of them in a row: rows a page apart would share a few lines of the cache
N_COUNTED = 32  #: numbers that are compared at a time
ROW_COUNTS = ROW_GROUPS + N_COUNTED


def _group(context: Any, builder: Any, kind: Any, array: Any, start: Any) -> Vector:
    """Return values ``start ... start + 63`` of an array, in LLVM's terms."""
    bits = kind.dtype.bitwidth
    offset = builder.mul(start, ir.Constant(INDEX, bits // 8))
    vector = ir.VectorType(ir.IntType(bits), _GROUP).as_pointer()
    at = builder.bitcast(pointer(context, builder, kind, array, offset), vector)
    return Vector(builder, builder.load(at, align=1))


def _mask(marked: Vector) -> Any:
    return marked.builder.bitcast(marked.value, INDEX)


def _row(context: Any, builder: Any, kind: Any, array: Any, row: Any, length: int, index: Any) -> Any:
    """Return the address of an element of an array, of which ``length`` make a row."""
    element = builder.add(builder.mul(row, ir.Constant(INDEX, length)), index)
    return pointer(context, builder, kind, array, builder.mul(element, ir.Constant(INDEX, kind.dtype.bitwidth // 8)))


@intrinsic
def reach_group(typingctx: Any, values: Any, first: Any, thresholds: Any, reached: Any, g: Any) -> Any:
    """Note which values of a group are at least as large as each threshold, as magnitudes, without their sign.

    values at least t0     0 1 1 0 1 0 ...     row 1
                    t1     0 0 1 0 0 0 ...     row 2

    Args:
        values: uintW[n].
        first: First value of the group.
        thresholds: Tuple of uintW, rising; the last one is not looked at.
        reached: uint64[rows * ROW_MASKS], result: row c + 1 is for threshold c.
        g: Number of the group in its row.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        magnitudes = _group(context, builder, kind, args[0], args[1]) & ((1 << kind.dtype.bitwidth - 1) - 1)
        ends = [builder.extract_value(args[2], c) for c in range(thresholds.count - 1)]
        _store_masks(context, builder, [magnitudes.compare(">=", end) for end in ends], reached, args[3:])
        return context.get_dummy_value()

    return types.void(values, types.intp, thresholds, reached, types.intp), generate


def _store_masks(context: Any, builder: Any, masks: list[Vector], reached: Any, args: Any) -> None:
    for c, mask in enumerate(masks):
        row = ir.Constant(INDEX, c + 1)
        store(builder, _mask(mask), _row(context, builder, reached, args[0], row, ROW_MASKS, args[1]))


@intrinsic
def reach_group_by_top(typingctx: Any, values: Any, first: Any, thresholds: Any, reached: Any, g: Any) -> Any:
    """Do as :func:`reach_group`, for thresholds above 0 of which only the highest nine bits are set: one comparison of
    bytes does for 64 values.

    bfloat16       s eeeeeeee fffffff
    threshold      0 tttttttt 0000000
    compared         eeeeeeee > tttttttt - 1      as bytes; no value reaches 1 00000000 0000000, which ends up as 255
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        # Where the lower bits of a threshold are 0, `magnitude >= threshold` is `top > threshold's top - 1`, whatever
        # lies below the top; to() cuts the sign off above the byte.
        shift = max(kind.dtype.bitwidth - 9, 0)
        tops = (_group(context, builder, kind, args[0], args[1]) >> shift).to(8)
        ends = [builder.extract_value(args[2], c) for c in range(thresholds.count - 1)]
        ends = [builder.lshr(end, ir.Constant(end.type, shift)) for end in ends]
        ends = [builder.sub(end, ir.Constant(end.type, 1)) for end in ends]
        _store_masks(context, builder, [tops.compare(">", end) for end in ends], reached, args[3:])
        return context.get_dummy_value()

    return types.void(values, types.intp, thresholds, reached, types.intp), generate


@intrinsic
def rank_members(typingctx: Any, reached: Any, before: Any, c: Any, n_groups: Any) -> Any:
    """Say of each group which of its values are of a class, and how many there are before it; eight groups at a time.

    row c         0 1 1 0 1 0 ...
    row c + 1     0 0 1 0 0 0 ...
    class c       0 1 0 0 1 0 ...     in place of row c

    Args:
        reached: uint64[rows * ROW_MASKS], of which row c becomes the members of class c.
        before: uint16[rows * ROW_COUNTS], result in row c: members of class c before each group.
        n_groups: Number of groups, a multiple of 8.

    Returns:
        Members of class c in all groups.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        following = builder.add(args[2], ir.Constant(INDEX, 1))
        first = ir.Constant(INDEX, 0)
        rows = [_row(context, builder, reached, args[0], row, ROW_MASKS, first) for row in (args[2], following)]
        results = _row(context, builder, before, args[1], args[2], ROW_COUNTS, first)
        zeros = constant(builder, [0] * 8, 16)
        passed = slot_for(builder, zeros.value)  # in every lane, so that only an addition waits for the eight before
        with for_range(builder, builder.lshr(args[3], ir.Constant(INDEX, 3))) as eight:
            place, above = (builder.gep(row, [builder.mul(eight, ir.Constant(INDEX, 64))]) for row in rows)
            members = load(builder, place, 64, 8) & (load(builder, above, 64, 8) ^ -1)
            members.store(place)
            counts = members.each_count().to(16)
            sums = counts
            #     counts       3   0   4   1 ...      of eight groups
            #     sums         3   3   7   8 ...      running
            #     stored       0   3   3   7 ...      less the own count, plus all of the eights before
            #
            # In 16 bits: a window has 32768 values, fewer than 2**16.
            for distance in (1, 2, 4):  # afterwards each lane is the sum of itself and of those before it
                sums = sums + sums.pick([8 + k if k < distance else k - distance for k in range(8)], zeros)
            earlier = Vector(builder, builder.load(passed))
            (sums - counts + earlier).store(builder.gep(results, [builder.mul(eight, ir.Constant(INDEX, 16))]))
            builder.store((earlier + sums.pick([7] * 8)).value, passed)
        return builder.zext(Vector(builder, builder.load(passed)).lane(0), INDEX)

    return types.int64(reached, before, types.intp, types.intp), generate


@intrinsic
def count_up_to(typingctx: Any, before: Any, place: Any, limit: Any) -> Any:
    """Return how many of the 32 numbers from ``before[place]`` (uint16) on are at most ``limit``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = pointer(context, builder, before, args[0], builder.mul(args[1], ir.Constant(INDEX, 2)))
        return load(builder, at, 16, N_COUNTED).compare("<=", args[2]).count()

    return types.int64(before, types.intp, types.int64), generate


@intrinsic
def class_of(typingctx: Any, value: Any, thresholds: Any) -> Any:
    """Return how many of the thresholds but the last the magnitude of a value (uintW) reaches; see
    :func:`reach_group`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if thresholds.count == 1:
            return ir.Constant(INDEX, 0)
        bits = value.bitwidth
        magnitude = builder.and_(args[0], ir.Constant(ir.IntType(bits), (1 << bits - 1) - 1))
        ends = [builder.extract_value(args[1], c) for c in range(thresholds.count - 1)]
        ends.append(ir.Constant(ir.IntType(bits), (1 << bits) - 1))  # which none reaches
        return from_lanes(builder, ends).compare("<=", magnitude).count()

    return types.int64(value, thresholds), generate


@intrinsic
def differences(typingctx: Any, values: Any, base: Any, start: Any) -> Any:
    """Return which of values ``start ... start + 63`` (uintW) differ from those of ``base`` (uintW), or from 0 if that
    is None."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # Bits are compared, not numbers: +0 and -0 differ, and a NaN is equal to the same NaN. Lossless means bit by
        # bit.
        group = _group(context, builder, signature.args[0], args[0], args[2])
        none = isinstance(base, types.NoneType)
        other = 0 if none else _group(context, builder, signature.args[1], args[1], args[2])
        return _mask(group.compare("!=", other))

    return types.uint64(values, base, types.intp), generate


@intrinsic
def reaching(typingctx: Any, numbers: Any, start: Any, least: Any) -> Any:
    """Return which of ``numbers[start] ... numbers[start + 63]`` (uint8) are at least ``least``, up to 255."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _mask(_group(context, builder, signature.args[0], args[0], args[1]).compare(">=", args[2]))

    return types.uint64(numbers, types.intp, types.int64), generate


@intrinsic
def count_ones(typingctx: Any, mask: Any) -> Any:
    """Return how many bits of a uint64 are set."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])


@intrinsic
def lowest_one(typingctx: Any, mask: Any) -> Any:
    """Return the place of the lowest bit of a uint64 that is set; 64 if none is."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # 0 stands for: of 0, the number of bits, and not undefined.
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def highest_one(typingctx: Any, number: Any) -> Any:
    """Return the place of the highest bit of a uint64 above 0 that is set."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # 1 stands for: undefined of 0, which never comes. CPUs without an instruction that counts zeros save a branch.
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
        # Bit k is put where the mask has its bit number k, counted from 0.
        return lowest_one(_deposit(U64(U64(1) << U64(k)), mask))

else:

    @kernel
    def place_of_one(mask, k):
        """Return the place of the set bit of a uint64 that has ``k`` set bits below it."""
        # Each turn clears the lowest bit that is set, until the one that is looked for is the lowest.
        for _ in range(k):
            mask = U64(mask & U64(mask - U64(1)))
        return lowest_one(mask)
