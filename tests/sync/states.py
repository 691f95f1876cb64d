"""States for the tests of weight sync: tensors of every type that change a little from step to step; their versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gcodec.sync import Publisher, WeightVersion
from gcodec.sync.tensor_bits import WritableTensor

State = dict[str, Any]

#: Types that the codec knows, and some that it does not.
FLOATS = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")
TYPES = ("int64", "int32", "uint8", "bool")


def some_state(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return tensors of each type, a scalar, and an empty one."""
    random = torch.Generator().manual_seed(seed)
    state = {name: (torch.randn(70, 50, generator=random) / 32).to(getattr(torch, name)) for name in FLOATS}
    state |= {name: torch.randint(0, 2, (30,), generator=random).to(getattr(torch, name)) for name in TYPES}
    state["scalar"], state["empty"] = torch.tensor(2.5), torch.zeros(0, 3)
    return state


def moved(state: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return the state after a step in which few values change, in some tensors all, in others none."""
    random, result = torch.Generator().manual_seed(seed), {}
    for name, tensor in state.items():
        changes = torch.rand(tensor.shape, generator=random) < (0.9 if name == "float64" else 0.03)
        moved_tensor = (tensor.to(torch.float64) * (1 + changes * 0.3)).to(tensor.dtype)
        result[name] = ~tensor if tensor.dtype == torch.bool else moved_tensor
    return result


def bits_of(value: Any) -> np.ndarray:
    """Return an array's bits as unsigned integers."""
    if isinstance(value, torch.Tensor):
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        value = value.detach().contiguous().view(integers[value.element_size()]).numpy()
    return np.ascontiguousarray(value).view(f"u{value.dtype.itemsize}").reshape(value.shape)


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Return True if both have the same names, shapes and bits."""
    same_names = ours.keys() == theirs.keys()
    return same_names and all(np.array_equal(bits_of(ours[name]), bits_of(theirs[name])) for name in ours)


def chain(n_versions: int, **options: Any) -> Iterator[tuple[State, WeightVersion]]:
    """Yield states that change a little, each with its version."""
    publisher, state = Publisher(**options), some_state()
    for number in range(n_versions):
        if number:
            state = moved(state, seed=number)
        yield state, publisher.publish(state)


def fail_at(patch: pytest.MonkeyPatch, nth: int, error: type[BaseException]) -> None:
    """Have the nth write of a tensor raise an error after it has been done."""
    write, n_calls = WritableTensor.write, 0

    def failing(self: WritableTensor, *arguments: Any) -> None:
        nonlocal n_calls
        n_calls += 1
        write(self, *arguments)
        if n_calls == nth:
            raise error

    patch.setattr(WritableTensor, "write", failing)
