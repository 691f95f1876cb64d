"""Tensors that are distributed over a mesh of devices (``DTensor``), as this rank's part and where it belongs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument, Unsupported, check_has_memory_for
from ..tensors import is_torch

#: Placements by their names, each with the attribute that it has beside.
_PLACEMENTS = {"Shard": "dim", "Replicate": None, "Partial": "reduce_op"}


def is_distributed(value: Any) -> bool:
    """Return True for a ``DTensor``."""
    return hasattr(value, "full_tensor") and hasattr(value, "placements") and hasattr(value, "device_mesh")


def is_mesh(value: Any) -> bool:
    """Return True for a ``DeviceMesh``."""
    return hasattr(value, "mesh_dim_names") and hasattr(value, "get_coordinate")


def local_part(value: Any) -> Any:
    """Return this rank's part of a distributed tensor."""
    part = value.detach().to_local()
    return part.wait() if hasattr(part, "wait") else part  # while a collective is under way


def mesh_facts(value: Any, where: str) -> list[Any]:
    """Return what a structure says of a distributed tensor beside this rank's part: shape, strides, placements, and the
    shape and names of the mesh and the place in it.

    Raises:
        InvalidArgument: It has other placements, or this rank is not in its mesh.
    """
    placements = []
    for placement in value.placements:
        name = type(placement).__name__
        if name not in _PLACEMENTS:
            raise InvalidArgument(
                f"{where}: a DTensor must be placed by {', '.join(_PLACEMENTS)} to be saved, not by {placement!r:.80}: "
                "pass its full_tensor(), or use torch.distributed.checkpoint"
            )
        attribute = _PLACEMENTS[name]
        placements.append([name] if attribute is None else [name, getattr(placement, attribute)])
    shape, names, place = _facts_of(value.device_mesh)
    if place is None:
        raise InvalidArgument(f"{where}: a DTensor must have a part on this rank to be saved, which is not in its mesh")
    return [list(value.shape), list(value.stride()), placements, shape, names, place]


def _facts_of(mesh: Any) -> tuple[list[int], list[str] | None, list[int] | None]:
    names, place = mesh.mesh_dim_names, mesh.get_coordinate()
    return list(mesh.shape), None if names is None else list(names), None if place is None else list(place)


def distributed_tensor(part: Any, facts: Sequence[Any], meshes: Sequence[Any]) -> Any:
    """Return a distributed tensor.

    Args:
        part: This rank's part.
        facts: As :func:`mesh_facts` returned them.
        meshes: Those that the caller gives.

    Raises:
        InvalidArgument: The part is a numpy array.
        Unsupported: There is no such mesh, or this rank is at another place in it.
        ValueError: The part is none of such a tensor.
    """
    shape, stride, placements, *of_mesh = facts
    if not is_torch(part):
        raise InvalidArgument("the state has a DTensor, which is no numpy array: leave out like")
    _check_part(part, shape, stride, placements)
    mesh = next((mesh for mesh in meshes if list(_facts_of(mesh)) == of_mesh), None)
    if mesh is None:
        sizes, names, place = of_mesh
        named = f" named {names!r:.80}" if names else ""
        there = ", ".join(f"{list(_facts_of(mesh))!r:.80}" for mesh in meshes)
        raise Unsupported(
            f"the state has a DTensor, of which this is the part at {place!r:.80} in a mesh of {sizes!r:.80}{named}: "
            f"pass classes=[mesh], the DeviceMesh of this rank{f', not of {there}' if there else ''}; gcodec.open and "
            "load_file read the part as a plain tensor"
        )
    module: Any = sys.modules.get("torch.distributed.tensor")  # which whoever made the mesh may not have imported
    if module is None:
        raise Unsupported("the state has a DTensor: import torch.distributed.tensor before it is loaded")
    import torch

    if len(placements) != len(of_mesh[0]):
        raise ValueError(f"{len(placements)} placements are none in a mesh of {len(of_mesh[0])} dimensions")
    made = [getattr(module, name)(*rest) for name, *rest in placements]
    try:
        return module.DTensor.from_local(
            part, mesh, made, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
        )
    except (RuntimeError, TypeError) as error:
        check_has_memory_for(error)
        raise ValueError(f"a DTensor is malformed: {str(error).splitlines()[0]}") from error


def _check_part(part: Any, shape: Any, stride: Any, placements: Any) -> None:
    """Raise ValueError for a part that is none of a tensor of such a shape, so placed."""
    if any(type(n) is not int or n < 0 for n in [*shape, *stride]) or not len(shape) == len(stride) == part.ndim:
        raise ValueError("a DTensor has a shape and strides of other sizes")
    sharded = set()
    for name, *rest in placements:
        if name not in _PLACEMENTS or len(rest) != (_PLACEMENTS[name] is not None):
            raise ValueError(f"{name!r:.80} is no placement")
        if name == "Shard":
            if type(rest[0]) is not int or not 0 <= rest[0] < part.ndim:
                raise ValueError(f"there is no dimension {rest[0]!r:.80}")
            sharded.add(rest[0])
        elif rest and not isinstance(rest[0], str):
            raise ValueError(f"{rest[0]!r:.80} is no reduction")
    sizes = enumerate(zip(part.shape, shape, strict=True))
    if any(own > whole or (own < whole and number not in sharded) for number, (own, whole) in sizes):
        raise ValueError(f"a part of shape {tuple(part.shape)} is none of a DTensor of {tuple(shape)}")
