"""The element types a tensor file may hold: names, widths, and how numpy and the codec look at them."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from ..dtypes import DTYPES
from ..errors import InvalidArgument

#: Sizes, offsets and strides are below this (docs/archive.md, section 5).
MAX_SIZE = 1 << 62
#: Types the codec takes, with the number of mantissa bits stored: the legal ``dtype`` of a segment.
FLOATS = {t.name: t.mantissa_bits for t in DTYPES}
#: Types that numpy has under the same name.
NUMPY_NAMES = frozenset(
    "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
)
#: Types that numpy lacks; without ml_dtypes they are handled as unsigned integers of the same width.
RAW_BITS: dict[str, np.dtype] = {
    **{t.name: t.uint.newbyteorder("<") for t in DTYPES if not t.in_numpy},
    "float8_e4m3fnuz": np.dtype("u1"),
    "float8_e5m2fnuz": np.dtype("u1"),
    "float8_e8m0fnu": np.dtype("u1"),
    "float4_e2m1fn_x2": np.dtype("u1"),
    "complex32": np.dtype("<u4"),
}
#: Complex numbers that .safetensors lacks: an object has pairs of these types in their place.
PAIRS = {"complex128": "float64", "complex32": "float16"}
#: Which of the codec's types stores the values of another type: the same bytes, looked at another way.
STORED_AS = {
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
    "float8_e4m3fnuz": "float8_e4m3fn",
    "float8_e5m2fnuz": "float8_e5m2",
}
TYPE_STRING = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9a-zA-Z]{1,12}\])?")


@lru_cache(64)
def numpy_dtype(name: str) -> np.dtype | None:
    """Return the little-endian numpy type that holds elements of type ``name`` (raw bits where numpy lacks it).

    None for a type this version does not know.
    """
    if name in NUMPY_NAMES:
        return np.dtype(name).newbyteorder("<")
    if name in RAW_BITS:
        return RAW_BITS[name]
    if not TYPE_STRING.fullmatch(name):
        return None
    try:
        dtype: np.dtype = np.dtype(name)
    except (TypeError, ValueError):
        return None
    return dtype if dtype.itemsize and not dtype.hasobject else None


@lru_cache(64)
def width(name: str) -> int | None:
    """Bytes per element of type ``name``; None for a type this version does not know."""
    dtype = numpy_dtype(name)
    return None if dtype is None else dtype.itemsize


def check_dtype(name: object) -> None:
    """Raise InvalidArgument unless a caller's ``dtype`` is the name of an element type."""
    if not isinstance(name, str) or numpy_dtype(name) is None:
        raise InvalidArgument(f"dtype must be a type such as float32, bfloat16 or float8_e4m3fn, not {name!r:.80}")


@lru_cache(256)
def name_of(dtype: np.dtype) -> str:
    """Return the name under which a numpy type is listed: its own where it is native, else its type string."""
    if dtype.name in RAW_BITS:  # an ml_dtypes type
        return dtype.name
    if dtype.fields is not None or dtype.subdtype is not None:
        return "structured"
    if dtype.name in NUMPY_NAMES and dtype.newbyteorder("<") == dtype:
        return dtype.name
    if dtype.kind == "V" and dtype.type is not np.void:  # another type of ml_dtypes, which has no type string
        return dtype.name
    return str(dtype.str)


def stored_as(name: str) -> str | None:
    """Return the codec's type for elements of type ``name``, or None if they are not floating-point numbers."""
    name = STORED_AS.get(name, name)
    return name if name in FLOATS else None
