"""Compile the kernels that wheels ship, for each level of CPUs.

    python -m tools.compile_kernels [--out DIR] [--levels LEVEL ...] [--work FILE]

writes ``gcodec/kernels/compiled/LEVEL.zip``. For each level two processes do the same work, with numba told to compile
for that level: the first fills a temporary cache; the second finds everything there, and what it looked for is packed.
So nothing is shipped that is only a part of other kernels. This CPU must be able to run the level's code.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from llvmlite.binding import get_host_cpu_features

from gcodec.kernels.core import shipped_kernels
from gcodec.kernels.core.cpu_levels import LEVELS, CpuLevel

ROOT = Path(__file__).resolve().parents[1]
COLLECT = """
from gcodec.kernels.core import kernel_cache, shipped_kernels
found, load = {}, kernel_cache._CheckedFiles.load

def record(self, key):
    data = load(self, key)
    if data is not None:
        name, content = shipped_kernels.entry(self._name, self._release, key, data, kernel_cache._dumps())
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


def compile_level(level: CpuLevel, work: Path, out: Path) -> None:
    """Compile and pack what some work needs.

    Args:
        level: The CPUs.
        work: A file of Python that uses them.
        out: Folder where ``LEVEL.zip`` goes.
    """
    target = out / f"{level.name}.zip"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CPU_NAME": level.cpu, "NUMBA_CPU_FEATURES": level.flags,
                       "NUMBA_CACHE_DIR": cache}  # fmt: skip
        packed = Path(cache) / "packed.zip"
        run = f"import runpy; runpy.run_path({str(work)!r}, run_name='__main__')\n"
        for source in (run, COLLECT + run + WRITE.format(out=str(packed))):
            subprocess.run([sys.executable, "-c", source], check=True, cwd=ROOT, env=environment)
        out.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed.read_bytes())
    with zipfile.ZipFile(target) as archive:
        n_kernels = len(archive.namelist())
    print(f"{target}: {n_kernels} kernels, {target.stat().st_size / 1e6:.1f} MB", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.compile_kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=shipped_kernels.FOLDER, help="folder of the archives")
    parser.add_argument("--levels", nargs="+", choices=[level.name for level in LEVELS],
                        default=[level.name for level in LEVELS])  # fmt: skip
    parser.add_argument("--work", type=Path, default=Path(__file__).with_name("kernel_work.py"),
                        help="a file of Python that uses the kernels to ship (default: %(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    host = get_host_cpu_features()
    for level in LEVELS:
        if level.name in options.levels:
            if missing := [feature for feature in level.features if not host.get(feature, False)]:
                parser.error(f"this CPU cannot run {level.name}, it lacks {', '.join(missing)}")
            compile_level(level, options.work, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
