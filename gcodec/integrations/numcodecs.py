"""The numcodecs codec ``gcodec``, for Zarr version 2 and whatever else takes numcodecs codecs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray, ensure_ndarray

from ..codec import decode_frame, encode
from ..dtypes import BY_NAME
from ..errors import Corruption, InvalidArgument
from ..frame.decode import FrameReader
from ..plan.kept_values import fill_values
from ..tensors import check_unmasked

#: Precedes a frame of big-endian values, which the frame itself holds in its own order. Earlier snapshots put it behind
#: the frame, where it can be lost without a trace; such chunks are read, but no longer written.
BIG_ENDIAN = b">"


class Gcodec(Codec):
    """A numcodecs codec for floating-point values.

    An array is encoded as one frame (docs/format.md), which ``gcodec.decode`` reads, too; one of big-endian values as
    the byte ``>`` and a frame. It comes back flat, in the order of its memory, with its type and byte order, as from
    other numcodecs codecs.

    Args:
        dtype: Type of the values, for buffers that do not say it: bytes, or unsigned integers that hold bfloat16 or
            float8. A name such as ``"float32"`` or ``"bfloat16"``, or one of numpy's types such as ``">f8"``.
        mantissa_bits: Keep this many mantissa bits, as for :func:`gcodec.encode`; None is lossless.
        rounding: ``"nearest"`` (even) or ``"truncate"``, with ``mantissa_bits``.
        keep: With ``mantissa_bits``, numbers that keep all bits, such as the fill value of the array, of which no codec
            is told. Conventional ones and those that are frequent always do, in arrays of numpy's types.

    Raises:
        InvalidArgument: If an argument is out of range.
    """

    codec_id = "gcodec"

    def __init__(
        self,
        dtype: npt.DTypeLike | None = None,
        mantissa_bits: int | None = None,
        rounding: str | None = None,
        keep: Any = None,
    ) -> None:
        self._name: str | None = None
        self._order = "="
        if dtype is not None:
            self._name, self._order = _type_of(dtype)
        probe = np.zeros(0, BY_NAME[self._name or "float64"].uint)
        encode(probe, dtype=self._name or "float64", mantissa_bits=mantissa_bits, rounding=rounding, keep=keep)
        # As JSON has them, for the configuration: np.float32 and numpy's integers are welcome, too.
        self.dtype = dtype if dtype is None or isinstance(dtype, str) else np.dtype(dtype).str
        self.mantissa_bits, self.rounding = None if mantissa_bits is None else int(mantissa_bits), rounding
        self.keep = None if keep is None else np.asarray(keep, np.float64).reshape(-1).tolist()

    def encode(self, buf: Any) -> bytes:
        """Encode an array or buffer as a frame.

        Args:
            buf: An array of floating-point values in C or F order; any buffer if the codec has a ``dtype``.

        Raises:
            InvalidArgument: If it holds integers, or other things than ``dtype``, or has a mask.
            TypeError: If it is an array of Python objects.
        """
        check_unmasked(buf, "buf")  # numcodecs takes the values alone
        array = ensure_ndarray(buf)
        flat = ensure_contiguous_ndarray(array)
        if self._name is not None and array.dtype.name != self._name:
            order, flat = self._order, _viewed(flat, self._name, self.dtype)
        elif array.dtype.name in BY_NAME:
            order, flat = array.dtype.byteorder, flat.view(array.dtype.newbyteorder("="))
        else:
            raise InvalidArgument(
                f"the codec gcodec is for floating-point values, not {array.dtype}: use numcodecs' Zstd or PCodec for "
                "these, or give dtype= if they are the bits of floats"
            )
        if order == ">":
            flat = flat.byteswap()
        if flat.dtype.itemsize == array.dtype.itemsize:  # the shape tells the encoder what rows and columns are
            flat = flat.reshape(array.shape if array.flags.c_contiguous else array.shape[::-1])
        keep = None
        if self.mantissa_bits is not None:
            dtype = BY_NAME[self._name or flat.dtype.name]
            keep = fill_values(flat.view(dtype.uint), dtype, self.keep or ())
        frame: bytes = encode(
            flat, dtype=self._name, mantissa_bits=self.mantissa_bits, rounding=self.rounding, keep=keep
        )
        return BIG_ENDIAN + frame if order == ">" else frame

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a frame.

        Args:
            buf: What :meth:`encode` or ``gcodec.encode`` returned, as any buffer.
            out: A writable buffer of the values' size, to decode to.

        Returns:
            The values as a flat array, or ``out``.

        Raises:
            Corruption: If the frame is damaged.
            InvalidArgument: If ``out`` is of another size.
        """
        data = ensure_contiguous_ndarray(buf).view(np.uint8)
        swapped = data[:1].tobytes() == BIG_ENDIAN
        frame = FrameReader(data[1:] if swapped else data)
        rest = data[len(frame.data) + swapped :].tobytes()
        if rest and (swapped or rest != BIG_ENDIAN):
            raise Corruption(f"{len(rest)} bytes follow the frame, which are not this codec's")
        swapped = swapped or bool(rest)
        values = frame.prelude.dtype
        if out is None:
            result = decode_frame(frame, None, "numpy", None, None).reshape(-1)
            return result.byteswap(inplace=True).view(result.dtype.newbyteorder(">")) if swapped else result
        target = ensure_contiguous_ndarray(out).view(np.uint8)
        n_bytes = frame.prelude.n_values * values.itemsize
        if target.size != n_bytes or not target.flags.writeable:
            raise InvalidArgument(f"out must be a writable buffer of {n_bytes} bytes, not of {target.size}")
        bits = decode_frame(frame, None, "numpy", None, None).reshape(-1).view(values.uint)
        target[:] = (bits.byteswap(inplace=True) if swapped else bits).view(np.uint8)
        return out

    def get_config(self) -> dict[str, Any]:
        """Return the settings of the codec, as JSON has them."""
        config: dict[str, Any] = super().get_config()
        return {name: value for name, value in config.items() if name != "keep" or value is not None}

    def __repr__(self) -> str:
        settings = {name: getattr(self, name) for name in ("dtype", "mantissa_bits", "rounding", "keep")}
        return f"Gcodec({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _type_of(dtype: npt.DTypeLike) -> tuple[str, str]:
    """Return gcodec's name of a type, and its byte order as numpy writes it. Raises InvalidArgument."""
    if isinstance(dtype, str) and dtype in BY_NAME:
        return dtype, "="
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = np.dtype("V")
    if known.name not in BY_NAME:
        raise InvalidArgument(f"dtype must be one of {', '.join(BY_NAME)}, or numpy's name of one, not {dtype!r}")
    return known.name, known.byteorder


def _viewed(flat: np.ndarray, name: str, dtype: str | None) -> np.ndarray:
    """Return a buffer as bits of the type ``name``. Raises InvalidArgument if it cannot hold them."""
    wanted = BY_NAME[name]
    fits = flat.dtype.itemsize == 1 or (flat.dtype.kind == "u" and flat.dtype.itemsize == wanted.itemsize)
    if not fits or flat.nbytes % wanted.itemsize:
        raise InvalidArgument(f"{flat.nbytes} bytes of {flat.dtype} are no values of the codec's dtype={dtype!r}")
    return flat.view(wanted.uint)
