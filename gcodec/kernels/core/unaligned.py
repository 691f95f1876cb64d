"""Unaligned loads and stores on byte arrays, which numba itself does not offer.

``load_u64(a, i)`` reads the eight bytes ``a[i] ... a[i + 7]`` as one little-endian number; ``store_u64`` writes them.

    a            ... | i  | i+1| i+2| i+3| i+4| i+5| i+6| i+7| ...
    load_u16           7..0 15..8                                        bits of the number
    load_u32           7..0 15..8 ... 31..24
    load_u64           7..0 15..8 ...                 63..56

Nothing is checked: the caller guarantees that the bytes exist.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .jit import kernel
from .numba_private import address_of, array_over

_BYTE = ir.IntType(8)


def pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Return the address ``offset`` bytes into an array's data, in LLVM's terms."""
    data = builder.bitcast(address_of(context, builder, array_type, array), _BYTE.as_pointer())
    return builder.gep(data, [offset])


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, bits: int) -> Any:
    byte = pointer(context, builder, array_type, array, index)
    return builder.bitcast(byte, ir.IntType(bits).as_pointer())


def _loader(bits: int, result: Any) -> Any:
    def typer(typingctx: Any, array: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
            # Without this, LLVM takes the address for a multiple of the size, and may choose instructions that fail
            # elsewhere.
            return builder.load(at, align=1)

        return result(array, types.intp), generate

    return intrinsic(typer)


def _storer(bits: int, value_type: Any) -> Any:
    def typer(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            at = _pointer(context, builder, signature.args[0], args[0], args[1], bits)
            builder.store(args[2], at, align=1)
            return context.get_dummy_value()

        return types.void(array, types.intp, value_type), generate

    return intrinsic(typer)


load_u16 = _loader(16, types.uint16)
load_u32 = _loader(32, types.uint32)
load_u64 = _loader(64, types.uint64)
store_u16 = _storer(16, types.uint16)
store_u32 = _storer(32, types.uint32)
store_u64 = _storer(64, types.uint64)


def _view(array: Any) -> Any:
    kind = types.Array(array.dtype, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        item_bytes = ir.Constant(ir.IntType(64), array.dtype.bitwidth // 8)
        at = pointer(context, builder, signature.args[0], args[0], builder.mul(args[1], item_bytes))
        return array_over(context, builder, kind, at, args[2])

    return kind(array, types.intp, types.intp), generate


@intrinsic
def subarray(typingctx: Any, array: Any, start: Any, count: Any) -> Any:
    """Return ``array[start : start + count]`` without checks and without the wrap-around of negative indices, which
    costs LLVM the vectorization of a loop. The array must outlive the view."""
    return _view(array)


@intrinsic
def subarray_if_any(typingctx: Any, array: Any, start: Any, count: Any) -> Any:
    """Return the :func:`subarray` of an array, or None of None."""
    if not isinstance(array, types.NoneType):
        return _view(array)
    return types.none(
        array, types.intp, types.intp
    ), lambda context, builder, signature, args: context.get_dummy_value()


@intrinsic
def value_if_any(typingctx: Any, array: Any, index: Any) -> Any:
    """Return ``array[index]`` of a contiguous array, without checks, or None of None."""
    if not isinstance(array, types.NoneType):

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            data = address_of(context, builder, array, args[0])
            return builder.load(builder.gep(data, [args[1]], inbounds=True))

        return array.dtype(array, types.intp), generate
    return types.none(array, types.intp), lambda context, builder, signature, args: context.get_dummy_value()


@intrinsic
def floats_at(typingctx: Any, address: Any, start: Any, count: Any) -> Any:
    """Return the float32s ``start ... start + count - 1`` at an address as an array, which the memory must outlive."""
    kind = types.Array(types.float32, 1, "C")

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = builder.add(args[0], builder.mul(args[1], ir.Constant(ir.IntType(64), 4)))
        return array_over(context, builder, kind, builder.inttoptr(at, _BYTE.as_pointer()), args[2])

    return kind(types.int64, types.intp, types.intp), generate


@intrinsic
def load_tuple(typingctx: Any, array: Any, count: Any) -> Any:
    """Return the first ``count`` values of a contiguous array, a literal number, as a tuple."""
    if not isinstance(count, types.IntegerLiteral):
        return None  # numba asks again with the literal
    kind = types.UniTuple(array.dtype, count.literal_value)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = address_of(context, builder, array, args[0])
        values = (builder.load(builder.gep(data, [ir.Constant(ir.IntType(64), i)])) for i in range(kind.count))
        return context.make_tuple(builder, kind, tuple(values))

    return kind(array, count), generate


@intrinsic
def width_of(typingctx: Any, array: Any) -> Any:
    """Return the bits of an array's elements: a constant to the compiler, unlike ``array.itemsize``."""
    width = ir.Constant(ir.IntType(64), array.dtype.bitwidth)
    return types.intp(array), lambda context, builder, signature, args: width


@intrinsic
def load_value(typingctx: Any, data: Any, index: Any, like: Any) -> Any:
    """Return the value at byte ``index`` of ``data``, of the type that ``like`` has as elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], args[0], args[1], like.dtype.bitwidth)
        return builder.load(at, align=1)

    return like.dtype(data, types.intp, like), generate


@intrinsic
def store_value(typingctx: Any, data: Any, index: Any, value: Any) -> Any:
    """Write an unsigned integer of any width at byte ``index`` of ``data``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at = _pointer(context, builder, signature.args[0], args[0], args[1], value.bitwidth)
        builder.store(args[2], at, align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, value), generate


@intrinsic
def float_from_bits(typingctx: Any, bits: Any) -> Any:
    """Return the float32 with these bits (uint32)."""
    return types.float32(types.uint32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.FloatType()
    )


@intrinsic
def bits_of_float(typingctx: Any, value: Any) -> Any:
    """Return the bits of a float32, as uint32."""
    return types.uint32(types.float32), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(32)
    )


@intrinsic
def double_from_bits(typingctx: Any, bits: Any) -> Any:
    """Return the float64 with these bits (uint64)."""
    return types.float64(types.uint64), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.DoubleType()
    )


@intrinsic
def bits_of_double(typingctx: Any, value: Any) -> Any:
    """Return the bits of a float64, as uint64."""
    return types.uint64(types.float64), lambda context, builder, signature, args: builder.bitcast(
        args[0], ir.IntType(64)
    )


@intrinsic
def leading_zeros(typingctx: Any, bits: Any) -> Any:
    """Return how many zero bits a uint32 has above the highest one; 32 of 0.

    bits       0 0 0 1 x x x x ...      3
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # 0 stands for: of 0, the number of bits, and not undefined.
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint32(types.uint32), generate


def fetch(builder: Any, address: Any) -> None:
    """Emit a prefetch of the cache line with this byte."""
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
    name = "llvm.prefetch.p0"
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    # Not as far as the first level, where what is at hand would have to make room; not to be written, which would.
    builder.call(function, [address, ir.Constant(word, 0), ir.Constant(word, 2), ir.Constant(word, 1)])


@intrinsic
def prefetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Have the cache line with byte ``index`` of an array fetched, which need not exist."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        fetch(builder, pointer(context, builder, signature.args[0], args[0], args[1]))
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@kernel
def fetch_values(values, start, count):
    """Have the values ``start ... start + count`` fetched, which need not exist."""
    width = width_of(values) // 8
    # Up to 63 bytes more, as values need not begin where a line does: the last of them may lie in one more line.
    for line in range(start * width, (start + count) * width + 63, 64):
        prefetch(values, line)
