"""Weight sync of sharded models, FSDP2's and other DTensors: every rank publishes its own shards.

A worker group that is sharded in the same way applies them, each rank those of its own part. For any other layout, make
full tensors first.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import xxhash

from ..errors import InvalidArgument, PeerError
from ..sync import Subscriber, VersionFolder
from ..sync.sync_stats import LOG
from .transport.transfers import labeled


def local_shards(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return this rank's shards of a state dict; they share the memory of its DTensors.

    Args:
        state: Name to DTensor, or to a tensor that is whole on each rank.

    Raises:
        InvalidArgument: ``state`` is something else.
    """
    _check_state(state)
    return {name: value.to_local().detach() if _is_sharded(value) else value for name, value in state.items()}


def shard_part(state: Mapping[str, Any], group: dist.ProcessGroup | None = None) -> str:
    """Return a name for this rank's part of a sharded state dict, for ``Publisher(part=)`` and ``Subscriber(part=)``.

    It is equal where rank, number of ranks, names, global shapes, meshes and placements are. Types may differ, as those
    of float32 masters and of workers in bfloat16 do.

    Args:
        state: Name to DTensor, or to a tensor that is whole on each rank.
        group: The group whose ranks are counted; None: the world.

    Raises:
        InvalidArgument: ``state`` is something else.
    """
    _check_state(state)
    rows = [(name, tuple(value.shape), _placement(value)) for name, value in sorted(state.items())]
    digest = xxhash.xxh3_64_hexdigest(repr(rows).encode(errors="replace"))
    return f"{dist.get_rank(group):05}-of-{dist.get_world_size(group):05}-{digest}"


def newest_versions(folder: VersionFolder, group: dist.ProcessGroup | None = None) -> tuple[int, int]:
    """Return the newest version that the folders of all ranks have, and the newest that any has; collective.

    Args:
        folder: The folder of this rank's part.
        group: The ranks; None: the world.

    Raises:
        GcodecError, OSError: This rank's folder cannot be read.
        PeerError: Another rank's cannot be, or a rank is gone.
    """
    problem: Exception | None = None
    own = [-1]
    try:
        _check_folder(folder)
        own = [0, *(version.number for version in folder.versions())]
    except Exception as error:  # whatever it is, the others have to hear of it
        problem = error
    numbers = _gathered(own[-1], group, "newest versions")
    if problem is not None:
        raise problem
    if -1 in numbers:
        raise PeerError(f"newest versions: rank {numbers.index(-1)} cannot read its folder")
    newest = max(numbers)
    while min(numbers) < max(numbers):  # where a training was killed, some ranks lack a version that others have sent
        common = min(numbers)
        numbers = _gathered(max(number for number in own if number <= common), group, "newest versions")
    return min(numbers), newest


def catch_up_shards(subscriber: Subscriber, folder: VersionFolder, group: dist.ProcessGroup | None = None) -> int:
    """Bring the shards of all ranks to the newest version that all of their folders have; collective.

    Args:
        subscriber: The subscriber of this rank's shards.
        folder: The folder of this rank's part.
        group: The ranks; None: the world.

    Returns:
        How many versions were applied; 0 if there is nothing new, also where all ranks hold a later version, of a run
        that wrote there before.

    Raises:
        GcodecError, OSError: As :meth:`gcodec.sync.Subscriber.catch_up` says.
        PeerError: Another rank could not apply its version, or a rank is gone.
    """
    number, _ = newest_versions(folder, group)
    problem: Exception | None = None
    n_applied = 0
    try:
        if not isinstance(subscriber, Subscriber):
            raise InvalidArgument(f"subscriber must be a gcodec.sync.Subscriber, not a {type(subscriber).__name__}")
        n_applied = subscriber.catch_up(folder, to=number)
    except Exception as error:
        problem = error
    held = _gathered(-1 if problem is not None else subscriber.number, group, f"version {number}")
    if problem is not None:
        raise problem
    if min(held) == max(held) > number:  # as for a subscriber of whole weights
        if number:
            LOG.warning(
                "the newest version is %d, and version %d is held: reset() to follow another run", number, held[0]
            )
        return 0
    for rank, found in enumerate(held):
        if found != number:
            what = "could not apply it" if found < 0 else f"holds version {found}"
            raise PeerError(f"version {number}: rank {rank} {what}")
    return n_applied


def _check_folder(folder: Any) -> None:
    """Raise InvalidArgument for anything but a folder of versions."""
    if not isinstance(folder, VersionFolder):
        raise InvalidArgument(f"folder must be a gcodec.sync.VersionFolder, not a {type(folder).__name__}")


def _is_sharded(value: Any) -> bool:
    """Return True for a DTensor, without importing its module, which takes a second: nobody has one before it is."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def _placement(value: Any) -> tuple[str, ...]:
    """Return how a tensor lies on the ranks, as text."""
    if _is_sharded(value):
        mesh = value.device_mesh
        return str(value.placements), str(tuple(mesh.shape)), str(mesh.mesh_dim_names), str(mesh.get_coordinate())
    return ()


def _check_state(state: Any) -> None:
    """Raise InvalidArgument unless a state maps names to tensors."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"state must map names to tensors, not be a {type(state).__name__}")
    for name, value in state.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise InvalidArgument(
                f"state must map names to tensors, not {name!r} to a {type(value).__name__}: leave out what is none"
            )


def _gathered(number: int, group: dist.ProcessGroup | None, label: str) -> list[int]:
    """Return a number of each rank."""
    on_gpu = dist.get_backend(group) == "nccl"
    sent = torch.tensor([number], dtype=torch.int64, device="cuda" if on_gpu else "cpu")
    received = [torch.empty_like(sent) for _ in range(dist.get_world_size(group))]
    labeled(label, lambda: dist.all_gather(received, sent, group=group))
    return [int(item) for item in received]
