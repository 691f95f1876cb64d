"""The Zarr version 3 codec ``gcodec``: chunks of floating-point arrays as frames."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, ArrayBytesCodecPartialDecodeMixin
from zarr.core.common import parse_named_configuration

from ..codec import decode_frame, decode_range, encode
from ..dtypes import BY_NAME, DTYPES
from ..errors import Corruption, InvalidArgument
from ..frame.decode import FrameReader
from ..plan.kept_values import fill_values

SETTINGS = ("mantissa_bits", "rounding", "keep")


@dataclass(frozen=True)
class GcodecCodec(ArrayBytesCodecPartialDecodeMixin, ArrayBytesCodec):
    """A Zarr array-to-bytes codec, to be passed as ``serializer=``, with no compressors after it.

    Each chunk is a frame of its own (docs/format.md), which ``gcodec.decode`` reads, too. Rows of a chunk are decoded
    without the others.

    Attributes:
        mantissa_bits: Keep this many mantissa bits, as for :func:`gcodec.encode`; None is lossless.
        rounding: ``"nearest"`` (even) or ``"truncate"``, with ``mantissa_bits``.
        keep: With ``mantissa_bits``, numbers that keep all bits, such as a fill value that Zarr is not told of, which
            xarray's ``_FillValue`` is not. The array's own, conventional ones and those that are frequent always do.

    Raises:
        InvalidArgument: If an attribute is out of range.
    """

    is_fixed_size = False

    mantissa_bits: int | None = None
    rounding: str | None = None
    keep: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        encode(np.zeros(0), mantissa_bits=self.mantissa_bits, rounding=self.rounding, keep=self.keep)
        if self.keep is not None:
            object.__setattr__(self, "keep", tuple(np.asarray(self.keep, np.float64).reshape(-1).tolist()))
        if self.mantissa_bits is not None:  # as JSON has it, for the array's metadata: it may be one of numpy's
            object.__setattr__(self, "mantissa_bits", int(self.mantissa_bits))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GcodecCodec:
        """Build the codec of an array's metadata.

        Raises:
            InvalidArgument: If the metadata has other settings than this codec.
        """
        _, settings = parse_named_configuration(dict(data), "gcodec", require_configuration=False)
        unknown = (settings or {}).keys() - set(SETTINGS)
        if unknown:
            raise InvalidArgument(f"the codec gcodec has the settings {', '.join(SETTINGS)}, not {sorted(unknown)}")
        return cls(**(settings or {}))

    def to_dict(self) -> dict[str, Any]:
        """Return what an array's metadata holds of the codec."""
        settings = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) is not None}
        return {"name": "gcodec", "configuration": settings}

    def validate(self, *, shape: tuple[int, ...], dtype: Any, chunk_grid: Any) -> None:
        """Raise InvalidArgument unless the array is of a type that the codec takes."""
        native = dtype.to_native_dtype()
        if native.name not in BY_NAME:
            names = ", ".join(t.name for t in DTYPES)
            raise InvalidArgument(f"the codec gcodec is for arrays of {names}, not {native}: leave out serializer=")
        encode(np.zeros(0, native.newbyteorder("=")), mantissa_bits=self.mantissa_bits, rounding=self.rounding)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Raise NotImplementedError, as Zarr asks of codecs whose sizes depend on the values."""
        raise NotImplementedError("the size of a frame depends on its values")

    def _encode_sync(self, chunk_array: Any, chunk_spec: Any) -> Any:
        values = chunk_array.as_numpy_array()
        keep = None
        if self.mantissa_bits is not None:
            dtype = BY_NAME[values.dtype.name]
            native = values.astype(values.dtype.newbyteorder("="), copy=False)
            keep = fill_values(native.view(dtype.uint), dtype, (chunk_spec.fill_value, *(self.keep or ())))
        frame = encode(values, mantissa_bits=self.mantissa_bits, rounding=self.rounding, keep=keep)
        return chunk_spec.prototype.buffer.from_bytes(frame)

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        frame = _frame_of(chunk_data, chunk_spec)
        return _nd_buffer(decode_frame(frame, None, "numpy", None, None), chunk_spec)

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)

    async def _decode_partial_single(self, byte_getter: Any, selection: Any, chunk_spec: Any) -> Any:
        data = await byte_getter.get(prototype=chunk_spec.prototype)
        return None if data is None else await asyncio.to_thread(_selected, data, selection, chunk_spec)


def _frame_of(data: Any, chunk_spec: Any) -> FrameReader:
    """Return the frame of a chunk. Raises Corruption if it is not one of the array's type and shape, and alone."""
    chunk = data.as_numpy_array()
    frame = FrameReader(chunk)
    if len(frame.data) != len(chunk):
        raise Corruption(
            f"a chunk holds a frame and {len(chunk) - len(frame.data)} bytes after it, which are not this codec's"
        )
    name, shape = chunk_spec.dtype.to_native_dtype().name, chunk_spec.shape
    if (frame.prelude.dtype.name, frame.prelude.shape) != (name, shape):
        raise Corruption(
            f"a chunk holds {frame.prelude.dtype.name} of shape {frame.prelude.shape}, not {name} of "
            f"shape {shape} as the array's metadata says"
        )
    return frame


def _nd_buffer(values: np.ndarray, chunk_spec: Any) -> Any:
    """Return values as Zarr wants them, in the byte order of the array."""
    return chunk_spec.prototype.nd_buffer.from_numpy_array(
        values.astype(chunk_spec.dtype.to_native_dtype(), copy=False)
    )


def _selected(data: Any, selection: Any, chunk_spec: Any) -> Any:
    """Return the selected values of a chunk; only the blocks with the rows from the first to the last are decoded."""
    frame = _frame_of(data, chunk_spec)
    items = selection if isinstance(selection, tuple) else (selection,)
    rows = items[0] if items and isinstance(items[0], slice) else slice(None)
    start, stop, step = rows.indices(chunk_spec.shape[0]) if chunk_spec.shape else (0, 0, 0)
    if step != 1 or stop <= start or (start, stop) == (0, chunk_spec.shape[0]):
        return _nd_buffer(decode_frame(frame, None, "numpy", None, None)[selection], chunk_spec)
    width = math.prod(chunk_spec.shape[1:])
    values = decode_range(frame.data, start * width, stop * width, like="numpy")
    return _nd_buffer(values.reshape(stop - start, *chunk_spec.shape[1:])[slice(None), *items[1:]], chunk_spec)
