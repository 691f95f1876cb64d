"""The peers at their levels: all that come near 0.1 GB/s somewhere, and a few slower ones for reference."""

from __future__ import annotations

from collections.abc import Iterator

from gcodec.benchmark.peers import (
    Peer,
    blosc2_at,
    lz4_frame,
    openzl_float,
    pcodec_at,
    shuffled_zstd,
    zipnn_bytes,
    zlib_at,
    zstd_at,
)

ZSTD = range(1, 10)
#: Filters of Blosc2, its codec, and levels. Its zstd level n is zstd's 2 n - 1.
BLOSC2 = (
    ("shuffle", "ZSTD", (1, 2, 3, 5)),
    ("bitshuffle", "ZSTD", (1, 2, 3, 5)),
    ("shuffle bytedelta", "ZSTD", (1, 2, 3)),
    ("shuffle", "LZ4", (5, 9)),
    ("bitshuffle", "LZ4", (5, 9)),
    ("shuffle bytedelta", "LZ4", (9,)),
    ("bitshuffle", "LZ4HC", (1, 5)),
)
PCODEC = (4, 6, 8, 10, 12)
OPENZL = {"entropy": "Entropy", "LZ": "Compress"}  #: what codes the exponents; mantissas go to its general graph
OPENZL_LEVELS = (1, 3, 6, 9)


def all_levels() -> Iterator[Peer]:
    """One after another, each codec from its fastest level on."""
    yield from (Peer(f"zlib-{level}", "", zlib_at(level)) for level in (1, 6))
    yield from (Peer(f"zstd-{level}", "", zstd_at(level)) for level in ZSTD)
    yield from (Peer(f"shuffle+zstd-{level}", "", shuffled_zstd(level)) for level in ZSTD)
    yield from (Peer(name, "lz4", lz4_frame(level)) for name, level in (("lz4", 0), ("lz4hc-3", 3), ("lz4hc-9", 9)))
    for filters, codec, levels in BLOSC2:
        names = filters.upper().split()
        for level in levels:
            name = f"Blosc2 {filters.replace(' ', '+')} {codec.lower()}-{level}"
            yield Peer(name, "blosc2", blosc2_at(level, codec, names))
    yield from (Peer(f"pcodec-{level}", "pcodec", pcodec_at(level)) for level in PCODEC)
    yield Peer("ZipNN", "zipnn", zipnn_bytes)
    for name, exponents in OPENZL.items():
        for level in OPENZL_LEVELS:
            yield Peer(f"OpenZL {name}-{level}", "openzl", openzl_float("Compress", exponents, level))
