"""The communication hook for ``DistributedDataParallel``.

DDP compares the hook's annotations with its own classes, so there are no postponed annotations here.
"""

import torch
from torch._C._distributed_c10d import GradBucket

from ...errors import InvalidArgument, Unsupported
from .codec_state import CompressedAllreduce
from .compressor_state import CompressedGradients


def hook(
    state: CompressedAllreduce | CompressedGradients, bucket: GradBucket, *others: torch.Tensor
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket's gradients over the ranks, compressed: ``ddp.register_comm_hook(state, hook)``.

    It returns at once: the all-reduce runs on the state's lane while the backward pass goes on. Errors are raised by
    ``backward()``.

    Args:
        state: How to compress, and what is kept from step to step.
        bucket: DDP's bucket.
        others: What other wrappers than DDP give their hooks, which is refused.

    Returns:
        The future of the bucket's average.

    Raises:
        Unsupported: Under torch.compile's ``python_reducer`` or FSDP1, which have no buckets.
        InvalidArgument: The hook was registered without a state.
    """
    if not isinstance(state, CompressedAllreduce | CompressedGradients):
        raise InvalidArgument(
            "state must be a CompressedAllreduce, CompressedGradients or AdaptiveGradients, as in "
            f"register_comm_hook(CompressedAllreduce(), hook), not {state!r:.80}"
        )
    if others or isinstance(bucket, torch.Tensor):
        raise Unsupported(
            "the hook needs DDP's buckets, which FullyShardedDataParallel has not: give it a process group that "
            'compresses, process_group=new_group(backend="gcodec"), or use fully_shard and compress_fsdp'
        )
    if not isinstance(bucket, GradBucket):
        raise Unsupported(
            "the hook needs DDP's buckets: torch.compile with optimize_ddp='python_reducer' has none; "
            "choose 'ddp_optimizer' or 'no_optimization'"
        )
    return state.reduce(bucket)
