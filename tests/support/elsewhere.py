"""Tensors that behave as if they were on a CUDA device, on a machine without one: their values lie in CPU memory, but
what a device's tensors do not allow raises here, too, such as numpy arrays of them, and operations with a tensor of the
host's. For code that takes them through torch alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("cuda", 0)
#: What a device's tensors may have of the host's beside them: an index, a source, one to be moved.
_MIXED = {"__getitem__", "__setitem__", "copy_", "to"}


class Elsewhere(torch.Tensor):
    """One of them."""

    device = DEVICE
    is_cpu, is_cuda = False, True


class Devices(TorchFunctionMode):
    """While it lasts."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        given = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        there = [isinstance(one, Elsewhere) for one in given]
        if any(there) and name in ("numpy", "__array__", "data_ptr"):
            raise TypeError(f"{name} of a tensor on {DEVICE}")
        if any(there) and name not in _MIXED and not all(own or one.dim() == 0
                                                         for one, own in zip(given, there, strict=True)):
            raise RuntimeError(f"{name}: tensors on {DEVICE} and cpu")
        to_host = any(there) and name == "cpu"
        wanted = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.device | str) and _is_device(one)]
        made = any(there) if not wanted else torch.device(wanted[0]).type == DEVICE.type
        if name == "to" and len(given) > 1:     # to where another tensor is
            made = there[1]
        if made and not any(there) and kwargs.get("generator") is not None:
            raise RuntimeError(f"{name}: a generator of the host's")
        args, kwargs = tree_map(_here, (args, kwargs))
        result = func(*args, **kwargs)
        return result if to_host or not made else tree_map(elsewhere, result)


def _is_device(one: torch.device | str) -> bool:
    return isinstance(one, torch.device) or one.partition(":")[0] in ("cpu", "cuda")


def _here(one: Any) -> Any:
    if isinstance(one, Elsewhere):
        return one.as_subclass(torch.Tensor)
    return torch.device("cpu") if isinstance(one, torch.device) else one


def elsewhere(one: Any) -> Any:
    """A tensor, there; anything else as it is."""
    return one.as_subclass(Elsewhere) if isinstance(one, torch.Tensor) else one


def back(one: torch.Tensor) -> torch.Tensor:
    """The tensor in CPU memory that it stands for."""
    return one.as_subclass(torch.Tensor)
