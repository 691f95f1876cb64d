"""Cases that the ranks of tests/sync/test_broadcast.py run, in a Gloo world: rank 0 publishes, the others subscribe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gcodec
import gcodec.distributed as gd
from gcodec.sync import Publisher, Subscriber, VersionFolder
from tests.sync.states import equal, moved, some_state


def raised(function: Any, *arguments: Any) -> str:
    """Return the kind and the text of what a call raises; empty if it returns."""
    try:
        function(*arguments)
    except gcodec.GcodecError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Party:
    """A rank's end of a broadcast, and the states that the source goes through, which all ranks can compute."""

    def __init__(self) -> None:
        self.is_source = dist.get_rank() == 0
        self.broadcast = gd.WeightBroadcast()
        self.publisher, self.subscriber = Publisher(), Subscriber()
        self.state = some_state()

    def step(self, seed: int | None) -> int:
        """Move the state, publish and broadcast it; return the bytes sent, on the source."""
        self.state = self.state if seed is None else moved(self.state, seed)
        if self.is_source:
            return self.broadcast.send(self.publisher.publish(self.state))
        self.broadcast.receive(self.subscriber)
        return 0

    @property
    def is_current(self) -> bool:
        """Return True if this rank has the state, bit for bit."""
        return self.is_source or equal(self.subscriber.tensors, self.state)


def follow() -> list[int]:
    """Check that all ranks have every version; return the bytes sent, on the source."""
    party, sizes = Party(), []
    for seed in (None, 1, 2, 3):
        sizes.append(party.step(seed))
        assert party.is_current
    return sizes


def join_late(by: int) -> list[int]:
    """Check that a rank that has lost its weights gets an anchor, as all ranks do, and then differences again."""
    party, sizes = Party(), []
    for seed in (None, 1, 2, 3, 4):
        if seed == 2 and dist.get_rank() == by:
            party.subscriber = Subscriber()
        sizes.append(party.step(seed))
        assert party.is_current
    return sizes


def fail_on(by: int) -> tuple[list[str], bool]:
    """Return what is raised when one rank cannot use a version, and whether all ranks then keep the last one."""
    party = Party()
    party.step(None)
    party.step(1)
    before, kept = party.state, True
    if dist.get_rank() == by:
        party.subscriber.tensors["bfloat16"].view(-1)[3] += 1
    heard = [raised(party.step, 2)]
    if not party.is_source and dist.get_rank() != by:
        kept = equal(party.subscriber.tensors, before) and party.subscriber.number == 2
    if dist.get_rank() == by:
        party.subscriber.reset()  # as the error says: an anchor is needed
    heard.append(raised(party.step, 3))
    return heard, kept and party.is_current


def overlap_on(by: int) -> tuple[str, bool]:
    """Return what is raised when a version has different values for memory that tensors of one rank share in part, and
    whether all ranks keep the last version and follow the next."""
    rank, broadcast, publisher = dist.get_rank(), gd.WeightBroadcast(), Publisher()
    whole = torch.zeros(10, 4)
    rows = whole[2:5] if rank == by else torch.zeros(3, 4)
    subscriber, heard, kept = Subscriber({"whole": whole, "rows": rows}), [], True
    for ours, theirs in ((1, 1), (2, 3), (4, 4)):
        state = {"whole": torch.full((10, 4), ours), "rows": torch.full((3, 4), theirs)}
        state = {name: tensor.float() for name, tensor in state.items()}
        if rank == 0:
            heard.append(raised(broadcast.send, publisher.publish(state)))
            continue
        heard.append(raised(broadcast.receive, subscriber))
        value = 1 if ours == 2 else ours
        kept = kept and bool((whole == value).all()) and bool((rows == value).all())
    assert not heard[0] and not heard[2]
    return heard[1], kept


def damaged(by: int) -> str:
    """Return what is raised when a message arrives damaged at one rank."""
    party = Party()
    party.step(None)
    broadcast = party.broadcast._broadcast
    if dist.get_rank() == by:

        def flip(label: str, tensor: torch.Tensor) -> None:
            broadcast(label, tensor)
            if tensor.dtype == torch.uint8:
                tensor[len(tensor) // 2] ^= 1

        party.broadcast._broadcast = flip  # type: ignore[method-assign]
    heard = raised(party.step, 1)
    party.broadcast._broadcast = broadcast  # type: ignore[method-assign]
    party.step(2)
    assert party.is_current
    return heard


def stale() -> list[str]:
    """Return what is raised where the source cannot make the anchor that is needed, and what nobody needs."""
    party = Party()
    old = party.publisher.publish(party.state) if party.is_source else None
    new = party.publisher.publish(moved(party.state, 1)) if party.is_source else None
    if party.is_source:
        assert party.publisher.publish(moved(party.state, 2)) is not None
        heard = [raised(party.broadcast.send, new)]
        assert old is not None
        party.broadcast.send(old)  # made its anchor at once
        assert party.broadcast.send(old) == 0
    else:
        heard = [raised(party.broadcast.receive, party.subscriber)]
        party.broadcast.receive(party.subscriber)
        assert party.broadcast.receive(party.subscriber) is None
        assert equal(party.subscriber.tensors, party.state)
    return heard


def misuse() -> list[str]:
    """Return what is raised for wrong roles, sources and objects."""
    broadcast = gd.WeightBroadcast()
    wrong: tuple[Any, ...] = (-1, dist.get_world_size(), "0")
    heard = [raised(lambda source=source: gd.WeightBroadcast(source=source)) for source in wrong]
    if dist.get_rank() == 0:
        heard.append(raised(broadcast.receive, Subscriber()))
    else:
        heard.append(raised(broadcast.send, Publisher().publish({"w": torch.ones(3)})))
    data: Any = Publisher().publish({"w": torch.ones(3)}).data
    heard += [raised(broadcast.send if dist.get_rank() == 0 else broadcast.receive, data)]
    mixed = gd.WeightBroadcast(source=0 if dist.get_rank() < 2 else 1)
    version = Publisher().publish({"w": torch.ones(3)})
    heard.append(raised(mixed.send, version) if dist.get_rank() == 0 else raised(mixed.receive, Subscriber()))
    return heard


def die(by: int) -> str:
    """Return what the others hear when a rank dies before a version."""
    party = Party()
    party.step(None)
    if dist.get_rank() == by:
        os._exit(1)
    return raised(party.step, 1)


# Shards


def sharded(seed: int, dimension: int = 0, dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """Return a small model whose parameters are sharded, unevenly, over all ranks."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 27), nn.ReLU(), nn.Linear(27, 9), nn.Linear(9, 2)).to(dtype)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    placed = {"shard_placement_fn": (lambda param: None if param.ndim < 2 else _shard(dimension))} if dimension else {}
    fully_shard(model[2], mesh=mesh, **placed)  # type: ignore[call-overload]
    fully_shard(model, mesh=mesh, **placed)  # type: ignore[call-overload]
    return model


def _shard(dimension: int) -> Any:
    from torch.distributed.tensor import Shard

    return Shard(dimension)


def shards(path: str, dtype: torch.dtype) -> dict[str, Any]:
    """Check that workers in bfloat16 of the same layout follow a sharded training; return what else is raised."""
    trained, worker, other = sharded(0, dtype=dtype), sharded(1), sharded(0, dimension=1)
    part = gd.shard_part(trained.state_dict())
    assert part == gd.shard_part(worker.state_dict()) != gd.shard_part(other.state_dict())
    folder = VersionFolder(Path(path) / part)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-3)
    publisher = Publisher(part=part, dtype="bfloat16")
    subscriber = Subscriber(gd.local_shards(worker.state_dict()), part=part)
    for step in range(4):
        trained(torch.randn(8, 12).to(dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        folder.send(publisher.publish(gd.local_shards(trained.state_dict())))
        assert gd.catch_up_shards(subscriber, folder) == 1
        full = [
            (ours.full_tensor(), theirs.full_tensor().bfloat16())
            for ours, theirs in zip(worker.state_dict().values(), trained.state_dict().values(), strict=True)
        ]
        assert all(torch.equal(*pair) for pair in full)
        assert gd.newest_versions(folder) == (step + 1, step + 1)
    heard = {"whole": raised(publisher.publish, trained.state_dict())}
    stranger = Subscriber(gd.local_shards(other.state_dict()), part=gd.shard_part(other.state_dict()))
    heard["other layout"] = raised(gd.catch_up_shards, stranger, folder)
    culprit = dist.get_rank() == 1
    heard["no folder"] = raised(gd.newest_versions, str(path) if culprit else folder)
    heard["no subscriber"] = raised(gd.catch_up_shards, publisher if culprit else subscriber, folder)
    if dist.get_rank() == 1:
        folder.send(publisher.publish(gd.local_shards(trained.state_dict())))
    assert gd.newest_versions(folder) == (4, 5)
    assert gd.catch_up_shards(subscriber, folder) == 0
    dist.barrier()
    publisher = Publisher(part=part, dtype="bfloat16", first=6)  # the training was killed, and goes on
    for by_culprit, newest in ((False, (4, 6)), (True, (6, 6))):  # before rank 1 sends 6, all have 4, but not its 5
        if culprit == by_culprit:
            folder.send(publisher.publish(gd.local_shards(trained.state_dict())))
        dist.barrier()
        assert gd.newest_versions(folder) == newest
        gd.catch_up_shards(subscriber, folder)
        assert subscriber.number == newest[0]
    shutil.rmtree(Path(path) / part)  # another run begins anew
    publisher, before = Publisher(part=part, dtype="bfloat16"), subscriber.state
    for number in range(1, 7):
        trained(torch.ones(8, 12).to(dtype) * number).square().sum().backward()
        optimizer.step()
        folder.send(publisher.publish(gd.local_shards(trained.state_dict())))
        assert (gd.catch_up_shards(subscriber, folder) > 0) == (number == 6)  # the number that is held
        assert (subscriber.number, subscriber.state == before) == (6, number < 6)
    dist.barrier()
    if dist.get_rank() == 1:
        (Path(path) / part / "versions.json").write_text("{}")
    heard["damaged"] = raised(gd.catch_up_shards, subscriber, folder)
    return heard
