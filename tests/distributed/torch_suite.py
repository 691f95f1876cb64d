"""PyTorch's own tests of torch.distributed, with gcodec's process group or its hook in the place of Gloo's.

    python -m tests.distributed.torch_suite {gloo,group,hook} [NAME ...]

runs the named tests of ``torch.testing._internal.distributed.distributed_test``, or all, each among three processes,
and prints how each ended. ``gloo`` runs them as PyTorch does. Only tests that make a ``DistributedDataParallel`` are
run with ``hook``, which every model gets that has no hook of its own by its first forward pass. Tests that ask for
CUDA devices run in CPU memory, but those of ``LEFT_OUT``.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing as mp
import os
import sys
import unittest
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

os.environ.setdefault("BACKEND", "gloo")
os.environ.setdefault("WORLD_SIZE", "3")

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed import distributed_test as of_torch

import gcodec.distributed as gd

GLOO, GROUP, HOOK = WAYS = "gloo", "group", "hook"
_SYNC, _DEVICE = "SyncBatchNorm refuses CPU memory", "asks for the number of a CUDA device"
_NCCL = "asks for NCCL"
#: Tests that are not run, and why. But for the one that takes too long, they fail on Gloo in CPU memory, too.
LEFT_OUT = {
    "test_average_parameters": _NCCL,
    "test_ddp_apply_optim_in_backward": _DEVICE,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": _DEVICE,
    "test_ddp_apply_optim_in_backward_ignored_params": _DEVICE,
    "test_ddp_compile_static_graph": "torch.compile does not take the functions that stand in for CUDA's",
    "test_ddp_device": _DEVICE,
    "test_ddp_inference": _SYNC,
    **{
        f"test_ddp_native_mixed_precision_{view}_{unset}": "records CUDA events"
        for view in ("grad_as_bucket_view", "no_grad_as_bucket_view")
        for unset in ("no_set_grad_none", "set_grad_to_none")
    },
    "test_ddp_uneven_inputs": "had not ended after five minutes",
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": _SYNC,
    "test_monitored_barrier_allreduce_hang": _NCCL,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _NCCL,
    "test_sync_bn_logged": _SYNC,
}


class InCpuMemory(TorchFunctionMode):
    """Puts what a test means for a CUDA device into CPU memory."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch with other devices."""
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.to and len(args) > 1 and isinstance(args[1], int):
            args = args[0], _CPU, *args[2:]
        args = tuple(_CPU if _is_cuda(argument) else argument for argument in args)
        kwargs = {
            k: _CPU if _is_cuda(v) or (k == "device" and isinstance(v, int)) else v for k, v in (kwargs or {}).items()
        }
        return function(*args, **kwargs)


_CPU = torch.device("cpu")


def _is_cuda(argument: Any) -> bool:
    return str(argument).startswith("cuda") if isinstance(argument, (torch.device, str)) else False


def _pretend_gpus() -> None:
    """Let tests that ask for CUDA devices run all the same, in CPU memory."""
    make: Any = DistributedDataParallel.__init__
    move: Any = torch.nn.Module.to

    def made(ddp: Any, module: Any, *_: Any, **named: Any) -> None:
        make(ddp, module, **{**named, "device_ids": None, "output_device": None})

    def moved(module: Any, *where: Any, **named: Any) -> Any:
        return move(module, *(_CPU if isinstance(each, int) else each for each in where), **named)

    def nothing(*_: Any, **__: Any) -> None:
        pass

    for owner, name, stand_in in (
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: int(os.environ["WORLD_SIZE"])),
        (torch.cuda, "set_device", nothing),
        (torch.cuda, "synchronize", nothing),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "device", lambda _: nullcontext()),
        (torch.nn.Module, "to", moved),
        (DistributedDataParallel, "__init__", made),
    ):
        setattr(owner, name, stand_in)
    torch.set_num_threads(1)
    InCpuMemory().__enter__()


class OnGloo(of_torch.TestDistBackend, of_torch.DistributedTest._DistTestBase):
    """The tests as they are."""

    @classmethod
    def _run(cls, *arguments: Any, **options: Any) -> None:
        _pretend_gpus()
        super()._run(*arguments, **options)

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._start_processes(mp.get_context("fork").Process)  # torch's tests spawn, which imports all of it anew


class OnGroup(OnGloo):
    """The tests with gcodec's process group wherever Gloo's is asked for; it compresses whatever has a value."""

    @classmethod
    def _run(cls, *arguments: Any, **options: Any) -> None:
        gd.register_backend("gcodec", gd.GroupOptions(min_bytes=1, threads=1))
        for name in ("init_process_group", "new_group"):
            setattr(dist, name, _on_gcodec(getattr(dist, name)))
        super()._run(*arguments, **options)


class OnHook(OnGloo):
    """The tests with gcodec's hook, lossless, on models without another."""

    @classmethod
    def _run(cls, *arguments: Any, **options: Any) -> None:
        before = DistributedDataParallel._pre_forward

        def pre_forward(ddp: Any, *inputs: Any, **named: Any) -> Any:
            if not hasattr(ddp, "tried_hook"):
                ddp.tried_hook = True
                if not ddp._comm_hooks and not getattr(ddp, "_delay_all_reduce_all_params", False):
                    state = gd.CompressedAllreduce(group=ddp.process_group, min_bytes=1, bypass=None, threads=1)
                    ddp.register_comm_hook(state, gd.hook)
            return before(ddp, *inputs, **named)

        setattr(DistributedDataParallel, "_pre_forward", pre_forward)  # noqa: B010 - mypy takes no assignment to it
        super()._run(*arguments, **options)


CLASSES: dict[str, type[OnGloo]] = {GLOO: OnGloo, GROUP: OnGroup, HOOK: OnHook}


def _on_gcodec(function: Any) -> Any:
    """Return a function of torch.distributed that makes a group of gcodec where it is asked for one of Gloo."""

    def called(*arguments: Any, **options: Any) -> Any:
        arguments = tuple("gcodec" if argument == "gloo" else argument for argument in arguments)
        return function(*arguments, **{k: "gcodec" if v == "gloo" else v for k, v in options.items()})

    return called


class Outcome(NamedTuple):
    """How a test ended: "passed", "skipped" or "failed", and why: the text of a failure, or of a skip."""

    name: str
    how: str
    why: str = ""


def names_for(way: str) -> list[str]:
    """Return the names of the tests that say something about a way."""
    cls = CLASSES[way]
    names = [name for name in unittest.TestLoader().getTestCaseNames(cls) if name not in LEFT_OUT]
    return [name for name in names if way != HOOK or "DistributedDataParallel" in inspect.getsource(getattr(cls, name))]


def outcomes(way: str, names: Sequence[str]) -> Iterator[Outcome]:
    """Run tests one after another, and yield how each ended."""
    for name in names:
        result = unittest.TestResult()
        CLASSES[way](name).run(result)
        bad = [*result.failures, *result.errors]
        if bad:
            yield Outcome(name, "failed", bad[0][1])
        elif result.skipped:
            yield Outcome(name, "skipped", result.skipped[0][1])
        else:
            yield Outcome(name, "passed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.distributed.torch_suite", description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args(arguments)
    for outcome in outcomes(options.way, options.names or names_for(options.way)):
        print(outcome.name, outcome.how, flush=True)
        if outcome.how == "failed":
            print(outcome.why, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
