"""The laws of the prelude, against docs/format.md: the worked example, the page's tables, writing and reading as
inverses."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import errors
from gcodec.dtypes import BY_CODE, BY_NAME, WIDE_DTYPES
from gcodec.format import codebook, limits, modes
from gcodec.format import levels as kept
from gcodec.format import prelude as fmt
from gcodec.format.levels import Level, check_levels, kept_bits
from gcodec.format.prelude import Prelude
from gcodec.frame import kinds
from gcodec.kernels.block import header
from gcodec.kernels.block.block_index import find_blocks, seal_prelude
from gcodec.kernels.entropy import prefix_code
from tests.support import laws, reference
from tests.support.bit_patterns import KINDS, gaussian, scaled, typed
from tests.support.frame_builder import (
    BLOCK_HEADER,
    EXTENSION,
    PREDICTED_EXTENSION,
    SPARSE_EXTENSION,
    Draft,
    build_frame,
)
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
SIX = np.array([1.0, -1.5, 0.0, 2.0, 0.5, 0.0], np.float32)


def little(n: int, size: int) -> bytes:
    """Return an unsigned number of ``size`` bytes, least significant first."""
    return n.to_bytes(size, "little")


# The worked example of docs/format.md, section 12


def test_the_worked_example_of_the_page_is_what_encode_writes():
    prelude = (
        b"\x89GCF"  #  0  magic
        + b"\x01"  #  4  version
        + b"\x01"  #  5  dtype: float32
        + b"\x00"  #  6  mode: lossless
        + b"\x00"  #  7  container: numpy
        + b"\x01"  #  8  ndim
        + b"\x0e"  #  9  block_log2: 2^14 values per block
        + b"\x08"  # 10  stream_log2: 2^8 values per sub-stream
        + b"\x00"  # 11  n_codebooks: the one block is raw and needs none
        + b"\x01"  # 12  n_levels
        + b"\x01"  # 13  n_planes
        + b"\x00"  # 14  n_residuals
        + b"\x00"  # 15  n_templates
        + little(112, 8)  # 16  frame_bytes
        + little(6, 8)  # 24  n_values
        + little(72, 8)  # 32  prelude_bytes
        + little(0x2B73E7704FA45534, 8)  # 40  checksum of the 18 words 0 ... 71, words 10 and 11 as zero
        + little(6, 8)  # 48  shape: (6,)
        + b"\x18"  # 56  plane 0 has items of 24 bits: sign and 23 mantissa bits
        + b"\x00\x01"  # 57  level 0 drops nothing and owns items of plane 0
        + bytes(5)  # 59  padding to 8
        + little(40, 4)  # 64  index: the only block has 40 bytes
        + bytes(4)  # 68  padding to 8
    )
    block = (
        b"\x01"  # 72  kind: raw. Coded, these six values would take more: see the next test.
        + b"\x00"  # 73  codebook
        + b"\x00\x00"  # 74  base
        + little(6, 4)  # 76  n_values
        + little(0x8B9969788ADBAA18, 8)  # 80  checksum of the 10 words 72 ... 111, words 2 and 3 as zero, seed of 0
        + b"\x00\x00\x80\x3f"  # 88  1.0  = 0 01111111 000...
        + b"\x00\x00\xc0\xbf"  # 92  -1.5 = 1 01111111 100...
        + b"\x00\x00\x00\x00"  # 96  0.0
        + b"\x00\x00\x00\x40"  # 100 2.0  = 0 10000000 000...
        + b"\x00\x00\x00\x3f"  # 104 0.5  = 0 01111110 000...
        + b"\x00\x00\x00\x00"  # 108 0.0: 24 bytes in all, no padding
    )

    def checksum(data: bytes, seed: int) -> int:
        words = struct.unpack(f"<{len(data) // 4}I", data)
        return (seed + sum(w * ((i + 1) * 0x9E3779B1 % 2**32 | 1) for i, w in enumerate(words))) % 2**64

    assert checksum(prelude[:40] + bytes(8) + prelude[48:], 0) == 0x2B73E7704FA45534
    assert checksum(block[:8] + bytes(8) + block[16:], 1 * 0x9E3779B97F4A7C15) == 0x8B9969788ADBAA18

    frame = gcodec.encode(SIX)
    assert frame.hex(" ") == (prelude + block).hex(" ")
    laws.assert_same_bits(gcodec.decode(prelude + block), SIX.view(np.uint32))
    laws.check_agreement(frame)


def test_the_worked_example_is_decoded_as_a_coded_block():
    """With a codebook the same values are longer, and as valid."""
    # Their heads are 127, 127, -, 128, 126, -; relative to the base 126: 1, 1, -, 2, 0, -.
    record = (
        b"\x00"  # kind: inline
        + b"\x01"  # n_levels
        + b"\x00\x00"  # reserved
        + little(0, 2)  # range of level 0: first relative head
        + little(3, 2)  #                   count: symbols 1, 2, 3 mean the relative heads 0, 1, 2
        + b"\x02"  # code lengths, 4 bits each, low half first: zero 2, escape none,
        + b"\x23"  # symbol 1: 3, symbol 2: 2,
        + b"\x02"  # symbol 3: 2 ... which sums to 1/4 + 1/8 + 1/4 + 1/4: not complete
        + b"\x00"  # padding to 4
    )
    body = (
        little(2, 4)  # symbol_bytes
        + little(12, 4)  # plane_bytes: four values own an item of 3 bytes
        + little(2, 2)  # min_stream_bytes
        + b"\x00"  # length_width: the one sub-stream is as long as the shortest
        + b"\x00"  # reference_width
        + b"\x00"  # run_symbol
        + b"\x00\x00\x00"  # reserved
        + b"\x00\x00\x00"
        + b"\x00\x00\xc0"
        + b"\x00\x00\x00"
        + b"\x00\x00\x00"  # plane 0: only -1.5 has bits set
    )
    draft = Draft(
        dtype=1,
        mode=0,
        container=0,
        block_log2=14,
        stream_log2=8,
        n_values=6,
        shape=(6,),
        planes=(24,),
        levels=((0, 1),),
        records=(record,),
        blocks=(),
    )

    def frame_with(record: bytes, stream: bytes) -> bytes:
        block = BLOCK_HEADER.pack(2, 0, 126, 6, 0) + body + stream + bytes(2)
        return replace(draft, records=(record,), blocks=(block,)).seal()

    assert laws.outcome(frame_with(record, b"\x00\x00")) == "corruption"
    # With lengths 2, 3, 1, 3 for zero and symbols 1, 2, 3 the codes are 10, 110, 0, 111; written first bit lowest:
    # 0, 0, 10, 111, 110, 10 fill the bits 0 1 ... 11 of two bytes.
    record = record[:8] + b"\x02\x13\x03\x00"
    frame = frame_with(record, bytes([0b11110100, 0b0101]))
    laws.assert_same_bits(gcodec.decode(frame), SIX.view(np.uint32))
    laws.check_agreement(frame)
    laws.check_truncation(frame, Random(0))
    laws.check_bit_flips(frame, Random(0), at_most=300)


# The page's tables


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of the tables of a section of the page."""
    text = PAGE.split(f"\n## {section}")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_value_types_are_those_of_the_page():
    rows = [row for row in rows_of("2. Value types") if row[0].isdigit()]
    assert [int(row[0]) for row in rows] == sorted(BY_CODE)
    for row in rows:
        kind = BY_CODE[int(row[0])]
        numbers = [int(cell) for cell in (row[0], *row[2:6])]
        assert numbers == [kind.code, kind.bits, kind.head_bits, kind.tail_bits, kind.mantissa_bits]
        assert row[1] == kind.name
        assert kind.head_bits + kind.tail_bits == kind.bits
        assert 1 + kind.exponent_bits + kind.mantissa_bits == kind.bits
        assert kind.uint.itemsize == kind.itemsize == kind.bits // 8


def test_examples_of_planes_and_levels_are_what_the_encoder_writes():
    bit_layouts = {
        "float32 lossless": modes.lossless(BY_NAME["float32"]),
        "float32 lossless, with a wide head": modes.lossless(WIDE_DTYPES["float32"]),
        "float32, 9 mantissa bits kept": modes.fixed(BY_NAME["float32"], 9),
        "float32, ladder 0/6/12/18": modes.ladder(BY_NAME["float32"], gcodec.PAPER_LADDER["float32"]),
        "float32, ladder 0/3/…/21": modes.ladder(BY_NAME["float32"], gcodec.FINE_LADDER["float32"]),
        "bfloat16, ladder 0/2/4/6": modes.ladder(BY_NAME["bfloat16"], gcodec.PAPER_LADDER["bfloat16"]),
    }
    rows = {row[0]: row for row in rows_of("4. Frame") if row[0] in bit_layouts}
    assert rows.keys() == bit_layouts.keys()
    for name, made in bit_layouts.items():
        _, planes, levels = rows[name]
        assert tuple(int(width) for width in planes.split()) == made.widths, name
        pairs = [pair.split(": ") for pair in levels.replace("₂", "").split(" · ")]
        assert tuple(Level(int(drop), int(mask, 2)) for drop, mask in pairs) == made.levels, name


def test_legal_values_of_the_header_are_those_of_the_page():
    rows = {row[2]: row for row in rows_of("4. Frame") if len(row) == 4 and row[0] not in ("offset", "---")}
    legal = {name: row[3] for name, row in rows.items()}
    assert legal["magic"].startswith("`" + fmt.MAGIC.hex(" "))
    assert int(legal["version"]) == fmt.VERSION

    def span(name: str) -> tuple[int, ...]:
        found = re.match(r"(?:each )?(\d+) … (\d+)", legal[name])
        assert found, name
        return tuple(map(int, found.groups()))

    assert span("ndim") == (0, limits.MAX_DIMENSIONS)
    assert span("block_log2") == (limits.BLOCK_LOG2[0], limits.BLOCK_LOG2[-1])
    assert span("stream_log2") == (limits.STREAM_LOG2[0], limits.STREAM_LOG2[-1])
    assert span("n_codebooks") == (0, limits.MAX_CODEBOOKS)
    assert span("n_levels") == (1, kept.MAX_LEVELS)
    assert span("n_planes") == (0, kept.MAX_PLANES)
    assert span("plane widths") == (1, kept.MAX_PLANE_BITS)
    assert limits.MAX_VALUES == 2**48
    offsets = [int(row[0]) for row in rows.values() if row[0].isdigit()]
    sizes = {"4 bytes": 4, "u8": 1, "u16": 2, "u64": 8}
    fields = [row for row in rows.values() if row[0].isdigit() and row[1] in sizes]
    assert offsets == [*(sum(sizes[row[1]] for row in fields[:i]) for i in range(len(fields))), fmt.HEADER_BYTES]
    assert fmt.HEADER.size == fmt.HEADER_BYTES == 48
    assert int(rows["checksum"][0]) == fmt.CHECKSUM_AT == 4 * fmt.CHECKSUM_HOLE


def test_fields_are_wide_enough_for_their_maxima():
    for most in (
        limits.MAX_DIMENSIONS,
        limits.BLOCK_LOG2[-1],
        limits.STREAM_LOG2[-1],
        limits.MAX_CODEBOOKS,
        kept.MAX_LEVELS,
        kept.MAX_PLANES,
        kept.MAX_PLANE_BITS,
        len(fmt.MODES),
        len(fmt.CONTAINERS),
        len(kinds.BLOCK_KINDS),
        max(BY_CODE),
        max(kind.mantissa_bits for kind in BY_CODE.values()),
        (1 << kept.MAX_PLANES) - 1,
        codebook.MAX_SYMBOLS + 1,
    ):
        assert 0 <= most < 1 << 8
    head = max(kind.head_bits for kind in BY_CODE.values())
    longest = prefix_code.MAX_LENGTH + head
    stream = 1 << limits.STREAM_LOG2[-1]
    block = 1 << limits.BLOCK_LOG2[-1]
    assert prefix_code.MAX_LENGTH < 1 << 4  # code lengths
    assert max(kind.tail_bits for kind in BY_CODE.values()) <= kept.MAX_PLANE_BITS
    assert head <= 16  # base, first of a range
    assert stream * longest // 8 < 1 << 16  # min_stream_bytes, 16 bits of length
    assert block * (longest + 64) // 8 + 1024 < 1 << 32  # block sizes, symbol_bytes, plane_bytes
    assert (limits.MAX_VALUES - 1) * 8 < 1 << 63  # byte counts fit int64
    assert longest <= 57 - 8  # a code within a 64-bit window at any bit


def test_constants_of_blocks_are_those_of_the_page():
    assert re.search(r"\| 0 \| u8 \| kind \| 0 constant, 1 raw, 2 coded, 3 predicted, 4 sparse, 5 indexed", PAGE)
    numbers = header.CONSTANT, header.RAW, header.CODED, header.PREDICTED, header.SPARSE, header.INDEXED
    assert numbers == (0, 1, 2, 3, 4, 5)
    assert [(kind.number, kind.name) for kind in kinds.BLOCK_KINDS] == [
        (0, "constant"),
        (1, "raw"),
        (2, "coded"),
        (3, "predicted"),
        (4, "sparse"),
        (5, "indexed"),
    ]
    assert BLOCK_HEADER.size == header.BLOCK_HEADER == 16
    assert BLOCK_HEADER.size + EXTENSION.size == header.CODED_HEADER == 32
    assert PREDICTED_EXTENSION.size == SPARSE_EXTENSION.size == EXTENSION.size
    assert header.SEED == 0x9E3779B97F4A7C15
    assert "(b + 1) · 0x9E3779B97F4A7C15" in PAGE
    assert prefix_code.ESCAPE == reference.ESCAPE == 255
    assert prefix_code.TABLE_SIZE == 2**prefix_code.MAX_LENGTH == 2**12


# Planes and levels


@pytest.mark.parametrize("dtype", [name for name, kind in KINDS.items() if kind.T])
def test_bit_layouts_keep_what_their_drops_leave(dtype):
    kind = BY_NAME[dtype]
    ladders = [
        gcodec.Ladder(drops)
        for n in (1, 2, 3)
        for drops in combinations(range(kind.mantissa_bits + 1), n)
        if drops[0] < kind.mantissa_bits and (n < 3 or kind.bits == 16)
    ]
    made = [
        modes.lossless(kind),
        *(modes.fixed(kind, k) for k in range(1, kind.mantissa_bits + 1)),
        *(modes.ladder(kind, steps) for steps in ladders),
        modes.ladder(kind, gcodec.FINE_LADDER[dtype]),
        modes.ladder(kind, gcodec.PAPER_LADDER[dtype]),
    ]
    for one in made:
        check_levels(kind, one.widths, one.levels)
        assert len(one.drops) == len(one.levels)
        for level, drop in zip(one.levels, one.drops, strict=True):
            n_kept = sum(width for p, width in enumerate(one.widths) if level.mask >> p & 1)
            assert level.drop == drop
            assert n_kept == kind.tail_bits - min(drop, kind.tail_bits - 1) == kept_bits(kind, drop)
        assert len(one.widths) <= kept.MAX_PLANES


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_types_without_tail_have_one_bit_layout(dtype):
    kind = BY_NAME[dtype]
    check_levels(kind, (), (Level(0, 0),))
    assert modes.lossless(kind).widths == ()
    for call in (lambda: modes.fixed(kind, 1), lambda: modes.ladder(kind, gcodec.Ladder((0,)))):
        laws.check_refused(errors.InvalidArgument, call)


# Writing and reading


def preludes() -> st.SearchStrategy[Prelude]:
    """Return a strategy of preludes that the encoder might write."""

    def build(dtype, shape, container, block_log2, seed, n_codebooks, mode):
        kind = BY_NAME[dtype]
        made = modes.lossless(kind)
        if kind.tail_bits and mode:
            made = modes.fixed(kind, 3) if mode == 1 else modes.ladder(kind, gcodec.FINE_LADDER[dtype])
        rng = Random(seed)
        frame = build_frame(
            rng,
            dtype=kind.code,
            n_values=0,
            n_codebooks=n_codebooks,
            levels=(made.widths, [(level.drop, level.mask) for level in made.levels]),
        )
        records = Draft.of(frame.frame, {}).records
        books = tuple(codebook.read_inline(record, 0, len(made.levels), kind.head_bits)[0] for record in records)
        return Prelude(
            kind,
            made.mode,
            container,
            tuple(shape),
            block_log2,
            min(block_log2, 8),
            made.widths,
            made.levels,
            records,
            books,
        )

    shapes = st.lists(st.integers(0, 40), max_size=5)
    return st.builds(
        build,
        st.sampled_from(sorted(BY_NAME)),
        shapes,
        st.integers(0, 1),
        st.integers(10, 20),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 1, 2, 7]),
        st.integers(0, 2),
    )


@given(preludes(), st.integers(0, 2**32 - 1))
def test_preludes_are_read_as_they_were_written(prelude, seed):
    index = 8 * np.random.default_rng(seed).integers(0, 1 << 20, prelude.n_blocks)
    start, total = prelude.prelude_bytes, prelude.prelude_bytes + int(index.sum())
    frame = np.full(start + 8 * 50, 0xA5, np.uint8)
    head = np.frombuffer(bytearray(prelude.start(total)), np.uint8)
    seal_prelude(frame, head, prelude.index_at, start, total, index.astype(np.uint32))
    assert (frame[start:] == 0xA5).all()
    data = frame[:start].tobytes()
    assert reference.checksum(data[:40] + bytes(8) + data[48:], 0) == int.from_bytes(data[40:48], "little")
    assert fmt.read_prelude(data, lambda number, digest: None) == prelude
    sizes, offsets = np.empty((2, prelude.n_blocks), np.int64)
    assert find_blocks(frame[:start], prelude.index_at, start, sizes, offsets) == total
    assert np.array_equal(sizes, index)
    assert np.array_equal(offsets, start + np.cumsum(index) - index)
    held = np.zeros(total, np.uint8) if total < 1 << 20 else None
    if held is not None:
        held[: len(data)] = frame[: len(data)]
        assert fmt.prelude_size(held) == (start, total)
        laws.check_refused(errors.InsufficientData, lambda: fmt.prelude_size(held[:-1]))


def test_geometry_beyond_32_bits_does_not_overflow():
    """The numbers are those of a frame that no test can hold."""
    shape = (1 << 20, 1 << 20)
    prelude = Prelude(BY_NAME["float32"], 0, 0, shape, 14, 8, (24,), (Level(0, 1),), (), ())
    assert prelude.n_values == 1 << 40
    assert prelude.n_blocks == 1 << 26
    assert prelude.prelude_bytes == 72 + (1 << 28)
    assert prelude._replace(shape=(0, 1 << 40)).n_blocks == 0
    assert gcodec.max_encoded_size(shape, "float32") > 1 << 42


def test_shapes_that_no_array_can_have_are_refused():
    """Frames of hardly any bytes must not make a decoder allocate or overflow."""
    for seed in range(6):
        draft = Draft.of(build_frame(Random(seed), dtype=1, n_values=0, n_codebooks=0, with_base=False).frame, {})
        for shape in ((0, 2**63), (2**63, 0), (0, 2**32, 2**32), (2**40, 2**40, 0), (0, 2**64 - 1)):
            assert laws.outcome(replace(draft, shape=shape).seal()) == "corruption", shape
        for shape in ((0, 2**47), (2**47, 0, 1)):
            assert gcodec.decode(replace(draft, shape=shape).seal(), like="numpy").shape == shape


def test_frames_taken_apart_and_put_together_are_the_same():
    """The page alone says how a frame is taken apart."""
    for dtype, kind in KINDS.items():
        bits = gaussian(kind, np.random.default_rng(1), 40_000, zeros=0.2)
        frame = gcodec.encode(bits if dtype not in ("float32", "float64", "float16") else bits.view(dtype), dtype=dtype)
        assert Draft.of(frame, laws.SHIPPED).seal() == frame
        if kind.T:
            frame = gcodec.encode(typed(dtype, scaled(kind, np.random.default_rng(2), (300, 96))), dtype=dtype)
            assert Draft.of(frame, laws.SHIPPED).columns
            assert Draft.of(frame, laws.SHIPPED).seal() == frame
