"""Compressed all-reduces over torch.distributed: a function, and a hook for DistributedDataParallel.

Importing this imports torch. docs/training.md is the page for users.
"""

from __future__ import annotations

from .allreduce import allreduce as allreduce
from .bypass import Bypass as Bypass
from .codebooks import Refresh as Refresh
from .hook import hook as hook
from .lane import Pending as Pending
from .lane import close_lanes as close_lanes
from .modes import FixedBits as FixedBits
from .modes import Lossless as Lossless
from .modes import NearLossless as NearLossless
from .state import CompressedAllreduce as CompressedAllreduce
from .stats import log_to as log_to
