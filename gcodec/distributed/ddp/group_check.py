"""The check that DDP and its hook's state have one process group: else gradients are averaged over the wrong ranks."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from ...errors import InvalidArgument


def check_group(params: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Check that the group of a hook's state is that of the DDP model which holds some parameters.

    A bucket does not tell its model, so the model is looked for among all objects of the process: once, for the first
    bucket, and only where there are several groups.

    Args:
        params: the parameters of a bucket.
        group: the state's group; None for the world.

    Raises:
        InvalidArgument: these parameters are trained by DDP models of other groups only.
    """
    if len(distributed_c10d._world.pg_map) < 2:
        return
    wanted, numbers = dist.group.WORLD if group is None else group, set(map(id, params))
    kinds = set(_with_subclasses(DistributedDataParallel))  # a look into a set takes no time; issubclass() does
    models = [model for model in gc.get_objects() if type(model) in kinds]
    groups = [model.process_group for model in models if not numbers.isdisjoint(map(id, model.parameters()))]
    if groups and not any(each is wanted for each in groups):
        raise InvalidArgument(
            "group must be that of the DDP model: give the state group=ddp.process_group, as the model has a "
            "process_group of its own"
        )


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        yield from _with_subclasses(each)
