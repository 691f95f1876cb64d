"""Frames to spoil: short ones of every type and kind of block, and their bytes altered with all checksums set right."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import numpy as np

import gcodec
from tests.support import laws
from tests.support.base_pairs import PAIRS
from tests.support.bit_patterns import KINDS, from_floats, gaussian, infinity, multiples, scaled, typed
from tests.support.encode_modes import modes
from tests.support.frame_builder import (
    ANY_KIND_OR_INDEXED,
    SPOILERS,
    USUAL_PLANES,
    Built,
    Draft,
    Mutation,
    build_frame,
    mutations,
    sealed_block,
)
from tests.support.reference import DTYPES, BlockKind, checksum

BLOCK_KINDS: tuple[BlockKind, ...] = ("constant", "raw", "coded", "predicted")


@functools.cache
def small_frames() -> tuple[Built, ...]:
    """Build frames of every type and kind of block, short enough to be spoilt in every way."""
    frames = []
    for dtype in DTYPES:
        frames += [
            build_frame(Random(f"{dtype} {kind}"), dtype=dtype, n_values=150, block_log2=10, kinds=[kind])
            for kind in BLOCK_KINDS
            if DTYPES[dtype].predicted or kind != "predicted"
        ]
        frames += [
            build_frame(
                Random(dtype), dtype=dtype, n_values=1100, block_log2=10, stream_log2=7, n_codebooks=2, named=True
            )
        ]
        frames += [
            build_frame(
                Random(seed), dtype=dtype, n_values=1100, block_log2=10, kinds=["predicted"], spare_bits=seed % 2 == 0
            )
            for seed in range(3 if DTYPES[dtype].predicted else 0)
        ]
        frames += [
            build_frame(
                Random(f"{dtype} base {n_values}"),
                dtype=dtype,
                n_values=n_values,
                block_log2=10,
                kinds=["predicted"],
                with_base=True,
            )
            for n_values in ((1, 7, 333, 1101) if DTYPES[dtype].predicted else ())
        ]
        for number, levels in enumerate(USUAL_PLANES.get(DTYPES[dtype].T, [])[:5]):
            frames += [
                build_frame(
                    Random(f"{dtype} columns {number}"),
                    dtype=dtype,
                    n_values=[200, 1300][number % 2],
                    block_log2=10,
                    n_codebooks=1,
                    levels=levels,
                    kinds=["coded"],
                    with_columns=True,
                    spare_bits=number % 2 == 1,
                )
            ]
        frames += [
            build_frame(
                Random(f"{dtype} columns"), dtype=dtype, n_values=2100, block_log2=10, stream_log2=7, with_columns=True
            )
        ]
        frames += [sparse_frame(f"{dtype} sparse {number}", dtype, number) for number in range(6)]
        frames += [
            indexed_frame(f"{dtype} indexed {number}", dtype, number) for number in range(6 if DTYPES[dtype].T else 0)
        ]
    frames += [build_frame(Random(seed), n_values=300, n_codebooks=1, spare_bits=seed % 2 == 0) for seed in range(8)]
    return tuple(frames)


def sparse_frame(name: str, dtype: int, number: int) -> Built:
    """Build a frame with sparse blocks, every other with a base."""
    return build_frame(
        Random(name),
        dtype=dtype,
        n_values=[1, 64, 150, 333, 1100][number % 5],
        block_log2=10,
        n_codebooks=1,
        kinds=["sparse"],
        with_base=number % 2 == 0,
        named=number % 3 == 1,
        spare_bits=number % 4 == 1,
    )


def indexed_frame(name: str, dtype: int, number: int) -> Built:
    """Build a frame with indexed blocks, every sixth with others among them."""
    return build_frame(
        Random(name),
        dtype=dtype,
        n_values=[1, 64, 150, 333, 1100, 2100][number % 6],
        block_log2=10,
        n_codebooks=1,
        kinds=ANY_KIND_OR_INDEXED if number % 6 == 5 else ["indexed"],
        spare_bits=number % 4 == 1,
        with_offsets=number % 3 > 0,
    )


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
            normal = np.random.default_rng(kind.M).standard_normal(4096)
            found.append(gcodec.encode(typed(dtype, from_floats(kind, normal**2)), dtype=dtype))
            near_1, smallest = from_floats(kind, 1 + 0.02 * normal), gcodec.EncoderOptions(smallest=True)
            found.append(gcodec.encode(typed(dtype, near_1), dtype=dtype, options=smallest))
    assert {frame[5] for frame in found} == set(DTYPES)
    return tuple(found)


def drawn_mutations(frames: Sequence[Built], rng: Random, n_frames: int | None) -> Iterator[tuple[Built, Mutation]]:
    """Yield frames and what they are with one thing spoilt. Each thing that can be is spoilt in ``n_frames`` of them,
    which are drawn, in one of three of the ways to do it there; or in all frames, in every way."""
    left = dict.fromkeys(SPOILERS, len(frames) if n_frames is None else n_frames)
    for built in rng.sample(frames, len(frames)):
        every = mutations(built.frame, rng, built.codebooks, [name for name in left if left[name]])
        for name, found in itertools.groupby(every, lambda mutation: mutation.name.partition(":")[0]):
            ways = list(found)
            for mutation in ways if n_frames is None else ways[rng.randrange(3) :: 3] or ways[:1]:
                yield built, mutation
            left[name] -= 1


def altered(draft: Draft, rng: Random) -> bytes:
    """Return a frame with a few bytes of its blocks changed, and all checksums set right; of the blocks inside of
    others, most."""
    blocks = [bytearray(block) for block in draft.blocks]
    for _ in range(rng.choice([1, 1, 2, 5])):
        block = rng.choice(blocks)
        near_start = range(1, min(40, len(block)))
        at = rng.choice([rng.choice(near_start), rng.randrange(1, len(block))])
        block[at] = rng.choice([0, 1, 255, block[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
    sealed = [
        with_inner_sealed(bytes(block), b) if rng.random() < 0.8 else bytes(block) for b, block in enumerate(blocks)
    ]
    return replace(draft, blocks=tuple(sealed)).seal()


def with_inner_sealed(block: bytes, b: int) -> bytes:
    """Return block b with the checksum of the block inside of it set right, if there is one."""
    at = {4: 28, 5: 16}.get(block[0])  # where inner_bytes stands
    if at is None or len(block) < 32:
        return block
    end = 32 + int.from_bytes(block[at : at + 4], "little")
    return block[:32] + sealed_block(block[32:end], b if block[0] == 5 else 0) + block[end:]


@functools.cache
def places_to_alter(prelude_bytes: int) -> list[int]:
    """Return the bytes of a prelude but its magic, the two sizes and the checksum."""
    return [place for place in range(4, prelude_bytes) if not 16 <= place < 24 and not 32 <= place < 48]


def altered_prelude(frame: bytes, rng: Random) -> bytes:
    """Return a frame with one byte of its prelude changed, and the checksum set right."""
    spoilt = bytearray(frame)
    prelude_bytes = int.from_bytes(frame[32:40], "little")
    at = rng.choice(places_to_alter(prelude_bytes))
    spoilt[at] = rng.choice([0, 1, 2, 255, spoilt[at] ^ 1 << rng.randrange(8), rng.randrange(256)])
    spoilt[40:48] = checksum(bytes(spoilt[:prelude_bytes]), 0, own_words=(10, 11)).to_bytes(8, "little")
    return bytes(spoilt)
