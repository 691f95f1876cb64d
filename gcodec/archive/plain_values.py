"""Values without containers that JSON lacks, as JSON and back: bytes, dates, paths, types (docs/archive.md, section 9).

Each is an object of one key, its tag. What is read calls only constructors of Python, numpy and torch that are named
here, none of which has an effect but its result.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import numpy as np

from ..errors import InvalidArgument, Unsupported, named_device
from ..files.elements import RAW_BITS, TYPE_STRING, name_of
from .arrays import ml_dtype

#: Tags of version 1 of the structure; all others are of version 2.
FIRST_TAGS = frozenset(("float", "complex", "bytes", "Size", "dtype", "device"))
_TORCH_TAGS = ("Size", "dtype", "device")
_PATHS: dict[str, type[PurePath]] = {
    kind.__name__: kind for kind in (PosixPath, WindowsPath, PurePosixPath, PureWindowsPath)
}
#: Kinds of numpy types that a file of tensors lacks, and that arrays of bytes stand for: strings and dates.
TEXT_KINDS = "SUMm"

PlainNode = dict[str, Any]


def plain_node(value: Any, where: str) -> PlainNode | None:
    """Return the node of a value without containers, None for any other.

    Args:
        value: Of any type.
        where: Its place, for errors.

    Raises:
        InvalidArgument: It is of such a type, but cannot be stored.
    """
    kind = type(value)
    make = _NODES.get(kind)
    if make is not None:
        return {make[0]: make[1](value, where)}
    if kind.__module__ == "torch" and kind.__name__ in _TORCH_TAGS:
        return {kind.__name__: list(value) if kind.__name__ == "Size" else str(value)}
    return {"numpy_dtype": _dtype_name(value, where)} if isinstance(value, np.dtype) else None


def plain_value(tag: str, content: Any) -> Any:
    """Return what a tag without containers stands for.

    Raises:
        ValueError, TypeError, LookupError: The content is malformed.
        Unsupported: This machine has no such numpy type.
    """
    if tag in _TORCH_TAGS:
        return _torch_value(tag, content)
    if tag not in _VALUES:
        raise ValueError(f"unknown tag {tag!r}")
    return _VALUES[tag](content)


def number_node(value: float) -> Any:
    """Return the node of a float, which JSON has unless it is no number or infinite."""
    return value if math.isfinite(value) else {"float": str(value)}


def _number(node: Any) -> float:
    if isinstance(node, dict) and len(node) == 1:
        return _float(node["float"])
    if type(node) not in (int, float):
        raise ValueError(f"{node!r} is no number")
    return float(node)


def _float(content: Any) -> float:
    if content not in ("nan", "inf", "-inf"):
        raise ValueError(f"{content!r} is no number that JSON lacks")
    return float(content)


def _complex(content: Any) -> complex:
    real, imaginary = content
    return complex(_number(real), _number(imaginary))


def _base64(value: bytes | bytearray, where: str) -> str:
    return base64.b64encode(value).decode()


def _bytes(content: Any) -> bytes:
    return base64.b64decode(content, validate=True)


def _integers(content: Any, count: int) -> list[int]:
    """Return a list of ``count`` integers. Raises ValueError if it is none."""
    if not isinstance(content, list) or len(content) != count or any(type(number) is not int for number in content):
        raise ValueError(f"there must be {count} integers, not {content!r:.80}")
    return content


def _slice_node(value: slice, where: str) -> list[int | None]:
    bounds = [value.start, value.stop, value.step]
    if any(bound is not None and type(bound) is not int for bound in bounds):
        raise InvalidArgument(f"{where}: a slice must be of integers to be saved, not {value!r:.80}")
    return bounds


def _slice(content: Any) -> slice:
    _integers([0 if bound is None else bound for bound in content], 3)
    return slice(*content)


def _path(content: Any) -> PurePath:
    """Return a path; one of another system, which this one cannot look at, as a pure path of that system."""
    kind, text = content
    if not isinstance(text, str):
        raise ValueError(f"{text!r:.80} is no path")
    found = _PATHS[kind]
    if found in (PosixPath, WindowsPath) and found is not type(Path()):
        found = PurePosixPath if found is PosixPath else PureWindowsPath
    return found(text)


def _timezone_node(value: timezone, where: str) -> list[Any]:
    # Python's own arguments for pickles: the offset, and the name where one was given.
    offset, *name = value.__getinitargs__()  # type: ignore[attr-defined]
    return [*_timedelta_node(offset, where), *(name or [None])]


def _timezone(content: Any) -> timezone:
    offset, name = timedelta(*_integers(content[:-1], 3)), content[-1]
    return timezone(offset) if name is None else timezone(offset, name)


def _timedelta_node(value: timedelta, where: str) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _date_node(value: date, where: str) -> list[int]:
    return [value.year, value.month, value.day]


def _time_node(value: time | datetime, where: str) -> list[Any]:
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        raise InvalidArgument(
            f"{where}: a {type(value).__name__} must have no time zone, or a datetime.timezone, to be saved, not a "
            f"{type(zone).__name__}; pass value.astimezone(datetime.timezone.utc)"
        )
    numbers = [value.hour, value.minute, value.second, value.microsecond, value.fold]
    return [*numbers, None if zone is None else _timezone_node(zone, where)]


def _time_arguments(content: Any) -> dict[str, Any]:
    *numbers, zone = content
    hour, minute, second, microsecond, fold = _integers(numbers, 5)
    moment = {"hour": hour, "minute": minute, "second": second, "microsecond": microsecond}
    return {**moment, "fold": fold, "tzinfo": None if zone is None else _timezone(zone)}


def _datetime(content: Any) -> datetime:
    year, month, day = _integers(content[:3], 3)
    return datetime(year, month, day, **_time_arguments(content[3:]))


def _text(content: Any) -> str:
    if not isinstance(content, str):
        raise ValueError(f"{content!r:.80} is no text")
    return content


def _dtype_name(value: np.dtype[Any], where: str) -> str:
    name = value.name if value.name in RAW_BITS else value.str
    if value.metadata or value.fields is not None or not (name in RAW_BITS or TYPE_STRING.fullmatch(name)):
        raise InvalidArgument(
            f"{where}: a numpy.dtype must be of numbers, bools, strings or dates to be saved, not {value!r:.80}"
        )
    return name


def _dtype(content: Any) -> np.dtype[Any]:
    if not (content in RAW_BITS or TYPE_STRING.fullmatch(content)):
        raise ValueError(f"{content!r:.80} is no type of numpy")
    found = ml_dtype(content) if content in RAW_BITS else content
    if found is None:
        raise Unsupported(f"the state has numpy's type {content}, which needs ml_dtypes: pip install ml_dtypes")
    return np.dtype(found)


def text_dtype(name: Any) -> np.dtype[Any]:
    """Return the numpy type of strings or dates that bytes of a file stand for. Raises ValueError if it is none."""
    found = np.dtype(name) if isinstance(name, str) and TYPE_STRING.fullmatch(name) else None
    if found is None or found.kind not in TEXT_KINDS or not found.itemsize or name_of(found) != name:
        raise ValueError(f"{name!r:.80} is no type of strings or dates")
    return found


def _torch_value(tag: str, content: Any) -> Any:
    import torch

    if tag != "dtype":
        return torch.Size(content) if tag == "Size" else named_device(content)
    found = vars(torch).get(content.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{content!r} is no {tag}")
    return found


#: By type: the tag, and what makes its content of a value and its place.
_NODES: dict[type, tuple[str, Callable[[Any, str], Any]]] = {
    float: ("float", lambda value, where: str(value)),
    complex: ("complex", lambda value, where: [number_node(value.real), number_node(value.imag)]),
    bytes: ("bytes", _base64),
    bytearray: ("bytearray", _base64),
    range: ("range", lambda value, where: [value.start, value.stop, value.step]),
    slice: ("slice", _slice_node),
    date: ("date", _date_node),
    time: ("time", _time_node),
    datetime: ("datetime", lambda value, where: [*_date_node(value, where), *_time_node(value, where)]),
    timedelta: ("timedelta", _timedelta_node),
    timezone: ("timezone", _timezone_node),
    np.str_: ("numpy_str", lambda value, where: str(value)),
    np.bytes_: ("numpy_bytes", _base64),
    **{kind: ("path", lambda value, where: [type(value).__name__, str(value)]) for kind in _PATHS.values()},
}
#: By tag: what makes the value of its content.
_VALUES: dict[str, Callable[[Any], Any]] = {
    "float": _float,
    "complex": _complex,
    "bytes": _bytes,
    "bytearray": lambda content: bytearray(_bytes(content)),
    "range": lambda content: range(*_integers(content, 3)),
    "slice": _slice,
    "date": lambda content: date(*_integers(content, 3)),
    "time": lambda content: time(**_time_arguments(content)),
    "datetime": _datetime,
    "timedelta": lambda content: timedelta(*_integers(content, 3)),
    "timezone": _timezone,
    "path": _path,
    "numpy_str": lambda content: np.str_(_text(content)),
    "numpy_bytes": lambda content: np.bytes_(_bytes(content)),
    "numpy_dtype": _dtype,
}
