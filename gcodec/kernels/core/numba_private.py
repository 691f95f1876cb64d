"""Everything of numba's that is not public, in one place, each part with what it saves and with a way without it.

Versions of numba may rename or drop what is here. Each part is therefore looked for at import, by its name and never by
a version number, and where it is missing the public way takes over: slower, but with the same bytes.
``tests/kernels/test_private_parts.py`` takes each part out of numba in turn. What touches CPython's private parts
stands in :mod:`gcodec.memory` (``BytesBuilder``).

The figures are ratios of times on one core of an x86-64 server with AVX-512, each the minimum of 4000 calls, with the
part there and taken out of numba as the tests do.

What counts as public, and is used freely: ``njit``, ``types``, ``typeof``, ``config``, ``numba.extending``, llvmlite,
and the ``context`` that numba hands to the author of an intrinsic (``make_tuple``, ``get_dummy_value``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba import typeof, types

#: Versions of numba that were tried with float32 and bfloat16: warm-up, the golden frames, and all of the tests' cases,
#: whose frames are the same in all versions. No other version is refused.
TRIED = ("0.61.0", "0.62.1", "0.64.0", "0.67.0", "0.68.1")

config: Any = numba.config  #: numba's settings, which type checkers do not see


# Counting of references

def _has_option(name: str) -> bool:
    try:
        return hasattr(import_module("numba.core.cpu").CPUTargetOptions, name)
    except (ImportError, AttributeError):
        return False


#: Options of ``njit`` that leave out the counting of references: an atomic instruction for every array of every call
#: that is not inlined. Only for kernels that allocate nothing.
#:
#: Saves: with counting, 1024 float32 take 1.09 times as long to encode and 1.2 times as long to decode.
#: Without it: kernels count.
#: Can go: when numba has a public option, or drops counts of arguments by itself.
UNCOUNTED: dict[str, Any] = {"_nrt": False} if _has_option("_nrt") else {}


# Cache on disk

def with_stamp(decorate: Callable[[bool], Any], stamp: str, folder: Path) -> Any:
    """Return a dispatcher whose cache on disk holds only what was compiled under the same stamp.

    numba's cache notices a change in a kernel's own file only, not in the files of the functions it calls. The stamp
    becomes part of the version of numba that an index of the cache begins with: an index of another version is not
    unpickled, and one that names a bundle that has been renamed since cannot be.

    Saves: the cache. A process that reads it starts in a second, one that compiles in minutes.
    Without it: a folder of the cache for every stamp, below ``NUMBA_CACHE_DIR`` if that is set. Folders of earlier
    stamps stay until somebody removes them; and where none can be made, every process compiles.
    Can go: when numba lets a function name what its cache depends on.

    Args:
        decorate: Makes the dispatcher; whether it is cached is its argument.
        stamp: Digest of all that the function may be compiled from.
        folder: Folder of the function's file.
    """
    dispatcher = decorate(True)
    index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if isinstance(getattr(index, "_version", None), str):
        index._version += stamp
        return dispatcher
    return _cached_below(Path(config.CACHE_DIR or folder / "__pycache__") / f"gcodec-{stamp[:32]}", decorate)


def _cached_below(folder: Path, decorate: Callable[[bool], Any]) -> Any:
    """Return a dispatcher that is cached in this folder, or not at all if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return decorate(False)
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        return decorate(os.access(folder, os.W_OK))
    finally:
        config.CACHE_DIR = before


# Entry points

def entry_point(kernel: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return what calls a kernel with arguments of the same types as these, without a look at the types.

    Read-only arrays are taken for writable ones, as kernels do not write to their inputs.

    Saves: of 1024 float32, the kernel itself takes 1.2 times as long to encode and 1.45 times as long to decode.
    Without it: the kernel itself, which compiles another time for arrays that are read-only.
    Can go: when numba's own look at named tuples of arrays takes no longer than the work on a thousand values.
    """
    compiled = getattr(kernel, "compile", None)
    call = compiled and compiled(tuple(_writable(typeof(arg)) for arg in args))
    return call if callable(call) else kernel


def _writable(kind: Any) -> Any:
    """Return the type without the mark of read-only arrays, those in bundles included."""
    if isinstance(kind, types.NamedTuple | types.NamedUniTuple):
        return types.BaseTuple.from_types([_writable(item) for item in kind.types], kind.instance_class)
    return kind.copy(readonly=False) if isinstance(kind, types.Array) else kind


# The CPU that kernels are compiled for

class NamedCpu(NamedTuple):
    """Names a CPU as the variables of the environment do.

    Attributes:
        name: LLVM's name of the CPU; None for the host's.
        features: LLVM's names of features, with commas; None for those of the host.
    """

    name: str | None
    features: str | None


def named_cpu() -> NamedCpu:
    """Return the CPU and the features that numba was told to compile for.

    Saves nothing: numba reads the variables of the environment, and a file besides, and has no public name for what it
    found. The steps that are chosen by it would not run on another CPU.
    Without it: the variables of the environment, NUMBA_CPU_NAME and NUMBA_CPU_FEATURES; of a CPU by name, no features
    that are not named, too.
    Can go: when numba says which features it compiles for.
    """
    if hasattr(config, "CPU_NAME") and hasattr(config, "CPU_FEATURES"):
        return NamedCpu(config.CPU_NAME, config.CPU_FEATURES)
    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    return NamedCpu(name, "" if name and features is None else features)


# Arrays inside of intrinsics

def address_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the address of an array's data, in LLVM's terms.

    Saves: all that unaligned loads and vector steps save. What an array is to compiled code is a structure of C, the
    same in all versions, whose fields numba's proxy knows by their names.
    Can go: never.

    Args:
        context: What numba hands to an intrinsic.
        builder: llvmlite's.
        kind: numba's type of the array.
        array: The array, a value of LLVM's.
    """
    return context.make_array(kind)(context, builder, array).data


def array_over(context: Any, builder: Any, kind: Any, address: Any, count: Any) -> Any:
    """Return a contiguous array over memory, in LLVM's terms: the structure of :func:`address_of`, field by field.

    Saves: a loop that takes heads from 64 values at a time runs 1.17 times as long over a slice ``array[i : i + 64]``,
    and 11 times over ``array[i + k]``, of which LLVM makes no vectors.
    Can go: when slices cost nothing.

    Args:
        context: What numba hands to an intrinsic.
        builder: llvmlite's.
        kind: numba's type of the array.
        address: Pointer to the first byte.
        count: Number of elements.
    """
    array = context.make_array(kind)(context, builder)
    item_bytes = ir.Constant(count.type, kind.dtype.bitwidth // 8)
    values = {"nitems": count, "itemsize": item_bytes, "data": builder.bitcast(address, array.data.type)}
    for name, number in (("shape", count), ("strides", item_bytes)):
        values[name] = builder.insert_value(ir.Constant(ir.ArrayType(count.type, 1), ir.Undefined), number, 0)
    for name in ("meminfo", "parent"):  # nobody's: the memory is not counted
        values[name] = ir.Constant(getattr(array, name).type, None)
    for name, value in values.items():
        setattr(array, name, value)
    return array._getvalue()


# CUDA

def cuda_settings() -> Any:
    """Return numba's settings of launches; the package numba-cuda, which takes the name ``numba.cuda``, has its own.

    Saves nothing: numba warns of launches with few blocks, which are right for small tensors, and has no argument that
    stops it.
    Without it: numba's own settings.
    Can go: when numba-cuda says where its settings are.
    """
    try:
        return import_module("numba.cuda.dispatcher").config
    except (ImportError, AttributeError):
        return config
