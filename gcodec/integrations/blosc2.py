"""The Blosc2 codec ``gcodec``: blocks of floating-point arrays as frames."""

from __future__ import annotations

from typing import Any

import blosc2
import numpy as np

from ..codec import decode, encode
from ..dtypes import BY_NAME, DTYPES
from ..errors import InvalidArgument

#: Number of the codec in files; Blosc2 leaves 160 to 255 to users.
CODEC_ID = 207
NAMES = {t.code: t.name for t in DTYPES}
_REGISTERED: list[int] = []


def blosc2_parameters(dtype: Any, **options: Any) -> dict[str, Any]:
    """Return compression parameters with which Blosc2 stores values by gcodec, and make the codec known.

    ::

        blosc2.set_nthreads(1)      # also for reading
        array = blosc2.asarray(values, cparams=blosc2_parameters(values.dtype))

    Args:
        dtype: Type of the values: numpy's, or a name such as ``"bfloat16"`` for unsigned integers that hold them.
        options: More of Blosc2's parameters; ``codec``, ``codec_meta``, ``filters`` and ``nthreads`` are set here.

    Raises:
        InvalidArgument: ``dtype`` is no floating-point type that gcodec encodes, or an option is set here.
    """
    name = dtype if isinstance(dtype, str) and dtype in BY_NAME else np.dtype(dtype).name
    if name not in BY_NAME:
        raise InvalidArgument(f"dtype must be one of {', '.join(BY_NAME)}, not {dtype}: take another codec of Blosc2")
    ours = {
        "codec": CODEC_ID,
        "codec_meta": BY_NAME[name].code,
        "typesize": BY_NAME[name].itemsize,
        "filters": [blosc2.Filter.NOFILTER],
        "nthreads": 1,  # as Blosc2 asks of codecs in Python; gcodec has threads of its own
    }
    taken = ours.keys() & options.keys()
    if taken:
        raise InvalidArgument(f"{', '.join(sorted(taken))} must be left out: the codec sets them")
    register_blosc2_codec()
    return {**options, **ours}


def register_blosc2_codec() -> None:
    """Make the codec known to Blosc2 in this process, which reading needs, too; once is enough, more do no harm."""
    if not _REGISTERED:
        blosc2.register_codec("gcodec", CODEC_ID, _encode_block, _decode_block)
        _REGISTERED.append(CODEC_ID)


def _encode_block(data: np.ndarray, output: np.ndarray, meta: int, schunk: Any) -> int:
    """Write a block's frame, and return its size; 0 has Blosc2 store the block as it is."""
    dtype = BY_NAME[NAMES[meta]]
    if data.size % dtype.itemsize:
        return 0
    frame = encode(data.view(dtype.uint), dtype=dtype.name)
    if len(frame) >= output.size:
        return 0
    output[: len(frame)] = np.frombuffer(frame, np.uint8)
    return len(frame)


def _decode_block(data: np.ndarray, output: np.ndarray, meta: int, schunk: Any) -> int:
    """Decode a frame into a block, and return its size."""
    values = decode(data, like="numpy", max_output_bytes=output.size).reshape(-1).view(np.uint8)
    output[: values.size] = values
    return int(values.size)
