"""Bounds on the text of a structure, checked before any of it is parsed."""

from __future__ import annotations

import re

from ..errors import Corruption

#: Bounds on the text: its bytes, and the items of its containers, which take some 64 bytes each when it is read.
MAX_TEXT_BYTES, MAX_ITEMS = 1 << 26, 1 << 22
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


def n_items_of(text: bytes) -> int:
    """Return how many items the containers of a structure hold at most."""
    n_items = _n_marks(text)
    if n_items > MAX_ITEMS:  # few states have so many, so that only then strings are looked for, which may hold any
        n_items -= sum(_n_marks(string.group()) for string in _STRINGS.finditer(text))
    return n_items


def check_text(text: bytes) -> None:
    """Raise Corruption for a text that is too long, or whose containers have too many items."""
    n_items = n_items_of(text)
    if len(text) > MAX_TEXT_BYTES or n_items > MAX_ITEMS:
        raise Corruption(
            f"a structure has at most {MAX_TEXT_BYTES} bytes and {MAX_ITEMS} items, not {len(text)} and {n_items}"
        )


def _n_marks(text: bytes) -> int:
    """Return how many brackets, braces and commas a text has."""
    return text.count(b"[") + text.count(b"{") + text.count(b",")
