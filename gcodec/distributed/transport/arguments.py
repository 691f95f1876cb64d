"""Argument checks: options are checked where they are given, before other ranks wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ...errors import InvalidArgument

Config = TypeVar("Config")


def config_or_none(name: str, value: Config | bool | None, kind: type[Config]) -> Config | None:
    """Return an optional configuration: the default one for True, None for None or False.

    Args:
        name: The argument's name.
        value: The argument.
        kind: The class of the configuration.

    Raises:
        InvalidArgument: The value is of another type.
    """
    if value is None or value is False:
        return None
    if value is True:
        return kind()
    if not isinstance(value, kind):
        raise InvalidArgument(f"{name} must be a {kind.__name__}, such as {kind()}, or None, not {value!r:.80}")
    return value


def check_optional_duration(name: str, value: Any) -> timedelta | None:
    """Return a positive ``timedelta``, or None for None; arguments as in ``check_int``. Raises InvalidArgument."""
    if value is not None and (not isinstance(value, timedelta) or value <= timedelta(0)):
        raise InvalidArgument(
            f"{name} must be a positive datetime.timedelta, such as timedelta(seconds=10), not {value!r:.80}"
        )
    return value


def check_group_member(group: dist.ProcessGroup | None) -> None:
    """Raise InvalidArgument for anything but a process group that this process is in, or None, which is the world's."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        outside = group is dist.GroupMember.NON_GROUP_MEMBER
        problem = "one that this process is in" if outside else f"a process group, not {group!r:.80}"
        raise InvalidArgument(f"group must be {problem}")


def check_model(model: Any) -> None:
    """Raise InvalidArgument for anything but a ``torch.nn.Module``."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model must be a torch.nn.Module, not a {type(model).__name__}")


def check_not_expanded(name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor that is to be written to has a place in memory for each of its values.

    Args:
        name: The argument's name.

    Raises:
        InvalidArgument: Some of its values share memory, as after ``expand``.
    """
    if tensor.layout != torch.strided:
        return
    if any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)):
        raise InvalidArgument(f"{name} must not be expanded, as its values share memory: call .clone() first")
