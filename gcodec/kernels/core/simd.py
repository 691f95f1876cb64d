"""Vectors of integers in LLVM's own terms, with Python's operators: what the fused steps are
written in.

A :class:`Vector` is one value of LLVM's intermediate code of type <n x i bits>; an operation on it emits an
instruction. LLVM fits any n to the registers that the CPU has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

INDEX = ir.IntType(64)
_POSITION = ir.IntType(32)


def call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    """Call of an LLVM function by name."""
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


class Vector:
    """A vector and the builder that adds to it. Integers and scalars meet vectors as in numpy."""

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
        """Amounts must be below the width."""
        return self._with("shl", other)

    def __rshift__(self, other: Any) -> Vector:
        return self._with("lshr", other)

    def compare(self, operator: str, other: Any) -> Vector:
        """<n x i1> of an unsigned comparison."""
        return Vector(self.builder, self.builder.icmp_unsigned(operator, self.value, self._like(other)))

    def negative(self) -> Vector:
        """<n x i1>: the topmost bit of each lane."""
        return Vector(self.builder, self.builder.icmp_signed("<", self.value, self._like(0)))

    def above(self, other: Any) -> Vector:
        """<n x i1> of a signed comparison."""
        return Vector(self.builder, self.builder.icmp_signed(">", self.value, self._like(other)))

    def widened(self, bits: int) -> Vector:
        """A mask as lanes of all ones or all zeros."""
        return Vector(self.builder, self.builder.sext(self.value, ir.VectorType(ir.IntType(bits), self.n)))

    def choose(self, yes: Any, no: Vector) -> Vector:
        """This mask's choice between two."""
        return Vector(self.builder, self.builder.select(self.value, no._like(yes), no.value))

    def to(self, bits: int) -> Vector:
        """Each lane zero-extended or cut to ``bits``."""
        kind = ir.VectorType(ir.IntType(bits), self.n)
        cast = self.builder.zext if bits > self.bits else self.builder.trunc
        return self if bits == self.bits else Vector(self.builder, cast(self.value, kind))

    def seen_as(self, bits: int) -> Vector:
        """Return the same bits as lanes of another width."""
        kind = ir.VectorType(ir.IntType(bits), self.n * self.bits // bits)
        return Vector(self.builder, self.builder.bitcast(self.value, kind))

    def pick(self, lanes: list[int], other: Vector | None = None) -> Vector:
        """The lanes of these numbers, counted through this vector and ``other``."""
        picks = ir.Constant(ir.VectorType(_POSITION, len(lanes)), lanes)
        second = self.value if other is None else other.value
        return Vector(self.builder, self.builder.shuffle_vector(self.value, second, picks))

    def part(self, k: int, n: int) -> Vector:
        """Vector ``k * n ... k * n + n - 1``."""
        return self.pick(list(range(k * n, k * n + n)))

    def number(self) -> Any:
        """A mask as an integer of n bits, zero-extended to 64: a scalar."""
        number = self.builder.bitcast(self.value, ir.IntType(self.n))
        return number if self.n == 64 else self.builder.zext(number, INDEX)

    def count(self) -> Any:
        """Return the number of lanes that are set in a mask, as a scalar."""
        return call(self.builder, "llvm.ctpop.i64", INDEX, [self.number()])

    def multiply_pairs(self, factors: Vector) -> Vector:
        """Sums of two products in a row, in lanes of twice the width: of bytes, the factors signed, or of words of 16
        bits, all signed. 512 bits."""
        result = ir.VectorType(ir.IntType(2 * self.bits), self.n // 2)
        name = {8: "pmaddubs.w", 16: "pmaddw.d"}[self.bits]
        args = [self.value, factors.seen_as(self.bits).value]
        return Vector(self.builder, call(self.builder, f"llvm.x86.avx512.{name}.512", result, args))

    def total(self) -> Any:
        """Sum of all lanes, modulo their width: a scalar."""
        name = f"llvm.vector.reduce.add.v{self.n}i{self.bits}"
        return call(self.builder, name, self.value.type.element, [self.value])

    def store(self, address: Any) -> None:
        """Write all lanes at an address."""
        self.builder.store(self.value, self.builder.bitcast(address, self.value.type.as_pointer()), align=1)


def load(builder: Any, address: Any, bits: int, n: int) -> Vector:
    """Read n lanes."""
    kind = ir.VectorType(ir.IntType(bits), n)
    return Vector(builder, builder.load(builder.bitcast(address, kind.as_pointer()), align=1))


def splat(builder: Any, value: Any, bits: int, n: int) -> Vector:
    """A scalar, cut to ``bits``, in all lanes."""
    element, kind = ir.IntType(bits), ir.VectorType(ir.IntType(bits), n)
    if value.type != element:
        value = builder.trunc(value, element) if value.type.width > bits else builder.zext(value, element)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(_POSITION, 0))
    return Vector(builder, one).pick([0] * n)


def constant(builder: Any, numbers: list[int]) -> Vector:
    """Return a vector of these bytes."""
    return Vector(builder, ir.Constant(ir.VectorType(ir.IntType(8), len(numbers)), numbers))


def mask_of(builder: Any, marked: list[bool]) -> Vector:
    """The mask of the lanes that are marked."""
    return Vector(builder, ir.Constant(ir.VectorType(ir.IntType(1), len(marked)), marked))


def mask_from(builder: Any, address: Any, n: int) -> Vector:
    """The mask whose n bits lie at an address."""
    kind = ir.IntType(n)
    word = builder.load(builder.bitcast(address, kind.as_pointer()), align=1)
    return Vector(builder, builder.bitcast(word, ir.VectorType(ir.IntType(1), n)))


def move(verb: str, source: Vector, mask: Vector, rest: Vector | None = None) -> Vector:
    """compress: the marked lanes one behind the other; expand: the inverse. Other lanes are those of ``rest``, or 0."""
    name = f"llvm.x86.avx512.mask.{verb}.v{source.n}i{source.bits}"
    others = ir.Constant(source.value.type, [0] * source.n) if rest is None else rest.value
    return Vector(source.builder, call(source.builder, name, others.type, [source.value, others, mask.value]))


def pick_bits(picks: Vector, source: Vector) -> Vector:
    """Eight bits of every 64, from those of these numbers on, to each byte of them."""
    name = "llvm.x86.avx512.pmultishift.qb.512"
    return Vector(source.builder, call(source.builder, name, picks.value.type, [picks.value, source.value]))


def slot_for(builder: Any, value: Any) -> Any:
    """Return the address of a slot on the stack that holds a value, for what a loop or a branch replaces. LLVM keeps it
    in a register."""
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
        following = builder.add(index, ir.Constant(stop.type, 1), flags=["nsw"])
        body = builder.basic_block  # the last one, if there were branches
        builder.branch(condition)
    index.add_incoming(ir.Constant(stop.type, start), before)
    index.add_incoming(following, body)
    builder.position_at_end(after)
