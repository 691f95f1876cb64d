"""A fake CUDA device, for code that takes its tensors through torch alone, on a machine without one.

Values lie in CPU memory, but what a device's tensors do not allow raises here, too, such as numpy arrays of them, and
operations with a tensor of the host's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

DEVICE = torch.device("cuda", 0)
#: Operations that may take tensors of the host beside those of the device: an index, a source, one to be moved.
_MIXED = {"__getitem__", "__setitem__", "copy_", "to"}


class FakeGpuTensor(torch.Tensor):
    """A tensor that says it is on the fake device."""

    device = DEVICE
    is_cpu, is_cuda = False, True


class FakeGpuMode(TorchFunctionMode):
    """A context in which torch treats fake tensors as it treats those of a CUDA device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        tensors = [item for item in tree_iter((args, kwargs)) if isinstance(item, torch.Tensor)]
        fake = [isinstance(tensor, FakeGpuTensor) for tensor in tensors]
        if any(fake) and name in ("numpy", "__array__", "data_ptr"):
            raise TypeError(f"{name} of a tensor on {DEVICE}")
        if (
            any(fake)
            and name not in _MIXED
            and not all(is_fake or tensor.dim() == 0 for tensor, is_fake in zip(tensors, fake, strict=True))
        ):
            raise RuntimeError(f"{name}: tensors on {DEVICE} and cpu")
        devices = [value for value in (*args, *kwargs.values()) if _is_device(value)]
        result_is_fake = any(fake) if not devices else torch.device(devices[0]).type == DEVICE.type
        if name == "to" and len(tensors) > 1:  # to the device of another tensor
            result_is_fake = fake[1]
        if result_is_fake and not any(fake) and kwargs.get("generator") is not None:
            raise RuntimeError(f"{name}: a generator of the host's")
        to_cpu = any(fake) and name == "cpu"
        args, kwargs = tree_map(_on_host, (args, kwargs))
        result = func(*args, **kwargs)
        return result if to_cpu or not result_is_fake else tree_map(to_fake_gpu, result)


def _is_device(value: Any) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in ("cpu", "cuda"))


def _on_host(value: Any) -> Any:
    if isinstance(value, FakeGpuTensor):
        return value.as_subclass(torch.Tensor)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def to_fake_gpu(value: Any) -> Any:
    """Return a tensor as one on the fake device; anything else as it is."""
    return value.as_subclass(FakeGpuTensor) if isinstance(value, torch.Tensor) else value


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in CPU memory that a fake one stands for."""
    return tensor.as_subclass(torch.Tensor)
