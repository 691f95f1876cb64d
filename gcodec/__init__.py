"""gcodec: gradients, and any float tensors, made small without changing the training run."""

from __future__ import annotations

from .codec import FrameInfo, decode, decode_range, encode, inspect, max_encoded_size, warmup
from .errors import Corruption, GcodecError, InsufficientData, InvalidArgument, LimitExceeded, Unsupported
from .ladders import FINE_LADDER, PAPER_LADDER, Ladder
from .planning import LITERAL_GCOMP, Coding
from .stream import Decoder, Encoder

__version__ = "0.1.0"

__all__ = [
    "FINE_LADDER",
    "LITERAL_GCOMP",
    "PAPER_LADDER",
    "Coding",
    "Corruption",
    "Decoder",
    "Encoder",
    "FrameInfo",
    "GcodecError",
    "InsufficientData",
    "InvalidArgument",
    "Ladder",
    "LimitExceeded",
    "Unsupported",
    "decode",
    "decode_range",
    "encode",
    "inspect",
    "max_encoded_size",
    "warmup",
]
