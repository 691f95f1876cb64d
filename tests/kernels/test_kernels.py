"""The laws of the kernels: the arithmetic against exact arithmetic, and fast paths against plain ones.

How kernels are cut and what they are passed is theirs to change; here is what they must not change.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

import gcodec
from gcodec import Ladder
from gcodec.dtypes import BY_CODE, BY_NAME
from gcodec.kernels.core import intrinsics, logarithms, scalar, unaligned, vector
from gcodec.kernels.entropy import encode_streams
from gcodec.kernels.heads import means, symbols
from gcodec.kernels.planes import layout_types
from gcodec.memory import float_bits_of, scratch_for
from gcodec.truncation.reference import round_to_levels
from tests.support import laws, reference
from tests.support.bit_patterns import BITS_ONLY, KINDS, gaussian, specials
from tests.support.cases import CASES, Case
from tests.support.encode_modes import Mode, modes, promised
from tests.support.layouts import general_layout
from tests.support.paths import ROOT

if intrinsics.HAS_AVX2:
    from gcodec.kernels.heads import heads_vector as from_heads


# Scalar arithmetic


def test_multipliers_of_words_are_those_of_the_page():
    for i in (*range(100), 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**33 + 5):
        m = int(scalar.word_multiplier(i))
        assert m == (i + 1) * 0x9E3779B1 % 2**32 | 1


@given(st.integers(0, 400), st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(-1, 60))
def test_the_checksum_of_any_words_is_that_of_the_page(n_words, seed, start, hole):
    data = np.random.default_rng(n_words).integers(0, 256, 4 * n_words + 200, np.uint8)
    hole = hole if hole + 2 <= n_words else -1
    own_words = [hole, hole + 1] if hole >= 0 else []
    wanted = reference.checksum(data[start : start + 4 * n_words].tobytes(), seed, own_words)
    assert int(encode_streams.checksum(data, start, n_words, hole, np.uint64(seed))) == wanted


def test_the_checksum_of_the_largest_words_wraps_as_the_page_says():
    data = np.full(40_000, 0xFF, np.uint8)
    maximum = 2**64 - 1
    result = int(encode_streams.checksum(data, 0, 10_000, -1, np.uint64(maximum)))
    assert result == reference.checksum(data.tobytes(), maximum)


@given(st.sampled_from([name for name, kind in KINDS.items() if kind.T]), st.data())
def test_a_magnitude_is_rounded_as_the_reference_rounds_it(dtype, data):
    kind = BY_NAME[dtype]
    sign = 1 << kind.bits - 1
    corners = sorted({int(bits) % sign for bits in specials(KINDS[dtype])})
    size = data.draw(st.one_of(st.integers(0, sign - 1), st.sampled_from(corners)))
    drop = data.draw(st.integers(0, kind.mantissa_bits - 1))
    bits = np.array([size], kind.uint)
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    for rounding in ("nearest", "truncate"):
        wanted = round_to_levels(x, 0, gcodec.Ladder((drop,)), rounding, prune=False).view(kind.uint)[0]
        nearest = rounding == "nearest"
        result = scalar.round_magnitude(np.uint64(size), np.uint64(drop), np.uint64(kind.infinity), nearest)
        assert int(result) == int(wanted)


@given(st.one_of(st.integers(1, 2**16), st.integers(1, 2**40)))
def test_fixed_point_logarithms_round_down(count):
    result = int(logarithms.log2_fixed(np.uint64(count)))
    exact = 256 * math.log2(count)
    assert exact - 1.6 <= result <= exact + 1e-6
    if count & (count - 1) == 0:
        assert result == exact
    assert result <= int(logarithms.log2_fixed(np.uint64(count + 1)))


@given(
    st.sampled_from([kind for kind in BY_CODE.values() if not kind.fine_bits]),
    st.sampled_from([1, 63, 64, 100, 512, 2048, 2112, 16384]),
    st.sampled_from([0.0, 0.4, 1.0]),
    st.booleans(),
)
def test_mean_heads_are_exact(kind, n, zeros, largest):
    rng = np.random.default_rng(n)
    top = np.iinfo(kind.uint).max
    values = np.full(n, top, kind.uint) if largest else rng.integers(0, top, n, kind.uint, endpoint=True)
    values[rng.random(n) < zeros] = 0
    mask, middle = (kind.head_mask >> 1, 64) if kind.bits == 8 else (kind.head_mask, 0)
    heads = [int(value) >> kind.head_shift & mask for value in values if value]
    normal = [head for head in heads if 0 < head < mask] if kind.bits == 64 else heads
    counted = normal or heads
    result = means.mean_head(values, kind.head_shift, kind.head_mask)
    assert tuple(map(int, result)) == (sum(counted) // max(len(counted), 1) + middle, len(heads))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rounding", ["nearest", "truncate"])
def test_every_value_of_16_bits_is_rounded_right_in_every_precision(dtype, rounding):
    kind = KINDS[dtype]
    bits, rounded = np.arange(1 << 16, dtype=np.uint16), gcodec.EncoderOptions(exact_if_smaller=False)
    x = bits if dtype in BITS_ONLY else bits.view(dtype)
    for mantissa_bits in range(1, kind.M + 1):
        options = {"mantissa_bits": mantissa_bits, "rounding": rounding, "options": rounded}
        decoded = laws.bits_of(gcodec.decode(gcodec.encode(x, dtype=dtype, **options)))
        laws.assert_same_bits(decoded, promised(kind, bits, options))
        laws.check_bound(dtype, bits, decoded, mantissa_bits, rounding)
    ladder = gcodec.FINE_LADDER[dtype]
    for level in range(len(ladder.drops)):
        options = {
            "levels": np.full(1 << 16, level, np.uint8),
            "ladder": ladder,
            "rounding": rounding,
            "options": rounded,
        }
        decoded = laws.bits_of(gcodec.decode(gcodec.encode(x, dtype=dtype, **options)))
        laws.assert_same_bits(decoded, promised(kind, bits, options))


# Heads taken once, as bytes


@pytest.mark.skipif(not intrinsics.HAS_AVX2, reason="of CPUs with AVX2")
@given(st.integers(1, 1300), st.sampled_from([64, 128, 256, 512]), *2 * [st.booleans()], st.integers(0, 2**32 - 1))
def test_references_and_symbols_from_heads_are_those_from_values(n, stream, with_levels, with_gaps, seed):
    """Other types have the loops over values."""
    kind, rng = BY_NAME["float32"], np.random.default_rng(seed)
    values = gaussian(KINDS["float32"], rng, n, zeros=0.2, scale=float(rng.choice([1e-30, 1, 1e30])))
    odd = rng.random(n) < 0.02
    values[odd] = rng.choice(specials(KINDS["float32"]), odd.sum())
    levels = rng.integers(0, 8, n + 64, np.uint8)[:n] if with_levels else None
    float_bits, scratch = float_bits_of(kind), scratch_for(kind, 2048, stream, layout_types.NoPlanes, decode=False)
    n_streams = -(-n // stream)
    heads, nonzero = scratch.heads, scratch.others
    for array in (heads, nonzero, scratch.symbols):
        array[:] = 7
    from_heads.store_heads(values, n, heads, nonzero)
    wanted = np.zeros(n_streams, np.uint32)
    assert symbols.find_references_from_heads(heads, nonzero, n, stream, scratch.references) == (
        symbols.find_references_from_values(values, stream, float_bits, wanted)
    )
    assert np.array_equal(scratch.references[:n_streams], wanted)
    assert from_heads.mean_of_heads(heads, nonzero, 0, n) == means.mean_head(values, 23, 255)
    ranges, base = ranges_of(rng, 8 if with_levels else 1, with_gaps), int(rng.integers(0, 256))
    for one in (float_bits, float_bits._replace(infinity=np.uint64(1 << 31))):  # as where nothing is rounded
        scratch.symbols[:] = 7
        top = (int(one.infinity) - 1) >> 23
        from_heads.find_symbols_from_heads(levels, n, stream, base, top, ranges, scratch)
        result = scratch.symbols.copy()
        scratch.symbols[:] = 7
        symbols.find_symbols_from_values(values, levels, stream, one, base, ranges, scratch)
        assert np.array_equal(result, scratch.symbols)


def ranges_of(rng, n_levels, with_gaps):
    """Return ranges of some codebook, from 1 on without gaps, as the kernels take them."""
    first, counts = rng.integers(-20, 3, 16), np.zeros(16, np.int64)
    counts[:n_levels] = rng.integers(0, 25, n_levels)
    number = 1 + np.cumsum(counts) - counts
    by_level = np.stack([np.resize(each.astype(np.uint8), 256) for each in (first, counts, number)])
    coded = np.arange(256, dtype=np.uint8)
    coded[rng.random(256) < 0.2] = 255
    return symbols.SymbolRanges(first, counts, number, by_level, coded, with_gaps)


# Unaligned memory

LOADS = {16: unaligned.load_u16, 32: unaligned.load_u32, 64: unaligned.load_u64}
STORES = {
    16: (unaligned.store_u16, np.uint16),
    32: (unaligned.store_u32, np.uint32),
    64: (unaligned.store_u64, np.uint64),
}


@pytest.mark.parametrize("bits", LOADS)
def test_loads_and_stores_are_little_endian_and_need_no_alignment(bits):
    load, (store, word) = LOADS[bits], STORES[bits]
    # ruff would have a name here, but numba has to see the functions themselves.
    read = njit(lambda data, at: load(data, at))
    write = njit(lambda data, at, value: store(data, at, value))
    data = np.random.default_rng(bits).integers(0, 256, 64, np.uint8)
    for at in (0, 1, 2, 3, 5, 7, 8, 13, 64 - bits // 8):
        value = int.from_bytes(data[at : at + bits // 8].tobytes(), "little")
        assert int(read(data, at)) == value
        before = data.copy()
        write(data, at, word(value ^ ((1 << bits) - 1)))
        assert int(read(data, at)) == value ^ ((1 << bits) - 1)
        write(data, at, word(value))
        assert np.array_equal(data, before)


# Steps of a whole vector, as plain Python has them


def vector_step(function):
    """Compile a call of an intrinsic: those cannot be called from Python."""
    return njit(function)


def test_packing_words_to_three_bytes_is_undone_by_unpacking():
    pack = vector_step(lambda src, i, dst, k: vector.pack_24(src, i, dst, k))
    unpack = vector_step(lambda src, i, dst, k: vector.unpack_24(src, i, dst, k))
    words = np.random.default_rng(1).integers(0, 1 << 32, 40, np.uint32)
    for i, k in ((0, 0), (3, 5), (24, 7)):
        out = np.full(100, 0xA5, np.uint8)
        pack(words, i, out, k)
        wanted = words[i : i + 16].astype("<u4").view(np.uint8).reshape(16, 4)[:, :3].reshape(-1)
        assert np.array_equal(out[k : k + 48], wanted)
        assert (out[:k] == 0xA5).all()
        back = np.full(40, 0xA5A5A5A5, np.uint32)
        unpack(out, k, back, i)
        assert np.array_equal(back[i : i + 16], words[i : i + 16] & 0xFFFFFF)
        assert (back[:i] == 0xA5A5A5A5).all()


@pytest.mark.parametrize(("bits", "group"), [(8, 64), (32, 16)])
def test_compressing_and_expanding_are_inverse(bits, group):
    compressing = vector.compress_8 if bits == 8 else vector.compress_32
    expanding = vector.expand_8 if bits == 8 else vector.expand_32
    compress = vector_step(lambda src, i, mask, j, selected, dst, k: compressing(src, i, mask, j, selected, dst, k))
    expand = vector_step(lambda src, i, mask, j, selected, dst, k: expanding(src, i, mask, j, selected, dst, k))
    rng, word = np.random.default_rng(2), np.dtype(f"u{bits // 8}")
    for share in (0.0, 0.1, 0.5, 0.9, 1.0):
        source = rng.integers(0, 1 << bits, 200, word)
        marks = np.where(rng.random(200) < share, 0b0110, 0b1001).astype(np.uint8)
        i, j, k = (int(n) for n in rng.integers(0, 60, 3))
        chosen = marks[j : j + group] & 0b0100 != 0
        packed = np.zeros(300, word)
        assert compress(source, i, marks, j, 0b0100, packed, k) == chosen.sum()
        assert np.array_equal(packed[k : k + chosen.sum()], source[i : i + group][chosen])
        spread = np.zeros(300, word)
        assert expand(packed, k, marks, j, 0b0100, spread, i) == chosen.sum()
        assert np.array_equal(spread[i : i + group], np.where(chosen, source[i : i + group], 0))


def test_looking_up_64_bytes_is_indexing_the_table():
    look_up = vector_step(lambda table, src, i, dst, k: vector.look_up_64(table, 0, src, i, dst, k))
    rng = np.random.default_rng(3)
    table, source = rng.integers(0, 256, 256, np.uint8), rng.permutation(np.arange(256, dtype=np.uint8))
    for i in (0, 1, 100, 192):
        out = np.zeros(200, np.uint8)
        look_up(table, source, i, out, 9)
        assert np.array_equal(out[9:73], table[source[i : i + 64]])


# Fast paths and the plain one

LAYOUT_CASES = [
    Case(dtype, name)
    for dtype in ("float32", "bfloat16", "float16")
    for name in (
        "gaussian, three in ten zero",
        "corners among gaussian values",
        "few far from the rest",
        "denormal",
        "runs of equal sub-streams",
        "scale by row",
        "a block and one",
    )
]


@pytest.mark.parametrize("which", LAYOUT_CASES, ids=str)
def test_all_layouts_of_planes_give_the_same_bytes(which):
    names = ("lossless", "half the mantissa", "fine ladder", "uneven ladder")
    chosen = [mode for mode in modes(which.dtype) if mode.name in names]
    fast = [gcodec.encode(which.array(), **mode.arguments(which)) for mode in chosen]
    with general_layout():
        for mode, frame in zip(chosen, fast, strict=True):
            arguments = mode.arguments(which)
            assert gcodec.encode(which.array(), **arguments) == frame
            laws.assert_kept(gcodec.decode(frame), promised(which.kind, which.bits, arguments), which.bits)


CHUNKED: list[dict[str, Any]] = [{"mantissa_bits": bits} for bits in range(1, 23)]
CHUNKED += [
    {"ladder": Ladder(drops)}
    for drops in (
        (0, 6, 12, 18),
        (0, 3),
        (3, 9),
        (9, 12, 15),
        (15, 18, 21),
        (12,),
        (0, 2, 4, 6),
        (0, 8, 16),
        (2, 8, 14, 20),
    )
]


@pytest.mark.parametrize("options", CHUNKED, ids=lambda options: str(*options.values()))
@pytest.mark.parametrize("n", [64, 2_117])
def test_all_ways_to_cut_tails_into_planes_give_the_same_bytes(options, n):
    rng = np.random.default_rng(n)
    x = (rng.standard_normal(n) * np.exp(rng.normal(0, 2, n)) * (rng.random(n) < 0.8)).astype(np.float32)
    x[n // 2 : n // 2 + 200] = 0
    x[-3:] = np.nan, np.inf, -0.0
    if "ladder" in options:
        options = options | {"levels": rng.integers(0, len(options["ladder"].drops), n).astype(np.uint8)}
    frame = gcodec.encode(x, **options)
    decoded = gcodec.decode(frame)
    with general_layout():
        assert gcodec.encode(x, **options) == frame
        laws.assert_same_bits(gcodec.decode(frame), decoded)


PROGRAM = """
import sys, zlib
import gcodec
from tests.support.cases import CASES
from tests.support.encode_modes import modes
for which in CASES:
    if which.dtype in ("float32", "bfloat16") and which.name in sys.argv[1:]:
        for mode in modes(which.dtype):
            frame = gcodec.encode(which.array(), **mode.arguments(which))
            assert gcodec.encode(gcodec.decode(frame), **which.options)
            print(zlib.crc32(frame))
"""
PORTABLE_NAMES = ["gaussian, three in ten zero", "corners among gaussian values", "scale by row", "a block and one"]


@pytest.mark.slow
def test_a_cpu_without_avx_writes_the_same_bytes(tmp_path):
    """On other machines than x86-64 both runs take the one path there is."""
    results = []
    for extra in ({}, {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""}):
        if sys.platform != "linux" or os.uname().machine != "x86_64":
            extra = {}
        environment = os.environ | extra | {"NUMBA_CACHE_DIR": str(tmp_path / f"cache-{len(extra)}")}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *PORTABLE_NAMES],
            env=environment,
            cwd=ROOT,
            text=True,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        results.append(done.stdout.split())
    assert results[0] == results[1]
    assert len(results[0]) == len(PORTABLE_NAMES) * (len(modes("float32")) + len(modes("bfloat16")))


@pytest.mark.parametrize(("stream_log2", "dtype"), [(n, reference.DTYPES[1 + n % 6].name) for n in range(6, 13)])
def test_frames_of_every_block_and_stream_length_are_decoded(stream_log2, dtype):
    """This encoder writes only one of the lengths that the format has, and a decoder must read them all."""
    from random import Random

    from tests.support.frame_builder import build_frame

    for block_log2 in (10, 12, 16):
        if stream_log2 <= block_log2:
            built = build_frame(
                Random(stream_log2),
                dtype=BY_NAME[dtype].code,
                n_values=5000,
                n_codebooks=3,
                block_log2=block_log2,
                stream_log2=stream_log2,
                kinds=["coded"],
            )
            laws.assert_same_bits(laws.decode_known(built.frame, {}, base=built.base).reshape(-1), built.bits)


def test_kernels_leave_the_interpreter_free():
    """Two threads of the caller's run at once: nothing is shared that both write."""
    from concurrent.futures import ThreadPoolExecutor

    kind = KINDS["float32"]
    arrays = [gaussian(kind, np.random.default_rng(n), 50_000, zeros=n / 10).view(np.float32) for n in range(8)]
    alone = [gcodec.encode(x) for x in arrays]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(gcodec.encode, arrays * 3)) == alone * 3
        for x, y in zip(arrays * 3, pool.map(gcodec.decode, alone * 3), strict=True):
            assert np.array_equal(x, y)


def test_the_table_of_cases_reaches_every_kind_of_block_and_corner():
    """The table would be no good if none of its cases were ever coded, constant, raw, run or escaped."""
    seen = set()
    for which in CASES:
        if which.dtype in ("float32", "bfloat16"):
            for mode in modes(which.dtype)[:2] + modes(which.dtype)[-2:]:
                frame = gcodec.encode(which.array(), **mode.arguments(which))
                seen |= corners(frame, mode)
    assert {
        "constant",
        "raw",
        "coded",
        "sparse",
        "run",
        "references",
        "several codebooks",
        "escape",
        "escape with levels",
        "no codebook",
        "codebook by id",
        "codebook inline",
        "sub-streams of different lengths",
    } <= seen


def corners(frame: bytes, mode: Mode) -> set[str]:
    """Return what a frame of the encoder has that not every frame has."""
    from tests.support.frame_builder import Coded, Draft, Inline

    draft = Draft.of(frame, laws.SHIPPED)
    seen = {("constant", "raw", "coded", "predicted", "sparse", "indexed")[block[0]] for block in draft.blocks}
    seen |= {"several codebooks"} if len(draft.records) > 1 else {"no codebook"} if not draft.records else set()
    for block in draft.blocks:
        if block[0] == 2:
            coded = Coded.of(block, draft.stream_log2)
            seen |= {"run"} if not all(coded.streams) else set()
            seen |= {"references"} if coded.reference_width else set()
            seen |= {"sub-streams of different lengths"} if coded.length_width else set()
            record = draft.records[coded.codebook]
            seen |= {"codebook by id"} if record[0] == 1 else {"codebook inline"}
            name = int.from_bytes(record[4:8], "little"), int.from_bytes(record[8:16], "little")
            inline = Inline.of(record if record[0] == 0 else laws.SHIPPED[name])
            by_length = sorted(inline.codes().items(), key=lambda item: len(item[1]))
            codes = reference.Codes({code: symbol for symbol, code in by_length})
            escaped: list[int] = []
            for s, stream in enumerate(coded.streams):
                count = min(1 << draft.stream_log2, coded.n_values - (s << draft.stream_log2))
                if stream:
                    reference.read_stream(stream, count, draft.kind.H, codes, [], escaped)
            if escaped:
                seen |= {"escape", "escape with levels"} if "ladder" in mode.options else {"escape"}
    return seen
