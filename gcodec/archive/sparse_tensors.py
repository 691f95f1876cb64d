"""Sparse tensors as the dense ones that they are made of: indices and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument, check_has_memory_for
from ..tensors import is_torch
from .arrays import check_not_meta

#: The names of the parts of each layout, in the order of torch's functions that put them together.
PARTS: Mapping[str, tuple[str, ...]] = {
    "coo": ("indices", "values"),
    "csr": ("crow_indices", "col_indices", "values"),
    "bsr": ("crow_indices", "col_indices", "values"),
    "csc": ("ccol_indices", "row_indices", "values"),
    "bsc": ("ccol_indices", "row_indices", "values"),
}


def sparse_layout(value: Any) -> str | None:
    """Return the layout of a torch tensor, as ``PARTS`` has it; None for one that is not sparse."""
    layout = str(value.layout).removeprefix("torch.sparse_")
    return layout if layout in PARTS else None


def sparse_parts(value: Any, layout: str, where: str) -> dict[str, Any]:
    """Return the dense tensors that a sparse one is made of, by name. Raises InvalidArgument for one without data."""
    check_not_meta(value, where)
    plain = value.detach()
    if layout == "coo":  # with the indices of one that is not coalesced, too
        return {"indices": plain._indices(), "values": plain._values()}
    return {name: getattr(plain, name)() for name in PARTS[layout]}


def sparse_tensor(layout: str, shape: Sequence[int], is_coalesced: object, parts: Sequence[Any]) -> Any:
    """Return the sparse tensor that dense ones are the parts of.

    Args:
        layout: As ``PARTS`` has it.
        is_coalesced: True for one of the layout coo that is.
        parts: The dense tensors, in the order of ``PARTS``.

    Raises:
        InvalidArgument: The parts are numpy arrays.
        ValueError: They are none of such a tensor.
        MemoryError: There is no memory to check them.
    """
    if any(not is_torch(part) for part in parts):
        raise InvalidArgument("the state has a sparse tensor, which is no numpy array: leave out like")
    import torch

    options: dict[str, Any] = {"size": tuple(shape), "check_invariants": True}
    integers = (torch.int64,) if layout == "coo" else (torch.int32, torch.int64)
    if any(part.dtype not in integers for part in parts[:-1]):  # torch would make integers of others
        raise ValueError("the indices of a sparse tensor must be integers")
    try:
        if layout == "coo":
            return torch.sparse_coo_tensor(*parts, **options, is_coalesced=True if is_coalesced is True else None)
        return torch.sparse_compressed_tensor(*parts, **options, layout=getattr(torch, f"sparse_{layout}"))
    except RuntimeError as error:
        check_has_memory_for(error)
        raise ValueError(f"a sparse tensor is malformed: {str(error).splitlines()[0]}") from error
