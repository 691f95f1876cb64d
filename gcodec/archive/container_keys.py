"""Keys of dictionaries and items of sets: what may be saved, and what may be loaded from a stranger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..errors import InvalidArgument

#: An integer that is a key stands in the names of tensors, and Python writes none of more than 4300 digits.
MAX_KEY_BITS = 1 << 13
#: Python compares each key with all others of its hash, which takes minutes for a megabyte of them.
MAX_OF_ONE_HASH = 100


def check_key(key: Any, where: str) -> None:
    """Raises InvalidArgument for a key that cannot be saved, of the dictionary at the place ``where``."""
    parts = key if type(key) is tuple else (key,)
    if not all(part is None or type(part) in (bool, int, float, str) for part in parts):
        raise InvalidArgument(
            f"{where}: a key must be a string, a number or a tuple of these to be saved, not a {type(key).__name__}"
        )
    if any(type(part) is int and part.bit_length() > MAX_KEY_BITS for part in parts):
        raise InvalidArgument(f"{where}: an integer that is a key must have at most {MAX_KEY_BITS} bits to be saved")


def check_hashes(keys: Sequence[Any]) -> None:
    """Raises ValueError if more of these keys have one hash than a dictionary or set finds its way among."""
    if len(keys) > MAX_OF_ONE_HASH and max(Counter(map(hash, keys)).values()) > MAX_OF_ONE_HASH:
        raise ValueError(f"more than {MAX_OF_ONE_HASH} keys or items of one hash are in one container")
