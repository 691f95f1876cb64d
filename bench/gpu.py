"""The codec on a CUDA device: encode and decode from 1 MB to 4 GB, beside what the device can do at most.

    python -m bench.gpu [--quick] [--seconds N] [--out DIR]

writes ``bench/results/gpu.csv``, row by row: what matters most comes first, so that a run that ends early has it. What
fails is said and left out, and the run goes on. Needs torch, numba and a CUDA device; says so where one is missing, and
ends. Each result is verified before anything is timed: bytes and levels against the host's by the same plan (up to
64 MB), values against what was encoded. Times are between events on the device's stream, over rotating buffers that
together are larger than any cache, the median of several rounds: of the kernels, behind queued work, from which speeds
are computed; of the whole call on an idle device; and of the host. Of calls that wait for the device, of the call.
Beside them: the device's own copy of as many bytes, torch's cast to bfloat16, nvCOMP's ANS where it is installed, the
host's codec where it takes seconds, and the roofline: bytes that a direction has to read and write, at the speed of the
copy. All-reduces: :mod:`bench.gpu_allreduce`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from bench.gpu_device import Times, buffers_of, copy_speed, environment, gradients, reason_not_to, times
from bench.gpu_peers import checked_ans, host_seconds
from gcodec import FINE_LADDER, EncoderOptions, decode, gpu, sync
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.dtypes import BY_NAME
from gcodec.format.modes import fixed, ladder, lossless
from gcodec.frame.encode import encode_values
from gcodec.gpu import gpu_memory as seam
from gcodec.gpu.encoder import plan_of
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import values_of
from gcodec.truncation.optimizers import OptimizerView, hyper_from, levels_for, view_from_dump

RESULTS = Path(__file__).resolve().parent / "results"
TYPES, MODES = ("float32", "bfloat16", "float16"), ("lossless", "fixed 6", "ladder")
SIZES = tuple(1 << log2 for log2 in (28, 26, 30, 24, 22, 20, 32))  #: the first ones matter most
#: What comes first: a type, and a mode or something else that is measured.
HEADLINES = (
    ("float32", "lossless"),
    ("bfloat16", "lossless"),
    ("float32", "many tensors"),
    ("float32", "ladder"),
    ("bfloat16", "weight sync"),
)
VERIFIED = 1 << 26  #: bytes up to which the host encodes, too
LARGEST_STATE = 1 << 28  #: bytes of weights up to which versions of them are timed
PART = 1 << 21  #: bytes of each of many tensors that are encoded in one launch
#: Rules whose levels are timed: hyperparameters, and what state there is.
RULES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "SGD": ({"lr": 0.1, "momentum": 0.9}, ("momentum_buffer",)),
    "AdamW": ({"lr": 1e-3}, ("exp_avg", "exp_avg_sq")),
}


@dataclass(frozen=True)
class Line:
    """Makes rows of the table of one input: of ``x``, whose frame takes ``frame_bytes``, on a device that copies
    ``copy`` GB/s."""

    x: Any
    dtype: str
    mode: str
    frame_bytes: int
    copy: float

    def row(self, what: str, took: Times, moved: float) -> NamedRow:
        """One of something that took so long and cannot but move so many bytes."""
        import torch

        size = self.x.nbytes
        speed, maximum = size / took.kernels / 1e9, self.copy * 2 * size / moved
        return {
            "device": torch.cuda.get_device_name(),
            "dtype": self.dtype,
            "mode": self.mode,
            "what": what,
            "original_bytes": size,
            "frame_bytes": self.frame_bytes,
            "bytes_per_value": f"{moved / self.x.numel():.3f}",
            "roofline_GBps": f"{maximum:.1f}",
            "GBps": f"{speed:.1f}",
            "of_roofline": f"{speed / maximum:.3f}",
            "kernels_us": f"{1e6 * took.kernels:.1f}",
            "call_us": f"{1e6 * took.call:.1f}",
            "host_us": f"{1e6 * took.host:.1f}",
            "spread": f"{took.spread:.3f}",
        }


def options_of(mode: str, dtype: str, x: Any) -> dict[str, Any]:
    """Return the arguments of ``encode_batch``."""
    import torch

    if mode == "fixed 6":
        return {"mantissa_bits": 6}
    if mode == "ladder":
        return {"levels": [torch.randint(0, len(FINE_LADDER[dtype].drops), x.shape, device="cuda", dtype=torch.uint8)]}
    return {}


def verify(x: Any, dtype: str, mode: str, options: dict[str, Any], book: Any, frame: Any) -> None:
    """The host makes the same bytes, both directions agree, and what was rounded stays as it is."""
    import torch

    (result,) = gpu.decode_batch([frame])
    if mode == "lossless":
        assert torch.equal(result.view(torch.uint8), x.view(torch.uint8)), "decoded values differ"
    (again,) = gpu.encode_batch([result], codebook=book, **options)
    assert torch.equal(again, frame), "decoded values encode to another frame"
    if x.nbytes > VERIFIED:
        return
    kind = BY_NAME[dtype]
    layouts = {"lossless": lossless(kind), "fixed 6": fixed(kind, 6), "ladder": ladder(kind, FINE_LADDER[dtype])}
    bit_layout = layouts[mode]
    levels = options["levels"][0].cpu().numpy() if "levels" in options else np.zeros(0, np.uint8)
    values = values_of(x.cpu())
    plan = plan_of(kind, -(-len(values.bits) >> 14), book)
    request = EncodeRequest(values, bit_layout, levels, EncoderOptions())
    assert encode_values(request, plan) == bytes(frame.cpu().numpy()), "bytes differ"
    assert torch.equal(result.cpu().view(torch.uint8), decode(bytes(frame.cpu().numpy())).view(torch.uint8))


def measure(dtype: str, mode: str, size: int, copy: float, rounds: int) -> Iterator[NamedRow]:
    """Rows of the table for one input."""
    import torch

    from gcodec.gpu import decoder as decoding
    from gcodec.gpu import preludes

    n_buffers = buffers_of(size)
    tensors = [gradients(dtype, size) for _ in range(n_buffers)]
    x = tensors[0]
    options = options_of(mode, dtype, x)
    book = gpu.fresh_codebook([x], **options)
    (frame,) = gpu.encode_batch([x], codebook=book, **options)
    verify(x, dtype, mode, options, book, frame)
    memory = seam.TorchMemory(x.device)
    frames = [frame.clone() for _ in range(n_buffers)]
    parsed = preludes.parse(memory, frames)
    row = Line(x, dtype, mode, len(frame), copy).row

    graded = x.numel() if mode == "ladder" else 0
    encoded, decoded = size + graded + len(frame), size + len(frame)
    took = times(lambda k: gpu.start_batch([tensors[k]], codebook=book, **options), n_buffers, rounds)
    yield row("encode, reused codebook", took, encoded)
    took = times(lambda k: gpu.start_batch([tensors[k]], **options), n_buffers, rounds, waits=True)
    yield row("encode, fresh codebook", took, encoded + size + graded)
    took = times(lambda k: decoding.decode(memory, [parsed[k]], [tensors[k]]), n_buffers, rounds)
    yield row("decode, prelude known", took, decoded)
    took = times(lambda k: gpu.decode_batch([frames[k]]), n_buffers, rounds, waits=True)
    yield row("decode", took, decoded)
    took = times(lambda k: tensors[k].copy_(tensors[k - 1]), n_buffers, rounds)
    yield row("copy", took, 2 * size)
    if dtype == "float32":
        took = times(lambda k: tensors[k].to(torch.bfloat16), n_buffers, rounds)
        yield row("cast to bfloat16", took, size + size // 2)
    if mode == "lossless" and size <= VERIFIED:
        to, back = host_seconds(x.cpu())
        yield row("host: encode", Times(to, to, 0.0, to), encoded)
        yield row("host: decode", Times(back, back, 0.0, back), decoded)


def measure_batch(dtype: str, size: int, copy: float, rounds: int) -> Iterator[NamedRow]:
    """Rows for as many values in tensors of 2 MB, all of them in one launch."""
    import torch

    if size <= PART:
        return
    tensors = [list(gradients(dtype, size).split(PART * 8 // BY_NAME[dtype].bits)) for _ in range(buffers_of(size))]
    book = gpu.fresh_codebook(tensors[0])
    frames = gpu.encode_batch(tensors[0], codebook=book)
    results = gpu.decode_batch(frames)
    for result, x in zip(results, tensors[0], strict=True):
        assert torch.equal(result.view(torch.uint8), x.view(torch.uint8)), "decoded values differ"
    n_bytes, title = sum(map(len, frames)), f"{len(frames)} tensors of {PART >> 20} MiB"
    row = Line(torch.cat(results), dtype, "lossless", n_bytes, copy).row
    took = times(lambda k: gpu.start_batch(tensors[k], codebook=book), len(tensors), rounds)
    yield row(f"encode, {title}", took, size + n_bytes)
    copied = [[frame.clone() for frame in frames] for _ in tensors]
    took = times(lambda k: gpu.decode_batch(copied[k]), len(tensors), rounds, waits=True)
    yield row(f"decode, {title}", took, size + n_bytes)


def measure_levels(dtype: str, size: int, copy: float, rounds: int) -> Iterator[NamedRow]:
    """Rows for levels by optimizers' rules, alone and followed by encoding; state is of the gradient's type."""
    for name, (hyper, state) in RULES.items():
        buffers = [
            [gradients(dtype, size, seed=seed) for seed in range(2 + len(state))]
            for _ in range(max(buffers_of(size) // 4, 2))
        ]
        for arrays in buffers:
            arrays[1] *= 100  # parameters are larger than their gradients
            arrays[-1].abs_()
        known = hyper_from(name, hyper)
        views = [
            OptimizerView(name, known, {"step": 100.0, **dict(zip(state, rest, strict=True))})
            for _, _, *rest in buffers
        ]
        grad, param, *rest = buffers[0]
        (levels,) = gpu.levels_batch(views[:1], [param], [grad])
        if size <= VERIFIED:
            dumped = {"step": 100.0, **dict(zip(state, (item.cpu() for item in rest), strict=True))}
            wanted = levels_for(view_from_dump(name, hyper, dumped), param.cpu(), grad.cpu())
            assert np.array_equal(levels.cpu().numpy(), wanted), "levels differ"
        book = gpu.fresh_codebook([grad], levels=[levels])
        (frame,) = gpu.encode_batch([grad], levels=[levels], codebook=book)
        row, read = Line(grad, dtype, name, len(frame), copy).row, size * len(buffers[0])

        def choose(k: int) -> Any:
            grad, param, *_ = buffers[k]  # noqa: B023 - called here
            return gpu.levels_batch([views[k]], [param], [grad])  # noqa: B023

        def encode(k: int) -> Any:
            return gpu.start_batch([buffers[k][0]], levels=choose(k), codebook=book)  # noqa: B023

        yield row("levels", times(choose, len(buffers), rounds), read + grad.numel())
        yield row(
            "levels, encode, reused codebook",
            times(encode, len(buffers), rounds),
            read + 2 * grad.numel() + size + len(frame),
        )


def measure_ans(dtype: str, size: int, copy: float, rounds: int) -> Iterator[NamedRow]:
    """Rows for nvCOMP's ANS."""
    tensors = [gradients(dtype, size) for _ in range(buffers_of(size))]
    peer = checked_ans(dtype, tensors[0])
    if isinstance(peer, str):
        print(f"nvCOMP is left out: {peer}", flush=True)
        return
    encoded = [peer.encode(x) for x in tensors]
    n_bytes = peer.size(encoded[0])
    row = Line(tensors[0], dtype, "lossless", n_bytes, copy).row
    took = times(lambda k: peer.encode(tensors[k]), len(tensors), rounds)
    yield row("nvCOMP ANS: encode", took, size + n_bytes)
    took = times(lambda k: peer.decode(encoded[k]), len(tensors), rounds)
    yield row("nvCOMP ANS: decode", took, size + n_bytes)


def measure_sync(dtype: str, size: int, copy: float, rounds: int) -> Iterator[NamedRow]:
    """Rows for versions of weights of which 1 % change, in eight tensors: published and applied on the device, and by
    the host."""
    import torch

    if size > LARGEST_STATE:
        return
    x = gradients(dtype, size)
    other = torch.where(torch.rand(len(x), device="cuda") < 0.01, x * 1.01, x)
    states = [{str(k): part for k, part in enumerate(own.split(-(-len(own) // 8)))} for own in (x, other)]
    for where in ("device", "host"):
        on_device, messages = where == "device", list[bytes]()
        publisher = sync.Publisher(start=states[0], on_device=on_device)
        took = times(
            lambda k: messages.append(publisher.publish(states[1 - len(messages) % 2]).data),  # noqa: B023
            2,
            rounds,
            waits=True,
        )
        row = Line(x, dtype, "lossless", len(messages[0]), copy).row
        yield row(f"publish, on the {where}", took, 2 * size)
        weights = {name: part.clone() for name, part in states[0].items()}
        subscriber, follow = sync.Subscriber(weights, on_device=on_device), iter(messages)
        took = times(lambda k: subscriber.apply(next(follow)), 2, rounds, waits=True)  # noqa: B023
        held = states[len(messages) % 2]
        assert all(torch.equal(weights[name].view(torch.uint8), held[name].view(torch.uint8)) for name in held)
        yield row(f"apply, on the {where}", took, 2 * size)


class Job(NamedTuple):
    """Makes some rows of the table.

    Attributes:
        title: What it measures.
        rows: Makes the rows.
    """

    title: str
    rows: Callable[[], Iterator[NamedRow]]


def jobs(sizes: Sequence[int], rounds: int) -> Iterator[Job]:
    """Yield all that is measured: for each size what matters most, and then the rest for each."""
    others = {
        "levels": measure_levels,
        "nvCOMP": measure_ans,
        "many tensors": measure_batch,
        "weight sync": measure_sync,
    }

    def job(dtype: str, what: str, size: int) -> Job:
        copy = partial(copy_speed, size, rounds)
        if what in MODES:
            return Job(f"{dtype} {what} {size}", lambda: measure(dtype, what, size, copy(), rounds))
        return Job(f"{dtype} {what} {size}", lambda: others[what](dtype, size, copy(), rounds))

    everything = [*product(TYPES, (*MODES, *others))]
    for size in sizes:
        yield from (job(dtype, what, size) for dtype, what in HEADLINES)
    for size in sizes:
        yield from (job(dtype, what, size) for dtype, what in everything if (dtype, what) not in HEADLINES)


def rows_within(wanted: Iterator[Job], seconds: float, problems: list[str]) -> Iterator[NamedRow]:
    """Yield the rows of jobs, until the time is over.

    Args:
        wanted: The jobs.
        seconds: How long jobs are started.
        problems: Gets what failed.
    """
    import torch

    end = monotonic() + seconds
    for job in wanted:
        if monotonic() > end:
            print(f"the time is over; left out: {job.title} and what comes after it", flush=True)
            return
        try:
            for row in job.rows():
                print(*row, sep=", ", flush=True)
                yield row
        except Exception as error:  # whatever fails, the rest is to be measured
            problems.append(f"{job.title}: {type(error).__name__}: {error}")
            print(f"failed: {problems[-1]}", flush=True)
        torch.cuda.empty_cache()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write the table. Returns 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description="The codec on a CUDA device.")
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--seconds", type=float, default=3600.0, help="start nothing after so many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for gpu.csv")
    options = parser.parse_args(arguments)
    reason = reason_not_to()
    if reason:
        print(f"bench.gpu: nothing to measure: {reason}")
        return 0
    import torch

    print(*environment(), sep="\n", flush=True)
    sizes, rounds = (SIZES[3:6:2], 3) if options.quick else (SIZES, 15)
    free = torch.cuda.mem_get_info()[0]
    problems: list[str] = []
    wanted = jobs([size for size in sizes if 16 * size < free], rounds)
    write_named(options.out / "gpu.csv", rows_within(wanted, options.seconds, problems))
    print(*(f"failed: {problem}" for problem in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
