"""The cache of compiled kernels on disk: it holds only what would be compiled now, and damage counts as nothing.

Like :mod:`numba_private`, the cache stands on parts of numba that are not public; where one is missing, numba's own way
takes over. docs/caches.md says where the files are.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba import types
from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from . import shipped_kernels
from .cache_claims import claimed
from .cache_folders import lasting_folders, subfolder, temporary_folder, warn_of_no_folder, warn_of_temporary_folder
from .kernel_compiler import PART
from .numba_private import config, settings_of_code
from .source_digest import UnknownPartError, source_digest

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
        names = list[str]()
        if not _is_part(compiled.library):
            module = compiled.library._get_module_for_linking()
            names = [
                symbol.name
                for symbols in (module.functions, module.global_variables)
                for symbol in symbols
                if not symbol.is_declaration
            ]
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


def _is_part(library: Any) -> bool:
    return PART is not None and isinstance(library, PART)


def _library_class() -> Any:
    """Return a class of numba's libraries of compiled code whose bitcode is parsed when it is asked for; None of a
    numba in which that cannot be had."""
    try:
        codegens = import_module("numba.core.codegen")
        base = codegens.JITCodeLibrary
        parts = (
            base.enable_object_caching,
            base._set_compiled_object,
            base._finalize_final_module,
            base._get_module_for_linking,
            codegens.JitEngine._load_defined_symbols,
            codegens.Codegen.unserialize_library,
        )
    except (ImportError, AttributeError):
        return None

    def of(cls: Any, codegen: Any, state: Any, names: list[str]) -> Any:
        name, kind, content = state
        if kind == "bitcode":
            return base._unserialize(codegen, state) if PART is None else PART.of(codegen, name, content)
        library = codegen.create_library(name)
        library.__class__ = cls
        object_code, library.bitcode = content
        library.enable_object_caching()
        library._set_compiled_object(object_code)
        library._finalize_final_module()
        # numba reads them from the bitcode, which is not parsed here, and looks in them for what other code refers to.
        codegen._engine._defined_symbols |= set(names)
        return library

    def linked(self: Any) -> Any:
        if self._shared_module is None:
            self._shared_module = binding.parse_bitcode(self.bitcode)
        return self._shared_module

    members = {"of": classmethod(of), "_get_module_for_linking": linked}
    return type("LoadedLibrary", (base,), members) if all(parts) else None


# Cache on disk


def cached(decorate: Callable[[bool], Any], sources: Callable[[], str], suffix: str = "") -> Any:
    """Return a dispatcher whose cache on disk holds only what was compiled from the same code, with the same settings.

    numba's cache notices a change in a kernel's own file only, whether it changes code or not, and none in the files of
    the functions that it calls. It also raises for a file of the cache that is damaged, for a full disk, and where no
    folder can be written; does not read a folder that it cannot write; and may keep one type's code under the name of
    another's if two processes write at once. Its way of writing a file is used here, with another choice of folders
    and with checks.

    Saves: the cache. A process that reads it starts in a second, one that compiles in minutes.
    Without it: a folder of the cache for every change of the sources, in the first of the folders that can be written.
    Folders of earlier sources stay until somebody removes them; where none can be made, every process compiles; and
    damaged files are numba's errors.
    Can go: when numba's caches notice what a function calls, and take a damaged cache for an empty one.

    Args:
        decorate: Makes the dispatcher; whether it is cached by numba is its argument.
        sources: Returns a digest of all sources, for what :func:`source_digest.source_digest` knows nothing of.
        suffix: Tells apart the files of dispatchers of one function.
    """
    dispatcher = decorate(False)
    function = getattr(dispatcher, "py_func", None)
    source = Path(function.__code__.co_filename).parent if function is not None else Path()
    folders = lasting_folders(source, str(config.CACHE_DIR or ""), _home())
    if _KernelCache is None or function is None or not hasattr(dispatcher, "_cache"):
        return _cached_below(folders, sources(), decorate, suffix)
    try:
        dispatcher._cache = _KernelCache(function)
    except RuntimeError:  # of numba's own choice of folders, which NUMBA_CACHE_LOCATOR_CLASSES asks for
        return _cached_below(folders, sources(), decorate, suffix)
    name, below = dispatcher._cache._impl.filename_base + suffix, subfolder(source) if len(folders) > 1 else None
    form = "" if hasattr(dispatcher._cache._impl, "reads_light") else " whole"  # each form reads only what it wrote

    def stamp() -> str:
        try:
            return source_digest(function) + form
        except UnknownPartError:
            return sources() + form

    files = dispatcher._cache._cache_file = _CheckedFiles(folders, below, name, stamp)
    compiled = dispatcher.compile

    def compile_claimed(signature: Any) -> Any:
        with files.claiming():
            return compiled(signature)

    # A claim is taken only when something is looked for in vain (load), and given up when it is compiled and saved.
    dispatcher.compile = compile_claimed
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

    def __init__(self, file: str) -> None:
        self._py_file = file

    @classmethod
    def from_function(cls, function: Any, file: str) -> _Place:
        """Accept every function."""
        return cls(file)

    def get_disambiguator(self) -> str:
        """Return nothing: no two kernels of a file have the same name."""
        return ""

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
        index_key = base._index_key

        def key_of(self: Any, signature: Any, codegen: Any) -> Any:
            # numba knows a bundle by its class, so that fields in another order would be taken for the same type; and
            # the CPU, but not the settings that change code for it.
            kinds, target, digests = index_key(self, signature, codegen)
            fields = _fields_of(getattr(signature, "args", signature))
            return kinds, (*target, settings_of_code()), (*digests, xxh3_128_hexdigest(fields.encode()))

        def name_of_files(self: Any, fullname: str, abiflags: str) -> str:
            version = f"py{sys.version_info[0]}{sys.version_info[1]}{abiflags}"
            return f"{fullname.replace('<', '').replace('>', '')}.{version}"

        chosen = {"_locator_classes": [_Place], "get_filename_base": name_of_files, **_light_reading(implementation)}
        return type(
            "KernelCache",
            (base,),
            {
                "_impl_class": type("_Implementation", (implementation,), chosen),
                "_index_key": key_of,
                **_loading_alone(base),
            },
        )
    except (ImportError, AttributeError):
        return None


def _fields_of(kinds: Any) -> str:
    """Return the names of the fields of all bundles among types, in order: numba knows a bundle by its class alone."""
    names = str(kinds.instance_class._fields) if isinstance(kinds, types.NamedTuple | types.NamedUniTuple) else ""
    within = kinds if isinstance(kinds, tuple) else getattr(kinds, "types", ())  # of a tuple, those of its items
    return names + "".join(map(_fields_of, within))


def _dumps() -> Any:
    """Return numba's way to pickle what it compiled."""
    return import_module("numba.core.serialize").dumps


_KernelCache = _kernel_cache()
INNER = "-inner"  #: ends the names of kernels that only other kernels call


class _CheckedFiles:
    """The files of one kernel's cache, in several folders: read from the first that has what is asked for, and written
    to the first that can be. Damage means that there is nothing, and is overwritten.

    A file may hold the code of other types or of an earlier source than its index says, after a full disk or when two
    processes wrote at once; so the content names both, after a digest.

    Args:
        folders: Where files may be kept for good.
        below: Name of the folder among the temporary files; None if nothing is to be kept there.
        name: Start of the files' names.
        stamp: Returns a digest of all that the kernel is compiled from, once its module is whole.
    """

    def __init__(self, folders: tuple[Path, ...], below: str | None, name: str, stamp: Callable[[], str]) -> None:
        self._folders, self._below, self._name, self._make_stamp = folders, below, name, stamp
        self._claims: ExitStack | None = None

    @cached_property
    def _stamp(self) -> str:
        return self._make_stamp()

    @cached_property
    def _release(self) -> str:
        versions = f"{numba.__version__} {llvmlite.__version__} {sys.version_info[:2]}"
        return f"{self._stamp} {versions} {settings_of_code()}"

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """Claim what is not found within the block, until its end: processes that look for the same at the same time
        wait until one of them has compiled and saved it."""
        before = self._claims
        try:
            with ExitStack() as self._claims:
                yield
        finally:
            self._claims = before

    def load(self, key: Any) -> Any:
        """Return what was saved under a key, or None."""
        data = self._find(key)
        if data is None and self._claims is not None:
            self._claims.enter_context(claimed(self._folders, f"{self._name} {self._release} {key}"))
            data = self._find(key)
        return data

    def _find(self, key: Any) -> Any:
        temporary = self._temporary(make=False)
        for folder in (*self._folders, *([] if temporary is None else [temporary])):
            try:
                # In this order. The digest comes first, since pickle runs what it reads: only what was written as a
                # whole is unpickled. Then stamp and key, since files have numbers, which two processes that write at
                # the same time may both have given.
                digest, content = self._files(folder).load(key)
                if xxh3_128_digest(content) == digest:
                    stamp, saved_under, data = pickle.loads(content)
                    if (stamp, saved_under) == (self._stamp, key):
                        return data
            except Exception:  # whatever pickle makes of damage
                continue
        return shipped_kernels.load(self._name, self._release, key)

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


def _cached_below(folders: tuple[Path, ...], stamp: str, decorate: Callable[[bool], Any], suffix: str = "") -> Any:
    """Return a dispatcher that is cached in the first folder that can be written to, or not at all."""
    before = config.CACHE_DIR
    for folder in folders:
        below = folder / f"gcodec-{stamp[:32]}{suffix}"
        try:
            # Content with a folder that is there already, though nothing can be written to it: so that is asked, too.
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
