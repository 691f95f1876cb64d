"""The state of the process that ranks are copied from (:class:`tests.support.ranks.Ranks`).

It has imported what they import, and run what they will run, so that none waits for another's compiler. Torch has begun
no threads in it: a copy would not have them.
"""

from __future__ import annotations

import gc

import torch
import torch._dynamo  # by the first DistributedDataParallel of a process, in 0.7 seconds
import torch.distributed.checkpoint
import torch.distributed.fsdp

from gcodec.distributed import FixedBits, Lossless, NearLossless, Refresh
from gcodec.distributed.reduction.precompile import precompile_kernels
from gcodec.dtypes import BY_NAME

TYPES = ("float32", "bfloat16", "float16", "float64")

torch.set_num_threads(1)
near = NearLossless(torch.optim.SGD([torch.nn.Parameter(torch.ones(8))], lr=0.1, momentum=0.9))
for name in TYPES:
    for mode in (Lossless(), FixedBits(5), near):
        for refresh in (Refresh(), None):
            precompile_kernels(BY_NAME[name], mode, refresh)
gc.freeze()  # no copy looks at these objects for cycles, which would also copy the memory that they lie in
