"""Measure peak memory of an encoding and of a decoding, and what a thousand round trips leave behind.

    python -m bench.memory [--quick] [--out DIR]

writes ``bench/results/memory.csv``. Every codec has a process of its own, which reads its high-water mark from Linux
after resetting it (so this runs on Linux only). *Extra* is the peak over what was there before, input included, less
the result itself: the encoded bytes, or the decoded array. *Growth* is what the resident memory gains in many round
trips, after half as many that let the allocator settle.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bench.codec import RESULTS
from bench.data import ROOT
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.inputs import Input
from gcodec.benchmark.measure import MEGA
from gcodec.benchmark.peers import PEERS, Peer, available
from gcodec.benchmark.settings import lossless_setting
from gcodec.benchmark.timing import CodecTask
from gcodec.errors import GcodecError

NAMES = (
    "gcodec",
    "gcodec, existing memory",
    "gcodec, 2 threads",
    "zstd-1",
    "shuffle+zstd-1",
    "lz4",
    "Blosc2 zstd-1",
    "pcodec-8",
    "ZipNN",
    "OpenZL entropy",
)
BYTES, SMALL = 256 * MEGA, MEGA
ROUND_TRIPS = 1000
OURS = {
    "gcodec": Peer("gcodec", "", lambda data: lossless_setting(data).task(1, reuse=False)),
    "gcodec, existing memory": Peer("", "", lambda data: lossless_setting(data).task(1)),
    "gcodec, 2 threads": Peer("", "", lambda data: lossless_setting(data).task(2, reuse=False)),
}


def contestants() -> dict[str, Peer]:
    """Those of ``NAMES`` that are installed."""
    result = OURS | {peer.name: peer for peer in available(PEERS)[0]}
    return {name: result[name] for name in NAMES if name in result}


def values_of(n_bytes: int) -> Input:
    """Return normal values, seeded: memory does not depend on them much."""
    random = np.random.default_rng(20240)
    return Input("", "float32", (random.standard_normal(n_bytes // 4, np.float32) * np.float32(1e-3)).view(np.uint32))


def resident(key: str) -> int:
    """Return ``VmRSS`` or ``VmHWM`` of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def settle() -> int:
    """Gives freed memory back, resets the high-water mark; the resident bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peaks(name: str, n_bytes: int) -> dict[str, int]:
    """Encoded bytes, and extra bytes of an encoding and of a decoding."""
    peer = contestants()[name]
    small = peer.bind(values_of(SMALL))
    assert small is not None
    small.verify()  # imports, compiles
    task = peer.bind(values_of(n_bytes))
    assert task is not None
    if given := name == "gcodec, existing memory":
        task.encode()  # touches the memory
    task.prepare()
    before = settle()
    encoded = task.encode()
    size = len(encoded)
    encoding = resident("VmHWM") - before - (0 if given else size)
    encoded = bytes(encoded)
    task.decode(encoded)  # touches it
    before = settle()
    decoded = task.decode(encoded)
    decoding = resident("VmHWM") - before - (0 if same_place(small) else n_bytes)
    task.check(decoded)
    return {"encoded_bytes": size, "encode_extra_bytes": encoding, "decode_extra_bytes": decoding}


def same_place(task: CodecTask) -> bool:
    """Return True if a task decodes into memory that it has kept for that."""
    task.prepare()
    encoded = bytes(task.encode())
    first, second = (np.frombuffer(task.decode(encoded), np.uint8) for _ in range(2))
    return first.ctypes.data == second.ctypes.data


def growth(name: str, n_bytes: int, round_trips: int) -> dict[str, int]:
    """Bytes that round trips leave behind."""
    task = contestants()[name].bind(values_of(n_bytes))
    assert task is not None
    before = 0
    settling = round_trips // 2
    for number in range(settling + round_trips):
        if number == settling:
            before = settle()
        task.prepare()
        task.decode(task.encode())
    return {"growth_bytes": settle() - before}


def rows(n_bytes: int, round_trips: int) -> Iterator[NamedRow]:
    """Yield the table, codec by codec; one that fails is left out, but not ours."""
    for name in contestants():
        try:
            peaks, growth = in_child("peaks", name, n_bytes), in_child("growth", name, SMALL, round_trips)
        except GcodecError:
            if name in OURS:
                raise
            continue
        yield {"codec": name, "bytes": n_bytes, **peaks, "round_trips": round_trips, **growth}


def in_child(function: str, *arguments: object) -> dict[str, int]:
    """Return what a function of this module returns in a process of its own."""
    program = f"import json; from bench import memory; print(json.dumps(memory.{function}(*{arguments!r})))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise GcodecError(f"{function}{arguments}: exit status {done.returncode}\n{done.stderr[-1000:]}")
    answer: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="8 MiB, 20 round trips")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/clear_refs").exists():
        print("no /proc/self/clear_refs: memory is measured on Linux only")
        return 0
    results = []
    for row in rows(*((8 * MEGA, 20) if options.quick else (BYTES, ROUND_TRIPS))):
        print(*row.values(), flush=True)
        results.append(row)
    write_named(options.out / "memory.csv", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
