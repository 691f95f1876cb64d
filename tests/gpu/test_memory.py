"""Memory that kernels read at an address is there until they have read it. Tensors whose memory is not where they say
are refused on the CUDA path: a kernel that read there would end the use of the device for the whole process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec import gpu

torch = pytest.importorskip("torch")
N = 60


def distributed(x: Any) -> Any:
    """Return a tensor as a distributed one of one rank."""
    tensor = pytest.importorskip("torch.distributed.tensor")
    return tensor.DTensor.from_local(x, tensor.init_device_mesh("cpu", (1,)), [tensor.Shard(0)])


def freed(x: Any) -> Any:
    """Return a part of a tensor, not its beginning, whose memory has been freed, as FSDP does."""
    whole = torch.cat([torch.zeros(8, dtype=x.dtype), x])
    whole.untyped_storage().resize_(whole.nbytes)
    part = whole[8:]
    whole.untyped_storage().resize_(0)
    return part


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("without_memory", "advice"), [(distributed, r"\.to_local\(\)"), (freed, "has been freed")])
def test_tensors_without_memory_are_refused_whatever_they_are_for(without_memory, advice, one_rank):
    from tests.gpu.cuda_torch import on_host, pretending

    def refused(call: Callable[[], Any], argument: str) -> None:
        with pytest.raises(gcodec.InvalidArgument, match=rf"{argument} must .*{advice}"):
            call()

    x, other = pretending(torch.linspace(1.0, 2.0, N)), without_memory(torch.linspace(1.0, 2.0, N))
    levels = without_memory(torch.zeros(N, dtype=torch.uint8))
    param = torch.nn.Parameter(other)
    optimizer = torch.optim.SGD([param], lr=0.1)
    frame = torch.frombuffer(bytearray(gcodec.encode(torch.linspace(1.0, 2.0, N))), dtype=torch.uint8)
    with on_host():
        room = without_memory(torch.zeros(gpu.max_frame_bytes(x), dtype=torch.uint8))
        refused(lambda: gpu.encode_batch([x, other]), "x")
        refused(lambda: gcodec.encode(x, base=other), "base")
        refused(lambda: gcodec.encode(x, levels=levels), "levels")
        refused(lambda: gcodec.encode(x, optimizer=optimizer, param=param), "param")
        refused(lambda: gpu.levels_batch(optimizer, [param], [x]), "param")
        refused(lambda: gpu.start_batch([x], out=room), "out")
        refused(lambda: gcodec.decode(pretending(frame), out=other), "out")
        refused(lambda: gcodec.decode(without_memory(frame), device="cuda"), "data")


def test_tensors_within_transforms_are_refused():
    from tests.gpu.cuda_torch import on_host, pretending

    x = pretending(torch.ones(2, N))

    def inside(row: Any) -> Any:
        with pytest.raises(gcodec.InvalidArgument, match=r"base must .*torch\.func"):
            gcodec.encode(x[0], base=row)
        return row.sum()

    with on_host():
        torch.func.vmap(inside)(torch.ones(2, N))


class Table(NamedTuple):
    words: Any


def test_tables_that_are_kept_keep_their_memory_until_others_take_their_place():
    """Kernels take them by address: memory that torch had again would hold something else when they read it."""
    from gcodec.gpu import gpu_memory
    from tests.gpu.cuda_torch import TorchOnHost

    memory, tensors = TorchOnHost(None), []

    def make() -> Table:
        words = memory.send(np.arange(5, dtype=np.uint32))
        tensors.append(weakref.ref(words.tensor))
        return Table(words)

    keys = [("a test", k) for k in range(gpu_memory._N_KEPT)]
    for key in keys:
        memory.kept(key, make)
    gc.collect()
    assert all(tensor() is not None for tensor in tensors) and len(tensors) == len(keys)
    assert memory.kept(keys[0], make) is memory.kept(keys[0], make) and len(tensors) == len(keys)
    memory.kept(("a test", "another"), make)
    gc.collect()
    assert [tensor() is None for tensor in tensors] == [False, True, *[False] * (len(keys) - 1)]


def test_hashes_take_the_words_that_a_device_keeps():
    import xxhash

    from tests.gpu.cuda_torch import on_host, pretending

    x = torch.arange(5000, dtype=torch.int16).view(torch.uint8)
    with on_host():
        for part in (x, x[8:], x[3:]):
            assert gpu.device_hashes([pretending(part)]) == [xxhash.xxh3_64_hexdigest(part.numpy().tobytes())]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), gcodec.LimitExceeded),
        (RuntimeError("Storage size calculation overflowed"), gcodec.LimitExceeded),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), torch.AcceleratorError),
    ],
)
def test_a_fault_of_the_device_is_no_lack_of_memory(error, kind, monkeypatch):
    """A fault comes up in whatever asks the device for something next, which is often a request for memory."""
    from tests.gpu.cuda_torch import TorchOnHost, on_host, pretending

    def new(self: Any, kinds: Any) -> Any:
        raise error

    frame = torch.frombuffer(bytearray(gcodec.encode(torch.linspace(1.0, 2.0, N))), dtype=torch.uint8)
    monkeypatch.setattr(TorchOnHost, "new", new)
    with on_host(), pytest.raises(kind, match=str(error)):
        gcodec.decode(pretending(frame))


def test_a_result_that_shares_memory_with_what_it_is_made_of_is_refused():
    """Blocks are written while others are read: a frame would hold other values, and its checksums would be right."""
    from tests.gpu.cuda_torch import on_host, pretending

    with on_host():
        x = pretending(torch.empty(5000).uniform_(1, 2, generator=torch.Generator().manual_seed(0)))
        size = gpu.max_frame_bytes(x)
        room = pretending(torch.zeros(2 * size + 40_000, dtype=torch.uint8))
        for begin, is_apart in ((0, False), (size - 16, False), (size // 8 * 8 + 8, True)):
            moved = pretending(room[begin : begin + x.nbytes].view(torch.float32).copy_(x))
            levels = pretending(room[begin : begin + x.numel()])
            if is_apart:
                gcodec.encode(moved, out=room[:size])
                assert torch.equal(moved, x) and torch.equal(gcodec.decode(room[:size]), x)
                assert torch.equal(gcodec.decode(room, out=moved), x)  # behind the frame in the same tensor
                continue
            with pytest.raises(gcodec.InvalidArgument, match="out and x share memory"):
                gcodec.encode(moved, out=room[:size])
            with pytest.raises(gcodec.InvalidArgument, match="out and levels share memory"):
                gcodec.encode(x, levels=levels.zero_(), out=room[:size])
            frame = gcodec.encode(x)
            room[: len(frame)] = frame
            last = len(frame) // 8 * 8 - 8
            for begin_of_out in (begin % last, last):
                result = pretending(room[begin_of_out : begin_of_out + x.nbytes].view(torch.float32))
                with pytest.raises(gcodec.InvalidArgument, match="out and the frame share memory"):
                    gcodec.decode(room[:size], out=result)
