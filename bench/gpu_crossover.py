"""A model of all-reduces on CUDA devices: up to which rate of the links between them compressing pays. No device has
run any of it.

A bucket takes time on the network, on the device and on the host. The device's time is that of the instructions that
``bench.gpu_instructions`` has counted, or of the bytes that cannot but be moved, whichever is longer; the host's that
of the calls that ``bench.gpu_host`` has measured, and what is assumed here. Where a bucket is alone, all of it adds up;
where others wait, the longest of the three counts, as ranks encode one bucket while the network carries another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.markdown import markdown
from gcodec.benchmark.csv_tables import read_table
from gcodec.dtypes import BY_NAME

ISSUED = 0.6 * 132 * 4 * 1.98e9  #: instructions of warps that an H200 issues in a second, at 60 % of its peak
MOVED = 4.3e12  #: bytes that its memory reads and writes in a second
EXCHANGE = 100e-6  #: seconds of a small collective of two ranks; 98 µs is the least of 300 on one host
PEER = 20e-6  #: seconds for each further rank: its message, and to have torch add or copy its part
LAUNCHES = 100e-6  #: seconds in which the host has torch and NCCL do the rest of a half

GRADIENTS = "cnn gradients"  #: those that shrink less
BATCH = 128  #: frames of the calls of many
ENCODING = ("encode one tensor, reused codebook", f"encode {BATCH} tensors, reused codebook")
DECODING = ("decode one frame", f"decode {BATCH} frames")
KERNELS = {"float32": "float32", "bfloat16": "float16"}  #: by whose values the kernels are named
SIZES = (25, 200)  #: MB of a bucket: DDP's, and a large one
RANKS = (2, 8, 64)


class Bucket(NamedTuple):
    """A bucket of an all-reduce, in the model.

    Attributes:
        sent: Bytes that each rank sends uncompressed.
        ratio: Of its frames' bytes to those of its values.
        device: Seconds of the device.
        host: Seconds of the host.
    """

    sent: float
    ratio: float
    device: float
    host: float

    def alone(self) -> float:
        """Return the bytes per second of a link below which it is sooner through compressed, with none beside it."""
        return (1 - self.ratio) * self.sent / (self.device + self.host)

    def among_others(self) -> float:
        """Return the same where the next one is encoded meanwhile."""
        return self.sent / max(self.device, self.host)


def bucket(results: Path, dtype: str, n_bytes: float, n_ranks: int) -> Bucket:
    """Return the model of a lossless bucket whose codebooks are kept, from the results of benchmarks.

    Args:
        n_bytes: Of its values.
        n_ranks: Ranks that have one each.
    """
    sizes = read_table(results / "experiment-fixed-codes-sizes.csv")[1]
    percent = next(row["huffman_percent"] for row in sizes if (row["data"], row["type"]) == (GRADIENTS, dtype))
    counted = {
        row["kernel"]: float(row["per_32_values"])
        for row in read_table(results / "gpu-instructions.csv")[1]
        if row["architecture"] == "sm_90"
    }
    ratio, halves, others = float(percent) / 100, 1 if n_ranks == 2 else 2, 1 - 1 / n_ranks

    def coded(what: str) -> float:
        n_warps = n_bytes / BY_NAME[dtype].itemsize / 32
        return max(n_warps * counted[f"{what}_{KERNELS[dtype]}"] / ISSUED, (1 + ratio) * n_bytes / MOVED)

    # Two ranks send each other all they have, once; of more, each adds up a part, and sends the sum.
    decoded, summed = (1.0, 1.0) if halves == 1 else (2 * others, 1 / n_ranks)
    moved = summed * _moved_by_sum(n_ranks, 4 / BY_NAME[dtype].itemsize) + 2  # and copied to the bucket
    device = coded("encode") + decoded * coded("decode") + moved * n_bytes / MOVED
    encoding, decoding = _host_calls(results)
    calls = encoding(n_ranks - 1) + (encoding(1) if halves == 2 else 0.0) + halves * decoding(n_ranks - 1)
    small = EXCHANGE + (n_ranks - 2) * PEER
    return Bucket(2 * others * n_bytes, ratio, device, calls + halves * (LAUNCHES + small))


def _moved_by_sum(n_terms: int, wide: float) -> float:
    """Return the bytes that a mean reads and writes, over those of a term, whose sum has ``wide`` times its bytes."""
    copied, added, divided, narrowed = 1 + wide, (n_terms - 1) * (2 * wide + 1), 2 * wide, 1 + wide
    return copied + added + divided + (narrowed if wide > 1 else 0)


def _host_calls(results: Path) -> list[Callable[[int], float]]:
    """Return functions from a number of frames to the seconds of the host to have them encoded, and decoded."""
    _, rows = read_table(results / "gpu-host.csv")
    micros = {row["what"]: float(row["host_us"]) for row in rows}

    def seconds(n: int, one: str, many: str) -> float:
        return 1e-6 * (micros[one] + (n - 1) * (micros[many] - micros[one]) / (BATCH - 1))

    return [partial(seconds, one=one, many=many) for one, many in (ENCODING, DECODING)]


def crossover_table(results: Path) -> list[str]:
    """Return up to which links compressing pays, by type, bucket and ranks."""
    table = []
    for dtype in KERNELS:
        for size in SIZES:
            for n_ranks in RANKS:
                each = bucket(results, dtype, size * 1e6, n_ranks)
                times = (f"{1e3 * each.device:.2f}", f"{1e3 * each.host:.2f}")
                rates = (f"{8e-9 * rate:.0f}" for rate in (each.alone(), each.among_others()))
                table.append([dtype, f"{size} MB", str(n_ranks), f"{100 * each.ratio:.0f} %", *times, *rates])
    columns = ["values", ">bucket", ">ranks", ">frames", ">device, ms", ">host, ms", ">alone, Gb/s"]
    return [
        *markdown([*columns, ">among others, Gb/s"], table),
        "",
        "**An estimate, of which nothing was measured on a device**: an H200 that issues 60 % of the instructions that "
        "it can, whose memory moves 4.3 TB/s; kernels as counted for sm_90; the host's calls as "
        "`bench.gpu_host` measures them, 100 µs more for each half, and as many for a small collective of two ranks, "
        "20 µs for each further one.",
    ]
