"""Floats of few bits, packed (docs/format.md section 10): the scales and offsets of an indexed block.

    float32        s eeeeeeee mmmmmmmmmm0000000000000
    magnitude        eeeeeeee mmmmmmmmmm 0000000000000      the lowest bits are 0 in all: ``shift`` of them
    item                     iiiiiiiiii                     less the least magnitude, without these bits

The sign is that of all floats, or the lowest bit of each item.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.jit import kernel
from ..core.scalar import I64, U8, U32, U64
from ..core.unaligned import load_u32, load_u64, store_u32

HEADER = 8  #: bytes of the fields of one array of floats
POSITIVE, NEGATIVE, SIGNED = range(3)  #: sign of all floats, or of each
MAX_SHIFT, MAX_WIDTH = 23, 32
_SIGN, _MAGNITUDE, _INFINITY = 0x80000000, 0x7FFFFFFF, 0x7F800000


class ShortFloats(NamedTuple):
    """The fields of an array of floats of few bits.

    Attributes:
        least: Bits of the least magnitude.
        shift: How many of the lowest bits of all magnitudes are 0 beside those of ``least``.
        width: Bits of an item.
        sign: POSITIVE, NEGATIVE or SIGNED.
        reserved: 0.
    """

    least: Any
    shift: Any
    width: Any
    sign: Any
    reserved: Any


@kernel
def read_short_floats(data, at):
    """Return the :class:`ShortFloats` whose fields lie at ``at``, unchecked."""
    return ShortFloats(
        I64(load_u32(data, at)), I64(data[at + 4]), I64(data[at + 5]), I64(data[at + 6]), I64(data[at + 7])
    )


@kernel
def write_short_floats(out, at, floats):
    """Write the fields of an array of floats."""
    store_u32(out, at, U32(floats.least))
    out[at + 4], out[at + 5] = U8(floats.shift), U8(floats.width)
    out[at + 6], out[at + 7] = U8(floats.sign), U8(floats.reserved)


@kernel
def bytes_of_items(floats, n):
    """Return how many bytes the items of ``n`` floats take."""
    return (n * floats.width + 7) >> 3


@kernel
def has_legal_fields(floats):
    """Return False if a field has a value that it must not have."""
    is_known = floats.sign <= SIGNED and floats.reserved == 0
    return is_known and floats.shift <= MAX_SHIFT and floats.width <= MAX_WIDTH


@kernel
def load_short_float(data, at, i, floats):
    """Return the bits of float ``i``, as int64, given where the items begin; its magnitude is beyond 31 bits where the
    fields are faulty. Reads up to 8 bytes past the items."""
    bit = I64(i) * floats.width
    # With 7 bits to skip, the 32 of an item are within the 57 that a load is sure to bring.
    item = I64(U64(load_u64(data, at + (bit >> 3)) >> U64(bit & 7)) & U64((U64(1) << U64(floats.width)) - U64(1)))
    #     item       iiiiiiiiis                        SIGNED: the sign below the magnitude's bits
    #     float      s 00iiiiiiiii00000000 + least     the bits at `shift` and up
    is_signed = floats.sign == SIGNED
    sign = item & 1 if is_signed else floats.sign
    magnitude = floats.least + ((item >> 1 if is_signed else item) << floats.shift)
    # Faulty fields make sums of more than 31 bits, which would run into the sign. 2**32 stands for them, the bits of no
    # float32: no branch is left here, and the caller that checks finds it.
    return magnitude | sign << 31 if magnitude <= _MAGNITUDE else I64(_SIGN) << 1


@kernel
def are_finite(data, at, n, floats):
    """Return whether the first ``n`` floats are finite."""
    n_finite = 0
    for i in range(n):
        bits = load_short_float(data, at, i, floats)
        n_finite += bits < I64(_SIGN) << 1 and (bits & _MAGNITUDE) < _INFINITY
    return n_finite == n


@kernel
def shorten_floats(bits, first, stop):
    """Return the :class:`ShortFloats` of the fewest bits that have floats ``first ... stop - 1``, given their bits."""
    least, largest, signs, union = U32(_MAGNITUDE), U32(0), 0, U32(0)
    for s in range(first, stop):
        magnitude = U32(bits[s] & U32(_MAGNITUDE))
        least, largest = min(least, magnitude), max(largest, magnitude)
        signs |= 2 if bits[s] & U32(_SIGN) else 1
    #     differences    000iiiiiiiiii00000      from the least magnitude, all ORed together
    #                       |  width  | shift |  what no difference has above and below
    for s in range(first, stop):
        union = U32(union | U32(U32(bits[s] & U32(_MAGNITUDE)) - least))
    shift, width = 0, 0
    while shift < MAX_SHIFT and U32(union >> U32(shift)) & U32(1) == 0:
        shift += 1
    while U32(largest - least) >> U32(shift + width) and shift + width < 32:
        width += 1
    # Bit 0 of `signs` says that some float has no minus sign, bit 1 that some has one; with both, each takes a bit of
    # its item for its own.
    sign = SIGNED if signs == 3 else NEGATIVE if signs == 2 else POSITIVE
    return ShortFloats(I64(least), I64(shift), I64(width + (signs == 3)), I64(sign), I64(0))


@kernel
def pack_short_floats(bits, first, stop, floats, out, at):
    """Write the items of floats ``first ... stop - 1``, as ``floats`` has them; return their end. ``out`` has 8 bytes
    of margin."""
    #     window     00000 iiiiiiiiii ooooo      a new item above the `n_bits` that wait; whole bytes leave at the right
    window, n_bits = U64(0), 0
    for s in range(first, stop):
        item = U64(U32(U32(bits[s] & U32(_MAGNITUDE)) - U32(floats.least)) >> U32(floats.shift))
        if floats.sign == SIGNED:
            item = U64(U64(item << U64(1)) | U64(U32(bits[s]) >> U32(31)))
        # At most 7 bits wait here: items of up to 32 bits fit above them.
        window |= U64(item << U64(n_bits))
        n_bits += floats.width
        while n_bits >= 8:
            out[at] = U8(window & U64(255))
            at += 1
            window >>= U64(8)
            n_bits -= 8
    if n_bits > 0:
        out[at] = U8(window & U64(255))
        at += 1
    return at
