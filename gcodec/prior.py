"""Codebooks that come with gcodec: small arrays name one instead of carrying their own, and a stream's first step has one to start with.

An id, once published, names the same codebook for ever (docs/format.md section 5). The records were fitted to the gradients and
parameters of the demo's two models, early and late in training, by ``python -m gcodec.demo.prior``.
"""

from __future__ import annotations

from functools import cache

from .codebook import Codebook, read_inline

#: (id, value types it suits, number of levels, head bits, inline record in hex)
RECORDS: tuple[tuple[int, tuple[str, ...], int, int, str], ...] = ()


@cache
def _books() -> dict[int, tuple[tuple[str, ...], int, Codebook]]:
    return {number: (types, n_levels, read_inline(bytes.fromhex(record), 0, n_levels, head_bits)[0])
            for number, types, n_levels, head_bits, record in RECORDS}


def find(codebook_id: int, digest: int) -> Codebook | None:
    """The shipped codebook with this id and hash."""
    known = _books().get(codebook_id)
    return known[2] if known is not None and known[2].hash == digest else None


def fitting(dtype: str, n_levels: int) -> list[tuple[int, Codebook]]:
    """(id, codebook) of those made for a value type (by name) and number of levels."""
    return [(number, book) for number, (types, levels, book) in _books().items() if dtype in types and levels == n_levels]
