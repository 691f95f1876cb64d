"""Swap the sign of values and a bit of their heads (codes 16 to 21 of docs/format.md section 2), and find out whether
that is worth it.

    value       s eeeeeeee m mmmmmm      bfloat16: code 2 takes eeeeeeee for the head
    turned      m eeeeeeee s mmmmmm      code 16: head eeeeeeees, tail m mmmmmm

A turned value has head and tail where values with other heads have them, so that all other kernels do the same with it
as with those. Turning it once more gives the value; 0 stays 0.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.logarithms import log2_fixed
from ..core.scalar import U32, head_of, shift_left, shift_right, wrap
from ..core.unaligned import subarray, width_of

MAX_TOLD_HEADS = 256  #: heads that :func:`bits_tell` tells apart
_RUNS, _RUN = 32, 64  #: in so many places, so many values in a row are looked at
_TURN = 1234567  #: by which these places change from one to the next, beside even steps
_MIN_SEEN = 4  #: a head must occur so many times as often as there are numbers that follow it
#: What bits in the head have to save for each value, in 1/256 bits; and for each number that may follow a head, because
#: it seems to save about half of that by chance alone.
_MIN_SAVED, _CHANCE = 13, 370
#: What mantissa bits have to save beside the sign: a frame must be smaller by more if they are to be worth their time.
_MIN_SAVED_BESIDE = 38


@kernel
def turned(bits, width, head_shift):
    """Return a value of any width, computed in its type, with its highest bit and bit ``head_shift`` swapped."""
    #     bits        s eeeeeeee m mmmmmm      differ = s ^ m
    #     flipped     ^          ^             both are flipped where they differ, which swaps them; no branch
    differ = wrap((shift_right(bits, width - 1) ^ shift_right(bits, head_shift)) & wrap(1, bits), bits)
    return wrap(bits ^ wrap(shift_left(differ, width - 1) | shift_left(differ, head_shift), bits), bits)


@kernel
def turn_values(values, head_shift, out):
    """Turn values by :func:`turned`.

    Args:
        values: uintW[n].
        head_shift: Bits below the head.
        out: uintW[n], result.
    """
    width, n = width_of(values), len(values)
    source, result = subarray(values, 0, n), subarray(out, 0, n)
    for i in range(n):
        result[i] = turned(source[i], width, head_shift)


@kernel
def turn_in_place(values, head_shift):
    """Turn uintW[n] by :func:`turned`: of one array, of which LLVM knows that it does not overlap with itself."""
    width = width_of(values)
    for i in range(len(values)):
        values[i] = turned(values[i], width, head_shift)


@kernel
def _saved(counts, n_bits, total):
    """Return the bits, in 1/256, that ``n_bits`` of values with one head save in it; ``counts``: uint32[1 << n_bits],
    how many have each number, of ``total`` values in all."""
    if total < _MIN_SEEN << n_bits:
        return np.int64(0)
    known = np.int64(0)
    for k in range(1 << n_bits):
        if counts[k]:
            known += np.int64(counts[k]) * log2_fixed(counts[k])
    # n_bits each as they are, less what they take at their entropy, which is total * log2(total) - sum of c * log2(c),
    # less what chance alone seems to save.
    return np.int64(total * n_bits * 256 + known - total * log2_fixed(total) - ((1 << n_bits) - 1) * _CHANCE)


@kernel
def bits_tell(values, head_shift, n_more, counts):
    """Return whether signs of an array can be guessed from the heads, by some of its values: 1; or signs and mantissa
    bits: 2; or both: 3. To what is not 0, 4 is added where all of these values have the same sign.

        value        s hhhhhhhh mmm mmmm
        number                  mmms      which may be worth a place in the head; ``n_more`` bits and the sign

    What they save is what they take by themselves, a bit each, less what they take where the head is known.

    Args:
        values: uintW[n], or values of W bits in the upper bits of wider ones.
        head_shift: Bits below the head, the usual one, in ``values``.
        n_more: Mantissa bits; 0 to ask for signs alone.
        counts: uint32[2, MAX_TOLD_HEADS << n_more + 1 or more], scratch.
    """
    n, sign_shift, size = len(values), width_of(values) - 1, MAX_TOLD_HEADS << n_more + 1
    mask, more_mask, n_seen, n_negative = MAX_TOLD_HEADS - 1, (1 << n_more) - 1, 0, 0
    # Counters of their own for every other value: an addition to the same one waits for that before.
    both = subarray(counts, 0, 2 * size)
    for k in range(2 * size):
        both[k] = U32(0)
    step = max(n // _RUNS, _RUN)
    for run in range((n + step - 1) // step):
        # Not in the same place of each step: values of two kinds may come in turns.
        first = run * step + run * _TURN % (step - _RUN + 1)
        for i in range(first, min(first + _RUN, n)):
            head, more = head_of(values[i], head_shift, mask), head_of(values[i], head_shift - n_more, more_mask)
            #     counts      | head 0: number 0, 1 ... | head 1: number 0, 1 ... | ...      2 << n_more for each
            number = np.int64(more) << 1 | np.int64(shift_right(values[i], sign_shift))
            if values[i]:
                both[(i & 1) * size + (np.int64(head) << n_more + 1 | number)] += U32(1)
                n_seen += 1
                n_negative += number & 1
    even, odd = subarray(counts, 0, size), subarray(counts, size, size)
    of_sign, of_all = -_MIN_SAVED * n_seen, -_MIN_SAVED * n_seen
    signs, n_numbers = subarray(odd, 0, 2), 2 << n_more
    for first in range(0, size, n_numbers):
        numbers, others, total = subarray(even, first, n_numbers), subarray(odd, first, n_numbers), np.int64(0)
        for k in range(n_numbers):
            numbers[k] += others[k]
            total += np.int64(numbers[k])
        if total < 2 * _MIN_SEEN:  # most heads do not occur
            continue
        of_all += _saved(numbers, n_more + 1, total)
        signs[0], signs[1] = U32(0), U32(0)  # of each sign, whatever the mantissa bits are
        for k in range(n_numbers):
            signs[k & 1] += numbers[k]
        of_sign += _saved(signs, 1, total)
    beside = of_all - max(of_sign, np.int64(0)) - _MIN_SAVED_BESIDE * n_seen
    tell = np.int64(of_sign > 0) + 2 * (n_more > 0 and of_all > 0 and beside > 0)
    return tell + 4 * (tell > 0 and (n_negative == 0 or n_negative == n_seen))
