"""Argument checks: options are checked where they are given, before other ranks wait."""

from __future__ import annotations

import operator
from datetime import timedelta
from typing import Any, TypeVar

from ...errors import InvalidArgument

Config = TypeVar("Config")


def config_or_none(name: str, value: Config | bool | None, kind: type[Config]) -> Config | None:
    """Return an optional configuration: the default one for True, None for None or False.

    Raises:
        InvalidArgument: if ``value`` is of another type than ``kind``.
    """
    if value is None or value is False:
        return None
    if value is True:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name}={value!r:.80}: a {kind.__name__}, such as {kind()}, or None for none")
    return value


def check_int(name: str, value: Any, minimum: int = 0) -> int:
    """Return ``value`` as an int of at least ``minimum``. Raises InvalidArgument."""
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if number < minimum:
        raise InvalidArgument(f"{name}={value!r:.80}: an integer, at least {minimum}")
    return number


def check_optional_int(name: str, value: Any) -> int | None:
    """Return a positive int, or None for None. Raises InvalidArgument."""
    return None if value is None else check_int(name, value, 1)


def check_duration(name: str, value: Any) -> timedelta:
    """Return ``value`` if it is a positive ``timedelta``, as torch takes it. Raises InvalidArgument."""
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise InvalidArgument(f"{name}={value!r:.80}: a positive datetime.timedelta, such as timedelta(seconds=10)")
    return value


def check_optional_duration(name: str, value: Any) -> timedelta | None:
    """Return a positive ``timedelta``, or None for None. Raises InvalidArgument."""
    return None if value is None else check_duration(name, value)
