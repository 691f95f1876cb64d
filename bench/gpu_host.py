"""What the host does for each call on a CUDA device: its time and what it asks of the device, without one.

    python -m bench.gpu_host [--quick] [--out DIR]

writes ``bench/results/gpu-host.csv``. The device does nothing (:mod:`bench.gpu_stub`): kernels' arguments are packed,
but no kernel runs, and torch's allocations and copies are those of CPU memory, which are quicker than a device's. Times
are of the process' CPU, the minimum of several rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch

from bench.gpu_stub import StubMemory, stub_device, stub_tensor
from gcodec import EncoderOptions, decode, encode, gpu
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.format.modes import lossless
from gcodec.frame.decode import FrameReader
from gcodec.frame.encode import encode_values
from gcodec.gpu.encoder import SharedCodebook, plan_of
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import values_of

RESULTS = Path(__file__).resolve().parent / "results"
BATCH = 128  #: tensors of a batch
N = 1 << 19  #: values of a tensor of it: 2 MiB of float32
COUNTED = ("uploads", "upload_bytes", "allocations", "waits")  #: of what the device was asked, in the table


def calls(n_batch: int = BATCH, n: int = N) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what is measured, and a name for each.

    Args:
        n_batch: Tensors of a batch.
        n: Values of each tensor.
    """
    values = torch.from_numpy(np.random.default_rng(0).standard_normal(n).astype(np.float32))
    x = stub_tensor(values)
    xs = [x] * n_batch
    room = stub_tensor(torch.empty(5 * n + 4096, dtype=torch.uint8))
    data, book = _frame(values)
    frame = stub_tensor(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    out = stub_tensor(torch.empty_like(values))
    yield "encode one tensor, reused codebook, out=", lambda: gpu.start_batch([x], codebook=book, out=room)
    yield "encode one tensor, reused codebook", lambda: gpu.start_batch([x], codebook=book)
    yield "decode one frame", lambda: gpu.decode_batch([frame])
    yield "decode one frame, out=", lambda: decode(frame, out=out, device="cuda")
    yield f"encode {n_batch} tensors, reused codebook", lambda: gpu.start_batch(xs, codebook=book)
    yield f"decode {n_batch} frames", lambda: gpu.decode_batch([frame] * n_batch)


def _frame(values: torch.Tensor) -> tuple[bytes, SharedCodebook]:
    """Return the frame that a device makes of values, and its codebook."""
    (codebook, *_) = FrameReader(encode(values)).prelude.codebooks
    shared, flat = SharedCodebook(codebook, codebook.record), values_of(values)
    plan = plan_of(flat.dtype, -(-len(flat.bits) >> 14), shared)
    request = EncodeRequest(flat, lossless(flat.dtype), np.zeros(0, np.uint8), EncoderOptions())
    return bytes(encode_values(request, plan)), shared


def measure(call: Callable[[], Any], device: type[StubMemory], rounds: int) -> NamedRow:
    """Return the time of a call in microseconds, and what it asks of the device, once tables are kept there."""
    call()
    device.counts.update(dict.fromkeys(device.counts, 0))
    before = device.driver.launches
    call()
    counts, launches = dict(device.counts), device.driver.launches - before
    repeats, best = 1, 0.0
    while best < 0.02:  # the clock's ticks are coarse
        repeats *= 2
        best = _took(call, repeats)
    best = min(best, *(_took(call, repeats) for _ in range(rounds)))
    return {"host_us": f"{1e6 * best / repeats:.1f}", "launches": launches, **{name: counts[name] for name in COUNTED}}


def _took(call: Callable[[], Any], repeats: int) -> float:
    begin = process_time()
    for _ in range(repeats):
        call()
    return process_time() - begin


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_host", description="The host's part of each call.")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu-host.csv")
    parser.add_argument("--rounds", type=int, default=15, help="rounds, of which the fastest counts")
    parser.add_argument("--quick", action="store_true", help="try everything, measure little")
    options = parser.parse_args(arguments)
    rows = []
    with stub_device() as device:
        for what, call in calls(*((2, 1 << 15) if options.quick else ())):
            rows.append({"what": what, **measure(call, device, 1 if options.quick else options.rounds)})
            print(*rows[-1].values(), sep=", ", flush=True)
    write_named(options.out / "gpu-host.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
