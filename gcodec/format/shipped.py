"""Codebooks that come with gcodec: small arrays name one instead of carrying their own, and a stream's first step
has one to start with.

An id, once published, names the same codebook for ever (docs/format.md section 5). The records were fitted to the
gradients and parameters of the demo's two models, early and late in training, by ``python -m tools.fit_shipped``.
"""

from __future__ import annotations

from functools import cache

from .change_codebook import ChangeCodebook
from .codebook import Codebook, read_inline
from .shipped_changes import find_changes

#: (id, value types it suits, number of levels, head bits, inline record in hex)
RECORDS: tuple[tuple[int, tuple[str, ...], int, int, str], ...] = (
    (1, ("float32", "bfloat16"), 1, 8, "00010000e5002f00c2ccccccccab9999bbbcab8977563432649888a99999cacc0c000000"),
    (2, ("float32", "bfloat16"), 1, 8, "00010000f0001a00c1cccccccc9a886756335388c9cc0000"),
    (
        3,
        ("float16",),
        1,
        8,
        "00010000ba008b00c2cccccccccccccccccccccccbcbccbbbabaaa9a99999999898888777777776766666656555555555566"
        "666676878899a9aababbbbcccccccccccccccccccccccccccccccccc0c00",
    ),
    (
        4,
        ("float16",),
        1,
        8,
        "00010000b8007800c1ccccccccccccccccccccccccccccbcbbaabbbbabbbb9abaaaa9a9a9999888888888777674366666666"
        "76778798a9babbbbbbcccccccccccccccccccc000000",
    ),
    (
        5,
        ("float32",),
        8,
        8,
        "00080000e7002a00ed002400ea002800e9002600ea002200e8001f00f4001100ef000f00c2ccccccccbbcbccccccccab8967"
        "5597bbcbccccbbcbccccbbccccccccccbc795586cabbccbbccccccccbcaacbccccccccac684554a8aabaabbacbcccccccccc"
        "cccccccccc9b68565597bbcccccccccccccccccccccccc9a88685586cbccccccccccccccccccccccbcaa897898cbcccccccc"
        "bcaacbcccccccccccccccccccc0c",
    ),
    (
        6,
        ("float32",),
        4,
        8,
        "00040000e5002e00e7002d00e6002800ea001d00c2ccccccccccabbaccccccbcab79564485aaaacbabaacbccccccccbcaaba"
        "cccccccc9b67454375a999aaaabaccccccccccccccccccccccbc9a89675665b8cccccccccccccccccccccccbbbaacacccccc"
        "cc000000",
    ),
)


@cache
def _books() -> dict[int, tuple[tuple[str, ...], int, Codebook]]:
    return {
        number: (types, n_levels, read_inline(bytes.fromhex(record), 0, n_levels, head_bits)[0])
        for number, types, n_levels, head_bits, record in RECORDS
    }


def find(codebook_id: int, digest: int) -> Codebook | ChangeCodebook | None:
    """Return the shipped codebook with this id and hash, or None."""
    entry = _books().get(codebook_id)
    if entry is None:
        return find_changes(codebook_id, digest)
    return entry[2] if entry[2].hash == digest else None


def fitting(dtype: str, n_levels: int) -> list[tuple[int, Codebook]]:
    """Return id and codebook of all that were made for a value type and a number of levels.

    Args:
        dtype: Name of the value type.
    """
    return [
        (number, book) for number, (types, levels, book) in _books().items() if dtype in types and levels == n_levels
    ]
