"""The types of the tensors and arrays of a state, by name; what cannot be saved is named with its place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import GcodecError, InvalidArgument, check_is_fault_of
from ..files.elements import name_of
from ..tensors import as_plain_array, check_has_data
from .arrays import check_not_meta
from .plain_values import TEXT_KINDS
from .shared_memory import memory_of


def check_flattened(value: Any, where: str) -> bool:
    """Return True for a tensor that is made of others, by torch's protocol for such classes. Raises InvalidArgument for
    one whose parts are no tensors of this process alone."""
    if not hasattr(value, "__tensor_flatten__"):
        return False
    if value.is_nested or not hasattr(type(value), "__tensor_unflatten__"):
        check_has_data(value, where)
    return True


def torch_type(value: Any, where: str) -> str:
    """Return the name of a tensor's type. Raises InvalidArgument for one that cannot be saved."""
    import torch

    try:
        check_has_data(value, where)
        plain = value.layout == torch.strided and not value.is_meta
        if plain:
            value.untyped_storage().data_ptr()
    except GcodecError:
        raise
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        check_is_fault_of(value, error)
        raise InvalidArgument(
            f"{where}: a tensor must have values to be saved, which this {type(value).__name__} has not: {error}"
        ) from None
    check_not_meta(value, where)
    if not plain:
        raise InvalidArgument(
            f"{where}: a tensor must be dense or sparse to be saved, not a {value.layout} tensor of {value.dtype}"
        )
    return str(value.dtype).removeprefix("torch.")


def numpy_facts(value: Any, where: str) -> tuple[str, Any]:
    """Return the name of an array's type, and what arrays of the same memory have in common, None for a scalar."""
    array = as_plain_array(value, where)
    known = array.dtype.kind in "biufcV" + TEXT_KINDS
    dtype = name_of(array.dtype.newbyteorder("<")) if known else str(array.dtype)
    return dtype, memory_of(array) if isinstance(value, np.ndarray) else None
