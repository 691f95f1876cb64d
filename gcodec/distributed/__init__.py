"""Compressed all-reduces over torch.distributed: a function, a hook for DistributedDataParallel, a process group,
FSDP2, and DiLoCo. Weight sync over a broadcast, and of sharded weights.

Importing this imports torch. docs/training.md is the page for users.
"""

from __future__ import annotations

from . import torch_version as _torch_version  # noqa: F401 - refuses an old torch before others fail on it

# Making an optimizer imports this, whose functions keep the world of that moment as default argument. Gloo's threads
# would then outlive destroy_process_group, and one that lets a tensor go while Python ends aborts the process.
from torch.distributed.nn import functional as _functional  # noqa: F401  # isort: skip

from .collectives import GroupOptions as GroupOptions
from .conversation import converse as converse
from .ddp.codec_state import CompressedAllreduce as CompressedAllreduce
from .ddp.compressor_state import CompressedGradients as CompressedGradients
from .ddp.controller_state import AdaptiveGradients as AdaptiveGradients
from .ddp.hook import hook as hook
from .device_warmup import warmup as warmup
from .diloco import DiLoCo as DiLoCo
from .fsdp import compress_fsdp as compress_fsdp
from .group import CompressedGroup as CompressedGroup
from .group import register_backend as register_backend
from .modes import FixedBits as FixedBits
from .modes import Lossless as Lossless
from .modes import NearLossless as NearLossless
from .reduction.allreduce import allreduce as allreduce
from .reduction.bypass import Bypass as Bypass
from .reduction.shared_codebooks import Refresh as Refresh
from .stats import log_to as log_to
from .stats_log import StatsLog as StatsLog
from .streaming import Streaming as Streaming
from .transport.jobs import Future as Future
from .transport.lane import close_lanes as close_lanes
from .visible import Visible as Visible
from .weight_broadcast import WeightBroadcast as WeightBroadcast
from .weight_shards import catch_up_shards as catch_up_shards
from .weight_shards import local_shards as local_shards
from .weight_shards import newest_versions as newest_versions
from .weight_shards import shard_part as shard_part

register_backend()  # "gcodec"; costs nothing until a group is made

__all__ = [
    "AdaptiveGradients",
    "Bypass",
    "CompressedAllreduce",
    "CompressedGradients",
    "CompressedGroup",
    "DiLoCo",
    "FixedBits",
    "Future",
    "GroupOptions",
    "Lossless",
    "NearLossless",
    "Refresh",
    "StatsLog",
    "Streaming",
    "Visible",
    "WeightBroadcast",
    "allreduce",
    "catch_up_shards",
    "close_lanes",
    "compress_fsdp",
    "converse",
    "hook",
    "local_shards",
    "log_to",
    "newest_versions",
    "register_backend",
    "shard_part",
    "warmup",
]


def __dir__() -> list[str]:
    return __all__
