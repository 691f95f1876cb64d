"""The second decoder and the builder on sparse blocks: frames made by hand, and every corner of sections 5 and 9."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.support import reference
from tests.support.frame_builder import Built, Changes, Draft, Sparse, build_frame, by_id
from tests.support.reference import BitReader, ChangeCodebook, Codes, Refused, checksum, decode

NO_BASE = 65535


def little(n: int, size: int) -> bytes:
    """Return an integer as bytes, least significant first."""
    return n.to_bytes(size, "little")


def bits(text: str) -> bytes:
    """Return bits, lowest position first, as bytes; spaces are left out."""
    text = text.replace(" ", "")
    return little(int(text[::-1], 2), -(-len(text) // 8))


def nibbles(lengths: list[int]) -> bytes:
    """Return code lengths as a packed array of 4 bits each."""
    return bits("".join(f"{length:04b}"[::-1] for length in lengths))


def padded(data: bytes, multiple: int) -> bytes:
    """Return bytes with zeros up to a multiple."""
    return data + bytes(-len(data) % multiple)


def block(kind: int, base: int, n_values: int, body: bytes) -> bytes:
    """Return block 0 of a frame, with its checksum."""
    data = padded(bytes([kind, 0]) + little(base, 2) + little(n_values, 4) + bytes(8) + body, 8)
    return data[:8] + little(checksum(data, 0x9E3779B97F4A7C15), 8) + data[16:]


def frame(dtype: int, n_values: int, levels: bytes, record: bytes, templates: list[bytes], only_block: bytes) -> bytes:
    """Return a frame of one block; `levels` are the plane widths and the one level."""
    n_planes = len(levels) - 2
    tail = little(n_values, 8) + levels + record + b"".join(templates)
    tail = padded(padded(tail, 8) + little(len(only_block), 4), 8)
    start = b"\x89GCF" + bytes([1, dtype, 0, 0, 1, 10, 6, 1, 1, n_planes, 0, len(templates)])
    start += little(48 + len(tail) + len(only_block), 8) + little(n_values, 8) + little(48 + len(tail), 8) + bytes(8)
    prelude = start + tail
    return prelude[:40] + little(checksum(prelude, 0), 8) + prelude[48:] + only_block


def code(n: int, *symbols: int) -> list[int]:
    """Return the lengths of a code of two of n symbols: 0 is that of the first of them, 1 that of the other."""
    return [1 if symbol in symbols else 0 for symbol in range(n)]


def test_changes_without_a_base_are_those_of_the_page() -> None:
    """Count and gaps are those of the figure in section 9: 3, and 2, 4 and 0."""
    # A count of 3 is 0. Of five gap categories all but 1 have a code: 0 is 00, 2 is 01, 3 is 10, and 4,
    # with a bit more, is 11.
    record = padded(bytes([3, 0, 5, 2]) + nibbles([*code(41, 3, 4), 2, 0, 2, 2, 2]), 4)
    stream = bits("0 01 11 0 00")
    inner = block(1, 0, 3, little(0x3F80, 2) + little(0, 2) + little(0x8000, 2))
    body = little(len(stream), 4) + little(len(stream), 4) + bytes([0, 6, 0, 0]) + little(len(inner), 4)
    body += inner + stream
    decoded = decode(frame(2, 11, bytes([8, 0, 1]), record, [], block(4, NO_BASE, 11, body)))
    assert decoded.kinds == ["sparse"]
    assert decoded.bits.tolist() == [0, 0, 0x3F80, 0, 0, 0, 0, 0, 0x8000, 0, 0]


def test_changes_from_a_base_are_those_of_the_page() -> None:
    """The changes of one class follow those of another, with a count before each."""
    base = np.array([0x10 if i % 2 == 0 else 0x50 for i in range(70)], np.uint8)
    # Counts: 2 is 0, 3 is 1. Steps: 0 is 0, 3 (2 or 3 upwards) is 1. Class 0: gap category 8 and a step up is 0,
    # category 10 and a step that follows is 1. Class 1: no gap and a step that follows is 0, category 9 and a step down
    # is 1.
    lengths = code(41, 2, 3) + code(17, 0, 3) + code(36, 3 * 8, 3 * 10 + 2) + code(36, 2, 3 * 9 + 1)
    record = padded(bytes([3, 2, 12, 1, 0x40]) + nibbles(lengths), 4)
    class_0 = "0 0000 0000"  # 2 changes: gaps 16 and 16
    class_1 = "1 010 00 1010"  # 3 changes: gap 0 and 2 up, gap 0 and nothing, gap 26
    stream = bits(class_0 + class_1)
    body = little(len(stream), 4) + little(0, 4) + bytes([3, 7, 0, 0]) + bytes(4) + stream
    body += bits(f"{len(stream):03b}"[::-1])
    template = bytes(4) + little(checksum(padded(base.tobytes(), 4), 70), 8)
    sparse = frame(5, 70, bytes([0, 0]), record, [template], block(4, 0, 70, body))
    decoded = decode(sparse, base=base)
    assert {i: int(v) for i, v in enumerate(decoded.bits) if v != base[i]} == {32: 0x11, 66: 0x11, 1: 0x52, 57: 0x4F}


@pytest.mark.parametrize(
    ("text", "gap", "step"),
    [
        ("g0 0", 0, 1),
        ("g0 1", 0, -1),
        ("g1 0", 1, 1),
        ("g2 0", 2, 1),
        ("g3 0", 3, 1),
        ("g4 0 0", 4, 1),
        ("g4 0 1", 5, 1),
        ("g5 0 1", 7, 1),
        ("g6 0 01", 10, 1),
        ("g7 0 10", 13, 1),
        ("g40 0 " + 19 * "0", 1 << 20, 1),
        ("g40 0 1" + 18 * "0", (1 << 20) + 1, 1),
        ("g0 2 t0", 0, 0),
        ("g0 2 t1", 0, 1),
        ("g0 2 t2", 0, -1),
        ("g0 2 t3 0", 0, 2),
        ("g0 2 t4 1", 0, -3),
        ("g0 2 t5 01", 0, 6),
        ("g4 2 1 t6 10", 5, -5),
        ("g0 2 t127 " + 63 * "1", 0, (1 << 64) - 1),
        ("g0 2 t128 " + 63 * "0", 0, -(1 << 63)),
    ],
)
def test_changes_are_read_as_worked_out_by_hand(text: str, gap: int, step: int) -> None:
    """A word g names a gap category, which k follows, and a word t a step; what else there is are bits."""
    words = text.split()
    g, k = int(words[0][1:]), int(words[1])
    steps = {"1" if word[0] == "t" else "0": int(word[1:]) for word in words if word[0] == "t"}
    told = "1" + "".join("1" if word[0] == "t" else word for word in words[2:])
    reader = BitReader(bits(told))
    codebook = ChangeCodebook(b"", 1, (), Codes(), Codes(steps), (Codes({"1": 3 * g + k}),))
    assert reference.read_change(reader, codebook, 0) == (gap, step)
    assert reader.at == len(told)


# Frames of the builder


@functools.cache
def corpus() -> tuple[Built, ...]:
    """Build frames of sparse blocks only: of the first eight types, and of each type with a base and without."""
    frames = [
        build_frame(
            Random(f"corner {seed}"),
            dtype=1 + seed % 8,
            n_values=[1, 65, 127, 1100, 2060][seed % 5],
            block_log2=[10, 10, 11][seed % 3],
            kinds=["sparse"],
            with_base=seed // 8 % 2 == 0,
            spare_bits=seed % 7 == 0,
            named=seed % 11 == 0,
        )
        for seed in range(400)
    ]
    frames += [
        build_frame(Random(f"type {code}"), dtype=code, n_values=1100, block_log2=10, kinds=["sparse"], with_base=based)
        for code in reference.DTYPES
        for based in (False, True)
    ]
    return tuple(frames)


def corners(built: Built) -> Iterator[str]:
    """Yield what is special about a frame."""
    draft = Draft.of(built.frame, built.codebooks)
    yield f"{draft.n_changes} codebooks of changes"
    records = draft.records[len(draft.records) - draft.n_changes :]
    yield "behind codebooks of kind 0" if len(records) < len(draft.records) else "no codebook of kind 0"
    codebooks = {c: Changes.of(record) for c, record in enumerate(draft.records) if record[0] == 3}
    for codebook in codebooks.values():
        yield f"{codebook.n_classes} classes"
        yield f"{codebook.n_gaps} gaps"
        yield "all classes without codes" if not any(map(any, codebook.classes)) else "some class with a code"
        yield "counts" if any(codebook.counts) else "counts without a code"
        yield "steps without a code" if codebook.n_classes and not any(codebook.steps) else "steps"
    for b, data in enumerate(draft.blocks):
        if data[0] != 4:
            continue
        sparse = Sparse.of(data)
        where = "with a base" if sparse.base != NO_BASE else "without a base"
        yield f"{draft.kind.name} {where}"
        yield f"{'first' if b == 0 else 'later'} block {where}"
        yield f"stream_log2 {sparse.stream_log2}"
        yield "longer sub-streams than the frame's" if sparse.stream_log2 > draft.stream_log2 else "not longer"
        empty = [not stream for stream in sparse.streams]
        yield ("nothing differs" if all(empty) else "some empty" if any(empty) else "none empty") + f" {where}"
        yield f"length_width {sparse.length_width}"
        yield "min_stream_bytes" if sparse.min_stream_bytes else "no min_stream_bytes"
        if sparse.inner:
            yield f"inner kind {sparse.inner[0]}"
            yield f"inner kind {sparse.inner[0]}, block {min(b, 1)}"
        elif not all(empty) and sparse.base == NO_BASE:
            yield "no changes without a base"
        if sparse.inner[:1] == b"\2" and draft.columns:
            yield "inner coded block beside column references"
        if sparse.codebook in codebooks and draft.records[sparse.codebook][0] == 1:
            yield "by id"


def test_built_frames_reach_every_corner_of_sparse_blocks() -> None:
    seen = {corner for built in corpus() for corner in corners(built)}
    expected = {
        "1 codebooks of changes",
        "16 codebooks of changes",
        "behind codebooks of kind 0",
        "no codebook of kind 0",
        "0 classes",
        "1 classes",
        "16 classes",
        "1 gaps",
        "2 gaps",
        "41 gaps",
        "all classes without codes",
        "counts without a code",
        "steps without a code",
        "longer sub-streams than the frame's",
        "length_width 0",
        "length_width 24",
        "min_stream_bytes",
        "no changes without a base",
        "inner coded block beside column references",
    }
    expected |= {
        f"{corner} {where} a base"
        for corner in ("nothing differs", "some empty", "none empty", "first block", "later block")
        for where in ("with", "without")
    }
    expected |= {f"{kind.name} {where} a base" for kind in reference.DTYPES.values() for where in ("with", "without")}
    expected |= {f"stream_log2 {n}" for n in range(6, 12)}
    expected |= {f"inner kind {kind}, block {b}" for kind in range(3) for b in range(2)}
    assert sorted(expected - seen) == []


def test_built_frames_decode_to_their_values_and_their_changes_reach_every_corner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Changes of every kind of gap and step, in every class, are read."""
    seen: set[str] = set()
    plain = reference.read_change

    def read_change(reader: BitReader, codebook: ChangeCodebook, c: int) -> tuple[int, int]:
        gap, step = plain(reader, codebook, c)
        seen.add(f"class {c}")
        seen.add(f"gap of {gap.bit_length()} bits")
        if codebook.n_classes:
            seen.add(f"{'-' if step < 0 else ''}{min(abs(step), 2)}")
            seen.add(f"step of {abs(step).bit_length()} bits")
        return gap, step

    monkeypatch.setattr(reference, "read_change", read_change)
    for built in corpus():
        assert np.array_equal(decode(built.frame, built.codebooks, base=built.base).bits, built.bits)
    expected = {f"class {c}" for c in range(16)} | {f"gap of {n} bits" for n in range(9)}
    expected |= {"0", "1", "-1", "2", "-2"} | {f"step of {n} bits" for n in range(33)}
    assert sorted(expected - seen) == []


# What must be refused beyond the spoilers


def kind_of_refusal(data: bytes, built: Built, codebooks: dict[tuple[int, int], bytes]) -> str | None:
    try:
        decode(data, codebooks, base=built.base)
    except Refused as refused:
        return refused.kind
    return None


def test_a_codebook_of_changes_by_id_is_for_a_width_and_for_any_head() -> None:
    """The hash of such a codebook has the seed 256 + W, whatever H and n_levels are (§5)."""
    for dtype in (1, 8):
        for seed in range(3):
            built = build_frame(Random(f"by id {seed}"), dtype=dtype, n_values=300, kinds=["sparse"], with_base=True)
            draft = Draft.of(built.frame, {})
            record, held = by_id(Changes.of(draft.records[-1]).record(), 300, 256 + 32)
            named = replace(draft, records=(*draft.records[:-1], record)).seal()
            assert np.array_equal(decode(named, held, base=built.base).bits, built.bits)
            assert kind_of_refusal(named, built, {}) == "unsupported"
            for other_seed in (draft.kind.H, 32, 256 + 16, 256 + 64):
                record, held = by_id(draft.records[-1], 300, other_seed)
                named = replace(draft, records=(*draft.records[:-1], record)).seal()
                assert kind_of_refusal(named, built, held) == "unsupported"


def test_a_codebook_of_changes_by_id_for_another_width_is_unsupported() -> None:
    built = build_frame(Random(0), dtype=2, n_values=300, kinds=["sparse"], with_base=True)
    draft = Draft.of(built.frame, {})
    other = Changes(32, 0, 2, (), tuple(code(41, 0, 1)), (), ((1, 1),)).record()
    for seed in (256 + 16, 256 + 32):
        record, held = by_id(other, 300, seed)
        named = replace(draft, records=(*draft.records[:-1], record)).seal()
        assert kind_of_refusal(named, built, held) == "unsupported"


def test_a_codebook_by_id_has_the_place_of_the_one_that_it_means() -> None:
    """An id of a codebook of kind 0 is out of its place behind a codebook of changes (§5)."""
    built = build_frame(Random(3), dtype=1, n_values=300, n_codebooks=2, kinds=["sparse"], with_base=False)
    draft = Draft.of(built.frame, {})
    assert draft.records[0][0] == 0 and draft.n_changes > 0
    coded, held_coded = by_id(draft.records[0], 300, draft.kind.H)
    changes, held_changes = by_id(draft.records[-1], 301, 256 + 32)
    held = held_coded | held_changes
    both = (coded, *draft.records[1:-1], changes)
    assert kind_of_refusal(replace(draft, records=both).seal(), built, held) is None
    for records in ((*draft.records, coded), (changes, *draft.records), (*draft.records[:-1], changes, coded)):
        assert kind_of_refusal(replace(draft, records=records).seal(), built, held) == "corruption"
