"""Split and merge planes of tails of 24 bits by shuffles of four values at a time, for x86-64 without AVX-512: vector
steps of :mod:`whole_tail`.

Four values own up to twelve bytes of the plane, so one shuffle of sixteen bytes both moves them together and closes the
gaps of zeros. Which shuffle that is depends on which of the four are not zero::

    symbols        5  0  7  6                        mask 1101, value 0 in the lowest bit
    tails          . a2 a1 a0    . b2 b1 b0    . c2 c1 c0    . d2 d1 d0
    out            a0 a1 a2 c0 c1 c2 d0 d1 d2        3 * items bytes matter; the next four values write over the rest

With AVX2 a register has eight values, and a shuffle for each half. The law is :func:`scalar.tail_of` and
:func:`scalar.value_of`, on every value.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ..core.intrinsics import HAS_AVX2, intrinsic_step
from ..core.simd import INDEX, Vector, call, load
from ..core.value_parts import extract_tails, join_values
from ..core.vector_shuffles import constant_table, shuffle

HALVES = 2 if HAS_AVX2 else 1  #: groups of four values in a register
_ALL = 15  #: the mask of four values that are not zero


def _shuffle_for(verb: str, mask: int) -> list[int]:
    """Return the shuffle of sixteen bytes that moves the tails of four values together, or apart; 128 gives zero."""
    marked = [k for k in range(4) if mask >> k & 1]
    if verb == "compress":
        return [4 * k + byte for k in marked for byte in range(3)] + [128] * (16 - 3 * len(marked))
    return [3 * marked.index(k) + byte if k in marked and byte < 3 else 128 for k in range(4) for byte in range(4)]


def _number(value: int) -> Any:
    return ir.Constant(INDEX, value)


class _Places:
    """Finds for each register of 64 values the shuffles of its groups of four, and where their bytes lie.

    Args:
        builder: llvmlite's.
        verb: "compress" or "expand".
        mask: A scalar of 64 bits: which values are not zero.
        plane: Address of the values' bytes.
    """

    def __init__(self, builder: Any, verb: str, mask: Any, plane: Any) -> None:
        self._builder, self._mask, self._plane = builder, mask, plane
        entries = [byte for bits in range(16) for byte in _shuffle_for(verb, bits)]
        self._table = constant_table(builder, f"gcodec.{verb}_24", entries)

    def following(self, k: int) -> tuple[list[Any], list[Vector]]:
        """Return the addresses and shuffles of the groups of register k; the registers before it were asked for."""
        addresses, shuffles, builder = [], [], self._builder
        for half in range(HALVES):
            bit = 4 * (k * HALVES + half)
            # Sixteen times the mask of four, which is where its shuffle lies.
            entry = builder.shl(self._mask, _number(4 - bit)) if bit < 4 else builder.lshr(self._mask, _number(bit - 4))
            entry = builder.and_(entry, _number(16 * _ALL))
            #     mask       ... d c b a          of 64 values; bits `bit` ... `bit + 3` are this group's
            #     entry      ... dcba 0000        16 bytes for each of 16 masks: where the shuffle lies in the table
            #     items      set bits of the entry, which are those of the mask
            #
            # Each address depends on the counts before it alone, not on any load or store.
            addresses.append(self._plane)
            shuffles.append(load(builder, builder.gep(self._table, [entry]), 8, 16))
            items = call(builder, "llvm.ctpop.i64", INDEX, [entry])
            self._plane = builder.gep(self._plane, [builder.mul(items, _number(3))])
        return addresses, shuffles


class _PlacesOfAll:
    """Does as :class:`_Places` where no value is zero: everything is known when the code is compiled."""

    def __init__(self, builder: Any, verb: str, plane: Any) -> None:
        self._builder, self._plane = builder, plane
        self._shuffle = Vector(builder, ir.Constant(ir.VectorType(ir.IntType(8), 16), _shuffle_for(verb, _ALL)))

    def following(self, k: int) -> tuple[list[Any], list[Vector]]:
        """Return the addresses and shuffles of the groups of register k."""
        groups = range(k * HALVES, (k + 1) * HALVES)
        addresses = [self._builder.gep(self._plane, [_number(12 * group)]) for group in groups]
        return addresses, [self._shuffle] * HALVES


def _places(builder: Any, verb: str, symbols: Any, plane: Any) -> _Places | _PlacesOfAll:
    """Return where the bytes of 64 values lie, given the address of their symbols; None: none of them is zero."""
    if symbols is None:
        return _PlacesOfAll(builder, verb, plane)
    return _Places(builder, verb, load(builder, symbols, 8, 64).compare("!=", 0).number(), plane)


def _joined(parts: list[Vector]) -> Vector:
    """Return one or two registers of 16 bytes as one."""
    return parts[0] if len(parts) == 1 else parts[0].pick(list(range(32)), parts[1])


def _splitter(all_owned: bool) -> Any:
    """Make the step that writes the tails of 64 values; ``all_owned``: none of them is zero."""

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        places = _places(builder, "compress", None if all_owned else at(2, 8), at(4, 8))
        for k in range(16 // HALVES):
            words = load(builder, builder.gep(at(0, 32), [_number(16 * HALVES * k)]), 32, 4 * HALVES)
            addresses, shuffles = places.following(k)
            moved = shuffle(extract_tails(words).seen_as(8), _joined(shuffles))
            for half, address in enumerate(addresses):
                moved.part(half, 16).store(address)

    return intrinsic_step(types.void, 6, generate)


#: split_24_some(values, i, symbols, j, out, at): write three bytes for each of 64 float32 whose symbol is not 0, and up
#: to 16 more behind. ``values``: uint32; ``symbols``, ``out``: uint8. split_24_all: for symbols of which none is 0.
split_24_some, split_24_all = _splitter(False), _splitter(True)


def _merger(all_owned: bool) -> Any:
    """Make the step that joins heads and tails to 64 values; ``all_owned``: none of them is zero."""

    def generate(builder: Any, args: list[Any], at: Any) -> Any:
        places = _places(builder, "expand", None if all_owned else at(2, 8), at(0, 8))
        for k in range(16 // HALVES):
            addresses, shuffles = places.following(k)
            packed = _joined([load(builder, address, 8, 16) for address in addresses])
            tail = shuffle(packed, _joined(shuffles)).seen_as(32)
            symbols = load(builder, builder.gep(at(2, 8), [_number(4 * HALVES * k)]), 8, 4 * HALVES).to(32)
            value = join_values(symbols + args[6], tail)
            # `symbol + origin` has given zeros a head, too: it is masked out again.
            if not all_owned:
                value = value & (symbols.compare("==", 0).widened(32) ^ -1)
            value.store(builder.gep(at(4, 32), [_number(16 * HALVES * k)]))

    return intrinsic_step(types.void, 7, generate)


#: merge_24_some(data, at, symbols, j, out, i, origin): join 64 float32, the inverse of split_24_some; reads up to 16
#: bytes behind them. ``origin``: the head that symbol 0 would have if it had one; heads are symbols + origin, modulo
#: 256. merge_24_all: the inverse of split_24_all.
merge_24_some, merge_24_all = _merger(False), _merger(True)
