"""Cases that the ranks of tests/distributed/test_fsdp.py run, in a Gloo world."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import gcodec.distributed as gd
from gcodec.distributed.transport.lane import lane_of
from tests.distributed.rank_basics import (
    Net,
    assert_refused,
    crc,
    heard,
    loss_at,
    only_on,
    rank,
    sabotage,
    size,
    slowed,
    take_steps,
)

MODES: dict[str, Any] = {"lossless": gd.Lossless(), "fixed": gd.FixedBits(8)}


def sharded(mesh: DeviceMesh, narrow: bool = False) -> nn.Module:
    """The network with a unit for each large layer and one for the rest; ``narrow``: gradients travel as bfloat16."""
    model = Net()
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16) if narrow else MixedPrecisionPolicy()
    for layer in (model.deep, model.last):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model


def trained(model: nn.Module, steps: int = 4, accumulate: int = 1) -> list[torch.Tensor]:
    """Return the full parameters after some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(steps):
        for part in range(accumulate):
            loss_at(step * accumulate + part, model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [item.detach().full_tensor() for item in model.parameters()]  # type: ignore[attr-defined]


def train(how: str, mode: str = "lossless", narrow: bool = False, accumulate: int = 1) -> dict[str, Any]:
    """One training run; ``how``: which of FSDP2's communications are compressed, and by what.

    shard, hsdp: plain FSDP2 and HSDP; shard_ours: its reduce-scatter; shard_group: all by the process group;
    hsdp_override: HSDP whose replica dimension has the backend; hsdp_hook: sharded over one dimension, and the replicas
    averaged by the hook.
    """
    replicas = 1 if how.startswith("shard") else 2
    counting: Any = None
    options: Any = gd.GroupOptions(mode=MODES[mode], min_bytes=1000, bypass=None)
    override: dict[Any, Any] | None = {"rep": ("gcodec", options)} if how == "hsdp_override" else None
    if how == "shard_group":
        override = {"shard": ("gcodec", options)}
    mesh = init_device_mesh(
        "cpu", (replicas, size() // replicas), mesh_dim_names=("rep", "shard"), backend_override=override
    )
    model = sharded(mesh if how in ("hsdp", "hsdp_override") else mesh["shard"], narrow)
    if how in ("shard_ours", "hsdp_hook"):
        counting = gd.compress_fsdp(
            model,
            MODES[mode],
            replicas=mesh["rep"] if how == "hsdp_hook" else None,
            min_bytes=1000,
            timeout=timedelta(seconds=50),
            bypass=None,
        )
    elif how in ("shard_group", "hsdp_override"):
        counting = mesh.get_group("shard" if how == "shard_group" else "rep")
        assert isinstance(counting, gd.CompressedGroup)
    parameters = trained(model, accumulate=accumulate)
    return {
        "crc": crc(parameters),
        "sums": [float(item.double().abs().sum()) for item in parameters],
        "stats": None if counting is None else counting.stats(),
    }


def bypass(slow: str, parameters: bool) -> tuple[list[float], int]:
    """Uncompressed collectives of every step where one of two ways is slow, and all those of the last one; with
    parameters gathered compressed, or left to torch."""
    mesh = init_device_mesh("cpu", (1, size()), mesh_dim_names=("rep", "shard"))
    model = sharded(mesh["shard"])
    counting = gd.compress_fsdp(
        model, MODES["fixed"], parameters=parameters, min_bytes=1000, bypass=gd.Bypass(steps=2, every=8)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    counts = [counting.stats()]
    with slowed(slow):
        for step in range(36):
            take_steps([step], model, optimizer)
            counts.append(counting.stats())
    crcs = crc([item.detach().full_tensor() for item in model.parameters()])  # type: ignore[attr-defined]
    # Three units are reduced; each is gathered in the forward pass, and those below the model's own once more after it.
    assert {after["calls"] - before["calls"] for before, after in pairwise(counts)} == {3 + 5 * parameters}
    return [after["dense"] - before["dense"] for before, after in pairwise(counts)], crcs


def beside_backward() -> tuple[list[str], bool]:
    """Hold up the first reduce-scatter of a backward pass until autograd has gone on to another unit. Return what was
    done in what order, and whether the gradients are those of a pass that nothing holds up."""
    mesh = init_device_mesh("cpu", (size(),), mesh_dim_names=("shard",))
    model = sharded(mesh)
    gd.compress_fsdp(model, parameters=False, min_bytes=1000, bypass=None, timeout=timedelta(seconds=50))
    happened, go_on = list[str](), threading.Event()
    loss_at(0, model).backward()
    wanted = [item.grad.full_tensor().clone() for item in model.parameters()]  # type: ignore[union-attr]
    model.zero_grad()

    def hold_up() -> None:
        happened.append("goes on" if go_on.wait(20) else "nothing lets it go on")

    def let_go(*_: object) -> None:
        if not go_on.is_set():
            happened.append("backward of another unit")
            go_on.set()

    model.deep.register_full_backward_pre_hook(let_go)  # type: ignore[union-attr]
    loss = loss_at(0, model)
    lane_of(mesh.get_group()).submit(hold_up)
    loss.backward()
    found = [item.grad.full_tensor() for item in model.parameters()]  # type: ignore[union-attr]
    return happened, all(map(torch.equal, found, wanted))


def read_in_backward(reader: int | None = None) -> bool:
    """Check that gradients which a hook reads during the backward pass are there by then, as those at its end are; by
    one rank, or by all."""
    model = sharded(init_device_mesh("cpu", (size(),), mesh_dim_names=("shard",)))
    gd.compress_fsdp(model, min_bytes=1000, bypass=None, timeout=timedelta(seconds=50))
    seen: dict[nn.Parameter, torch.Tensor] = {}

    def read(own: Any) -> None:
        seen[own] = own.grad.to_local().clone()

    for item in model.parameters():
        if reader in (None, rank()):
            item.register_post_accumulate_grad_hook(read)
    loss_at(0, model).backward()
    same = all(torch.equal(own.grad.to_local(), value) for own, value in seen.items())  # type: ignore[union-attr]
    return same and (len(seen) > 0) == (reader in (None, rank()))


def damaged_at_the_end(by: int) -> str:
    """Return what backward() says on this rank of damage to its last reduce-scatter, for which nothing in it waits."""
    group = dist.new_group(timeout=timedelta(seconds=30))
    model = Net()
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"), reshard_after_forward=False)
    gd.compress_fsdp(model, min_bytes=1000, timeout=timedelta(seconds=5))
    loss = loss_at(0, model)
    with only_on(by, sabotage("payload")):
        return heard(loss.backward, Exception).line


def refusals() -> None:
    """Check that senseless arguments are refused."""
    mesh = init_device_mesh("cpu", (1, size()), mesh_dim_names=("rep", "shard"))
    near: Any = gd.NearLossless(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0))
    assert_refused(
        lambda: gd.compress_fsdp(Net()),
        lambda: gd.compress_fsdp(sharded(mesh["shard"]), near),
        lambda: gd.compress_fsdp(sharded(mesh), replicas=mesh["rep"]),
    )


def replicated(how: str) -> list[str]:
    """Return what is said of a model with units that have replicas and no shards, or several meshes, and which unit was
    changed nevertheless; ``how``: by torch's replicate, by HSDP with shards of one rank, or as a part of a sharded one.
    """
    mesh = init_device_mesh("cpu", (size(), 1), mesh_dim_names=("rep", "shard"))
    model = Net()
    units = [model.deep, model.last]
    if how == "replicate":
        from torch.distributed._composable.replicate_with_fsdp import replicate

        for unit in (*units, model):
            replicate(unit, mesh=mesh["rep"])
    elif how == "several meshes":
        from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

        meshes = [FSDPMeshInfo(mesh[name], shard_mesh_dim=0) for name in ("rep", "shard")]
        fully_shard(units[0], mesh=mesh["rep"])
        fully_shard(
            model, mesh=mesh["rep"], shard_placement_fn=lambda p: ShardPlacementResult(Shard(0), meshes[p.ndim == 1])
        )
    else:
        fully_shard(units[0], mesh=mesh["rep"])
        for unit in (units[1], model):
            fully_shard(unit, mesh=mesh)
    said = [heard(partial(gd.compress_fsdp, model, replicas=each)).line for each in (None, mesh["shard"])]
    parts = [unit for unit in model.modules() if isinstance(unit, FSDPModule)]
    comms = [type(part._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm).__name__ for part in parts]
    return [*filter(None, said), *sorted({*comms} - {"DefaultReduceScatter"})]


def gathered(dtype: torch.dtype) -> dict[str, float]:
    """Gather values of every kind by FSDP2's interface, of several lengths, in place and apart, and compare bits."""
    options = gd.GroupOptions(mode=MODES["fixed"], min_bytes=1000, bypass=None, timeout=timedelta(seconds=50))
    collectives = gd.collectives.Collectives(options, "gather")
    gather = gd.fsdp.CompressedAllGather(collectives)
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    group = dist.group.WORLD
    assert group is not None
    for n in (1, 999, 1 << 16, 70_001, (1 << 21) + 3):
        generator = torch.Generator().manual_seed(n + rank())
        weights = 0.02 * torch.randn(n, generator=generator)
        others = torch.tensor([0.0, -0.0, torch.inf, torch.nan, 1e-42, 6e4])
        weights[::97] = others.repeat(n)[rank() :][: len(weights[::97])]
        part = weights.to(dtype)
        wanted = torch.empty(n * size(), dtype=dtype)
        dist.all_gather_into_tensor(wanted.view(torch.uint8), part.view(torch.uint8))
        whole, in_place = gather.allocate((n * size(),), dtype=dtype, device=part.device), torch.zeros_like(wanted)
        own = in_place[rank() * n : (rank() + 1) * n]
        own.copy_(part)
        for output, mine in ((whole, part), (in_place, own)):
            work = gather(output, mine, group, async_op=n % 2 == 0)
            if work is not None:
                work.wait()
            assert torch.equal(output.view(integers), wanted.view(integers)), (n, dtype)
    return collectives.stats()


def corrupted(by: int, during: str) -> str:
    """Return what the forward pass or backward() says on this rank when one rank's messages are damaged."""
    group = dist.new_group(timeout=timedelta(seconds=30))
    mesh = DeviceMesh.from_group(group, "cpu")
    model = sharded(mesh)
    gd.compress_fsdp(model, min_bytes=1000, timeout=timedelta(seconds=5))
    loss = loss_at(0, model)  # every unit has been gathered once
    if during == "forward":
        loss.backward()
    with only_on(by, sabotage("payload")):
        return heard((lambda: loss_at(0, model)) if during == "forward" else loss.backward, Exception).line
