"""Peers of the codec on a CUDA device: the host's codec, and nvCOMP's ANS where the package
``nvidia-nvcomp-cu12`` or ``-cu13`` is installed. (DietGPU comes without packages.)"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from gcodec import decode, encode

#: How nvCOMP's ANS takes a type; bfloat16, which it has no name for, goes as 16-bit floats.
_ANS_TYPES = {"float32": "<f4", "bfloat16": "<f2", "float16": "<f2"}


class Ans(NamedTuple):
    """nvCOMP's ANS coder for a type. ``encode``: from a flat tensor to what ``decode`` takes; ``decode``: to bytes on
    the device; ``size``: of what was encoded."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    size: Callable[[Any], int]


def ans(dtype: str) -> Ans | str:
    """Return nvCOMP's ANS on the current stream, or why there is none."""
    try:
        import torch
        from nvidia import nvcomp
    except Exception as error:  # a library may be missing, too
        return str(error)
    stream = torch.cuda.current_stream().cuda_stream
    codec = nvcomp.Codec(algorithm="ANS", data_type=_ANS_TYPES[dtype], cuda_stream=stream)

    def array(x: Any) -> Any:
        return nvcomp.as_array(x.view(torch.uint8), cuda_stream=stream)

    return Ans(lambda x: codec.encode(array(x)), codec.decode, lambda encoded: int(encoded.buffer_size))


def checked_ans(dtype: str, x: Any) -> Ans | str:
    """Return nvCOMP's ANS, once it has been seen to give a tensor back."""
    import torch
    from torch.utils.dlpack import from_dlpack

    peer = ans(dtype)
    if isinstance(peer, str):
        return peer
    try:
        there = from_dlpack(peer.decode(peer.encode(x))).view(torch.uint8)
        return peer if torch.equal(there, x.view(torch.uint8)) else "it gives other values back"
    except Exception as error:  # of the library's own kinds
        return str(error)


def host_seconds(x: Any) -> tuple[float, float]:
    """Return what the host's codec takes, once each way, for a tensor in CPU memory."""
    begin = perf_counter()
    data = encode(x)
    middle = perf_counter()
    decode(data)
    return middle - begin, perf_counter() - middle
