"""gcodec: gradients, and any float tensors, made small without changing the training run.

The public names and packages are imported when they are first used, so that ``import gcodec`` and ``gcodec --help``
start at once: ``gcodec.distributed`` imports torch, ``gcodec.encode`` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any as _Any

if TYPE_CHECKING:
    from .archive import load as load
    from .archive import load_file as load_file
    from .archive import save as save
    from .archive import save_file as save_file
    from .archive.lazy_file import TensorFile as TensorFile
    from .archive.lazy_file import open as open
    from .archive.modules import load_into as load_into
    from .archive.whole_files import CompressedFile as CompressedFile
    from .archive.whole_files import compress_file as compress_file
    from .archive.whole_files import decompress_file as decompress_file
    from .checkpoints import Checkpointer as Checkpointer
    from .codec import decode as decode
    from .codec import decode_range as decode_range
    from .codec import encode as encode
    from .codec import inspect as inspect
    from .codec import max_encoded_size as max_encoded_size
    from .codec import warmup as warmup
    from .errors import BrokenChain as BrokenChain
    from .errors import Corruption as Corruption
    from .errors import GcodecError as GcodecError
    from .errors import InsufficientData as InsufficientData
    from .errors import InvalidArgument as InvalidArgument
    from .errors import LimitExceeded as LimitExceeded
    from .errors import PeerError as PeerError
    from .errors import Unsupported as Unsupported
    from .format.ladders import FINE_LADDER as FINE_LADDER
    from .format.ladders import PAPER_LADDER as PAPER_LADDER
    from .format.ladders import Ladder as Ladder
    from .frame.inspect import FrameInfo as FrameInfo
    from .options import LITERAL_GCOMP as LITERAL_GCOMP
    from .options import EncoderOptions as EncoderOptions
    from .recorder import Recorder as Recorder
    from .stream import CodebookCycle as CodebookCycle
    from .stream import Decoder as Decoder
    from .stream import Encoder as Encoder

__version__ = "0.1.0"

_HOME = {
    "archive": ("load", "load_file", "save", "save_file"),
    "archive.lazy_file": ("TensorFile", "open"),
    "archive.modules": ("load_into",),
    "archive.whole_files": ("CompressedFile", "compress_file", "decompress_file"),
    "checkpoints": ("Checkpointer",),
    "codec": ("decode", "decode_range", "encode", "inspect", "max_encoded_size", "warmup"),
    "options": ("LITERAL_GCOMP", "EncoderOptions"),
    "errors": (
        "BrokenChain",
        "Corruption",
        "GcodecError",
        "InsufficientData",
        "InvalidArgument",
        "LimitExceeded",
        "PeerError",
        "Unsupported",
    ),
    "frame.inspect": ("FrameInfo",),
    "format.ladders": ("FINE_LADDER", "PAPER_LADDER", "Ladder"),
    "recorder": ("Recorder",),
    "stream": ("CodebookCycle", "Decoder", "Encoder"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

#: Packages and modules for users, which ``import gcodec`` makes available, too.
_PACKAGES = (
    "adaptive",
    "archive",
    "averaging",
    "checkpoints",
    "compressors",
    "distributed",
    "errors",
    "gpu",
    "integrations",
    "recorder",
    "report",
    "sync",
    "truncation",
)

# ``from gcodec import *`` must not replace Python's own open.
__all__ = sorted(_MODULE_OF.keys() - {"open"})


def __getattr__(name: str) -> _Any:
    if name in _PACKAGES:
        return _imported(name)
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gcodec' has no attribute {name!r}")
    value = getattr(_imported(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def _imported(module: str) -> _Any:
    """Import a module of gcodec, without a look for cycles among the objects that numba makes, all of which live."""
    import gc
    from importlib import import_module

    enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(f".{module}", __name__)
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*_MODULE_OF, *_PACKAGES, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"})
