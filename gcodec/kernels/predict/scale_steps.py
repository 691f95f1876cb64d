"""Vector steps of scales: scalar products of rows, and counts of the values that scales predict exactly, on every CPU.

The scalar laws are those of :mod:`residuals`. What is left of a row behind whole groups is done with the group that
ends with the row, where lanes that have been done do not count:

    row      0 ... 31 | 32 ... 63 | 64 ... 71
    groups   -------- | --------- |
                            40 ... 71            the last eight lanes count
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX2, HAS_AVX512, intrinsic_step
from ..core.simd import INDEX, Vector, constant, for_range, load, slot_for, splat
from .residuals import BFLOAT16, FLOAT16, FLOAT32

LANES = 16 if HAS_AVX512 else 8 if HAS_AVX2 else 4  #: values of a step, and the fewest that a row must have for one
N_SUMS = 32  #: partial sums of a scalar product, a fixed number so that its result does not depend on the machine
N_SCALES = 5  #: scales that are compared

_WIDTH = {FLOAT32: 32, BFLOAT16: 16, FLOAT16: 16}


def _number(value: int) -> Any:
    return ir.Constant(INDEX, value)


def _as_floats(vector: Vector) -> Any:
    return vector.builder.bitcast(vector.value, ir.VectorType(ir.FloatType(), vector.n))


def _calculate(operation: str, a: Vector, b: Vector) -> Vector:
    """Return the bits of ``fadd``, ``fsub`` or ``fmul`` of float32 lanes."""
    result = getattr(a.builder, operation)(_as_floats(a), _as_floats(b))
    return Vector(a.builder, a.builder.bitcast(result, a.value.type))


def _flush_denormal(bits: Vector) -> Vector:
    """Do as :func:`residuals.flush_denormal`."""
    return (bits & 0x7F800000).compare("!=", 0).choose(bits, bits.fill(0))


def _flush_tiny(bits: Vector) -> Vector:
    """Do as :func:`residuals.flush_tiny`."""
    return (bits & 0x7FFFFFFF).compare(">=", 0x01000000).choose(bits, bits.fill(0))


def _from_half(half: Vector) -> Vector:
    """Do as :func:`floats.from_half`."""
    magnitude = (half & 0x7FFF) << 13
    denormal = _calculate("fsub", magnitude + 0x38800000, magnitude.fill(0x38800000))
    size = magnitude.compare(">=", 0x800000).choose(magnitude + 0x38000000, denormal)
    return size | ((half & 0x8000) << 16)


def _load_floats(builder: Any, address: Any, form: int, n: int) -> Vector:
    """Read values of a type as float32; see :func:`residuals.as_float`."""
    values = load(builder, address, _WIDTH[form], n).to(32)
    if form == FLOAT32:
        return values
    return values << 16 if form == BFLOAT16 else _from_half(values)


def _over_row(builder: Any, n: Any, lanes: int, step: Callable[[Any, Any], None]) -> None:
    """Emit a step for each whole group of a row of ``n`` values, and for the rest.

    Args:
        builder: llvmlite's.
        n: Number of values, at least ``lanes``.
        step: Emits the step: ``step(place, n_done)``, the first ``n_done`` of whose lanes have been done; None: none
            has.
    """
    with for_range(builder, builder.udiv(n, _number(lanes))) as group:
        step(builder.mul(group, _number(lanes)), None)
    # The last group ends with the row: no value behind it is read, and lanes that the loop has done already are masked
    # out.
    rest = builder.urem(n, _number(lanes))
    with builder.if_then(builder.icmp_unsigned("!=", rest, _number(0))):
        step(builder.sub(n, _number(lanes)), builder.sub(_number(lanes), rest))


def _at(builder: Any, start: Any, bits: int, place: Any) -> Any:
    return builder.gep(start, [builder.mul(place, _number(bits // 8))])


def _that_count(builder: Any, n_done: Any, lanes: int) -> Vector:
    """Return the mask of the lanes that have not been done."""
    return constant(builder, list(range(lanes)), 32).compare(">=", splat(builder, n_done, 32, lanes))


# Scalar products


def _generate_products(form: int, builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that multiplies two rows.

    lane       0         1         ...  31
    sums       v0 * t0   v1 * t1   ...  v31 * t31
               + v32 * t32   ...
    total      lane k and lane k + 16, then k + 8, k + 4, k + 2, k + 1
    """
    zeros = constant(builder, [0] * N_SUMS, 32)
    slot = slot_for(builder, zeros.value)

    def add(place: Any, n_done: Any) -> None:
        values = _flush_denormal(
            _load_floats(builder, _at(builder, at(0, _WIDTH[form]), _WIDTH[form], place), form, N_SUMS)
        )
        factors = _flush_denormal(load(builder, _at(builder, at(2, 32), 32, place), 32, N_SUMS))
        products = _flush_tiny(_calculate("fmul", values, factors))
        if n_done is not None:
            products = _that_count(builder, n_done, N_SUMS).choose(products, zeros)
        sums = _calculate("fadd", Vector(builder, builder.load(slot)), products)
        builder.store(_flush_denormal(sums).value, slot)

    _over_row(builder, args[4], N_SUMS, add)
    # Halves are added, always in this order and with 32 lanes, whatever the CPU's registers hold: float32 sums depend
    # on the order, and the scale must not depend on the machine.
    total, n = Vector(builder, builder.load(slot)), N_SUMS
    while n > 1:
        n //= 2
        total = _flush_denormal(_calculate("fadd", total.part(0, n), total.part(1, n)))
    return builder.bitcast(total.lane(0), ir.FloatType())


# Scales


def _generate_best_scale(builder: Any, args: list[Any], at: Any) -> Any:
    """Generate the step that counts by each scale the products that round to their values, as
    :func:`scales.nearby_scale` says, and returns the number of the first scale that has most.

        product    s eeeeeeee mmmmmmm rrrrrrrrrrrrrrrr   plus 0x8000, less the value: below 0x10000 where it is met
        value      s eeeeeeee mmmmmmm 0000000000000000
    """
    kind = constant(builder, [0] * LANES, 32)
    scales = [
        splat(
            builder,
            builder.load(
                builder.bitcast(_at(builder, at(4, 32), 32, _number(k)), ir.IntType(32).as_pointer()), align=1
            ),
            32,
            LANES,
        )
        for k in range(N_SCALES)
    ]
    slots = [slot_for(builder, kind.value) for _ in scales]

    def count(place: Any, n_done: Any) -> None:
        word = load(builder, _at(builder, at(0, 16), 16, place), 16, LANES).to(32) << 16
        # Values with an exponent field of 0 or 1, which do not count, become a NaN that is near to no product.
        word = (word & 0x7FFFFFFF).compare(">=", 0x01000000).choose(word, word.fill(0x7FFF0000))
        factor = _flush_denormal(load(builder, _at(builder, at(2, 32), 32, place), 32, LANES))
        # product - value + 0x8000 < 0x10000, unsigned: the product lies below the value by half of bfloat16's last
        # place at most, or above it by less, as section 8 rounds halves up in magnitude. One addition and one
        # comparison for each scale.
        offset = word.fill(0x8000) - word
        for scale, slot in zip(scales, slots, strict=True):
            met = (_calculate("fmul", scale, factor) + offset).compare("<", 0x10000)
            if n_done is not None:
                met = Vector(builder, builder.and_(met.value, _that_count(builder, n_done, LANES).value))
            number = Vector(builder, builder.load(slot)) + met.to(32)
            builder.store(number.value, slot)

    _over_row(builder, args[6], LANES, count)
    best, most = _number(0), Vector(builder, builder.load(slots[0])).total()
    for k, slot in enumerate(slots[1:], 1):
        number = Vector(builder, builder.load(slot)).total()
        more = builder.icmp_unsigned(">", number, most)
        best, most = builder.select(more, _number(k), best), builder.select(more, number, most)
    return best


#: products_*(values, i, template, j, n) -> float32: the scalar product of ``n`` values, at least ``N_SUMS``, and
#: columns of a template.
products_float32, products_bfloat16, products_float16 = (
    intrinsic_step(types.float32, 5, partial(_generate_products, form)) for form in (FLOAT32, BFLOAT16, FLOAT16)
)
#: best_scale(values, i, template, j, scales, k, n) -> which of five scales (float32) predicts most of ``n`` bfloat16,
#: at least ``LANES``, exactly; the first of equals.
best_scale = intrinsic_step(types.intp, 7, _generate_best_scale)
