"""Measure how long a process takes until its first work is done: from an empty cache of kernels, and from a warm one.

    python -m bench.startup [--quick] [--wheel FILE] [--out DIR]

writes ``bench/results/startup.csv``, in about five minutes on two cores. Every case is a fresh process, Python's own
start included. ``empty`` is this checkout and a folder without compiled kernels, one run; ``warm`` is the process after
that; ``wheel`` is what a wheel of this checkout installs, which brings kernels, and an empty folder again. The last two
are the fastest of several rounds in which all cases take turns. `make wheel` makes a wheel in ``dist``, where it is
looked for. What codecs get is 24 MiB of normal values in rows of different scales, as a .npy file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from bench.codec import RESULTS
from bench.data import ROOT
from gcodec.benchmark.csv_tables import write_table
from gcodec.benchmark.peers import installed_version
from gcodec.errors import GcodecError

COLUMNS = ("case", "codec", "cache", "seconds", "cpu_seconds", "page_faults")
ROUNDS, QUICK = 7, ("import", "help")
COMPRESS, HELP, HOOK = "compress a 24 MB file", "help", "hook"
FIRST = ("encode + decode float32", "encode + decode bfloat16")
EMPTY, WARM, WHEEL = "empty", "warm", "wheel"
OURS = "gcodec"
_LOAD = "import numpy as np; x = np.load('values.npy')\n"
_BFLOAT16 = "x = (x.view(np.uint32) >> 16).astype(np.uint16)\n"
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
        name: what is done.
        codec: who does it.
        command: arguments of Python; run in a folder that has ``values.npy``.
        package: what must be installed for it; empty if it is always there.
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
    Case(FIRST[0], OURS, ("-c", f"{_LOAD}import gcodec; gcodec.decode(gcodec.encode(x))")),
    Case(FIRST[1], OURS, ("-c", f"{_LOAD}{_BFLOAT16}import gcodec; gcodec.decode(gcodec.encode(x, dtype='bfloat16'))")),
    Case(COMPRESS, OURS, _cli("compress", "-fq", "values.npy", "-o", "values.gc")),
    Case("decompress it", OURS, _cli("decompress", "-fq", "values.gc", "-o", "back.npy")),
    Case(HOOK, OURS, ("-c", _HOOK), "torch"),
    Case(HOOK, "torch", ("-c", _HOOK.replace(", gcodec\n", "\n").replace("ddp.register", "# ")), "torch"),
    Case(
        FIRST[0],
        "zstd-1",
        ("-c", f"{_LOAD}import zstandard as z; z.ZstdDecompressor().decompress(z.ZstdCompressor(1).compress(x))"),
        "zstandard",
    ),
    Case(
        FIRST[0],
        "pcodec-8",
        (
            "-c",
            f"{_LOAD}from pcodec import ChunkConfig, standalone as p; "
            "p.simple_decompress(p.simple_compress(x.reshape(-1), ChunkConfig()))",
        ),
        "pcodec",
    ),
    Case(
        FIRST[0],
        "Blosc2 zstd-1",
        ("-c", f"{_LOAD}import blosc2; blosc2.unpack_array2(blosc2.pack_array2(x))"),
        "blosc2",
    ),
    Case(
        FIRST[0],
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
        seconds: from its start to its end.
        cpu_seconds: of all its threads.
        page_faults: pages of memory that it got from the system.
    """

    seconds: float
    cpu_seconds: float
    page_faults: int


def run(case: Case, folder: Path, cache: Path, package: Path = ROOT) -> Run:
    """Run a case in a process of its own.

    Args:
        case: what to run.
        folder: where ``values.npy`` is.
        cache: folder of compiled kernels.
        package: the folder where gcodec is.

    Raises:
        GcodecError: it failed.
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


def measure(cases: Sequence[Case], folder: Path, rounds: int, wheel: Path | None) -> Iterator[tuple[Case, str, Run]]:
    """Yield each case from an empty cache and from a warm one, with what it took.

    Args:
        cases: what to start.
        folder: a scratch folder.
        rounds: how often each is run from the warm cache, and from what the wheel installs.
        wheel: a wheel of this checkout; None to leave that out.
    """
    empty, warm, installed = (folder / name for name in (EMPTY, WARM, "installed"))
    ours = [case for case in cases if case.codec == OURS]
    for case in cases:  # modules are compiled here, and not below
        run(case, folder, warm)
    for case in ours:
        yield case, EMPTY, run(case, folder, empty)
        shutil.rmtree(empty, ignore_errors=True)
    if wheel is not None:
        zipfile.ZipFile(wheel).extractall(installed)
        for case in ours:
            run(case, folder, empty, installed)
    runs: dict[tuple[Case, str], list[Run]] = {}
    for _ in range(rounds):
        for case in cases:
            runs.setdefault((case, WARM), []).append(run(case, folder, warm))
            if wheel is not None and case.codec == OURS:
                shutil.rmtree(empty, ignore_errors=True)
                runs.setdefault((case, WHEEL), []).append(run(case, folder, empty, installed))
    for (case, cache), taken in sorted(runs.items(), key=lambda item: item[0][1]):
        yield case, cache, fastest(taken)


def newest_wheel() -> Path | None:
    """Return the wheel that was made last in this checkout; None without one, or, with a word, if it does not fit."""
    wheel = max((ROOT / "dist").glob("gcodec-*.whl"), key=lambda path: path.stat().st_mtime, default=None)
    try:
        if wheel is not None:
            check_wheel(wheel)
    except GcodecError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None
    return wheel


def check_wheel(wheel: Path) -> None:
    """Raise GcodecError if a wheel brings no kernels, or those of other sources than this checkout."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        others = [
            name
            for name in names
            if name.startswith("gcodec/kernels/")
            and name.endswith(".py")
            and not ((ROOT / name).exists() and (ROOT / name).read_bytes() == archive.read(name))
        ]
    if others:
        raise GcodecError(f"{wheel} is of other sources than this checkout, {others[0]} among them: make wheel again")
    if not any(name.startswith("gcodec/kernels/compiled/") for name in names):
        raise GcodecError(f"{wheel} brings no compiled kernels: make one with make wheel")


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
    parser.add_argument("--wheel", type=Path, help="a wheel of this checkout (default: the newest in dist)")
    options = parser.parse_args(arguments)
    if options.wheel is not None:
        check_wheel(options.wheel)
    elif not options.quick:
        options.wheel = newest_wheel()
    cases = [case for case in CASES if not case.package or installed_version(case.package) is not None]
    if options.quick:
        cases = [case for case in cases if case.name in QUICK]
    table = []
    with tempfile.TemporaryDirectory() as folder:
        write_values(Path(folder) / "values.npy")
        for case, cache, taken in measure(cases, Path(folder), 1 if options.quick else ROUNDS, options.wheel):
            row = (case.name, case.codec, cache, f"{taken.seconds:.3f}", f"{taken.cpu_seconds:.3f}", taken.page_faults)
            print(*row, flush=True)
            table.append(row)
    write_table(options.out / "startup.csv", COLUMNS, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
