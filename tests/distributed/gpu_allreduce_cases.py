"""The all-reduce of CUDA tensors among ranks without a device: what runs, in tests/distributed/test_gpu_allreduce.py.

Here every tensor counts as one on a device. In place of the device's codec stands the host's, which writes other frames
of the same values (:mod:`tests.gpu.test_pretended_device` compares the two); sizes, frames, sums, levels' places,
errors and the order of all of it are the real ones. Frames travel as they would from a device without NCCL, through the
lane's Gloo group, or as they would with it: by the same one collective of a group that takes the tensors as they are.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.distributed import collectives, diloco
from gcodec.distributed.ddp import codec_state
from gcodec.distributed.reduction import allreduce, gpu_coder, gpu_jobs, gpu_levels, ways
from gcodec.distributed.reduction.reduce_request import ReduceRequest
from gcodec.distributed.stats import Counters
from gcodec.distributed.transport import gpu as gpu_transport
from gcodec.distributed.transport.lane import Lane, lane_of, private_group
from gcodec.distributed.transport.work import LaneWork
from gcodec.format.prelude import prelude_size
from gcodec.frame.decode import read_start
from gcodec.truncation.optimizers import levels_for, view_from_dump
from tests.distributed import allreduce_cases, ddp_cases, fsdp_cases
from tests.distributed.rank_basics import (
    Heard,
    all_terms,
    crc,
    dense_sum,
    heard,
    loss_at,
    only_on,
    rank,
    same_bits,
    size,
    values_at,
)

CALLS = {"fresh": 0, "encode": 0, "frames": 0}


def fresh_codebook(tensors: Sequence[torch.Tensor], **options: Any) -> object:
    CALLS["fresh"] += 1
    return object()


def start_batch(tensors: Sequence[torch.Tensor], *, codebook: object, **options: Any) -> Any:
    assert codebook is not None
    CALLS["encode"] += 1
    CALLS["frames"] += len(tensors)
    graded = options.pop("levels", [None] * len(tensors))
    options["options"] = gcodec.EncoderOptions(exact_if_smaller=False)  # as on a device
    frames = [
        gcodec.encode(x, levels=None if own is None else own.numpy(), threads=1, **options)
        for x, own in zip(tensors, graded, strict=True)
    ]
    made = [torch.frombuffer(bytearray(frame), dtype=torch.uint8) for frame in frames]
    starts = [frame[: prelude_size(np.frombuffer(frame, np.uint8))[0]] for frame in frames]
    return SimpleNamespace(frames=made, preludes=starts, begin_preludes=lambda: None)


def start_decode(
    frames: Sequence[torch.Tensor], *, device: Any, max_output_bytes: int, preludes: Sequence[bytes | None]
) -> Any:
    """Decode at once, and tell later what is wrong, as a device does; of preludes at once."""
    tensors, errors = [], {}
    for number, (frame, prelude) in enumerate(zip(frames, preludes, strict=True)):
        data = bytes(frame.numpy())
        head = np.frombuffer(prelude or data, np.uint8)
        start, *_ = read_start(head, *prelude_size(head, len(data)))
        try:
            tensors.append(gcodec.decode(data, like="torch", max_output_bytes=max_output_bytes))
        except gcodec.Corruption as error:
            tensors.append(torch.full(start.shape, float("nan"), dtype=getattr(torch, start.dtype.name)))
            errors[number] = error
    assert sum(item.nbytes for item in tensors) <= max_output_bytes
    return SimpleNamespace(tensors=tensors, errors=errors, ended=lambda: True)


def levels_batch(
    views: Sequence[Any], params: Sequence[torch.Tensor], grads: Sequence[torch.Tensor], **options: Any
) -> list[torch.Tensor]:
    results = []
    for known, param, grad in zip(views, params, grads, strict=True):
        view = view_from_dump(known.name, known.hyper, known.state)
        results.append(torch.from_numpy(levels_for(view, param, grad, **options)))
    return results


CODEC = SimpleNamespace(
    fresh_codebook=fresh_codebook, start_batch=start_batch, start_decode=start_decode, levels_batch=levels_batch
)


class _InPlaceOfNccl:
    """A Gloo group in the place of a private one of NCCL's; ``ends`` has how those of this process were ended.

    Args:
        lane: The lane whose ranks it has.
        device: The device of the tensors.
    """

    ends: ClassVar[list[str]] = []

    def __init__(self, lane: Lane, device: torch.device) -> None:
        self._group = private_group(PrefixStore("in place of nccl/", lane.store), lane.rank, lane.size, lane.timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def shutdown(self) -> None:
        self.ends.append("shutdown")

    def abort(self) -> None:
        self.ends.append("abort")


@contextlib.contextmanager
def there(by: str) -> Iterator[mock.Mock]:
    """Make all tensors seem to be on a device; frames travel ``by`` "group" or "staged"."""
    is_on_gpu = mock.Mock(return_value=True)
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (gpu_coder, "gpu", CODEC),
            (gpu_levels, "gpu", CODEC),
            (allreduce, "is_on_gpu", is_on_gpu),
            (codec_state, "is_on_gpu", is_on_gpu),
            (diloco, "is_on_gpu", is_on_gpu),
            (collectives, "is_on_gpu", is_on_gpu),
            (gpu_transport, "has_nccl", lambda group: by == "group"),
            (gpu_transport, "_private_nccl", _InPlaceOfNccl),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield is_on_gpu


def on_devices(what: Callable[..., Any], by: str, **arguments: Any) -> Any:
    """Run a case of another module as if on devices, on a group of its own, for wires are kept."""
    gd.close_lanes()
    with there(by) as is_on_gpu:
        result = what(**arguments)
        assert is_on_gpu.called
    gd.close_lanes()
    return result


def on_host(what: Callable[..., Any], **arguments: Any) -> Any:
    """Run a case of another module as it is."""
    return what(**arguments)


def encodings(mode: str) -> tuple[int, int]:
    """Return how often a rank encodes in an all-reduce, and how many frames that makes."""
    gd.close_lanes()
    param = torch.nn.Parameter(torch.ones(100_000))
    near = gd.NearLossless(torch.optim.SGD([param], lr=0.1))
    chosen: Any = {"lossless": gd.Lossless(), "fixed": gd.FixedBits(5), "near": near}[mode]
    CALLS.update(encode=0, frames=0)
    with there("staged"):
        gd.allreduce(values_at(rank(), 100_000, torch.float32), mode=chosen, params=param)
    gd.close_lanes()
    return CALLS["encode"], CALLS["frames"]


def refreshes() -> tuple[int, int]:
    """Return how often codebooks are made in a training, and how often one is needed."""
    CALLS.update(fresh=0, encode=0)
    on_devices(
        ddp_cases.train,
        "staged",
        mode="lossless",
        steps=9,
        state_options={"refresh": gd.Refresh(interval=5, trigger=9.0)},
    )
    return CALLS["fresh"], CALLS["encode"]


def damaged_by(culprit: int, is_due: Callable[[], bool], what: str = "payload") -> Any:
    """Return the patch with which a rank sends damaged frames, or preludes of them, of the batches for which
    ``is_due``, asked once for each batch, says so on it."""

    def start_and_damage(tensors: Sequence[torch.Tensor], **options: Any) -> Any:
        batch, due = start_batch(tensors, **options), is_due()
        return damaged(batch, what) if due and rank() == culprit else batch

    return mock.patch.object(CODEC, "start_batch", start_and_damage)


def damaged(batch: Any, what: str) -> Any:
    """Change a bit of each frame of a batch, or of each prelude."""
    for frame in batch.frames if what == "payload" else ():
        frame[len(frame) - len(frame) // 4] ^= 1
    if what == "prelude":
        batch.preludes = [bytes([*prelude[:-1], prelude[-1] ^ 1]) for prelude in batch.preludes]
    return batch


def going_on(n_looks: int) -> Any:
    """Return the patch with which frames are not there yet when the host looks for them so many times."""

    def start_and_go_on(*arguments: Any, **options: Any) -> Any:
        batch = start_decode(*arguments, **options)
        looks = iter(range(n_looks))
        batch.ended = lambda: next(looks, None) is None  # as if the network still had the frames
        return batch

    return mock.patch.object(CODEC, "start_decode", start_and_go_on)


def closed(group: dist.ProcessGroup) -> None:
    """Close the lane of a group of which a rank has failed, once all ranks know that."""
    dist.barrier()
    gd.close_lanes(group, 1.0)


def fault(kind: str, culprit: int, by: str) -> tuple[str, str, bool, str]:
    """Run :func:`fault_cases.fault` as if on devices."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    lane = lane_of(group, timedelta(seconds=2 if kind in ("size", "host") else 30))
    tensor = values_at(rank(), 400_000, torch.float32)
    before = tensor.clone()
    if kind == "host":
        patch = mock.patch.object(allreduce, "is_on_gpu", lambda tensor: False)
    else:
        patch = mock.patch.object(CODEC, "start_batch", _sabotaged(kind))
    reduce = partial(gd.allreduce, tensor, group=group, min_bytes=0, threads=1)
    with there(by), only_on(culprit, patch):
        first, second = (heard(reduce, gcodec.GcodecError, ZeroDivisionError) for _ in range(2))
    assert lane.failure is not None
    closed(group)
    return *first, torch.equal(tensor, before), second.text


def lost(culprit: int, by: str, compressed: bool) -> Heard:
    """An all-reduce of which a rank takes no part, or none any more when frames are to travel; its error."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    lane_of(group, timedelta(seconds=2))
    reduce = partial(
        gd.allreduce, values_at(rank(), 90_000, torch.float32), group=group, min_bytes=0 if compressed else 1 << 30
    )
    with there(by), contextlib.ExitStack() as stack:
        if rank() == culprit:
            broken = mock.Mock(side_effect=RuntimeError("the device's network is gone"))
            for owner in (gpu_transport.NcclTransport, gpu_transport.StagedTransport):
                for method in ("swap", "all_reduce"):
                    stack.enter_context(mock.patch.object(owner, method, broken))
        found = heard(reduce)
    closed(group)
    return found


def silent(culprit: int) -> str:
    """An all-reduce that a rank does not come to; the error here."""
    group = dist.new_group(timeout=timedelta(seconds=60))
    lane_of(group, timedelta(seconds=2))
    reduce = partial(gd.allreduce, values_at(rank(), 90_000, torch.float32), group=group, min_bytes=0)
    with there("group"):
        found = Heard() if rank() == culprit else heard(reduce, gcodec.PeerError)
    closed(group)
    return found.text


def damaged_bucket(culprit: int, bucket: int, by: str, what: str) -> tuple[int, str]:
    """A training in whose third step a rank sends damaged frames of a bucket, which the others' devices find when the
    host has gone on; the step in which ``backward`` fails here, and the error.

    Args:
        culprit: The rank.
        bucket: Number of the bucket.
        by: How frames travel.
        what: "payload": of the contributions; "sums": the preludes of sums, that travel with the bucket behind.
    """
    gd.close_lanes()
    group, sizes = dist.new_group(timeout=timedelta(seconds=30)), (90_000,) * 3
    model = DistributedDataParallel(ddp_cases.Given(sizes), bucket_cap_mb=0.1, process_group=group)
    state = gd.CompressedAllreduce(group=group, min_bytes=0, bypass=None)
    held = ddp_cases.HeldUp(lane_of(group)) if what == "sums" else None
    model.register_comm_hook(state, gd.hook if held is None else held.hook)
    n_halves = 1 if size() == 2 else 2

    def train_step(step: int) -> None:
        if held is not None and step:  # the first has its own buckets
            held.begin_step()
        model([values_at(rank() + step, n, torch.float32) for n in sizes]).backward()

    number = n_halves * bucket + (what == "sums")
    damage = "payload" if what == "payload" else "prelude"
    with there(by), going_on(1 << 30):
        return failed_step(train_step, group, lambda step: damaged_by(culprit, counting_to(number, step == 2), damage))


def counting_to(number: int, is_due: bool = True) -> Callable[[], bool]:
    """Return a function that returns whether it has been called just ``number`` times before, if it ever may."""
    calls = itertools.count()
    return lambda: next(calls) == number and is_due


def failed_step(
    train_step: Callable[[int], None], group: dist.ProcessGroup, patch_at: Callable[[int], Any]
) -> tuple[int, str]:
    """Return the step that fails here, of the first four of a training, each with a patch, and its error."""
    for step in range(4):
        with patch_at(step):
            # Work of torch makes a RuntimeError of an error of gcodec.
            text = heard(partial(train_step, step), gcodec.GcodecError, RuntimeError).text
        if text:
            closed(group)
            return step, text
    return -1, ""


def followed_by_the_host() -> bool:
    """Check that an all-reduce on devices ends which has left its sums to a next job that is one of the host's."""
    gd.close_lanes()
    terms = all_terms(90_000)
    mine, go_on = terms[rank()], threading.Event()
    results = [torch.empty_like(mine) for _ in range(2)]
    with there("group"):
        lane = lane_of(None)
        first, second = (
            ReduceRequest(lane, mine, result, gd.Lossless(), True, Counters(), label="all") for result in results
        )
        lane.submit(lambda: go_on.wait(60))
        futures = [
            lane.submit(gpu_jobs.gpu_reduction_job(first, goes_on=lambda: True)),
            lane.submit(allreduce.allreduce_job(second, threads=1)),
        ]
        go_on.set()
        for future in futures:
            LaneWork(future).wait(timedelta(seconds=30))
    gd.close_lanes()
    return all(same_bits(result, dense_sum(terms, True)) for result in results)


def in_place_again() -> bool:
    """Check all-reduces that wait for each other, of tensors some of which one before has written to, or a view of it;
    the last are reduce-scatters."""
    gd.close_lanes()
    group = dist.group.WORLD
    assert group is not None
    n = 60_000 // size() * size()
    starts = [[values_at(who + 7 * k, n, torch.float32) for who in range(size())] for k in range(2)]
    once = [dense_sum(terms, False) for terms in starts]
    twice = dense_sum([once[0]] * size(), False)
    first, second = (terms[rank()].clone() for terms in starts)
    part = torch.empty(n // size())
    with there("group"):
        options = gd.GroupOptions(min_bytes=0, bypass=None)
        made, held = collectives.Collectives(options, "group", on_gpu=True), ddp_cases.HeldUp(lane_of(group))
        held.begin_step()
        works = [made.all_reduce(group, [tensor], False) for tensor in (first, first.view(-1, size()), second)]
        works.append(made.reduce_scatter(group, [(first, part)], False))
        held.let_go()
        for work in works:
            assert work is not None and work.wait()
    gd.close_lanes()
    own = slice(rank() * len(part), (rank() + 1) * len(part))
    scattered = dense_sum([twice[own]] * size(), False)
    return same_bits(first, twice) and same_bits(second, once[1]) and same_bits(part, scattered)


def plain_in_place_again() -> bool:
    """Check plain all-reduces that wait for each other, of a tensor that one before has written to, and of a gradient
    whose levels come from a state that one before has written to."""
    gd.close_lanes()
    n = 60_000
    starts = [[values_at(who + 7 * k, n, torch.float32) for who in range(size())] for k in range(2)]
    wanted = dense_sum([dense_sum(starts[0], False)] * size(), False)
    ended = []
    with there("group"):
        for waits in (False, True):
            param = torch.nn.Parameter(torch.ones(n))
            optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
            momentum = torch.full((n,), 1e3 * 4.0 ** rank())
            optimizer.state[param]["momentum_buffer"] = momentum
            first, gradient = (terms[rank()].clone() for terms in starts)
            near: dict[str, Any] = {"mode": gd.NearLossless(optimizer), "params": param}
            held = ddp_cases.HeldUp(lane_of(None))
            if waits:
                held.begin_step()
            written = (first, first.view(-1, 2), momentum)
            futures = [gd.allreduce(tensor, min_bytes=0, async_op=True) for tensor in written]
            if not waits:
                for future in futures:
                    future.wait()
            futures.append(gd.allreduce(gradient, min_bytes=0, async_op=True, **near))
            held.let_go()
            for future in futures:
                future.wait()
            ended.append([first, momentum, gradient])
    gd.close_lanes()
    lossy = not same_bits(ended[0][2], dense_sum(starts[1], False))
    return lossy and same_bits(ended[0][0], wanted) and all(map(same_bits, *ended))


def damaged_collective(culprit: int, number: int, by: str, plain: bool) -> list[tuple[str, bool]]:
    """Several all-reduces, plain ones or of a process group, that wait for each other, of which a rank sends damaged
    frames of one; of each of them the error here, and whether its tensor is as it was."""
    gd.close_lanes()
    group, n_halves = dist.new_group(timeout=timedelta(seconds=30)), 1 if size() == 2 else 2
    before = values_at(rank(), 90_000, torch.float32)
    tensors, found = [before.clone() for _ in range(3)], []

    with there(by), damaged_by(culprit, counting_to(n_halves * number)):
        options = gd.GroupOptions(min_bytes=0, bypass=None)
        made, held = collectives.Collectives(options, "group", on_gpu=True), ddp_cases.HeldUp(lane_of(group))
        held.begin_step()
        if plain:
            works: list[Any] = [gd.allreduce(tensor, group=group, min_bytes=0, async_op=True) for tensor in tensors]
        else:
            works = [made.all_reduce(group, [tensor], False) for tensor in tensors]
        held.let_go()
        for work, tensor in zip(works, tensors, strict=True):
            assert work is not None
            text = heard(work.wait, gcodec.GcodecError, RuntimeError).text
            found.append((text, same_bits(tensor, before)))
    closed(group)
    return found


def damaged_fsdp(culprit: int, unit: int, is_read: bool) -> tuple[int, str]:
    """A training with FSDP2 in whose third step a rank sends damaged frames of a unit's gradients, which the others'
    devices find when the host has gone on; the step in which ``backward`` fails here, and the error.

    Args:
        culprit: The rank.
        unit: Number of the unit, in the order in which they are reduced.
        is_read: Whether the first rank reads all gradients at once, so that no error may be found later.
    """
    gd.close_lanes()
    group = dist.new_group(timeout=timedelta(seconds=30))
    model = fsdp_cases.sharded(DeviceMesh.from_group(group, "cpu"))
    gd.compress_fsdp(model, min_bytes=1000, parameters=False, bypass=None, timeout=timedelta(seconds=20))
    for item in model.parameters():
        if is_read and rank() == 0:
            item.register_post_accumulate_grad_hook(lambda param: None)

    def train_step(step: int) -> None:
        model.zero_grad()  # gradients that are added to are read at once
        loss_at(step, model).backward()

    with there("group"), going_on(3):
        return failed_step(train_step, group, lambda step: damaged_by(culprit, counting_to(unit, step == 2)))


def ends_of_private_groups(culprit: int) -> tuple[list[str], list[str]]:
    """Return how the private NCCL group ended with its lane: with one that is closed, and with one that has failed."""
    _InPlaceOfNccl.ends.clear()
    on_devices(allreduce_cases.exact, "group", dtype="float32", sizes=(2,), kinds=("normal",), min_bytes=0)
    closed = [*_InPlaceOfNccl.ends]
    _InPlaceOfNccl.ends.clear()
    fault("other values", culprit, "group")
    return closed, [*_InPlaceOfNccl.ends]


def warmed(by: str) -> list[tuple[int, int, int]]:
    """Return how often kernels were loaded, private groups made, and frames sent from device to device, after a warm-up
    and after an all-reduce."""
    gd.close_lanes()
    counts = []
    with there(by), contextlib.ExitStack() as stack:
        here = mock.Mock(return_value=torch.device("cpu"))
        stack.enter_context(mock.patch.object(gcodec.gpu, "warmup_device", here))
        private = stack.enter_context(mock.patch.object(gpu_transport, "_private_nccl", side_effect=_InPlaceOfNccl))
        kind = gpu_transport.NcclTransport if by == "group" else gpu_transport.StagedTransport
        swap = stack.enter_context(mock.patch.object(kind, "swap", autospec=True, side_effect=kind.swap))
        gd.warmup("cuda")
        counts.append((here.call_count, private.call_count, swap.call_count))
        gd.allreduce(values_at(rank(), 70_000, torch.float32), min_bytes=0)
        counts.append((here.call_count, private.call_count, swap.call_count))
    gd.close_lanes()
    return counts


def waits_for_dense_buckets() -> tuple[list[int], list[int]]:
    """Return, by step, how often the host waits for the device while all buckets are sent uncompressed, and how many
    buckets there are; the bypass tries from the fourth step on."""
    gd.close_lanes()
    waits, buckets = list[int](), list[int]()
    model = DistributedDataParallel(ddp_cases.Given((300_000, 70_000, 300_000)), bucket_cap_mb=1)
    state = gd.CompressedAllreduce(min_bytes=1 << 30, bypass=gd.Bypass(steps=1, every=100))
    model.register_comm_hook(state, gd.hook)
    with there("group"), mock.patch.object(gpu_coder.SideStream, "finish") as finish:
        for _ in range(6):
            model([torch.ones(300_000), torch.ones(70_000), torch.ones(300_000)]).backward()
            waits.append(finish.call_count - sum(waits))
            buckets.append(int(state.stats()["last_step"]["calls"]))
    gd.close_lanes()
    return waits, buckets


def decided_by_the_bypass(by: str, coded: bool) -> list[tuple[int, int, int]]:
    """Return, of each step of a training, how many jobs the lane gets, how many buckets are compressed, and how many
    are not: of two sizes, the bypass has decided to send one or both uncompressed."""
    gd.close_lanes()
    sizes = (300_000, 90_000, 300_000)
    terms = [[values_at(who + n, n, torch.float32) for n in sizes] for who in range(size())]
    wanted = [dense_sum([own[part] for own in terms], True) for part in range(len(sizes))]
    model = DistributedDataParallel(ddp_cases.Given(sizes), bucket_cap_mb=0.3)
    state = gd.CompressedAllreduce(min_bytes=0, bypass=gd.Bypass())
    model.register_comm_hook(state, gd.hook)
    found = []
    with there(by), mock.patch.object(Lane, "submit", autospec=True, side_effect=Lane.submit) as submit:
        for _ in range(4):
            bypass: Any = state._bypass
            bypass.start, bypass.default = 1 << 30, ways.DENSE
            bypass.verdicts = {(4 * 300_000).bit_length(): ways.CODED} if coded else {}
            submit.reset_mock()
            model.zero_grad()
            model(terms[rank()]).backward()
            numbers = state.stats()["last_step"]
            found.append((submit.call_count, int(numbers["calls"] - numbers["dense"]), int(numbers["dense"])))
            grads = [part.grad for part in model.module.parts]
            assert all(torch.allclose(grad, mean) for grad, mean in zip(grads, wanted, strict=True))
    gd.close_lanes()
    return found


def compiled_for_buckets() -> tuple[list[str], list[str], list[str]]:
    """Return for which types the hook has compiled the CPU's kernels, where there is a device: when its state is made,
    after a bucket on the device, and after one in CPU memory."""
    gd.close_lanes()
    compiled: list[str] = []
    model = DistributedDataParallel(ddp_cases.Terms(70_000))
    with mock.patch.object(codec_state, "precompile_kernels", lambda dtype, *terms: compiled.append(dtype.name)):
        with mock.patch.object(torch.cuda, "is_available", lambda: True):
            state = gd.CompressedAllreduce(min_bytes=0, bypass=None)
        when_made = [*compiled]
        model.register_comm_hook(state, gd.hook)
        with there("group"):
            model(values_at(rank(), 70_000, torch.float32)).backward()
        on_device = [*compiled]
        model(values_at(rank(), 70_000, torch.float32)).backward()
    gd.close_lanes()
    return when_made, on_device, compiled


class _StandInForNccl(dist.ProcessGroupGloo):
    """Gloo under the name and with the arguments of NCCL's backend."""

    class Options:
        _timeout, group_name = timedelta(seconds=1), ""

    #: All that were made: of one whose Python half is gone, torch returns a plain Gloo backend.
    made: ClassVar[list[Any]] = []

    def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
        super().__init__(store, rank, size, options._timeout)
        self.made.append(self)


def nccl_inside() -> None:
    """Check that a group "gcodec" has NCCL for CUDA tensors, itself and in the group that all else is handed on to."""
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(dist, "is_nccl_available", lambda: True),
        mock.patch.object(dist, "ProcessGroupNCCL", _StandInForNccl, create=True),
        mock.patch.object(collectives, "_compiled", set()),
        mock.patch.object(collectives, "precompile_kernels") as precompile,
    ):
        group: Any = dist.new_group(backend="gcodec", timeout=timedelta(seconds=60))
        assert not precompile.called  # tensors may all be on devices
        (outer,) = _StandInForNccl.made
        assert isinstance(group, gd.CompressedGroup) and gpu_transport.has_nccl(group)
        for each in (group, group.inner):
            backend: Any = each._get_backend(torch.device("cuda"))
            assert backend is outer and backend.size() == group.size()
        tensor = torch.ones(3)
        backend.allreduce([tensor]).wait()
        assert torch.equal(tensor, torch.full((3,), float(group.size())))
        lane = lane_of(group)
        private = gpu_transport._private_nccl(lane, torch.device("cuda"))
        assert private._get_backend(torch.device("cuda")) is _StandInForNccl.made[1]
        gd.close_lanes(group)
        _StandInForNccl.made.clear()
    assert dist.group.WORLD is not None and not gpu_transport.has_nccl(dist.group.WORLD)


def on_cuda(device: str = "cuda") -> int:
    """All-reduces of tensors that are on a CUDA device, beside those of the same tensors in CPU memory."""
    torch.manual_seed(3)
    plain, momentum = torch.randn(300_001), torch.randn(300_001) * 1e-3
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for place in ("cpu", device):
            param = torch.nn.Parameter(plain.to(place, copy=True))
            optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
            optimizer.state[param]["momentum_buffer"] = momentum.to(place, copy=True)
            for mode in (gd.Lossless(), gd.FixedBits(5), gd.NearLossless(optimizer)):
                tensor = values_at(rank(), 300_001, dtype, "sparse").to(place)
                if dtype != torch.float64 or size() == 2:  # else Gloo's order of adding
                    lossless = dtype == torch.float64
                    gd.allreduce(tensor, op="avg", mode=gd.Lossless() if lossless else mode, params=param)
                results.append(crc([tensor.cpu()]))
        assert results[-6:-3] == results[-3:], dtype
    return crc([torch.tensor(results)])


def _sabotaged(kind: str) -> Any:
    calls = 0

    def encode(tensors: Sequence[torch.Tensor], **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if kind == "exception" or (kind == "result" and calls == 2):
            raise ZeroDivisionError("a fault on purpose")
        given = [values[:-8] for values in tensors] if kind == "other values" else tensors
        batch = damaged(start_batch(given, **options), kind)
        if kind == "size":
            batch.frames = [frame[:-4] for frame in batch.frames]
        return batch

    return encode


def sums_as_on_the_host() -> bool:
    """Check that means of every type have the host's bits."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        terms = [values_at(who, 5000, dtype, kind) for who in range(3) for kind in ("special", "extreme")]
        for divisor in (1, 3, 6):
            wanted = _host_sum(terms, divisor)
            result = gpu_coder.sum_in_rank_order(terms, divisor)
            assert same_bits(result, wanted)
    return True


def _host_sum(terms: Sequence[torch.Tensor], divisor: int) -> torch.Tensor:
    from gcodec.distributed.reduction.summation import RankSum
    from gcodec.tensors import values_of

    total, out = RankSum(values_of(terms[0]).dtype, 5000), np.empty(5000, values_of(terms[0]).bits.dtype)
    for term in terms[:-1]:
        total.add(values_of(term).bits)
    total.finish(values_of(terms[-1]).bits, divisor, out)
    return torch.from_numpy(out.view(f"i{out.itemsize}")).view(terms[0].dtype)
