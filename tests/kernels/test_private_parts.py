"""The private parts of numba and CPython: each taken away in turn, gcodec goes on, and caches never lie."""

from __future__ import annotations

import ast
import ctypes
import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba import njit, typeof

import gcodec
from gcodec import memory
from gcodec.kernels.core import jit, kernel_cache, kernel_compiler, numba_private
from gcodec.kernels.core.specialized import Specialized
from gcodec.kernels.core.unaligned import floats_at, load_tuple, subarray, subarray_if_any
from gcodec.memory import BytesBuilder
from tests.kernels.test_kernel_cache import FILES_OF_DECORATORS
from tests.support.cases import CASES
from tests.support.numba_template import run_in_copy, templates  # noqa: F401 - a fixture
from tests.support.paths import ROOT

PACKAGE = Path(gcodec.__file__).parent
#: What of numba is private, as numba's source names it.
PARTS = (
    "_nrt",
    "no_cfunc_wrapper",
    "no_cpython_wrapper",
    "FunctionCache",
    "IndexDataCacheFile",
    "CPU_NAME",
    "CPU_FEATURES",
    "JITCodeLibrary",
    "_optimize_final_module",
    "_guard_against_spurious_io_errors",
    "global_compiler_lock",
)
#: numba's modules that anybody may import.
PUBLIC = {"numba", "numba.extending"}
#: Modules that call C: CPython's own, the driver of CUDA, and its compiler.
CTYPES = {"memory.py", "kernels/cuda/cuda_driver.py", "kernels/cuda/nvrtc.py"}


def run(
    program: str, missing: str = "", folder: Path = ROOT, copied: bool = hasattr(os, "fork"), **environment: str
) -> list[str]:
    """Run a program with numba without these parts, in a process of its own or a copy of one that is prepared to
    compile; return the words it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **environment}
    if copied:
        done = run_in_copy(program, folder, environment, missing)
    else:
        command = [sys.executable, "-m", "tests.support.numba_without", missing, program]
        done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Where they are, and with which versions they were tried


def test_the_pinned_and_the_oldest_numba_are_among_those_that_were_tried():
    pinned = re.search(r"^numba==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    floor = re.search(r'"numba>=(.*?)"', (ROOT / "pyproject.toml").read_text())
    assert pinned is not None
    assert floor is not None
    assert pinned[1] in numba_private.TRIED
    assert any(version.startswith(floor[1]) for version in numba_private.TRIED)
    if numba.__version__ not in numba_private.TRIED:
        pytest.skip(f"numba {numba.__version__} is not among those that gcodec was tried with: {numba_private.TRIED}")


def test_private_parts_stand_in_one_place_each():
    outside = []
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "numba" in text or "ctypes" in text else ():
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            else:
                continue
            for module in modules:
                of_numba = module.split(".")[0] == "numba" and module not in PUBLIC
                if (of_numba and name != "kernels/core/numba_private.py") or (
                    module == "ctypes" and name not in CTYPES
                ):
                    outside.append((name, module))
    assert outside == []


# Counting of references, entry points


def test_kernels_count_references_where_numba_has_no_such_option(tmp_path):
    program = "from gcodec.kernels.core import numba_private as p, scalar; print(p.UNCOUNTED, scalar.lesser(3, 2))"
    assert run(program, NUMBA_CACHE_DIR=str(tmp_path)) == ["{'_nrt':", "False}", "2"]
    assert run(program, "_nrt", NUMBA_CACHE_DIR=str(tmp_path)) == ["{}", "2"]


@pytest.mark.parametrize(("missing", "compiled"), [("", 0), ("no_cpython_wrapper no_cfunc_wrapper", 1)])
def test_what_kernels_call_is_compiled_without_what_python_needs_until_python_calls_it(tmp_path, missing, compiled):
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text(
        "from .core.jit import kernel\n\n\n@kernel\ndef inner(a):\n    return a + 1\n\n\n"
        "@kernel\ndef outer(a):\n    return 2 * inner(a)\n"
    )
    program = (
        "from house.kernels.caller import inner, outer; "
        "print(outer(3), len(inner.overloads), inner(3), outer(0.5), inner(0.5), len(inner.overloads))"
    )
    for number in (compiled, 0):  # the second process finds the outer one in the cache
        printed = run(program, missing, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
        assert printed == ["8", str(number), "4", "3.0", "1.5", "2"]


PARTS_OF_TWO = """
import sys
from house.kernels import caller
print(getattr(caller, sys.argv[-1])(3))
inner = caller.inner.get_overload.__self__.dispatcher
print(sum(inner.stats.cache_hits.values()), *(type(kept.library).__name__ for kept in inner.overloads.values()))
"""


@pytest.mark.parametrize(
    ("writes_without", "reads_without", "kinds"),
    [
        ("", "", ("Part", "Part")),
        ("", "_optimize_final_module", ("Part", "JITCodeLibrary")),
        ("_optimize_final_module", "", ("JITCodeLibrary", "LoadedLibrary")),
    ],
)
def test_what_kernels_call_is_a_part_without_machine_code_also_from_the_cache(
    tmp_path, writes_without, reads_without, kinds
):
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text(
        "from .core.jit import kernel\n\n\n@kernel\ndef innermost(a):\n    return a + 1\n\n\n"
        "@kernel\ndef inner(a):\n    return 2 * innermost(a)\n\n\n@kernel\ndef outer(a):\n    return 3 * inner(a)\n"
        "\n\n@kernel\ndef other(a):\n    return 5 * inner(a) + innermost(a)\n"
    )
    for called, missing, printed in (("outer", writes_without, ["24", "0", kinds[0]]),
                                     ("other", reads_without, ["44", "1", kinds[1]])):  # fmt: skip
        program = f"import sys; sys.argv.append({called!r})\n{PARTS_OF_TWO}"
        assert run(program, missing, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == printed


def test_thresholds_of_the_collector_are_as_they_were_after_compiling_unless_others_set_them():
    before = gc.get_threshold()
    try:
        with kernel_compiler.collecting_less():
            assert gc.get_threshold() != before
        assert gc.get_threshold() == before
        with kernel_compiler.collecting_less():
            gc.set_threshold(900, 8, 7)
        assert gc.get_threshold() == (900, 8, 7)
    finally:
        gc.set_threshold(*before)


def test_a_kernel_without_entry_points_is_called_itself():
    def plain(a):
        return a + 1

    assert Specialized(plain)("key", 1) == 2
    plain.compile = lambda kinds: None  # type: ignore[attr-defined]
    assert Specialized(plain)("key", 1) == 2


class Pair(NamedTuple):
    one: Any
    other: Any


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "uint16", "uint64", "int64", "bool"])
def test_types_of_arguments_are_numbas_own_but_for_the_mark_of_read_only_arrays(dtype):
    matrix = np.zeros((3, 4), dtype)
    unaligned = np.zeros(matrix.nbytes + 1, np.uint8)[1:].view(dtype)
    arrays = [matrix, matrix.T, matrix[:, ::2], matrix[::2], matrix[:0], matrix[0], matrix[0, ::3], unaligned]
    others = [None, True, 1, 2.5, np.float32(1), np.uint64(3), ()]
    for argument in [*arrays, *others, *map(Pair, arrays, arrays[1:]), (matrix, 3), Pair(1, (matrix, None))]:
        assert numba_private._type_of(argument) == typeof(argument)
    frozen = matrix.copy()
    frozen.flags.writeable = False
    assert numba_private._type_of(Pair(frozen, (frozen, 1))) == typeof(Pair(matrix, (matrix, 1)))


def test_the_first_frames_of_a_process_take_no_modules_that_they_do_not_need():
    program = (
        "import sys\nsys.modules['scipy'] = None\nimport numpy as np\nimport gcodec\nx = np.arange(9000, dtype='f4')\n"
        "assert (gcodec.decode(gcodec.encode(x)) == x).all()\nprint('numpy.ma' in sys.modules)"
    )
    assert run(program, copied=False) == ["False"]


def test_disable_jit_is_named_by_the_error():
    program = "import gcodec\ntry:\n    gcodec.encode\nexcept Exception as e:\n    print(type(e).__name__, e)"
    kind, *words = run(program, copied=False, NUMBA_DISABLE_JIT="1")
    assert kind == "GcodecError"
    assert "NUMBA_DISABLE_JIT" in words


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_NUM_THREADS", "0"),
        ("NUMBA_NUM_THREADS", "-3"),
        ("NUMBA_CPU_FEATURES", "x"),
        ("NUMBA_CPU_FEATURES", "+a, -b"),
    ],
)
def test_variables_that_numba_does_not_take_are_named_by_the_error(name, value):
    program = "import gcodec\ntry:\n    gcodec.encode\nexcept Exception as e:\n    print(type(e).__name__, e)"
    kind, *words = run(program, copied=False, **{name: value})
    assert kind == "InvalidArgument"
    assert words[0] == name


# The cache on disk


def house_of_kernels(folder):
    """Make a package ``house`` of what decorators of kernels need, and return its folder of kernels."""
    for name in ("kernels/core", "kernels/room"):
        (folder / "house" / name).mkdir(parents=True)
    for name in ("", "kernels", "kernels/core", "kernels/room"):
        (folder / "house" / name / "__init__.py").write_text("")
    for name in FILES_OF_DECORATORS:
        (folder / "house" / name).write_text((PACKAGE / name).read_text(encoding="utf-8"))
    return folder / "house" / "kernels"


@pytest.mark.parametrize("missing", ["", "IndexDataCacheFile", "_locator_classes"])
def test_a_changed_callee_in_a_subfolder_is_compiled_anew(tmp_path, missing):
    """The kernel cache on disk must not outlive the source of a function that a kernel calls from another folder."""
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text(
        "from .core.jit import kernel\nfrom .room.callee import number\n\n\n@kernel\ndef call():\n    return number()\n"
    )
    program = (
        "from house.kernels.caller import call; "
        "print(call(), sum(call.stats.cache_hits.values()), sum(call.stats.cache_misses.values()))"
    )
    for value, hits, misses in ((1, 0, 1), (2, 0, 1), (2, 1, 0)):
        (house / "room" / "callee.py").write_text(
            f"from ..core.jit import kernel\n\n\n@kernel\ndef number():\n    return {value}\n"
        )
        printed = run(program, missing, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1")
        assert [int(word) for word in printed] == [value, hits, misses]


def test_kernels_cached_for_a_bundle_that_has_been_renamed_are_not_read(tmp_path):
    """The cache of an earlier release, which lies where the package lies, may name types that no longer exist."""
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text("from .core.jit import kernel\n\n\n@kernel\ndef call(b):\n    return b.x\n")
    for name in ("Before", "After"):
        (house / "room" / "bundles.py").write_text(
            f"from typing import NamedTuple\n\n\nclass {name}(NamedTuple):\n    x: int\n"
        )
        program = (
            f"from house.kernels import caller; from house.kernels.room.bundles import {name} as B; "
            "print(caller.call(B(5)))"
        )
        assert run(program, "", tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"), PYTHONDONTWRITEBYTECODE="1") == ["5"]


def test_a_bundle_whose_fields_change_places_is_another_to_the_cache(tmp_path):
    """numba knows a bundle by its class and the types of its fields, and here all have the same."""
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text("from .core.jit import kernel\n\n\n@kernel\ndef call(b):\n    return b.x\n")
    program = (
        "from house.kernels import caller; from house.kernels.room.bundles import B; print(caller.call(B(x=5, y=7)))"
    )
    for fields in ("    x: int\n    y: int\n", "    y: int\n    x: int\n"):
        (house / "room" / "bundles.py").write_text(f"from typing import NamedTuple\n\n\nclass B(NamedTuple):\n{fields}")
        assert run(program, "", tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "cache"),
                   PYTHONDONTWRITEBYTECODE="1") == ["5"]  # fmt: skip


def test_settings_of_numba_that_change_code_are_told_apart_by_the_cache(tmp_path):
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text("from .core.jit import kernel\n\n\n@kernel\ndef call(a):\n    return a\n")
    program = "from house.kernels.caller import call; print(call(1), sum(call.stats.cache_hits.values()))"
    settings = [{}, {"NUMBA_OPT": "0"}, {"NUMBA_BOUNDSCHECK": "1"}]
    for hits in "01":
        for setting in settings:
            kept = {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), **setting}
            assert run(program, "", tmp_path, copied=False, **kept) == ["1", hits]


# Interrupts

INTERRUPTED = """
import os, sys
from importlib.util import module_from_spec, spec_from_file_location

class Interrupt(BaseException):
    pass

def fresh():
    spec = spec_from_file_location("kernels_to_load", sys.argv[-1])
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.outer

def interrupted(kernel, at):
    # Calls the kernel, and raises at one of the steps that are done on this thread; returns whether it came to that.
    steps = 0
    def trace(frame, event, argument):
        nonlocal steps
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            steps += 1
            if steps == at:
                raise Interrupt
        return trace
    sys.settrace(trace)
    try:
        kernel(3)
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return steps >= at  # then a finalizer or a callback of numba's got it, whose errors Python prints

fresh()(3)
sys.unraisablehook = lambda _: None
for has_dispatcher, step in ((True, 1), (False, 37)):  # making a dispatcher takes many steps
    at = 1
    while True:
        kernel = fresh()
        if has_dispatcher:
            kernel.dispatcher
        if not interrupted(kernel, at):
            break
        assert kernel(3) == kernel(3) == 8 and fresh()(3) == 8
        at += step
    print(at > 100)
"""


def test_an_interrupt_at_any_step_while_a_kernel_is_loaded_leaves_the_kernel_whole(tmp_path):
    path = tmp_path / "kernels_to_load.py"
    path.write_text(
        "from gcodec.kernels.core.jit import kernel\n\n\n@kernel\ndef inner(a):\n    return a + 1\n\n\n"
        "@kernel\ndef outer(a):\n    return 2 * inner(a)\n"
    )
    program = f"import sys; sys.argv.append({str(path)!r})\n{INTERRUPTED}"
    assert run(program, "", copied=False, NUMBA_CACHE_DIR=str(tmp_path / "cache")) == ["True", "True"]


LOADED_THEN_INLINED = """
import sys
import numpy as np
from house.kernels.caller import lengths, twice
hits = lambda: [sum(kernel.stats.cache_hits.values()) for kernel in (lengths, twice)]
print(lengths(np.arange(3)).tolist(), *hits(), "numba.np.linalg" in sys.modules)
print(twice(np.arange(3)).tolist(), *hits())
"""


@pytest.mark.parametrize("missing", ["", "_set_compiled_object _guard_against_spurious_io_errors"])
def test_loaded_kernels_are_called_and_inlined_into_compiled_ones(tmp_path, missing):
    """Parts that loading leaves out must be there when another kernel is compiled that calls a loaded one. Code that is
    kept by a numba with all its parts is another kernel's to a numba without, and the other way round."""
    house = house_of_kernels(tmp_path)
    (house / "caller.py").write_text(
        "import numpy as np\nfrom .core.jit import allocating\n\n\n@allocating\ndef lengths(a):\n"
        "    return np.array([len(a), a[0]])\n\n\n@allocating\ndef twice(a):\n    return 2 * lengths(a)\n"
    )
    kept = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first = "from house.kernels.caller import lengths as f; import numpy as np; f(np.arange(3))"
    for without in {"", missing}:
        run(first, without, tmp_path, copied=False, **kept)
    for hits in "01":
        printed = run(LOADED_THEN_INLINED, missing, tmp_path, copied=False, **kept)
        assert printed == ["[3,", "0]", "1", "0", str(missing != ""), "[6,", "0]", "1", hits]


def test_without_a_folder_for_the_cache_kernels_are_compiled(tmp_path, monkeypatch):
    asked = []

    def decorate(cached):
        asked.append((cached, numba_private.config.CACHE_DIR))
        return SimpleNamespace()

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_cache, "warn_of_no_folder", lambda: None)
    for folder, cached in ((tmp_path / "cache", True), (tmp_path / "file", False)):
        asked.clear()
        monkeypatch.setattr(numba_private.config, "CACHE_DIR", "before")
        kernel_cache._cached_below((tmp_path / "file", folder), "5" * 64, decorate)
        assert numba_private.config.CACHE_DIR == "before"
        assert asked[-1] == (cached, str(folder / ("gcodec-" + 32 * "5")) if cached else "before")
    assert len(jit._sources()) == 64


# The CPU, and arrays


@pytest.mark.skipif(not hasattr(os, "uname") or os.uname().machine != "x86_64", reason="names CPUs of x86-64")
def test_kernels_are_for_the_cpu_that_was_asked_for():
    program = "from gcodec.kernels.core.intrinsics import HAS_AVX512, HAS_SSSE3; print(HAS_AVX512, HAS_SSSE3)"
    for missing in ("", "CPU_NAME CPU_FEATURES"):
        found = run(program, missing, copied=False, NUMBA_CPU_NAME="x86-64-v2", NUMBA_CPU_FEATURES="")
        assert found == ["False", "True"]


def test_views_of_arrays_share_their_memory():
    @njit
    def views(array, address):
        none: Any = subarray_if_any(None, 0, 3)  # type: ignore[call-arg]  # numba adds typingctx
        three: Any = subarray_if_any(array, 2, np.uint64(3))
        total = 0 if none is None else 1000
        for part in (subarray(array, np.uint32(1), 2), three):
            part[0] += 10
            for x in part:
                total += x
        return total, three.size, three.itemsize, floats_at(address, np.uint32(1), 2).sum(), load_tuple(array, 4)

    array, floats = np.arange(6), np.arange(6, dtype=np.float32)
    assert views(array, floats.ctypes.data) == (1 + 10 + 2 + 2 + 10 + 3 + 4, 3, 8, 3, (0, 11, 12, 3))
    assert array.tolist() == [0, 11, 12, 3, 4, 5]


# Bytes objects


@pytest.mark.parametrize("part", ["PyBytes_FromStringAndSize", "PyBytes_AsString", "_PyBytes_Resize", "Py_DecRef"])
def test_bytes_are_copied_where_python_has_no_way_to_build_them(part, monkeypatch):
    names = {"PyBytes_FromStringAndSize", "PyBytes_AsString", "_PyBytes_Resize", "Py_DecRef"} - {part}
    library = SimpleNamespace(**{name: SimpleNamespace() for name in names})
    monkeypatch.setattr(ctypes, "PyDLL", lambda *args, **options: library)
    assert memory._python_api() is None


def test_a_python_other_than_cpython_gets_the_same_bytes(monkeypatch):
    x = CASES[0].array()
    frame = gcodec.encode(x)
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert memory._python_api() is None
    monkeypatch.setattr(memory, "_api", None)
    assert gcodec.encode(x) == frame
    for used in (0, 1, 50, 100):
        builder = BytesBuilder(100)
        builder.array[:used] = 7
        made = builder.finish(used)
        assert type(made) is bytes
        assert made == b"\7" * used
    BytesBuilder(1 << 20).array[5] = 1  # never finished


# Forks


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("missing", ["", "global_compiler_lock"])
def test_processes_are_forked_where_numba_has_no_lock_to_wait_for(missing):
    program = (
        "import os, numpy as np, gcodec; x = np.linspace(0, 1, 99); same = np.array_equal(gcodec.decode("
        "gcodec.encode(x)), x); print(same, os.waitpid(os.fork() or os._exit(0), 0)[1])"
    )
    assert run(program, missing, copied=False) == ["True", "0"]


# All at once

PROGRAM = """
import zlib
import gcodec
from gcodec.kernels.core import numba_private
from tests.kernels.test_kernel_cache import FILES_OF_DECORATORS
from tests.support.cases import CASES
from tests.support.encode_modes import modes
print(numba_private.UNCOUNTED == {})
for case in CASES:
    if case.dtype == "float32" and case.name in ("gaussian, three in ten zero", "corners among gaussian values"):
        for mode in modes(case.dtype):
            frame = gcodec.encode(case.array(), **mode.arguments(case))
            assert gcodec.encode(gcodec.decode(frame), **case.options)
            print(zlib.crc32(frame))
"""


@pytest.mark.slow
def test_frames_are_the_same_without_any_private_part(tmp_path):
    """All kernels are compiled for this, which takes minutes."""
    counts, *frames = run(PROGRAM, copied=False)
    assert counts == "False"
    assert run(PROGRAM, " ".join(PARTS), copied=False, NUMBA_CACHE_DIR=str(tmp_path)) == ["True", *frames]
    assert len(frames) > 10
