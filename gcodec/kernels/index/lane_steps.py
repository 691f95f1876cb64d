"""Hold the values of 16 segments against their scales at once, a segment in each lane.

Of a short segment, most of the time would be spent waiting: for one division after another, and for what all lanes of a
vector have in common. With a segment in each lane, nothing but the values of a segment is summed up, and 16 segments
take little longer than one:

    magnitudes     segment 0 1 2 ... 15
    value 0                a b c ...           one vector
    value 1                A B C ...           the next

The laws are in ``tests/kernels/test_lane_steps.py``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import intrinsic_step
from ..core.simd import INDEX, Vector, constant, for_range, load, slot_for, splat
from ..predict.residuals import BFLOAT16, FLOAT16, FLOAT32
from .bound_steps import MIN_TOLD, SHARE_LOST, TRIED_AT_ONCE, FloatLanes, around, as_floats, chosen

SEGMENTS = 16
#: Rows of what a search knows of each segment, as 32 bits a lane: its largest value and its smallest; 1 over that, what
#: rounding changes it by, as a share of it, and what it changes others by, which ``fit_lanes`` takes; results of steps;
#: and the bits of the scale that was found, 0 if none was.
LARGEST, SMALL, INVERSE, SHARE, OF_POWER, NUMBER, N_MET, N_LOST, SCALE, N_ROWS = range(10)
#: Rows of bounds, as float64: those that values are held against, and those that they leave; and room for the former.
LOW, HIGH, LOWEST, HIGHEST, EXACT_LOW, EXACT_HIGH, N_BOUNDS = range(7)


def _row(builder: Any, address: Any, number: Any, bits: int) -> Any:
    """Return the address of a row of lanes."""
    number = number if isinstance(number, ir.Value) else ir.Constant(INDEX, number)
    return builder.gep(address, [builder.mul(number, ir.Constant(INDEX, SEGMENTS * bits // 8))])


def _floats(builder: Any, address: Any, number: Any, bits: int) -> FloatLanes:
    """Read a row of floats."""
    return as_floats(load(builder, _row(builder, address, number, bits), bits, SEGMENTS))


def _add(slot: Any, mask: Vector) -> None:
    """Count the lanes of a mask that are set, each by itself."""
    builder = mask.builder
    builder.store((Vector(builder, builder.load(slot)) - mask.widened(32)).value, slot)


def _transposing(builder: Any, args: list[Any], at: Any) -> None:
    """Write 16 values of 16 segments as rows of lanes; see below."""
    size = builder.mul(args[2], ir.Constant(INDEX, 4))
    rows = [load(builder, builder.gep(at(0, 32), [builder.mul(size, ir.Constant(INDEX, k))]), 32, SEGMENTS)
            for k in range(SEGMENTS)]  # fmt: skip
    # Each turn exchanges one bit of the number of the row and of the lane:
    #
    #     a0 a1 a2 a3        a0 b0 a2 b2        a0 b0 c0 d0
    #     b0 b1 b2 b3        a1 b1 a3 b3        a1 b1 c1 d1
    #     c0 c1 c2 c3   ->   c0 d0 c2 d2   ->   a2 b2 c2 d2
    #     d0 d1 d2 d3        c1 d1 c3 d3        a3 b3 c3 d3
    lanes = range(SEGMENTS)
    for bit in (1, 2, 4, 8):
        for k in range(SEGMENTS):
            if not k & bit:
                first, second = rows[k], rows[k + bit]
                rows[k] = first.pick([lane + SEGMENTS - bit if lane & bit else lane for lane in lanes], second)
                rows[k + bit] = first.pick([lane + SEGMENTS if lane & bit else lane + bit for lane in lanes], second)
    for k, row in enumerate(rows):
        row.store(_row(builder, at(3, 32), k, 32))


def _least(builder: Any, args: list[Any], at: Any) -> None:
    """Find the smallest magnitude of each segment; see below."""
    least = slot_for(builder, constant(builder, [-1] * SEGMENTS, 32).value)
    with for_range(builder, args[2]) as number:
        one_less = load(builder, _row(builder, at(0, 32), number, 32), 32, SEGMENTS) - 1  # so that 0 is the largest
        before = Vector(builder, builder.load(least))
        builder.store(one_less.compare("<", before).choose(one_less, before).value, least)
    (Vector(builder, builder.load(least)) + 1).store(_row(builder, at(3, 32), SMALL, 32))


def _fitting(by_chance: int) -> Any:
    """Make a step that tells which of TRIED_AT_ONCE factors the smallest value of each segment has; see below."""

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        inverse, share, of_power = (_floats(builder, at(5, 32), row, 32) for row in (INVERSE, SHARE, OF_POWER))
        most, first = (as_floats(splat(builder, args[k], 32, SEGMENTS)) for k in (4, 3))
        factors = [first.of("fadd", float(k)) for k in range(TRIED_AT_ONCE)]
        zeros = constant(builder, [0] * SEGMENTS, 32)
        n_values, *counted = (slot_for(builder, zeros.value) for _ in range(1 + 2 * TRIED_AT_ONCE))
        told, fit = counted[:TRIED_AT_ONCE], counted[TRIED_AT_ONCE:]
        with for_range(builder, args[2]) as number:
            values = _floats(builder, at(0, 32), number, 32)
            ratios_of_1, powers = values.of("fmul", inverse), as_floats(values.bits() & 0x7F800000)
            margins_of_1 = ratios_of_1.of("fmul", share).of("fadd", powers.of("fmul", of_power))
            is_value = values.is_(">", 0.0)
            _add(n_values, is_value)
            for factor, n_told, n_fit in zip(factors, told, fit, strict=True):
                ratios, margins = ratios_of_1.of("fmul", factor), margins_of_1.of("fmul", factor)
                nearest = ratios.nearest()
                away = as_floats(ratios.of("fsub", nearest).bits() & 0x7FFFFFFF)  # without its sign
                is_told = is_value & margins.is_("<", 0.25) & ratios.is_("<", most)
                _add(n_told, is_told)
                _add(n_fit, is_told & away.is_("<=", margins))  # no ratio to the smallest is below 1
        all_values = Vector(builder, builder.load(n_values))
        least = all_values.compare("<", MIN_TOLD).choose(all_values, zeros.fill(MIN_TOLD))
        most_fit, best = zeros, as_floats(zeros)
        for factor, n_told, n_fit in zip(factors, told, fit, strict=True):
            of_factor, fitting = Vector(builder, builder.load(n_told)), Vector(builder, builder.load(n_fit))
            fits = of_factor.compare(">=", least) & ((of_factor - fitting) * SHARE_LOST).compare("<=", of_factor)
            least_more = most_fit.compare(">", 0).choose(most_fit + by_chance, most_fit)
            is_best = fits & fitting.compare(">", least_more)
            most_fit, best = is_best.choose(fitting, most_fit), chosen(is_best, factor, best)
        place = _row(builder, at(5, 32), NUMBER, 32)
        found = load(builder, place, 32, SEGMENTS)
        found.compare("==", 0).choose(best.bits(), found).store(place)

    return intrinsic_step(types.void, 7, generate)


def _meeting(dtype_code: int) -> Any:
    """Make a step that holds the values of 16 segments against the bounds of their scales; see below."""
    width = 64 if dtype_code == FLOAT32 else 32

    def generate(builder: Any, args: list[Any], at: Any) -> None:
        kind, wide = (ir.VectorType(each, SEGMENTS) for each in (ir.FloatType(), ir.DoubleType()))
        limit, last = (as_floats(splat(builder, args[k], 32, SEGMENTS)) for k in (3, 4))
        low, high = (_floats(builder, at(7, 64), row, 64) for row in (LOW, HIGH))
        if width == 64:
            limit, last = (FloatLanes(builder, builder.fpext(number.value, wide)) for number in (limit, last))
        else:  # bounds are float32s already
            low, high = (FloatLanes(builder, builder.fptrunc(number.value, kind)) for number in (low, high))
        total = low.of("fadd", high)
        inverse = total.one_over(2.0)
        zeros = constant(builder, [0] * SEGMENTS, 32)
        lowest, highest = slot_for(builder, low.bits().value), slot_for(builder, high.bits().value)
        n_met, n_lost = slot_for(builder, zeros.value), slot_for(builder, zeros.value)
        with for_range(builder, args[2]) as number:
            values = _floats(builder, at(0, 32), number, 32)
            if width == 64:
                values = FloatLanes(builder, builder.fpext(values.value, wide))
            ratios = values.of("fmul", inverse)
            factors = ratios.nearest()
            factors = chosen(factors.is_("<", last), factors, last)
            reciprocals = factors.one_over(1.0)  # as in bound_steps, that of 0 is infinite, and does not fit
            below, above = around(values, dtype_code)
            least, most = below.of("fmul", reciprocals), above.of("fmul", reciprocals)
            is_met = values.is_(">", 0.0) & ratios.is_("<", limit)
            fits = is_met & least.is_("<=", high) & most.is_(">=", low)
            from_least, from_most = fits.choose(least.bits(), low.bits()), fits.choose(most.bits(), high.bits())
            before = Vector(builder, builder.load(lowest))
            builder.store(from_least.above(before).choose(from_least, before).value, lowest)
            before = Vector(builder, builder.load(highest))
            builder.store(before.above(from_most).choose(from_most, before).value, highest)
            _add(n_met, is_met)
            _add(n_lost, is_met & (fits ^ 1))
        for slot, row in ((lowest, LOWEST), (highest, HIGHEST)):
            ends = as_floats(Vector(builder, builder.load(slot)))
            ends = ends if width == 64 else FloatLanes(builder, builder.fpext(ends.value, wide))
            ends.bits().store(_row(builder, at(7, 64), row, 64))
        for slot, row in ((n_met, N_MET), (n_lost, N_LOST)):
            Vector(builder, builder.load(slot)).store(_row(builder, at(5, 32), row, 32))

    return intrinsic_step(types.void, 9, generate)


#: transpose_16(rows float32[SEGMENTS * n], i, n, columns float32[], k): writes values i ... i + 15 of 16 rows of n as
#: 16 rows of 16 lanes.
transpose_16 = intrinsic_step(types.void, 5, _transposing)
#: least_lanes(magnitudes float32[n * SEGMENTS], 0, n, lanes uint32[N_ROWS * SEGMENTS], 0): writes the bits of the
#: smallest magnitude of each segment that is not 0 as SMALL; 0 where all are.
least_lanes = intrinsic_step(types.void, 5, _least)
#: fit_lanes(magnitudes, 0, n, factor, most, lanes, 0): of each segment whose NUMBER is 0, that becomes the bits of the
#: one among TRIED_AT_ONCE factors from ``factor`` on that the smallest value may have, as
#: ``bound_steps.fitting_factors`` has it, and that most values fit; other arguments as there. Of types of 16 bits,
#: values may fit a finer scale by chance.
fit_lanes, fit_short_lanes = _fitting(0), _fitting(2)
#: meet_..._lanes(magnitudes, 0, n, limit, last, lanes, 0, bounds float64[N_BOUNDS * SEGMENTS], 0): holds values against
#: bounds as ``bound_steps.meet_bfloat16`` and the others do, and writes N_MET, N_LOST, LOWEST and HIGHEST of each
#: segment; ``limit`` and ``last`` are bits of float32.
meet_bfloat16_lanes, meet_float16_lanes, meet_float32_lanes = map(_meeting, (BFLOAT16, FLOAT16, FLOAT32))
