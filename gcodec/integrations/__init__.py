"""Bridges to other libraries, a module for each, which is imported when it is first used, for it imports the library;
numcodecs and zarr find theirs by entry points."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = [
    "accelerate",
    "blosc2",
    "flower",
    "fsspec",
    "huggingface",
    "lightning",
    "numcodecs",
    "torch_checkpoint",
    "torch_ops",
    "zarr",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gcodec.integrations' has no attribute {name!r}")
    return import_module(f".{name}", __name__)


def __dir__() -> list[str]:
    return __all__
