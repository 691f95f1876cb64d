"""Codebooks of changes and sparse blocks (docs/format.md, sections 5 and 9): their parts, and random ones."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.support.frame_builder.blocks import BlockWriter, random_lengths, stepped
from tests.support.frame_builder.parts import (
    BLOCK_HEADER,
    canonical_codes,
    pack,
    padded,
    sealed_block,
    streams_of,
    to_bits,
    to_bytes,
)
from tests.support.reference import BlockKind

SPARSE_EXTENSION = struct.Struct("<IIBBHI")
NO_TEMPLATE = 65535  # as a base: there are no predictions
N_COUNTS = 41


@dataclass(frozen=True)
class Changes:
    """The parts of a record of a codebook of changes (§5): thresholds, and code lengths: of counts, steps, each class.

    Without classes there are no steps, and `classes` are the code lengths of gaps alone.
    """

    W: int
    n_classes: int
    n_gaps: int
    thresholds: tuple[int, ...]
    counts: tuple[int, ...]
    steps: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, record: bytes) -> Changes:
        _, n_classes, n_gaps, value_bytes = record[:4]
        n_thresholds = max(n_classes - 1, 0)
        lengths_at = 4 + value_bytes * n_thresholds
        thresholds = tuple(
            int.from_bytes(record[at : at + value_bytes], "little") for at in range(4, lengths_at, value_bytes)
        )
        nibbles = [nibble for byte in record[lengths_at:] for nibble in (byte & 15, byte >> 4)]
        counts, nibbles = nibbles[:N_COUNTS], nibbles[N_COUNTS:]
        n_steps, size = (16 * value_bytes + 1, 3 * n_gaps) if n_classes else (0, n_gaps)
        classes = tuple(tuple(nibbles[n_steps + c * size :][:size]) for c in range(max(n_classes, 1)))
        return cls(8 * value_bytes, n_classes, n_gaps, thresholds, tuple(counts), tuple(nibbles[:n_steps]), classes)

    def record(
        self,
        n_classes: int | None = None,
        n_gaps: int | None = None,
        value_bytes: int | None = None,
        fill: int = 0,
        spare: Random | None = None,
    ) -> bytes:
        start = bytes(
            [
                3,
                self.n_classes if n_classes is None else n_classes,
                self.n_gaps if n_gaps is None else n_gaps,
                self.W // 8 if value_bytes is None else value_bytes,
            ]
        )
        lengths = [length for code in (self.counts, self.steps, *self.classes) for length in code]
        return padded(start + pack(self.thresholds, self.W) + pack(lengths, 4, spare), 4, fill)

    def codes(self) -> tuple[dict[int, str], dict[int, str], list[dict[int, str]]]:
        """Codes of the counts, of the steps and of each class, by symbol, first bit first (§5)."""
        counts, steps, *classes = (
            canonical_codes(dict(enumerate(code))) for code in (self.counts, self.steps, *self.classes)
        )
        return counts, steps, classes

    def class_of(self, predicted: int) -> int:
        """The class of a value (§9)."""
        return bisect_right(self.thresholds, predicted & (1 << self.W - 1) - 1)


@dataclass(frozen=True)
class Sparse:
    """The parts of a sparse block (§6, §9)."""

    codebook: int
    base: int
    n_values: int
    inner: bytes
    streams: tuple[bytes, ...]
    min_stream_bytes: int
    length_width: int
    stream_log2: int

    @classmethod
    def of(cls, block: bytes) -> Sparse:
        _, codebook, base, n_values, _ = BLOCK_HEADER.unpack_from(block)
        fields = SPARSE_EXTENSION.unpack_from(block, 16)
        symbol_bytes, min_stream_bytes, length_width, stream_log2, _, inner_bytes = fields
        n_streams = -(-n_values >> stream_log2)
        at = 32 + inner_bytes
        return cls(
            codebook,
            base,
            n_values,
            block[32:at],
            streams_of(block, at, at + symbol_bytes, n_streams, min_stream_bytes, length_width),
            min_stream_bytes,
            length_width,
            stream_log2,
        )

    def block(
        self,
        *,
        symbol_bytes: int | None = None,
        inner_bytes: int | None = None,
        surplus: bytes = b"",
        reserved: int = 0,
        fill: int = 0,
        spare: Random | None = None,
    ) -> bytes:
        """The block; its checksum is left open. `surplus` comes after the sub-streams."""
        streams = b"".join(self.streams) + surplus
        symbol_bytes = len(streams) if symbol_bytes is None else symbol_bytes
        inner_bytes = len(self.inner) if inner_bytes is None else inner_bytes
        extension = SPARSE_EXTENSION.pack(
            symbol_bytes, self.min_stream_bytes, self.length_width, self.stream_log2, reserved, inner_bytes
        )
        lengths = pack([len(stream) - self.min_stream_bytes for stream in self.streams], self.length_width, spare)
        start = BLOCK_HEADER.pack(4, self.codebook, self.base, self.n_values, 0)
        return padded(start + extension + self.inner + streams + lengths, 8, fill)

    def restreamed(self, s: int, stream: bytes) -> Sparse:
        """With another sub-stream s, the lengths being given in full."""
        streams = (*self.streams[:s], stream, *self.streams[s + 1 :])
        return replace(self, streams=streams, min_stream_bytes=0, length_width=24)

    def cut_anew(self, stream_log2: int, streams: tuple[bytes, ...] | None = None) -> Sparse:
        """With sub-streams of another length, in which nothing differs if they are not given."""
        if streams is None:
            streams = (b"",) * -(-self.n_values >> stream_log2)
        return replace(self, stream_log2=stream_log2, streams=streams, inner=b"", min_stream_bytes=0, length_width=24)


# What is drawn at random.


def random_changes(rng: Random, W: int, base: Sequence[int]) -> Changes:
    """A codebook of changes (§5), with thresholds among the magnitudes of the base's values or anywhere."""
    n_classes = rng.choice([0, 0, 1, 2, 3, 16, rng.randint(1, 16)])
    n_gaps = rng.choice([1, 2, 41, rng.randint(1, 41), rng.randint(3, 16)])
    thresholds = tuple(random_thresholds(rng, max(n_classes - 1, 0), W, base))
    if n_classes == 0:
        return Changes(W, 0, n_gaps, thresholds, random_counts(rng), (), (random_code(rng, n_gaps),))
    classes = tuple(random_code(rng, 3 * n_gaps) for _ in range(n_classes))
    return Changes(W, n_classes, n_gaps, thresholds, random_counts(rng), random_code(rng, 2 * W + 1), classes)


def random_thresholds(rng: Random, n: int, W: int, base: Sequence[int]) -> list[int]:
    """Different magnitudes, rising."""
    most = (1 << W - 1) - 1
    drawn: set[int] = set()
    near = rng.random() < 0.7
    while len(drawn) < n:
        at = (
            (rng.choice(base) & most) + rng.choice([0, 0, 1])
            if base and near and rng.random() < 0.8
            else (rng.choice([1, most, rng.randint(1, most), rng.randint(1, min(most, 40))]))
        )
        if 1 <= at <= most:
            drawn.add(at)
    return sorted(drawn)


def random_code(rng: Random, n: int) -> tuple[int, ...]:
    """Code lengths of n symbols: of a complete code, or of none."""
    return (0,) * n if n < 2 or rng.random() < 0.1 else tuple(random_lengths(rng, n))


def random_counts(rng: Random) -> tuple[int, ...]:
    """Code lengths of the counts: often of all that a block needs, of all there are, or of some of them."""
    n = rng.choice([10, 24, N_COUNTS])
    if rng.random() < 0.25:
        return random_code(rng, N_COUNTS)
    while True:
        lengths = random_lengths(rng, n)
        if all(lengths):
            return (*lengths, *(0,) * (N_COUNTS - n))


def number_bits(g: int, low: int = 0) -> str:
    """The bits that follow the code of a number's category (§9)."""
    return to_bits(low, max(g // 2 - 1, 0))


def category(n: int) -> tuple[int, int]:
    """The category of a number (§9), and the number in its bits."""
    if n < 2:
        return n, 0
    e = n.bit_length() - 1
    low = n - (1 << e)
    second = low >> e - 1
    return 2 * e + second, low - (second << e - 1)


def first_of(g: int) -> int:
    """The least number of a category."""
    return g if g < 2 else (2 | g & 1) << g // 2 - 1


@dataclass(frozen=True)
class SparseWriter:
    """Draws sparse blocks (§9) of a frame; `writer` knows the frame, and draws the inner blocks.

    `codebooks` are those of changes, the first of which is number `n_before` in the frame; `bases` are the positions of
    the templates that stand for the base.
    """

    writer: BlockWriter
    block_log2: int
    codebooks: Sequence[Changes]
    n_before: int
    bases: Sequence[int]

    @property
    def usable(self) -> list[int]:
        """Which of the codebooks a block may name: those with classes need a base."""
        return [c for c, codebook in enumerate(self.codebooks) if self.bases or codebook.n_classes == 0]

    def block(self, n_values: int, start: int) -> tuple[bytes, list[int]]:
        """A sparse block from value `start` of the array on, and its values."""
        rng = self.writer.rng
        c = rng.choice(self.usable)
        codebook = self.codebooks[c]
        alone = codebook.n_classes == 0
        values = [0] * n_values if alone else list(self.writer.base[start : start + n_values])
        stream_log2 = rng.choice([6, self.block_log2, rng.randint(6, self.block_log2)])
        walk = Walk(rng, codebook)
        share_of_empty = rng.choice([0, 0.3, 0.9, 1])
        places: list[int] = []
        streams = []
        for done in range(0, n_values, 1 << stream_log2):
            streams.append(b"")
            predicted = values[done : done + (1 << stream_log2)]
            drawn = walk.stream(predicted) if rng.random() >= share_of_empty else None
            if drawn is not None:
                streams[-1] = to_bytes(drawn[0], self.writer.spare)
                for place, step in drawn[1]:
                    places.append(done + place)
                    if not alone:
                        values[places[-1]] = stepped(
                            predicted[place], 2 * step if step >= 0 else -2 * step - 1, codebook.W
                        )
        inner = b""
        if alone and places:
            inner, inside = self.inner(len(places))
            for place, value in zip(places, inside, strict=True):
                values[place] = value
        min_stream_bytes, length_width = self.lengths(streams)
        parts = Sparse(
            self.n_before + c,
            NO_TEMPLATE if alone else rng.choice(self.bases),
            n_values,
            inner,
            tuple(streams),
            min_stream_bytes,
            length_width,
            stream_log2,
        )
        return parts.block(spare=self.writer.spare), values

    def inner(self, n_values: int) -> tuple[bytes, list[int]]:
        """An inner block with its checksum, and its values; column references are none of its business."""
        writer = replace(self.writer, columns=())
        kinds: tuple[BlockKind, ...] = ("constant", "raw", "coded") if writer.codebooks else ("constant", "raw")
        block, values = writer.block(writer.rng.choice(kinds), n_values)
        return sealed_block(block, 0), values

    def lengths(self, streams: Sequence[bytes]) -> tuple[int, int]:
        """min_stream_bytes and length_width that will do (§9)."""
        rng = self.writer.rng
        shortest = min(len(stream) for stream in streams)
        min_stream_bytes = rng.choice([0, shortest, rng.randint(0, shortest)])
        needed = max(len(stream) - min_stream_bytes for stream in streams).bit_length()
        return min_stream_bytes, rng.choice([needed, 24, rng.randint(needed, 24)])


class Walk:
    """Draws the changes of sub-streams, class by class, as the codes have them."""

    def __init__(self, rng: Random, codebook: Changes) -> None:
        self.rng = rng
        self.codebook = codebook
        self.counts, self.step_codes, self.class_codes = codebook.codes()
        self.symbols = [self.symbols_of(codes) for codes in self.class_codes]
        self.usual = [rng.choice([*map(self.gap_of, symbols), 0]) for symbols in self.symbols]
        self.nature = rng.randrange(4)

    def symbols_of(self, codes: dict[int, str]) -> list[int]:
        """Symbols that may be met: of those that a step follows none if no step has a code."""
        stepless = self.codebook.n_classes > 0 and not self.step_codes
        return [symbol for symbol in codes if not (stepless and symbol % 3 == 2)]

    def gap_of(self, symbol: int) -> int:
        """The category of a symbol's gap."""
        return symbol // 3 if self.codebook.n_classes else symbol

    def stream(self, predicted: Sequence[int]) -> tuple[str, list[tuple[int, int]]] | None:
        """The bits of a sub-stream, and its changes: places and steps; None if the codes allow of none.

        Places rise where there is one class only.
        """
        places_of: dict[int, list[int]] = {}
        for place, p in enumerate(predicted):
            places_of.setdefault(self.codebook.class_of(p), []).append(place)
        text = ""
        changes: list[tuple[int, int]] = []
        for c, codes in enumerate(self.class_codes):
            if not codes:
                continue
            places = places_of.get(c, [])
            walked = list(self.walk(c, places))
            counted = self.counted(len(walked))
            if counted is None:
                return None
            n, bits = counted
            text += bits + "".join(told for told, _, _ in walked[:n])
            changes += [(at, step) for _, at, step in walked[:n]]
        return (text, changes) if text else None

    def counted(self, most: int) -> tuple[int, str] | None:
        """The largest count that can be written, up to `most`, and its bits; None if there is none."""
        for g in sorted(self.counts, reverse=True):
            if first_of(g) <= most:
                n = min(most, first_of(g + 1) - 1)
                return n, self.counts[g] + number_bits(*category(n))
        return None

    def walk(self, c: int, places: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Changes of a class, up to as many as fit: their bits, the places that they are for, and the steps."""
        at = -1
        share_of_ends = self.rng.choice([0, 0, 0.02, 0.5])
        while self.rng.random() >= share_of_ends:
            most = len(places) - at - 2
            symbols = [symbol for symbol in self.symbols[c] if first_of(self.gap_of(symbol)) <= most]
            if not symbols:
                return
            (symbol,) = self.rng.choices(symbols, [self.weight(c, symbol) for symbol in symbols])
            text, gap, step = self.change(c, symbol, most)
            at += gap + 1
            yield text, places[at], step

    def weight(self, c: int, symbol: int) -> float:
        """Of a symbol of a class: all alike, rather short or long gaps, or one gap almost everywhere."""
        gap = self.gap_of(symbol)
        return (1.0, 2.0**-gap, 2.0**gap, 20.0 if gap == self.usual[c] else 1.0)[self.nature]

    def change(self, c: int, symbol: int, most: int) -> tuple[str, int, int]:
        """The bits of a change of a class with a gap up to `most`, its gap and its step."""
        rng = self.rng
        g, k = divmod(symbol, 3) if self.codebook.n_classes else (symbol, 0)
        first, last = first_of(g), min(most, first_of(g + 1) - 1)
        gap = rng.choice([first, last, rng.randint(first, last)])
        text = self.class_codes[c][symbol] + number_bits(g, gap - first)
        if k < 2:
            return text, gap, 1 - 2 * k
        t = rng.choice(list(self.step_codes))
        if t == 0:
            return text + self.step_codes[t], gap, 0
        n_bits = (t + 1) // 2 - 1
        low = rng.choice([0, (1 << n_bits) - 1, rng.getrandbits(n_bits)]) if n_bits else 0
        size = 1 << n_bits | low
        return text + self.step_codes[t] + to_bits(low, n_bits), gap, size if t % 2 else -size
