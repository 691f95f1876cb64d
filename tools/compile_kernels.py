"""Compile kernels ahead of their first use, for levels of CPUs.

    python -m tools.compile_kernels [--out DIR] [--host SECONDS | --levels LEVEL ...] [--work FILE]

writes ``gcodec/kernels/compiled/LEVEL.zip``, for all levels, or for that of this machine's CPU as much as can be begun
within a time. For each level, processes do the same work twice, with numba told to compile for that level: the first
ones fill a temporary cache, each with a part of the work; the last one finds everything there, and what it looked for
is packed. So what is only a part of other kernels is not packed. This CPU must be able to run the level's code.
"""

from __future__ import annotations

import argparse
import os
import runpy
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from time import perf_counter

from gcodec.kernels.core import shipped_kernels
from gcodec.kernels.core.cpu_levels import LEVELS, CpuLevel
from gcodec.kernels.core.numba_private import has_features

ROOT = Path(__file__).resolve().parents[1]
WORK = Path(__file__).with_name("kernel_work.py")
COLLECT = """
from gcodec.kernels.core import kernel_cache, shipped_kernels
found, load = {}, kernel_cache._CheckedFiles.load

def record(self, key):
    data = load(self, key)
    if data is not None:
        name, content = shipped_kernels.entry(self._name, self._release, key, data, kernel_cache._dumps(), {effort})
        found[name] = content
    return data

kernel_cache._CheckedFiles.load = record
"""
WRITE = """
import zipfile
with zipfile.ZipFile({out!r}, "w") as archive:
    for name, content in sorted(found.items()):
        archive.writestr(zipfile.ZipInfo(name), content)
"""


def compile_level(
    level: CpuLevel, work: Path, out: Path, parts: Sequence[str] = (), seconds: float = inf, packages: str = ""
) -> None:
    """Compile and pack what some work needs.

    Args:
        level: The CPUs.
        work: A file of Python that uses them.
        out: Folder where ``LEVEL.zip`` goes.
        parts: Names that the file takes on its command line, for parts that processes compile at the same time; by
            default there is one process.
        seconds: Parts that have not begun after this time are left out, and kernels are packed sooner and larger.
        packages: A folder of packages that are used where there are no others, such as torch.
    """
    target = out / f"{level.name}.zip"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.flags,
                       "NUMBA_CACHE_DIR": cache}  # fmt: skip
        packed = Path(cache) / "packed.zip"
        run = f"import runpy, sys\nsys.path += {[packages] * bool(packages)}\n"
        run += f"runpy.run_path({str(work)!r}, run_name='__main__')\n"

        begin, done = perf_counter(), list[str]()

        def compile_part(arguments: Sequence[str]) -> None:
            if perf_counter() < begin + seconds:
                subprocess.run([sys.executable, "-c", run, *arguments], check=True, cwd=ROOT, env=environment)
                done.extend(arguments)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_part, [[part] for part in parts] or [[]]))
        effort = 19 if seconds == inf else 3  #: zstd's level
        pack = COLLECT.replace("{effort}", str(effort)) + run + WRITE.format(out=str(packed))
        subprocess.run([sys.executable, "-c", pack, *done], check=True, cwd=ROOT, env=environment)
        out.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed.read_bytes())
    with zipfile.ZipFile(target) as archive:
        n_kernels = len(archive.namelist())
    print(f"{target}: {n_kernels} kernels, {target.stat().st_size / 1e6:.1f} MB", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.compile_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=shipped_kernels.FOLDER, help="folder of the archives")
    parser.add_argument("--host", type=float, metavar="SECONDS",
                        help="for this machine's CPU alone, as much as can be begun in so many seconds")  # fmt: skip
    parser.add_argument("--packages", default="", help="a folder of packages to use where there are no others")
    parser.add_argument("--levels", nargs="+", choices=[level.name for level in LEVELS],
                        default=[level.name for level in LEVELS])  # fmt: skip
    parser.add_argument("--work", type=Path, default=WORK,
                        help="a file of Python that uses the kernels to ship (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    names, seconds = set(options.levels), inf
    if options.host is not None:
        level = shipped_kernels.level_of_host()
        if level is None:
            print("kernels are compiled ahead only for x86-64 CPUs, of levels that this one is not of", flush=True)
            return 0
        names, seconds = {level.name}, options.host
    parts = [] if options.work != WORK else runpy.run_path(str(WORK))["PARTS"]
    for level in LEVELS:
        if level.name in names:
            if missing := [feature for feature in level.features if not has_features(feature)]:
                parser.error(f"this CPU cannot run {level.name}, it lacks {', '.join(missing)}")
            compile_level(level, options.work, options.out, list(parts), seconds, options.packages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
