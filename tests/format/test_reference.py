"""The laws of the second decoder, on frames made by hand: what is valid decodes, and what is not is refused."""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.support.frame_builder import (
    ANY_KIND_OR_INDEXED,
    ANY_KIND_OR_SPARSE,
    SPOILERS,
    USUAL_PLANES,
    Built,
    Coded,
    Columns,
    Draft,
    Inline,
    Predicted,
    Residual,
    build_frame,
    by_id,
    mutations,
)
from tests.support.reference import DTYPES, ESCAPE, Bits, BlockKind, Refused, base_hash, checksum, decode

KINDS: tuple[BlockKind, ...] = ("constant", "raw", "coded", "predicted")
PREDICTED = [code for code, kind in DTYPES.items() if kind.predicted]
WITH_TAIL = [code for code, kind in DTYPES.items() if kind.T]


def kind_of_refusal(
    frame: bytes, codebooks: dict[tuple[int, int], bytes] | None = None, base: Bits | None = None
) -> str | None:
    try:
        decode(frame, codebooks, base=base)
    except Refused as refused:
        return refused.kind
    return None


@functools.cache
def corpus() -> tuple[Built, ...]:
    """Build frames of all value types and kinds of block, small and not, and at random."""
    frames = []
    for seed, (dtype, kind) in enumerate(itertools.product(DTYPES, KINDS)):
        for n_values in 1 + seed, 1025 + 100 * seed:
            rng = Random(f"{dtype} {kind} {n_values}")
            frames.append(build_frame(rng, dtype=dtype, n_values=n_values, block_log2=10, kinds=[kind]))
    frames += [build_frame(Random(seed), named=seed % 4 == 0, spare_bits=seed % 2 == 0) for seed in range(80)]
    frames += [build_frame(Random(n), dtype=1, n_values=0, n_codebooks=n) for n in (0, 255)]
    sixteen = [1, 2, 4, 8, 9], [(drop, 16 + 15 - drop) for drop in range(16)]
    frames += [build_frame(Random(seed), dtype=1, n_values=500, levels=sixteen) for seed in range(5)]
    frames += [
        build_frame(
            Random(seed),
            dtype=PREDICTED[seed % 5],
            n_values=[300, 1500][seed % 2],
            block_log2=10,
            kinds=["predicted"],
            spare_bits=seed % 2 == 0,
        )
        for seed in range(20)
    ]
    frames += [
        build_frame(
            Random(f"base {seed}"),
            dtype=PREDICTED[seed % 5],
            n_values=[0, 1, 301, 1500][seed % 4],
            block_log2=10,
            kinds=["predicted"],
            spare_bits=seed % 2 == 0,
            with_base=True,
        )
        for seed in range(30)
    ]
    for seed, (dtype, usual) in enumerate(itertools.product(WITH_TAIL, range(2))):
        for number, levels in enumerate(USUAL_PLANES[DTYPES[dtype].T], seed):
            rng = Random(f"columns {dtype} {usual} {number}")
            frames.append(
                build_frame(
                    rng,
                    dtype=dtype,
                    n_values=[300, 2500, 2060, 1100][number % 4],
                    block_log2=10,
                    n_codebooks=2,
                    levels=levels if usual else None,
                    spare_bits=number % 2 == 0,
                    kinds=["coded", "coded", "predicted", "constant"],
                    with_columns=True,
                )
            )
    return (*frames, *sparse_corpus(), *indexed_corpus())


@functools.cache
def sparse_corpus() -> tuple[Built, ...]:
    """Build frames with sparse blocks, of all value types, with a base and without, alone and among other blocks."""
    frames = [
        build_frame(
            Random(f"sparse {seed}"),
            dtype=1 + seed % 8,
            n_values=[1, 40, 200, 1100, 2060][seed % 5],
            block_log2=10,
            kinds=["sparse"] if seed % 3 else ANY_KIND_OR_SPARSE,
            named=seed % 4 == 0,
            spare_bits=seed % 2 == 0,
            with_base=[True, True, False][seed % 3 - seed // 24],
        )
        for seed in range(72)
    ]
    frames += [
        build_frame(
            Random(f"long {seed}"),
            dtype=1 + seed % 8,
            n_values=4100,
            block_log2=12 + seed % 3,
            kinds=["sparse"],
            with_base=seed < 8,
        )
        for seed in range(12)
    ]
    return tuple(frames)


@functools.cache
def indexed_corpus() -> tuple[Built, ...]:
    """Build frames with indexed blocks, of all value types that have them, alone and among other blocks."""
    return tuple(
        build_frame(
            Random(f"indexed {seed}"),
            dtype=WITH_TAIL[seed % len(WITH_TAIL)],
            n_values=[1, 40, 200, 1100, 2060][seed % 5],
            block_log2=10,
            kinds=ANY_KIND_OR_INDEXED if seed % 3 == 0 else ["indexed"],
            named=seed % 4 == 0,
            spare_bits=seed % 2 == 0,
            with_offsets=seed >= 72,
        )
        for seed in range(120)
    )


@functools.cache
def small_frame() -> Built:
    """Return a frame of less than 1000 bytes that has a block of each kind but raw, a codebook by id, and a base."""
    kinds: list[BlockKind] = ["coded", "predicted", "constant"]
    for seed in itertools.count():
        built = build_frame(
            Random(seed),
            dtype=1 + seed % 3,
            n_values=2060,
            block_log2=10,
            n_codebooks=2,
            named=True,
            kinds=kinds,
            with_base=True,
        )
        found = {block[0] for block in Draft.of(built.frame, built.codebooks).blocks}
        if len(built.frame) < 1000 and found == {0, 2, 3} and built.codebooks:
            return built
    raise AssertionError


# Valid frames


def test_the_second_decoder_reads_a_frame_written_by_hand() -> None:
    """The frame shares nothing with the builder but the page."""

    def little(n: int, size: int) -> bytes:
        return n.to_bytes(size, "little")

    def summed(data: bytes, seed: int) -> bytes:
        total = seed
        for i in range(len(data) // 4):
            word = int.from_bytes(data[4 * i : 4 * i + 4], "little")
            total += word * ((i + 1) * 0x9E3779B1 % 2**32 | 1)
        return little(total % 2**64, 8)

    # Relative to the base of 126 the heads 127, 127, -, 128, 126, - are 1, 1, -, 2, 0, -, which makes the
    # symbols 2, 2, 0, 3, 1, 0. Of the lengths 2 (zero), 0 (escape), 3, 1, 3 come the codes 10, none, 110, 0,
    # 111, and so the bits 0 0 10 111 110 10.
    prelude = (
        b"\x89GCF"
        + bytes([1, 1, 0, 0, 2, 10, 6, 1, 1, 1, 0, 0])
        + little(136, 8)
        + little(6, 8)
        + little(88, 8)
        + bytes(8)
        + little(2, 8)
        + little(3, 8)  # shape
        + bytes([24])
        + bytes([0, 1])  # plane, level
        + bytes([0, 1, 0, 0])
        + bytes([0, 0, 3, 0])
        + bytes([0x02, 0x13, 0x03])
        + bytes(1)
        + bytes(1)
        + little(48, 4)
        + bytes(4)  # index
    )
    block = (
        bytes([2, 0, 126, 0])
        + little(6, 4)
        + bytes(8)
        + little(2, 4)
        + little(12, 4)
        + little(2, 2)
        + bytes([0, 0, 0])
        + bytes(3)
        + bytes([0, 0, 0, 0, 0, 0xC0, 0, 0, 0, 0, 0, 0])  # plane: of -1.5 sign and mantissa
        + bytes([0b11110100, 0b0101])
        + bytes(2)
    )
    prelude = prelude[:40] + summed(prelude, 0) + prelude[48:]
    block = block[:8] + summed(block, 0x9E3779B97F4A7C15) + block[16:]
    decoded = decode(prelude + block)
    assert decoded.dtype == "float32"
    assert decoded.shape == (2, 3)
    assert decoded.kinds == ["coded"]
    assert decoded.bits.view(np.float32).tolist() == [1.0, -1.5, 0.0, 2.0, 0.5, 0.0]


def test_the_second_decoder_reads_built_frames() -> None:
    for built in corpus():
        decoded = decode(built.frame, built.codebooks, base=built.base)
        assert decoded.bits.dtype == built.bits.dtype
        assert np.array_equal(decoded.bits, built.bits)
        assert np.prod(decoded.shape, dtype=object) == len(built.bits)
        assert decoded.n_blocks == len(decoded.kinds)


def corners(built: Built) -> Iterator[str]:
    """Yield what is special about a frame."""
    draft = Draft.of(built.frame, built.codebooks)
    H = draft.kind.H
    yield f"dtype {draft.dtype}"
    yield f"ndim {len(draft.shape)}"
    yield f"stream_log2 {draft.stream_log2}"
    yield f"{len(draft.planes)} planes"
    yield f"{len(draft.levels)} levels"
    yield f"{len(draft.records)} codebooks"
    if draft.n_values == 0:
        yield "no values"
    if any(not any(mask >> p & 1 for _, mask in draft.levels) for p in range(len(draft.planes))):
        yield "unused plane"
    inline = {}
    for c, record in enumerate(draft.records):
        yield f"codebook kind {record[0]}"
        if record[0] == 0:
            inline[c] = Inline.of(record)
            yield f"{len(inline[c].codes())} codes"
            yield f"longest code {max(inline[c].lengths)}"
            if any(first + count > 1 << H for first, count in inline[c].ranges):
                yield "range around 2^H"
    if draft.bases:
        yield "bases" if len(draft.bases) > 1 else "one base"
        yield "a base and templates" if len(draft.bases) < len(draft.templates) else "no template but a base"
        used = {int.from_bytes(block[2:4], "little") for block in draft.blocks if block[0] in (3, 4)}
        yield "base in use" if used & set(draft.bases) else "base of no use"
        if draft.n_values % 2:
            yield f"base of {draft.kind.W} bits and an odd number of values"
    if draft.n_values == 0 and draft.bases:
        yield "base of no values"
    yield f"dtype {draft.dtype}, planes {draft.planes}, levels {draft.levels}"
    columns = [Columns.of(record) for record in draft.columns]
    if columns:
        flags = {Coded.of(block, draft.stream_log2).flags for block in draft.blocks if block[0] == 2}
        yield "flags of both kinds" if len(flags) > 1 else "flags of one kind"
        yield (
            "columns, templates and a base"
            if draft.bases and len(draft.templates) > len(draft.bases)
            else (
                "columns and a base" if draft.bases else "columns and templates" if draft.templates else "columns only"
            )
        )
        yield from (f"columns: {corner}" for corner in columns_corners(draft, columns))
    for b, block in enumerate(draft.blocks):
        yield f"block kind {block[0]}"
        if block[0] == 2:
            coded = Coded.of(block, draft.stream_log2)
            if coded.flags:
                start = b << draft.block_log2
                inside = [one for one in columns if one.first < start + coded.n_values and start < one.end]
                yield f"flags 1, dtype {draft.dtype}"
                yield f"flags 1 with {'some' if inside else 'no'} columns in the block"
                yield from (
                    f"columns: {'first' if start < one.first else 'end'} inside of a block"
                    for one in inside
                    if start < one.first or one.end < start + coded.n_values
                )
            empty = [not stream for stream in coded.streams]
            yield "runs only" if all(empty) else "some runs" if any(empty) else "no runs"
            yield "length_width 0" if coded.length_width == 0 else "length_width above 0"
            if coded.reference_width == H and max(coded.references).bit_length() == H:
                yield "reference of H bits"
            if coded.codebook in inline and ESCAPE in inline[coded.codebook].codes():
                yield "escape"
        if block[0] == 3:
            predicted = draft.predicted(block)
            yield f"predicted {draft.kind.name}"
            yield from (f"predicted: {corner}" for corner in predicted_corners(draft, predicted))
            if predicted.template in draft.bases:
                yield f"{draft.kind.name} from a base, {'first block' if b == 0 else 'later block'}"


def columns_corners(draft: Draft, columns: list[Columns]) -> Iterator[str]:
    """Yield what is special about the column references of a frame."""
    yield "one" if len(columns) == 1 else "several"
    yield "255 templates and columns" if len(draft.templates) + len(columns) == 255 else "few"
    for before, after in itertools.pairwise(columns):
        yield "a gap" if before.end < after.first else "no gap"
    for one in columns:
        yield f"width {one.width}"
        yield "group 1" if one.group == 1 else "a group"
        yield "one group" if one.group == one.n_columns else "groups"
        yield "more columns than values" if one.n_columns > one.end - one.first else "rows"
        yield "2^24 - 1 columns" if one.n_columns == (1 << 24) - 1 else "fewer columns"
        yield "group of 65535" if one.group == 65535 else "smaller group"
        references = [one.least + number for number in one.numbers]
        yield from (f"reference {c}" for c in (-128, 127) if c in references)
        if references and min(references) < 0 < max(references):
            yield "of both signs"


def predicted_corners(draft: Draft, predicted: Predicted) -> Iterator[str]:
    """Yield what is special about a predicted block, by section 8."""
    n_columns = draft.n_columns(predicted.template)
    n_rows = len(predicted.scales) // 3
    if n_columns:
        yield "two columns" if n_columns == 2 else "rows within a row" if n_rows == 1 else "rows"
        first, last = predicted.column == 0, predicted.column == n_columns - 1
        yield "first column" if first else "last column" if last else "column"
        yield "template larger than a block" if n_columns > 1 << draft.block_log2 else "template of a block or less"
        exponents = {scale >> 15 & 255 for (scale,) in struct.iter_unpack("<I", padded_scales(predicted.scales))}
        yield from (
            name for exponent, name in ((0, "zero scale"), (255, "scale that is not finite")) if exponent in exponents
        )
    where = "" if n_columns else " with a base"
    empty = [not stream for stream in predicted.streams]
    yield ("runs only" if all(empty) else "some runs" if any(empty) else "no runs") + where
    yield "length_width 0" if predicted.length_width == 0 else "length_width above 0"
    codes = Residual.of(draft.residuals[predicted.codebook]).codes()
    yield "run symbol without a code" if predicted.run_symbol not in codes else "run symbol with a code"
    yield from ["planes"] if predicted.planes else ["no planes"]


def padded_scales(scales: bytes) -> bytes:
    """Return scales as words, for struct."""
    return b"".join(scales[i : i + 3] + b"\0" for i in range(0, len(scales), 3))


def test_built_frames_reach_every_corner_of_the_format() -> None:
    seen = set(itertools.chain.from_iterable(corners(built) for built in corpus()))
    expected = {
        "ndim 0",
        "ndim 32",
        "no values",
        "0 planes",
        "8 planes",
        "unused plane",
        "1 levels",
        "16 levels",
        "0 codebooks",
        "255 codebooks",
        "2 codes",
        "256 codes",
        "longest code 1",
        "longest code 12",
        "range around 2^H",
        "escape",
        "no runs",
        "some runs",
        "runs only",
        "length_width 0",
        "length_width above 0",
        "reference of H bits",
    }
    expected |= {f"dtype {code}" for code in DTYPES} | {f"codebook kind {n}" for n in (0, 1, 3, 4)}
    expected |= {
        f"dtype {code}, planes {tuple(planes)}, levels {tuple(levels)}"
        for code in WITH_TAIL
        for planes, levels in USUAL_PLANES[DTYPES[code].T]
    }
    expected |= {f"flags 1, dtype {code}" for code in WITH_TAIL} | {f"columns: width {n}" for n in range(9)}
    expected |= {
        f"columns: {corner}"
        for corner in (
            "one",
            "several",
            "255 templates and columns",
            "a gap",
            "no gap",
            "group 1",
            "a group",
            "one group",
            "more columns than values",
            "rows",
            "2^24 - 1 columns",
            "group of 65535",
            "reference -128",
            "reference 127",
            "of both signs",
            "first inside of a block",
            "end inside of a block",
        )
    }
    expected |= {
        "flags of both kinds",
        "columns only",
        "columns and templates",
        "columns and a base",
        "columns, templates and a base",
        "flags 1 with some columns in the block",
        "flags 1 with no columns in the block",
    }
    expected |= {f"stream_log2 {n}" for n in range(6, 13)} | {f"block kind {n}" for n in range(6)}
    expected |= {f"predicted {kind.name}" for kind in DTYPES.values() if kind.predicted}
    expected |= {
        f"predicted: {corner}"
        for corner in (
            "two columns",
            "rows within a row",
            "rows",
            "first column",
            "last column",
            "column",
            "template larger than a block",
            "runs only",
            "some runs",
            "no runs",
            "length_width 0",
            "length_width above 0",
            "run symbol without a code",
            "zero scale",
            "scale that is not finite",
            "planes",
            "no planes",
            "runs only with a base",
            "some runs with a base",
            "no runs with a base",
        )
    }
    expected |= {
        "one base",
        "bases",
        "a base and templates",
        "no template but a base",
        "base in use",
        "base of no use",
        "base of no values",
        "base of 16 bits and an odd number of values",
        "base of 32 bits and an odd number of values",
    }
    expected |= {
        f"{kind.name} from a base, {which} block"
        for kind in DTYPES.values()
        if kind.predicted
        for which in ("first", "later")
    }
    assert sorted(expected - seen) == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_second_decoder_reads_large_frames(dtype: int) -> None:
    rng = Random(dtype)
    kinds: tuple[BlockKind, ...] = ("coded", "predicted", "sparse", "indexed")
    for kind in kinds:
        built = build_frame(rng, dtype=dtype, n_values=(1 << 14) + 3000, block_log2=14, n_codebooks=3, kinds=[kind])
        assert np.array_equal(decode(built.frame, base=built.base).bits, built.bits)


def test_mode_container_and_bytes_behind_the_frame_do_not_change_values() -> None:
    built = small_frame()
    draft = Draft.of(built.frame, built.codebooks)
    assert np.array_equal(decode(built.frame + b"more", built.codebooks, base=built.base).bits, built.bits)
    for mode, container in itertools.product(range(3), range(2)):
        decoded = decode(draft.seal(mode=mode, container=container), built.codebooks, base=built.base)
        assert (decoded.mode, decoded.container) == (mode, container)
        assert np.array_equal(decoded.bits, built.bits)


# What must be refused


@pytest.mark.slow
def test_the_second_decoder_refuses_every_mutation() -> None:
    spoilt: set[str] = set()
    for seed, built in enumerate(corpus()):
        if (
            len(built.bits) > 2100
            or len(built.frame) > 5000
            or (Draft.of(built.frame, built.codebooks).n_changes and (len(built.bits) > 1100 or seed % 3))
        ):
            continue
        for mutation in mutations(built.frame, Random(seed), built.codebooks):
            refusal = kind_of_refusal(mutation.frame, built.codebooks, built.base)
            assert refusal == mutation.expected, f"frame {seed}, {mutation.name}"
            spoilt.add(mutation.name.partition(":")[0])
    assert spoilt == set(SPOILERS)


def test_the_second_decoder_refuses_every_truncation() -> None:
    frame, _, codebooks, base = small_frame()
    assert {kind_of_refusal(frame[:n], codebooks, base) for n in range(len(frame))} == {"insufficient"}


def test_the_second_decoder_refuses_every_flipped_bit() -> None:
    frame, _, codebooks, base = small_frame()
    for bit in range(8 * len(frame)):
        at = bit // 8
        flipped = frame[:at] + bytes([frame[at] ^ 1 << bit % 8]) + frame[at + 1 :]
        expected = {"unsupported"} if at == 4 else {"corruption"}
        if 16 <= at < 24:  # frame_bytes
            expected.add("insufficient")
        assert kind_of_refusal(flipped, codebooks, base) in expected, f"bit {bit}"


def test_a_frame_whose_codebook_is_not_held_is_unsupported() -> None:
    """The hash of a record depends on H, and the record on n_levels; a frame needs one for its own (§5)."""
    rng = Random(0)
    built = build_frame(rng, dtype=1, n_values=300, n_codebooks=1, levels=([24], [(0, 1)]), kinds=["coded"])
    draft = Draft.of(built.frame, {})
    record, held = by_id(draft.records[0], 300, seed=8)
    frame = replace(draft, records=(record,)).seal()
    assert np.array_equal(decode(frame, held).bits, built.bits)
    assert kind_of_refusal(frame) == "unsupported"
    assert kind_of_refusal(frame, {(301, name[1]): inline for name, inline in held.items()}) == "unsupported"
    wide, held = by_id(draft.records[0], 300, seed=11)
    assert kind_of_refusal(replace(draft, records=(wide,)).seal(), held) == "unsupported"
    codebook = Inline.of(draft.records[0])
    more = replace(codebook, ranges=(*codebook.ranges, (0, 0)))
    record, held = by_id(more.record(), 300, seed=8)
    assert kind_of_refusal(replace(draft, records=(record,)).seal(), held) == "unsupported"


def test_a_frame_whose_base_is_not_at_hand_is_unsupported() -> None:
    """The base is missing, or not the one of the hash, whether or not a block uses it (§8)."""
    used = set()
    for built in corpus():
        base, draft = built.base, Draft.of(built.frame, built.codebooks)
        if base is None:
            other = np.zeros(len(built.bits), built.bits.dtype)
            assert np.array_equal(decode(built.frame, built.codebooks, base=other).bits, built.bits)
            continue
        used.add(
            any(block[0] in (3, 4) and int.from_bytes(block[2:4], "little") in draft.bases for block in draft.blocks)
        )
        assert kind_of_refusal(built.frame, built.codebooks) == "unsupported"
        other_type = np.uint32 if base.itemsize == 8 else np.uint64
        others: list[Bits] = [np.append(base, base[:1] if len(base) else 0).astype(base.dtype), base.astype(other_type)]
        if len(base):
            others += [base[:-1], base ^ (np.arange(len(base)) == len(base) - 1).astype(base.dtype)]
            others += [base[::-1]] if not np.array_equal(base, base[::-1]) else []
        for other in others:
            assert kind_of_refusal(built.frame, built.codebooks, other) == "unsupported"
    assert used == {True, False}


@pytest.mark.parametrize(
    ("base", "hashed"),
    [
        (np.array([], np.uint16), 0),
        (np.array([3], np.uint16), 1 + 3 * 0x9E3779B1),
        (np.array([3, 0xABCD], np.uint16), 2 + 0xABCD0003 * 0x9E3779B1),
        (np.array([1, 0, 2], np.uint16), 3 + 1 * 0x9E3779B1 + 2 * 0x3C6EF363),
        (np.array([5, 7], np.uint32), 2 + 5 * 0x9E3779B1 + 7 * 0x3C6EF363),
    ],
)
def test_hashes_of_bases_are_those_worked_out_by_hand(base: Bits, hashed: int) -> None:
    """The multipliers are 9E3779B1 and twice that, modulo 2^32 and made odd."""
    assert base_hash(base) == hashed


def test_the_second_decoder_refuses_in_the_order_of_the_page() -> None:
    """The order is: size of header, magic, version, size of the frame, checksum of the prelude, all others (§11)."""
    built = small_frame()
    frame = Draft.of(built.frame, built.codebooks).seal(dtype=99)
    assert kind_of_refusal(frame) == "unsupported"
    frame = frame[:40] + bytes(8) + frame[48:]
    assert kind_of_refusal(frame) == "corruption"
    frame = frame[:-1]
    assert kind_of_refusal(frame) == "insufficient"
    frame = frame[:4] + b"\2" + frame[5:]
    assert kind_of_refusal(frame) == "unsupported"
    frame = b"x" + frame[1:]
    assert kind_of_refusal(frame) == "corruption"
    frame = frame[:47]
    assert kind_of_refusal(frame) == "insufficient"


def test_the_second_decoder_keeps_its_output_limit() -> None:
    built = build_frame(Random(1), dtype=4, n_values=1000, kinds=["constant"])
    assert len(decode(built.frame, limit=8000).bits) == 1000
    with pytest.raises(Refused, match="limit") as caught:
        decode(built.frame, limit=7999)
    assert caught.value.kind == "limit"


def test_no_single_word_is_lost_in_the_checksum() -> None:
    """The multiplier m(i) is odd, so that it never loses a change (§3)."""
    for i in range(20):
        data = bytes(4 * i) + b"\1\0\0\0"
        assert checksum(data, seed=2**64 - 1) == ((i + 1) * 0x9E3779B1 % 2**32 | 1) - 1
        assert checksum(data, seed=5, own_words=[i]) == 5
