"""Cases that the ranks of tests/distributed/test_misuse.py run: training as it should not be."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.adaptive import GraVAC
from gcodec.compressors import RandomK, TopK
from gcodec.distributed.reduction.allreduce import allreduce_job, dense_allreduce
from gcodec.distributed.reduction.reduce_request import ReduceRequest
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport import lane as lane_module
from gcodec.distributed.transport.lane import Lane, lane_of
from gcodec.distributed.transport.transfers import Transfers
from gcodec.threads import Call
from tests.distributed.rank_basics import (
    Net,
    assert_refused,
    batch_of,
    crc,
    heard,
    only_on,
    rank,
    sabotage,
    size,
    take_steps,
)

PATIENCE = timedelta(seconds=20)


class Training:
    """A model of several buckets under DDP, with the hook and the state that ``make`` returns for model and group."""

    def __init__(self, make: Callable[[Any, Any], Any], group: Any = None) -> None:
        self.group = dist.new_group(timeout=timedelta(seconds=60)) if group is None else group
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.wrapped = DistributedDataParallel(self.model, bucket_cap_mb=0.5, process_group=self.group)
        self.state = make(self, self.group)
        self.wrapped.register_comm_hook(self.state, gd.hook)

    def steps(self, n: int) -> int:
        """Take some steps and return a checksum of the parameters."""
        take_steps(range(n), self.wrapped, self.optimizer)
        assert len(self.state.stats()["buckets"]) >= 3
        return crc(list(self.model.parameters()))

    def error(self, n: int = 3) -> str:
        """Return what the steps raise."""
        return heard(lambda: self.steps(n), RuntimeError, gcodec.GcodecError).text  # of a future, of the hook


def near(training: Training, group: Any, **options: Any) -> Any:
    """Return a state of the hook for near-lossless mode."""
    options = {"optimizer": training.optimizer, "min_bytes": 0, "threads": 1, "bypass": None, **options}
    return gd.CompressedAllreduce(group=group, timeout=PATIENCE, **options)


def top(training: Training, group: Any, **options: Any) -> Any:
    """Return a state of the hook for a compressor."""
    return gd.CompressedGradients(training.wrapped, TopK(0.1), group=group, timeout=PATIENCE, **options)


STATES = {"near": near, "top": top}


def closed(state: str) -> bool:
    """Return whether training goes on after its lane is closed as if it had not been."""
    results = []
    for closing in (False, True):
        training = Training(STATES[state])
        training.steps(4)
        lane = lane_of(training.group)
        if closing:
            gd.close_lanes(training.group)
            assert_refused(partial(lane.submit, lambda: None), by=gcodec.GcodecError, text="closed")
        results.append(training.steps(4))
    return results[0] == results[1]


def closed_when_broken(culprit: int) -> list[str]:
    """Return what steps raise after a fault, before and after the lane is closed."""
    training = Training(near)
    training.steps(2)
    with only_on(culprit, sabotage("payload")):
        texts = [training.error(1)]
    texts.append(training.error(1))
    gd.close_lanes(training.group)
    texts.append(training.error(1))
    fresh = torch.ones(3)
    gd.allreduce(fresh, training.group)
    assert (fresh == dist.get_world_size()).all()
    return texts


def late() -> list[str]:
    """Return what becomes of jobs that are handed in while another thread closes the lane."""
    lane, go = lane_of(dist.new_group(), PATIENCE), threading.Event()
    first = lane.submit(lambda: go.wait(30))
    closing = threading.Thread(target=lane.close)
    closing.start()
    ends, works = [], []
    while not lane.closed:
        try:
            works.append(lane.submit(lambda: "done"))
        except gcodec.GcodecError:
            break
    go.set()
    closing.join()
    for work in (first, *works):
        try:
            ends.append(str(work.wait()))
        except gcodec.GcodecError as error:
            ends.append(str(error))
    return ends


def between() -> bool:
    """An all-reduce that waits, on ranks that have not come to the end of what began before it, where another rank
    hands it in only when it waits for them."""
    lane = lane_of(dist.new_group(), PATIENCE)
    tensor, waits, go = torch.full((70_000,), float(rank())), threading.Event(), threading.Event()
    result, wait = torch.empty_like(tensor), Transfers._wait

    n_waits = count(1)

    def noticed(*arguments: Any) -> None:
        if next(n_waits) == dist.get_world_size():  # contributions are there: for what others do later
            waits.set()
        wait(*arguments)

    begun = allreduce_job(ReduceRequest(lane, tensor, result, gd.Lossless(), False, Counters()), threads=1)
    small = torch.ones(3)
    with mock.patch.object(Transfers, "_wait", noticed):
        if rank():
            lane.submit(lambda: go.wait(30))  # so that both are there
            works = [lane.submit(begun)]
        else:
            works = [lane.submit(begun)]
            assert waits.wait(30)
        works.append(lane.submit(lambda: dense_allreduce(lane, small, False, Counters())))
        go.set()
        for work in works:
            work.wait()
    n_ranks = dist.get_world_size()
    return bool((result == sum(range(n_ranks))).all() and (small == n_ranks).all())


def destroyed() -> tuple[str, int]:
    """What training in a group that has been destroyed raises once its lane is gone; how many lanes' threads are
    left of several such groups after a lane is made."""
    before = _threads()
    for _ in range(3):
        training = Training(near)
        training.steps(2)
        dist.destroy_process_group(training.group)
    other = lane_of(dist.new_group(), PATIENCE)
    orphans = _threads() - before - {other._thread}
    assert len(orphans) <= 3
    for item in orphans:
        item.join(30)
    return training.error(1), sum(item.is_alive() for item in orphans)


def restarted() -> list[str | None]:
    """Return what a lane reads as the reasons of failed ranks where an earlier attempt with the same store has left
    some, as torchrun's restarts do."""
    group = dist.new_group()
    lane = lane_of(group, PATIENCE)
    lane.failure_records.record("an earlier attempt")
    gd.close_lanes(group)
    lane = lane_of(group, PATIENCE)
    return [lane.failure_records.reason_of(who) for who in range(lane.size)]


def other_group() -> tuple[list[str], bool]:
    """Return what steps raise whose states are for the world where DDP's group is smaller, and whether a state that
    knows the model takes the model's group."""
    groups = [dist.new_group([who]) for who in range(dist.get_world_size())]
    for_the_world: list[Callable[[Any, Any], Any]] = [
        lambda training, _: near(training, None),
        lambda training, _: gd.AdaptiveGradients(training.model, TopK(0.1), GraVAC(TopK(0.1))),
    ]
    texts = [Training(make, groups[rank()]).error(1) for make in for_the_world]
    training = Training(lambda training, _: top(training, None), groups[rank()])
    return texts, training.state.group is training.group and not training.error(2)


def saved(state: str) -> tuple[bool, list[int]]:
    """Return whether a loaded state is that of a saved one, and how many steps it has counted after one of the loaded
    DDP model, and after one more with the hook registered anew."""
    training = Training(STATES[state], dist.group.WORLD)  # DDP saves itself on no other group
    training.steps(3)
    file = io.BytesIO()
    torch.save({"ddp": training.wrapped, "state": training.state}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    is_same = repr(loaded["state"].state_dict()) == repr(training.state.state_dict())
    before, counts = loaded["state"].stats()["steps"], []
    for hook in (None, gd.hook):
        if hook is not None:
            loaded["ddp"].register_comm_hook(loaded["state"], hook)
        loaded["ddp"](batch_of(0)[0]).sum().backward()
        counts.append(loaded["state"].stats()["steps"] - before)
    return is_same, counts


def raised(culprit: int) -> str | None:
    """Return what the others read when one rank ends by an error of its own code."""
    group = dist.new_group()
    lane = lane_of(group, PATIENCE)
    if rank() == culprit:
        with mock.patch.object(sys, "last_value", ZeroDivisionError("of its own"), create=True):
            lane_module.close_at_exit()
    dist.barrier(group)
    return lane.failure_records.reason_of(culprit)


def _threads() -> set[Call[None]]:
    """Return what the threads of lanes do that are at work; a thread keeps its lane."""
    lanes = [item for item in gc.get_objects() if isinstance(item, Lane)]
    return {lane._thread for lane in lanes if lane._thread.is_alive()}


def differing(what: str, culprit: int) -> str:
    """Return what training says when one rank has another option than the rest."""
    guilty = rank() == culprit
    other: dict[str, Any] = {
        "refresh": {"refresh": gd.Refresh(5)},
        "no refresh": {"refresh": None},
        "bypass": {"bypass": gd.Bypass()},
        "min_bytes": {"min_bytes": 1 << 30},
        "mode": {"optimizer": None, "mode": gd.FixedBits(8)},
        "accuracy": {"optimizer": None, "mode": "bf16"},
    }
    if what in other:
        return Training(lambda *of: near(*of, **other[what] if guilty else {})).error(8)
    if what == "state":
        return Training(top if guilty else near).error()
    before = Training(near)
    before.steps(4)
    training = Training(near)
    if guilty:
        training.state.load_state_dict(before.state.state_dict())
    return training.error()


def differing_groups(culprit: int, **other: Any) -> str:
    """Return what a collective of a process group says when one rank has another option than the rest."""
    options = gd.GroupOptions(timeout=PATIENCE, **(other if rank() == culprit else {}))
    group = dist.new_group(backend="gcodec", pg_options=options)
    return heard(lambda: dist.all_reduce(torch.ones(100_000), group=group)).text


def differing_diloco(culprit: int) -> str:
    """Return what DiLoCo says when one rank has another option than the rest."""
    outer = torch.optim.SGD(Net().parameters(), lr=0.7)
    group, every = dist.new_group(), 3 if rank() == culprit else 2
    return heard(lambda: gd.DiLoCo(outer, every, group=group, timeout=PATIENCE)).text


def group_of_a_closed_lane() -> tuple[bool, bool]:
    """Return whether the private group of a lane lives before and after the lane is closed, though the lane is kept."""
    group = dist.new_group()
    lane = lane_of(group, PATIENCE)
    gd.allreduce(torch.ones(30_000), group)
    private = weakref.ref(lane.group)
    before = private() is not None
    gd.close_lanes(group)
    return before, private() is not None


def changed(culprit: int) -> str:
    """Return what training says when one rank loads a state between steps."""
    training = Training(lambda *of: near(*of, refresh=gd.Refresh(3)))
    saved = training.state.state_dict()
    training.steps(8)
    if rank() == culprit:
        training.state.load_state_dict(saved)
    return training.error(1)


def in_a_callback() -> list[str]:
    """Return what an all-reduce raises that is started by what waits for another one, on the lane's thread."""
    group, release, texts = dist.new_group(), threading.Event(), list[str]()
    lane_of(group, PATIENCE).submit(release.wait)
    future = gd.allreduce(torch.ones(30_000), group, async_op=True)

    def start_another(_: object) -> None:
        begin = partial(gd.allreduce, torch.ones(30_000), group, async_op=True)
        texts.append(heard(begin, gcodec.Unsupported).text)

    after = future.get_future().then(start_another)
    release.set()
    after.wait()
    total = torch.ones(30_000)
    gd.allreduce(total, group)
    assert bool((total == size()).all())
    return texts


def torn(culprit: int) -> str:
    """Return what training with a compressor says when one rank has loaded the state of an earlier step than the
    others."""
    training = Training(
        lambda training, group: gd.CompressedGradients(training.wrapped, RandomK(0.1), group=group, timeout=PATIENCE)
    )
    training.steps(2)
    saved = training.state.state_dict()
    training.steps(2)
    if rank() == culprit:
        training.state.load_state_dict(saved)
    return training.error(1)


def torn_diloco(culprit: int) -> str:
    """Return what DiLoCo says when one rank has loaded the state of an earlier step than the others."""
    model = Net()
    diloco = gd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.7), 2, group=dist.new_group(), timeout=PATIENCE)
    saved = diloco.state_dict()
    text = ""
    for step in range(4):
        if step == 2 and rank() == culprit:
            diloco.load_state_dict(saved | {"steps": 4})
        text = heard(diloco.step).text or text
    return text


def strangers(held: int) -> list[str]:
    """Return the warnings when the mode's optimizer holds only the first ``held`` parameters of the model."""

    def make(training: Training, group: Any) -> Any:
        params = [*list(training.model.parameters())[:held], nn.Parameter(torch.zeros(3))]
        return near(training, group, optimizer=torch.optim.SGD(params, lr=0.01))

    training = Training(make)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        training.steps(4)
    return [str(item.message) for item in warned if "optimizer" in str(item.message)]


def death(culprit: int) -> tuple[str, str]:
    """What steps say when a rank has died between two, where Gloo reduces all buckets: this one, and the next."""
    training = Training(lambda *of: near(*of, min_bytes=1 << 30))
    training.steps(3)
    if rank() == culprit:
        os._exit(1)
    return training.error(1), training.error(1)


def serve_store(pipe: Any) -> None:
    """Serve a store, and tell its port."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.recv()
