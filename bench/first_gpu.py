"""What a CUDA device says in its first minutes: whether frames are right, then how fast they are made and read.

    python -m bench.first_gpu [--seconds N] [--out DIR] [--laws N]

writes ``first-gpu.csv``, each row as it comes, so that a run that is cut off has all before. What matters most comes
first: the environment; ten laws, whose frames and hashes are compared with stored ones; times of encoding and decoding
float32 and bfloat16 beside a copy; an all-reduce of two ranks; the first laws under NVIDIA's compute-sanitizer. What
fails is a row, too, and the run goes on, but after a fault of the device, of which all later calls would fail. Nothing
is started after so many seconds. Needs torch, numba and a CUDA device, but compiles no kernel for the CPU: frames are
those that ``first_gpu_hashes.json`` names, which ``python -m bench.first_gpu --store`` has written; tests compare them
with what the kernels make on the host, which other tests compare with the host's codec.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from bench.gpu_device import buffers_of, environment, gradients, reason_not_to, times
from gcodec import FINE_LADDER, gpu
from gcodec.benchmark.csv_tables import read_table
from gcodec.dtypes import BY_NAME
from gcodec.gpu import gpu_memory

HASHES = Path(__file__).with_name("first_gpu_hashes.json")
RESULTS = Path(__file__).resolve().parent / "results"
COLUMNS = ("seconds", "step", "what", "result")
SIZES = (1 << 20, 25 << 20, 256 << 20)
TYPES = ("float32", "bfloat16")
#: Seconds after which a program that this one starts is ended.
PATIENCE = 60
SANITIZERS = ("memcheck", "racecheck")
SANITIZED = 4  #: laws that run under each of them
Row = tuple[str, str]
Law = Callable[[], bytes]


def values(dtype: str, n: int, seed: int) -> Any:
    """Return values like a gradient's on the device, the same wherever they are made: whole numbers decide each bit."""
    import torch

    kind = BY_NAME[dtype]
    x = (np.arange(n, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(32)
    zeros = np.bitwise_count(
        (x & (~x + np.uint64(1))) - np.uint64(1)
    )  # below the lowest one, as often as coins fall alike
    exponent = np.uint64((1 << kind.exponent_bits - 1) - 2) - zeros.astype(np.uint64) % np.uint64(12)
    bits = (x >> np.uint64(63)) << np.uint64(kind.bits - 1) | exponent << np.uint64(kind.mantissa_bits)
    bits |= x >> np.uint64(13) & np.uint64((1 << kind.mantissa_bits) - 1)
    bits[x >> np.uint64(58) == 0] = 0
    signed = {16: np.int16, 32: np.int32}[kind.bits]
    return torch.from_numpy(bits.astype(kind.uint).view(signed)).cuda().view(getattr(torch, dtype))


def _same(a: Any, b: Any) -> bool:
    import torch

    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def _round_trip(dtype: str, n: int, **options: Any) -> bytes:
    """Return the frame of values by a fresh codebook, whose values encode to the same frame."""
    x = values(dtype, n, 1)
    book = gpu.fresh_codebook([x], **options)
    (frame,) = gpu.encode_batch([x], codebook=book, **options)
    (result,) = gpu.decode_batch([frame])
    assert options or _same(result, x), "decoded values differ"
    (again,) = gpu.encode_batch([result], codebook=book, **options)
    assert _same(again, frame), "decoded values encode to another frame"
    return bytes(frame.cpu().numpy())


def _ladder(dtype: str, n: int) -> bytes:
    import torch

    levels = torch.arange(n, device="cuda") % len(FINE_LADDER[dtype].drops)
    return _round_trip(dtype, n, levels=[levels.to(torch.uint8)])


def _many(dtype: str) -> bytes:
    """Return the frames of tensors of many sizes, one after another."""
    tensors = [values(dtype, n, n) for n in (1, 255, 16384, 16385, 50_000)]
    frames = gpu.encode_batch(tensors)
    assert all(map(_same, gpu.decode_batch(frames), tensors)), "decoded values differ"
    return b"".join(bytes(frame.cpu().numpy()) for frame in frames)


def _hash(n: int) -> bytes:
    import torch

    return str(gpu.device_hashes([values("float32", n, 2).view(torch.uint8)])).encode()


LAWS: dict[str, Law] = {
    "lossless, float32": lambda: _round_trip("float32", 100_003),
    "lossless, bfloat16": lambda: _round_trip("bfloat16", 100_003),
    "fixed 6, float32": lambda: _round_trip("float32", 50_001, mantissa_bits=6),
    "levels, bfloat16": lambda: _ladder("bfloat16", 50_001),
    "lossless, float16": lambda: _round_trip("float16", 100_003),
    "levels, float32": lambda: _ladder("float32", 50_001),
    "fixed 3, bfloat16": lambda: _round_trip("bfloat16", 50_001, mantissa_bits=3),
    "many tensors, float32": lambda: _many("float32"),
    "many tensors, bfloat16": lambda: _many("bfloat16"),
    "hashes": lambda: _hash(300_007),
}


def laws(first: int | None = None) -> Iterator[Row]:
    """Yield whether each law holds; of the first ones, if a number is given."""
    stored = json.loads(HASHES.read_text())
    for name, law in list(LAWS.items())[:first]:
        yield name, _outcome(partial(_checked, law, stored[name]))


def _checked(law: Law, expected: str) -> str:
    frame = law()
    found = sha256(frame).hexdigest()
    return "holds" if found == expected else f"FAILED: {len(frame)} bytes with hash {found}, not {expected}"


def _outcome(call: Callable[[], str]) -> str:
    """Return what a call returns, or how it fails; a fault of the device is passed on."""
    try:
        return call()
    except RuntimeError as error:
        if gpu_memory.is_fault(error):
            raise
        return f"FAILED: {error}"
    except Exception as error:  # whatever it is, the next row may do better
        return f"FAILED: {type(error).__name__}: {error}"


def speeds(sizes: Sequence[int] = SIZES, rounds: int = 9) -> Iterator[Row]:
    """Yield times of encoding with a codebook that is kept, of decoding, and of a copy: of kernels, and of the call."""
    for size in sizes:
        for dtype in TYPES:
            yield from _speeds_of(dtype, size, rounds)


def _speeds_of(dtype: str, size: int, rounds: int) -> Iterator[Row]:
    tensors = [gradients(dtype, size) for _ in range(buffers_of(size))]
    book = gpu.fresh_codebook(tensors[:1])
    (frame,) = gpu.encode_batch(tensors[:1], codebook=book)
    frames = [frame.clone() for _ in tensors]
    ways: dict[str, tuple[Callable[[int], Any], bool]] = {
        "copy": (lambda k: tensors[k].copy_(tensors[k - 1]), False),
        "encode": (lambda k: gpu.start_batch([tensors[k]], codebook=book), False),
        "encode, fresh codebook": (lambda k: gpu.start_batch([tensors[k]]), True),
        "decode": (lambda k: gpu.decode_batch([frames[k]]), True),
    }
    for name, (call, waits) in ways.items():
        title = f"{name}, {dtype}, {size >> 20} MiB, frame of {len(frame)} bytes"
        yield title, _outcome(partial(_timed, call, len(tensors), rounds, waits, size))


def _timed(call: Callable[[int], Any], n: int, rounds: int, waits: bool, size: int) -> str:
    took = times(call, n, rounds, waits=waits)
    speed = size / took.kernels / 1e9 if took.kernels else 0.0
    return f"kernels {1e6 * took.kernels:.1f} us, call {1e6 * took.call:.1f} us, {speed:.1f} GB/s"


def allreduce() -> Iterator[Row]:
    """Yield how all-reduces of two ranks went, in a program of its own, and of a DDP bucket, whose codebook is kept or
    fresh."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bench.gpu_allreduce", "--quick", "--out", folder]
        yield "two ranks, small buckets", _outcome(partial(_run, command))
        table = Path(folder) / "gpu-allreduce.csv"
        for row in read_table(table)[1] if table.exists() else ():
            yield f"two ranks, {row['dtype']}, {row['mode']}, {row['bytes']} bytes", f"{row['milliseconds']} ms"


def sanitized() -> Iterator[Row]:
    """Yield what NVIDIA's compute-sanitizer finds in the first laws: four kernels that encode and decode."""
    tool = _sanitizer()
    for name in SANITIZERS:
        command = [str(tool), "--tool", name, "--error-exitcode", "9", sys.executable, "-m", "bench.first_gpu"]
        command += ["--laws", str(SANITIZED)]
        yield name, _outcome(partial(_run, command)) if tool else "compute-sanitizer is not here"


def _sanitizer() -> str | None:
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    last = " | ".join((done.stdout + done.stderr).strip().splitlines()[-6:])
    return last if done.returncode == 0 else f"FAILED with {done.returncode}: {last}"


STEPS: dict[str, Callable[[], Iterator[Row]]] = {
    "environment": lambda: ((line.partition(":")[0], line.partition(":")[2].strip()) for line in environment()),
    "law": laws,
    "time": speeds,
    "all-reduce": allreduce,
    "sanitizer": sanitized,
}


def run(path: Path, seconds: float) -> int:
    """Take all steps, write a row for each result, and return how many failed."""
    begin, n_failed = monotonic(), 0
    with path.open("w", newline="") as file:
        table = csv.writer(file)

        def put(*row: str) -> None:
            table.writerow((f"{monotonic() - begin:.1f}", *row))
            file.flush()
            print(*row, sep=", ", flush=True)

        table.writerow(COLUMNS)
        for step, rows in STEPS.items():
            try:
                for what, result in rows():
                    put(step, what, result)
                    n_failed += result.startswith("FAILED")
                    if monotonic() - begin > seconds:
                        put(step, "all that follows", f"left out after {seconds:.0f} seconds")
                        return n_failed
            except Exception as error:
                n_failed += 1
                put(step, "the rest of the step", f"FAILED: {type(error).__name__}: {error}")
                if isinstance(error, RuntimeError) and gpu_memory.is_fault(error):
                    put(
                        step,
                        "all that follows",
                        "left out: the device is at fault, and only another process could use it",
                    )
                    return n_failed
    return n_failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Take all steps, or only the first laws; return 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m bench.first_gpu", description="A device's first minutes.")
    parser.add_argument("--seconds", type=float, default=420.0, help="start nothing after so many")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for first-gpu.csv")
    parser.add_argument("--laws", type=int, help="take only so many laws, and write no table")
    parser.add_argument("--store", action="store_true", help="write first_gpu_hashes.json")
    options = parser.parse_args(arguments)
    reason = reason_not_to()
    if reason:
        print(f"bench.first_gpu: nothing to do: {reason}")
        return 0
    if options.store:
        HASHES.write_text(json.dumps({name: sha256(law()).hexdigest() for name, law in LAWS.items()}, indent=2) + "\n")
        return 0
    if options.laws is not None:
        results = [result for _, result in laws(options.laws)]
        print(*results, sep="\n")
        return int(any(result != "holds" for result in results))
    return int(run(options.out / "first-gpu.csv", options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
