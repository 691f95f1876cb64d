"""Time all-reduces of CUDA tensors among processes of one machine: compressed in each mode, beside torch's own.

    python -m bench.gpu_allreduce [--quick] [--out DIR] [--device cpu]

writes ``bench/results/gpu-allreduce.csv``. Where there are two devices or more, each rank has one, and frames go from
device to device by NCCL; of a single device NCCL makes no group, so two ranks share it, and frames go through the
host's memory and Gloo, as they would between machines without NCCL. On one machine nothing is slow but the host: what
is seen is what the codec takes, not what a network would gain.

Results are verified before they are timed: equal on all ranks, and of the modes that the host has, too, the bits that
the same tensors in CPU memory give. Times are wall-clock seconds from a common start to the end of the slowest rank's,
the device's work included, the median of several rounds. ``allreduce`` makes its codebook in every call; a bucket of
DDP, by the hook, is timed with one that is kept, as in most steps, and with one that is made for it. Its time has the
backward pass of a model whose only gradient is the tensor.
``--device cpu`` tries the program where there is no device: then everything is the host's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.gpu_device import gradients, reason_not_to
from gcodec.benchmark.csv_tables import NamedRow, write_named

RESULTS = Path(__file__).resolve().parent / "results"
TYPES = ("float32", "bfloat16")
SIZES = tuple(1 << log2 for log2 in (20, 24, 28, 30))
MOST_RANKS = 8
PATIENCE = 540.0  #: seconds after which a run counts as hanging
VERIFIED = 1 << 26  #: bytes up to which the host reduces, too
Reduce = Callable[[Any], object]


def ways(weight: Any) -> dict[str, Reduce]:
    """Return, by mode, how gradients of a weight, the same on all ranks, are averaged in place."""
    import torch
    import torch.distributed as dist

    import gcodec.distributed as gd

    param = torch.nn.Parameter(weight)
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    optimizer.state[param]["momentum_buffer"] = weight / 128
    modes: dict[str, Any] = {
        "lossless": gd.Lossless(),
        "fixed 6": gd.FixedBits(6),
        "near-lossless, SGD": gd.NearLossless(optimizer),
    }

    def by(mode: Any) -> Reduce:
        params = param if isinstance(mode, gd.NearLossless) else None
        return lambda x: gd.allreduce(x, op="avg", mode=mode, params=params)

    def dense(x: Any) -> None:
        dist.all_reduce(x)
        x /= dist.get_world_size()

    return {"uncompressed": dense, **{name: by(mode) for name, mode in modes.items()}}


def bucket_ways(tensor: Any) -> dict[str, Reduce]:
    """Return, by how it is sent, how a tensor like this is averaged in place as the only bucket of a model in DDP."""
    import torch

    import gcodec.distributed as gd

    class Given(torch.nn.Module):
        """Has one parameter, whose gradient is the model's input."""

        def __init__(self) -> None:
            super().__init__()
            self.param = torch.nn.Parameter(torch.zeros_like(tensor))

        def forward(self, x: Any) -> Any:
            return (self.param * x).sum()

    def by(state: Any) -> Reduce:
        model = torch.nn.parallel.DistributedDataParallel(Given())
        if state is not None:
            model.register_comm_hook(state, gd.hook)

        def reduce(x: Any) -> None:
            model.zero_grad()
            model(x).backward()
            x.copy_(model.module.param.grad)

        return reduce

    kept = gd.Refresh(interval=1 << 30, trigger=1e9)
    states = {
        "kept codebook": gd.CompressedAllreduce(min_bytes=0, bypass=None, refresh=kept),
        "fresh codebook": gd.CompressedAllreduce(min_bytes=0, bypass=None, refresh=None),
    }
    compressed = {f"DDP bucket, lossless, {name}": by(state) for name, state in states.items()}
    return {"DDP bucket, uncompressed": by(None), **compressed}


def verify(tensor: Any, name: str, reduce: Reduce, on_host: Callable[[], Reduce]) -> None:
    """Check that all ranks end with the same bits; where it is compressed, with those of tensors in CPU memory, which
    another function reduces."""
    import torch
    import torch.distributed as dist

    result = tensor.clone()
    reduce(result)
    here = result.cpu()
    first = here.clone()
    dist.broadcast(first.view(torch.uint8), 0)
    assert torch.equal(first.view(torch.uint8), here.view(torch.uint8)), f"{name}: ranks differ"
    if "uncompressed" not in name and tensor.nbytes <= VERIFIED:
        there = tensor.cpu().clone()
        on_host()(there)
        assert torch.equal(there.view(torch.uint8), here.view(torch.uint8)), f"{name}: not the host's bits"


def milliseconds(tensor: Any, reduce: Reduce, rounds: int) -> float:
    """Return the median milliseconds of the slowest rank."""
    import torch
    import torch.distributed as dist

    wait = torch.cuda.synchronize if tensor.is_cuda else lambda: None
    result, x = [], torch.empty_like(tensor)
    for _ in range(rounds + 1):
        x.copy_(tensor)
        wait()
        dist.barrier()
        start = perf_counter()
        reduce(x)
        wait()
        slowest = torch.tensor([perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        result.append(1e3 * float(slowest))
    return statistics.median(result[1:])


def serve(rank: int, size: int, store: str, device: str, sizes: Sequence[int], rounds: int, answers: Any) -> None:
    """One rank's part; the first one's puts the rows, and None at the end."""
    import torch
    import torch.distributed as dist

    import gcodec.distributed as gd

    apart = device == "cuda" and torch.cuda.device_count() >= size
    if device == "cuda":
        torch.cuda.set_device(rank if apart else 0)
    backend = "cpu:gloo,cuda:nccl" if apart else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=size)
    title = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    wire = "NCCL" if apart else "Gloo, through the host" if device == "cuda" else "Gloo"
    for dtype in TYPES:
        for n_bytes in sizes:
            tensor = gradients(dtype, n_bytes, device, seed=rank)
            weight = gradients(dtype, n_bytes, device, seed=size) * 128
            for name, reduce in {**ways(weight), **bucket_ways(tensor)}.items():
                as_on_host = "lossless" if name.startswith("DDP bucket") else name
                verify(tensor, name, reduce, lambda: ways(weight.cpu())[as_on_host])  # noqa: B023 - called at once
                took = milliseconds(tensor, reduce, rounds)
                if rank == 0:
                    row: NamedRow = {
                        "device": title,
                        "ranks": size,
                        "wire": wire,
                        "dtype": dtype,
                        "mode": name,
                        "bytes": n_bytes,
                        "milliseconds": f"{took:.3f}",
                        "GBps": f"{n_bytes / took / 1e6:.3f}",
                    }
                    answers.put(row)
    gd.close_lanes()
    dist.barrier()
    if rank == 0:
        answers.put(None)
    dist.destroy_process_group()


def rows_of(size: int, device: str, sizes: Sequence[int], rounds: int) -> list[NamedRow]:
    """Return the rows of the table, for so many ranks. Raises RuntimeError where one of them fails."""
    context = multiprocessing.get_context("spawn")
    answers, rows = context.SimpleQueue(), []
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        team = [
            context.Process(target=serve, args=(rank, size, store, device, sizes, rounds, answers), daemon=True)
            for rank in range(size)
        ]
        for member in team:
            member.start()
        try:
            while (row := _answer(answers, team)) is not None:
                print(*row.values(), sep=", ", flush=True)
                rows.append(row)
        finally:
            for member in team:
                member.join(10)
                member.kill()
    return rows


def _answer(answers: Any, team: Sequence[Any]) -> Any:
    """Return the next answer. Raises RuntimeError where a rank has ended before its time, or none comes."""
    start = perf_counter()
    while answers.empty():
        team[0].join(0.1)
        if answers.empty() and (any(member.exitcode for member in team) or perf_counter() - start > PATIENCE):
            raise RuntimeError(f"ranks ended with {[member.exitcode for member in team]}")
    return answers.get()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_allreduce", description="All-reduces of CUDA tensors.")
    parser.add_argument("--quick", action="store_true", help="the smallest size, few rounds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu-allreduce.csv")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the program")
    options = parser.parse_args(arguments)
    size = 2
    if options.device == "cuda":
        reason = reason_not_to()
        if reason:
            print(f"bench.gpu_allreduce: nothing to measure: {reason}")
            return 0
        import torch

        size = min(max(torch.cuda.device_count(), 2), MOST_RANKS)
    sizes, rounds = (SIZES[:1], 3) if options.quick else (SIZES, 15)
    write_named(options.out / "gpu-allreduce.csv", rows_of(size, options.device, sizes, rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
