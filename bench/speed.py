"""Measure speed against that of copying memory on 64 Mi values, and the same without the vector steps of AVX-512.

    python -m bench.speed [--data DIR] [--quick] [--out DIR]

writes ``bench/results/speed.csv``: the gradients of each model, repeated to that size and of unknown shapes; lossless
and near-lossless float32, the levels given, and lossless bfloat16; one thread, into memory that exists, all of a line
in turn with the copy; medians. Then the same in processes whose kernels are compiled for x86-64 with AVX2 (2013), and
as of 2009: the speeds, and whether the bytes are the same. ``bench/results/avx2`` has those of a CPU without AVX-512.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from xxhash import xxh3_128_hexdigest

from bench.codec import RESULTS
from bench.data import default_folder
from bench.stages import inputs_of
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.measure import COPY, MEGA, OURS
from gcodec.benchmark.settings import Setting
from gcodec.benchmark.timing import GIGA, copy_task, interleave
from gcodec.kernels.core.intrinsics import HAS_AVX2, HAS_AVX512

VALUES = 64 * MEGA
NATIVE, AVX2, PORTABLE = "native", "AVX2", "portable"
OWN = NATIVE if HAS_AVX512 or not HAS_AVX2 else AVX2  #: the path of this process
CPUS = {AVX2: "x86-64-v3", PORTABLE: "x86-64-v2"}
Found = dict[str, str | float | int]


def measured(title: str, setting: Setting, rounds: int) -> Found:
    """Sizes and speeds of one mode on one input, and a hash of its bytes."""
    tasks = {OURS: setting.task(), COPY: copy_task(setting.data.bits)}
    encoded = bytes(tasks[OURS].encode())
    timings, errors = interleave(tasks, rounds, 60.0)
    for error in errors.values():
        raise error
    own, copy, size = timings[OURS], timings[COPY], setting.data.nbytes
    return {
        "data": title,
        "mode": setting.mode,
        "bytes": size,
        "compressed_bytes": len(encoded),
        "copy": size / copy.encode / GIGA,
        "encode": size / own.encode / GIGA,
        "decode": size / own.decode / GIGA,
        "hash": xxh3_128_hexdigest(encoded),
    }


def here(folder: Path, values: int, rounds: int) -> Iterator[Found]:
    """Yield all results of this process."""
    for title, settings in inputs_of(folder, values):
        for setting in settings:
            yield measured(title, setting, rounds)


def elsewhere(path: str, folder: Path, values: int, rounds: int) -> Iterator[Found]:
    """Yield the results of a process that is compiled for another path."""
    command = [sys.executable, "-m", "bench.speed", "--child", f"{values},{rounds}", "--data", str(folder)]
    # The name alone keeps the features of the machine at hand; the empty list takes them away.
    own = {
        "NUMBA_CPU_NAME": CPUS[path],
        "NUMBA_CPU_FEATURES": "",
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ".cache/numba") + f"-{path.lower()}",
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | own) as child:
        assert child.stdout is not None
        yield from map(json.loads, child.stdout)
    if child.returncode:
        raise SystemExit(f"the path {path} failed: {child.returncode}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if the paths do not give the same bytes."""
    parser = argparse.ArgumentParser(prog="python -m bench.speed", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of dumps (default: what bench.record wrote)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="few values, 1 round, without AVX2")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    folder = options.data or default_folder()
    values, rounds = (MEGA // 4, 1) if options.quick else (VALUES, 7)
    if options.child:
        for result in here(folder, *map(int, options.child.split(","))):
            print(json.dumps(result), flush=True)
        return 0
    paths: dict[str, Callable[[Path, int, int], Iterator[Found]]] = {OWN: here}
    if platform.machine() == "x86_64":  # elsewhere there is one path
        paths |= {
            path: partial(elsewhere, path) for path in CPUS if path == PORTABLE or not (options.quick or path == OWN)
        }
    rows: list[NamedRow] = []
    hashes: dict[tuple[object, object], object] = {}
    for path, run in paths.items():
        for result in run(folder, values, rounds):
            copy, encode, decode = (float(result[name]) for name in ("copy", "encode", "decode"))
            same = hashes.setdefault((result["data"], result["mode"]), result["hash"]) == result["hash"]
            rows.append(
                {
                    "data": result["data"],
                    "mode": result["mode"],
                    "path": path,
                    "bytes": result["bytes"],
                    "compressed_bytes": result["compressed_bytes"],
                    "copy_GBps": f"{copy:.3f}",
                    "encode_GBps": f"{encode:.3f}",
                    "decode_GBps": f"{decode:.3f}",
                    "encode_of_copy": f"{encode / copy:.4f}",
                    "decode_of_copy": f"{decode / copy:.4f}",
                    "same_bytes": "yes" if same else "no",
                }
            )
            print(*rows[-1].values(), flush=True)
    write_named(options.out / "speed.csv", rows)
    return 0 if all(row["same_bytes"] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
