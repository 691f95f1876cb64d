"""The ways to average a buffer over ranks that are measured side by side. All start from the same values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bench.cluster.buffers import Share
from bench.cluster.coders import CODECS, PeerCoder, Replay
from gcodec.distributed import CompressedAllreduce, Lossless, NearLossless
from gcodec.distributed.reduction.reduce import Reduction
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport.lane import lane_of

PATIENCE = timedelta(seconds=240)
LOSSLESS, NEAR = "gcodec lossless", "gcodec near-lossless"
BF16_MODE = "gcodec bf16"  #: mode="bf16": as many mantissa bits as bfloat16, summed in float32
OWN_BOOKS = ", codebooks of each frame's own"
WIRE = ", wire alone"  #: after a method's name: its messages, without its codec
FP32, FP16, BF16 = "Gloo fp32", "Gloo fp16", "Gloo bf16"
SMALL = "Gloo, 4 bytes"  #: what a message costs before its first byte
Sizes = dict[tuple[int, int], int]


class Method(ABC):
    """A way to average: ``prepare(values, room)`` untimed, then ``run()`` timed: the average of all ranks' values,
    float32[n]."""

    @abstractmethod
    def prepare(self, values: torch.Tensor, room: torch.Tensor) -> None:
        """Take the values, and memory of the same size; both may be written to."""

    @abstractmethod
    def run(self) -> torch.Tensor:
        """Do it."""

    def tally(self) -> Counters | None:
        """Return the counters of the last run, where there is one."""
        return None


class Dense(Method):
    """The averaging of DDP without a hook, or (``dtype``) with PyTorch's hooks for 16 bits: divide, then all-reduce."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self.buffer = torch.empty(0)

    def prepare(self, values: torch.Tensor, room: torch.Tensor) -> None:
        self.buffer = values

    def run(self) -> torch.Tensor:
        part = self.buffer.to(self.dtype).div_(dist.get_world_size())
        dist.all_reduce(part)
        return part if part is self.buffer else self.buffer.copy_(part)


class Small(Method):
    """An all-reduce of a single value."""

    def prepare(self, values: torch.Tensor, room: torch.Tensor) -> None:
        self.buffer = values[:1]

    def run(self) -> torch.Tensor:
        dist.all_reduce(self.buffer)
        return self.buffer


class Bucket:
    """The part of DDP's bucket that the hook's state reads: one that holds all gradients."""

    def __init__(self, share: Share, values: torch.Tensor) -> None:
        self._params, self._values = share.params, values

    def buffer(self) -> torch.Tensor:
        return self._values

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def parameters(self) -> list[torch.nn.Parameter]:
        return self._params

    def gradients(self) -> list[torch.Tensor]:
        parts = self._values.split([parameter.numel() for parameter in self._params])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._params, strict=True)]


class Hook(Method):
    """gcodec's DDP hook, as it works in the middle of a training: codebooks are there, and are counted for. ``sizes``
    takes those of the payloads of every run that is watched (``coders.noting``)."""

    def __init__(self, share: Share, sizes: Sizes, **options: Any) -> None:
        self.share, self.sizes = share, sizes
        self.state = CompressedAllreduce(bypass=None, threads=1, timeout=PATIENCE, **options)

    def prepare(self, values: torch.Tensor, room: torch.Tensor) -> None:
        self.bucket: Any = Bucket(self.share, values)

    def run(self) -> torch.Tensor:
        return self.state.reduce(self.bucket).wait()

    def tally(self) -> Counters:
        counts = self.state.stats()["last_step"]
        return Counters(**{name: counts[name] for name in Counters.__dataclass_fields__})


class Exchanged(Method):
    """The same exchange with another coder, which ``make`` makes for every run."""

    def __init__(self, make: Callable[[Counters], Any], label: str) -> None:
        self._make, self._label, self._tally = make, label, Counters()

    def prepare(self, values: torch.Tensor, room: torch.Tensor) -> None:
        self.values, self.result = values, room

    def run(self) -> torch.Tensor:
        lane, self._tally = lane_of(None, PATIENCE), Counters()
        bits = [tensor.numpy().view(np.uint32) for tensor in (self.values, self.result)]
        coder: Any = self._make(self._tally)
        lane.submit(Reduction(lane, coder, *bits, mean=True, terms=(self._label,)).run).wait()
        return self.result

    def tally(self) -> Counters:
        return self._tally


def methods_for(share: Share) -> dict[str, Method]:
    """Return all methods by name. Each worker has one thread for its codec, so that processor time can be told."""
    sizes: dict[str, Sizes] = {LOSSLESS: {}, NEAR: {}}
    results: dict[str, Method] = {
        FP32: Dense(),
        FP16: Dense(torch.float16),
        BF16: Dense(torch.bfloat16),
        SMALL: Small(),
        LOSSLESS: Hook(share, sizes[LOSSLESS], mode=Lossless()),
        NEAR: Hook(share, sizes[NEAR], mode=NearLossless(share.optimizer)),
        BF16_MODE: Hook(share, {}, mode="bf16"),
        NEAR + OWN_BOOKS: Hook(share, {}, mode=NearLossless(share.optimizer), refresh=None),
    }
    for name, codec in CODECS.items():
        results[name] = Exchanged(partial(PeerCoder, codec()), name)
    for name in (LOSSLESS, NEAR):
        results[name + WIRE] = Exchanged(partial(Replay, sizes[name]), name + WIRE)
    return results
