"""Find the different values of an array, as long as they are few, and where among these each of its values is.

Values of 16 bits are counted, all 65536 of them. Longer ones are looked up by a hash: ``slots`` has the number of an
entry, plus 1, or 0 where there is none, in the slot that the value's bits lead to, or in the next that was free.

    slots      0  0  3  1  0  2 ...            entries    v0  v1  v2
                     |  +----- v0                          0   1   2
                     +-------- v2
"""

from __future__ import annotations

from ..core.jit import kernel
from ..core.scalar import U8, U16, U32, U64
from ..core.unaligned import subarray, width_of

#: Slots are a power of two, and so many that most values are found in their own; of a window, fewer, which are cleared.
MAX_DISTINCT, SLOTS_LOG2, MARKS_LOG2 = 256, 14, 10
_MIX = 0x9E3779B97F4A7C15  #: the upper bits of a product with 2**64 over the golden ratio are well mixed


@kernel
def _slot_of(value, slots, slots_log2, entries):
    """Return the slot of a value: where its number is, or where it belongs."""
    # The upper bits of 64. A free slot is always found: at most a quarter are taken.
    slot = U64(U64(value) * U64(_MIX)) >> U64(64 - slots_log2)
    while slots[slot] != 0 and entries[slots[slot] - 1] != value:
        slot = U64(slot + U64(1)) & U64((1 << slots_log2) - 1)
    return slot


@kernel
def add_distinct(values, slots, entries, n_entries):
    """Add the values that are not yet among the entries.

    Args:
        values: uintW[n].
        slots: uint16[2**SLOTS_LOG2], see above.
        entries: uintW[MAX_DISTINCT], the values that were found, in the order in which they were.
        n_entries: How many those are.

    Returns:
        How many there are now; -1 if they would be more than MAX_DISTINCT.
    """
    for i in range(len(values)):
        slot = _slot_of(values[i], slots, SLOTS_LOG2, entries)
        if slots[slot] == 0:
            if n_entries == MAX_DISTINCT:
                return -1
            entries[n_entries] = values[i]
            n_entries += 1
            slots[slot] = U16(n_entries)
    return n_entries


@kernel
def find_indices(values, slots, entries, absent, indices, counts):
    """Find the number of each value among the entries.

    Args:
        values: uintW[n].
        slots: uint16[2**SLOTS_LOG2].
        entries: uintW[MAX_DISTINCT].
        absent: uint8, stands for values that are no entries.
        indices: uint8[n], result.
        counts: int64[256], result: how often each is met is added.
    """
    for i in range(len(values)):
        slot = _slot_of(values[i], slots, SLOTS_LOG2, entries)
        index = U8(absent if slots[slot] == 0 else slots[slot] - 1)
        indices[i] = index
        counts[index] += 1


N_SHORT = 1 << 16  #: different values of 16 bits


@kernel
def count_short(values, counts):
    """Count values of 16 bits.

    Args:
        values: uint16[n].
        counts: uint32[N_SHORT], result: how often each is met is added.
    """
    for i in range(len(values)):
        counts[values[i]] += U32(1)


@kernel
def look_up_short(values, index_of, indices):
    """Write the index of each value of 16 bits.

    Args:
        values: uint16[n].
        index_of: uint8[N_SHORT].
        indices: uint8[n], result.
    """
    for i in range(len(values)):
        indices[i] = index_of[values[i]]


N_WINDOWS, WINDOW, _MIN_MET = 11, 64, 16
#: The share of a window's values that are different, at most, if there is something to be found. It is 0.91 of bytes
#: with a scale for 32 values, less of other numbers with scales and of few values. Normal values have 0.97 in bfloat16,
#: and more in other types.
_FEW_SHARE_OF_16_BITS, _FEW_SHARE = 0.94, 0.97


@kernel
def repeats_values(values, marks, seen):
    """Return True if most of some windows of neighboring values hold few different values; 0 and -0 do not count.

    Args:
        values: uintW[n], WINDOW or more.
        marks: uint16[2**MARKS_LOG2], scratch.
        seen: uintW[WINDOW], scratch.
    """
    magnitude = U64((1 << (width_of(values) - 1)) - 1)
    few_share = _FEW_SHARE_OF_16_BITS if width_of(values) == 16 else _FEW_SHARE
    n_few = 0
    for w in range(N_WINDOWS):
        start = (len(values) - WINDOW) * w // (N_WINDOWS - 1)
        window = subarray(values, start // WINDOW * WINDOW, WINDOW)  # of one group, where there are some
        for slot in range(1 << MARKS_LOG2):
            marks[slot] = U16(0)
        n_distinct, n_met = 0, 0
        for i in range(WINDOW):
            if U64(window[i]) & magnitude != 0:
                n_met += 1
                slot = _slot_of(window[i], marks, MARKS_LOG2, seen)
                if marks[slot] == 0:
                    seen[n_distinct] = window[i]
                    n_distinct += 1
                    marks[slot] = U16(n_distinct)
        n_few += n_met >= _MIN_MET and n_distinct <= few_share * n_met
        # Even if all windows that are left have few, it is not most of them.
        if 2 * (n_few + N_WINDOWS - 1 - w) < N_WINDOWS:
            return False
    return True
