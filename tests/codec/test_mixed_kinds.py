"""Blocks of one frame are of whichever kinds make them small: sparse where little differs from the base, others where
much does."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import gcodec
from tests.codec.test_sparse import WITHOUT, changed, kinds_of, weights
from tests.support import laws
from tests.support.bit_patterns import KINDS, Bits, multiples, typed

#: Of each part of an array, in blocks of the encoder: its length, and the share of its values that differ; where it is
#: negative, most of those that do are drawn anew. In the first two, too much differs for sparse blocks alone.
PARTS = ([(3.5, -1.0), (3, 0.01)], [(1, 0.02), (1, -0.8), (1, 0), (1, -0.9), (1, -0.9)], [(3, 0.003), (0.6, -1.0)])
SPARSE = 4


def block_of(dtype: str) -> int:
    """Return the values in a block of a frame with blocks of several kinds."""
    return 1 << (15 if KINDS[dtype].container.itemsize == 1 else 14)


def made_of(dtype: str, parts: Sequence[tuple[float, float]], rng: np.random.Generator) -> list[tuple[Bits, Bits]]:
    """Draw parts of an array, and what they were before."""
    kind, made = KINDS[dtype], []
    for n_blocks, share in parts:
        base = weights(kind, rng, int(n_blocks * block_of(dtype)))
        bits = changed(kind, rng, base, abs(share))
        if share < 0:
            far = (bits != base) & (rng.random(len(bits)) < 0.9)
            bits[far] = weights(kind, rng, int(np.count_nonzero(far)))
        made.append((bits, base))
    return made


@pytest.mark.parametrize("parts", PARTS, ids=["two halves", "in turns", "a moved end"])
@pytest.mark.parametrize("dtype", KINDS)
def test_each_block_is_of_the_kind_that_suits_it(dtype, parts):
    made = made_of(dtype, parts, np.random.default_rng(1))
    bits, base = (np.concatenate(both) for both in zip(*made, strict=True))
    options: dict[str, Any] = {"dtype": dtype, "base": typed(dtype, base)}
    frame = laws.check_round_trip(typed(dtype, bits), bits, **options)
    kinds = kinds_of(frame)
    assert SPARSE in kinds
    assert len(kinds) > 1
    assert len(frame) < len(gcodec.encode(typed(dtype, bits), options=WITHOUT, **options))
    alone = sum(len(gcodec.encode(typed(dtype, new), dtype=dtype, base=typed(dtype, old))) for new, old in made)
    # Between two parts lies a block of both, in which the few changes of one are stored as the other's values are.
    n_borders = sum(float(n_blocks) % 1 > 0 for n_blocks, _ in parts[:-1])
    assert len(frame) <= 1.02 * alone + 64 * -(-len(bits) // block_of(dtype)) + n_borders * bits.itemsize * (
        block_of(dtype) // 2
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_frames_of_several_kinds_obey_every_law_of_frames(dtype):
    made = made_of(dtype, PARTS[1], np.random.default_rng(2))
    bits, base = (np.concatenate(both) for both in zip(*made, strict=True))
    frame = gcodec.encode(typed(dtype, bits), dtype=dtype, base=typed(dtype, base))
    assert len(kinds_of(frame)) > 1
    laws.check_agreement(frame, base=base)
    laws.check_threads(typed(dtype, bits), frame, dtype=dtype, base=typed(dtype, base))
    laws.check_random_access(frame, Random(3), typed(dtype, base))
    held = typed(dtype, base.copy())
    assert gcodec.decode(frame, base=held, out=held) is held
    laws.assert_same_bits(held, bits)
    for at in np.linspace(100, len(frame) - 1, 40).astype(int):
        spoilt, held = bytearray(frame), typed(dtype, base.copy())
        spoilt[at] ^= 0x10
        with pytest.raises(gcodec.GcodecError):
            gcodec.decode(bytes(spoilt), base=held, out=held)
        laws.assert_same_bits(held, base)


@pytest.mark.parametrize(("dtype", "spread"), [("bfloat16", 1e-3), ("float32", 1e-6)])
def test_a_base_beside_rows_that_are_alike_is_named_once(dtype, spread):
    kind, rng, block = KINDS[dtype], np.random.default_rng(4), block_of(dtype)
    bits = multiples(kind, rng, (8 * block // 256, 256), noise=spread)
    base = changed(kind, rng, bits.ravel(), 0.005)
    base[4 * block :] = weights(kind, rng, 4 * block)
    base = base.reshape(bits.shape)
    frame = laws.check_round_trip(typed(dtype, bits), bits, dtype=dtype, base=typed(dtype, base))
    assert {3, SPARSE} <= kinds_of(frame)
    assert frame[15] == 2  # templates: the row and the base
