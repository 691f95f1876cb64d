"""Everything that a process group of torch can be asked, handed on to a plain Gloo group.

Torch asks a Python process group by two roads: from Python by attribute, and from C++ (DDP, functional collectives)
through a table of names. A name of that table that a Python group does not define runs torch's own code while holding
the interpreter's lock, against Gloo's threads, which want it to free tensors: now and then both wait forever. So every
name is defined here, those of torch 2.11 and those that 2.13 put in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

#: What torch calls, and under which name torch 2.11 has it.
NAMES: dict[str, str | None] = {
    "allgather": None,
    "allgather_coalesced": None,
    "_allgather_base": None,
    "all_gather_single": "_allgather_base",
    "allgather_into_tensor_coalesced": None,
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "allreduce": None,
    "allreduce_coalesced": None,
    "alltoall": None,
    "alltoall_base": None,
    "all_to_all_single": "alltoall_base",
    "barrier": None,
    "broadcast": None,
    "gather": None,
    "monitored_barrier": None,
    "recv": None,
    "recv_anysource": None,
    "reduce": None,
    "reduce_scatter": None,
    "_reduce_scatter_base": None,
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": None,
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "scatter": None,
    "send": None,
    "set_timeout": None,
    "_start_coalescing": None,
    "_end_coalescing": None,
    "_get_sequence_number_for_group": None,
    "_set_sequence_number_for_group": None,
    "_wait_for_pending_works": None,
    "abort": None,
}
_NEWER = {older: name for name, older in NAMES.items() if older is not None}


def _handed_on(name: str) -> Callable[..., Any]:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        self.note_handed_on(name, arguments)
        return inner_method(self.inner, name)(*arguments, **options)

    method.__name__ = name
    method.__doc__ = f"As ``ProcessGroup.{name}``, of the plain group."
    return method


def inner_method(inner: dist.ProcessGroup, name: str) -> Callable[..., Any]:
    """Return a method of torch's group, by the name that this torch has for it: the newer one, which does not warn.

    Args:
        name: A name in ``NAMES``.
    """
    names = _NEWER.get(name), name, NAMES[name]
    method: Callable[..., Any] = next(getattr(inner, each) for each in names if each and hasattr(inner, each))
    return method


def plain_reduce_scatter(group: dist.ProcessGroup, flat: torch.Tensor, part: torch.Tensor, mean: bool) -> None:
    """Sum a tensor over a group of torch's, uncompressed; ``part`` takes this rank's part of the sum, or the mean."""
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.AVG if mean else dist.ReduceOp.SUM)
    inner_method(group, "reduce_scatter_single")(part, flat, options).wait()


def hands_on(cls: type) -> type:
    """Decorate a class: every method of NAMES that it does not define itself goes to its ``inner`` group.

    Before that, its own ``note_handed_on`` gets the name and the arguments.
    """
    for name in NAMES:
        if name not in vars(cls):
            setattr(cls, name, _handed_on(name))
    return cls
