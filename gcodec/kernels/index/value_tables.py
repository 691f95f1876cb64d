"""Look up what indices stand for in tables of 256 values: 64 at a time where the CPU permutes bytes by tables of 256.

Such a CPU takes the values apart: byte 0 of each is in one table of bytes, byte 1 in the next.

    table      b1b0 ...      planes   b0 ... | b1 ...        256 bytes each
    index      k        ->   byte k of each plane, joined to a value again
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX512, intrinsic_step
from ..core.jit import kernel
from ..core.simd import INDEX, Vector, load, splat
from ..core.unaligned import width_of
from ..core.vector import look_up_64
from ..predict.residuals import BFLOAT16, FLOAT16, FLOAT32
from .products import HALF, SIGN, TINY

N_ENTRIES = 256
_GROUP = 64

if HAS_AVX512:
    from ..core.simd_avx512 import deinterleave_bytes, look_up_bytes

    def _joined(low: Vector, high: Vector) -> list[Vector]:
        """Return lanes of twice the width, twice as many registers: the lower halves from ``low``, the upper from
        ``high``.

        low        l0 l1 l2 l3
        high       h0 h1 h2 h3
        result     h0l0 h1l1     h2l2 h3l3
        """
        halves = (range(half * low.n // 2, (half + 1) * low.n // 2) for half in (0, 1))
        return [
            low.pick([lane for k in half for lane in (k, low.n + k)], high).seen_as(2 * low.bits) for half in halves
        ]

    def _look_up(bits: int) -> Any:
        def generate(builder: Any, args: list[Any], at: Any) -> None:
            #     parts     [b0] [b1] [b2] [b3]      a register of 64 bytes each, looked up by the same indices
            #               [b1b0 ..] [b3b2 ..]      joined in pairs: two registers each
            #               [b3b2b1b0 ........]      until the values are whole
            indices = load(builder, at(2, 8), 8, _GROUP)
            planes = [builder.gep(at(0, 8), [ir.Constant(INDEX, N_ENTRIES * k)]) for k in range(bits // 8)]
            parts = [[look_up_bytes(builder, plane, indices)] for plane in planes]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [
                    [lanes for both in zip(low, high, strict=True) for lanes in _joined(*both)] for low, high in pairs
                ]
            for k, lanes in enumerate(parts[0]):
                lanes.store(builder.gep(at(4, bits), [ir.Constant(INDEX, 64 * k)]))

        return intrinsic_step(types.void, 6, generate)

    def _take_apart(bits: int) -> Any:
        def generate(builder: Any, args: list[Any], at: Any) -> None:
            n_registers = bits // 8
            words = [
                load(builder, builder.gep(at(0, bits), [ir.Constant(INDEX, 64 * k)]), bits, 512 // bits)
                for k in range(n_registers)
            ]
            if bits == 32:
                planes = deinterleave_bytes(words)
            else:
                #     words       b1 b0 | b1 b0 | ...
                #     plane 0     bytes 0, 2, 4 ... of both registers      plane 1     bytes 1, 3, 5 ...
                low, high = (register.seen_as(8) for register in words)
                planes = [low.pick(list(range(first, 128, 2)), high) for first in (0, 1)]
            for k, plane in enumerate(planes):
                plane.store(builder.gep(at(2, 8), [ir.Constant(INDEX, N_ENTRIES * k)]))

        return intrinsic_step(types.void, 4, generate)

    def _product_planes(dtype_code: int, has_offset: bool) -> Any:
        """Make a step that multiplies 64 factors as :func:`products.product_of` does one, or :func:`products.sum_of`
        with an offset, and takes the results apart.

        bits of 32      b3 b2 b1 b0       float32: four planes, b0 first
        rounded         b3 b2 .. ..       bfloat16: planes b2 and b3
        rounded         .. .. b1 b0       float16: planes b0 and b1
        """

        def computed(builder: Any, operation: Any, one: Vector, other: Vector) -> Vector:
            floats = ir.VectorType(ir.FloatType(), one.n)
            given, by = (builder.bitcast(lanes.value, floats) for lanes in (one, other))
            bits = Vector(builder, builder.bitcast(operation(given, by), one.value.type))
            return (bits & 0x7FFFFFFF).compare("<", TINY).choose(bits & SIGN, bits)

        def product(builder: Any, factors: Vector, scale: Vector, offset: Vector | None) -> Vector:
            bits = computed(builder, builder.fmul, factors, scale)
            bits = bits if offset is None else computed(builder, builder.fadd, bits, offset)
            if dtype_code == BFLOAT16:
                return bits + (((bits >> 16) & 1) + 0x7FFF)
            return _to_even_half(builder, bits) if dtype_code == FLOAT16 else bits

        def generate(builder: Any, args: list[Any], at: Any) -> None:
            scale, places = splat(builder, args[2], 32, 16), [ir.Constant(INDEX, 64 * k) for k in range(4)]
            offset = splat(builder, args[5], 32, 16) if has_offset else None
            factors = [load(builder, builder.gep(at(0, 32), [place]), 32, 16) for place in places]
            # A byte of all 64 products to a register; of types of 16 bits, two of the four are the value.
            planes = deinterleave_bytes([product(builder, lanes, scale, offset) for lanes in factors])
            planes = planes[2:] if dtype_code == BFLOAT16 else planes[:2] if dtype_code == FLOAT16 else planes
            for k, plane in enumerate(planes):
                plane.store(builder.gep(at(3, 8), [ir.Constant(INDEX, N_ENTRIES * k)]))

        return intrinsic_step(types.void, 6 if has_offset else 5, generate)

    def _to_even_half(builder: Any, bits: Vector) -> Vector:
        """Return the bits of the float16 nearest to each float32, as :func:`products.to_even_half` does one."""
        floats, magnitude = ir.VectorType(ir.FloatType(), bits.n), bits & 0x7FFFFFFF
        # The three cases of to_even_half, all computed: no lane waits for a branch of another's.
        normal = (magnitude - 0x38000000 + (((magnitude >> 13) & 1) + 0xFFF)) >> 13
        half = builder.bitcast(magnitude.fill(HALF).value, floats)
        moved = builder.fadd(builder.bitcast(magnitude.value, floats), half)
        small = Vector(builder, builder.bitcast(moved, bits.value.type)) - HALF
        result = magnitude.compare("<", 0x38800000).choose(small, normal)
        result = magnitude.compare("<", 0x477FF000).choose(result, result.fill(0x7C00))
        return result | ((bits >> 16) & 0x8000)

    #: product_planes_f32(factors float32[256], k, bits of the scale, planes, k): planes of 64 products; the others: of
    #: bfloat16 and float16.
    product_planes_f32, product_planes_bf16, product_planes_f16 = (
        _product_planes(code, False) for code in (FLOAT32, BFLOAT16, FLOAT16)
    )
    #: sum_planes_f32(factors float32[256], k, bits of the scale, planes, k, bits of the offset): likewise of sums.
    sum_planes_f32, sum_planes_bf16, sum_planes_f16 = (
        _product_planes(code, True) for code in (FLOAT32, BFLOAT16, FLOAT16)
    )
    #: look_up_16(planes uint8[2 * 256], 0, indices, i, out, k): 64 values of 16 bits; look_up_32: of 32.
    look_up_16, look_up_32 = _look_up(16), _look_up(32)
    #: take_apart_16(table, i, planes, i): bytes of 64 values of 16 bits to two planes; take_apart_32: of 32, to four.
    take_apart_16, take_apart_32 = _take_apart(16), _take_apart(32)

    @kernel
    def fill_planes(table, n, planes):
        """Take the first ``n`` values of a table apart, and some more.

        Args:
            table: uintW[256].
            planes: uint8[256 * W / 8], result.
        """
        if width_of(table) == 32:
            for k in range(0, n, _GROUP):
                take_apart_32(table, k, planes, k)
        if width_of(table) == 16:
            for k in range(0, n, _GROUP):
                take_apart_16(table, k, planes, k)

    @kernel
    def fill_product_planes(factors, n, scale_bits, dtype_code, planes):
        """Take the products of a scale and the first ``n`` factors apart, and those of some more.

        Args:
            factors: float32[256], none of them denormal.
            scale_bits: Bits of the scale, a float32 that is not denormal.
            dtype_code: The values' type: that of float32, bfloat16 or float16 in docs/format.md section 2.
            planes: uint8[256 * W / 8], result.
        """
        if dtype_code == BFLOAT16:
            for k in range(0, n, _GROUP):
                product_planes_bf16(factors, k, scale_bits, planes, k)
        elif dtype_code == FLOAT16:
            for k in range(0, n, _GROUP):
                product_planes_f16(factors, k, scale_bits, planes, k)
        else:
            for k in range(0, n, _GROUP):
                product_planes_f32(factors, k, scale_bits, planes, k)

    @kernel
    def fill_sum_planes(factors, n, scale_bits, offset_bits, dtype_code, planes):
        """Take the sums of an offset, given its bits, and the products of :func:`fill_product_planes` apart."""
        if dtype_code == BFLOAT16:
            for k in range(0, n, _GROUP):
                sum_planes_bf16(factors, k, scale_bits, planes, k, offset_bits)
        elif dtype_code == FLOAT16:
            for k in range(0, n, _GROUP):
                sum_planes_f16(factors, k, scale_bits, planes, k, offset_bits)
        else:
            for k in range(0, n, _GROUP):
                sum_planes_f32(factors, k, scale_bits, planes, k, offset_bits)

    @kernel
    def look_up_groups(planes, indices, n, out):
        """Write the values that the first ``n`` indices stand for, in groups of 64; return how many were written. Those
        that are left, 63 at most if ``out`` is no longer, are the caller's.

        Args:
            planes: The values by index, taken apart.
            indices: uint8, at least ``n``.
            out: uintW, as many as there are indices; what is behind the first ``n`` may be overwritten.
        """
        #     indices     0 ... 63 | 64 ... 127 | 128 ... n - 1
        #     written     64       | 64         | 64, behind n, too, as long as all 64 places exist
        #
        # The places behind n are those of the caller's next values, which it writes later (docs/format.md section 10:
        # segments follow one another).
        i, last = 0, len(out) - _GROUP
        if width_of(out) == 32:
            while i < n and i <= last:
                look_up_32(planes, 0, indices, i, out, i)
                i += _GROUP
        if width_of(out) == 16:
            while i < n and i <= last:
                look_up_16(planes, 0, indices, i, out, i)
                i += _GROUP
        if width_of(out) == 8:
            while i < n and i <= last:
                look_up_64(planes, 0, indices, i, out, i)
                i += _GROUP
        return i

else:

    @kernel
    def fill_planes(table, n, planes):
        """Do nothing: :func:`look_up_all` looks into the table itself."""

    @kernel
    def fill_product_planes(factors, n, scale_bits, dtype_code, planes):
        """Do nothing: products are made where :func:`look_up_groups` leaves them to be made."""

    @kernel
    def fill_sum_planes(factors, n, scale_bits, offset_bits, dtype_code, planes):
        """Do nothing, likewise."""

    @kernel
    def look_up_groups(planes, indices, n, out):
        """Return 0: all values are left to the caller."""
        return 0


@kernel
def look_up_all(table, planes, indices, n, out):
    """Write the values of a table that the first ``n`` indices stand for.

    Args:
        table: uintW[256].
        planes: The same values, by :func:`fill_planes`; of bytes the table itself.
        indices: uint8, at least ``n``.
        out: uintW, as many as there are indices; the first ``n`` are the result, others may be overwritten.
    """
    for k in range(look_up_groups(planes, indices, n, out), n):
        out[k] = table[indices[k]]
