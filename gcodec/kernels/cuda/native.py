"""Kernels in CUDA C++ (``source/``): the fast paths of some of this package's kernels, which stay the general ones.

A fast path takes the same arguments as the general kernel, writes the same bytes, and is used where the values are cut
in the way that it knows, and where NVRTC compiles it (:mod:`nvrtc`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...errors import Unsupported
from .assemble import move_blocks, seal_frames
from .decode import decode_blocks
from .encode import encode_blocks
from .histogram import count_symbols
from .level_rules import choose_accumulator, choose_adam, choose_linear
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


def _for_each_width(name: str, file: str, general: Any) -> dict[int, NativeKernel]:
    """Return the two kernels of a file by bits of a value: bfloat16 and float16 are cut alike."""
    return {bits: NativeKernel(f"{name}_float{bits}", file, general) for bits in (16, 32)}


#: Of one level and one plane that takes all of the tail; and of planes of at most 8 bits. The encoders' frames have a
#: reference for each sub-stream of 2**8 values.
_DECODERS = _for_each_width("decode", "decode.cu", decode_blocks)
_PLANES_DECODERS = _for_each_width("decode_planes", "decode_planes.cu", decode_blocks)
_ENCODERS = _for_each_width("encode", "encode.cu", encode_blocks)
_PLANES_ENCODERS = _for_each_width("encode_planes", "encode_planes.cu", encode_blocks)
_MOVERS = _for_each_width("move", "encode.cu", move_blocks)
_PLANES_MOVERS = _for_each_width("move_planes", "encode_planes.cu", move_blocks)
_COUNTERS = _for_each_width("count", "count.cu", count_symbols)
_SEALER = NativeKernel("seal_frames", "assemble.cu", seal_frames)
LINEAR_CHOOSER = NativeKernel("choose_linear", "levels.cu", choose_linear)
ACCUMULATOR_CHOOSER = NativeKernel("choose_accumulator", "levels.cu", choose_accumulator)
ADAM_CHOOSER = NativeKernel("choose_adam", "levels.cu", choose_adam)
_PAIRS = _DECODERS, _PLANES_DECODERS, _ENCODERS, _PLANES_ENCODERS, _MOVERS, _PLANES_MOVERS, _COUNTERS
ALL_KERNELS = (
    *(kernel for pair in _PAIRS for kernel in pair.values()), _SEALER, LINEAR_CHOOSER, ACCUMULATOR_CHOOSER, ADAM_CHOOSER
)  # fmt: skip


class EncodingKernels(NamedTuple):
    """The kernels that make frames of tensors, in the order of their launches.

    Attributes:
        encode: In the place of :func:`encode.encode_blocks`, or that.
        seal: In the place of :func:`assemble.seal_frames`.
        move: In the place of :func:`assemble.move_blocks`.
    """

    encode: Any
    seal: Any
    move: Any


def decoder_for(bits: int, head_bits: int, widths: Sequence[int], n_levels: int, has_columns: bool) -> Any:
    """Return the kernel that decodes frames: a fast path, if there is one for them, or the general kernel.

    Args:
        bits: Bits of a value.
        head_bits: Bits of its head.
        widths: Bits of the items of each plane.
        n_levels: Number of levels.
        has_columns: Whether a frame has column references.
    """
    if head_bits != 8 or has_columns:
        return decode_blocks
    if _is_whole(bits, widths, n_levels):
        return _DECODERS.get(bits, decode_blocks)
    return _PLANES_DECODERS.get(bits, decode_blocks) if max(widths) <= 8 else decode_blocks


def counter_for(bits: int, head_bits: int) -> Any:
    """Return the kernel that counts the symbols of values of so many bits, for a fresh codebook, likewise."""
    return _COUNTERS.get(bits, count_symbols) if head_bits == 8 else count_symbols


def encoders_for(
    bits: int, head_bits: int, widths: Sequence[int], n_levels: int, lossy: bool, has_references: bool
) -> EncodingKernels:
    """Return the kernels that encode tensors, likewise.

    Args:
        bits: Bits of a value.
        head_bits: Bits of its head.
        widths: Bits of the items of each plane.
        n_levels: Number of levels.
        lossy: Whether values are rounded.
        has_references: Whether heads are relative to the mean of their sub-stream, by a codebook.
    """
    if head_bits == 8 and has_references and bits in _ENCODERS:
        if _is_whole(bits, widths, n_levels) and not lossy:
            return EncodingKernels(_ENCODERS[bits], _SEALER, _MOVERS[bits])
        if max(widths) <= 8:
            return EncodingKernels(_PLANES_ENCODERS[bits], _SEALER, _PLANES_MOVERS[bits])
    return EncodingKernels(encode_blocks, _SEALER, move_blocks)


def _is_whole(bits: int, widths: Sequence[int], n_levels: int) -> bool:
    """Return whether one plane has all bits of a value but those of its head, which are 8, whatever its level."""
    return tuple(widths) == (bits - 8,) and n_levels == 1
