"""The laws of reading indexed blocks, on frames that no encoder writes: the second decoder says what is right."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

import gcodec
from tests.codec.spoilt_frames import indexed_frame
from tests.codec.test_corruption import check_altered
from tests.support import laws
from tests.support.frame_builder import ANY_KIND_OR_INDEXED, Built, Draft, build_frame
from tests.support.reference import DTYPES

WITH_TAIL = [code for code, kind in DTYPES.items() if kind.T]


def drawn(seed: int) -> Built:
    """Build a frame with indexed blocks, alone or among others."""
    return build_frame(
        Random(f"indexed frame {seed}"),
        dtype=WITH_TAIL[seed % len(WITH_TAIL)],
        kinds=ANY_KIND_OR_INDEXED if seed % 3 == 0 else ["indexed"],
        named=seed % 4 == 0,
        spare_bits=seed % 2 == 0,
        n_values=[None, None, 3000][seed % 3],
        with_offsets=seed % 5 < 2,
    )


def of_several_blocks(dtype: int) -> Built:
    """Build a frame of seven blocks for numpy, without a base or codebooks by id."""
    built = build_frame(
        Random(f"several blocks {dtype}"),
        dtype=dtype,
        n_values=(6 << 10) + 333,
        block_log2=10,
        kinds=["indexed", "indexed", "raw", "coded"],
        with_base=False,
    )
    return built._replace(frame=replace(Draft.of(built.frame, {}), container=0).seal())


@pytest.mark.parametrize("part", range(4))
def test_valid_frames_with_indexed_blocks_decode(part):
    for seed in range(part, 72, 4):
        built = drawn(seed)
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)
        laws.check_agreement(built.frame, built.codebooks, built.base)
        laws.check_decoding_in_place(built.frame, built.bits, built.base, built.codebooks)


@pytest.mark.slow
def test_thousands_of_valid_frames_with_indexed_blocks_decode():
    for seed in range(72, 3000):
        built = drawn(seed)
        decoded = laws.decode_known(built.frame, built.codebooks, base=built.base)
        laws.assert_same_bits(decoded.reshape(-1), built.bits)


@pytest.mark.parametrize("dtype", WITH_TAIL)
def test_ranges_threads_and_buffers_change_no_value(dtype):
    built = of_several_blocks(dtype)
    for threads in (1, 2, 3):
        laws.assert_same_bits(laws.bits_of(gcodec.decode(built.frame, threads=threads)).reshape(-1), built.bits)
    laws.check_random_access(built.frame, Random(dtype))
    laws.check_decode_buffers(built.frame)


@pytest.mark.parametrize("dtype", WITH_TAIL)
def test_inspect_counts_indexed_blocks(dtype):
    built = of_several_blocks(dtype)
    kinds = [block[0] for block in Draft.of(built.frame, {}).blocks]
    assert gcodec.inspect(built.frame).kinds["indexed"] == kinds.count(5) > 0


def test_both_decoders_treat_altered_indexed_blocks_alike():
    seen = set()
    for seed in range(120):
        built = indexed_frame(f"to be altered {seed}", WITH_TAIL[seed % len(WITH_TAIL)], seed // len(WITH_TAIL))
        seen |= check_altered(built.frame, built.codebooks, Random(f"altered indexed {seed}"), 5, built.base)
    assert {"corruption", "decoded"} <= seen


def test_truncated_and_flipped_frames_are_refused():
    for dtype in WITH_TAIL:
        built = of_several_blocks(dtype)
        laws.check_truncation(built.frame, Random(dtype), at_most=240)
        laws.check_bit_flips(built.frame, Random(dtype), at_most=150)


def test_an_indexed_block_of_a_type_without_tail_is_corruption():
    """There is no dictionary that it might name."""
    for dtype in set(DTYPES) - set(WITH_TAIL):
        draft = Draft.of(build_frame(Random(1), dtype=dtype, n_values=300, kinds=["raw"]).frame, {})
        block = bytes([5]) + draft.blocks[0][1:]
        frame = replace(draft, blocks=(block,)).seal()
        assert laws.reference_outcome(frame) == "corruption"
        assert laws.outcome(frame) == "corruption"


def test_products_of_every_pair_of_exponents_are_those_of_the_second_decoder():
    """Scales and factors of all exponents, many of which products are too small or too large for the type."""
    from tests.support.frame_builder import Entries, Indexed, Inline, plain_block, sealed_block

    factors = tuple(sign << 31 | exponent << 23 | 0x400001 for sign in (0, 1) for exponent in range(1, 255, 2))
    scales = [exponent << 23 | mantissa for exponent in range(255) for mantissa in (0, 1, 0x2AAAAA, 0x7FFFFF)]
    n = len(scales) * len(factors)
    for dtype in (1, 2, 3):
        kind = DTYPES[dtype]
        record = Entries(kind.W, 1, Inline(((0, 0),), (1, 1)), factors).record()
        indices = bytes(range(len(factors))) * len(scales)
        inner = sealed_block(plain_block(1, n, indices), 0)
        stored = np.array(scales, "<u4").tobytes()
        block = Indexed(kind.W, 0, n, inner, 4, stored, (), len(factors), 0).block()
        draft = Draft(dtype, 0, 0, 20, 6, n, (n,), (kind.T,), ((0, 1),), (record,), (block,), n_dictionaries=1)
        laws.check_agreement(draft.seal())
