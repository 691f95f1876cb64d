"""Compressed all-reduces over torch.distributed: a function, a hook for DistributedDataParallel, a process group,
FSDP2, and DiLoCo.

Importing this imports torch. docs/training.md is the page for users.
"""

from __future__ import annotations

from .allreduce import allreduce as allreduce
from .backend import register_backend as register_backend
from .bypass import Bypass as Bypass
from .codebooks import Refresh as Refresh
from .collectives import GroupOptions as GroupOptions
from .compressed import CompressedGradients as CompressedGradients
from .controlled import AdaptiveGradients as AdaptiveGradients
from .conversing import converse as converse
from .diloco import DiLoCo as DiLoCo
from .fsdp import compress_fsdp as compress_fsdp
from .group import CompressedGroup as CompressedGroup
from .hook import hook as hook
from .lane import Pending as Pending
from .lanes import close_lanes as close_lanes
from .modes import FixedBits as FixedBits
from .modes import Lossless as Lossless
from .modes import NearLossless as NearLossless
from .state import CompressedAllreduce as CompressedAllreduce
from .stats import log_to as log_to

register_backend()  # "gcodec"; costs nothing until a group is made
