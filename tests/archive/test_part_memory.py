"""Memory of parts: used again when nobody has a view of it, and never before."""

from __future__ import annotations

import gc

import numpy as np

from gcodec.archive.part_memory import PartMemory

SIZE = 1 << 20


def test_memory_is_used_again_only_when_all_views_are_gone():
    memory = PartMemory(2)
    first = memory.take(SIZE - 5)
    assert (first.size, first.dtype.name, first.flags.writeable) == (SIZE - 5, "uint8", True)
    start = first.ctypes.data
    views = [first[10:20], first[: 1 << 10].view(np.uint16), first.data[5:], np.frombuffer(first[3:].data, np.uint8)]
    del first
    while views:
        assert memory.take(SIZE).ctypes.data != start
        views.pop()
        gc.collect()
    assert start in {array.ctypes.data for array in [memory.take(SIZE - 1) for _ in range(3)]}


def test_so_many_pieces_are_kept():
    memory = PartMemory(2)
    arrays = [memory.take(SIZE + number) for number in range(5)]
    starts = {array.ctypes.data for array in arrays}
    assert len(starts) == 5
    for number, array in enumerate(arrays):
        array[:] = number
    assert [int(array.max()) for array in arrays] == list(range(5))
    del arrays, array
    assert len(memory._free[2 * SIZE]) == 2
    assert memory.take(1000).size == 1000
