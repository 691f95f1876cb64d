"""numba's compiler without what kernels do not need. Like :mod:`numba_private`, it stands on private parts of
numba; where one is missing, numba's own way takes over.

A kernel that Python calls is optimized by LLVM and made into code for the CPU, once, with all that it calls. A kernel
that only other kernels call is a *part*: LLVM's own form of it, with all that it calls, and no more.

    encode_blocks                     machine code
     |- encode_coded                  part
     |   `- find_symbols_from_values  part
     `- seal_block                    part

The times are CPU time of a first encode of a float32 array, nothing in the cache, on a Zen 3 with AVX2.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

from llvmlite.binding import parse_bitcode

#: Objects more than before at which Python looks for cycles while kernels are compiled, and how often it looks among
#: older ones.
_COLLECTED_AT = 50_000, 50, 100


@contextmanager
def collecting_less() -> Iterator[None]:
    """Have Python look for cycles among objects less often: compiling makes hundreds of thousands that stay.

    Saves 3.5 of 53 s, and takes 50 MB more.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED_AT)
    try:
        yield
    finally:
        if gc.get_threshold() == _COLLECTED_AT:  # and nobody else has set another meanwhile
            gc.set_threshold(*before)


def _part_class() -> Any:
    """Return a class of numba's libraries of compiled code for parts. None of a numba in which that cannot be had.

    Saves 17 of 74 s.
    Without it: kernels that only others call are optimized and made for the CPU like all others, which nothing needs.
    Can go: when numba makes machine code when it is first needed, and optimizes once.
    """
    try:
        base: Any = import_module("numba.core.codegen").JITCodeLibrary
        needed = (base._optimize_final_module, base._finalize_final_module, base._finalize_dynamic_globals,
                  base._verify_declare_only_symbols, base._get_module_for_linking, base.codegen)  # fmt: skip
    except (ImportError, AttributeError):
        return None

    class CodegenOfParts(NamedTuple):
        """Takes the place of numba's code generator where numba asks a part for it."""

        codegen: Any

        def set_env(self, name: str, environment: Any) -> None:
            """Do nothing: only what calls Python has constants in its environment, and there is no machine code yet
            that could look for them."""

        def __getattr__(self, name: str) -> Any:
            return getattr(self.codegen, name)

    class Part(base):  # type: ignore[misc]
        """Code that is only a part of other kernels."""

        bitcode: bytes | None = None  #: as a cache had it
        _shared_module: Any

        @classmethod
        def of(cls, codegen: Any, name: str, bitcode: bytes) -> Any:
            """Return a part that a cache had."""
            part = cls(codegen, name)
            part.bitcode, part._finalized = bitcode, True
            return part

        @property
        def codegen(self) -> Any:
            return CodegenOfParts(self._codegen)

        def get_pointer_to_function(self, name: str) -> int:
            """Return no address: nothing calls a part but what it becomes a part of."""
            # numba asks for an address when a function is compiled, and means by it that all is to be made ready.
            self._ensure_finalized()
            return 0

        def serialize_using_object_code(self) -> tuple[str, str, bytes]:
            return self.name, "bitcode", self.bitcode or self._get_module_for_linking().as_bitcode()

        def _get_module_for_linking(self) -> Any:
            if self.bitcode is not None and self._shared_module is None:
                self._shared_module = parse_bitcode(self.bitcode)
            return super()._get_module_for_linking()

        # Nothing: it is optimized with the kernel that it becomes a part of.
        def _optimize_final_module(self) -> None:
            pass

        # Not the end of numba's own method, which makes machine code.
        def _finalize_final_module(self) -> None:
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = True

    return Part if all(needed) else None


PART: Any = _part_class()


def _compiling_parts() -> dict[str, Any]:
    """Return the option of ``njit`` by which a kernel is compiled into a part."""
    try:
        base: Any = import_module("numba.core.compiler").Compiler
        # Raises ValueError of a compiler that takes none.
        list(signature(base).parameters).index("library")
    except (ImportError, AttributeError, ValueError):
        return {}

    class PartCompiler(base):  # type: ignore[misc]
        """numba's compiler, with another library to compile into."""

        def __init__(self, typing: Any, target: Any, library: Any, *args: Any) -> None:
            super().__init__(typing, target, PART(target.codegen(), "part") if library is None else library, *args)

    return {"pipeline_class": PartCompiler}


#: Options of ``njit`` for parts.
COMPILED_AS_PART = {} if PART is None else _compiling_parts()
