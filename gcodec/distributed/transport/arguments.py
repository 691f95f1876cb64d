"""What callers may give for an option, checked where it is given: before other ranks wait."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any, TypeVar

from ...errors import InvalidArgument

Chosen = TypeVar("Chosen")


def config_or_none(name: str, value: Chosen | bool | None, kind: type[Chosen]) -> Chosen | None:
    """A configuration that may be left out: True is the default one; None or False: none. Raises InvalidArgument."""
    if value is None or value is False:
        return None
    if value is True:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name}={value!r:.80}: a {kind.__name__}, such as {kind()}, or None for none")
    return value


def check_int(name: str, value: Any, least: int = 0) -> int:
    """An integer. Raises InvalidArgument."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InvalidArgument(f"{name}={value!r:.80}: an integer, at least {least}")
    return number


def check_optional_int(name: str, value: Any) -> int | None:
    """A positive integer, or None. Raises InvalidArgument."""
    return None if value is None else check_int(name, value, 1)


def check_duration(name: str, value: Any) -> timedelta:
    """A length of time, as torch takes it. Raises InvalidArgument."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise InvalidArgument(f"{name}={value!r:.80}: a positive datetime.timedelta, such as timedelta(seconds=10)")
    return value


def check_optional_duration(name: str, value: Any) -> timedelta | None:
    """The same, or None. Raises InvalidArgument."""
    return None if value is None else check_duration(name, value)
