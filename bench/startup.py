"""Measure how long it takes to install gcodec, and a process until its first work is done.

    python -m bench.startup [--quick] [--out DIR]

writes ``bench/results/startup.csv``, in about ten minutes on two cores. Every case is a fresh process, Python's own
start included. ``empty`` is a copy of this checkout and a folder without compiled kernels, one run; ``installed`` is
what `pip install` makes of that copy, which compiles kernels, and an empty folder again; ``warm`` is the process after
the one from an empty folder. The last two are the fastest of several rounds in which all cases take turns. pip fetches
what compiling needs; gcodec's dependencies are there already. What codecs get is 24 MiB of normal values in rows of
different scales, as a .npy file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench.codec import RESULTS
from bench.data import ROOT
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.peers import installed_version
from gcodec.errors import GcodecError

ROUNDS, QUICK = 5, ("import", "help")
SLOW = 10.0  #: seconds after which a process that uses what was installed is not started again
COMPRESS, HELP, HOOK, INSTALL = "compress a 24 MB file", "help", "hook", "pip install"
#: What is encoded and decoded first, by what is given to both, and to encode alone.
FIRST = {
    "encode + decode float32": ("", ""),
    "encode + decode float32, flat": ("x = x.reshape(-1)", ""),
    "encode + decode float16": ("x = x.astype(np.float16)", ""),
    "encode + decode bfloat16": ("x = (x.view(np.uint32) >> 16).astype(np.uint16)", ", dtype='bfloat16'"),
    "encode + decode float32, 7 mantissa bits": ("", ", mantissa_bits=7"),
    "encode + decode float32 against a base": ("base = x.copy(); x[:, ::50] *= 1.001", ", base=base"),
}
FLOAT32 = next(iter(FIRST))
EMPTY, WARM, INSTALLED = "empty", "warm", "installed"
#: What a copy of the checkout is made without.
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "compiled", "build", "dist", "*.gc")
OURS = "gcodec"
_LOAD = "import numpy as np; x = np.load('values.npy')\n"
_HOOK = """
import torch, torch.distributed as dist, gcodec
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
ddp = DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.AdamW(ddp.parameters())
ddp.register_comm_hook(gcodec.distributed.CompressedAllreduce(optimizer=optimizer), gcodec.distributed.hook)
for _ in range(2):
    ddp(torch.ones(4, 512)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


class Case(NamedTuple):
    """Something to start.

    Attributes:
        name: What is done.
        codec: Who does it.
        command: Arguments of Python; run in a folder that has ``values.npy``.
        package: What must be installed for it; empty if it is always there.
    """

    name: str
    codec: str
    command: tuple[str, ...]
    package: str = ""


def _cli(*arguments: str) -> tuple[str, ...]:
    return "-m", "gcodec", *arguments


CASES = (
    Case("nothing", "Python", ("-c", "pass")),
    Case("import", "numpy", ("-c", "import numpy")),
    Case("import", OURS, ("-c", "import gcodec")),
    Case(HELP, OURS, _cli("--help")),
    *(
        Case(
            name,
            OURS,
            (
                "-c",
                f"{_LOAD}{prepare}\nimport gcodec\nframe = gcodec.encode(x{options})\n"
                f"gcodec.decode(frame{', base=base' if 'base' in options else ''})",
            ),
        )
        for name, (prepare, options) in FIRST.items()
    ),
    Case(COMPRESS, OURS, _cli("compress", "-fq", "values.npy", "-o", "values.gc")),
    Case("decompress it", OURS, _cli("decompress", "-fq", "values.gc", "-o", "back.npy")),
    Case(HOOK, OURS, ("-c", _HOOK), "torch"),
    Case(HOOK, "torch", ("-c", _HOOK.replace(", gcodec\n", "\n").replace("ddp.register", "# ")), "torch"),
    Case(
        FLOAT32,
        "zstd-1",
        ("-c", f"{_LOAD}import zstandard as z; z.ZstdDecompressor().decompress(z.ZstdCompressor(1).compress(x))"),
        "zstandard",
    ),
    Case(
        FLOAT32,
        "pcodec-8",
        (
            "-c",
            f"{_LOAD}from pcodec import ChunkConfig, standalone as p; "
            "p.simple_decompress(p.simple_compress(x.reshape(-1), ChunkConfig()))",
        ),
        "pcodec",
    ),
    Case(
        FLOAT32,
        "Blosc2 zstd-1",
        ("-c", f"{_LOAD}import blosc2; blosc2.unpack_array2(blosc2.pack_array2(x))"),
        "blosc2",
    ),
    Case(
        FLOAT32,
        "ZipNN",
        (
            "-c",
            f"{_LOAD}import zipnn; c = zipnn.ZipNN(input_format='byte', bytearray_dtype="
            "'float32'); c.decompress(c.compress(bytearray(x.tobytes())))",
        ),
        "zipnn",
    ),
)


class Run(NamedTuple):
    """A process that has ended.

    Attributes:
        seconds: From its start to its end.
        cpu_seconds: Of all its threads.
        page_faults: Pages of memory that it got from the system.
    """

    seconds: float
    cpu_seconds: float
    page_faults: int


def run(case: Case, folder: Path, cache: Path, package: Path) -> Run:
    """Run a case in a process of its own.

    Args:
        case: What to run.
        folder: Where ``values.npy`` is.
        cache: Folder of compiled kernels.
        package: The folder where gcodec is.

    Raises:
        GcodecError: It failed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(package),
        "NUMBA_CACHE_DIR": str(cache),
        "PYTHONPYCACHEPREFIX": str(folder / "pyc"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package's modules are compiled
    begin = perf_counter()
    process = subprocess.Popen(
        [sys.executable, *case.command],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise GcodecError(f"{case.name}, {case.codec}: exit status {process.returncode}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_minflt)


def fastest(runs: Sequence[Run]) -> Run:
    """Return the smallest of each number of several runs."""
    return Run(*map(min, zip(*runs, strict=True)))


def measure(cases: Sequence[Case], folder: Path, rounds: int, install: bool) -> Iterator[tuple[Case, str, Run]]:
    """Yield each case from an empty cache, from what pip installs, and from a warm cache, with what it took.

    Args:
        cases: What to start.
        folder: A scratch folder.
        rounds: How often each is run from the warm cache, and from what pip installs.
        install: Install at all.
    """
    copy, empty, warm, installed = (folder / name for name in ("copy", EMPTY, WARM, INSTALLED))
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    ours, quick = [case for case in cases if case.codec == OURS], list[Case]()
    for case in ours:
        yield case, EMPTY, run(case, folder, empty, copy)
        shutil.rmtree(empty, ignore_errors=True)
    for case in cases:  # modules are compiled here, and not below
        run(case, folder, warm, copy)
    if install:
        arguments = "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(copy)
        case = Case(INSTALL, OURS, arguments)
        yield case, EMPTY, run(case, folder, empty, copy)
        for case in ours:
            first = run(case, folder, empty, installed)
            if first.seconds > SLOW:  # something was compiled nevertheless, and would be again
                yield case, INSTALLED, first
            else:
                quick.append(case)
    runs: dict[tuple[Case, str], list[Run]] = {}
    for _ in range(rounds):
        for case in cases:
            runs.setdefault((case, WARM), []).append(run(case, folder, warm, copy))
            if case in quick:
                shutil.rmtree(empty, ignore_errors=True)
                runs.setdefault((case, INSTALLED), []).append(run(case, folder, empty, installed))
    for (case, cache), taken in sorted(runs.items(), key=lambda item: item[0][1]):
        yield case, cache, fastest(taken)


def write_values(path: Path) -> None:
    """Write the array: 24 MiB of normal values in rows of different scales."""
    random = np.random.default_rng(0)
    scales = np.exp(random.standard_normal((2048, 1), np.float32))
    np.save(path, random.standard_normal((2048, 3072), np.float32) * scales)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="only what compiles nothing, one round")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if not case.package or installed_version(case.package) is not None]
    if options.quick:
        cases = [case for case in cases if case.name in QUICK]
    table = []
    with tempfile.TemporaryDirectory() as folder:
        write_values(Path(folder) / "values.npy")
        for case, cache, taken in measure(cases, Path(folder), 1 if options.quick else ROUNDS, not options.quick):
            row: NamedRow = {
                "case": case.name,
                "codec": case.codec,
                "cache": cache,
                "seconds": f"{taken.seconds:.3f}",
                "cpu_seconds": f"{taken.cpu_seconds:.3f}",
                "page_faults": taken.page_faults,
            }
            print(*row.values(), flush=True)
            table.append(row)
    write_named(options.out / "startup.csv", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
