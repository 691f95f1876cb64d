"""Kernels in CUDA C++ (``source/``): the fast paths of some of this package's kernels, which stay the general ones.

A fast path takes the same arguments as the general kernel, writes the same bytes, and is used where the values are cut
in the way that it knows, and where NVRTC compiles it (:mod:`nvrtc`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import Unsupported
from .decode import decode_blocks
from .nvrtc import cubin_of

SWITCH = "GCODEC_GPU_KERNELS"  #: variable of the environment: "numba" leaves everything to the general kernels
THREADS = 256  #: threads of a block of the grid, as in ``source/device.cuh``


class NativeKernel(NamedTuple):
    """A kernel in CUDA C++.

    Attributes:
        name: Its name in the source.
        file: The file of ``source/`` that it stands in.
        general: The kernel that takes its place where it cannot be compiled.
    """

    name: str
    file: str
    general: Any

    def cubin(self, capability: tuple[int, int], driver_version: int) -> bytes:
        """Return the kernel's code for a device; arguments and exceptions as of :func:`nvrtc.cubin_of`."""
        if os.environ.get(SWITCH) == "numba":
            raise Unsupported(f"{SWITCH} is numba")
        return cubin_of(self.file, capability, driver_version)


#: Decoders of one level and one plane that takes all of the tail, by bits of a value.
_DECODERS = {bits: NativeKernel(f"decode_float{bits}", "decode.cu", decode_blocks) for bits in (16, 32)}
ALL_KERNELS = tuple(_DECODERS.values())


def decoder_for(bits: int, head_bits: int, widths: Sequence[int], n_levels: int, has_columns: bool) -> Any:
    """Return the kernel that decodes frames: a fast path, if there is one for them, or the general kernel.

    Args:
        bits: Bits of a value.
        head_bits: Bits of its head.
        widths: Bits of the items of each plane.
        n_levels: Number of levels.
        has_columns: Whether a frame has column references.
    """
    lossless = head_bits == 8 and tuple(widths) == (bits - 8,) and n_levels == 1
    return _DECODERS[bits] if lossless and not has_columns and bits in _DECODERS else decode_blocks
