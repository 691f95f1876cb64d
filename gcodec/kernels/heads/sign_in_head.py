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
def bits_tell(values, head_shift, n_more, counts):
    """Return whether signs and mantissa bits of an array can be guessed from the heads, by some of its values.

        value        s hhhhhhhh mmm mmmm
        number                  mmms      which may be worth a place in the head; ``n_more`` bits and the sign

    What they save is what they take by themselves, a bit each, less what they take where the head is known.

    Args:
        values: uintW[n], or values of W bits in the upper bits of wider ones.
        head_shift: Bits below the head, the usual one, in ``values``.
        n_more: Mantissa bits.
        counts: uint32[MAX_TOLD_HEADS << n_more + 1], zeros; overwritten.
    """
    n, sign_shift, n_numbers = len(values), width_of(values) - 1, 2 << n_more
    mask, more_mask, n_seen = MAX_TOLD_HEADS - 1, (1 << n_more) - 1, 0
    step = max(n // _RUNS, _RUN)
    for run in range((n + step - 1) // step):
        # Not in the same place of each step: values of two kinds may come in turns.
        first = run * step + run * _TURN % (step - _RUN + 1)
        for i in range(first, min(first + _RUN, n)):
            head, more = head_of(values[i], head_shift, mask), head_of(values[i], head_shift - n_more, more_mask)
            #     counts      | head 0: number 0, 1 ... | head 1: number 0, 1 ... | ...      2 << n_more for each
            number = np.int64(more) << 1 | np.int64(shift_right(values[i], sign_shift))
            if values[i]:
                counts[np.int64(head) << n_more + 1 | number] += U32(1)
                n_seen += 1
    saved = -_MIN_SAVED * n_seen
    for first in range(0, MAX_TOLD_HEADS << n_more + 1, n_numbers):
        total, known = np.int64(0), np.int64(0)
        for k in range(first, first + n_numbers):
            if counts[k]:
                total += np.int64(counts[k])
                known += np.int64(counts[k]) * log2_fixed(counts[k])
        # Of `total` values with one head: n_more + 1 bits each as they are, less what they take at their entropy, which
        # is total * log2(total) - sum of c * log2(c), less what chance alone seems to save. In 1/256 bits.
        if total >= _MIN_SEEN * n_numbers:
            saved += total * (n_more + 1) * 256 + known - total * log2_fixed(total) - (n_numbers - 1) * _CHANCE
    return saved > 0
