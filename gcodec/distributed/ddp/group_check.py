"""The check that DDP and its hook's state have one process group: else gradients are averaged over the wrong ranks.
And a look for what DDP averages without its hook."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ...errors import InvalidArgument
from ..group import CompressedGroup
from ..uncompressed import UncompressedLog


def check_group(params: Sequence[torch.Tensor], group: dist.ProcessGroup | None, log: UncompressedLog) -> None:
    """Check that the group of a hook's state is that of the DDP model which holds some parameters.

    A bucket does not tell its model, so the model is looked for among all objects of the process: once, for the first
    bucket. If DDP averages other parameters of it by itself, the log says so.

    Args:
        params: The parameters of a bucket.
        group: The state's group; None for the world.
        log: Says what is not compressed.

    Raises:
        InvalidArgument: These parameters are trained by DDP models of other groups only.
    """
    wanted, numbers = dist.group.WORLD if group is None else group, set(map(id, params))
    kinds = set(_with_subclasses(DistributedDataParallel))  # a look into a set takes no time; issubclass() does
    every_model = [model for model in gc.get_objects() if type(model) in kinds and "process_group" in vars(model)]
    models = [model for model in every_model if not numbers.isdisjoint(map(id, model.parameters()))]
    if models and not any(model.process_group is wanted for model in models):
        raise InvalidArgument(
            "group must be that of the DDP model: give the state group=ddp.process_group, as the model has a "
            "process_group of its own"
        )
    for model in models:
        n_delayed = len(getattr(model, "_delay_all_reduce_params", ()))
        if n_delayed and not isinstance(model.process_group, CompressedGroup):
            text = f"the {n_delayed} parameters of delay_all_reduce_named_params, which DDP averages without the hook"
            log.say(model.process_group.rank(), "delayed", f'not compressed are {text} (backend "gcodec" would)')


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    subclasses: list[type] = kind.__subclasses__()
    for each in subclasses:
        yield from _with_subclasses(each)
