"""The compressors' hooks on buckets that behave as if they were on a CUDA device, among ranks without one: what ranks
of tests/distributed/test_compressors.py run."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import gcodec
import gcodec.distributed as gd
from gcodec.adaptive import Accordion, Controller, GraVAC, LGreCo
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.simulate import Simulation
from gcodec.compressors import PowerSGD, TopK
from gcodec.distributed.ddp import controller_state
from gcodec.distributed.reduction import gpu_jobs
from tests.distributed.compressor_cases import Given, gradients_of
from tests.distributed.rank_basics import crc, heard, rank
from tests.support import fake_gpu
from tests.support.compressor_settings import PROMISES, same

BUCKETS = ((5, 6, 7), (3, 4), (0, 1, 2))  # numbers of parameters, in the order in which they come
CONTROLLERS: dict[str, Controller] = {
    "gravac": GraVAC(TopK(0.1), window=1, epsilon=0.2),
    "l-greco": LGreCo(TopK(0.1), period=2),
    "accordion": Accordion(PowerSGD(4), PowerSGD(1), period=2),
}


class Bucket:
    """What the hook asks of DDP's. ``gradients`` come in its memory."""

    def __init__(self, number: int, params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        self._number, self._params = number, params
        self._buffer = fake_gpu.to_fake_gpu(torch.cat([item.reshape(-1) for item in gradients]))
        with fake_gpu.FakeGpuMode():
            parts = self._buffer.split([item.numel() for item in gradients])
            self._gradients = [part.view(item.shape) for part, item in zip(parts, gradients, strict=True)]

    def index(self) -> int:
        return self._number

    def is_last(self) -> bool:
        return self._number == len(BUCKETS) - 1

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def gradients(self) -> list[torch.Tensor]:
        return self._gradients

    def parameters(self) -> Sequence[torch.Tensor]:
        return self._params


class Side:
    """In place of a device's stream: while it is current, tensors behave as on a device."""

    def __init__(self) -> None:
        self.marks, self.waited = 0, 0

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def current(self) -> contextlib.AbstractContextManager[Any]:
        return fake_gpu.FakeGpuMode()

    def after(self, mark: int, *tensors: torch.Tensor) -> None:
        assert mark == self.waited + 1  # every job waits for its own
        assert all(isinstance(item, fake_gpu.FakeGpuTensor) for item in tensors)
        self.waited = mark


@contextlib.contextmanager
def there() -> Iterator[Side]:
    """Buckets are on a device."""
    side = Side()
    with (
        mock.patch.object(gpu_jobs, "side_stream_of", lambda device: side),
        mock.patch.object(gpu_jobs, "devices_of", lambda flat: []),
        mock.patch.object(controller_state, "Future", lambda devices: gd.Future()),
    ):
        yield side


def averages_there(state: Any, model: Given, step: int, growth: float = 1.0) -> dict[str, torch.Tensor]:
    """Return what the hook makes of a step's gradients, each ``growth`` times as large as the one before."""
    params = list(model.parameters())
    own = [growth**number * one for number, one in enumerate(gradients_of(step, rank()).values())]
    buckets = [
        Bucket(number, [params[i] for i in selected], [own[i] for i in selected])
        for number, selected in enumerate(BUCKETS)
    ]
    futures = [state.reduce(bucket) for bucket in buckets]
    results: dict[str, torch.Tensor] = {}
    for future, bucket, selected in zip(futures, buckets, BUCKETS, strict=True):
        assert isinstance(future.wait(), fake_gpu.FakeGpuTensor)
        results |= {f"parts.{i}": fake_gpu.to_host(one) for i, one in zip(selected, bucket.gradients(), strict=True)}
    return results


def follows_there(group: dist.ProcessGroup, name: str) -> None:
    """Check that averages are those that simulated ranks have on the host, also after a resume."""
    plan = CompressionPlan(PROMISES[name].setting)
    model, simulation = Given(), Simulation(group.size(), plan)
    states = [gd.CompressedGradients(model, plan, group=group) for _ in range(2)]
    with there() as side:
        for step in range(4):
            if step == 2:
                with fake_gpu.FakeGpuMode():
                    saved = states[0].state_dict()
                states[1].load_state_dict(saved)
                for tensor, memory in states[1].averager.memories.items():  # where parameters are: on the host, here
                    states[1].averager.memories[tensor] = {key: fake_gpu.to_fake_gpu(x) for key, x in memory.items()}
            wanted = simulation.average([gradients_of(step, who) for who in range(group.size())])[0]
            for tensor, average in averages_there(states[step // 2], model, step).items():
                assert same(average, wanted[tensor]), (step, tensor)
        assert side.waited == 4 * len(BUCKETS)


def decides_there(group: dist.ProcessGroup, name: str) -> list[Any]:
    """Floats sent of each tensor, step by step, under a controller; averages are those on the host, and so are they."""
    both = []
    for where in (there, on_the_host):
        model, result = Given(), []
        state = gd.AdaptiveGradients(
            model, PowerSGD(4) if name == "accordion" else TopK(0.1), copy.deepcopy(CONTROLLERS[name]), group=group
        )
        state.adaptive.clock = itertools.count().__next__
        with where():
            for step in range(5):
                averages = averages_there(state, model, step, growth=2.0)
                result.append((crc([*averages.values()]), [count.floats for count in state.averager.last.values()]))
        both.append(result)
    assert both[0] == both[1]
    return [floats for _, floats in both[0]]


@contextlib.contextmanager
def on_the_host() -> Iterator[None]:
    """Check that buckets really lie on the host."""
    with (
        mock.patch.object(fake_gpu, "to_fake_gpu", lambda item: item),
        mock.patch.object(fake_gpu, "FakeGpuTensor", torch.Tensor),
    ):
        yield


def refused_there(group: dist.ProcessGroup) -> None:
    """Check that types that compressors do not take are refused."""
    state = gd.CompressedGradients(Given(), TopK(0.1), group=group)
    for wrong in (torch.zeros(3, dtype=torch.complex64), torch.eye(3).to_sparse()):
        bucket = mock.Mock(
            parameters=list,
            buffer=lambda wrong=wrong: mock.Mock(
                wraps=wrong,
                is_cpu=False,
                is_cuda=True,
                is_sparse=wrong.is_sparse,
                dtype=wrong.dtype,
                layout=wrong.layout,
            ),
        )
        text = heard(partial(state.reduce, bucket), gcodec.Unsupported).text
        assert "cuda" in text or "are not supported" in text
