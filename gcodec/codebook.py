"""Codebooks: which symbols there are and what code each one has (docs/format.md section 5).

GComp (SoCC '24, section "Exponent compression") builds a Huffman code over exponents, replaces codes longer than n_theta by
an escape code and the raw exponent, and refreshes the code from time to time. Here: optimal length-limited codes (package-merge), an
escape, symbols that are pairs of a level and a head relative to a reference, and deterministic ties, so that all workers that
see the same counts build the same codebook.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import Corruption, InvalidArgument
from .kernels import prefix_code
from .kernels.parameters import Books
from .kernels.prefix_code import ESCAPE, MAX_LENGTH, NO_CODE
from .kernels.streams import checksum

MAX_SYMBOLS = 254  #: symbols besides zero and the escape
INLINE, BY_ID = 0, 1  #: kinds of codebook record


def limited_lengths(counts: np.ndarray, limit: int = MAX_LENGTH) -> np.ndarray:
    """Optimal code lengths of at most ``limit`` bits.

    ``counts``: integers, any shape [n], n <= 2**limit; symbols with count 0 get no code (length 0). Returns uint8[n].
    Deterministic: ties go to the lower symbol. Needs at least two symbols with a count. Package-merge, Larmore and Hirschberg 1990.
    """
    counts = np.asarray(counts).astype(np.uint64)
    used = np.flatnonzero(counts)
    if len(used) < 2 or len(used) > 1 << limit:
        raise InvalidArgument(f"{len(used)} symbols do not make a code of at most {limit} bits")
    weights = counts[used]
    order = np.argsort(weights, kind="stable")
    n = len(used)
    found = np.empty(n, np.uint8)
    prefix_code.package_merge(weights, order, limit, np.empty((2, 2 * n), np.uint64),
                              np.empty((limit, 2 * n), np.uint8), np.empty(limit, np.int64), found)
    lengths = np.zeros(len(counts), np.uint8)
    lengths[used] = found
    return lengths


def huffman_lengths(counts: np.ndarray) -> np.ndarray:
    """Native, unlimited Huffman code lengths (GComp's baseline), int64[n]; 0 where the count is 0. Ties as above."""
    import heapq

    lengths = np.zeros(len(counts), np.int64)
    heap = [(int(c), i, [i]) for i, c in enumerate(counts) if c]
    if len(heap) == 1:
        lengths[heap[0][1]] = 1
    heapq.heapify(heap)
    serial = len(counts)
    while len(heap) > 1:
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        lengths[a[2] + b[2]] += 1
        heapq.heappush(heap, (a[0] + b[0], serial, a[2] + b[2]))
        serial += 1
    return lengths


@dataclass(frozen=True)
class Codebook:
    """A complete prefix code.

    ``head_bits``: H of the value type; ``ranges``: per level (first relative head, count); ``lengths``: 256 code lengths by symbol
    number, 0 for none: zero at 0, the ranges' symbols from 1, the escape at 255.
    """

    head_bits: int
    ranges: tuple[tuple[int, int], ...]
    lengths: bytes

    @property
    def n_symbols(self) -> int:
        """Symbols in the ranges, zero and the escape not counted."""
        return sum(count for _, count in self.ranges)

    @property
    def has_escape(self) -> bool:
        """Whether values outside the ranges can be coded."""
        return self.lengths[ESCAPE] > 0

    @cached_property
    def codes(self) -> np.ndarray:
        """Canonical codes, first bit lowest: uint32[256]. Raises Corruption where the code is not complete."""
        codes = np.zeros(256, np.uint32)
        if prefix_code.canonical_codes(np.frombuffer(self.lengths, np.uint8), codes) != 1 << MAX_LENGTH:
            raise Corruption("codebook: the code is not complete")
        return codes

    @cached_property
    def encode_table(self) -> np.ndarray:
        """uint32[256] for the encoding kernels."""
        table = np.empty(256, np.uint32)
        prefix_code.encode_table(np.frombuffer(self.lengths, np.uint8), self.codes, table)
        return table

    @cached_property
    def decode_table(self) -> np.ndarray:
        """uint64[4096] for the decoding kernels."""
        table = np.empty(prefix_code.TABLE_SIZE, np.uint64)
        scratch = np.empty((2, prefix_code.TABLE_SIZE), np.uint8)
        lengths = np.frombuffer(self.lengths, np.uint8)
        prefix_code.decode_table(lengths, self.codes, scratch[0], scratch[1], table)
        return table

    @cached_property
    def meanings(self) -> np.ndarray:
        """(level, relative head) of every symbol, int64[2, 256]; level -1 for symbols that carry none (zero)."""
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
        """The inline record; see :func:`read_inline` for the inverse."""
        head = struct.pack("<BBH", INLINE, len(self.ranges), 0)
        ranges = b"".join(struct.pack("<HH", first, count) for first, count in self.ranges)
        lengths = [self.lengths[0], self.lengths[ESCAPE], *self.lengths[1 : 1 + self.n_symbols], 0]
        nibbles = bytes(low | high << 4 for low, high in zip(lengths[0:-1:2], lengths[1::2], strict=True))
        record = head + ranges + nibbles
        return record + bytes(-len(record) % 4)

    @cached_property
    def hash(self) -> int:
        """The checksum that a reference by id carries, seed H."""
        data = np.frombuffer(self.record, np.uint8)
        return int(checksum(data, 0, len(data) // 4, -1, np.uint64(self.head_bits)))

    def reference(self, codebook_id: int) -> bytes:
        """The record that names this codebook by id instead of carrying it."""
        return struct.pack("<B3xIQ", BY_ID, codebook_id, self.hash)


def read_inline(data: bytes, at: int, n_levels: int, head_bits: int) -> tuple[Codebook, int]:
    """Read an inline record at ``at``; returns the codebook and the place after it. Raises Corruption."""
    ranges_at, lengths_at = at + 4, at + 4 + 4 * n_levels
    if lengths_at > len(data):
        raise Corruption("codebook: ends early")
    _, levels, reserved = struct.unpack_from("<BBH", data, at)
    if levels != n_levels or reserved:
        raise Corruption(f"codebook: {levels} levels in a frame of {n_levels}, reserved {reserved}")
    ranges = tuple(struct.unpack_from("<HH", data, ranges_at + 4 * i) for i in range(n_levels))
    n_symbols = sum(count for _, count in ranges)
    if n_symbols > MAX_SYMBOLS or any(first >> head_bits for first, _ in ranges):
        raise Corruption(f"codebook: ranges {ranges} out of bounds")
    size = (n_symbols + 3) // 2
    end = lengths_at + size
    end += -(end - at) % 4
    if end > len(data):
        raise Corruption("codebook: ends early")
    packed = np.frombuffer(data, np.uint8, size, lengths_at)
    nibbles = np.stack([packed & 15, packed >> 4], 1).reshape(-1)[: n_symbols + 2]
    if nibbles.max() > MAX_LENGTH or any(data[lengths_at + size : end]):
        raise Corruption("codebook: a code length above 12 or bytes in the padding")
    lengths = np.zeros(256, np.uint8)
    lengths[0], lengths[ESCAPE] = nibbles[0], nibbles[1]
    lengths[1 : 1 + n_symbols] = nibbles[2:]
    codebook = Codebook(head_bits, ranges, lengths.tobytes())
    _ = codebook.codes  # refuses an incomplete code
    return codebook, end


def _trim(counts: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Per level the span of bins worth a code, [lo, hi), at most ``budget`` bins in all. ``counts``: int64[n_levels, window]."""
    spans = []
    for row in counts:
        used = np.flatnonzero(row)
        spans.append([int(used[0]), int(used[-1]) + 1] if len(used) else [0, 0])
    while True:
        excess = sum(hi - lo for lo, hi in spans) > budget
        best = None
        for level, (lo, hi) in enumerate(spans):
            if hi == lo:
                continue
            inner = np.flatnonzero(counts[level, lo:hi])
            if not len(inner):
                spans[level] = [0, 0]
                continue
            for side, count, gap in (
                (0, counts[level, lo], (inner[1] if len(inner) > 1 else hi - lo)),
                (1, counts[level, hi - 1], (hi - lo - 1 - (inner[-2] if len(inner) > 1 else -1))),
            ):
                # An escape costs some 8 bits more than a code; a place in the table costs 4 bits.
                gain = 4 * int(gap) - 8 * int(count)
                if best is None or gain > best[0]:
                    best = (gain, level, side, int(gap))
        if best is None or (best[0] <= 0 and not excess):
            return [(lo, hi) for lo, hi in spans]
        _, level, side, gap = best
        spans[level][side] += gap if side == 0 else -gap


def from_histogram(histogram: np.ndarray, head_bits: int, n_levels: int, center: int, *, exact: bool = False,
                   max_length: int = MAX_LENGTH, escape_threshold: int | None = None) -> Codebook:
    """The codebook that suits counted symbols.

    ``histogram``: uint32[2 + n_levels * window] as the survey kernels count it (zero, outside, then (level, relative head + center));
    ``exact``: these are all values that will be coded, none else will occur; otherwise nearby symbols, zero and the escape
    get codes unseen. ``max_length``: length limit in bits, 2 ... 12; ``escape_threshold``: GComp's n_theta: symbols whose native Huffman
    code is longer than this are left to the escape. Raises InvalidArgument.
    """
    if not 2 <= max_length <= MAX_LENGTH:
        raise InvalidArgument(f"max_length {max_length} is not in 2 ... {MAX_LENGTH}")
    counts = np.asarray(histogram).astype(np.int64)
    bins = counts[2:].reshape(n_levels, -1)
    window = bins.shape[1]
    spans = _trim(bins, min(MAX_SYMBOLS, (1 << max_length) - 2))
    if not exact:
        room = MAX_SYMBOLS - sum(hi - lo for lo, hi in spans)
        for level, (lo, hi) in enumerate(spans):
            if hi > lo and room >= 4:
                wider = (max(lo - 2, 0), min(hi + 2, window))
                room -= (lo - wider[0]) + (wider[1] - hi)
                spans[level] = wider
    coded = np.concatenate([bins[level, lo:hi] for level, (lo, hi) in enumerate(spans)])
    outside = int(counts[1] + bins.sum() - coded.sum())
    weights = np.concatenate([counts[:1], coded, [outside]]) * 8
    if not exact:
        weights += 1
    if escape_threshold is not None:
        long = huffman_lengths(weights)[:-1] > escape_threshold
        weights[-1] += weights[:-1][long].sum()
        weights[:-1][long] = 0
    if np.count_nonzero(weights) < 2:
        weights[-1] = max(weights[-1], 1)
    if np.count_nonzero(weights) < 2:
        weights[0] = max(weights[0], 1)
    short = limited_lengths(weights, max_length)
    lengths = np.zeros(256, np.uint8)
    lengths[: len(short) - 1], lengths[ESCAPE] = short[:-1], short[-1]
    mask = (1 << head_bits) - 1
    ranges = tuple(((lo - center) & mask if hi > lo else 0, hi - lo) for lo, hi in spans)
    return Codebook(head_bits, ranges, lengths.tobytes())


def bin_costs(codebook: Codebook, window: int, center: int) -> np.ndarray:
    """Bits that each bin of a survey histogram costs under a codebook, uint32[n_bins]; a million where it has no code."""
    escape = codebook.lengths[ESCAPE] + codebook.head_bits if codebook.has_escape else 1_000_000
    n_levels = len(codebook.ranges)
    costs = np.full(2 + n_levels * window, escape, np.uint32)
    costs[0] = codebook.lengths[0] or escape
    number = 1
    mask = (1 << codebook.head_bits) - 1
    for level, (first, count) in enumerate(codebook.ranges):
        relative = (first + np.arange(count) + (mask >> 1) + 1 & mask) - (mask >> 1) - 1 + center
        lengths = np.frombuffer(codebook.lengths, np.uint8)[number : number + count].astype(np.uint32)
        inside = (relative >= 0) & (relative < window) & (lengths > 0)
        costs[2 + level * window + relative[inside]] = lengths[inside]
        number += count
    return costs


def stack(codebooks: Sequence[Codebook], widths: Sequence[int], masks: Sequence[int], tail_bits: int, *, decode: bool,
          ) -> tuple[Books, np.ndarray]:
    """The tables of a frame's codebooks for the kernels, and ``uniform`` (see ``kernels.planes``).

    ``widths``: plane widths; ``masks``: plane mask of every level; ``tail_bits``: T; ``decode``: whether ``table`` decodes or encodes.
    """
    n = len(codebooks)
    first, count, number = (np.zeros((n, 16), np.int64) for _ in range(3))
    ranges, shift = np.zeros((n, 3, 256), np.uint8), np.zeros((n, 8, 256), np.uint8)
    mark_of, head_of = np.zeros((n, 256), np.uint8), np.zeros((n, 256), np.uint16)
    lengths = np.frombuffer(bytearray(b"".join(c.lengths for c in codebooks)), np.uint8).reshape(n, 256)
    run_symbol, escape_code = np.zeros(n, np.int64), np.zeros(n, np.uint32)
    table = np.zeros((n, prefix_code.TABLE_SIZE), np.uint64) if decode else np.zeros((n, 256), np.uint32)
    marks, shifts = level_tables(widths, masks, tail_bits)
    for k, codebook in enumerate(codebooks):
        levels, heads = codebook.meanings
        mark_of[k], shift[k], head_of[k] = marks[levels], shifts[:, levels], heads
        start = 1
        for level, (begin, size) in enumerate(codebook.ranges):
            first[k, level], count[k, level], number[k, level] = begin, size, start
            ranges[k, :, level] = begin & 255, size, start
            start += size
        regular = lengths[k, : codebook.n_symbols + 1]
        run_symbol[k] = np.where(regular > 0, regular, NO_CODE).argmin()
        escape_code[k] = codebook.codes[ESCAPE]
        table[k] = codebook.decode_table if decode else codebook.encode_table
    n_symbols = np.array([c.n_symbols for c in codebooks], np.int64)
    books = Books(n_symbols, lengths, first, count, number, ranges, mark_of, shift, head_of, head_of.astype(np.uint8), run_symbol,
                  escape_code, table)
    return books, uniform_shifts(marks, shifts)


def level_tables(widths: Sequence[int], masks: Sequence[int], tail_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Which planes each level owns items of (uint8[n_levels + 1]), and where in the tail they lie (uint8[8, n_levels + 1]); the last
    column (index -1) is zero's."""
    marks, shift = np.zeros(len(masks) + 1, np.uint8), np.zeros((8, len(masks) + 1), np.uint8)
    marks[:-1] = masks
    for level, mask in enumerate(masks):
        below = tail_bits
        for plane, width in enumerate(widths):
            if mask >> plane & 1:
                below -= width
                shift[plane, level] = below
    return marks, shift


def uniform_shifts(marks: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Per plane the shift that all levels with an item there share, int64[8]; -1 where they differ."""
    uniform = np.zeros(8, np.int64)
    for plane in range(8):
        values = set(shift[plane][marks >> plane & 1 == 1].tolist())
        uniform[plane] = -1 if len(values) > 1 else next(iter(values), 0)
    return uniform
