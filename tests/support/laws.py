"""The laws that every array and every frame obeys; a law is a function that asserts it.

None of them looks inside gcodec but :func:`decode_known`. Arrays are compared by their bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np

import gcodec
from gcodec import codec
from gcodec.dtypes import BY_CODE
from gcodec.format import shipped
from gcodec.format.change_codebook import CHANGES, ChangeCodebook, read_changes
from gcodec.format.codebook import Codebook, read_inline
from gcodec.format.shipped_changes import N_SHIFTS, changes_from, shifted_thresholds
from gcodec.frame import small_reads
from gcodec.frame.decode import FrameReader
from gcodec.frame.small_reads import small_frame
from tests.support import reference
from tests.support.bit_patterns import KINDS, Array, Bits, infinity, to_floats, typed

# ------------------------------------------------------------------------------------------------ What is compared


def bits_of(x: Any) -> Bits:
    """Return a copy of the bits of an array or tensor in row-major order, uintW[n]."""
    if not isinstance(x, np.ndarray):
        import torch

        integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
        x = x.detach().resolve_neg().resolve_conj().contiguous().reshape(-1).view(integer).numpy()
    bits = np.frombuffer(x.tobytes(), f"{'>' if x.dtype.byteorder == '>' else '<'}u{x.dtype.itemsize}")
    return bits.astype(bits.dtype.newbyteorder("<"))


def assert_same_bits(x: Any, bits: Bits) -> None:
    """Assert that the shape and the bits of ``x`` are those of ``bits``."""
    assert tuple(x.shape) == bits.shape
    actual, expected = bits_of(x), bits_of(bits)
    assert actual.dtype == expected.dtype
    if not np.array_equal(actual, expected):
        different = np.flatnonzero(actual != expected)
        at = different[0]
        raise AssertionError(
            f"{len(different)} of {len(actual)} values differ, the first at {at}: "
            f"{int(actual[at]):#x} and not {int(expected[at]):#x}"
        )


def assert_kept(x: Any, promised: Bits, exact: Bits) -> None:
    """Assert that each value of ``x`` has the bits that were promised, or all that it had: an encoder may keep more."""
    kept = bits_of(x).reshape(exact.shape) == exact
    assert_same_bits(x, np.where(kept, exact, promised))


def kind_of(error: gcodec.GcodecError) -> reference.Kind:
    """Return the word of docs/format.md section 11 for an error of a decoder."""
    match error:
        case gcodec.InsufficientData():
            return "insufficient"
        case gcodec.Corruption():
            return "corruption"
        case gcodec.Unsupported():
            return "unsupported"
        case gcodec.LimitExceeded():
            return "limit"
    raise AssertionError(f"not an error of a decoder: {error!r}")


#: Records of the codebooks that come with gcodec, by (id, hash).
SHIPPED: dict[tuple[int, int], bytes] = {
    (number, reference.checksum(bytes.fromhex(record), head_bits)): bytes.fromhex(record)
    for number, _, _, head_bits, record in shipped.RECORDS
}
SHIPPED |= {
    (number, book.hash): book.record
    for shift in range(N_SHIFTS)
    for number, book in changes_from(shifted_thresholds(shift))
}


def book_of(record: bytes, digest: int) -> Codebook | ChangeCodebook | None:
    """Return the codebook that a record holds; None for one of changes whose hash is another."""
    if record[0] == CHANGES:
        dtype = next(dtype for dtype in BY_CODE.values() if dtype.itemsize == record[3])
        return read_changes(record, 0, dtype)[0] if reference.checksum(record, 256 + dtype.bits) == digest else None
    head_bits = next(H for H in (8, 9, 11, 12) if reference.checksum(record, H) == digest)
    return read_inline(record, 0, record[1], head_bits)[0]


def decode_known(
    frame: Any, codebooks: reference.Known, out: Any = None, base: Any = None, limit: int = 1 << 28
) -> Any:
    """Decode, as numpy arrays of at most ``limit`` bytes, a frame that may name ``codebooks`` by id, besides those that
    are shipped, and may need a base."""

    def find(codebook_id: int, digest: int) -> Codebook | ChangeCodebook | None:
        record = (SHIPPED | dict(codebooks)).get((codebook_id, digest))
        return None if record is None else book_of(record, digest)

    def by_steps() -> Any:
        return codec.decode_frame(FrameReader(frame, find), out, "numpy", 1, limit, base)

    alone = base is None and out is None
    return beside_few_calls(frame, by_steps, limit) if alone else by_steps()


def beside_few_calls(frame: Any, by_steps: Callable[[], Any], limit: int) -> Any:
    """Return what decoding step by step makes of some bytes; decoding a small frame with few calls must make the same
    of them, or leave them to the steps."""
    small = small_frame(frame)
    whole = None
    if small is not None and small.n_values * small.dtype.itemsize <= limit:
        numpy: Any = vars(small_reads)["np"]  # makes guarded memory where that is watched
        whole = numpy.empty(small.n_values, small.dtype.uint)
        whole = whole if small.decode(whole) else None
    try:
        result = by_steps()
    except gcodec.GcodecError as error:
        assert whole is None, f"a frame is read with few calls that is refused: {error}"
        raise
    assert whole is None or np.array_equal(whole, bits_of(result)), "few calls read other values"
    return result


def outcome(
    frame: Any, codebooks: reference.Known | None = None, base: Bits | None = None, limit: int = 1 << 28
) -> Bits | reference.Kind:
    """Return what gcodec makes of some bytes: the values' bits, or the kind of refusal. Only a GcodecError is caught.

    A base of another type or size is to gcodec a mistake of the caller's; to the page it is not the base of this hash.
    """
    try:
        return bits_of(decode_known(frame, codebooks or {}, base=base, limit=limit))
    except gcodec.InvalidArgument:
        if base is None:
            raise
        return "unsupported"
    except gcodec.GcodecError as error:
        return kind_of(error)


def reference_outcome(
    frame: bytes, codebooks: reference.Known | None = None, base: Bits | None = None, limit: int = 1 << 28
) -> Bits | reference.Kind:
    """Return what the second decoder makes of the same bytes."""
    try:
        return reference.decode(frame, SHIPPED | dict(codebooks or {}), base=base, limit=limit).bits
    except reference.Refused as refused:
        return refused.kind


def same_outcome(a: Bits | reference.Kind, b: Bits | reference.Kind) -> bool:
    """Return whether two decoders agree."""
    if isinstance(a, str) or isinstance(b, str):
        return isinstance(a, str) and isinstance(b, str) and a == b
    return bool(np.array_equal(a, b) and a.dtype == b.dtype)


# ------------------------------------------------------------------------------------------------- Laws of arrays


def check_round_trip(x: Any, promised: Bits, **options: Any) -> bytes:
    """Check that decoding returns what was promised, in the kind of array that was given, and that encoding changes
    nothing. With a ``base`` among the options, decoding has it, too.

    Returns the frame.
    """
    base = options.get("base")
    before = bits_of(x)
    base_before = before if base is None else bits_of(base)
    frame = gcodec.encode(x, **options)
    assert type(frame) is bytes
    assert np.array_equal(bits_of(x), before)
    decoded = gcodec.decode(frame, base=base)
    assert base is None or np.array_equal(bits_of(base), base_before)
    assert isinstance(decoded, np.ndarray) == isinstance(x, np.ndarray)
    if options.get("dtype") is None:
        assert decoded.dtype == (x.dtype.newbyteorder("=") if isinstance(x, np.ndarray) else x.dtype)
    assert_kept(decoded, promised, before.reshape(promised.shape))
    return frame


def check_agreement(frame: bytes, codebooks: reference.Known | None = None, base: Bits | None = None) -> None:
    """Check that the decoder written from docs/format.md alone finds the same type, shape and bits."""
    decoded = decode_known(frame, codebooks or {}, base=base)
    other = reference.decode(frame, SHIPPED | dict(codebooks or {}), base=base)
    assert_same_bits(decoded, other.bits.reshape(other.shape))
    if decoded.dtype.kind == "f":
        assert decoded.dtype.name == other.dtype


def check_decoding_in_place(
    frame: bytes, bits: Bits, base: Bits | None, codebooks: reference.Known | None = None
) -> None:
    """Check that a frame decodes into its base; a frame that refers to none decodes into any array given as its
    base."""
    held = typed(reference.DTYPES[frame[5]].name, np.full_like(bits, 7) if base is None else base.reshape(-1))
    decode_known(frame, codebooks or {}, held, held)
    assert_same_bits(held, bits)


def check_encode_buffers(x: Any, frame: bytes, **options: Any) -> None:
    """Check that ``encode`` writes the same bytes into a buffer of the caller's, be it ever so tight, and nothing
    behind them."""
    dtype = reference.DTYPES[frame[5]].name
    for size in (gcodec.max_encoded_size(tuple(x.shape), dtype), len(frame), len(frame) + 1000):
        out = bytearray(b"\xa5" * (size + 8))
        written = gcodec.encode(x, out=memoryview(out)[:size], **options)
        assert type(written) is memoryview
        assert written == frame
        assert out[: len(frame)] == frame
        assert out[size:] == b"\xa5" * 8
    array = np.full(len(frame), 0xA5, np.uint8)
    assert np.shares_memory(np.asarray(gcodec.encode(x, out=array, **options)), array)
    assert array.tobytes() == frame
    check_refused(gcodec.InvalidArgument, lambda: gcodec.encode(x, out=bytearray(len(frame) - 1), **options))


def check_decode_buffers(frame: bytes, base: Any = None) -> None:
    """Check that ``decode`` reads any kind of buffer, ignores what follows the frame, and fills the caller's array."""
    decoded = gcodec.decode(frame, base=base)
    bits = bits_of(decoded).reshape(tuple(decoded.shape))
    for data in (
        bytearray(frame),
        memoryview(frame),
        np.frombuffer(frame, np.uint8),
        frame + b"\xff" * 13,
        memoryview(b"\xff" + frame)[1:],
    ):
        assert_same_bits(gcodec.decode(data, base=base), bits)
    for shape in (tuple(decoded.shape), (decoded.size if isinstance(decoded, np.ndarray) else decoded.numel(),)):
        out = decoded.reshape(shape).copy() if isinstance(decoded, np.ndarray) else decoded.reshape(shape).clone()
        out[...] = 1
        assert gcodec.decode(frame, out=out, base=base) is out
        assert_same_bits(out, bits.reshape(shape))


def check_threads(x: Any, frame: bytes, **options: Any) -> None:
    """Check that the number of threads changes no byte and no value."""
    base = options.get("base")
    decoded = bits_of(gcodec.decode(frame, base=base))
    for threads in (1, 2, 3):
        assert gcodec.encode(x, threads=threads, **options) == frame
        assert np.array_equal(bits_of(gcodec.decode(frame, threads=threads, base=base)), decoded)


def check_bound(dtype: str, before: Bits, after: Bits, mantissa_bits: int, rounding: str) -> None:
    """Check that, with k mantissa bits, a normal value changes by 2**-(k+1) of itself at most, truncated by less than
    2**-k.

    What is too near the end of the range to be rounded up is truncated; denormals change by as much as the smallest
    normal value may; zeros, infinities and signs stay, NaNs stay NaNs.
    """
    kind = KINDS[dtype]
    sign = kind.container.type(1 << kind.W - 1)
    assert np.array_equal(before & sign, after & sign)
    size, kept = before & ~sign, after & ~sign
    inf, drop = infinity(kind), kind.M - mantissa_bits
    assert not (kept & kind.container.type((1 << drop) - 1)).any()
    assert np.array_equal(size > inf, kept > inf)
    assert np.array_equal(size == inf, kept == inf)
    finite = size < inf
    # Within 900 binades of 1, so that products with a power of two are exact in float64.
    x, y = to_floats(kind, size[finite]), to_floats(kind, kept[finite])
    smallest = float(to_floats(kind, np.array([1 << kind.M], kind.container))[0])
    middle = np.abs(np.log2(np.maximum(x, smallest))) < 900
    x, y = x[middle], y[middle]
    scale = np.maximum(x, smallest)
    top = float(to_floats(kind, np.array([inf - (1 << drop)], kind.container))[0])
    if rounding == "nearest":
        assert (np.abs(y - x) <= scale * 2.0 ** -(mantissa_bits + 1))[x <= top].all()
    cut = np.ones(len(x), bool) if rounding == "truncate" else x > top
    assert ((x - y >= 0) & (x - y < scale * 2.0**-mantissa_bits))[cut].all()


def check_no_expansion(shape: tuple[int, ...], dtype: str, frame: bytes) -> None:
    """Check that a frame is at most 0.1 % and 256 bytes longer than what it holds, and at most ``max_encoded_size``
    long."""
    size = KINDS[dtype].W // 8 * int(np.prod(shape, dtype=np.int64))
    assert len(frame) <= 1.001 * size + 256
    assert len(frame) <= gcodec.max_encoded_size(shape, dtype)
    assert len(frame) % 8 == 0


def check_random_access(frame: bytes, rng: Random, base: Any = None) -> None:
    """Check that ``decode_range`` returns that part of the values, flat."""
    whole = bits_of(gcodec.decode(frame, base=base))
    n, block = len(whole), 1 << frame[9]
    edges = {0, 1, n - 1, n, block - 1, block, block + 1, 2 * block, *(rng.randint(0, n) for _ in range(4))}
    places = sorted(edge for edge in edges if 0 <= edge <= n)
    for start in places:
        for stop in (start, rng.choice(places), n):
            if start <= stop:
                part = gcodec.decode_range(frame, start, stop, base=base)
                assert part.ndim == 1
                assert_same_bits(part, whole[start:stop])
    for start, stop in ((-1, 0), (0, n + 1), (1, 0), (n + 1, n + 1)):
        check_refused(gcodec.InvalidArgument, lambda: gcodec.decode_range(frame, start, stop, base=base))  # noqa: B023


# ------------------------------------------------------------------------------------------- Laws of broken frames


def check_refused(kind: type[gcodec.GcodecError], call: Any) -> None:
    """Check that ``call`` raises an error of this kind."""
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def places_to_cut(size: int, rng: Random, at_most: int) -> Iterator[int]:
    """Return lengths below ``size``: all of them, or the first and last hundred and some between."""
    if size <= at_most:
        return iter(range(size))
    ends = {*range(min(100, size)), *range(size - 100, size)}
    return iter(sorted(ends | {rng.randrange(size) for _ in range(at_most - 200)}))


def check_truncation(frame: bytes, rng: Random, at_most: int = 600) -> None:
    """Check that a frame that ends early is refused as such, wherever it ends."""
    for size in places_to_cut(len(frame), rng, at_most):
        check_refused(gcodec.InsufficientData, lambda: gcodec.decode(frame[:size]))  # noqa: B023 - called here


def check_bit_flips(frame: bytes, rng: Random, at_most: int = 1500, base: Bits | None = None) -> None:
    """Check that a flipped bit anywhere is noticed, and that nothing but a GcodecError comes of it."""
    bits = range(8 * len(frame))
    for bit in bits if len(bits) <= at_most else sorted(rng.sample(bits, at_most)):
        spoilt = bytearray(frame)
        spoilt[bit >> 3] ^= 1 << (bit & 7)
        result = outcome(spoilt, base=base)
        expected = {"unsupported"} if bit >> 3 == 4 else {"corruption"}
        if 16 <= bit >> 3 < 24:  # frame_bytes
            expected.add("insufficient")
        assert result in expected, f"bit {bit & 7} of byte {bit >> 3}: {result}"


def entropy_bound(dtype: str, bits: Bits, levels: Array | None = None, kept: tuple[int, ...] = ()) -> float:
    """Return the bytes of the local order-0 bound of an array of values as they are after rounding.

    Per 2**14 values, n times the entropy of their symbols (zero; head; with ``levels`` the pair of both), and for each
    value but zeros its tail: T bits, or what its level keeps (``kept``, bits per level).
    """
    kind = KINDS[dtype]
    flat = bits.reshape(-1)
    heads = (flat >> kind.container.type(max(kind.T - 1, 0))).astype(np.int64) & ((1 << kind.H) - 1)
    level = np.zeros(len(flat), np.int64) if levels is None else levels.reshape(-1).astype(np.int64)
    symbols = np.where(flat == 0, 0, 1 + heads + (level << kind.H))
    widths = np.array(kept or (kind.T,), np.int64)[level] * (flat != 0)
    total = float(widths.sum())
    for start in range(0, len(flat), 1 << 14):
        counts = np.bincount(symbols[start : start + (1 << 14)])
        counts = counts[counts > 0]
        total += float((counts * np.log2(counts.sum() / counts)).sum())
    return total / 8
