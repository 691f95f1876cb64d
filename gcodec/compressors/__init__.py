"""Compressors: algorithms that turn a gradient into little to send, all under one contract (``contract``).

    from gcodec.compressors import DGC, GradZip

The public names are imported when they are first used, so that one compressor loads only what it needs, torch
included. docs/algorithms.md leads to a page about each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import import_with_torch

if TYPE_CHECKING:
    from .acpsgd import ACPSGD as ACPSGD
    from .blockwise import Blockwise as Blockwise
    from .casts import Cast as Cast
    from .casts import Dense as Dense
    from .codec_frames import Frames as Frames
    from .contract import AllGather as AllGather
    from .contract import AllReduce as AllReduce
    from .contract import AllToAll as AllToAll
    from .contract import Compressor as Compressor
    from .contract import Outcome as Outcome
    from .contract import Place as Place
    from .contract import alone as alone
    from .dgc import DGC as DGC
    from .gradzip import GradNA as GradNA
    from .gradzip import GradZip as GradZip
    from .powersgd import PowerSGD as PowerSGD
    from .qsgd import QSGD as QSGD
    from .randomk import RandomK as RandomK
    from .redsync import RedSync as RedSync
    from .sparcml import SparCML as SparCML
    from .sparse import Sparsifier as Sparsifier
    from .topk import TopK as TopK

_HOME = {
    "acpsgd": ("ACPSGD",),
    "blockwise": ("Blockwise",),
    "casts": ("Cast", "Dense"),
    "codec_frames": ("Frames",),
    "contract": ("AllGather", "AllReduce", "AllToAll", "Compressor", "Outcome", "Place", "alone"),
    "dgc": ("DGC",),
    "gradzip": ("GradNA", "GradZip"),
    "powersgd": ("PowerSGD",),
    "qsgd": ("QSGD",),
    "randomk": ("RandomK",),
    "redsync": ("RedSync",),
    "sparcml": ("SparCML",),
    "sparse": ("Sparsifier",),
    "topk": ("TopK",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gcodec.compressors' has no attribute {name!r}")
    value = getattr(import_with_torch(f"{__name__}.{_MODULE_OF[name]}", f"gcodec.compressors.{name}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
