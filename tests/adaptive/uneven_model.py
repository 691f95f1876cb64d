"""A model whose tensors differ in size, scale, and how few values or directions matter in them."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

MODEL = {"a": (60, 70), "b": (32, 32, 3, 3), "c": (8, 400), "d": (200, 30)}


def gradients(seed=0):
    """Return the gradients of the model, by tensor."""
    random = torch.Generator().manual_seed(seed)
    results = {}
    for number, (name, shape) in enumerate(MODEL.items()):
        rows, columns = shape[0], math.prod(shape[1:])
        low = torch.randn(rows, 2, generator=random) @ torch.randn(2, columns, generator=random)
        peaks = torch.randn(rows, columns, generator=random) ** (2 * number + 1)
        results[name] = (low + peaks).reshape(shape) * 0.1**number
    return results
