"""Tensors whose memory is not where they say are refused on the CUDA path: a kernel that read there would end the use
of the device for the whole process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
