"""Measure what each kernel takes to compile, nothing in the cache.

    python -m bench.compiling [--quick] [--out DIR]

writes ``bench/results/compiling.csv``, in about ten minutes. Every case is a fresh process with an empty cache of
kernels. For each function that numba compiles there, its own Python code included, the table has the CPU time that
numba itself takes, without the functions that it calls, and the CPU time of LLVM; for how many different types of
arguments it is compiled; and what calls it. ``(all)`` is the whole of a case, from the first call to its end: imports,
digests of sources and files of the cache are in no function's time. LLVM optimizes a kernel with all that it calls in
the kernels that Python calls, and these have nobody in ``callers``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np

from bench.codec import RESULTS
from bench.data import ROOT
from gcodec.benchmark.csv_tables import write_named

ALL = "(all)"
_TYPES = ("float32", "bfloat16", "float16")


class Compiled(NamedTuple):
    """What a function took to compile.

    Attributes:
        function: Its name, with its module.
        n_types: How many different types of arguments it is compiled for.
        numba_seconds: CPU time of numba, the functions that it calls left out.
        llvm_seconds: CPU time of LLVM, likewise.
        callers: Names of the functions that it is compiled for.
    """

    function: str
    n_types: int
    numba_seconds: float
    llvm_seconds: float
    callers: list[str]


class Clock:
    """Divides the CPU time of a process among the functions that numba compiles, one inside another."""

    def __init__(self) -> None:
        self._within, self._last = [""], process_time()
        self._numba, self._llvm = defaultdict[str, float](float), defaultdict[str, float](float)
        self._n_types, self._callers = Counter[str](), dict[str, set[str]]()

    def install(self) -> None:
        """Have numba and LLVM tell when they begin and end."""
        compiler: Any = import_module("numba.core.compiler")
        calls = import_module("llvmlite.binding.ffi")._lib_fn_wrapper
        compile_extra, call = compiler.compile_extra, calls.__call__

        def compile_timed(typing: Any, target: Any, function: Any, *args: Any, **options: Any) -> Any:
            self._add(self._numba)
            name = f"{function.__module__}.{function.__qualname__}".removeprefix("gcodec.kernels.")
            self._n_types[name] += 1
            self._callers.setdefault(name, set()).update(filter(None, self._within[-1:]))
            self._within.append(name)
            try:
                return compile_extra(typing, target, function, *args, **options)
            finally:
                self._add(self._numba)
                self._within.pop()

        def call_timed(function: Any, *args: Any) -> Any:
            self._add(self._numba)
            try:
                return call(function, *args)
            finally:
                self._add(self._llvm)

        compiler.compile_extra, calls.__call__ = compile_timed, call_timed

    def _add(self, times: defaultdict[str, float]) -> None:
        now = process_time()
        times[self._within[-1]] += now - self._last
        self._last = now

    def rows(self) -> Iterator[Compiled]:
        """Yield what was compiled."""
        for name, n_types in self._n_types.items():
            yield Compiled(name, n_types, self._numba[name], self._llvm[name], sorted(self._callers[name]))


def _values(name: str, n_values: int) -> Any:
    values = np.random.default_rng(0).standard_normal(n_values).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16) if name == "bfloat16" else values.astype(name)


def _encode(name: str) -> None:
    import gcodec

    gcodec.encode(_values(name, 1 << 16), dtype=name)


def _encode_and_decode_all() -> None:
    import gcodec

    for name in _TYPES:
        for n_values in (1000, 40_000, 300_000):
            gcodec.decode(gcodec.encode(_values(name, n_values), dtype=name))


CASES: dict[str, Callable[[], None]] = {
    "encode float32": lambda: _encode("float32"), "encode bfloat16": lambda: _encode("bfloat16"),
    "encode + decode three types": _encode_and_decode_all,
}  # fmt: skip


def run_here(case: str) -> list[Compiled]:
    """Run a case in this process, which has compiled nothing before."""
    clock, begin = Clock(), process_time()
    clock.install()
    CASES[case]()
    seconds, rows = process_time() - begin, sorted(clock.rows(), key=lambda row: -row.numba_seconds - row.llvm_seconds)
    llvm = sum(row.llvm_seconds for row in rows)
    return [Compiled(ALL, sum(row.n_types for row in rows), seconds - llvm, llvm, []), *rows]


def run(case: str) -> list[Compiled]:
    """Run a case in a process of its own, with an empty cache."""
    program = f"import json; from bench.compiling import run_here; print(json.dumps(run_here({case!r})))"
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True,
                              stdout=subprocess.PIPE)  # fmt: skip
    return [Compiled(*row) for row in json.loads(done.stdout)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.compiling", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--quick", action="store_true", help="only the first case")
    options = parser.parse_args(arguments)
    table = []
    for case in list(CASES)[: 1 if options.quick else None]:
        for row in run(case):
            table.append(
                {
                    "case": case,
                    "function": row.function,
                    "types": row.n_types,
                    "numba_seconds": f"{row.numba_seconds:.2f}",
                    "llvm_seconds": f"{row.llvm_seconds:.2f}",
                    "callers": " ".join(row.callers),
                }
            )
            if row.function == ALL:
                print(
                    case, row.function, row.n_types, table[-1]["numba_seconds"], table[-1]["llvm_seconds"], flush=True
                )
    write_named(options.out / "compiling.csv", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
