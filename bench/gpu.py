"""The codec on a CUDA device: encode and decode from 1 MB to 4 GB, beside what the device can do at most.

    python -m bench.gpu [--quick] [--out DIR]

writes ``bench/results/gpu.csv``. Needs torch, numba and a CUDA device; says so where one is missing, and ends. Each
result is verified before anything is timed: bytes against the host's encoder by the same plan (up to 64 MB), values
against what was encoded. Times are between events on the device's stream, over rotating buffers that together are
larger than any cache, the median of several rounds. Beside them: the device's own copy of as many bytes, torch's cast
to bfloat16, the host's codec where it takes seconds, and the roofline: bytes that a direction has to read and write,
at the speed of the copy.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gcodec import FINE_LADDER, decode, encode, gpu
from gcodec.demo.tables import write_table
from gcodec.encoding import encode_values
from gcodec.gpu.encoding import plan_of
from gcodec.gpu.memory import TorchMemory
from gcodec.scheme import fixed, ladder, lossless
from gcodec.tensors import values_of
from gcodec.valuetypes import BY_NAME

RESULTS = Path(__file__).resolve().parent / "results"
COLUMNS = ("device", "dtype", "mode", "what", "original_bytes", "frame_bytes", "bytes_per_value", "roofline_GBps",
           "GBps", "of_roofline")
TYPES, MODES = ("float32", "bfloat16", "float16"), ("lossless", "fixed 6", "ladder")
SIZES = tuple(1 << log2 for log2 in (20, 22, 24, 26, 28, 30, 32))
_VERIFIED = 1 << 26         #: bytes up to which the host encodes, too
_ROTATING = 1 << 28         #: bytes of buffers that are used in turn: more than a cache holds
_SAMPLE = 1 << 22           #: values that are drawn; more are copies of these


def reason_not_to() -> str:
    """Why nothing can be measured here; empty if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        TorchMemory(torch.device("cuda", torch.cuda.current_device()))
    except Exception as error:
        return str(error)
    return ""


def gradients(dtype: str, size: int) -> Any:
    """Values like a gradient's, on the device: normal, of a scale for each row of 1024, a quarter of them zero."""
    import torch

    kind = getattr(torch, dtype)
    n = size // kind.itemsize
    generator = torch.Generator(device="cuda").manual_seed(0)
    rows = max(min(n, _SAMPLE) // 1024, 1)
    x = torch.randn(rows, 1024, device="cuda", generator=generator)
    x *= torch.exp2(torch.randint(-6, 1, (rows, 1), device="cuda", generator=generator)) * 1e-2
    x *= torch.rand(rows, 1024, device="cuda", generator=generator) > 0.25
    return x.to(kind).reshape(-1).repeat(-(-n // x.numel()))[:n].clone()


def seconds(call: Callable[[int], Any], n_buffers: int, rounds: int) -> float:
    """Median time of ``call(k)`` on the device, k going around."""
    import torch

    call(0)
    found = []
    for k in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        call(k % n_buffers)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(found)


def options_of(mode: str, dtype: str, x: Any) -> dict[str, Any]:
    """What ``encode_batch`` is told."""
    import torch

    if mode == "fixed 6":
        return {"mantissa_bits": 6}
    if mode == "ladder":
        return {"levels": [torch.randint(0, len(FINE_LADDER[dtype].drops), x.shape, device="cuda", dtype=torch.uint8)]}
    return {}


def verify(x: Any, dtype: str, mode: str, options: dict[str, Any], book: Any, frame: Any) -> None:
    """The host makes the same bytes, and both directions agree."""
    import torch

    (result,) = gpu.decode_batch([frame])
    if mode == "lossless":
        assert torch.equal(result.view(torch.uint8), x.view(torch.uint8)), "decoded values differ"
    if x.nbytes > _VERIFIED:
        return
    kind = BY_NAME[dtype]
    scheme = {"lossless": lossless(kind), "fixed 6": fixed(kind, 6), "ladder": ladder(kind, FINE_LADDER[dtype])}[mode]
    levels = options["levels"][0].cpu().numpy() if "levels" in options else np.zeros(0, np.uint8)
    values = values_of(x.cpu())
    plan = plan_of(kind, -(-len(values.bits) >> 14), book)
    assert encode_values(values, scheme, levels, True, plan, None) == bytes(frame.cpu().numpy()), "bytes differ"
    assert torch.equal(result.cpu().view(torch.uint8), decode(bytes(frame.cpu().numpy())).view(torch.uint8))


def measure(dtype: str, mode: str, size: int, copy: dict[int, float], rounds: int) -> Iterator[Sequence[Any]]:
    """Rows of the table for one input."""
    import torch

    from gcodec.gpu import decoding

    n_buffers = max(min(_ROTATING // size, 64), 2)
    tensors = [gradients(dtype, size) for _ in range(n_buffers)]
    x, device = tensors[0], torch.cuda.get_device_name()
    options = options_of(mode, dtype, x)
    shared = {name: value for name, value in options.items() if name != "rounding"}
    book = gpu.fresh_codebook([x], **shared)
    (frame,) = gpu.encode_batch([x], codebook=book, **options)
    verify(x, dtype, mode, options, book, frame)
    memory = TorchMemory(x.device)
    frames = [frame.clone() for _ in range(n_buffers)]
    parsed = decoding.parse(memory, frames)
    fast = copy[size]

    def row(what: str, took: float, moved: float) -> Sequence[Any]:
        speed, most = size / took / 1e9, fast * 2 * size / moved
        return (device, dtype, mode, what, size, len(frame), f"{moved / x.numel():.3f}", f"{most:.1f}", f"{speed:.1f}",
                f"{speed / most:.3f}")

    graded = x.numel() if mode == "ladder" else 0
    encoded, decoded = size + graded + len(frame), size + len(frame)
    took = seconds(lambda k: gpu.start_batch([tensors[k]], codebook=book, **options), n_buffers, rounds)
    yield row("encode, reused codebook", took, encoded)
    took = seconds(lambda k: gpu.start_batch([tensors[k]], **options), n_buffers, rounds)
    yield row("encode, fresh codebook", took, encoded + size + graded)
    took = seconds(lambda k: decoding.decode(memory, [parsed[k]], [tensors[k]]), n_buffers, rounds)
    yield row("decode", took, decoded)
    yield row("copy", 2 * size / fast / 2e9, 2 * size)
    if dtype == "float32":
        took = seconds(lambda k: tensors[k].to(torch.bfloat16), n_buffers, rounds)
        yield row("cast to bfloat16", took, size + size // 2)
    if mode == "lossless" and size <= _VERIFIED:
        here = x.cpu()
        begin = perf_counter()
        data = encode(here)
        middle = perf_counter()
        decode(data)
        yield row("host: encode", middle - begin, encoded)
        yield row("host: decode", perf_counter() - middle, decoded)


def copies(sizes: Sequence[int], rounds: int) -> dict[int, float]:
    """GB/s at which the device copies, by size: bytes copied, not read plus written."""
    import torch

    found = {}
    for size in sizes:
        n_buffers = max(min(_ROTATING // size, 64), 2)
        buffers = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(n_buffers)]
        took = seconds(lambda k: buffers[k].copy_(buffers[k - 1]), n_buffers, rounds)  # noqa: B023 - called here
        found[size] = size / took / 1e9
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="The codec on a CUDA device.")
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu.csv")
    options = parser.parse_args(arguments)
    reason = reason_not_to()
    if reason:
        print(f"bench.gpu: nothing to measure: {reason}")
        return 0
    import torch

    wanted, rounds = (SIZES[1:4:2], 3) if options.quick else (SIZES, 15)
    free = torch.cuda.mem_get_info()[0]
    sizes = [size for size in wanted if 8 * size < free]
    copy = copies(sizes, rounds)
    rows = []
    for dtype in TYPES:
        for mode in MODES:
            for size in sizes:
                for row in measure(dtype, mode, size, copy, rounds):
                    print(*row, sep=", ", flush=True)
                    rows.append(row)
                torch.cuda.empty_cache()
    write_table(options.out / "gpu.csv", COLUMNS, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
