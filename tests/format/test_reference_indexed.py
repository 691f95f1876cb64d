"""The second decoder and the builder on indexed blocks: frames made by hand, and every corner of sections 5 and 10."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from tests.format.test_reference_sparse import bits, kind_of_refusal, little, nibbles, padded
from tests.support.frame_builder import Built, Coded, Draft, Entries, Indexed, Inline, build_frame, by_id
from tests.support.frame_builder.indexed import multiplied
from tests.support.reference import BY_NAME, DTYPES, U64, Refused, checksum, decode, product, rounded

WITH_TAIL = [code for code, kind in DTYPES.items() if kind.T]
WITH_FACTORS = [code for code, kind in DTYPES.items() if kind.predicted]


def block(kind: int, base: int, n_values: int, body: bytes, b: int = 0) -> bytes:
    """Return block b of a frame, with its checksum; its codebook is 0."""
    data = padded(bytes([kind, 0]) + little(base, 2) + little(n_values, 4) + bytes(8) + body, 8)
    return data[:8] + little(checksum(data, (b + 1) * 0x9E3779B97F4A7C15), 8) + data[16:]


def frame(dtype: int, n_values: int, record: bytes, *blocks: bytes) -> bytes:
    """Return a frame with one codebook, one level that drops nothing, and one plane."""
    tail = padded(little(n_values, 8) + bytes([DTYPES[dtype].T, 0, 1]) + record, 8)
    tail = padded(tail + b"".join(little(len(one), 4) for one in blocks), 8)
    size = 48 + len(tail) + sum(map(len, blocks))
    start = b"\x89GCF" + bytes([1, dtype, 0, 0, 1, 10, 6, 1, 1, 1, 0, 0])
    start += little(size, 8) + little(n_values, 8) + little(48 + len(tail), 8) + bytes(8)
    prelude = start + tail
    return prelude[:40] + little(checksum(prelude, 0), 8) + prelude[48:] + b"".join(blocks)


#: A codebook that has codes for zero and the escape alone: kind, n_levels, reserved; first, count; lengths, padding.
TWO_CODES = bytes([0, 1, 0, 0]) + bytes(4) + bytes([0x11, 0, 0, 0])


def extension(inner: bytes, n_exceptions: int, segment: int = 0, skipped: int = 0) -> bytes:
    return little(len(inner), 4) + little(n_exceptions, 4) + little(segment, 4) + little(skipped, 4)


def float32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


# Frames made by hand


@pytest.mark.parametrize("dtype", WITH_TAIL)
def test_entries_and_exceptions_stand_for_values(dtype: int) -> None:
    """The indices are those of the figure in section 10: 3, 0, 7, 255 and 3, of which 255 is an exception."""
    W = DTYPES[dtype].W
    entries = [1 << W - 1, 0, 1, (1 << W) - 1, 2, 3, 4, 0x5A << W - 8 | 0xC3]
    record = bytes([4, 0, 8, 0]) + TWO_CODES + b"".join(little(entry, W // 8) for entry in entries)
    inner = block(1, 0, 5, bytes([3, 0, 7, 255, 3]))
    body = extension(inner, 1) + inner + little(0x1234, W // 8)
    decoded = decode(frame(dtype, 5, record, block(5, 0, 5, body)))
    assert decoded.kinds == ["indexed"]
    assert decoded.bits.tolist() == [entries[3], entries[0], entries[7], 0x1234, entries[3]]


@pytest.mark.parametrize("scale_bytes", [2, 3, 4])
@pytest.mark.parametrize("dtype", WITH_FACTORS)
def test_factors_are_multiplied_by_the_scale_of_their_segment(dtype: int, scale_bytes: int) -> None:
    """The block is the one of the figure in section 10, with n_entries = 8, segment = 3 and skipped = 1."""
    kind = DTYPES[dtype]
    record = bytes([4, 1, 8, 0]) + TWO_CODES + float32(-3.0, 0, 0, 5.5, 0, 0, 0, 0.75)
    inner = block(1, 0, 5, bytes([3, 0, 7, 255, 3]))
    scales = b"".join(float32(scale)[4 - scale_bytes :] for scale in (0.5, -4.0))
    body = extension(inner, 1, 3, 1) + inner + scales + little(0x1234, kind.W // 8)
    decoded = decode(frame(dtype, 5, record, block(5, scale_bytes, 5, body)))
    wanted = [as_bits(kind.name, value) for value in (5.5 * 0.5, -3.0 * 0.5, 0.75 * -4.0, 0, 5.5 * -4.0)]
    wanted[3] = 0x1234
    assert decoded.bits.tolist() == wanted


def as_bits(dtype: str, value: float) -> int:
    """Return the bits of a number that is a value of the type."""
    if dtype == "float16":
        return int(np.float16(value).view(np.uint16))
    return int(np.float32(value).view(np.uint32)) >> (16 if dtype == "bfloat16" else 0)


def test_coded_indices_are_those_of_a_frame_of_bytes() -> None:
    """Heads are whole bytes, 254 + 5 is 3 modulo 2^8, and the head behind an escape has 8 bits, whatever the dtype."""
    # Of the lengths 2 (zero), 3 (escape), 1, 3, 0 come the codes 10, 111, 0, 110 and none. With the base 5 the symbols
    # 1 and 2 are the indices 3 and 4.
    codebook = padded(bytes([0, 1, 0, 0]) + little(254, 2) + little(3, 2) + nibbles([2, 3, 1, 3, 0]), 4)
    record = bytes([4, 1, 5, 0]) + codebook + float32(1, 0, 0, -1.5, 7)
    stream = bits("0 10 110 111 00010011 0")  # 3, 0, 4, 200, 3
    inner = block(2, 5, 5, little(3, 4) + little(0, 4) + little(3, 2) + bytes(6) + stream)
    scales = b"\x00\x40\x00\x3f\x00\x47"  # 2, 1/2, 2^15
    body = extension(inner, 1, segment=2, skipped=1) + inner + scales + little(0x7E01, 2)
    decoded = decode(frame(3, 5, record, block(5, 2, 5, body)))
    assert decoded.bits.view(np.float16)[[0, 1, 2, 4]].tolist() == [-3.0, 0.5, 3.5, -49152.0]
    assert decoded.bits[3] == 0x7E01


def test_an_inner_block_has_the_number_of_its_block() -> None:
    record = bytes([4, 0, 1, 0]) + TWO_CODES + little(0x3F80, 2) + bytes(2)
    first = block(0, 0, 1024, little(0xBF80, 2))
    for b in range(3):
        inner = block(0, 0, 6, b"\0", b)
        spoilt = frame(2, 1030, record, first, block(5, 0, 6, extension(inner, 0) + inner, 1))
        if b == 1:
            assert decode(spoilt).bits.tolist() == [0xBF80] * 1024 + [0x3F80] * 6
        else:
            with pytest.raises(Refused, match="checksum") as caught:
                decode(spoilt)
            assert caught.value.kind == "corruption"


def test_all_values_may_be_exceptions_and_a_constant_index_may_say_so() -> None:
    record = bytes([4, 0, 1, 0]) + TWO_CODES + little(0x3F80, 2) + bytes(2)
    for index, n_exceptions in ((0, 0), (1, 4), (255, 4)):
        inner = block(0, 0, 4, bytes([index]))
        exceptions = [5, 6, 7, 8][:n_exceptions]
        body = extension(inner, n_exceptions) + inner + b"".join(little(x, 2) for x in exceptions)
        assert decode(frame(2, 4, record, block(5, 0, 4, body))).bits.tolist() == (exceptions or [0x3F80] * 4)


# Products and rounding


def test_bfloat16_is_rounded_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    upper = np.arange(1 << 16, dtype=np.int64) << 16
    q = np.concatenate([upper + lower for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xC000, 0xFFFF)])
    check_rounding("bfloat16", q, lambda x: torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy())


def test_float16_is_rounded_as_numpy_does() -> None:
    """At every value of float16 and every midpoint of two, and one float32 beside each, and over every exponent."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32).astype(np.int64)
    between = (halves[:-1].astype(np.uint32).view(np.float32) + halves[1:].astype(np.uint32).view(np.float32)) / 2
    at = np.concatenate([halves, between.view(np.uint32).astype(np.int64), np.arange(0, 0x7F800001, 0x1000)])
    at = np.concatenate([at, 0x477FF000 + np.arange(-3, 4), 0x33000000 + np.arange(-3, 4)])
    q = np.concatenate([at - 1, at, at + 1])
    q = q[(q >= 0) & (q <= 0x7F800000)]
    check_rounding("float16", np.concatenate([q, q + 2**31]), lambda x: x.astype(np.float16).view(np.int16))


def check_rounding(
    dtype: str, q: npt.NDArray[np.int64], cast: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.int16]]
) -> None:
    """Check the formula of a type for all q that a product may have: no NaN, and zero or a normal number above the
    smallest ones."""
    exponent = q >> 23 & 255
    q = q[(exponent > 1) & (q % 2**31 <= 0x7F800000) | (q % 2**31 == 0)]
    with np.errstate(all="ignore"):
        wanted = cast(q.astype(np.uint32).view(np.float32)).view(np.uint16)
    assert np.array_equal(rounded(BY_NAME[dtype], q), wanted)


def test_float32_products_are_as_they_are() -> None:
    q = np.array([0, 2**31, 0x01000000, 0x7F800000, 0xFF7FFFFF])
    assert np.array_equal(rounded(BY_NAME["float32"], q), q)


def bits_of(*numbers: int) -> U64:
    return np.array(numbers, np.uint64)


@pytest.mark.parametrize(
    ("scale", "factor", "q"),
    [
        (0x3F800000, 0x3FC00000, 0x3FC00000),  # 1 and 1.5
        (0x3F800001, 0x3F800001, 0x3F800002),  # the square of 1 + 2^-23
        (0x3F800800, 0x3F800800, 0x3F801000),  # of 1 + 2^-12, a tie, to even
        (0x3F801800, 0x3F800800, 0x3F802002),  # 1 + 2^-11 + 2^-12 + 1.5 · 2^-23, a tie, to even
        (0x7F7FFFFF, 0x40000000, 0x7F800000),  # overflow
        (0xFF7FFFFF, 0x7F7FFFFF, 0xFF800000),
        (0, 0x3F800000, 0),
        (0x80000000, 0x3F800000, 0x80000000),
        (0x80000000, 0xBF800000, 0),
        (0x007FFFFF, 0x7F7FFFFF, 0),  # a denormal counts as 0
        (0x807FFFFF, 0x7F7FFFFF, 0x80000000),  # with its sign
        (0x7F000000, 0x80000001, 0x80000000),
        (0x00800000, 0x3F800000, 0),  # the smallest normal number, of exponent field 1, counts as 0
        (0x80FFFFFF, 0x3F800000, 0x80000000),
        (0x01000000, 0x3F800000, 0x01000000),  # the next exponent does not
        (0x00FFFFFF, 0x3F800001, 0x01000000),  # nor what rounds up to it
        (0x1F800000, 0x1F800000, 0),  # 2^-128
        (0x00800000, 0x80800000, 0x80000000),  # 2^-252
    ],
)
def test_products_are_those_worked_out_by_hand(scale: int, factor: int, q: int) -> None:
    assert product(bits_of(scale), bits_of(factor)).tolist() == [q]
    assert product(bits_of(factor), bits_of(scale)).tolist() == [q]


def test_products_are_those_of_numpy_where_nothing_is_small() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 32, 200000, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    finite = (a >> 23 & 255 < 255) & (b >> 23 & 255 < 255) & (a >> 23 & 255 > 0) & (b >> 23 & 255 > 0)
    a, b = a[finite], b[finite]
    with np.errstate(all="ignore"):
        wanted = (a.view(np.float32) * b.view(np.float32)).view(np.uint32)
    large = wanted >> 23 & 255 > 1
    q = product(a.astype(np.uint64), b.astype(np.uint64))
    assert np.array_equal(q[large], wanted[large])
    assert np.array_equal(q[~large], (a ^ b)[~large] & np.uint32(1 << 31))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_builder_multiplies_alike_in_another_way(dtype: str) -> None:
    rng = Random(dtype)
    kind = BY_NAME[dtype]
    for exponents in (range(255), range(0x66, 0x72), (0x3E, 0x3F, 0x40, 0x41), (0x85, 0x86, 0x87)):
        some = [
            rng.getrandbits(1) << 31
            | rng.choice(exponents) << 23
            | rng.getrandbits(23) & rng.choice([0x7FFFFF, 0x7F0000, 0x7FE000, 0x700000])
            for _ in range(6000)
        ]
        q = product(bits_of(*some[::2]), bits_of(*some[1::2]))
        wanted = [multiplied(kind, scale, factor) for scale, factor in zip(some[::2], some[1::2], strict=True)]
        assert rounded(kind, q).tolist() == wanted


# Frames of the builder


@functools.cache
def corpus() -> tuple[Built, ...]:
    """Build frames of indexed blocks only, more of them of float16, whose values are rounded in most ways."""
    frames = [
        build_frame(
            Random(f"corner {seed}"),
            dtype=WITH_TAIL[seed % len(WITH_TAIL)],
            n_values=[1, 65, 127, 1100, 2060, 3072][seed % 6],
            block_log2=[10, 10, 11][seed % 3],
            kinds=["indexed"],
            spare_bits=seed % 7 == 0,
        )
        for seed in range(420)
    ]
    frames += [build_frame(Random(f"float16 {seed}"), dtype=3, n_values=300, kinds=["indexed"]) for seed in range(60)]
    return tuple(frames)


def corners(built: Built) -> Iterator[str]:
    """Yield what is special about a frame."""
    draft = Draft.of(built.frame, built.codebooks)
    yield f"{draft.n_dictionaries} dictionaries"
    first = draft.n_coded + draft.n_changes
    dictionaries = {c: Entries.of(draft.records[c], draft.kind.W) for c in range(first, len(draft.records))}
    start = 48 + 8 * len(draft.shape) + len(draft.planes) + 2 * len(draft.levels)
    for c, entries in dictionaries.items():
        yield f"{draft.kind.name}, form {entries.form}"
        yield f"{len(entries.values)} entries"
        yield f"record at {sum(map(len, draft.records[:c]), start) % 4}"
        yield f"{len(entries.codebook.codes())} codes"
        yield "padding" if entries.record(fill=255) != entries.record() else "no padding"
        if {value >> 23 & 255 for value in entries.values} >= {0, 1} and entries.form:
            yield "small factors"
    used = set()
    for b, data in enumerate(draft.blocks):
        indexed = Indexed.of(data, draft.kind.W)
        used.add(indexed.codebook)
        n, n_exceptions = indexed.n_values, len(indexed.exceptions)
        yield f"dtype {draft.dtype}, inner kind {indexed.inner[0]}"
        yield f"inner kind {indexed.inner[0]}, block {min(b, 1)}"
        exceptions = "no" if n_exceptions == 0 else "only" if n_exceptions == n else "some"
        yield f"{exceptions} exceptions, inner kind {indexed.inner[0]}"
        if indexed.inner[0] == 2:
            coded = Coded.of(indexed.inner, draft.stream_log2)
            empty = [not stream for stream in coded.streams]
            yield "runs only" if all(empty) else "some runs" if any(empty) else "no runs"
            yield f"reference_width {coded.reference_width}"
            yield "beside column references" if draft.columns else "without column references"
        if n < 1 << draft.block_log2 and b:
            yield "short block"
        if indexed.segment:
            yield f"{draft.kind.name}, {indexed.scale_bytes} scale bytes"
            yield "a scale for each value" if indexed.segment == 1 else "longer segments"
            yield "one scale" if indexed.n_segments == 1 else "scales"
            yield "skipped" if indexed.skipped else "nothing skipped"
            yield "segment across blocks" if 0 < indexed.skipped == (b << draft.block_log2) % indexed.segment else "not"
            yield "segment longer than a block" if indexed.segment > 1 << draft.block_log2 else "shorter"
            yield f"segment {indexed.segment}"
            if indexed.skipped == indexed.segment - 1 > 0:
                yield "all but one skipped"
    yield "several dictionaries in use" if len(used) > 1 else "one in use"


def test_built_frames_reach_every_corner_of_indexed_blocks() -> None:
    seen = {corner for built in corpus() for corner in corners(built)}
    expected = {
        "1 dictionaries",
        "16 dictionaries",
        "several dictionaries in use",
        "small factors",
        "2 codes",
        "256 codes",
        "padding",
        "no padding",
        "short block",
        "runs only",
        "some runs",
        "no runs",
        "reference_width 0",
        "reference_width 8",
        "beside column references",
        "a scale for each value",
        "one scale",
        "skipped",
        "nothing skipped",
        "all but one skipped",
        "segment across blocks",
        "segment longer than a block",
        f"segment {2**32 - 1}",
    }
    expected |= {f"{kind.name}, form 0" for kind in DTYPES.values() if kind.T}
    expected |= {f"{DTYPES[code].name}, form 1" for code in WITH_FACTORS}
    expected |= {f"{DTYPES[code].name}, {n} scale bytes" for code in WITH_FACTORS for n in (2, 3, 4)}
    expected |= {f"{n} entries" for n in (1, 2, 16, 255, 256)} | {f"record at {n}" for n in range(4)}
    expected |= {f"dtype {code}, inner kind {kind}" for code in WITH_TAIL for kind in range(3)}
    expected |= {f"inner kind {kind}, block {b}" for kind in range(3) for b in range(2)}
    expected |= {
        f"{which} exceptions, inner kind {kind}"
        for which in ("no", "some", "only")
        for kind in range(3)
        if (which, kind) != ("some", 0)
    }
    assert sorted(expected - seen) == []


def test_built_frames_decode_to_their_values_and_round_in_every_way() -> None:
    seen = set()
    for built in corpus():
        decoded = decode(built.frame, built.codebooks, base=built.base)
        assert np.array_equal(decoded.bits, built.bits)
        assert set(decoded.kinds) == {"indexed"}
        seen |= set(rounded_corners(built))
    expected = {
        f"{name}, {corner}"
        for name in ("float32", "bfloat16", "float16")
        for corner in ("zero", "negative zero", "infinity", "flushed")
    }
    expected |= {
        f"{name}, {corner}" for name in ("bfloat16", "float16") for corner in ("a tie down", "a tie up", "up", "down")
    }
    expected |= {"float16, denormal", "float16, overflow", "float16, underflow"}
    assert sorted(expected - seen) == []


def rounded_corners(built: Built) -> Iterator[str]:
    """Yield what happens to the products of a frame's scales and factors."""
    draft = Draft.of(built.frame, built.codebooks)
    name = draft.kind.name
    for data in draft.blocks:
        indexed = Indexed.of(data, draft.kind.W)
        if not indexed.segment or indexed.inner[0] == 2:
            continue
        entries = Entries.of(draft.records[indexed.codebook], draft.kind.W).values
        stored = indexed.inner[16 : 16 + indexed.n_values]
        for i in range(indexed.n_values):
            index = stored[0] if indexed.inner[0] == 0 else stored[i]
            if index >= len(entries):
                continue
            at = (indexed.skipped + i) // indexed.segment * indexed.scale_bytes
            scale = int.from_bytes(indexed.scales[at : at + indexed.scale_bytes], "little") << 32 - 8 * (
                indexed.scale_bytes
            )
            exact = struct.unpack("<2f", struct.pack("<2I", scale, entries[index]))
            value, result = exact[0] * exact[1], multiplied(draft.kind, scale, entries[index])
            yield from (f"{name}, {corner}" for corner in rounding(name, value, result))


def rounding(name: str, value: float, result: int) -> Iterator[str]:
    """Yield how a product became a result, given as bits."""
    W = 32 if name == "float32" else 16
    magnitude = result & (1 << W - 1) - 1
    if magnitude == 0:
        yield "zero" if result == 0 else "negative zero"
        if value:
            yield "flushed" if abs(value) < 2.0**-125 else "underflow"
        return
    if name == "float16" and magnitude < 0x400:
        yield "denormal"
    infinity = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}[name]
    if magnitude == infinity:
        yield "infinity"
        if abs(value) < 2.0**127:
            yield "overflow"
        return
    if name == "float32":
        return
    near, above, below = (abs(as_number(name, magnitude + k)) for k in (0, 1, -1))
    size = abs(value)
    if size != near and np.isfinite(above):
        half = (near + above if size > near else near + below) / 2
        yield ("a tie " if size == half else "") + ("down" if size > near else "up")


def as_number(name: str, magnitude: int) -> float:
    if name == "float16":
        return float(np.uint16(magnitude).view(np.float16))
    return float(np.uint32(magnitude << 16).view(np.float32))


# What must be refused beyond the spoilers


def test_a_dictionary_has_no_place_with_types_without_tail() -> None:
    for dtype in (5, 6):
        draft = Draft.of(build_frame(Random(1), dtype=dtype, n_values=100, kinds=["raw"]).frame, {})
        records: Sequence[bytes] = (
            bytes([4, 0, 1, 0]) + TWO_CODES + bytes(4),
            bytes([4, 1, 1, 0]) + TWO_CODES + float32(1),
        )
        for record in records:
            spoilt = replace(draft, records=(*draft.records, record)).seal()
            with pytest.raises(Refused) as caught:
                decode(spoilt)
            assert caught.value.kind == "unsupported"


def test_no_id_means_a_dictionary() -> None:
    """Whatever the seed of its hash: a decoder that holds such a record under an id holds none for it (§5)."""
    for dtype in WITH_TAIL:
        built = build_frame(Random(f"by id {dtype}"), dtype=dtype, n_values=100, kinds=["indexed"], with_base=False)
        draft = Draft.of(built.frame, {})
        one_level = Entries(draft.kind.W, 0, Inline(((0, 0),), (1, 1)), (0,)).record()
        for record in (draft.records[-1], one_level):
            for seed in (draft.kind.H, 8, 256 + draft.kind.W, 256 + 8):
                named, held = by_id(record, 300, seed)
                spoilt = replace(draft, records=(*draft.records[:-1], named)).seal()
                assert kind_of_refusal(spoilt, built, held) == "unsupported"


def test_what_a_codebook_by_id_means_comes_before_dictionaries() -> None:
    built = build_frame(Random(2), dtype=1, n_values=300, n_codebooks=2, kinds=["indexed", "sparse"], with_base=False)
    draft = Draft.of(built.frame, {})
    assert draft.n_coded == 2 and draft.n_changes and draft.n_dictionaries
    changes = draft.records[2]
    for record, seed in ((draft.records[0], 8), (changes, 256 + 32)):
        named, held = by_id(record, 300, seed)
        at = 0 if seed == 8 else 2
        sound = replace(draft, records=(*draft.records[:at], named, *draft.records[at + 1 :])).seal()
        assert kind_of_refusal(sound, built, held) is None
        for behind in (len(draft.records) - 1, len(draft.records)):
            records = (*draft.records[:behind], named, *draft.records[behind:])
            assert kind_of_refusal(replace(draft, records=records).seal(), built, held) == "corruption"
