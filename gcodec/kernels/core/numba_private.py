"""Private parts of numba stand here, each with what it saves and with a way without it.

The cache on disk stands on some more, in :mod:`kernel_cache`.

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
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import from_dtype, typeof, types

from ...threads import call_apart
from .cpu_levels import FEATURES_BY_NAME
from .kernel_compiler import collecting_less

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


# Kernels that other kernels call

#: Options of ``njit`` that leave out what calls a kernel from C, which nothing does; and, for kernels that only other
#: kernels call, what takes Python's arguments apart. Both are as long as the kernels themselves where bundles hold
#: dozens of arrays.
#:
#: Saves: a first encode and decode of a float32 array, nothing in the cache, takes 36.5 s of CPU time with them, 27.8 s
#: without.
#: Without it: all kernels have both.
#: Can go: when numba makes them when they are first needed.
NOT_FOR_C: dict[str, Any] = {"no_cfunc_wrapper": True} if _has_option("no_cfunc_wrapper") else {}
CALLED_BY_KERNELS: dict[str, Any] = {"no_cpython_wrapper": True} if _has_option("no_cpython_wrapper") else {}


class _Inner:
    """Makes what other kernels call of a kernel when one of them is compiled: most processes only load kernels."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    @property
    def dispatcher(self) -> Any:
        """The dispatcher: the first that a thread has made."""
        return vars(self).get("made") or vars(self).setdefault("made", self._make())

    def get_call_template(self, *args: Any) -> Any:
        """Do what a dispatcher does of that name."""
        return self.dispatcher.get_call_template(*args)

    def get_overload(self, *args: Any) -> Any:
        """Do what a dispatcher does of that name."""
        return self.dispatcher.get_overload(*args)


def called_by_kernels(kernel: Any, make: Callable[[], Any]) -> Any:
    """Return a kernel which, where another one calls it, is compiled without what only calls from Python need.

    Args:
        kernel: The dispatcher.
        make: Makes a dispatcher of the same function with ``CALLED_BY_KERNELS``.
    """
    if CALLED_BY_KERNELS and hasattr(kernel, "get_call_template") and hasattr(kernel, "get_overload"):
        inner = _Inner(make)
        kernel.get_call_template, kernel.get_overload = inner.get_call_template, inner.get_overload
    return kernel


# Interrupts


def uninterrupted(kernel: Any) -> Any:
    """Return a kernel that is compiled, or loaded from a cache, on a thread of its own.

    An exception that a signal's handler raises there, Ctrl-C for one, would leave numba half done, and a later call of
    the kernel would be a segmentation fault.

    Without it: as numba is.
    Can go: when numba can be interrupted.
    """
    try:
        lock, compiled = import_module("numba.core.compiler_lock").global_compiler_lock, kernel.compile
        lock.is_locked()
    except (ImportError, AttributeError):
        return kernel

    def compile_alone(signature: Any) -> Any:
        with lock, collecting_less():
            return compiled(signature)

    def compile_apart(signature: Any) -> Any:
        # This thread has the lock while it compiles what calls this kernel: another one would wait for it.
        return compiled(signature) if lock.is_locked() else call_apart(compile_alone, signature)

    kernel.compile = compile_apart
    return kernel


# Entry points


def entry_point(kernel: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Return what calls a kernel with arguments of the same types as these, without a look at the types.

    Read-only arrays are taken for writable ones, as kernels do not write to their inputs.

    Saves: of 1024 float32, the kernel itself takes 1.2 times as long to encode and 1.45 times as long to decode.
    Without it: the kernel itself, which compiles another time for arrays that are read-only.
    Can go: when numba's own look at named tuples of arrays takes no longer than the work on a thousand values.
    """
    compiled = getattr(kernel, "compile", None)
    call = compiled and compiled(tuple(map(_type_of, args)))
    return call if callable(call) else kernel


def _type_of(arg: Any) -> Any:
    """Return numba's type of an argument, without the mark of read-only arrays, those in bundles included.

    numba's own look at an array imports numpy.ma, which takes a twentieth of the time that a process needs to start.
    """
    if isinstance(arg, tuple):
        return types.BaseTuple.from_types([_type_of(item) for item in arg], type(arg))
    if type(arg) is np.ndarray and arg.flags.aligned:
        layout = "C" if arg.flags.c_contiguous else "F" if arg.flags.f_contiguous else "A"
        return types.Array(from_dtype(arg.dtype), arg.ndim, layout)  # type: ignore[call-overload]
    kind = typeof(arg)
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


def has_features(*features: str) -> bool:
    """Return whether kernels may use features of the CPU, by LLVM's names: those of the CPU that numba compiles for."""
    return _features().issuperset(features)


@cache
def _features() -> frozenset[str]:
    """Return the features that numba compiles for: those that the CPU's name stands for, and those that are listed;
    without a list, those of the host, of which ``NUMBA_ENABLE_AVX=0`` leaves out AVX."""
    name, listed = named_cpu()
    if listed is None:
        avx = getattr(config, "ENABLE_AVX", True)
        try:
            host = get_host_cpu_features().items()
        except RuntimeError:  # of an LLVM that cannot tell
            return frozenset()
        listed = ",".join(f"{'+' if there and (avx or not key.startswith('avx')) else '-'}{key}" for key, there in host)
    features = set(FEATURES_BY_NAME.get(name or "", ()))
    for item in listed.split(","):
        (features.add if item.startswith("+") else features.discard)(item[1:])
    return frozenset(features)


#: Settings of numba's that change code and that the names of its caches do not tell.
_CODE_SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "ENABLE_PROFILING",
                  "EXTEND_VARIABLE_LIFETIMES", "LLVM_REFPRUNE_PASS", "LLVM_REFPRUNE_FLAGS", "ENABLE_AVX")  # fmt: skip


def settings_of_code() -> str:
    """Return numba's settings that change what is compiled, for caches to tell apart.

    Saves nothing, but whoever looked for an error with NUMBA_BOUNDSCHECK=1 would keep slow kernels for good.
    Can go: when numba's caches tell settings apart.
    """
    return " ".join(f"{name}={getattr(config, name)!r}" for name in _CODE_SETTINGS if hasattr(config, name))


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
