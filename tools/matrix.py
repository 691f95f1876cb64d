"""Tries gcodec on each Python with the oldest and with the newest packages that it accepts (``make matrix``).

    python -m tools.matrix [--python 3.12 ...] [--packages oldest|newest|installed ...] [--tests PATH ...]

Each pair has a virtual environment of its own under ``.cache/matrix``, with the wheel and a cache of kernels. There the
command line makes a round trip, and ``LAWS`` and ``ARRAY_TESTS`` run, with torch ``TORCH_TESTS`` too. The result is a
row of ``bench/results/versions.csv``, in place of the row that the pair had; what could not be installed or tried is
such a row as well. `python -m bench.report` shows them in docs/compatibility.md.

``--packages installed`` is for a Python that brings packages with it, as that of a Linux distribution does; only what
is missing comes from the index then. torch is left out where only a build for CUDA can be had, which is gigabytes:
``PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`` has others.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from gcodec.benchmark.csv_tables import read_table, write_table

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".cache" / "matrix"
OUT = ROOT / "bench" / "results" / "versions.csv"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OLDEST, NEWEST, INSTALLED = "oldest", "newest", "installed"
#: The codec's laws on the types that are met most: others would take longer to compile than to test.
LAWS = ("tests/codec/test_codec.py", "-k", "float32 or bfloat16")
#: What differs between versions of Python, numpy and numba, and how processes and threads end.
ARRAY_TESTS = (
    "tests/codec/test_dtypes.py",
    "tests/codec/test_streams.py",
    "tests/codec/test_wrong_arguments.py",
    "tests/format/test_golden.py",
    "tests/archive/test_archive.py",
    "tests/archive/test_files.py",
    "tests/archive/test_objects.py",
    "tests/archive/test_saved_types.py",
    "tests/archive/test_golden_archives.py",
    "tests/archive/test_read_errors.py",
    "tests/cli/test_cli.py",
    "tests/cli/test_exit_codes.py",
    "tests/errors/test_ends.py",
    "tests/errors/test_started_threads.py",
    "tests/integrations/test_numcodecs.py",
    "tests/integrations/test_zarr.py",
)
TORCH_TESTS = (
    "tests/distributed/test_allreduce.py",
    "tests/distributed/test_ddp.py",
    "tests/truncation",
)
TEST_PACKAGES = ("pytest", "pytest-xdist", "hypothesis", "fsspec", "pyyaml", "expecttest")
#: Only with the newest packages: gcodec names no versions of these.
OTHER_LIBRARIES = ("numcodecs", "zarr")
FAILED = "the command line failed"
SHOWN = ("numpy", "numba", "zstandard", "torch")
ROUND_TRIP = """
import subprocess, sys
from pathlib import Path
import numpy
values = numpy.linspace(0, 1, 100_000, dtype="f4")
numpy.save("values.npy", values)
def gcodec(*words):
    subprocess.run([sys.argv[1], *words], check=True, stdout=subprocess.DEVNULL)
gcodec("--version")
gcodec("values.npy")
gcodec("verify", "values.npy.gc", "--against", "values.npy")
original = Path("values.npy").rename("original.npy").read_bytes()
gcodec("decompress", "values.npy.gc")
assert Path("values.npy").read_bytes() == original, "decompressing gave other bytes"
"""


class NotTriedError(Exception):
    """Says in a few words why something cannot be tried on this machine."""


@dataclass
class Row:
    """A row of the table. Versions are empty for what was not installed, and counts where no test ran."""

    python: str
    packages: str
    numpy: str = ""
    numba: str = ""
    zstandard: str = ""
    torch: str = ""
    n_passed: str = ""
    n_skipped: str = ""
    n_failed: str = ""
    note: str = ""
    date: str = ""

    @property
    def failed(self) -> bool:
        """Whether it was tried and something failed."""
        return self.n_failed not in ("", "0") or FAILED in self.note

    @property
    def key(self) -> tuple[int, int, str]:
        """What a later row replaces, in the order of the table: the Python's first two numbers, and the packages."""
        major, minor = self.python.split(".")[:2]
        return int(major), int(minor), self.packages


class Environment:
    """A virtual environment with gcodec's wheel.

    Args:
        python: The interpreter that it is made with.
        packages: ``OLDEST``, ``NEWEST`` or ``INSTALLED``.

    Raises:
        NotTriedError: The interpreter makes no environments.
    """

    def __init__(self, python: str, packages: str) -> None:
        self.packages = packages
        self.version = _output(python, "-c", "import platform; print(platform.python_version())").strip()
        self.folder = WORK / f"{self.version}-{packages}"
        self.python = str(self.folder / "bin" / "python")
        if not Path(self.python).exists():
            seen = ["--system-site-packages"] if packages == INSTALLED else []
            _output(python, "-m", "venv", *seen, str(self.folder))

    def install(self, wheel: Path) -> str:
        """Install the wheel with the packages asked for, and what tests need.

        Returns:
            Why torch is not there; empty if it is.

        Raises:
            NotTriedError: Something that gcodec cannot do without cannot be installed.
        """
        needed, torch = dependencies()
        bounds = self.folder / "bounds.txt"
        bounds.write_text("\n".join(map(str, needed)) + "\n", "utf-8")
        if self.packages == OLDEST:
            bounds.write_text("".join(f"{one.name}=={self.oldest(one)}\n" for one in needed), "utf-8")
        install = ["install", "--quiet", "--only-binary", ":all:", "--constraint", str(bounds)]
        upgrade = ["--upgrade", "--upgrade-strategy=eager"] if self.packages == NEWEST else []
        others = OTHER_LIBRARIES if self.packages == NEWEST else ()
        self.pip(*install, *upgrade, *(one.name for one in needed), *others)
        self.pip(*install, "--upgrade", *TEST_PACKAGES)  # a distribution's own may be older than its Python
        try:
            self._install_torch(torch, [*install, *upgrade])
            missing = ""
        except NotTriedError as reason:
            missing = f"without torch: {reason}"
        self.pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
        return missing

    def _install_torch(self, torch: Requirement, install: Sequence[str]) -> None:
        """Install torch where that takes no build for CUDA."""
        if self.packages == INSTALLED and "torch" in self.versions():
            return
        builds = self.available(torch)
        if sys.platform == "linux" and platform.machine() == "x86_64":  # elsewhere the index has none for CUDA
            builds = [version for version in builds if version.local == "cpu"]
        if not builds:
            raise NotTriedError("for this Python there are only builds for CUDA")
        self.pip(*install, f"torch=={(min if self.packages == OLDEST else max)(builds)}")

    def available(self, required: Requirement) -> list[Version]:
        """Return the versions within the bounds that this Python can install without a compiler."""
        # pip lists them where it has not the one that is asked for; `pip index versions` lists sources, too.
        command = [self.python, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
        settings = {**os.environ, "PIP_CONSTRAINT": os.devnull}
        asked = [*command, f"{required.name}==0+none"]
        text = subprocess.run(asked, env=settings, capture_output=True, text=True, check=False).stderr
        found = re.search(r"\(from versions: (.*)\)", text)
        versions = [Version(word) for word in found[1].split(", ") if word != "none"] if found else []
        return [version for version in versions if version in required.specifier and not version.is_prerelease]

    def oldest(self, required: Requirement) -> Version:
        """Return the earliest version within the bounds that this Python can install without a compiler.

        Raises:
            NotTriedError: There is none.
        """
        versions = self.available(required)
        if not versions:
            raise NotTriedError(f"there is no {required} for Python {self.version} without a compiler")
        return min(versions)

    def pip(self, *words: str) -> str:
        """Run pip; return what it printed."""
        return _output(self.python, "-m", "pip", "--disable-pip-version-check", *words)

    def versions(self) -> dict[str, str]:
        """Return the versions of what is installed, by name."""
        listed = json.loads(self.pip("list", "--format", "json"))
        return {one["name"].lower(): one["version"] for one in listed}

    def settings(self) -> dict[str, str]:
        """Return the environment variables that tests run with: the same examples each time, kernels of its own."""
        left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        return {**kept, "CI": "true", "NUMBA_CACHE_DIR": str(self.folder / "kernels")}

    def round_trip(self) -> str:
        """Compress and restore a file with the command line; return what went wrong, or nothing."""
        command = [self.python, "-c", ROUND_TRIP, str(self.folder / "bin" / "gcodec")]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, cwd=folder, env=self.settings(), capture_output=True, text=True, check=False)
        return f"{FAILED}: {_last_line(done.stderr)}" if done.returncode else ""

    def test(self, words: Iterable[str], processes: str) -> tuple[int, int, list[str]]:
        """Run tests of this checkout.

        Args:
            words: Files and folders of tests, and options of pytest.
            processes: How many processes share them, or "auto".

        Returns:
            How many passed, how many were skipped, and the names of those that failed.

        Raises:
            NotTriedError: They did not come to an end.
        """
        report = self.folder / "tests.xml"
        report.unlink(missing_ok=True)
        spread = ["-n", processes, "--dist", "loadfile", "--no-loadscope-reorder"]
        command = [self.python, "-m", "pytest", "-q", *spread, f"--junitxml={report}", "-p", "no:cacheprovider", *words]
        subprocess.run(command, cwd=ROOT, env=self.settings(), check=False)
        if not report.exists():
            raise NotTriedError("pytest did not come to an end")
        cases = list(ET.parse(report).iter("testcase"))
        failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
        n_skipped = sum(case.find("skipped") is not None for case in cases)
        names = [f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name', '')}" for case in failed]
        short = [name.partition("[")[0].removeprefix("::") for name in names]  # where a file fails, there is no class
        return len(cases) - len(failed) - n_skipped, n_skipped, short


def dependencies() -> tuple[list[Requirement], Requirement]:
    """Return what pyproject.toml says that gcodec needs, and its bounds of torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"]], Requirement(
        project["optional-dependencies"]["torch"][0]
    )


def find_python(name: str) -> str:
    """Return the interpreter for ``3.12``, from the path or from pyenv; a path stays as it is.

    Raises:
        NotTriedError: There is none.
    """
    if os.sep in name:
        return name
    known = sorted((Path.home() / ".pyenv" / "versions").glob(f"{name}.*/bin/python"))
    found = str(known[-1]) if known else shutil.which(f"python{name}")
    if found is None:
        raise NotTriedError(f"no Python {name} on the machine")
    return found


def try_pair(name: str, packages: str, wheel: Path, options: argparse.Namespace) -> Row:
    """Return the row of one Python with one choice of packages."""
    label = platform.freedesktop_os_release()["PRETTY_NAME"] if packages == INSTALLED else packages
    row = Row(name, label, date=datetime.date.today().isoformat())
    try:
        environment = Environment(find_python(name), packages)
        row.python = environment.version
        notes = [environment.install(wheel)]
        versions = environment.versions()
        row.numpy, row.numba, row.zstandard, row.torch = (versions.get(one, "") for one in SHOWN)
        notes.append(environment.round_trip())
        runs = [options.tests] if options.tests else [LAWS, [*ARRAY_TESTS, *(TORCH_TESTS if row.torch else ())]]
        n_passed = n_skipped = 0
        failed: list[str] = []
        for words in runs:
            passed, skipped, names = environment.test(words, options.processes)
            n_passed, n_skipped, failed = n_passed + passed, n_skipped + skipped, failed + names
        row.n_passed, row.n_skipped, row.n_failed = str(n_passed), str(n_skipped), str(len(failed))
        row.note = "; ".join(filter(None, [*notes, *list(dict.fromkeys(failed))[:3]]))
    except NotTriedError as reason:
        row.note = f"not tried: {reason}"
    return row


def with_row(rows: Iterable[Row], new: Row) -> list[Row]:
    """Return the rows with ``new`` in place of the one for the same Python and packages, in the table's order."""
    return sorted([*(row for row in rows if row.key != new.key), new], key=lambda row: row.key)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; none where there is no file."""
    return [Row(**row) for row in read_table(path)[1]] if path.exists() else []


def _output(*command: str, settings: Mapping[str, str] | None = None) -> str:
    """Return what a command printed; :class:`NotTriedError`, with its last line of errors, where it fails."""
    environment = {**os.environ, **(settings or {})}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotTriedError(_last_line(done.stderr))
    return done.stdout


def _last_line(text: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no word of why"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--python", nargs="+", default=PYTHONS, help="versions such as 3.12, or paths of interpreters")
    parser.add_argument("--packages", nargs="+", choices=(OLDEST, NEWEST, INSTALLED), default=(OLDEST, NEWEST))
    parser.add_argument("--tests", nargs="+", help="files of tests instead of the usual ones")
    parser.add_argument("--processes", default="auto", help="how many processes share the tests")
    parser.add_argument("--out", type=Path, default=OUT, help="the table, whose other rows stay")
    options = parser.parse_args(arguments)
    columns, n_failed = [field.name for field in fields(Row)], 0
    with tempfile.TemporaryDirectory() as dist:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, str(ROOT)]
        _output(*build, settings={"GCODEC_COMPILE": "0"})
        (wheel,) = Path(dist).glob("*.whl")
        for name in options.python:
            for packages in options.packages:
                row = try_pair(name, packages, wheel, options)
                print(", ".join(f"{column} {value}" for column in columns if (value := getattr(row, column))))
                rows = with_row(read_rows(options.out), row)
                write_table(options.out, columns, ([getattr(one, column) for column in columns] for one in rows))
                n_failed += row.failed
    return int(n_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
