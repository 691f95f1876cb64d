"""The lanes of this process: made when they are first needed, and closed."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ...errors import InvalidArgument
from .agreement import compare
from .lane import Lane

_lanes: list[Lane] = []
_lock = threading.Lock()


def lane_of(group: dist.ProcessGroup | None = None, timeout: timedelta | None = None) -> Lane:
    """The lane of a group (default: the world's), made on the first call, which is collective over the group.

    ``timeout``: after which a silent peer is an error; default 5 minutes; only the first call's counts. Making one
    closes those of groups that have been destroyed. Raises InvalidArgument.
    """
    if not dist.is_initialized():
        raise InvalidArgument("torch.distributed is not initialized: call init_process_group first")
    parent: Any = dist.group.WORLD if group is None else group
    if not isinstance(parent, dist.ProcessGroup):
        outside = parent is dist.GroupMember.NON_GROUP_MEMBER
        raise InvalidArgument("this process is not in the group" if outside else f"group={group!r} is no process group")
    with _lock:
        for lane in _lanes:
            if lane.parent is parent:
                return lane
        _close_orphans()
        lane = Lane(parent, timeout or timedelta(minutes=5))
        _lanes.append(lane)
        return lane


def lane_for(
    kept: Lane | None,
    group: dist.ProcessGroup | None,
    timeout: timedelta | None,
    options: Callable[[], Mapping[str, object]],
) -> Lane:
    """The lane that somebody has kept, or a new one: the first time, and where that one has been closed. One that was
    broken stays so, as ranks no longer agree on what comes next. ``options``: what they must have in common to use a
    new one. Raises PeerError where they do not."""
    if kept is not None and (kept.broken or not kept.closed):
        return kept
    lane = lane_of(group, timeout)
    lane.submit(lambda: compare(lane.group, options(), "the first all-reduce")).wait()
    return lane


def close_lanes(group: dist.ProcessGroup | None = None, patience: float | None = None) -> None:
    """Close the lane of ``group``, or all lanes, on all ranks alike; before ``destroy_process_group``. ``patience``:
    seconds to wait for what is under way, default the timeout. What needs a lane later makes a new one."""
    with _lock:
        closing = [lane for lane in _lanes if group is None or lane.parent is group]
        _lanes[:] = [lane for lane in _lanes if lane not in closing]
    for lane in closing:
        lane.close(patience)


def _close_orphans() -> None:
    """Nobody waits for the lanes of destroyed groups."""
    known = distributed_c10d._world.pg_map
    for lane in [lane for lane in _lanes if lane.parent not in known]:
        _lanes.remove(lane)
        lane.close(0.0)


def _forget() -> None:
    """Neither threads nor connections survive a fork."""
    global _lock
    _lanes.clear()
    _lock = threading.Lock()


atexit.register(close_lanes, None, 5.0)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
