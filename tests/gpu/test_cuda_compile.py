"""The laws of compiled CUDA kernels: they compile for the architectures that are promised, without a spill.

No device is needed, but NVVM, of a CUDA toolkit; and ``ptxas`` for the second part.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import types

from gcodec.kernels.cuda.compiled import declaration
from gcodec.kernels.cuda.launch_arguments import declared

ARCHITECTURES = ((8, 0), (9, 0), (10, 0))
u1, u2, u4, u8, i1, i4, i8 = (getattr(types, name) for name in "uint8 uint16 uint32 uint64 int8 int32 int64".split())


def array(kind: Any, dimensions: int = 1) -> Any:
    return types.Array(kind, dimensions, "C")


def bundle(like: Any, *kinds: Any) -> Any:
    assert len(like._fields) == len(kinds)
    same = len(set(kinds)) == 1
    return types.NamedUniTuple(kinds[0], len(kinds), like) if same else types.NamedTuple(kinds, like)


def signatures(values: Any) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return numba's kernels, and the types that they are launched with; ``values``: of the values' integers."""
    from gcodec.kernels.cuda import (
        sparse_check,
        sparse_find,
        sparse_place,
        sparse_read,
        sparse_tables,
        sparse_write,
        xxh3,
    )

    shape = bundle(sparse_tables.SparseShape, u8, u4, u4, u4)
    frame = bundle(sparse_tables.SparseFrame, array(u4), array(i8), array(i8), array(u1))
    books = bundle(sparse_tables.ChangeBooks, array(u4), array(u8, 2), array(u1, 2), array(u4), array(u4, 2),
                   array(u2, 2), array(u4, 2))
    streams = bundle(sparse_tables.SubStreams, array(u4), array(i8), array(i4), array(u4), array(u4), array(i8),
                     array(u4, 2))
    changes = bundle(sparse_tables.StoredChanges, array(u4), array(u4), array(values))
    source = bundle(sparse_tables.SparseSource, array(values), array(values), array(u8), u8, u4, u4, u4)
    found = bundle(sparse_tables.FoundChanges, array(u4), array(values), array(i8), array(u4, 2))
    codes = bundle(sparse_tables.GpuChangeCodes, array(u4, 2), array(u4), array(u4), array(u1))
    return {
        "count_differences": (sparse_find.count_differences, (source, array(u4, 2))),
        "note_all_differences": (sparse_find.note_all_differences, (source, found)),
        "count_change_symbols": (sparse_find.count_change_symbols, (found, u8, array(u8), array(u8))),
        "write_sub_streams": (sparse_write.write_sub_streams, (found, codes, u8, array(u4), array(i8), array(u4))),
        "seal_sparse_blocks": (sparse_write.seal_sparse_blocks,
                               (array(i8, 2), source, array(u4), array(u4), array(u4))),
        "sum_words": (sparse_check.sum_words, (array(values), shape, array(u8))),
        "check_sparse_blocks": (sparse_check.check_sparse_blocks, (frame, shape, books, array(u4), array(i4))),
        "read_sub_streams": (sparse_read.read_sub_streams, (frame, shape, books, streams, changes, u4, array(i4))),
        "place_changes": (sparse_place.place_changes,
                          (frame, shape, books, streams, changes, array(values), array(i4))),
        "apply_changes": (sparse_place.apply_changes, (shape, streams, array(u4), changes, array(values))),
        "copy_stored_blocks": (sparse_place.copy_stored_blocks, (frame, shape, array(values))),
        "sum_hash_blocks": (xxh3.sum_hash_blocks, (array(u8), array(u1), u8, array(u8), u8, array(u8))),
        "chain_hash_blocks": (xxh3.chain_hash_blocks, (array(u8), array(i8), array(i8), array(u8), array(u8))),
    }


KERNELS = ("sum_words", "check_sparse_blocks", "read_sub_streams", "place_changes", "apply_changes",
           "copy_stored_blocks", "count_differences", "note_all_differences", "count_change_symbols",
           "write_sub_streams", "seal_sparse_blocks", "sum_hash_blocks", "chain_hash_blocks")
#: 16-bit values differ from wide ones in the width of their loads and stores alone; and of the architectures, one is
#: enough to see every kernel compile.
CASES = [pytest.param(name, values, which, marks=[] if values is u4 and which == (9, 0) else [pytest.mark.slow])
         for name in KERNELS for values in (u4, u2) for which in ARCHITECTURES]


@pytest.fixture(scope="module", autouse=True)
def nvvm() -> None:
    try:
        from numba.cuda.cudadrv.nvvm import NVVM

        NVVM()
    except Exception as error:  # of many kinds
        pytest.skip(f"no NVVM: {error}")


def to_ptx(name: str, values: Any, which: tuple[int, int], monkeypatch: Any) -> str:
    """Return the PTX of a kernel."""
    kernel, signature = signatures(values)[name]
    return compiled(kernel.py_func, signature, which, monkeypatch)


def compiled(function: Any, signature: tuple[Any, ...], which: tuple[int, int], monkeypatch: Any) -> str:
    """Return the PTX of a function. numba asks the current device, which there is none of, when it compiles what a
    kernel calls."""
    compiler: Any = import_module("numba.cuda.compiler")
    for module in (compiler, import_module("numba.cuda.dispatcher")):
        monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=which))
    ptx: str = compiler.compile_ptx(function, signature, cc=which)[0]
    return ptx


@pytest.mark.parametrize(("name", "values", "which"), CASES)
def test_every_cuda_kernel_compiles_without_a_spill(name, values, which, monkeypatch, tmp_path):
    ptx = to_ptx(name, values, which, monkeypatch)
    kinds = tuple(kinds_of(signatures(values)[name][1]))
    assert declaration(ptx)[1] == declared(kinds), "arguments are packed otherwise"
    target = re.search(r"\.target sm_(\d+)", ptx)
    # For a later architecture than numba knows, it writes PTX for the last that it does, which drivers take.
    assert target is not None and 80 <= int(target[1]) <= 10 * which[0] + which[1]
    assert not re.search(r"\bcall(\.uni)?\b", ptx), "a helper was not inlined"
    assert not re.search(r"\.f(16|32|64)\b", ptx), "floating point decides nothing here"
    assembler = shutil.which("ptxas") or shutil.which("ptxas", path="/usr/local/cuda/bin")
    if assembler is None:
        pytest.skip("compiled; no ptxas to assemble it")
    source = tmp_path / "kernel.ptx"
    source.write_text(ptx)
    command = [assembler, "-v", f"-arch=sm_{which[0]}{which[1]}", str(source), "-o", str(tmp_path / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    spills = re.findall(r"(\d+) bytes spill", done.stderr)
    assert spills and set(spills) == {"0"}, done.stderr
    assert all(int(shared) <= 48 << 10 for shared in re.findall(r"(\d+) bytes smem", done.stderr))


def kinds_of(signature: Any) -> Iterator[Any]:
    """Yield the kinds of arguments, by numba's types of them."""
    for item in signature:
        if isinstance(item, types.Array):
            yield np.dtype(item.dtype.name).char, item.ndim
        elif isinstance(item, types.Integer):
            yield getattr(np, item.name)
        else:
            yield from kinds_of(item.types)
