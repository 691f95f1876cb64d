"""Objects that were saved and loaded, beside what they were."""

from __future__ import annotations

import math
from collections import deque
from datetime import datetime, time
from enum import Enum
from typing import Any

import numpy as np


def assert_same(found: Any, expected: Any) -> None:
    """Compare two objects: types, values and bits of all that they hold; parameters come back as plain tensors."""
    if hasattr(expected, "detach"):
        assert_same_tensor(found, expected)
        return
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert getattr(found, "default_factory", None) is getattr(expected, "default_factory", None)
        for key in expected:
            assert_same(found[key], expected[key])
        assert_same(getattr(found, "_metadata", None), getattr(expected, "_metadata", None))
    elif isinstance(expected, list | tuple | deque):
        assert len(found) == len(expected) and getattr(found, "maxlen", None) == getattr(expected, "maxlen", None)
        for pair in zip(found, expected, strict=True):
            assert_same(*pair)
    elif hasattr(expected, "__dict__") and not isinstance(expected, Enum | np.dtype):
        assert_same(vars(found), vars(expected))
    elif isinstance(expected, time | datetime):
        assert found == expected and found.fold == expected.fold and found.tzname() == expected.tzname()
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found)
    else:
        assert found == expected


def assert_same_tensor(found: Any, expected: Any) -> None:
    """Compare two tensors of torch: types, layouts, shapes and bits."""
    import torch

    assert type(found) is (torch.Tensor if isinstance(expected, torch.nn.Parameter) else type(expected))
    assert found.dtype == expected.dtype and found.layout == expected.layout and found.shape == expected.shape
    if expected.layout != torch.strided:
        assert found.layout != torch.sparse_coo or found.is_coalesced() == expected.is_coalesced()
        assert str(found) == str(expected) and torch.equal(found.to_dense(), expected.to_dense())
    elif expected.is_quantized:
        assert found.qscheme() == expected.qscheme() and str(found) == str(expected)
        assert torch.equal(found.int_repr(), expected.int_repr())
    elif expected.numel():
        bits = (x.detach().resolve_conj().cpu().contiguous().view(-1).view(torch.uint8) for x in (found, expected))
        assert torch.equal(*bits)
