"""Compile kernels ahead of their first use, for levels of CPUs.

    python -m tools.compile_kernels [--out DIR] [--host SECONDS | --levels LEVEL ...] [--work FILE]

writes ``gcodec/kernels/compiled/LEVEL.zip``, for all levels, or for that of this machine's CPU as much as can be begun
within a time. For each level, processes share the parts of some work, with numba told to compile for that level, and
keep the kernels that Python calls; what is only a part of other kernels is not packed. This CPU must be able to run the
level's code.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import runpy
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import time
from typing import Any

from gcodec.errors import GcodecError
from gcodec.kernels.core import kernel_cache, shipped_kernels
from gcodec.kernels.core.cpu_levels import LEVELS, CpuLevel
from gcodec.kernels.core.numba_private import has_features

#: Memory of a process that compiles.
PROCESS_BYTES = 1 << 30
WORK = Path(__file__).with_name("kernel_work.py")
Kernels = dict[str, bytes]  #: entries of an archive, by name


def compile_level(level: CpuLevel, work: Path, out: Path, seconds: float = inf) -> None:
    """Compile and pack what some work needs. What is in ``LEVEL.zip`` already, and is as it would be compiled now, is
    taken from there.

    Args:
        level: The CPUs.
        work: A file of Python with ``PARTS``, functions by name, in the order in which they begin.
        out: Folder where ``LEVEL.zip`` goes.
        seconds: Parts that have not begun after this time are left out, as are those that fail; and kernels are packed
            sooner and larger. By default all are compiled.

    Raises:
        GcodecError: A part failed, and all were to be compiled, or nothing could be.
    """
    parts, end, effort = runpy.run_path(str(work))["PARTS"], time() + seconds, 19 if seconds == inf else 3
    kernels, done, failed = Kernels(), list[str](), list[str]()
    with (
        compiling_for(level),
        ProcessPoolExecutor(n_processes(), mp.get_context("spawn"), initializer=note_kernels) as pool,
    ):
        calls = {pool.submit(do_part, str(work), name, end, effort): name for name in parts}
        for call in as_completed(calls):
            try:
                result = call.result()
            except Exception:  # what other parts have compiled is worth having
                traceback.print_exc()
                failed.append(calls[call])
            else:
                if result is not None:
                    kernels |= result
                    done.append(calls[call])
    if failed and (seconds == inf or not done):
        raise GcodecError(f"kernels are not compiled, as this failed: {', '.join(failed)}")
    out.mkdir(parents=True, exist_ok=True)
    target, partial = out / f"{level.name}.zip", out / f".{level.name}.zip.partial"
    with zipfile.ZipFile(partial, "w") as archive:
        for name, content in sorted(kernels.items()):
            archive.writestr(zipfile.ZipInfo(name), content)
    partial.replace(target)  # whole, as other processes may read the old one
    print(f"{target}: {len(kernels)} kernels, {target.stat().st_size / 1e6:.1f} MB: {', '.join(done)}", flush=True)


@contextmanager
def compiling_for(level: CpuLevel) -> Iterator[None]:
    """Have processes that start within the block compile for a level, with an empty cache."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache:
        os.environ.update(NUMBA_CPU_NAME=level.cpu, NUMBA_CPU_FEATURES=level.flags, NUMBA_CACHE_DIR=cache)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


_seen: list[tuple[str, str, Any, Any]] = []  #: of this process: what Python called for the first time


def note_kernels() -> None:
    """Have this process note the kernels that Python calls, whether they are compiled or loaded."""
    files: Any = kernel_cache._CheckedFiles
    load, save = files.load, files.save

    def note(self: Any, key: Any, data: Any) -> None:
        if data is not None and not self._name.endswith(kernel_cache.INNER):
            _seen.append((self._name, self._release, key, data))

    def load_noted(self: Any, key: Any) -> Any:
        data = load(self, key)
        note(self, key, data)
        return data

    def save_noted(self: Any, key: Any, data: Any) -> None:
        save(self, key, data)
        note(self, key, data)

    files.load, files.save = load_noted, save_noted


@contextmanager
def without_torch() -> Iterator[None]:
    """Have no module import torch meanwhile: where pip builds a package, it is not there."""
    before = sys.modules.get("torch")
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["torch"]
        if before is not None:
            sys.modules["torch"] = before


def do_part(work: str, name: str, end: float, effort: int) -> Kernels | None:
    """Return the kernels that a part of the work called for the first time in this process; None if it was too late to
    begin, in seconds since the epoch."""
    if time() >= end:
        return None
    with without_torch():
        runpy.run_path(work)["PARTS"][name]()
    dumps = kernel_cache._dumps()
    kernels = dict(shipped_kernels.entry(*seen, dumps, effort) for seen in _seen)
    _seen.clear()
    return kernels


def n_processes() -> int:
    """Return how many processes may compile at the same time: as many as there are cores, and memory for each."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # of a system that does not tell
        return n_cores
    return max(1, min(n_cores, free_bytes // PROCESS_BYTES))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.compile_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=shipped_kernels.FOLDER, help="folder of the archives")
    parser.add_argument("--host", type=float, metavar="SECONDS",
                        help="for this machine's CPU alone, as much as can be begun in so many seconds")  # fmt: skip
    parser.add_argument("--levels", nargs="+", choices=[level.name for level in LEVELS],
                        default=[level.name for level in LEVELS])  # fmt: skip
    parser.add_argument("--work", type=Path, default=WORK,
                        help="a file of Python with PARTS, functions by name (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    names, seconds = set(options.levels), inf
    if options.host is not None:
        level = shipped_kernels.level_of_host()
        if level is None:
            print("kernels are compiled ahead only for x86-64 CPUs, of levels that this one is not of", flush=True)
            return 0
        names, seconds = {level.name}, options.host
    for level in LEVELS:
        if level.name in names:
            if missing := [feature for feature in level.features if not has_features(feature)]:
                parser.error(f"this CPU cannot run {level.name}, it lacks {', '.join(missing)}")
            compile_level(level, options.work, options.out, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
