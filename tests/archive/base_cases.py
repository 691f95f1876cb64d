"""Arrays of a checkpoint and of the one before it, for the laws of archives against a base."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from tests.archive.test_files import torch_file

RNG = np.random.default_rng(11)


def later(array: np.ndarray, change: float = 1e-4) -> np.ndarray:
    """Return the same array after some steps of training: every value a little off."""
    return (array * (1 + change * RNG.standard_normal(array.shape))).astype(array.dtype)


def bfloat16(array: np.ndarray) -> np.ndarray:
    """Return the bits of float32 values truncated to bfloat16."""
    return (array.view(np.uint32) >> 16).astype(np.uint16)


#: Weights, a bias and a matrix that the checkpoint before has in half precision.
W, B, H = (RNG.standard_normal(shape).astype(np.float32) for shape in ((200, 100), 3000, (50, 90)))
OLD: dict[str, np.ndarray] = {"w": W, "b": B, "half": H.astype(np.float16), "wide": W.astype(np.float64)}
OLD["ids"] = np.arange(500)
NEW = {name: later(array) if array.dtype.kind == "f" else array for name, array in OLD.items()}


def hash_of(array: np.ndarray) -> str:
    """Return the hash by which an archive names a base."""
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array).tobytes())


def torch_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    """Return a file of ``torch.save`` with the arrays as tensors of a model."""
    torch = pytest.importorskip("torch")
    return torch_file({"step": 7, "model": {name: torch.from_numpy(array) for name, array in tensors.items()}})
