"""What the ranks of tests/distributed/test_faults.py run. Every function here is one rank's part."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.distributed.reduction import coder
from gcodec.distributed.transport import failures
from gcodec.distributed.transport import lane as lanes
from gcodec.distributed.transport.lane import lane_of
from tests.distributed.rank_basics import Heard, Net, heard, loss_at, only_on, rank, sabotage, values_at


def fault(kind: str, culprit: int, patience: float = 30) -> tuple[str, str, bool, str]:
    """An all-reduce in which one rank does wrong: the error here, its text, whether the tensor is untouched, and the
    error of the next all-reduce."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    timeout = timedelta(seconds=patience)
    lane = lane_of(group, timeout)
    terms = values_at(rank(), 400_000, torch.float32)
    gd.allreduce(terms.clone(), min_bytes=0, threads=1)  # in another lane: then nobody is slow
    tensor = terms.clone()
    options: dict[str, Any] = {"group": group, "min_bytes": 0, "threads": 1}
    guilty = rank() == culprit

    def take_part() -> None:
        if guilty and kind == "mode":
            gd.allreduce(tensor, mode=gd.FixedBits(3), **options)
        elif guilty and kind in ("longer", "shorter"):
            gd.allreduce(torch.zeros(6_000_000 if kind == "longer" else 10_000, dtype=torch.float64), **options)
        elif guilty and kind == "sequence":
            lane.next_sequence()
            gd.allreduce(tensor, **options)
        elif not (guilty and kind == "silence"):
            gd.allreduce(tensor, **options)

    with only_on(culprit, sabotage(kind)):
        first = heard(take_part, gcodec.GcodecError, ZeroDivisionError)
    untouched = torch.equal(tensor, terms)
    following = heard(lambda: gd.allreduce(tensor, **options), gcodec.PeerError) if first.kind else Heard()
    return *first, untouched, following.text


def full_queue(culprit: int, patience: float) -> list[str]:
    """Return the errors of more all-reduces than may wait while a rank is silent."""
    lane_of(group := dist.new_group(timeout=timedelta(seconds=60)), timedelta(seconds=patience))
    if rank() == culprit:
        return []
    begun, texts = list[Any](), list[str]()
    with mock.patch.object(lanes, "_MAX_QUEUED", 3):
        lane_of(group)._queue.maxsize = 3
        for _ in range(9):
            try:
                begun.append(gd.allreduce(torch.ones(100_000), group, min_bytes=0, async_op=True))
            except gcodec.PeerError as error:
                texts.append(str(error))
    return [*texts, *filter(None, (heard(item.wait, gcodec.PeerError).text for item in begun))]


def death(culprit: int) -> tuple[list[tuple[str, str]], int]:
    """One rank dies in the middle of an all-reduce: the errors of that one and of later ones, and how often a rank has
    looked for what another one may have said of why it has gone."""
    tensor = values_at(rank(), 4_000_000, torch.float32)
    gd.allreduce(tensor, min_bytes=0, timeout=timedelta(seconds=30))
    leaves = only_on(culprit, mock.patch.object(coder.Coder, "encode", lambda *_: os._exit(1)))
    with leaves, mock.patch.object(failures, "_briefly", side_effect=failures._briefly) as looks:
        errors = [heard(lambda: gd.allreduce(tensor, min_bytes=0)) for _ in range(4)]
        gd.close_lanes()
    return [(error.kind, error.text) for error in errors if error.kind], looks.call_count


def backward_error() -> str:
    """Return what the user sees when an all-reduce fails under DDP."""
    model = Net()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.5, process_group=dist.new_group())
    state = gd.CompressedAllreduce(group=wrapped.process_group, min_bytes=0, timeout=timedelta(seconds=20))
    wrapped.register_comm_hook(state, gd.hook)
    with only_on(1, sabotage("payload")):
        return heard(lambda: loss_at(0, wrapped).backward(), RuntimeError).text


def timeouts() -> list[timedelta]:
    """Return how long lanes of groups with timeouts of their own, and of one without, wait for a silent rank."""
    groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for seconds in (77, 9000)]
    found = [lane_of(group).timeout for group in groups]
    found.append(lane_of(dist.new_group(timeout=timedelta(seconds=99)), timedelta(seconds=20)).timeout)
    return found
