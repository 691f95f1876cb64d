"""Hold 32 values at a time against the bounds of a scale, and intersect the bounds of those that fit.

LLVM would make vectors of loops, too, but of a quarter of the lanes, and leave the values that are beyond four vectors
one by one: segments are short. The laws are in ``tests/kernels/test_bound_steps.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import INDEX, Vector, call, load, splat
from ..predict.residuals import BFLOAT16, FLOAT16, FLOAT32

AT_ONCE, TRIED_AT_ONCE = 32, 4
SHARE_LOST, MIN_TOLD = 4, 4  #: one in so many may contradict; and so many must tell
#: Of a float32, by how many units in the last place of the bounds of a type of 16 bits ties are inside or outside: they
#: stay so in spite of the errors of float32s. Of float64s, which hold float32s, the errors are far smaller than 16.
_ULPS, _ULPS_64 = 4, 16
_TINY = 0x38800000  #: the bits of the smallest float16 that is not denormal, 2**-14, as float32


class FloatLanes(NamedTuple):
    """Lanes of floats, with LLVM's instructions on them."""

    builder: Any
    value: Any

    def with_scalar(self, number: float) -> Any:
        """Return a number in all lanes."""
        return ir.Constant(self.value.type, [number] * self.value.type.count)

    def of(self, operation: str, other: Any) -> FloatLanes:
        """Return the result of an instruction on both, lane by lane; a number stands in all lanes."""
        other = other.value if isinstance(other, FloatLanes) else self.with_scalar(other)
        return FloatLanes(self.builder, getattr(self.builder, operation)(self.value, other))

    def is_(self, operator: str, other: Any) -> Vector:
        """Return the mask of an ordered comparison."""
        other = other.value if isinstance(other, FloatLanes) else self.with_scalar(other)
        return Vector(self.builder, self.builder.fcmp_ordered(operator, self.value, other))

    def one_over(self, number: float) -> FloatLanes:
        """Return a number divided by each lane."""
        return FloatLanes(self.builder, self.builder.fdiv(self.with_scalar(number), self.value))

    def bits(self) -> Vector:
        """Return the lanes as integers of their width."""
        width = 64 if isinstance(self.value.type.element, ir.DoubleType) else 32
        kind = ir.VectorType(ir.IntType(width), self.value.type.count)
        return Vector(self.builder, self.builder.bitcast(self.value, kind))

    def nearest(self) -> FloatLanes:
        """Return the nearest integers, of numbers far below 2**22: the sum with 1.5 * 2**p, which has no bits below 1,
        is rounded to one."""
        power = 2.0**52 if isinstance(self.value.type.element, ir.DoubleType) else 2.0**23
        return self.of("fadd", 1.5 * power).of("fsub", 1.5 * power)


def as_floats(lanes: Vector) -> FloatLanes:
    """Return lanes of integers as the floats that have their bits."""
    kind = ir.VectorType(ir.FloatType() if lanes.bits == 32 else ir.DoubleType(), lanes.n)
    return FloatLanes(lanes.builder, lanes.builder.bitcast(lanes.value, kind))


def chosen(mask: Vector, yes: FloatLanes, no: FloatLanes) -> FloatLanes:
    """Return ``yes`` where the mask is set, else ``no``."""
    return FloatLanes(mask.builder, mask.builder.select(mask.value, yes.value, no.value))


def _n_set(mask: Vector) -> Any:
    """Return how many lanes of a mask are set, as int64."""
    builder = mask.builder
    return builder.zext(builder.ctpop(builder.bitcast(mask.value, ir.IntType(mask.n))), INDEX)


def around(values: FloatLanes, dtype_code: int) -> tuple[FloatLanes, FloatLanes]:
    """Return between which numbers those lie that the type rounds to each value, as
    :func:`rounding_bounds.rounded_from` has them.

    bfloat16    s eeeeeeee mmmmmmL 0000000000000000
    below       s eeeeeeee mmmmmmX 1000000000000000      halfway to the next below it, across powers of two, too

    Of float32, in float64s, it is the 29th bit, of float16 the 13th.
    """
    bits = values.bits()
    shift, ulps = {BFLOAT16: (16, _ULPS), FLOAT16: (13, _ULPS), FLOAT32: (29, _ULPS_64)}[dtype_code]
    # Ties are rounded to the even one: of that they are inside.
    within = bits.fill((1 << shift - 1) + ulps) - ((bits >> shift) & 1) * (2 * ulps)
    below, above = as_floats(bits - within), as_floats(bits + within)
    if dtype_code == FLOAT16:
        is_tiny = bits.compare("<", _TINY)
        # A unit of those is 2**-24; ties are inside.
        tiny_below, tiny_above = values.of("fsub", 2.0**-25).bits() - ulps, values.of("fadd", 2.0**-25).bits() + ulps
        below = chosen(is_tiny, as_floats(tiny_below), below)
        above = chosen(is_tiny, as_floats(tiny_above), above)
    return below, above


def _meeting(dtype_code: int) -> Any:
    """Make a step that holds 32 values against the bounds of a scale."""
    width, name = (64, "i64") if dtype_code == FLOAT32 else (32, "i32")
    n = 16 if width == 64 else AT_ONCE

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        limit, low, high, last = (as_floats(splat(builder, args[2 + k], width, n)) for k in range(4))
        total = low.of("fadd", high)
        # 1 over the middle of both, which is half of the sum.
        inverse = total.one_over(2.0)
        lowest, highest = low.bits(), high.bits()
        n_met = n_fit = ir.Constant(INDEX, 0)
        for first in range(0, AT_ONCE, n):
            values = as_floats(load(builder, builder.gep(at(0, 32), [ir.Constant(INDEX, 4 * first)]), 32, n))
            if width == 64:
                values = FloatLanes(builder, builder.fpext(values.value, ir.VectorType(ir.DoubleType(), n)))
            ratios = values.of("fmul", inverse)
            factors = ratios.nearest()
            factors = chosen(factors.is_("<", last), factors, last)
            reciprocals = factors.one_over(1.0)
            #     scales that make the value of its factor        least |-----------------| most
            #     scales that are possible by now                           low |--------------| high
            #     they fit if they overlap, and then leave                      |---------| lowest, highest
            #
            # A factor of 0 has infinite ones, which do not overlap.
            below, above = around(values, dtype_code)
            least, most = below.of("fmul", reciprocals), above.of("fmul", reciprocals)
            is_met = values.is_(">", 0.0) & ratios.is_("<", limit)
            fits = is_met & least.is_("<=", high) & most.is_(">=", low)
            # Numbers above 0 are in the order of their bits.
            from_least, from_most = fits.choose(least.bits(), low.bits()), fits.choose(most.bits(), high.bits())
            lowest = from_least.above(lowest).choose(from_least, lowest)
            highest = highest.above(from_most).choose(from_most, highest)
            n_met, n_fit = builder.add(n_met, _n_set(is_met)), builder.add(n_fit, _n_set(fits))
        element = ir.IntType(width)
        ends = [
            call(builder, f"llvm.vector.reduce.{verb}.v{n}{name}", element, [lanes.value])
            for verb, lanes in (("smax", lowest), ("smin", highest))
        ]
        ends = [end if width == 64 else builder.zext(end, INDEX) for end in ends]
        for k, number in enumerate((*ends, n_met, builder.sub(n_met, n_fit))):
            address = builder.gep(at(6, 64), [ir.Constant(INDEX, 8 * k)])
            builder.store(number, builder.bitcast(address, INDEX.as_pointer()), align=1)

    return intrinsic_step(types.void, 8, generate)


def _fitting(builder: Any, args: list[Any], at: Any) -> Any:
    """Tell which of TRIED_AT_ONCE factors of a value 32 others do not contradict; see below."""
    values = as_floats(load(builder, at(0, 32), 32, AT_ONCE))
    inverse, share, of_power, most = (as_floats(splat(builder, args[2 + k], 32, AT_ONCE)) for k in range(4))
    # With the factor f, ratios and what rounding changed them by are f times those with the factor 1.
    ratios_of_1, powers = values.of("fmul", inverse), as_floats(values.bits() & 0x7F800000)
    margins_of_1 = ratios_of_1.of("fmul", share).of("fadd", powers.of("fmul", of_power))
    is_value, result, least = values.is_(">", 0.0), ir.Constant(INDEX, 0), ir.Constant(INDEX, MIN_TOLD)
    n_values = _n_set(is_value)
    least = builder.select(builder.icmp_signed("<", n_values, least), n_values, least)  # of few values, all must tell
    for k in range(TRIED_AT_ONCE):
        factor = as_floats(splat(builder, args[6], 32, AT_ONCE)).of("fadd", float(k))
        ratios, margins = ratios_of_1.of("fmul", factor), margins_of_1.of("fmul", factor)
        nearest = ratios.nearest()
        away = as_floats(ratios.of("fsub", nearest).bits() & 0x7FFFFFFF)  # without its sign
        # With a margin of a quarter to either side, half of all ratios would fit by chance: wider ones tell nothing.
        is_told = is_value & margins.is_("<", 0.25) & ratios.is_("<", most)
        n_told, n_fit = _n_set(is_told), _n_set(is_told & away.is_("<=", margins) & nearest.is_(">=", 1.0))
        n_lost = builder.mul(builder.sub(n_told, n_fit), ir.Constant(INDEX, SHARE_LOST))
        enough = builder.icmp_signed(">=", n_told, least)
        fits = builder.and_(enough, builder.icmp_signed("<=", n_lost, n_told))
        n_fit = builder.select(fits, n_fit, ir.Constant(INDEX, 0))
        result = builder.or_(result, builder.shl(n_fit, ir.Constant(INDEX, 8 * k)))
    return result


#: meet_bfloat16(magnitudes float32[32], i, limit, low, high, last, result int64[4], k): holds values whose ratio to the
#: scale is below a limit against its bounds, given the largest factor, all as bits of float32. The results are the
#: largest lower and the smallest upper bound of those that fit, as bits; how many values other than 0 there are; and
#: how many of them do not fit. meet_float16: likewise; meet_float32: with bits of float64.
meet_bfloat16, meet_float16, meet_float32 = map(_meeting, (BFLOAT16, FLOAT16, FLOAT32))
#: fitting_factors(magnitudes float32[32], i, inverse, share, of_power, most, factor): a byte for each of TRIED_AT_ONCE
#: factors from ``factor`` on that a value may have, given its inverse: how many ratios fit it, or 0 if too many of
#: those that tell contradict it. ``share`` is what rounding changes the value by, as a share of it, ``of_power`` times
#: the power of two at or below another what it changes that one's ratio by. Ratios of ``most`` and above do not count.
#: All are bits of float32.
fitting_factors = intrinsic_step(types.int64, 7, _fitting)
