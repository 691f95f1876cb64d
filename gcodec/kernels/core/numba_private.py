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
import pickle
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite
import numba
from llvmlite import binding, ir
from numba import typeof, types
from xxhash import xxh3_128_digest

from . import shipped_kernels
from .cache_folders import lasting_folders, subfolder, temporary_folder, warn_of_no_folder, warn_of_temporary_folder

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


# Wrappers

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


def called_by_kernels(kernel: Any, make: Callable[[], Any]) -> Any:
    """Return a kernel which, where another one calls it, is compiled without what only calls from Python need.

    Args:
        kernel: The dispatcher.
        make: Makes a dispatcher of the same function with ``CALLED_BY_KERNELS``.
    """
    if CALLED_BY_KERNELS and hasattr(kernel, "get_call_template") and hasattr(kernel, "get_overload"):
        inner = make()
        kernel.get_call_template, kernel.get_overload = inner.get_call_template, inner.get_overload
    return kernel


# Loading from the cache, without what only compiling needs

def _loading_alone(base: Any) -> dict[str, Any]:
    """Return the method of a cache that loads compiled code without preparing numba to compile: that imports a hundred
    modules of numba's (and of scipy's, where there is one), which numba does anyway before it compiles.

    Saves: encoding a first float32 array, all kernels in the cache, takes 0.54 s of CPU time with it, 0.22 s without.
    Without it: numba's own method.
    Can go: when numba prepares for compiling only when it compiles.
    """
    try:
        helpers = import_module("numba.core.runtime.nrt")._nrt.c_helpers
        load, guard = base._load_overload, base._guard_against_spurious_io_errors
    except (ImportError, AttributeError):
        return {}

    @cache
    def add_runtime() -> None:  # what compiled code calls, by the names that numba gives to it
        for name, address in helpers.items():
            binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)

    def load_overload(self: Any, signature: Any, context: Any) -> Any:
        add_runtime()
        with guard(self):
            return load(self, signature, context)

    return {"load_overload": load_overload}


def _light_reading(implementation: Any) -> dict[str, Any]:
    """Return the methods of a cache by which machine code is loaded alone. The bitcode beside it, which another kernel
    is compiled from that calls this one, is parsed when that is asked for; and the environments of inlined functions,
    which import the modules of these, are kept only if they hold constants.

    Saves: of the 0.22 s that are left of encoding a first float32 array, 0.14 s.
    Without it: numba's own methods.
    Can go: when numba parses bitcode only to compile.
    """
    library_class = _library_class()
    if library_class is None:
        return {}

    def reduce(self: Any, compiled: Any) -> Any:
        *most, environments = implementation.reduce(self, compiled)
        module = compiled.library._get_module_for_linking()
        names = [symbol.name for symbols in (module.functions, module.global_variables) for symbol in symbols
                 if not symbol.is_declaration]
        return names, (*most, tuple(item for item in environments if item.consts))

    def rebuild(self: Any, context: Any, data: Any) -> Any:
        names, reduced = data
        codegen = context.codegen()
        # For this one call, which is made under the compiler's lock.
        codegen.unserialize_library = lambda state: library_class.of(codegen, state, names)
        try:
            return implementation.rebuild(self, context, reduced)
        finally:
            del codegen.unserialize_library

    return {"reduce": reduce, "rebuild": rebuild, "reads_light": True}


def _library_class() -> Any:
    """Return a class of numba's libraries of compiled code whose bitcode is parsed when it is asked for; None of a
    numba in which that cannot be had."""
    try:
        codegens = import_module("numba.core.codegen")
        base = codegens.JITCodeLibrary
        parts = (base.enable_object_caching, base._set_compiled_object, base._finalize_final_module,
                 base._get_module_for_linking, codegens.JitEngine._load_defined_symbols,
                 codegens.Codegen.unserialize_library)
    except (ImportError, AttributeError):
        return None

    def of(cls: Any, codegen: Any, state: Any, names: list[str]) -> Any:
        name, kind, content = state
        if kind != "object":
            return base._unserialize(codegen, state)
        library = codegen.create_library(name)
        library.__class__ = cls
        object_code, library.bitcode = content
        library.enable_object_caching()
        library._set_compiled_object(object_code)
        library._finalize_final_module()
        codegen._engine._defined_symbols |= set(names)
        return library

    def linked(self: Any) -> Any:
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self.bitcode)
        return self._shared_module

    members = {"of": classmethod(of), "_get_module_for_linking": linked}
    return type("LoadedLibrary", (base,), members) if all(parts) else None


# Cache on disk

def with_stamp(decorate: Callable[[bool], Any], stamp: str, source: Path, suffix: str = "") -> Any:
    """Return a dispatcher whose cache on disk holds only what was compiled under the same stamp.

    numba's cache notices a change in a kernel's own file only, not in the files of the functions it calls. It also
    raises for a file of the cache that is damaged, for a full disk, and where no folder can be written; does not read a
    folder that it cannot write; and may keep one type's code under the name of another's if two processes write at
    once. Its way of writing a file is used here, with another choice of folders and with checks.

    Saves: the cache. A process that reads it starts in a second, one that compiles in minutes.
    Without it: a folder of the cache for every stamp, in the first of the folders that can be written. Folders of
    earlier stamps stay until somebody removes them; where none can be made, every process compiles; and damaged files
    are numba's errors.
    Can go: when numba lets a function name what its cache depends on, and takes a damaged cache for an empty one.

    Args:
        decorate: Makes the dispatcher; whether it is cached is its argument.
        stamp: Digest of all that the function may be compiled from.
        source: Folder of the function's file.
        suffix: Tells apart the files of dispatchers of one function.
    """
    dispatcher = decorate(False)
    function = getattr(dispatcher, "py_func", None)
    folders = lasting_folders(source, str(config.CACHE_DIR or ""), _home())
    if _KernelCache is None or function is None or not hasattr(dispatcher, "_cache"):
        return _cached_below(folders, stamp, decorate, suffix)
    try:
        dispatcher._cache = _KernelCache(function)
    except RuntimeError:  # of numba's own choice of folders, which NUMBA_CACHE_LOCATOR_CLASSES asks for
        return _cached_below(folders, stamp, decorate, suffix)
    name, below = dispatcher._cache._impl.filename_base + suffix, subfolder(source) if len(folders) > 1 else None
    form = "" if hasattr(dispatcher._cache._impl, "reads_light") else " whole"  # each form reads only what it wrote
    dispatcher._cache._cache_file = _CheckedFiles(folders, below, name, stamp + form)
    return dispatcher


@cache
def _home() -> Path | None:
    """Return the folder where numba keeps a user's caches, which the package's own folder comes before."""
    try:
        folder = Path(import_module("numba.misc.appdirs").AppDirs("numba", appauthor=False).user_cache_dir)
    except (ImportError, AttributeError, RuntimeError):
        return None
    return folder if folder.is_absolute() else None  # of a user without a home, "~" is left


class _Place:
    """Stands for numba's choice of a folder, and answers what numba asks about it."""

    def __init__(self, function: Any, file: str) -> None:
        self._line, self._py_file = function.__code__.co_firstlineno, file

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Place:
        """Accept every function."""
        return cls(function, file)

    def get_disambiguator(self) -> str:
        """Return what makes functions of the same name differ."""
        return str(self._line)

    def get_cache_path(self) -> str:
        """Return no folder: :class:`_CheckedFiles` has them."""
        return ""

    def get_source_stamp(self) -> str:
        """Return nothing: :class:`_CheckedFiles` has the stamp."""
        return ""

    def ensure_cache_path(self) -> None:
        """Do nothing: folders are made when something is written."""


def _kernel_cache() -> Any:
    """Return numba's class of caches, without numba's choice of folders; None of a numba that has no such classes."""
    try:
        caching = import_module("numba.core.caching")
        base, implementation, files = caching.FunctionCache, caching.CompileResultCacheImpl, caching.IndexDataCacheFile
        parts = (base._impl_class, implementation._locator_classes, files.load, files.save, files.flush, _dumps())
        if not all(parts):
            return None
        chosen = {"_locator_classes": [_Place], **_light_reading(implementation)}
        return type("KernelCache", (base,), {"_impl_class": type("_Implementation", (implementation,), chosen),
                                             **_loading_alone(base)})
    except (ImportError, AttributeError):
        return None


def _dumps() -> Any:
    """Return numba's way to pickle what it compiled."""
    return import_module("numba.core.serialize").dumps


_KernelCache = _kernel_cache()


class _CheckedFiles:
    """The files of one kernel's cache, in several folders: read from the first that has what is asked for, and written
    to the first that can be. Damage means that there is nothing, and is overwritten.

    A file may hold the code of other types or of an earlier source than its index says, after a full disk or when two
    processes wrote at once; so the content names both, after a digest.

    Args:
        folders: Where files may be kept for good.
        below: Name of the folder among the temporary files; None if nothing is to be kept there.
        name: Start of the files' names.
        stamp: Digest of all that the kernel may be compiled from.
    """

    def __init__(self, folders: tuple[Path, ...], below: str | None, name: str, stamp: str) -> None:
        self._folders, self._below, self._name, self._stamp = folders, below, name, stamp
        self._release = f"{stamp} {numba.__version__} {llvmlite.__version__} {sys.version_info[:2]}"

    def load(self, key: Any) -> Any:
        """Return what was saved under a key, or None."""
        temporary = self._temporary(make=False)
        for folder in (*self._folders, *([] if temporary is None else [temporary])):
            try:
                digest, content = self._files(folder).load(key)
                if xxh3_128_digest(content) == digest:
                    stamp, saved_under, data = pickle.loads(content)
                    if (stamp, saved_under) == (self._stamp, key):
                        return data
            except Exception:  # whatever pickle makes of damage
                continue
        # Of a CPU by name, what was shipped for others would not be what was asked for.
        return shipped_kernels.load(self._name, self._release, key) if named_cpu() == (None, None) else None

    def save(self, key: Any, data: Any) -> None:
        """Save what was compiled, where that can be done; otherwise warn."""
        content = _dumps()((self._stamp, key, data))
        entry = xxh3_128_digest(content), content
        if any(self._saved(folder, key, entry) for folder in self._folders):
            return
        temporary = self._temporary(make=True)
        if temporary is not None and self._saved(temporary, key, entry):
            warn_of_temporary_folder(temporary.parent)
        else:
            warn_of_no_folder()

    def _temporary(self, make: bool) -> Path | None:
        folder = None if self._below is None else temporary_folder(make)
        return None if folder is None or self._below is None else folder / self._below

    def _saved(self, folder: Path, key: Any, entry: Any) -> bool:
        files = self._files(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                files.save(key, entry)
            except OSError:
                return False
            except Exception:  # the index is damaged: numba reads it before it writes
                files.flush()
                files.save(key, entry)
        except OSError:
            return False
        return True

    def _files(self, folder: Path) -> Any:
        return import_module("numba.core.caching").IndexDataCacheFile(str(folder), self._name, self._stamp)


def _cached_below(
    folders: tuple[Path, ...], stamp: str, decorate: Callable[[bool], Any], suffix: str = ""
) -> Any:
    """Return a dispatcher that is cached in the first folder that can be written to, or not at all."""
    before = config.CACHE_DIR
    for folder in folders:
        below = folder / f"gcodec-{stamp[:32]}{suffix}"
        try:
            below.mkdir(parents=True, exist_ok=True)
            if not os.access(below, os.W_OK):
                continue
            config.CACHE_DIR = str(below)
            return decorate(True)
        except (OSError, RuntimeError):  # numba's "no locator available" is a RuntimeError
            continue
        finally:
            config.CACHE_DIR = before
    warn_of_no_folder()
    return decorate(False)


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


def is_at_hand(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a kernel is compiled for arguments of the same types as these, in this process or in a cache.

    Saves: where no kernels are shipped, compiling a large kernel for what smaller ones do as well, 17 s.
    Without it: True, and the kernel is compiled.
    Can go: when numba tells what its caches hold.
    """
    try:
        signature, cache = tuple(_writable(typeof(arg)) for arg in args), kernel._cache
        if signature in kernel.overloads:
            return True
        return cache._cache_file.load(cache._index_key(signature, kernel.targetctx.codegen())) is not None
    except AttributeError:
        return True


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
