"""Codebooks: which symbols there are and what code each one has (docs/format.md section 5).

GComp (SoCC '24, section "Exponent compression") builds a Huffman code over exponents, replaces codes longer than
n_theta by an escape code and the raw exponent, and refreshes the code from time to time. Here: optimal
length-limited codes (package-merge), an escape, symbols that are pairs of a level and a head relative to a
reference, and deterministic ties, so that all workers that see the same counts build the same codebook.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ..errors import Corruption, InvalidArgument, Unsupported
from ..kernels.core.specialized import Specialized
from ..kernels.entropy import prefix_code
from ..kernels.entropy.encode_streams import checksum
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH

MAX_SYMBOLS = 254  #: symbols besides zero and the escape
INLINE, BY_ID, RESIDUAL = 0, 1, 2  #: kinds of codebook record
_DIGITS = b"0123456789abcdef".ljust(256, b"?")
_canonical_codes, _checksum = Specialized(prefix_code.canonical_codes), Specialized(checksum)
_encode_table, _decode_table = Specialized(prefix_code.encode_table), Specialized(prefix_code.decode_table)


def limited_lengths(counts: np.ndarray, limit: int = MAX_LENGTH) -> np.ndarray:
    """Return optimal code lengths of at most ``limit`` bits, by package-merge (Larmore and Hirschberg 1990).

    Deterministic: ties go to the lower symbol.

    Args:
        counts: integers[n], how often each symbol occurs; at least two and at most 2**limit of them not zero.
        limit: Length of the longest code, in bits.

    Returns:
        uint8[n]; symbols with count 0 get no code (length 0).

    Raises:
        InvalidArgument: Fewer than two symbols have a count, or more than there are codes.
    """
    counts = np.asarray(counts).astype(np.int64)
    n = len(counts)
    lengths = np.empty(n, np.uint8)
    used = prefix_code.package_merge(
        counts,
        limit,
        np.empty(n, np.int64),
        np.empty((2, 2 * n), np.uint64),
        np.empty((limit, 2 * n), np.uint8),
        np.empty(limit, np.int64),
        lengths,
    )
    if not 2 <= used <= 1 << limit:
        raise InvalidArgument(f"counts must have 2 to {1 << limit} symbols that occur, not {used}")
    return lengths


def huffman_lengths(counts: np.ndarray) -> np.ndarray:
    """Return unlimited Huffman code lengths (GComp's baseline); of equals, lower symbols go first, then pairs.

    Args:
        counts: integers[n], how often each symbol occurs.

    Returns:
        int64[n]; 0 where the count is 0.
    """
    counts = np.asarray(counts).astype(np.int64)
    n = len(counts)
    lengths = np.empty(n, np.int64)
    prefix_code.huffman(counts, np.empty(n, np.int64), *np.empty((2, 2 * n), np.int64), lengths)
    return lengths


@dataclass(frozen=True)
class Codebook:
    """A complete prefix code.

    Attributes:
        head_bits: Width of the value type's heads.
        ranges: Relative heads that have symbols, for each level: (first head, number of heads).
        lengths: 256 code lengths by symbol number, 0 for none: zero at 0, the ranges' symbols from 1, the escape at
            255.
    """

    head_bits: int
    ranges: tuple[tuple[int, int], ...]
    lengths: bytes

    @classmethod
    def made(cls, head_bits: int, ranges: np.ndarray, lengths: np.ndarray, record: bytes) -> Codebook:
        """Return a codebook made of arrays that are at hand already, so that its properties need not make them.

        Args:
            head_bits: Width of the value type's heads.
            ranges: int64[n_levels, 2], as in :attr:`range_array`.
            lengths: uint8[256], as in :attr:`length_array`.
            record: The inline record, as in :attr:`record`.
        """
        codebook = cls(head_bits, tuple(map(tuple, ranges.tolist())), lengths.tobytes())
        vars(codebook).update(range_array=ranges, length_array=lengths, record=record)
        return codebook

    @property
    def n_symbols(self) -> int:
        """Return the number of symbols in the ranges, zero and the escape not counted."""
        return sum(count for _, count in self.ranges)

    @property
    def has_escape(self) -> bool:
        """Return True if values outside the ranges can be coded."""
        return self.lengths[ESCAPE] > 0

    @cached_property
    def length_array(self) -> np.ndarray:
        """Return ``lengths`` for the kernels: uint8[256]."""
        return np.frombuffer(bytearray(self.lengths), np.uint8)

    @cached_property
    def range_array(self) -> np.ndarray:
        """Return ``ranges`` for the kernels: int64[n_levels, 2]."""
        return np.array(self.ranges, np.int64)

    @cached_property
    def codes(self) -> np.ndarray:
        """Return the canonical codes by symbol number, first bit lowest: uint32[256].

        Raises:
            Corruption: The code is not complete.
        """
        codes = np.zeros(256, np.uint32)
        following = np.empty(MAX_LENGTH + 1, np.uint32)
        if _canonical_codes(None, self.length_array, MAX_SYMBOLS, following, codes) != 1 << MAX_LENGTH:
            raise Corruption("codebook: its code lengths do not make a complete prefix code")
        return codes

    def fill_encode_table(self, table: np.ndarray) -> None:
        """Fill the encoding kernels' table, uint32[256]."""
        _encode_table(None, self.length_array, self.codes, table)

    def fill_decode_table(self, table: np.ndarray) -> None:
        """Fill the decoding kernels' table, uint64[4096]."""
        scratch = np.empty(prefix_code.TABLE_SIZE, np.uint64)
        _decode_table(None, self.length_array, MAX_SYMBOLS, self.codes, scratch, prefix_code.MOST, table)

    @cached_property
    def meanings(self) -> np.ndarray:
        """Return level and relative head of every symbol, int64[2, 256]; the level is -1 where there is none (zero)."""
        meanings = np.zeros((2, 256), np.int64)
        meanings[0, 0] = -1
        number = 1
        for level, (first, count) in enumerate(self.ranges):
            meanings[0, number : number + count] = level
            meanings[1, number : number + count] = (first + np.arange(count)) & ((1 << self.head_bits) - 1)
            number += count
        return meanings

    @cached_property
    def record(self) -> bytes:
        """Return the inline record, which :func:`read_inline` reads."""
        n_levels = len(self.ranges)
        head = struct.pack(f"<BBH{2 * n_levels}H", INLINE, n_levels, 0, *chain(*self.ranges))
        # A length is a hexadecimal digit; the lower nibble of a byte, its second digit, comes first.
        digits = (self.lengths[:1] + self.lengths[-1:] + self.lengths[1 : 1 + self.n_symbols]).translate(_DIGITS)
        pairs = bytearray(digits + b"0"[: len(digits) & 1])
        pairs[0::2], pairs[1::2] = pairs[1::2], pairs[0::2]
        return (head + bytes.fromhex(pairs.decode())).ljust(self.record_bytes, b"\0")

    @property
    def record_bytes(self) -> int:
        """Return the size of the inline record in bytes."""
        return 4 + 4 * len(self.ranges) + (self.n_symbols + 3) // 2 + 3 & ~3

    @cached_property
    def hash(self) -> int:
        """Return the checksum of the record that a reference by id carries; its seed is ``head_bits``."""
        data = np.frombuffer(bytearray(self.record), np.uint8)
        return int(_checksum(None, data, 0, len(data) // 4, -1, np.uint64(self.head_bits)))

    def reference(self, codebook_id: int) -> bytes:
        """Return the record that names this codebook by id instead of carrying it."""
        return struct.pack("<B3xIQ", BY_ID, codebook_id, self.hash)


def end_of_lengths(data: bytes, at: int, lengths_at: int, n_lengths: int, name: str) -> int:
    """Return the byte after a record that begins at ``at`` and ends with so many packed code lengths. Raises Corruption
    if it is not there."""
    end = lengths_at + (n_lengths + 1) // 2
    end += -(end - at) % 4
    if end > len(data):
        raise Corruption(f"{name}: its record does not fit into the prelude")
    return end


def read_lengths(data: bytes, lengths_at: int, end: int, n_lengths: int, name: str) -> np.ndarray:
    """Return code lengths that are packed two to a byte: uint8[n_lengths]. Raises Corruption if one is too long, or if
    bytes behind them are not zero."""
    size = (n_lengths + 1) // 2
    packed = np.frombuffer(data, np.uint8, size, lengths_at)
    lengths = np.stack([packed & 15, packed >> 4], 1).reshape(-1)[:n_lengths]
    if lengths.max() > MAX_LENGTH or any(data[lengths_at + size : end]):
        raise Corruption(f"{name}: a code length is above {MAX_LENGTH}, or the padding is not zero")
    return lengths


def read_inline(data: bytes, at: int, n_levels: int, head_bits: int) -> tuple[Codebook, int]:
    """Read an inline record.

    Args:
        data: Bytes that hold the record.
        at: Byte at which it begins.
        n_levels: Number of levels of the frame.
        head_bits: Width of the value type's heads.

    Returns:
        The codebook, and the byte after its record.

    Raises:
        Corruption: The record does not fit the frame, ends early or is not a complete code.
    """
    ranges_at, lengths_at = at + 4, at + 4 + 4 * n_levels
    if lengths_at > len(data):
        raise Corruption("codebook: its record does not fit into the prelude")
    _, levels, reserved = struct.unpack_from("<BBH", data, at)
    if levels != n_levels or reserved:
        raise Corruption(
            f"codebook: {levels} levels and {reserved} in the reserved bytes; there must be {n_levels} levels and zero"
        )
    ranges = tuple(struct.unpack_from("<HH", data, ranges_at + 4 * i) for i in range(n_levels))
    n_symbols = sum(count for _, count in ranges)
    if n_symbols > MAX_SYMBOLS or any(first >> head_bits for first, _ in ranges):
        raise Corruption(
            f"codebook: ranges {ranges} must begin below {1 << head_bits} and have at most {MAX_SYMBOLS} symbols in all"
        )
    end = end_of_lengths(data, at, lengths_at, n_symbols + 2, "codebook")
    nibbles = read_lengths(data, lengths_at, end, n_symbols + 2, "codebook")
    lengths = np.zeros(256, np.uint8)
    lengths[0], lengths[ESCAPE] = nibbles[0], nibbles[1]
    lengths[1 : 1 + n_symbols] = nibbles[2:]
    codebook = Codebook(head_bits, ranges, lengths.tobytes())
    _ = codebook.codes  # refuses an incomplete code
    return codebook, end


def residual_codebook(lengths: np.ndarray) -> Codebook:
    """Return the codebook for residuals of predicted blocks that has these code lengths by symbol.

    Args:
        lengths: uint8[1 + 15 * n_digits].
    """
    padded = np.zeros(256, np.uint8)
    padded[: len(lengths)] = lengths
    return Codebook(4, ((1, 15),) * (len(lengths) // 15), padded.tobytes())


def residual_record(codebook: Codebook) -> bytes:
    """Return the record of a residual codebook (docs/format.md section 5)."""
    n_bytes = (2 + codebook.n_symbols) // 2  # of the lengths of all symbols and zero, and of none behind them
    lengths = np.frombuffer(codebook.lengths, np.uint8, 2 * n_bytes)
    record = struct.pack("<BBH", RESIDUAL, len(codebook.ranges), 0) + (lengths[0::2] | lengths[1::2] << 4).tobytes()
    return record + bytes(-len(record) % 4)


def read_residual(data: bytes, at: int, n_digits: int) -> tuple[Codebook, int]:
    """Read the record of a residual codebook.

    Args:
        data: Bytes that hold the record.
        at: Byte at which it begins.
        n_digits: Hexadecimal digits of a value.

    Returns:
        The codebook, and the byte after its record.

    Raises:
        Corruption: The record ends early, is of another number of digits or is not a complete code.
        Unsupported: The record is of an unknown kind.
    """
    n_lengths = 1 + 15 * n_digits
    end = end_of_lengths(data, at, at + 4, n_lengths, "residual codebook")
    kind, digits, reserved = struct.unpack_from("<BBH", data, at)
    if kind != RESIDUAL:
        raise Unsupported(f"residual codebook: a record of kind {kind} is not known to this version")
    if digits != n_digits or reserved:
        raise Corruption(
            f"residual codebook: {digits} digits and {reserved} in the reserved bytes; there must be {n_digits} digits "
            "and zero"
        )
    codebook = residual_codebook(read_lengths(data, at + 4, end, n_lengths, "residual codebook"))
    _ = codebook.codes  # refuses an incomplete code
    return codebook, end
