"""Vectors of integers in LLVM's own terms, with Python's operators: what the fused steps are written in.

A :class:`Vector` is one value of LLVM's intermediate code of type <n x i bits>; an operation on it emits an
instruction. LLVM fits any n to the registers that the CPU has. Drawings show lane 0 first, and the bits of a lane
highest first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

INDEX = ir.IntType(64)
_POSITION = ir.IntType(32)


def call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    """Call an LLVM function by name.

    Args:
        builder: llvmlite's.
        result: LLVM's type of the result.
        args: Arguments, values of LLVM's.

    Returns:
        The result, a value of LLVM's.
    """
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


class Vector:
    """Holds a vector and the builder that adds to it. Integers and scalars meet vectors as in numpy.

    Args:
        builder: llvmlite's.
        value: The vector, a value of LLVM's.
    """

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    @property
    def n(self) -> int:
        """Number of lanes."""
        return int(self.value.type.count)

    @property
    def bits(self) -> int:
        """Bits of a lane."""
        return int(self.value.type.element.width)

    def _like(self, other: Any) -> Any:
        if isinstance(other, Vector):
            return other.value
        if isinstance(other, int):
            # Of a negative number the bits that it has in so many bits: -1 is all ones.
            return ir.Constant(self.value.type, [other & (1 << self.bits) - 1] * self.n)
        return splat(self.builder, other, self.bits, self.n).value

    def _with(self, operation: str, other: Any) -> Vector:
        return Vector(self.builder, getattr(self.builder, operation)(self.value, self._like(other)))

    def __add__(self, other: Any) -> Vector:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Vector:
        return self._with("sub", other)

    def __mul__(self, other: Any) -> Vector:
        return self._with("mul", other)

    def __and__(self, other: Any) -> Vector:
        return self._with("and_", other)

    def __or__(self, other: Any) -> Vector:
        return self._with("or_", other)

    def __xor__(self, other: Any) -> Vector:
        return self._with("xor", other)

    def __lshift__(self, other: Any) -> Vector:
        """Shift by amounts below the width."""
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Vector:
        return self._with("lshr", other)

    def fill(self, number: int) -> Vector:
        """Return a vector of the same lanes that all hold one number."""
        return Vector(self.builder, self._like(number))

    def compare(self, operator: str, other: Any) -> Vector:
        """Return the mask of an unsigned comparison."""
        return Vector(self.builder, self.builder.icmp_unsigned(operator, self.value, self._like(other)))

    def negative(self) -> Vector:
        """Return the mask of the lanes whose topmost bit is set."""
        return Vector(self.builder, self.builder.icmp_signed("<", self.value, self._like(0)))

    def above(self, other: Any) -> Vector:
        """Return the mask of the lanes that are greater, as signed numbers."""
        return Vector(self.builder, self.builder.icmp_signed(">", self.value, self._like(other)))

    def widened(self, bits: int) -> Vector:
        """Return a mask as lanes of all ones or all zeros."""
        return Vector(self.builder, self.builder.sext(self.value, ir.VectorType(ir.IntType(bits), self.n)))

    def choose(self, yes: Any, no: Vector) -> Vector:
        """Return ``yes`` where this mask is set, else ``no``.

        mask       1 0 0 1
        yes        a b c d
        no         A B C D
        result     a B C d
        """
        return Vector(self.builder, self.builder.select(self.value, no._like(yes), no.value))

    def to(self, bits: int) -> Vector:
        """Return each lane zero-extended or cut to ``bits``."""
        kind = ir.VectorType(ir.IntType(bits), self.n)
        cast = self.builder.zext if bits > self.bits else self.builder.trunc
        return self if bits == self.bits else Vector(self.builder, cast(self.value, kind))

    def seen_as(self, bits: int) -> Vector:
        """Return the same bits as lanes of another width.

        8 bits     a   b   c   d        lane 0 first
        16 bits    b a     d c          a lane's highest bits first
        """
        kind = ir.VectorType(ir.IntType(bits), self.n * self.bits // bits)
        return Vector(self.builder, self.builder.bitcast(self.value, kind))

    def pick(self, lanes: list[int], other: Vector | None = None) -> Vector:
        """Return the lanes of these numbers, counted through this vector and ``other``.

        this a b c d,  other e f g h,  lanes [6, 0, 0, 3]:  g a a d
        """
        picks = ir.Constant(ir.VectorType(_POSITION, len(lanes)), lanes)
        second = self.value if other is None else other.value
        return Vector(self.builder, self.builder.shuffle_vector(self.value, second, picks))

    def part(self, k: int, n: int) -> Vector:
        """Return lanes ``k * n ... k * n + n - 1``."""
        return self.pick(list(range(k * n, k * n + n)))

    def number(self) -> Any:
        """Return a mask as a scalar of 64 bits, of which lane k is bit k."""
        # Lanes of a mask are single bits, and become those of a number as they are:
        #
        #     lanes      0 1 1 0 ...        lane 0 first
        #     number     ... 0110           bit 0 last
        number = self.builder.bitcast(self.value, ir.IntType(self.n))
        return number if self.n == 64 else self.builder.zext(number, INDEX)

    def count(self) -> Any:
        """Return the number of lanes that are set in a mask, as a scalar."""
        return call(self.builder, "llvm.ctpop.i64", INDEX, [self.number()])

    def each_count(self) -> Vector:
        """Return how many bits of each lane are set."""
        name = f"llvm.ctpop.v{self.n}i{self.bits}"
        return Vector(self.builder, call(self.builder, name, self.value.type, [self.value]))

    def multiply_pairs(self, factors: Vector) -> Vector:
        """Return sums of two products in a row, in lanes of twice the width. 512 bits, AVX-512.

        this       a b            c d
        factors    p q            r s
        result     a * p + b * q  c * r + d * s

        Args:
            factors: For bytes, which count as unsigned, signed bytes; for words of 16 bits, all signed, words.
        """
        # Of bytes, the sum of two products is cut off at 2**15 - 1 (it saturates): callers join bytes to numbers of 12
        # bits, by factors up to 64. Of words it is exact in 32 bits.
        result = ir.VectorType(ir.IntType(2 * self.bits), self.n // 2)
        name = {8: "pmaddubs.w", 16: "pmaddw.d"}[self.bits]
        args = [self.value, factors.seen_as(self.bits).value]
        return Vector(self.builder, call(self.builder, f"llvm.x86.avx512.{name}.512", result, args))

    def total(self) -> Any:
        """Return the sum of all lanes, modulo their width, as a scalar."""
        name = f"llvm.vector.reduce.add.v{self.n}i{self.bits}"
        return call(self.builder, name, self.value.type.element, [self.value])

    def lane(self, k: int) -> Any:
        """Return lane k, a scalar."""
        return self.builder.extract_element(self.value, ir.Constant(_POSITION, k))

    def store(self, address: Any) -> None:
        """Write all lanes at an address."""
        store(self.builder, self.value, address)


def store(builder: Any, value: Any, address: Any) -> None:
    """Write a scalar or LLVM's vector at an address, which need not be aligned."""
    builder.store(value, builder.bitcast(address, value.type.as_pointer()), align=1)


def _read(builder: Any, address: Any, kind: Any) -> Any:
    return builder.load(builder.bitcast(address, kind.as_pointer()), align=1)


def load(builder: Any, address: Any, bits: int, n: int) -> Vector:
    """Read n lanes of this width, from an address that need not be aligned."""
    return Vector(builder, _read(builder, address, ir.VectorType(ir.IntType(bits), n)))


def load_lane(builder: Any, address: Any, bits: int) -> Any:
    """Read a scalar of this width, from an address that need not be aligned."""
    return _read(builder, address, ir.IntType(bits))


def from_lanes(builder: Any, lanes: list[Any]) -> Vector:
    """Return a vector of scalars of the same type."""
    value = ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined)
    for k, lane in enumerate(lanes):
        value = builder.insert_element(value, lane, ir.Constant(_POSITION, k))
    return Vector(builder, value)


def splat(builder: Any, value: Any, bits: int, n: int) -> Vector:
    """Return a scalar, cut or zero-extended to ``bits``, in all of n lanes."""
    element, kind = ir.IntType(bits), ir.VectorType(ir.IntType(bits), n)
    if value.type != element:
        value = builder.trunc(value, element) if value.type.width > bits else builder.zext(value, element)
    # How LLVM wants a broadcast to be written: one lane, picked for all. It becomes a single instruction.
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_POSITION, 0))
    return Vector(builder, first).pick([0] * n)


def constant(builder: Any, numbers: list[int], bits: int = 8) -> Vector:
    """Return a vector of these numbers, by default bytes."""
    return Vector(builder, ir.Constant(ir.VectorType(ir.IntType(bits), len(numbers)), numbers))


def mask_of(builder: Any, marked: list[bool]) -> Vector:
    """Return the mask of the lanes that are marked."""
    return Vector(builder, ir.Constant(ir.VectorType(ir.IntType(1), len(marked)), marked))


def mask_from(builder: Any, address: Any, n: int) -> Vector:
    """Read a mask of n bits, lane 0 lowest."""
    return mask_of_bits(builder, load_lane(builder, address, n))


def mask_of_bits(builder: Any, bits: Any) -> Vector:
    """Return the mask whose lanes are the bits of a scalar, lowest first."""
    return Vector(builder, builder.bitcast(bits, ir.VectorType(ir.IntType(1), bits.type.width)))


def move(verb: str, source: Vector, mask: Vector, rest: Vector | None = None) -> Vector:
    """Return a vector with its marked lanes moved together, or spread again. AVX-512.

    mask       1 0 0 1 1 0
    compress   a b c d e f  ->  a d e . . .
    expand     a b c d e f  ->  a . . b c .

    Args:
        verb: "compress" or "expand".
        mask: The marked lanes, of the source for compress and of the result for expand.
        rest: What lanes are that none was moved to (.); by default 0.
    """
    name = f"llvm.x86.avx512.mask.{verb}.v{source.n}i{source.bits}"
    others = ir.Constant(source.value.type, [0] * source.n) if rest is None else rest.value
    return Vector(source.builder, call(source.builder, name, others.type, [source.value, others, mask.value]))


def pick_bits(picks: Vector, source: Vector) -> Vector:
    """Return in each byte the eight bits of its 64 from the bit of this number on, around the end. AVX-512 (VBMI).

    source     64 bits, bit 63 ... bit 0
    picks      0         6          12   ...
    result     bits 7-0  bits 13-6  bits 19-12 ...

    Args:
        picks: Numbers of bits, 64 bytes.
        source: Eight times 64 bits.
    """
    name = "llvm.x86.avx512.pmultishift.qb.512"
    return Vector(source.builder, call(source.builder, name, picks.value.type, [picks.value, source.value]))


def slot_for(builder: Any, value: Any) -> Any:
    """Return the address of a slot on the stack that holds a value, for what a loop or a branch replaces. LLVM keeps it
    in a register."""
    # At the beginning of the function: in a loop, each turn would take another slot, and LLVM puts in registers only
    # those that it finds here.
    with builder.goto_entry_block():
        slot = builder.alloca(value.type)
    builder.store(value, slot)
    return slot


@contextmanager
def for_range(builder: Any, stop: Any, start: int = 0) -> Iterator[Any]:
    """Emit the body of this ``with`` as a loop, and yield its index, ``start ... stop - 1``.

    before:    branch to condition
    condition: index = start, from before | next, from the body;    index < stop ? body : after
    body:      ... next = index + 1;                                branch to condition
    after:     ...
    """
    condition, body, after = (builder.append_basic_block(f"for.{name}") for name in ("condition", "body", "after"))
    before = builder.basic_block
    builder.branch(condition)
    with builder.goto_block(condition):
        index = builder.phi(stop.type)
        builder.cbranch(builder.icmp_signed("<", index, stop), body, after)
    with builder.goto_block(body):
        yield index
        # It cannot overflow, which lets LLVM count the turns beforehand, and so unroll the loop.
        following = builder.add(index, ir.Constant(stop.type, 1), flags=["nsw"])
        body = builder.basic_block  # the last one, if there were branches
        builder.branch(condition)
    index.add_incoming(ir.Constant(stop.type, start), before)
    index.add_incoming(following, body)
    builder.position_at_end(after)
