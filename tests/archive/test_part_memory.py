"""Memory of parts: used again when nobody has a view of it, and never before; small parts handed out together."""

from __future__ import annotations

import gc
import io
import tracemalloc
from itertools import pairwise
from threading import get_ident
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.part_memory import PartMemory, Rooms
from gcodec.threads import WorkPool, ordered_map

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


def test_no_more_pieces_are_kept_than_asked_for():
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


@pytest.mark.parametrize("sizes", [[], [5], [1] * 40, [1 << 20] * 7, [1, 1 << 21, 1, 1, 1 << 19, 1 << 19, 1] * 3])
def test_items_are_mapped_in_order_whatever_their_sizes(sizes):
    items = list(enumerate(sizes))
    with WorkPool(2) as pool:
        done = list(ordered_map(pool, lambda item: item[0], items, 3, lambda item: item[1]))
    assert done == list(range(len(sizes)))


@pytest.mark.parametrize("window", [1, 2, 3])
def test_the_next_items_are_handed_out_before_the_caller_goes_on_with_a_result(window):
    handed_out: list[int] = []

    class Pool(WorkPool):
        def submit(self, function, /, *args):
            handed_out.append(1)
            return super().submit(function, *args)

    with Pool(2) as pool:
        for place, result in enumerate(ordered_map(pool, abs, range(8), window, lambda number: SIZE)):
            assert (result, len(handed_out)) == (place, min(place + 1 + window, 8))


@pytest.mark.parametrize("size", [1, 1 << 18, 1 << 21])
def test_what_comes_before_an_error_is_given_out(size):
    def inverse(number):
        return 1 / (6 - number)

    done: list[float] = []
    with WorkPool(2) as pool, pytest.raises(ZeroDivisionError):
        done.extend(ordered_map(pool, inverse, range(9), 3, lambda number: size))
    assert done == [inverse(number) for number in range(6)]


def test_many_small_tensors_come_back_from_an_archive_of_many_batches():
    random = np.random.default_rng(0)
    tensors = {
        f"t{number}": random.standard_normal(int(size), np.float32)
        for number, size in enumerate(random.integers(0, 1 << 14, 150))
    }
    tensors["none"] = np.zeros((0, 3), np.float32)
    for threads in (1, 3):
        stream = io.BytesIO()
        gcodec.save_file(tensors, stream, threads=threads)
        stream.seek(0)
        loaded = gcodec.load_file(stream, threads=threads)
        assert list(loaded) == list(tensors)
        assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)


def no_thread(*_):
    raise RuntimeError("can't create new thread at interpreter shutdown")


def short_lived_thread(function, arguments):
    """A thread that ends before its first step, as one does for which there is no memory."""


@pytest.mark.parametrize("start", [no_thread, short_lived_thread])
def test_work_is_done_by_the_caller_when_no_thread_takes_it(monkeypatch, start):
    tensors = {name: np.arange(1 << 20, dtype=np.float32) for name in "abc"}
    monkeypatch.setattr(gcodec.threads, "start_new_thread", start)
    stream = io.BytesIO()
    gcodec.save(tensors, stream, threads=2)
    stream.seek(0)
    loaded = gcodec.load(stream, threads=2)
    assert all(np.array_equal(loaded[name], tensors[name]) for name in tensors)
    publisher = gcodec.sync.Publisher(threads=2)
    publisher.publish(tensors)
    assert publisher.publish({**tensors, "a": tensors["b"] + 1}).number == 2
    with WorkPool(1) as pool:
        call = pool.submit(lambda: 1 / 0)
        assert list(pool.map(abs, [-1, 2])) == [1, 2]
        with pytest.raises(ZeroDivisionError):
            call.result()


def test_the_threads_of_a_pool_end_with_it():
    for close in (lambda pool: pool.shutdown(), lambda pool: None):
        pool = WorkPool(3)
        assert sorted(pool.map(abs, range(-30, 30))) == sorted(map(abs, range(-30, 30)))
        threads = pool._threads
        assert 1 <= len(threads) <= 3
        close(pool)
        del pool
        for thread in list(threads):
            while thread() is not None:  # the test's own limit of time ends this
                gc.collect()
        assert threads == []


def test_arrays_that_are_read_together_lie_apart_in_few_large_pieces_of_memory():
    sizes = [number * 40_000 % 900_001 for number in range(60)] + [3 << 20, 0, 1, 17 << 20]
    rooms = Rooms(sizes)
    arrays = [rooms.take(size) for size in sizes]
    places = sorted((array.ctypes.data, array.ctypes.data + array.size) for array in arrays if array.size)
    assert [array.size for array in arrays] == sizes
    assert all(end <= begin for (_, end), (begin, _) in pairwise(places))
    assert all(array.flags.writeable and array.ctypes.data % 16 == 0 for array in arrays if array.size)
    owners = {id(array if array.base is None else array.base) for array in arrays if array.size > 1}
    assert (
        len(owners) <= 3
    )  # memory for all but the largest, the largest, and the rest of fewer bytes than a large page
    assert arrays[-1].ctypes.data % (1 << 21) == 0


@pytest.mark.parametrize("like", ["numpy", "torch"])
def test_many_arrays_of_an_archive_are_read_to_memory_that_none_shares(like, tmp_path):
    pytest.importorskip("torch") if like == "torch" else None
    rng = np.random.default_rng(4)
    arrays = {
        f"{number}.{size}": rng.standard_normal(size).astype(kind)
        for number, (size, kind) in enumerate(
            (size, kind)
            for size in (3, 900, 20_000, 300_000)
            for kind in ("float32", "float64", "int32")
            for _ in range(4)
        )
    }
    gcodec.save_file(arrays, tmp_path / "x.gc")
    loaded = gcodec.load_file(tmp_path / "x.gc", like=like)
    for name, array in loaded.items():
        assert np.array_equal(array, arrays[name])
        array[:] = 0
    assert not any(np.asarray(array).any() for array in loaded.values())


@pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable)")
@pytest.mark.parametrize("way", ["load", "load_file", "load_into", "distributed checkpoint"])
def test_many_tensors_are_decoded_by_threads_ahead_of_their_reader(way, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    model = torch.nn.ModuleList(torch.nn.Linear(600, 600) for _ in range(5))  # each weight is a batch for a thread
    state, decoding, unpacked = model.state_dict(), set[int](), ArchiveReader._unpacked

    def noted(self: ArchiveReader, item: Any) -> Any:
        decoding.add(get_ident())
        return unpacked(self, item)

    monkeypatch.setattr(ArchiveReader, "_unpacked", noted)
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    if way == "distributed checkpoint":
        from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter

        torch.distributed.checkpoint.save(state, storage_writer=CheckpointWriter(tmp_path))
        torch.distributed.checkpoint.load(found, storage_reader=CheckpointReader(tmp_path, threads=2))
    elif way == "load_into":
        gcodec.save_file(state, tmp_path / "x.gc")
        other = torch.nn.ModuleList(torch.nn.Linear(600, 600) for _ in range(5))
        gcodec.load_into(other, tmp_path / "x.gc", threads=2)
        found = other.state_dict()
    else:
        (gcodec.save if way == "load" else gcodec.save_file)(state, tmp_path / "x.gc")
        decoding.clear()
        found = getattr(gcodec, way)(tmp_path / "x.gc", threads=2)
    assert decoding - {get_ident()}
    assert all(torch.equal(found[name], tensor) for name, tensor in state.items())


def test_tensors_that_were_read_leave_memory_while_others_are_read(tmp_path):
    arrays = {str(number): np.full(1 << 20, number, np.float32) for number in range(60)}
    gcodec.save_file(arrays, tmp_path / "x.gc")
    with ArchiveReader(tmp_path / "x.gc", threads=2) as archive:
        (entry,) = archive.files
        tracemalloc.start()
        try:
            for view, array in zip(
                entry.tensors, archive.arrays([(entry, view) for view in entry.tensors], "numpy"), strict=True
            ):
                assert (array == np.float32(int(view.name))).all()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 120 << 20  # of 240 MiB in all


@pytest.mark.parametrize("load", [gcodec.load, gcodec.load_file])
def test_tensors_that_go_to_a_device_leave_no_copy_in_host_memory(load, tmp_path):
    torch = pytest.importorskip("torch")
    gcodec.save({str(number): torch.full((1 << 20,), float(number)) for number in range(60)}, tmp_path / "x.gc")
    tracemalloc.start()
    try:
        state = load(tmp_path / "x.gc", device="meta", threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(tensor.is_meta for tensor in state.values()) >= 60
    assert peak < 120 << 20  # of 240 MiB in all
