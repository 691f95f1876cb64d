"""The warm-up of a group's devices before training, so that no bucket of the first step waits for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import gpu
from .reduction.gpu_coder import NAMES
from .reduction.gpu_jobs import gpu_connect_job
from .transport.arguments import check_group_member, check_optional_duration
from .transport.lane import lane_of


def warmup(device: Any, group: dist.ProcessGroup | None = None, *, timeout: timedelta | None = None) -> None:
    """Compile and load all kernels for a CUDA device, and connect the ranks' devices, before training.

    Else the first bucket does so, in mid-backward, where loading a kernel may wait for the whole device. All ranks of
    the group make this call, each with its own device.

    Args:
        device: This rank's CUDA device.
        group: The process group of the collectives to come, default the world's.
        timeout: Time after which a silent rank is an error, as for the group's collectives; default the group's own.
            Only the first call's on a group counts, be it this one or a collective.

    Raises:
        InvalidArgument: An argument has another type or value.
        Unsupported: There is no such device, or nothing compiles for it.
        PeerError: The exchange failed.
    """
    check_group_member(group)
    timeout = check_optional_duration("timeout", timeout)
    where = gpu.warmup_device(NAMES, device)
    lane = lane_of(group, timeout)
    if lane.size > 1:
        lane.submit(gpu_connect_job(lane, where)).wait()
