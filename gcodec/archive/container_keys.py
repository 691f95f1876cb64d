"""Keys of dictionaries and items of sets: what may be saved, and what may be loaded from a stranger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..tensors import is_torch
from .own_classes import member_names, tag_of

#: An integer that is a key stands in the names of tensors, and Python writes none of more than 4300 digits.
MAX_KEY_BITS = 1 << 13
#: Python compares each key with all others of its hash, which takes minutes for a megabyte of them.
MAX_OF_ONE_HASH = 100
#: Types of keys besides strings, numbers and None, alone but not in tuples.
KEY_TYPES = (bytes, np.str_, PosixPath, WindowsPath, PurePosixPath, PureWindowsPath, date, datetime, time, timedelta)


def check_key(key: Any, where: str) -> None:
    """Raises InvalidArgument for a key that cannot be saved, of the dictionary at the place ``where``."""
    if type(key) is str:  # most
        return
    parts = key if type(key) is tuple else (key,)
    if isinstance(key, Enum) or type(key) in KEY_TYPES or type(key).__module__ == "torch":
        parts = ()  # torch's types and devices; of its tensors none is a key, which the node of a key says
    if is_torch(key) or not all(part is None or type(part) in (bool, int, float, str) for part in parts):
        found = f"a {type(key).__name__}"
        if numbers := [part for part in (parts or (key,)) if isinstance(part, np.generic)]:  # as of a Counter of labels
            found = f"a number of numpy's, a {type(numbers[0]).__name__}: pass key.item()"
        raise InvalidArgument(
            f"{where}: a key must be a string, an integer or float of Python's, a member of an enumeration, a path, a "
            f"date, or a tuple of strings and numbers, to be saved, not {found}"
        )
    if any(type(part) is int and part.bit_length() > MAX_KEY_BITS for part in parts):
        raise InvalidArgument(f"{where}: an integer that is a key must have at most {MAX_KEY_BITS} bits to be saved")


def check_item(item: Any, where: str) -> None:
    """Raises InvalidArgument for an item that cannot be saved, of the set at the place ``where``: one whose class may
    say how it is hashed."""
    for part in item if type(item) in (tuple, frozenset) else (item,):
        if part is not item:
            check_item(part, where)
        elif tag_of(part) in ("dataclass", "named_tuple"):
            raise InvalidArgument(
                f"{where}: an item of a set must be no {type(part).__name__} to be saved; pass a list of them"
            )


def key_text(key: Any) -> str:
    """Return a key as it stands in paths: that of an enumeration as its class and name, for what the class makes of it
    may be anything."""
    if isinstance(key, Enum):
        names = member_names(key, "a key")
        return f"{type(key).__name__}.{names if isinstance(names, str) else '|'.join(names)}"
    return repr(key) if isinstance(key, bytes) else str(key)


def check_hashes(keys: Sequence[Any]) -> None:
    """Raises ValueError if more of these keys have one hash than a dictionary or set finds its way among."""
    if len(keys) > MAX_OF_ONE_HASH and max(Counter(map(hash, keys)).values()) > MAX_OF_ONE_HASH:
        raise ValueError(f"more than {MAX_OF_ONE_HASH} keys or items of one hash are in one container")
