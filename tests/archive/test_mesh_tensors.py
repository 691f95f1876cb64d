"""Tensors that are distributed over a mesh: each rank saves its part, and gets its tensor back on the same mesh."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist
import torch.distributed.tensor as tensors
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import gcodec
from gcodec.archive.own_classes import KnownClasses
from gcodec.archive.structure import flatten, rebuild
from gcodec.errors import Corruption, InvalidArgument, Unsupported


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    """Return a mesh of two by two ranks, of which this process is the third; the others do not exist."""
    dist.init_process_group("fake", store=FakeStore(), rank=2, world_size=4)
    yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    dist.destroy_process_group()


def placed(mesh: Any, part: Any, *placements: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return a distributed tensor with this part."""
    whole = torch.empty(shape or tuple(part.shape), device="meta")
    return tensors.DTensor.from_local(part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def state(mesh: Any) -> dict[str, Any]:
    """Return a state as of a sharded model."""
    shard, copy, sums = tensors.Shard, tensors.Replicate(), tensors.Partial("avg")
    weight = torch.arange(60_000.0).reshape(300, 200)
    return {
        "weight": torch.nn.Parameter(placed(mesh, weight, shard(0), copy, shape=(600, 200))),
        "tied": placed(mesh, weight, shard(0), copy, shape=(600, 200)),
        "both": placed(mesh, weight[:3].bfloat16(), shard(0), shard(1), shape=(5, 400)),
        "sums": placed(mesh, torch.ones(3), sums, copy),
        "nothing": placed(mesh, torch.zeros(0, 4), shard(0), copy, shape=(1, 4)),
        "number": placed(mesh, torch.tensor(3.0), copy, copy),
        "plain": torch.ones(2),
    }


def saved(value: Any) -> io.BytesIO:
    """Return the stream of an object's archive."""
    stream = io.BytesIO()
    gcodec.save(value, stream)
    stream.seek(0)
    return stream


def test_each_comes_back_with_its_placements_on_the_mesh(mesh, tmp_path):
    expected = state(mesh)
    found = gcodec.load(saved(expected), classes=[mesh])
    for name, value in expected.items():
        if name != "plain":
            assert type(found[name]) is tensors.DTensor and found[name].placements == value.placements
            assert found[name].device_mesh == mesh and not found[name].requires_grad
            assert torch.equal(found[name].to_local(), value.to_local())
        assert found[name].shape == value.shape and found[name].stride() == value.stride()
        assert found[name].dtype == value.dtype
    parts = [found[name].to_local().data_ptr() for name in ("weight", "tied")]
    assert parts[0] == parts[1]
    checkpoints = gcodec.Checkpointer(tmp_path)
    checkpoints.save(1, expected)
    assert checkpoints.load(classes=[mesh], names="both")["both"].placements == expected["both"].placements


def test_parts_are_read_as_plain_tensors_without_a_mesh(mesh):
    stream = saved(state(mesh))
    assert gcodec.load_file(stream)["weight/local"].shape == (300, 200)


def test_a_mesh_that_is_missing_or_another_is_named(mesh):
    with pytest.raises(
        Unsupported, match=r"part at \[1, 0\] in a mesh of \[2, 2\] named \['data', 'tensor'\]: pass .*mesh\]"
    ):
        gcodec.load(saved(state(mesh)))
    line = init_device_mesh("cpu", (4,))
    with pytest.raises(Unsupported, match=r"this rank, not of \[\[4\], None, \[2\]\]; gcodec.open"):
        gcodec.load(saved(state(mesh)), classes=[line])
    assert gcodec.load(saved(state(mesh)), classes=[line, mesh])["weight"].device_mesh == mesh
    with pytest.raises(InvalidArgument, match="DTensor, which is no numpy array: leave out like"):
        gcodec.load(saved(state(mesh)), classes=[mesh], like="numpy")


def test_other_placements_are_refused_with_the_place(mesh):
    class Odd(tensors.Shard):
        pass

    value = placed(mesh, torch.ones(2, 2), tensors.Shard(0), tensors.Replicate(), shape=(4, 2))
    value._spec.placements = (Odd(0), tensors.Replicate())
    with pytest.raises(InvalidArgument, match="model/w: a DTensor must be placed by Shard, Replicate, Partial"):
        gcodec.save({"model": {"w": value}}, io.BytesIO())


@pytest.mark.parametrize(
    ("at", "lie"),
    [
        (0, {"numpy": "w/local"}),
        (0, 3),
        (1, [5, -2]),
        (1, [4]),
        (1, [4, 3]),
        (1, [1, 2]),
        (1, [4.0, 2]),
        (2, [2, "x"]),
        (3, [["Shard", 2], ["Replicate"]]),
        (3, [["Shard"], ["Replicate"]]),
        (3, [["Replicate"], ["Replicate"]]),
        (3, [["Tensor", 1], ["Replicate"]]),
        (3, [["Partial", 1], ["Shard", 0]]),
        (3, [["Shard", 0]]),
        (3, [["Shard", 0], ["Replicate"], ["Replicate"]]),
        (3, 5),
    ],
    ids=str,
)
def test_lies_about_a_part_are_corruption(at, lie, mesh):
    part = torch.ones(2, 2)
    value = placed(mesh, part, tensors.Shard(0), tensors.Replicate(), shape=(4, 2))
    text = json.loads(flatten({"w": value}).text)
    text["state"]["dict"][1]["distributed"][at] = lie
    with pytest.raises(Corruption, match="malformed"):
        rebuild(json.dumps(text).encode(), lambda name, kind: part, known=KnownClasses([mesh]))
