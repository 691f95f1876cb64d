"""The laws of reading bytes from strangers: frames spoilt on purpose, all checksums right, and what a decoder may
touch.

The second decoder says what is right: both must find the same values, or refuse for the same kind of reason. That no
access leaves its array is checked by the machine: in a process of its own, every array that gcodec allocates, the data
and the output lie against a page that may not be touched.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from tests.support import laws
from tests.support.cases import (
    CASES,
    KINDS,
    MULTIPLES,
    PAIRS,
    Bits,
    from_floats,
    gaussian,
    infinity,
    modes,
    multiples,
    scaled,
    typed,
)
from tests.support.frame_builder import (
    SPOILERS,
    USUAL_PLANES,
    Built,
    Draft,
    base_template,
    build_frame,
    mutations,
    plain_block,
    sealed_block,
)
from tests.support.paths import ROOT
from tests.support.reference import DTYPES, BlockKind, checksum

BLOCK_KINDS: tuple[BlockKind, ...] = ("constant", "raw", "coded", "predicted")


@functools.cache
def small_frames() -> tuple[Built, ...]:
    """Build frames of every type and kind of block, short enough to be spoilt in every way."""
    frames = []
    for dtype in DTYPES:
        frames += [build_frame(Random(f"{dtype} {kind}"), dtype=dtype, n_values=150, block_log2=10, kinds=[kind])
                   for kind in BLOCK_KINDS if DTYPES[dtype].predicted or kind != "predicted"]
        frames += [build_frame(Random(dtype), dtype=dtype, n_values=1100, block_log2=10, stream_log2=7, n_codebooks=2,
                               named=True)]
        frames += [build_frame(Random(seed), dtype=dtype, n_values=1100, block_log2=10, kinds=["predicted"],
                               spare_bits=seed % 2 == 0) for seed in range(3 if DTYPES[dtype].predicted else 0)]
        frames += [build_frame(Random(f"{dtype} base {n_values}"), dtype=dtype, n_values=n_values, block_log2=10,
                               kinds=["predicted"], with_base=True)
                   for n_values in ((1, 7, 333, 1101) if DTYPES[dtype].predicted else ())]
        for number, levels in enumerate(USUAL_PLANES.get(DTYPES[dtype].T, [])[:5]):
            frames += [build_frame(Random(f"{dtype} columns {number}"), dtype=dtype, n_values=[200, 1300][number % 2],
                                   block_log2=10, n_codebooks=1, levels=levels, kinds=["coded"], with_columns=True,
                                   spare_bits=number % 2 == 1)]
        frames += [build_frame(Random(f"{dtype} columns"), dtype=dtype, n_values=2100, block_log2=10, stream_log2=7,
                               with_columns=True)]
        frames += [sparse_frame(f"{dtype} sparse {number}", dtype, number) for number in range(6)]
    frames += [build_frame(Random(seed), n_values=300, n_codebooks=1, spare_bits=seed % 2 == 0) for seed in range(8)]
    return tuple(frames)


def sparse_frame(name: str, dtype: int, number: int) -> Built:
    """Build a frame with sparse blocks, every other with a base."""
    return build_frame(Random(name), dtype=dtype, n_values=[1, 64, 150, 333, 1100][number % 5], block_log2=10,
                       n_codebooks=1, kinds=["sparse"], with_base=number % 2 == 0, named=number % 3 == 1,
                       spare_bits=number % 4 == 1)


@functools.cache
def frames_with_a_base() -> tuple[Built, ...]:
    """Encode short frames against a base."""
    found = []
    for dtype, kind in KINDS.items():
        if kind.predicted:
            for which in PAIRS:
                if which.dtype == dtype and which.bits.size < 2000:
                    frame = gcodec.encode(which.array(), base=which.earlier(), dtype=dtype)
                    if Draft.of(frame, laws.SHIPPED).bases:
                        found.append(Built(frame, which.bits.reshape(-1), dict(laws.SHIPPED), which.base.reshape(-1)))
    assert len(found) > 5
    return tuple(found)


@functools.cache
def frames_of_the_encoder() -> tuple[bytes, ...]:
    """Encode short frames of every type and mode."""
    found = []
    for dtype, kind in KINDS.items():
        bits = gaussian(kind, np.random.default_rng(kind.W), 700, zeros=0.2)
        bits[300:303] = ~bits[300:303]
        for mode in modes(dtype):
            options = {"dtype": dtype} | mode.options
            if "ladder" in options:
                options["levels"] = (np.arange(700) // 5 % len(options["ladder"].drops)).astype(np.uint8)
            found.append(gcodec.encode(bits if kind.W != 32 else bits.view(np.float32), **options))
        if kind.predicted:
            rows = multiples(kind, np.random.default_rng(kind.M), (260, 33))
            rows[100:104], rows[70, 5] = 0, infinity(kind) + 1
            found.append(gcodec.encode(rows if kind.W != 32 else rows.view(np.float32), dtype=dtype))
            assert Draft.of(found[-1], laws.SHIPPED).templates
        if kind.T:
            rows = scaled(kind, np.random.default_rng(kind.M), (150, 66))
            found.append(gcodec.encode(typed(dtype, rows), dtype=dtype))
            assert Draft.of(found[-1], laws.SHIPPED).columns
            wide = from_floats(kind, np.random.default_rng(kind.M).uniform(-0.75, 0.75, 4096))
            found.append(gcodec.encode(typed(dtype, wide), dtype=dtype))
    assert {frame[5] for frame in found} == set(DTYPES)
    return tuple(found)


# Agreement with the second decoder

@pytest.mark.parametrize("part", range(4))
def test_valid_frames_that_no_encoder_writes_decode(part):
    for seed in range(part, 140, 4):
        built = build_frame(Random(f"valid {seed}"), named=seed % 3 == 0, spare_bits=seed % 2 == 0,
                            n_values=None if seed % 5 else 3000)
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)
        laws.check_agreement(built.frame, built.codebooks, built.base)


@pytest.mark.slow
def test_thousands_of_valid_frames_that_no_encoder_writes_decode():
    for seed in range(3000):
        built = build_frame(Random(f"many {seed}"), named=seed % 3 == 0, spare_bits=seed % 2 == 0)
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)


def test_every_mutation_is_refused_for_its_reason():
    """The second decoder confirms the reasons in tests/format/test_reference.py."""
    spoilt = set()
    for seed, built in enumerate(small_frames()):
        for mutation in itertools.islice(mutations(built.frame, Random(seed), built.codebooks), seed % 2, None, 2):
            found = laws.outcome(mutation.frame, built.codebooks, built.base)
            assert isinstance(found, str) and found == mutation.expected, f"frame {seed}, {mutation.name}: {found}"
            spoilt.add(mutation.name.partition(":")[0])
    assert spoilt == set(SPOILERS)


def test_mutations_of_the_encoders_frames_are_refused():
    frames = frames_of_the_encoder()
    for seed, frame in enumerate([*frames[::3], *(frame for frame in frames if frame[15])]):
        for mutation in mutations(frame, Random(seed), laws.SHIPPED):
            assert laws.outcome(mutation.frame) == mutation.expected, f"frame {seed}, {mutation.name}"
    for seed, built in enumerate(frames_with_a_base()[::4]):
        for mutation in mutations(built.frame, Random(seed), built.codebooks):
            found = laws.outcome(mutation.frame, built.codebooks, built.base)
            assert found == mutation.expected, f"frame {seed} with a base, {mutation.name}"


def test_a_base_hash_of_0_counts_as_a_hash():
    """Two hashes in one frame are one too many, and 0 is the hash of an empty base."""
    built = build_frame(Random(0), dtype=1, n_values=40, kinds=["raw"], with_base=True)
    assert built.base is not None
    draft = Draft.of(built.frame, built.codebooks)
    spoilt = replace(draft, templates=(base_template(0), *draft.templates)).seal()
    assert laws.reference_outcome(spoilt, built.codebooks, built.base) == "corruption"
    assert laws.outcome(spoilt, built.codebooks, built.base) == "corruption"


def altered(draft: Draft, rng: Random) -> bytes:
    """Return a frame with a few bytes of its blocks changed, and all checksums set right."""
    blocks = [bytearray(block) for block in draft.blocks]
    for _ in range(rng.choice([1, 1, 2, 5])):
        block = rng.choice(blocks)
        near_start = range(1, min(40, len(block)))
        at = rng.choice([rng.choice(near_start), rng.randrange(1, len(block))])
        block[at] = rng.choice([0, 1, 255, block[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
    return replace(draft, blocks=tuple(map(bytes, blocks))).seal()


def check_altered(
    frame: bytes, codebooks: dict[tuple[int, int], bytes], rng: Random, times: int, base: Bits | None = None
) -> set[str]:
    """Check that both decoders make the same of altered frames; return what they made of them."""
    seen: set[str] = set()
    draft = Draft.of(frame, laws.SHIPPED | codebooks)
    for _ in range(times if draft.blocks else 0):
        spoilt = altered(draft, rng)
        found = laws.outcome(spoilt, codebooks, base)
        wanted = laws.reference_outcome(spoilt, codebooks, base)
        assert laws.same_outcome(found, wanted), f"{found} and not {wanted}: {spoilt.hex()}"
        seen.add(found if isinstance(found, str) else "decoded")
    return seen


def test_both_decoders_treat_altered_blocks_alike():
    seen = set()
    for seed, built in enumerate(small_frames()):
        seen |= check_altered(built.frame, built.codebooks, Random(f"altered {seed}"), 25, built.base)
    for seed, frame in enumerate(frames_of_the_encoder()):
        seen |= check_altered(frame, {}, Random(f"altered frame {seed}"), times=10)
    for seed, built in enumerate(frames_with_a_base()):
        seen |= check_altered(built.frame, built.codebooks, Random(f"altered base {seed}"), 10, built.base)
    assert {"corruption", "decoded"} <= seen


def test_both_decoders_treat_altered_predicted_blocks_alike():
    seen = set()
    for seed in range(60):
        rng = Random(f"altered predicted {seed}")
        built = build_frame(rng, dtype=1 + seed % 3, n_values=rng.choice([40, 300, 1500]), kinds=["predicted"],
                            with_base=seed % 2 == 0)
        seen |= check_altered(built.frame, built.codebooks, rng, 10, built.base)
    assert {"corruption", "decoded"} <= seen


def test_both_decoders_treat_altered_sparse_blocks_alike():
    seen = set()
    for seed in range(120):
        rng = Random(f"altered sparse {seed}")
        built = sparse_frame(f"to be altered {seed}", 1 + seed % 8, seed // 8)
        seen |= check_altered(built.frame, built.codebooks, rng, 10, built.base)
    assert {"corruption", "decoded"} <= seen


@pytest.mark.slow
def test_both_decoders_treat_thousands_of_altered_blocks_alike():
    for seed in range(2000):
        rng = Random(f"much altered {seed}")
        kinds: list[BlockKind] | None = [["predicted"], None, ["sparse"]][seed % 3]  # type: ignore[assignment]
        built = build_frame(rng, n_values=rng.choice([40, 300, 1500]), named=seed % 7 == 0, kinds=kinds)
        check_altered(built.frame, built.codebooks, rng, 20, built.base)


def altered_prelude(frame: bytes, rng: Random) -> bytes:
    """Return a frame with one byte of its prelude changed, and the checksum set right."""
    spoilt = bytearray(frame)
    prelude_bytes = int.from_bytes(frame[32:40], "little")
    at = rng.choice([place for place in range(4, prelude_bytes) if not 16 <= place < 24 and not 32 <= place < 48])
    spoilt[at] = rng.choice([0, 1, 2, 255, spoilt[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
    spoilt[40:48] = checksum(bytes(spoilt[:prelude_bytes]), 0, own_words=(10, 11)).to_bytes(8, "little")
    return bytes(spoilt)


def test_both_decoders_treat_altered_preludes_alike():
    seen = set()
    frames = [(built.frame, built.codebooks, built.base) for built in (*small_frames(), *frames_with_a_base()[::5])]
    frames += [(frame, {}, None) for frame in frames_of_the_encoder()[::2]]
    for seed, (frame, codebooks, base) in enumerate(frames):
        rng = Random(f"altered prelude {seed}")
        for _ in range(40):
            spoilt = altered_prelude(frame, rng)
            found = laws.outcome(spoilt, codebooks, base)
            wanted = laws.reference_outcome(spoilt, codebooks, base)
            either = {found, wanted} == {"corruption", "unsupported"} if isinstance(found, str) and isinstance(
                wanted, str) else False         # where there are several faults of one step, either may be reported
            assert either or laws.same_outcome(found, wanted), f"{found} and not {wanted}: {spoilt.hex()}"
            seen.add(found if isinstance(found, str) else "decoded")
    assert {"corruption", "unsupported", "decoded"} <= seen


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1))
def test_both_decoders_treat_any_bytes_behind_a_valid_header_alike(data, seed):
    built = build_frame(Random(seed), n_values=100, n_codebooks=1)
    for spoilt in (built.frame[:48] + data, built.frame[: len(built.frame) // 2] + data):
        assert laws.same_outcome(laws.outcome(spoilt, built.codebooks, built.base),
                                 laws.reference_outcome(spoilt, built.codebooks, built.base))


# What a decoder leaves alone

def test_frames_with_several_faults_are_refused_in_the_order_of_the_page():
    """By docs/format.md, section 10, each step comes before the next."""
    draft = Draft.of(build_frame(Random(3), dtype=1, n_values=500, n_codebooks=1, kinds=["coded"]).frame, {})
    frame = draft.seal(dtype=99)
    assert laws.outcome(frame) == "unsupported"
    frame = frame[:40] + bytes(8) + frame[48:]
    assert laws.outcome(frame) == "corruption"
    frame = frame[:-1]
    assert laws.outcome(frame) == "insufficient"
    frame = frame[:4] + b"\2" + frame[5:]
    assert laws.outcome(frame) == "unsupported"
    frame = b"x" + frame[1:]
    assert laws.outcome(frame) == "corruption"
    assert laws.outcome(frame[:47]) == "insufficient"


def test_both_decoders_refuse_by_the_limit_after_step_5_and_before_step_6():
    """Frames that are spoilt in the prelude keep their kind of refusal; others that are too long are refused as such,
    before a base is asked for and before a block is read."""
    seen = set()
    for seed, built in enumerate((*small_frames()[::12], *frames_with_a_base()[::9])):
        rng, size = Random(f"limit {seed}"), built.bits.nbytes
        spoilt = [built.frame, *(mutation.frame for mutation in mutations(built.frame, rng, built.codebooks))]
        spoilt += [altered_prelude(built.frame, rng) for _ in range(10)]
        for frame in spoilt:
            for limit in (size - 1, size, 0):
                base = built.base if rng.random() < 0.5 else None
                found = laws.outcome(frame, built.codebooks, base, limit)
                wanted = laws.reference_outcome(frame, built.codebooks, base, limit)
                either = {str(found), str(wanted)} == {"corruption", "unsupported"}    # faults of one step
                assert either or laws.same_outcome(found, wanted), f"{found} and not {wanted}: {frame.hex()}"
                seen.add(found if isinstance(found, str) else "decoded")
    assert seen == {"limit", "corruption", "unsupported", "insufficient", "decoded"}


def test_frames_that_claim_many_values_allocate_nothing():
    """The frames have a few bytes and claim up to 2^47 values."""
    for shape in ((2**47,), (2**46, 1), (2**24, 2**20)):
        n_values = int(np.prod(shape, dtype=object))
        draft = Draft(4, 0, 0, 20, 8, n_values, shape, (53,), ((0, 1),), (), ())
        frame = draft.seal()
        assert laws.outcome(frame) == "corruption"          # there is no index
        assert laws.reference_outcome(frame) == "corruption"
        assert laws.outcome(replace(draft, shape=(2**20, 2**20, 2**20)).seal()) == "corruption"


def test_the_output_limit_is_checked_before_memory_is_allocated():
    """A constant block stands for a million values in 24 bytes: 128 GiB in half a megabyte."""
    n_blocks = 1 << 14
    block = plain_block(0, 1 << 20, bytes(8))
    draft = Draft(4, 0, 0, 20, 8, n_blocks << 20, (n_blocks << 20,), (53,), ((0, 1),), (), (block,) * n_blocks)
    frame = draft.seal()
    assert len(frame) < 1 << 19
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(frame, max_output_bytes=1 << 30)
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode_range(frame, 0, n_blocks << 20, max_output_bytes=1 << 30)
    few = gcodec.decode_range(frame, (5 << 20) - 2, (5 << 20) + 1, max_output_bytes=24)
    assert few.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of memory")
@pytest.mark.parametrize("container", [0, 1])
def test_no_memory_for_a_frame_is_a_limit_that_is_exceeded(container):
    """Half a megabyte stands for an array that no machine can hold."""
    import resource

    pytest.importorskip("torch")
    n_blocks = 1 << 14
    block = plain_block(0, 1 << 20, bytes(8))
    n_values = n_blocks << 20
    frame = Draft(4, 0, container, 20, 8, n_values, (n_values,), (53,), ((0, 1),), (), (block,) * n_blocks).seal()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 33), hard))
    try:
        for decode in (lambda: gcodec.decode(frame), lambda: gcodec.Decoder().decode(frame),
                       lambda: gcodec.decode_range(frame, 0, n_values),
                       lambda: gcodec.decode_range(frame, 5, n_values - 5)):
            laws.check_refused(gcodec.LimitExceeded, decode)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


@pytest.mark.parametrize("which", [0, 1])
def test_a_block_of_less_than_its_header_is_corruption(which):
    """Whoever looks at the block, ``inspect`` included, which reads no more of it than its kind."""
    draft = Draft.of(build_frame(Random(3), dtype=1, n_values=2000, block_log2=10, kinds=["raw"]).frame, {})
    for size in (0, 8):
        blocks = (*draft.blocks[:which], draft.blocks[0][:size], *draft.blocks[which + 1:])
        frame = replace(draft, blocks=blocks).seal()
        for read in (gcodec.inspect, gcodec.decode, lambda data: gcodec.decode_range(data, 1000 * which, 2000)):
            laws.check_refused(gcodec.Corruption, lambda: read(frame))      # noqa: B023


def test_random_access_verifies_what_it_reads_and_no_more():
    x = gaussian(KINDS["float32"], np.random.default_rng(0), 3 << 14).view(np.float32)
    frame = bytearray(gcodec.encode(x))
    frame[-9] ^= 1
    assert np.array_equal(gcodec.decode_range(bytes(frame), 0, 2 << 14), x[: 2 << 14])
    laws.check_refused(gcodec.Corruption, lambda: gcodec.decode(bytes(frame)))
    laws.check_refused(gcodec.Corruption, lambda: gcodec.decode_range(bytes(frame), 2 << 14, (2 << 14) + 1))


def test_blocks_that_change_places_are_refused():
    """Each block is whole, but its checksum is seeded with its place."""
    draft = Draft.of(build_frame(Random(9), dtype=2, n_values=3 << 10, block_log2=10, kinds=["raw"]).frame, {})
    sealed = [sealed_block(block, b) for b, block in enumerate(draft.blocks)]
    swapped = replace(draft, blocks=(sealed[1], sealed[0], sealed[2])).seal(seal_blocks=False)
    assert laws.outcome(swapped) == "corruption"


# Memory

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class Guarded:
    """A stand-in for numpy in a module of gcodec, whose ``empty`` and ``zeros`` put every array against a forbidden
    page."""

    def __init__(self, side: str) -> None:
        self.side = side

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, dtype: Any = float, **more: Any) -> np.ndarray:
        """Return an array as numpy does, but filled with bytes that stand out."""
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        memory = guarded_bytes(count * kind.itemsize, self.side, kind.alignment)
        memory[:] = 0xA5
        return memory.view(kind).reshape(shape)

    def zeros(self, shape: Any, dtype: Any = float, **more: Any) -> np.ndarray:
        """Return zeros as numpy does."""
        array = self.empty(shape, dtype)
        array[...] = 0
        return array


def guarded_bytes(size: int, side: str, alignment: int = 1) -> np.ndarray:
    """Return uint8[size] right before or after a page that may not be touched; freed with the array."""
    assert _libc is not None
    room = max(-(-size // PAGE), 1) * PAGE
    memory = mmap.mmap(-1, room + PAGE)
    whole = np.frombuffer(memory, np.uint8)
    forbidden = whole.ctypes.data + (room if side == "after" else 0)
    if _libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    start = (room - size) // alignment * alignment if side == "after" else PAGE
    return whole[start : start + size]


def guarded_array(bits: Bits, side: str) -> np.ndarray:
    """Return the values, flat, in guarded memory."""
    copy = guarded_bytes(bits.nbytes, side, bits.itemsize).view(bits.dtype)
    copy[:] = bits.reshape(-1)
    return copy


def guarded_copy(data: bytes, side: str) -> np.ndarray:
    """Return the bytes in guarded memory."""
    copy = guarded_bytes(len(data), side)
    copy[:] = np.frombuffer(data, np.uint8)
    return copy


def frames_to_read(many: bool) -> Iterator[Built]:
    """Yield valid and spoilt frames alike, with the codebooks that they name and the base that they need."""
    for seed, built in enumerate(small_frames()):
        rng = Random(f"guarded {seed}")
        yield built
        draft = Draft.of(built.frame, built.codebooks)
        for _ in range(200 if many else 12):
            if draft.blocks:
                yield built._replace(frame=altered(draft, rng))
        for mutation in list(mutations(built.frame, rng, built.codebooks))[:: 1 if many else 5]:
            yield built._replace(frame=mutation.frame)
    written = [Built(frame, np.zeros(0, np.uint8), {}) for frame in frames_of_the_encoder()]
    for seed, built in enumerate((*written, *frames_with_a_base())):
        rng = Random(f"guarded frame {seed}")
        yield built
        for _ in range(100 if many else 4):
            yield built._replace(frame=altered(Draft.of(built.frame, laws.SHIPPED), rng))
    for seed in range(300 if many else 40):
        n_values = Random(seed).choice([1000, 5000])
        yield build_frame(Random(f"guarded valid {seed}"), n_values=n_values, spare_bits=True)


def read_guarded(side: str, many: bool) -> None:
    """The process: whatever is read, nothing outside of the arrays is touched and only a GcodecError raised."""
    from gcodec import codec, tensors
    from gcodec import memory as scratch
    from gcodec.format import change_codebook, codebook, columns, tables
    from gcodec.frame import coded_blocks, decode, encode, predicted_blocks, sparse_blocks, writer
    from gcodec.plan import codebooks as fitting
    from gcodec.plan import columns as column_fit
    from gcodec.plan import plan, prediction, sampling
    from gcodec.plan import sparse_frames as sparse_plan

    guarded: Any = Guarded(side)
    for module in (writer, change_codebook, coded_blocks, codebook, codec, column_fit, columns, decode, encode, fitting,
                   plan, predicted_blocks, prediction, scratch, sampling, sparse_blocks, sparse_plan, tables, tensors):
        if hasattr(module, "np"):
            setattr(module, "np", guarded)      # noqa: B010 - to mypy a module has no such attribute
    n_frames = n_refused = 0
    for built in frames_to_read(many):
        base = None if built.base is None else guarded_array(built.base, side)
        found = laws.outcome(guarded_copy(built.frame, side), built.codebooks, base)
        n_frames += 1
        n_refused += isinstance(found, str)
    for which in (*CASES, *MULTIPLES):
        if which.bits.size < 4000 or which.name in ("noise", "a block and one") or which in MULTIPLES:
            for mode in modes(which.dtype) if many else modes(which.dtype)[:1] + modes(which.dtype)[-2:-1]:
                arguments = mode.arguments(which)
                if "levels" in arguments:
                    arguments["levels"] = guarded_copy(arguments["levels"].tobytes(), side)
                decoded = gcodec.decode(gcodec.encode(guarded_array(which.bits, side),
                                                      **arguments | {"dtype": which.dtype}))
                if not mode.options:
                    laws.assert_same_bits(decoded, which.bits.reshape(-1))
                n_frames += 1
    for pair in PAIRS:
        x, base = guarded_array(pair.bits, side), guarded_array(pair.base, side)
        frame = gcodec.encode(x, base=base, dtype=pair.dtype)
        laws.assert_same_bits(gcodec.decode(frame, base=base), pair.bits.reshape(-1))
        n_frames += 1
    print(f"{n_frames} frames, {n_refused} refused")


def run_guarded(side: str, many: str, **environment: str) -> str:
    """Return what :func:`read_guarded` prints in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "tests.codec.test_corruption", side, many], cwd=ROOT,
                          capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("side", ["after", "before"])
def test_coding_touches_no_memory_outside_of_the_arrays(side):
    assert "refused" in run_guarded(side, "few")


@pytest.mark.slow
@linux_only
@pytest.mark.parametrize("side", ["after", "before"])
def test_coding_many_frames_touches_no_memory_outside_of_the_arrays(side):
    assert "refused" in run_guarded(side, "many")


@pytest.mark.slow
@linux_only
def test_no_index_of_a_kernel_is_out_of_bounds(tmp_path):
    """The frames are read under numba's own checks, which also see a row that runs into the next. Kernels compile anew.
    """
    assert "refused" in run_guarded("after", "few", NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(tmp_path))


@linux_only
def test_the_guard_page_catches_accesses_outside_of_an_array():
    program = """
from tests.codec.test_corruption import guarded_bytes
array = guarded_bytes(100, "{side}")
array[0] = array[99] = 1
import ctypes
ctypes.c_uint8.from_address(array.ctypes.data + {offset}).value
"""
    for side, offset in (("after", 100), ("before", -1)):
        for shift, survives in ((0, False), (1 if offset < 0 else -1, True)):
            done = subprocess.run([sys.executable, "-c", program.format(side=side, offset=offset + shift)], cwd=ROOT,
                                  capture_output=True, check=False)
            assert (done.returncode == 0) == survives


if __name__ == "__main__":
    read_guarded(sys.argv[1], sys.argv[2] == "many")
