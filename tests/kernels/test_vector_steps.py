"""The laws of every kernel that a CPU runs in vectors: the scalar functions, which are CUDA's arithmetic as well.

Which vector steps these are depends on the CPU that kernels are compiled for: run with ``NUMBA_CPU_NAME=x86-64-v2
NUMBA_CPU_FEATURES=`` for those of a CPU without AVX.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from gcodec.dtypes import BY_CODE, BY_NAME
from gcodec.kernels.core import floats, scalar
from gcodec.kernels.core.bundles import Planes, Rounding
from gcodec.kernels.core.floats import widen_bfloat16, widen_half
from gcodec.kernels.entropy.encode_streams import STREAM_PAD
from gcodec.kernels.heads import column_references, symbols
from gcodec.kernels.levels import rounding
from gcodec.kernels.planes import layouts
from gcodec.kernels.planes.layout_types import GeneralPlanes, LongTails, NoPlanes, ShortTails, Tails8, Tails24
from gcodec.kernels.sample import count
from gcodec.memory import float_bits_of, scratch_for
from tests.kernels.test_kernels import ranges_of
from tests.support.bit_patterns import KINDS, gaussian, specials

TYPES = list(BY_CODE.values())
WITH_LEVELS = [kind for kind in BY_NAME.values() if kind.tail_bits]


def name_of(kind):
    """Return a type as the names of tests have it."""
    return f"{kind.name}, heads of {kind.head_bits}{' with the sign' if kind.fine_bits else ''}"


def values_of(kind, rng, n):
    """Return values around 1 and anything at all, zeros among them."""
    spec = KINDS[kind.name]
    values = gaussian(spec, rng, n, zeros=0.2) if kind.tail_bits else rng.integers(0, 256, n).astype(np.uint8)
    odd = rng.random(n) < 0.1
    values[odd] = rng.choice(specials(spec), odd.sum())
    return values


@pytest.mark.parametrize("kind", TYPES, ids=name_of)
def test_parts_of_a_value_are_those_of_plain_integers(kind):
    rng = np.random.default_rng(kind.bits)
    for bits in values_of(kind, rng, 200):
        word = int(bits)
        head = word >> kind.head_shift & kind.head_mask
        assert int(scalar.head_of(bits, kind.head_shift, kind.head_mask)) == head
        for difference in (-128, -1, 0, 127):
            moved = int(scalar.add_to_head(bits, difference, kind.head_shift, kind.head_mask))
            field = kind.head_mask << kind.head_shift
            assert moved == word & ~field | (head + difference & kind.head_mask) << kind.head_shift
            if kind.tail_bits:
                tail = scalar.tail_of(bits, kind.bits, kind.tail_bits)
                with_tail = scalar.value_of(
                    head + difference & kind.head_mask, bits.dtype.type(tail), kind.bits, kind.tail_bits
                )
                assert int(with_tail) == moved
        reference, first, size, number = (int(x) for x in rng.integers((0, -30, 0, 1), (256, 30, 60, 100)))
        offset = head - reference - first & kind.head_mask
        symbol = 0 if word == 0 else number + offset if offset < size else scalar.ESCAPE
        assert int(scalar.symbol_of(bits, reference, kind.head_shift, kind.head_mask, first, size, number)) == symbol
        relative = np.uint64(first + offset & kind.head_mask)
        assert int(scalar.head_of_symbol(relative, reference, kind.head_mask)) == head
        level, sign_bit = np.uint8(7), 1 << kind.bits - 1
        finite = word & sign_bit - 1 < kind.infinity
        assert int(scalar.level_of(bits, level, np.uint64(sign_bit), np.uint64(kind.infinity))) == (7 if finite else 0)
        if kind.tail_bits:
            tail = int(scalar.tail_of(bits, kind.bits, kind.tail_bits))
            below = kind.tail_bits - 1
            assert tail == word >> kind.bits - 1 << below | word & (1 << below) - 1
            parts = bits.dtype.type(head), bits.dtype.type(tail), kind.bits, kind.tail_bits
            assert int(scalar.value_of(*parts)) == word
            assert int(scalar.value_of_symbol(np.uint8(1), *parts)) == word
            assert int(scalar.value_of_symbol(np.uint8(0), *parts)) == 0
            for shift in range(0, kind.tail_bits, 3):
                item = int(scalar.item_of(bits.dtype.type(tail), np.uint8(shift), 7))
                assert item == tail >> shift & 7
                rest = bits.dtype.type(tail & ~(7 << shift))
                assert int(scalar.with_item(rest, item, np.uint8(shift))) == tail & (1 << kind.bits) - 1 & (
                    ~(7 << shift) | item << shift
                )


@njit
def _widen(halves, bfloats, out):
    for i in range(len(halves)):
        out[0, i] = floats.from_half(halves[i])
    for i in range(len(bfloats)):
        out[1, i] = floats.from_bfloat16(bfloats[i])


def test_every_float_of_16_bits_is_widened_exactly():
    bits, out = np.arange(1 << 16, dtype=np.uint32), np.zeros((2, 1 << 16), np.float32)
    halves = bits[np.isfinite(bits.astype(np.uint16).view(np.float16))]
    equal = halves.astype(np.uint16).view(np.float16).astype(np.float32)
    _widen(halves, bits, out)
    assert np.array_equal(out[0, : len(halves)].view(np.uint32), equal.view(np.uint32))
    assert [float(floats.from_half(x)) for x in halves[::7]] == equal[::7].tolist()
    assert np.array_equal(out[1].view(np.uint32), bits << 16)


def test_arrays_of_all_floats_of_16_bits_are_widened_exactly_with_infinities_and_nan():
    bits, out = np.arange(1 << 16, dtype=np.uint16), np.zeros(1 << 16, np.float32)
    widen_half(bits, out)
    assert np.array_equal(out, bits.view(np.float16).astype(np.float32), equal_nan=True)
    widen_bfloat16(bits, out)
    assert np.array_equal(out.view(np.uint32), bits.astype(np.uint32) << 16)


@given(st.integers(0, 1 << 23), st.integers(0, 1 << 14))
def test_means_and_references_are_those_of_plain_integers(total, number):
    for integer in (np.uint32, np.uint64):
        assert int(scalar.mean_of(integer(total), integer(number))) == total // max(number, 1)
        assert int(scalar.reference_of(integer(total), integer(number))) == max(total - number, 0)


@pytest.mark.parametrize("kind", TYPES, ids=name_of)
@given(st.integers(1, 700), st.sampled_from([64, 128, 512]), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_references_of_sub_streams_follow_the_scalar_law(kind, n, stream_len, zeros, seed):
    rng = np.random.default_rng(seed)
    values = values_of(kind, rng, n)
    values[rng.random(n) < zeros] = 0
    result = np.empty(-(-n // stream_len), np.uint32)
    base, width = symbols.find_references_from_values(values, stream_len, float_bits_of(kind), result)
    # The sign is in the head of types of one byte: magnitudes, from the middle on.
    mask, middle = (kind.head_mask, 0) if kind.tail_bits else (kind.head_mask >> 1, 64)
    means, numbers = [], []
    for first in range(0, n, stream_len):
        stream = values[first : first + stream_len]
        heads = [int(scalar.head_of(bits, kind.head_shift, mask)) >> kind.fine_bits for bits in stream[stream != 0]]
        numbers.append(len(heads))
        if kind.bits == 64:  # NaN, infinity, -0 and denormals have no part in the mean, unless there is nothing else
            heads = [head for head in heads if 0 < head < mask >> kind.fine_bits] or heads
        mean = int(scalar.mean_of(np.uint32(sum(heads)), np.uint32(len(heads)))) + middle
        means.append(max(mean - (2 if kind.fine_bits > 1 else 0), 0) << kind.fine_bits)
    used = [mean for mean, number in zip(means, numbers, strict=True) if number] or [0]
    assert (base, width) == (min(used), (max(used) - min(used)).bit_length())
    assert result.tolist() == [int(scalar.reference_of(np.uint32(mean), np.uint32(base))) for mean in means]


@pytest.mark.parametrize("kind", TYPES, ids=name_of)
@pytest.mark.parametrize("with_levels", [False, True])
@given(st.integers(1, 700), st.sampled_from([64, 128, 512]), st.booleans(), st.integers(0, 2**32 - 1))
def test_symbols_of_values_follow_the_scalar_law(kind, with_levels, n, stream_len, with_gaps, seed):
    if with_levels and (kind is not BY_NAME[kind.name] or not kind.tail_bits):
        return  # other heads than the usual one go with one level, as does a type without a tail
    rng, float_bits = np.random.default_rng(seed), float_bits_of(kind)
    values, scratch = values_of(kind, rng, n), scratch_for(kind, 1024, stream_len, NoPlanes, decode=False)
    some_levels = rng.integers(0, 8, n).astype(np.uint8)
    levels = some_levels if with_levels else None
    ranges, base = ranges_of(rng, 8 if with_levels else 1, with_gaps), int(rng.integers(0, 1 << kind.head_bits))
    scratch.references[:] = rng.integers(0, 5, len(scratch.references))
    symbols.find_symbols_from_values(values, levels, stream_len, float_bits, base, ranges, scratch)
    for i, bits in enumerate(values):
        s, level = i // stream_len, some_levels[i] if with_levels else np.uint8(0)
        level = int(scalar.level_of(bits, level, np.uint64(1 << kind.bits - 1), np.uint64(kind.infinity)))
        wanted = int(
            scalar.symbol_of(
                bits,
                base + int(scratch.references[s]),
                kind.head_shift,
                kind.head_mask,
                int(ranges.first[level]),
                int(ranges.counts[level]),
                int(ranges.number[level]),
            )
        )
        assert scratch.symbols[i + s * STREAM_PAD] == (ranges.coded[wanted] if with_gaps else wanted)


@pytest.mark.parametrize("kind", WITH_LEVELS, ids=name_of)
@given(st.integers(1, 300), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_rounded_values_follow_the_scalar_law(kind, n, with_levels, nearest, prune, seed):
    rng = np.random.default_rng(seed)
    values, out = values_of(kind, rng, n), np.empty(n, kind.uint)
    some_levels = rng.integers(0, 16, n).astype(np.uint8)
    levels = some_levels if with_levels else None
    drops = np.zeros(256, np.uint8)
    drops[:16] = rng.integers(0, kind.mantissa_bits, 16)
    settings = Rounding(drops, 16, nearest, prune)
    chunk = np.empty(rounding.ROUNDING_BYTES, np.uint8)
    rounding.round_values(values, levels, float_bits_of(kind), settings, chunk, None, out)
    sign_bit, smallest = 1 << kind.bits - 1, kind.smallest_normal
    for i, bits in enumerate(values):
        level, magnitude = some_levels[i] if with_levels else np.uint8(0), int(bits) & sign_bit - 1
        drop = int(drops[level])
        if kind.bits == 64:
            drop = int(drops[scalar.level_of(bits, level, np.uint64(sign_bit), np.uint64(kind.infinity))])
            size = scalar.round_magnitude(np.uint64(magnitude), np.uint64(drop), np.uint64(kind.infinity), nearest)
            wanted = 0 if prune and magnitude < smallest else int(size) | int(bits) & sign_bit
        else:
            words = [np.uint32(int(x)) for x in (bits, drop, drops[0], sign_bit, kind.infinity, smallest)]
            wanted = int(scalar.round_value(*words, nearest, prune))
        assert int(out[i]) == wanted


@pytest.mark.parametrize("kind", TYPES, ids=name_of)
@pytest.mark.parametrize("infinity", [False, True])
def test_column_references_follow_the_scalar_law(kind, infinity):
    rng = np.random.default_rng(kind.bits)
    for n in (1, 63, 64, 200):
        values, columns = values_of(kind, rng, n), rng.integers(-3, 4, n).astype(np.int8)
        if n == 63:  # nothing becomes zero, nor anything else infinite
            values, columns = np.full(n, 1 << kind.head_shift + 2, kind.uint), np.ones(n, np.int8)
        out, top = np.empty(n, kind.uint), kind.infinity if infinity else 0
        usable = column_references.remove_columns(
            values, n, columns, kind.head_shift, kind.head_mask, np.uint64(top), out
        )
        moved = [
            int(scalar.add_to_head(bits, -int(column), kind.head_shift, kind.head_mask)) if bits else 0
            for bits, column in zip(values, columns, strict=True)
        ]
        assert [int(bits) for bits in out] == moved
        magnitude = (1 << kind.bits - 1) - 1
        pairs = [(int(bits), after) for bits, after in zip(values, moved, strict=True)]
        crossed = any(((a & magnitude) < top) != ((b & magnitude) < top) for a, b in pairs)
        assert usable == (not crossed and not any(a and not b for a, b in pairs))
        marks = np.zeros(n + 4 * STREAM_PAD, np.uint8)
        for i in range(n):
            marks[i + i // 64 * STREAM_PAD] = values[i] != 0
        column_references.restore_columns(out, n, 64, marks, columns, kind.head_shift, kind.head_mask)
        assert np.array_equal(out, values)


class Spec(NamedTuple):
    """The fields of a SampleSpec that finding bins reads."""

    head_shift: int
    head_mask: int
    window: int
    center: int


@pytest.mark.parametrize("kind", TYPES, ids=name_of)
@pytest.mark.parametrize("with_levels", [False, True])
def test_bins_of_values_follow_the_scalar_law(kind, with_levels):
    rng = np.random.default_rng(kind.bits)
    values, bins = values_of(kind, rng, 333), np.empty(333, np.uint16)
    levels = rng.integers(0, 6, 333).astype(np.uint8)  # some beyond the last one
    origin, window, center = int(rng.integers(0, 1 << kind.head_bits)), 40, 25
    spec = Spec(kind.head_shift, kind.head_mask, window, center)
    count.find_bins(values, levels if with_levels else None, 4 if with_levels else 1, origin, spec, bins)
    for bits, level, result in zip(values, levels, bins, strict=True):
        head = np.uint32(int(bits) >> kind.head_shift & kind.head_mask)
        words = [np.uint32(x) for x in (origin, kind.head_mask, window, center)]
        plain = scalar.bin_of_head(head, *words) if bits else 0
        if kind.bits <= 32:
            shift = np.uint32(kind.head_shift)
            assert plain == scalar.bin_of(np.uint32(bits), words[0], shift, *words[1:])
        if with_levels:
            assert result == scalar.bin_of_level(np.uint32(plain), level, 3, window)
            assert result == (plain + window * min(level, 3) if plain > 1 else plain)
        else:
            assert result == plain


# Dispatch by layout happens in compiled code only. Numba inlines the calls and cannot do that with *args.


@njit
def _split(values, stream_len, float_bits, tables, planes, scratch, out, at):
    return layouts.split_planes(values, stream_len, float_bits, tables, planes, scratch, out, at)


@njit
def _count(n, stream_len, tables, planes, scratch):
    layouts.count_plane_items(n, stream_len, tables, planes, scratch)


@njit
def _merge(data, at, stream_len, float_bits, tables, planes, scratch, out):
    layouts.merge_planes(data, at, stream_len, float_bits, tables, planes, scratch, out)


@pytest.mark.parametrize(
    ("name", "head_bits", "widths", "layout"),
    [
        ("float32", 8, (24,), Tails24),
        ("bfloat16", 8, (8,), Tails8),
        ("bfloat16", 9, (7,), ShortTails),
        ("bfloat16", 12, (4,), ShortTails),
        ("float32", 9, (16, 7), LongTails),
        ("float32", 12, (16, 4), LongTails),
        ("float32", 8, (8,), Tails8),
    ],
)
@pytest.mark.parametrize("n", [1, 64, 100, 1000])
def test_planes_of_whole_tails_are_those_of_the_general_layout(name, head_bits, widths, layout, n):
    """The loops of the general layout call scalar.tail_of, item_of and their inverses one by one."""
    kind = next(kind for kind in TYPES if (kind.name, kind.head_bits) == (name, head_bits))
    rng, stream_len = np.random.default_rng(n), 512
    heads = rng.integers(100, 140, n).astype(kind.uint)
    values = (
        heads << kind.uint.type(kind.head_shift)
        | rng.integers(0, 1 << kind.head_shift, n).astype(kind.uint)
        | rng.integers(0, 2, n).astype(kind.uint) << kind.uint.type(kind.bits - 1)
    )
    n_dropped = kind.tail_bits - sum(widths)
    values &= kind.uint.type((1 << kind.bits) - (1 << n_dropped))
    values[rng.random(n) < 0.3] = 0
    one = kind.uint.type(120) << kind.uint.type(kind.head_shift)
    values[n // 128 * 64 :][:64] = one  # a group without zeros, where there is one
    base, n_planes = 90, len(widths)
    mark_of, shift, head_of = np.zeros(256, np.uint8), np.zeros((8, 256), np.uint8), np.zeros(256, np.uint16)
    mark_of[1:] = (1 << n_planes) - 1
    shift[0] = sum(widths[1:]) + n_dropped
    head_of[1:] = np.arange(5, 260)
    tables = layouts.PlaneTables(mark_of, shift, head_of, head_of.astype(np.uint8))
    planes = Planes(n_planes, np.array(widths, np.int64), np.full(8, -1), np.zeros(12, np.int64))
    results = []
    for which in (layout, GeneralPlanes):
        scratch = scratch_for(kind, 1024, stream_len, which, decode=False)
        scratch.symbols[:] = 0
        for i, bits in enumerate(values):
            head = int(bits) >> kind.head_shift & kind.head_mask
            scratch.symbols[i + i // stream_len * STREAM_PAD] = head - base - 4 if bits else 0
        out = np.zeros(8 * n + 200, np.uint8)
        end = _split(values, stream_len, float_bits_of(kind), tables, planes, scratch, out, 3)
        results.append(out[:end].copy())
        back = scratch_for(kind, 1024, stream_len, which, decode=True)
        assert back.bases is not None
        back.symbols[:], back.bases[:] = scratch.symbols, base
        _count(n, stream_len, tables, planes, back)
        assert (back.n_items[:n_planes] == np.count_nonzero(values)).all()
        merged = np.empty(n, kind.uint)
        _merge(out, 3, stream_len, float_bits_of(kind), tables, planes, back, merged)
        assert np.array_equal(merged, values)
    assert np.array_equal(results[0], results[1])
