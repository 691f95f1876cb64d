"""Spoilers of the blocks inside of sparse blocks (docs/format.md, section 9)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tests.support.frame_builder.parts import Coded, Draft, pack, plain_block, sealed_block
from tests.support.frame_builder.sparse import NO_TEMPLATE, Sparse
from tests.support.frame_builder.sparse_spoilers import some_sparse
from tests.support.frame_builder.spoilers import Spoilt, flipped, spoils, spoilt_block, with_fields
from tests.support.reference import Kind


def some_with_inner(draft: Draft, rng: Random) -> Iterator[tuple[int, Sparse]]:
    """A sparse block for each kind of inner block."""
    for kind in 0, 1, 2:
        places = [
            b for b, block in enumerate(draft.blocks) if block[0] == 4 and Sparse.of(block).inner[:1] == bytes([kind])
        ]
        if places:
            b = rng.choice(places)
            yield b, Sparse.of(draft.blocks[b])


def spoilt_inner(draft: Draft, b: int, how: str, inner: bytes) -> tuple[str, bytes, Kind]:
    """A frame whose block b has another inner block, with the checksum that belongs to it."""
    return spoilt_block(draft, b, how, replace(Sparse.of(draft.blocks[b]), inner=sealed_block(inner, 0)).block())


@spoils("inner_bytes")
def spoil_inner_bytes(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        size = len(sparse.inner)
        for other in {size - 8, size + 8, size + 4, size + 1, 8, 2**31, 2**32 - 8, 2**32 - 1} - {size}:
            if other >= 0:
                yield spoilt_block(draft, b, f"{other} for {size}", sparse.block(inner_bytes=other))
        for more in 4, 8:
            longer = replace(sparse, inner=sparse.inner + bytes(more))
            yield spoilt_block(draft, b, f"{more} bytes more", longer.block())


@spoils("inner block where there is none")
def spoil_inner_unwanted(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_sparse(draft, rng):
        if not sparse.inner:
            for n_values in 0, 1, sparse.n_values:
                inner = plain_block(0, n_values, pack([0], draft.kind.W))
                yield spoilt_inner(draft, b, f"{n_values} values for base {sparse.base}", inner)
                inner = plain_block(1, n_values, pack([0] * n_values, draft.kind.W))
                yield spoilt_inner(draft, b, f"{n_values} raw values for base {sparse.base}", inner)


@spoils("no inner block")
def spoil_no_inner(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        yield spoilt_block(draft, b, f"kind {sparse.inner[0]}", replace(sparse, inner=b"").block())
        for size in 8, 16:
            spoilt = replace(sparse, inner=sealed_block(sparse.inner[:size], 0)).block()
            yield spoilt_block(draft, b, f"kind {sparse.inner[0]}, {size} bytes", spoilt)


@spoils("inner kind")
def spoil_inner_kind(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        for kind in 3, 4, 5, 6, 255, rng.randint(7, 254):
            yield spoilt_inner(draft, b, f"{kind} for {sparse.inner[0]}", with_fields(sparse.inner, kind=kind))
        within = Sparse(
            sparse.codebook,
            NO_TEMPLATE,
            struct.unpack_from("<I", sparse.inner, 4)[0],
            b"",
            (b"",),
            0,
            0,
            draft.block_log2,
        )
        yield spoilt_inner(draft, b, "sparse, and nothing differs", within.block())


@spoils("inner n_values")
def spoil_inner_n_values(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        (n_values,) = struct.unpack_from("<I", sparse.inner, 4)
        for other in {0, n_values - 1, n_values + 1, sparse.n_values, 2**32 - 1} - {n_values}:
            how = f"{other} for {n_values}, kind {sparse.inner[0]}"
            yield spoilt_inner(draft, b, how, with_fields(sparse.inner, n_values=other))
            if other <= sparse.n_values + 1:
                fitting = plain_block(1, other, pack([0] * other, draft.kind.W))
                yield spoilt_inner(draft, b, f"{other} for {n_values}, and as many", fitting)


@spoils("inner checksum")
def spoil_inner_checksum(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        for at in 8, 15, rng.randrange(16, len(sparse.inner)):
            spoilt = replace(sparse, inner=flipped(sparse.inner, at, rng))
            yield spoilt_block(draft, b, f"byte {at}", spoilt.block())
        for other in {b, 1, -1} - {0}:  # -1: without a seed
            spoilt = replace(sparse, inner=sealed_block(sparse.inner, other))
            yield spoilt_block(draft, b, f"seed of block {other}", spoilt.block())


@spoils("inner codebook and base")
def spoil_inner_codebook(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        coded = sparse.inner[0] == 2
        for codebook in (draft.n_coded, len(draft.records), 255) if coded else (1, sparse.codebook or 2, 255):
            yield spoilt_inner(
                draft, b, f"codebook {codebook}, kind {sparse.inner[0]}", with_fields(sparse.inner, codebook=codebook)
            )
        for base in (1 << draft.kind.H, NO_TEMPLATE) if coded else (1, 256, NO_TEMPLATE):
            yield spoilt_inner(draft, b, f"base {base}, kind {sparse.inner[0]}", with_fields(sparse.inner, base=base))


@spoils("inner coded block")
def spoil_inner_coded(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        if sparse.inner[0] != 2:
            continue
        coded = Coded.of(sparse.inner, draft.stream_log2)
        for flags in 1, 2, 255:  # 1 even if there are column references
            yield spoilt_inner(draft, b, f"flags {flags}", replace(coded, flags=flags).block())
        yield spoilt_inner(draft, b, "run_symbol", replace(coded, run_symbol=255).block())
        yield spoilt_inner(draft, b, "reserved", coded.block(reserved=b"\1"))
        yield spoilt_inner(draft, b, "symbol_bytes", coded.block(surplus=b"\0"))
        longer = replace(coded, planes=coded.planes + b"\0")
        yield spoilt_inner(draft, b, "plane_bytes", longer.block())
        s = rng.randrange(len(coded.streams))
        if coded.streams[s]:
            longer = coded.restreamed(s, coded.streams[s] + b"\0")
            yield spoilt_inner(draft, b, f"sub-stream {s}: a byte more", longer.block())


@spoils("padding of an inner block")
def spoil_inner_padding(draft: Draft, rng: Random) -> Spoilt:
    for b, sparse in some_with_inner(draft, rng):
        (n_values,) = struct.unpack_from("<I", sparse.inner, 4)
        size = {0: draft.kind.W // 8, 1: n_values * draft.kind.W // 8}.get(sparse.inner[0])
        if size is None:
            coded = Coded.of(sparse.inner, draft.stream_log2)
            sound, spoilt = coded.block(), coded.block(fill=255)
        else:
            sound, spoilt = sparse.inner, sparse.inner[: 16 + size] + b"\xff" * (len(sparse.inner) - 16 - size)
        if spoilt[16:] != sound[16:]:
            yield spoilt_inner(draft, b, f"kind {sparse.inner[0]}", spoilt)
        yield spoilt_inner(draft, b, f"kind {sparse.inner[0]}: 8 bytes more", sparse.inner + bytes(8))
