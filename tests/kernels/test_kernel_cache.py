"""The laws of the kernels' cache on disk: it never lies; where it is damaged or cannot be written, kernels compile."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import cli, codec
from gcodec.errors import KernelCacheWarning
from gcodec.kernels.core import cache_folders, jit, numba_private
from gcodec.kernels.core.cache_claims import claimed
from tests.support.numba_template import run_in_copy, templates  # noqa: F401 - a fixture

PACKAGE = Path(gcodec.__file__).parent
#: What a process is started by that may write only where modes of files say so: root may otherwise write anywhere.
WITHOUT_RIGHTS = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] * (os.name == "posix" and os.geteuid() == 0)
#: What decorators of kernels need of the package.
FILES_OF_DECORATORS = (
    "compiling.py",
    "errors.py",
    "threads.py",
    *(
        f"kernels/core/{name}.py"
        for name in (
            "cache_claims",
            "cache_folders",
            "cpu_levels",
            "jit",
            "kernel_cache",
            "kernel_compiler",
            "numba_private",
            "shipped_kernels",
            "source_digest",
        )
    ),
)
TWO_KERNELS = """
from {jit} import kernel


@kernel
def first(n):
    return n + 1


@kernel
def second(n):
    return n + 2
"""
posix_only = pytest.mark.skipif(os.name != "posix", reason="needs users and modes of files")
needs_modes = pytest.mark.skipif(
    os.name != "posix" or bool(WITHOUT_RIGHTS) > bool(shutil.which("setpriv")),
    reason="needs modes of files, and of root the command setpriv",
)


def module_at(path: Path) -> ModuleType:
    """Import a file, whose functions are new ones each time."""
    spec = importlib.util.spec_from_file_location("two_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def counts(dispatcher: Any) -> tuple[int, int]:
    """Return how often a kernel was found on disk, and how often it was compiled."""
    return sum(dispatcher.stats.cache_hits.values()), sum(dispatcher.stats.cache_misses.values())


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file of two kernels, whose cache is in the folder ``cache`` beside it and nowhere else."""
    monkeypatch.setattr(numba_private.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python knows a source by its size and the second alone
    path = tmp_path / "two_kernels.py"
    path.write_text(TWO_KERNELS.format(jit=jit.__name__))
    return path


def files(folder: Path) -> list[Path]:
    """Return the files of a cache."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))


# Damage


def damaged(content: bytes) -> Iterator[bytes]:
    """Yield what may be left of a file."""
    half = len(content) // 2
    yield b""
    yield content[:1]
    yield content[:half]
    yield content[:-1]
    yield bytes(len(content))
    yield content[:half] + bytes(len(content) - half)
    yield content[:-30] + b"\xff" * 30
    yield b"no pickle at all\n" * 9


def test_damaged_files_are_compiled_again_and_overwritten(source, tmp_path):
    assert module_at(source).first(1) == 2
    for path in files(tmp_path / "cache"):
        whole = path.read_bytes()
        for content in damaged(whole):
            path.write_bytes(content)
            for hits in (0, 1):
                first = module_at(source).first
                assert first(1) == 2
                assert counts(first) == (hits, 1 - hits)


def test_no_changed_byte_of_compiled_code_is_believed(source, tmp_path):
    first = module_at(source).first
    first(1)
    checked = first._cache._cache_file
    key = first._cache._index_key(first.signatures[0], first.targetctx.codegen())
    assert checked.load(key) is not None
    (path,) = (path for path in files(tmp_path / "cache") if path.suffix == ".nbc")
    whole = path.read_bytes()
    start = whole.index(b"numba")  # before that is how pickle packs the digest and the content
    for at in (*range(start, len(whole) - 3, 199), len(whole) - 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert checked.load(key) is None
    path.write_bytes(whole)
    assert checked.load(key) is not None


def test_code_of_other_types_or_another_source_is_not_believed(source, tmp_path):
    """Processes that write at once, or a full disk, may leave an index that names the wrong file."""
    first = module_at(source).first
    assert (first(1), first(0.5)) == (2, 1.5)
    of_integers, of_floats = (path for path in files(tmp_path / "cache") if path.suffix == ".nbc")
    shutil.copy(of_floats, of_integers)
    again = module_at(source).first
    assert (again(1), again(0.5)) == (2, 1.5)
    assert counts(again) == (1, 1)
    before = of_integers.read_bytes()
    source.write_text(source.read_text().replace("n + 1", "n + 5"))
    assert module_at(source).first(1) == 6
    of_integers.write_bytes(before)
    assert module_at(source).first(1) == 6


def test_a_cache_that_is_removed_meanwhile_is_made_again(source, tmp_path):
    both = module_at(source)
    both.first(1)
    shutil.rmtree(tmp_path / "cache")
    both.first(0.5)
    both.second(1)
    again = module_at(source)
    assert (again.first(0.5), counts(again.first)) == (1.5, (1, 0))


# Several processes, and folders that cannot be written


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Path]:
    """Return a folder with a package ``house`` of two kernels, and beside it ``tmp``, which is everybody's, and
    ``home``."""
    folder = tmp_path / "house-of-kernels"
    for name in ("house/kernels/core", "tmp", "home"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    for name in ("", "kernels", "kernels/core"):
        (folder / "house" / name / "__init__.py").write_text("")
    for name in FILES_OF_DECORATORS:
        shutil.copy(PACKAGE / name, folder / "house" / name)
    (folder / "house" / "kernels" / "two.py").write_text(TWO_KERNELS.format(jit="house.kernels.core.jit"))
    yield folder
    set_writable(folder, True)


def set_writable(folder: Path, writable: bool) -> None:
    """Let the owner of a tree write to all but the folder ``tmp`` in it, or not."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and "tmp" not in path.relative_to(folder).parts:
            path.chmod(path.stat().st_mode | 0o200 if writable else path.stat().st_mode & ~0o222)


PROGRAM = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    from house.kernels.two import first, second
    assert (first(1), second(1), first(0.5)) == (2, 3, 1.5)
print(sum(sum(k.stats.cache_hits.values()) for k in (first, second)))
for warning in seen:
    print(warning.category.__name__, warning.message)
"""


def run(house: Path, program: str = PROGRAM, **more: str) -> list[str]:
    """Run a program that may not write where modes of files forbid it, in a copy of a process that is prepared to
    compile; return the lines that it prints."""
    done = run_in_copy(program, house, environment_of(house, more), prefix=WITHOUT_RIGHTS)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_alone(house: Path, program: str) -> None:
    """Run a program that may not write where modes of files forbid it, in a process of its own."""
    command, environment = [*WITHOUT_RIGHTS, sys.executable, "-c", program], environment_of(house, {})
    done = subprocess.run(command, cwd=house, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def environment_of(house: Path, more: dict[str, str]) -> dict[str, str]:
    """Return an environment in which kernels are kept only in folders of the house, and in those that ``more`` has."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(house),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(house / "tmp"),
        "HOME": str(house / "home"),
    }
    for name in ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR"):
        environment.pop(name, None)
    return environment | more


def start(house: Path, program: str) -> subprocess.Popen[str]:
    """Start a program that may compile into ``house/cache``."""
    environment = {**os.environ, "PYTHONPATH": str(house), "NUMBA_CACHE_DIR": str(house / "cache")}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=house,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@posix_only
def test_of_processes_that_start_at_once_one_compiles_each_kernel(house):
    program = PROGRAM + "print(sum(sum(k.stats.cache_misses.values()) for k in (first, second)))"
    processes = [start(house, program) for _ in range(4)]
    found, compiled = zip(*(map(int, process.communicate()[0].split()) for process in processes), strict=True)
    assert (sum(found), sum(compiled)) == (9, 3)


HOLD_A_CLAIM = """
from pathlib import Path
from house.kernels.core.cache_claims import claimed
with claimed([Path("cache")], "kernel"):
    print("claimed", flush=True)
    input()
"""


@posix_only
@pytest.mark.parametrize("killed", [False, True])
def test_a_claim_ends_with_its_block_or_its_process(house, killed):
    holder = start(house, HOLD_A_CLAIM)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "claimed\n"
    for name, is_free in (("kernel", False), ("another kernel", True)):
        with claimed([house / "cache"], name, longest_wait=0) as is_claimed:
            assert is_claimed == is_free
    if killed:
        holder.kill()
    holder.communicate("\n")
    with claimed([house / "cache"], "kernel", longest_wait=0) as is_claimed:
        assert is_claimed


@needs_modes
def test_where_nothing_lasting_can_be_written_the_temporary_folder_is_used_with_one_warning(house):
    set_writable(house, False)
    hits, warning = run(house)
    assert hits == "0"
    (own,) = (house / "tmp").iterdir()
    assert own.stat().st_mode & 0o777 == 0o700
    assert warning.startswith(f"KernelCacheWarning compiled kernels are kept in {own}")
    assert "NUMBA_CACHE_DIR" in warning
    assert run(house) == ["3"]  # found, and nothing to warn of


@needs_modes
def test_where_nothing_at_all_can_be_written_every_process_compiles_with_one_warning(house):
    set_writable(house, False)
    (house / "tmp" / f"gcodec-{os.geteuid()}").mkdir(mode=0o755)  # somebody could have put it there
    for _ in range(2):
        hits, warning = run(house)
        assert hits == "0"
        assert warning.startswith("KernelCacheWarning compiled kernels cannot be kept")


@needs_modes
@pytest.mark.parametrize("place", ["package", "NUMBA_CACHE_DIR", "home"])
def test_a_cache_is_read_where_it_cannot_be_written(house, place):
    more = {"NUMBA_CACHE_DIR": str(house / "cache")} if place == "NUMBA_CACHE_DIR" else {}
    if place == "home":
        set_writable(house / "house", False)
    assert run(house, **more) == ["0"]
    set_writable(house, False)
    assert run(house, **more) == ["3"]
    assert list((house / "tmp").iterdir()) == []


@needs_modes
def test_a_full_disk_is_no_error(house):
    program = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n" + PROGRAM
    hits, warning = run(house, program, NUMBA_CACHE_DIR=str(house / "tmp" / "cache"))
    assert hits == "0"
    assert warning.startswith("KernelCacheWarning compiled kernels cannot be kept")
    assert files(house) == []
    assert run(house, NUMBA_CACHE_DIR=str(house / "tmp" / "cache")) == ["0"]
    assert run(house, NUMBA_CACHE_DIR=str(house / "tmp" / "cache")) == ["3"]


@needs_modes
def test_a_named_folder_that_can_be_written_is_the_only_one(house):
    """The user's folder keeps kernels of other settings apart, ``NUMBA_BOUNDSCHECK`` for one, which no file names."""
    assert run(house) == ["0"]
    assert run(house) == ["3"]
    assert run(house, NUMBA_CACHE_DIR=str(house / "apart")) == ["0"]
    assert run(house, NUMBA_CACHE_DIR=str(house / "apart")) == ["3"]


# The temporary folder


@posix_only
def test_no_folder_that_others_could_write_to_is_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"gcodec-{os.geteuid()}"
    assert cache_folders.temporary_folder(make=False) is None
    assert cache_folders.temporary_folder(make=True) == folder
    assert cache_folders.temporary_folder(make=False) == folder
    for mode in (0o777, 0o770, 0o707, 0o701, 0o720, 0o702):
        folder.chmod(mode)
        assert cache_folders.temporary_folder(make=True) is None
    folder.chmod(0o700)
    for mode, trusted in ((0o1777, True), (0o755, True), (0o777, False), (0o775, False)):
        tmp_path.chmod(mode)
        assert (cache_folders.temporary_folder(make=True) == folder) is trusted
    tmp_path.chmod(0o755)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert cache_folders.temporary_folder(make=True) is None
    folder.unlink()
    folder.write_text("")
    assert cache_folders.temporary_folder(make=True) is None
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert cache_folders.temporary_folder(make=True) is None


@posix_only
def test_a_folder_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = cache_folders.temporary_folder(make=True)
    assert before is not None
    other = os.geteuid() + 1
    before.rename(tmp_path / f"gcodec-{other}")
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert cache_folders.temporary_folder(make=True) is None


# Who is told


@pytest.mark.parametrize(("arguments", "n_notes"), [(["warmup"], 1), (["warmup", "-q"], 0)])
def test_the_command_line_says_in_one_line_that_there_is_no_folder(monkeypatch, capsys, arguments, n_notes):
    monkeypatch.setattr(codec, "warmup", lambda names: warnings.warn("no folder", KernelCacheWarning, stacklevel=1))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main(arguments) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("gcodec: note: no folder") == sum("no folder" in line for line in lines) == n_notes


# The package itself

ROUND_TRIP = """
import sys, warnings
warnings.simplefilter("error")
import numpy as np, gcodec
from concurrent.futures import ThreadPoolExecutor
assert gcodec.__file__.startswith(sys.path[1] if sys.path[0] == "" else sys.path[0]), gcodec.__file__
x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
def one(_):
    assert np.array_equal(gcodec.decode(gcodec.encode(x)), x)
"""


def copy_of_the_package(house: Path, with_cache: bool) -> None:
    """Copy gcodec into a folder, with or without what has been compiled."""
    skipped = ["*.pyc"] if with_cache else ["__pycache__"]
    shutil.copytree(PACKAGE, house / "gcodec", ignore=shutil.ignore_patterns(*skipped))


@needs_modes
@pytest.mark.skipif("NUMBA_CACHE_DIR" in os.environ, reason="needs the cache beside the package")
def test_a_read_only_image_with_a_baked_cache_compiles_nothing(house):
    """A package with its cache, moved elsewhere and read by another user, warns of nothing and writes nothing."""
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    gcodec.decode(gcodec.encode(x))
    copy_of_the_package(house, with_cache=True)
    set_writable(house, False)
    run_alone(house, ROUND_TRIP + "one(0)")
    assert list((house / "tmp").iterdir()) == []


@pytest.mark.slow
@needs_modes
def test_the_package_compiles_into_the_temporary_folder(house):
    copy_of_the_package(house, with_cache=False)
    set_writable(house, False)
    run_alone(house, ROUND_TRIP.replace('"error"', '"ignore"') + "one(0)")
    run_alone(house, ROUND_TRIP + "one(0)")


@pytest.mark.slow
@needs_modes
def test_processes_that_compile_into_one_empty_cache_at_once_agree(house):
    """Two processes of eight threads each."""
    copy_of_the_package(house, with_cache=False)
    program = ROUND_TRIP + "with ThreadPoolExecutor(8) as pool: list(pool.map(one, range(8)))"
    environment = {**os.environ, "PYTHONPATH": str(house), "NUMBA_CACHE_DIR": str(house / "cache")}
    both = [subprocess.Popen([sys.executable, "-c", program], cwd=house, env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    again = subprocess.run([sys.executable, "-c", program], cwd=house, env=environment, check=False)
    assert again.returncode == 0
