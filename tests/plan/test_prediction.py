"""The laws of bases (docs/format.md section 8): arrays encoded against an earlier one, near to it, far from it or
equal; and that nothing of prediction depends on what the processor does with denormals.

What is predicted from templates has its laws in tests/codec/test_predicted_rows.py, what is
spoilt in tests/codec/test_corruption.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec import EncoderOptions, InvalidArgument, Unsupported
from tests.support import laws, reference
from tests.support.base_pairs import PAIRS, Pair, rng_of, stepped
from tests.support.bit_patterns import (
    BITS_ONLY,
    KINDS,
    Array,
    Bits,
    block_of,
    gaussian,
    multiples,
    noise,
    specials,
    to_floats,
    typed,
)
from tests.support.cases import CASES, MULTIPLES
from tests.support.encode_modes import modes
from tests.support.frame_builder import Draft, build_frame

PREDICTABLE = [name for name, kind in KINDS.items() if kind.predicted]

every_pair = pytest.mark.parametrize("which", PAIRS, ids=str)
predictable = pytest.mark.parametrize("dtype", PREDICTABLE)


def encoded(which: Pair, **options: Any) -> bytes:
    """Return a pair's frame."""
    return gcodec.encode(which.array(), base=which.earlier(), dtype=which.dtype, **options)


def draft_of(frame: bytes) -> Draft:
    """Return the parts of a frame of the encoder's."""
    return Draft.of(frame, laws.SHIPPED)


# The laws


@every_pair
def test_arrays_with_a_base_round_trip_agree_and_do_not_expand(which):
    frame = laws.check_round_trip(which.array(), which.bits, base=which.earlier(), dtype=which.dtype)
    laws.check_agreement(frame, base=which.base.reshape(-1))
    laws.check_no_expansion(which.bits.shape, which.dtype, frame)
    assert len(frame) <= len(gcodec.encode(which.array(), dtype=which.dtype))


@every_pair
def test_arrays_with_a_base_obey_the_laws_of_buffers_threads_and_random_access(which):
    x, base = which.array(), which.earlier()
    frame = encoded(which)
    laws.check_encode_buffers(x, frame, base=base, dtype=which.dtype)
    laws.check_decode_buffers(frame, base)
    laws.check_random_access(frame, rng_of(which), base)
    laws.check_threads(x, frame, base=base, dtype=which.dtype)


@pytest.mark.parametrize("which", [which for which in PAIRS if which.bits.size < 2000], ids=str)
def test_truncated_frames_and_flipped_bits_with_a_base_are_refused(which):
    frame = encoded(which)
    laws.check_truncation(frame, rng_of(which), at_most=300)
    laws.check_bit_flips(frame, rng_of(which), at_most=100, base=which.base)


@predictable
def test_large_arrays_with_a_base_are_coded_alike_by_any_number_of_threads(dtype):
    """There are enough blocks that threads share them, of every kind, and some whose base has no part in them."""
    kind, rng = KINDS[dtype], np.random.default_rng(1)
    n = block_of(kind)
    base = gaussian(kind, rng, 19 * n + 99)
    bits = stepped(kind, base, rng.integers(-9, 10, base.size))
    bits[2 * n : 3 * n], bits[5 * n : 6 * n] = 0, noise(kind, rng, n)
    bits[9 * n : 11 * n] = gaussian(kind, rng, 2 * n, scale=3.0)
    x, earlier = typed(dtype, bits), typed(dtype, base)
    frame = laws.check_round_trip(x, bits, base=earlier, dtype=dtype)
    assert {block[0] for block in draft_of(frame).blocks} == {0, 1, 2, 3}
    laws.check_threads(x, frame, base=earlier, dtype=dtype)
    laws.check_random_access(frame, Random(dtype), earlier)


def test_near_values_are_predicted_from_the_base_and_others_need_none():
    without = {
        "one value",
        "three values",
        "0-d",
        "empty",
        "empty of three dimensions",
        "far from its base",
        "noise and noise",
        "noise, and a base of zeros",
        "zeros, and a base of noise",
        "all zeros",
    }
    for which in PAIRS:
        frame = encoded(which)
        draft = draft_of(frame)
        assert bool(draft.bases) == (which.name not in without), which
        if draft.bases:
            (t,) = draft.bases
            assert int.from_bytes(draft.templates[t][4:], "little") == reference.base_hash(which.base)
        else:
            laws.assert_same_bits(gcodec.decode(frame), which.bits)
    kinds = [
        {block[0] for block in draft_of(encoded(Pair(dtype, "blocks of every kind"))).blocks} for dtype in PREDICTABLE
    ]
    assert all({0, 1, 2, 4} <= found for found in kinds)
    assert 3 in set().union(*kinds)
    for dtype in PREDICTABLE:  # a base and a template in one frame
        which = Pair(dtype, "near, and rows that are multiples")
        draft = draft_of(encoded(which, options=EncoderOptions(sparse=False)))
        assert {draft.predicted(block).template for block in draft.blocks if block[0] == 3} == {0, 1}
        assert len(draft.bases) == 1


@every_pair
def test_prediction_from_a_base_can_be_turned_off(which):
    """Sparse blocks are turned off by an option of their own."""
    options = EncoderOptions(prediction=False, sparse=False)
    frame = encoded(which, options=options)
    assert frame[14] == gcodec.inspect(frame).kinds["predicted"] == 0
    assert not draft_of(frame).bases
    assert frame == gcodec.encode(which.array(), dtype=which.dtype, options=options)


# What is near costs little


def prelude_at_most(frame: bytes) -> int:
    """Bytes of a prelude with one base, by section 4: header, shape, a plane and a level, codebooks of at most 256
    lengths and one of residuals, the base, the index, and two paddings."""
    draft = draft_of(frame)
    residuals = 4 + (1 + 15 * draft.kind.W // 4 + 7) // 8 * 4
    return 48 + 8 * len(draft.shape) + 3 + 136 * len(draft.records) + residuals + 12 + 4 * len(draft.blocks) + 7 + 4


@predictable
@pytest.mark.parametrize("content", ["gaussian", "noise", "corners"])
@pytest.mark.parametrize("n", [1200, -1, 0, 1, 40_000], ids=lambda n: f"{n}" if n > 1 else f"a block {n:+}")
def test_blocks_equal_to_their_base_take_32_bytes(dtype, content, n):
    """A predicted block of no planes and empty sub-streams of one length is its two headers: 32 bytes. Only what is
    left for a last block may be too little to gain, and is at most raw."""
    kind, rng = KINDS[dtype], np.random.default_rng(n + 1)
    n = n if n > 1 else block_of(kind) + n
    bits = {
        "gaussian": lambda: gaussian(kind, rng, n, zeros=0.1),
        "noise": lambda: noise(kind, rng, n),
        "corners": lambda: rng.choice(specials(kind), n),
    }[content]()
    frame = laws.check_round_trip(
        typed(dtype, bits), bits, base=typed(dtype, bits), dtype=dtype, options=EncoderOptions(sparse=False)
    )
    sizes = [len(block) for block in draft_of(frame).blocks]
    last = n % block_of(kind)
    few = 0 < last < 100
    assert sizes[: len(sizes) - few] == [32] * (len(sizes) - few)
    assert not few or sizes[-1] <= 16 + -(-last * kind.W // 64) * 8
    assert len(frame) - sum(sizes) <= prelude_at_most(frame)


@predictable
@pytest.mark.parametrize("reach", [1, 2, 3, 7])
def test_small_steps_from_the_base_cost_few_bits(dtype, reach):
    """Residuals of steps up to 7 are 0 ... 14, which one digit tells: no planes. Where 2 · reach + 1 of them are
    equally frequent, their codes are as long as those of so many and one more, for all that do not occur."""
    kind, rng = KINDS[dtype], np.random.default_rng(reach)
    base = rng.choice(np.concatenate([specials(kind), noise(kind, rng, 300)]), 3 * block_of(kind))
    bits = stepped(kind, base, rng.integers(-reach, reach + 1, base.size))
    frame = laws.check_round_trip(typed(dtype, bits), bits, base=typed(dtype, base), dtype=dtype)
    draft = draft_of(frame)
    parts = [draft.predicted(block) for block in draft.blocks]
    assert [part.planes for part in parts] == [b""] * 3
    bits_each = 8 * sum(len(stream) for part in parts for stream in part.streams) / base.size
    n_streams = sum(len(part.streams) for part in parts)
    assert bits_each <= (2 * reach + 1).bit_length() + 8 * n_streams / base.size


# Arrays near to their base, and not

PATTERNS = ("gaussian", "noise", "corners", "zeros")


def drawn(dtype: str, pattern: str, n: int, rng: np.random.Generator) -> Bits:
    """Return values of a nature."""
    kind = KINDS[dtype]
    match pattern:
        case "gaussian":
            return gaussian(kind, rng, n, zeros=0.1)
        case "noise":
            return noise(kind, rng, n)
        case "corners":
            return rng.choice(specials(kind), n)
    return np.zeros(n, kind.container)


@given(
    st.sampled_from(PREDICTABLE),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2500),
    st.sampled_from(PATTERNS),
    st.integers(0, 32),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    st.sampled_from([0.0, 0.0, 0.02, 0.5]),
)
def test_whatever_is_encoded_against_a_base_decodes(dtype, seed, n, pattern, reach, share, other):
    """A share of the values lies up to 2**reach steps from the base, and some are others altogether."""
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    base = drawn(dtype, pattern, n, rng)
    maximum = 1 << min(reach, kind.W - 1)
    steps = np.where(rng.random(n) < share, rng.integers(-maximum, maximum, n, endpoint=True), 0)
    bits = np.where(rng.random(n) < other, drawn(dtype, "corners", n, rng), stepped(kind, base, steps))
    bits = bits.astype(kind.container)
    frame = laws.check_round_trip(typed(dtype, bits), bits, base=typed(dtype, base), dtype=dtype)
    laws.check_agreement(frame, base=base)
    laws.check_no_expansion(bits.shape, dtype, frame)
    if draft_of(frame).bases:
        start, stop = sorted(int(place) for place in rng.integers(0, n, 2))
        part = gcodec.decode_range(frame, start, stop, base=typed(dtype, base))
        laws.assert_same_bits(part, bits[start:stop])
        laws.check_refused(Unsupported, lambda: gcodec.decode(frame))


def test_steps_of_the_tests_are_those_of_the_page():
    """Steps go through the whole order of a 16-bit type, once around."""
    kind = KINDS["bfloat16"]
    everything = np.arange(1 << 16, dtype=np.uint16)
    after = stepped(kind, everything, np.ones(1 << 16, np.int64))
    assert len(np.unique(after)) == 1 << 16
    finite = (everything & 0x7FFF) < 0x7F80
    floats, next_floats = to_floats(kind, everything), to_floats(kind, after)
    assert (next_floats[finite] >= floats[finite]).all()
    assert (after[0x8000], after[0x7FFF], after[0x8001]) == (0, 0xFFFF, 0x8000)
    assert np.array_equal(stepped(kind, after, np.full(1 << 16, -1)), everything)


# Bases of any kind of array


@predictable
def test_bases_of_any_layout_in_memory_are_the_same_base(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(3)
    base = gaussian(kind, rng, 2000)
    bits = stepped(kind, base, rng.integers(-5, 6, 2000))
    x, earlier = typed(dtype, bits), typed(dtype, base)
    frame = gcodec.encode(x, base=earlier, dtype=dtype)
    assert draft_of(frame).bases
    apart = np.zeros((2000, 2), earlier.dtype)
    apart[:, 1] = earlier
    read_only = earlier.copy()
    read_only.setflags(write=False)
    odd = np.frombuffer(b"x" + earlier.tobytes(), np.uint8)[1:].view(earlier.dtype)
    for same in (
        earlier.reshape(50, 40),
        apart[:, 1],
        read_only,
        odd,
        earlier.astype(earlier.dtype.newbyteorder(">")),
        np.asfortranarray(earlier.reshape(4, 500)),
        earlier[::-1].copy()[::-1],
    ):
        assert gcodec.encode(x, base=same, dtype=dtype) == frame
        laws.assert_same_bits(gcodec.decode(frame, base=same), bits)
        laws.assert_same_bits(gcodec.decode_range(frame, 1, 1999, base=same), bits[1:1999])


@predictable
def test_tensors_are_bases_of_tensors_and_arrays(dtype):
    torch = pytest.importorskip("torch")
    kind, rng = KINDS[dtype], np.random.default_rng(4)
    base = gaussian(kind, rng, 2000)
    bits = stepped(kind, base, rng.integers(-5, 6, 2000))
    integer = {16: np.int16, 32: np.int32}[kind.W]
    x, earlier = (torch.from_numpy(item.view(integer)).view(getattr(torch, dtype)) for item in (bits, base))
    frame = laws.check_round_trip(x, bits, base=earlier)
    laws.check_round_trip(x.reshape(40, 50).T, bits.reshape(40, 50).T, base=earlier.reshape(40, 50).T)
    array, earlier_array = typed(dtype, bits), typed(dtype, base)
    if dtype in BITS_ONLY:  # an array of bits, to be taken for this type
        return laws.assert_same_bits(gcodec.decode(frame, base=earlier_array), bits)
    for selected, other in ((x, earlier_array), (array, earlier)):
        laws.check_round_trip(selected, bits, base=other)


# What is refused

X = np.linspace(1, 2, 1000, dtype=np.float32)
BASE = np.nextafter(X, np.float32(3))


def frame_of_x() -> bytes:
    """Return the frame of ``X`` against ``BASE``."""
    return gcodec.encode(X, base=BASE)


@pytest.mark.parametrize(
    "wrong",
    [
        BASE[:-1],
        np.append(BASE, np.float32(1)),
        BASE.astype(np.float64),
        BASE.astype(np.float16),
        BASE.view(np.int32),
        BASE.view(np.uint8),
        BASE.view(np.uint16),
        np.zeros(0, np.float32),
        np.float32(1),
        "text",
        [1.0],
        BASE.tobytes(),
    ],
    ids=lambda wrong: f"{type(wrong).__name__} {getattr(wrong, 'dtype', '')} {getattr(wrong, 'shape', '')}",
)
def test_a_base_of_another_type_or_size_raises_InvalidArgument(wrong):
    """Neither encoding nor decoding even asks whether it is the right one."""
    frame = frame_of_x()
    assert draft_of(frame).bases
    for call in (
        lambda: gcodec.encode(X, base=wrong),
        lambda: gcodec.decode(frame, base=wrong),
        lambda: gcodec.decode_range(frame, 0, 10, base=wrong),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: gcodec.encode(X.astype(np.float64), base=BASE),
        lambda: gcodec.encode(X, base=BASE.view(np.uint32)),  # bits, of a type that is not said
        lambda: gcodec.encode(X, base=BASE, mantissa_bits=9),
        lambda: gcodec.encode(X, base=BASE, levels=np.zeros(1000, np.uint8)),
    ],
    ids=["float64 and float32", "bits", "fixed mantissa bits", "near-lossless"],
)
def test_other_types_and_lossy_modes_refuse_a_base(call):
    with pytest.raises(InvalidArgument):
        call()


def others(base: Array) -> Iterator[Array | None]:
    """Yield no base, and arrays that differ in a value, a bit, the sign of a zero, a NaN's payload, the order."""
    yield None
    integers = np.dtype(f"u{base.itemsize}")
    for place in (0, base.size // 2, base.size - 1):
        for bit in (0, 8 * base.itemsize - 1):
            other = base.copy()
            other.view(integers)[place] ^= integers.type(1 << bit)
            yield other
    yield base[::-1]
    yield np.zeros_like(base)


@predictable
def test_a_frame_is_decoded_with_the_values_of_its_base_only(dtype):
    kind, rng = KINDS[dtype], np.random.default_rng(5)
    base = np.concatenate([specials(kind), gaussian(kind, rng, 1501)])
    bits = stepped(kind, base, rng.integers(-2, 3, base.size))
    x, earlier = typed(dtype, bits), typed(dtype, base)
    frame = gcodec.encode(x, base=earlier, dtype=dtype)
    laws.assert_same_bits(gcodec.decode(frame, base=earlier), bits)
    for other in others(earlier):
        out = np.full_like(x, 7)
        before = out.copy()
        with pytest.raises(Unsupported, match="base"):
            gcodec.decode(frame, base=other)
        with pytest.raises(Unsupported, match="base"):
            gcodec.decode(frame, base=other, out=out)
        with pytest.raises(Unsupported, match="base"):
            gcodec.decode_range(frame, 3, 4, base=other)
        assert np.array_equal(out, before)
    assert gcodec.inspect(frame).kinds["predicted"] == 1  # which needs no base


@predictable
def test_a_base_that_no_block_uses_is_needed_all_the_same(dtype):
    code = next(code for code, kind in reference.DTYPES.items() if kind.name == dtype)
    for n_values in (0, 50, 3000):
        built = build_frame(Random(n_values), dtype=code, n_values=n_values, kinds=["raw"], with_base=True)
        base = built.base
        assert base is not None
        assert laws.outcome(built.frame) == laws.reference_outcome(built.frame) == "unsupported"
        assert laws.same_outcome(laws.outcome(built.frame, base=base), built.bits)
        if n_values:
            assert laws.outcome(built.frame, base=base ^ base.dtype.type(1)) == "unsupported"
            frame = built.frame
            laws.check_refused(Unsupported, lambda: gcodec.decode_range(frame, 0, 1))  # noqa: B023 - called here


def test_the_output_limit_is_checked_before_the_base():
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=3999)
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(frame_of_x(), max_output_bytes=3999, base=BASE + 1)
    laws.assert_same_bits(gcodec.decode(frame_of_x(), max_output_bytes=4000, base=BASE), X.view(np.uint32))


def test_a_frame_that_needs_no_base_may_get_one():
    frame = gcodec.encode(X)
    laws.assert_same_bits(gcodec.decode(frame, base=BASE), X.view(np.uint32))
    laws.assert_same_bits(gcodec.decode_range(frame, 2, 5, base=BASE), X.view(np.uint32)[2:5])


# Denormals


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """This thread's processor flushes denormals to zero, and takes them for zero. Kernels have to be compiled before:
    the compiler is a program like any other."""
    torch = pytest.importorskip("torch")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        assert float(np.float32(1e-38) * np.float32(np.ones(1)[0] / 8)) == 0.0
        yield
    finally:
        torch.set_flush_denormal(False)


def calls_near_denormals() -> Iterator[tuple[Array, dict[str, Any]]]:
    """Yield arrays and keywords of ``encode``: multiples of a row, products of which are about as small as the smallest
    normal value of the type or of float32, and pairs and cases of which some are denormal."""
    rng = np.random.default_rng(0)
    for dtype in PREDICTABLE:
        kind = KINDS[dtype]
        smallest = to_floats(kind, np.array([1 << kind.M], kind.container))[0]
        for exponent in range(int(np.log2(smallest)) - 12, int(np.log2(smallest)) + 40, 4):
            yield typed(dtype, multiples(kind, rng, (200, 64), noise=0.01, exponent=exponent)), {"dtype": dtype}
            yield typed(dtype, multiples(kind, rng, (200, 64), exponent=exponent)), {"dtype": dtype}
    for case in (*MULTIPLES, *CASES):
        if case in MULTIPLES or case.name in ("denormal", "every corner of the type", "every head", "scale by row"):
            for mode in modes(case.dtype):
                yield case.array(), mode.arguments(case)
    for which in PAIRS:
        yield which.array(), {"base": which.earlier(), "dtype": which.dtype}


def test_frames_have_the_same_bytes_on_a_processor_that_flushes_denormals():
    for x, arguments in calls_near_denormals():
        base = arguments.get("base")
        frame = gcodec.encode(x, threads=1, **arguments)
        bits = laws.bits_of(gcodec.decode(frame, threads=1, base=base))
        with flushing_denormals():
            assert gcodec.encode(x, threads=1, **arguments) == frame
            assert np.array_equal(laws.bits_of(gcodec.decode(frame, threads=1, base=base)), bits)


@predictable
def test_denormals_are_predicted_from_a_base_like_all_other_values(dtype):
    """Steps of the last place know nothing of exponents."""
    kind, rng = KINDS[dtype], np.random.default_rng(6)
    base = noise(kind, rng, 4000) & kind.container.type((1 << kind.W - 1) | (1 << kind.M) - 1)
    bits = stepped(kind, base, rng.integers(-2, 3, 4000))
    frame = gcodec.encode(typed(dtype, bits), base=typed(dtype, base), dtype=dtype)
    with flushing_denormals():
        laws.assert_same_bits(gcodec.decode(frame, base=typed(dtype, base), threads=1), bits)
        assert gcodec.encode(typed(dtype, bits), base=typed(dtype, base), dtype=dtype, threads=1) == frame
    assert len(frame) < 0.5 * bits.nbytes
