"""The kernels in CUDA C++ (``source/``), and which of them does what.

For blocks, what is most frequent has kernels of its own, *fast paths*; general ones do everything else. All take the
same arguments, and make the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .nvrtc import cubin_of

THREADS = 256  #: threads of a block of the grid, as in ``source/device.cuh``


class NativeKernel(NamedTuple):
    """A kernel in CUDA C++.

    Attributes:
        name: Its name in the source.
        file: The file of ``source/`` that it stands in.
    """

    name: str
    file: str

    def cubin(self, capability: tuple[int, int], driver_version: int) -> bytes:
        """Return the kernel's code for a device; arguments and exceptions as of :func:`nvrtc.cubin_of`."""
        return cubin_of(self.file, capability, driver_version)


def _for_each_width(name: str, file: str) -> dict[int, NativeKernel]:
    """Return the two kernels of a file by bits of a value: bfloat16 and float16 are cut alike."""
    return {bits: NativeKernel(f"{name}_float{bits}", file) for bits in (16, 32)}


#: Of one level and one plane that takes all of the tail; of planes of at most 8 bits; and of whatever there may be.
_DECODERS = _for_each_width("decode", "decode.cu")
_PLANES_DECODERS = _for_each_width("decode_planes", "decode_planes.cu")
_GENERAL_DECODERS = _for_each_width("decode_general", "decode_general.cu")
_ENCODERS = _for_each_width("encode", "encode.cu")
_PLANES_ENCODERS = _for_each_width("encode_planes", "encode_planes.cu")
_GENERAL_ENCODERS = _for_each_width("encode_general", "encode_general.cu")
_BARE_WRITERS = _for_each_width("write_bare", "encode.cu")
_PLANES_BARE_WRITERS = _for_each_width("write_bare_planes", "encode_planes.cu")
_COUNTERS = _for_each_width("count", "count.cu")
_SEALER = NativeKernel("seal_frames", "assemble.cu")
LINEAR_CHOOSER = NativeKernel("choose_linear", "levels.cu")
ACCUMULATOR_CHOOSER = NativeKernel("choose_accumulator", "levels.cu")
ADAM_CHOOSER = NativeKernel("choose_adam", "levels.cu")
DELTA_CHOOSER = NativeKernel("choose_delta", "levels.cu")
PEAK_CHOOSER = NativeKernel("choose_peak", "levels.cu")
#: Of patches, sparse blocks against a base, and of hashes.
COUNT_DIFFERENCES = NativeKernel("count_differences", "patch_make.cu")
NOTE_ALL_DIFFERENCES = NativeKernel("note_all_differences", "patch_make.cu")
COUNT_CHANGE_SYMBOLS = NativeKernel("count_change_symbols", "patch_make.cu")
WRITE_SUB_STREAMS = NativeKernel("write_sub_streams", "patch_make.cu")
SEAL_SPARSE_BLOCKS = NativeKernel("seal_sparse_blocks", "patch_make.cu")
CHECK_SPARSE_BLOCKS = NativeKernel("check_sparse_blocks", "patch_apply.cu")
FIND_SUB_STREAMS = NativeKernel("find_sub_streams", "patch_apply.cu")
READ_SUB_STREAMS = NativeKernel("read_sub_streams", "patch_apply.cu")
COUNT_MEMBERS = NativeKernel("count_members", "patch_apply.cu")
PLACE_CHANGES = NativeKernel("place_changes", "patch_apply.cu")
APPLY_CHANGES = NativeKernel("apply_changes", "patch_apply.cu")
COPY_STORED_BLOCKS = NativeKernel("copy_stored_blocks", "patch_apply.cu")
SUM_WORDS = NativeKernel("sum_words", "hash.cu")
SUM_HASH_BLOCKS = NativeKernel("sum_hash_blocks", "hash.cu")
CHAIN_HASH_BLOCKS = NativeKernel("chain_hash_blocks", "hash.cu")
PATCH_KERNELS = (
    COUNT_DIFFERENCES, NOTE_ALL_DIFFERENCES, COUNT_CHANGE_SYMBOLS, WRITE_SUB_STREAMS, SEAL_SPARSE_BLOCKS,
    CHECK_SPARSE_BLOCKS, FIND_SUB_STREAMS, READ_SUB_STREAMS, COUNT_MEMBERS, PLACE_CHANGES, APPLY_CHANGES,
    COPY_STORED_BLOCKS, SUM_WORDS, SUM_HASH_BLOCKS, CHAIN_HASH_BLOCKS,
)  # fmt: skip
_PAIRS = (
    _DECODERS, _PLANES_DECODERS, _GENERAL_DECODERS, _ENCODERS, _PLANES_ENCODERS, _GENERAL_ENCODERS, _BARE_WRITERS,
    _PLANES_BARE_WRITERS, _COUNTERS,
)  # fmt: skip
ALL_KERNELS = (
    *(kernel for pair in _PAIRS for kernel in pair.values()), _SEALER,
    LINEAR_CHOOSER, ACCUMULATOR_CHOOSER, ADAM_CHOOSER, DELTA_CHOOSER, PEAK_CHOOSER, *PATCH_KERNELS,
)  # fmt: skip


class EncodingKernels(NamedTuple):
    """The kernels that make frames of tensors, in the order of their launches; docs/contributing/gpu.md has more.

    Attributes:
        encode: Takes :class:`launch_tables.Tensors`, ``ValueCoding``, ``EncodeTables`` and ``Output``; makes a block of
            each 2**14 values, where it belongs in its frame.
        seal: Takes the tables of frames to encode and to put together, ``ValueCoding``, ``Output``, the starts of
            preludes, which it writes, and results: of each block that must be written anew its word in the target, -1
            of the others; of each frame its bytes, 0 where there is none, and whether it has gone without its codebook.
        bare: Takes what ``encode`` does, and the blocks' words of ``seal``; writes the blocks anew of frames that have
            gone without their codebook.
    """

    encode: NativeKernel
    seal: NativeKernel
    bare: NativeKernel


def decoder_for(
    bits: int, head_bits: int, sign_in_head: bool, widths: Sequence[int], n_levels: int, has_columns: bool
) -> NativeKernel:
    """Return the kernel that decodes frames. It takes :class:`launch_tables.EncodedFrames`, ``ValueCoding``,
    ``DecodeTables``, where values go, and where the status of each block goes (:mod:`gcodec.kernels.block.header`).

    Args:
        bits: Bits of a value.
        sign_in_head: Whether the head's lowest bit is the sign.
        widths: Bits of the items of each plane.
        has_columns: Whether a frame has column references.
    """
    if head_bits != 8 or has_columns or sign_in_head:
        return _GENERAL_DECODERS[bits]
    if _is_whole(bits, widths, n_levels):
        return _DECODERS[bits]
    return (_PLANES_DECODERS if max(widths) <= 8 else _GENERAL_DECODERS)[bits]


def counter_for(bits: int) -> NativeKernel:
    """Return the kernel that counts the symbols of values of so many bits, for a fresh codebook.

    It takes :class:`launch_tables.Tensors`, the ``ValueCoding`` of a lossless frame, the mantissa bits that each level
    loses, window and center of :mod:`code_costs`, and a histogram of zeros for each tensor, uint32[n, 2 + n_levels *
    window], which it adds to.
    """
    return _COUNTERS[bits]


def encoders_for(bits: int, widths: Sequence[int], n_levels: int, lossy: bool, has_references: bool) -> EncodingKernels:
    """Return the kernels that encode tensors.

    Args:
        bits: Bits of a value, whose head has 8.
        widths: Bits of the items of each plane.
        lossy: Whether values are rounded.
        has_references: Whether heads are relative to the mean of their sub-stream; also true without a codebook.
    """
    if has_references and _is_whole(bits, widths, n_levels) and not lossy:
        return EncodingKernels(_ENCODERS[bits], _SEALER, _BARE_WRITERS[bits])
    narrow = has_references and max(widths) <= 8
    encode = (_PLANES_ENCODERS if narrow else _GENERAL_ENCODERS)[bits]
    return EncodingKernels(encode, _SEALER, _PLANES_BARE_WRITERS[bits])


def _is_whole(bits: int, widths: Sequence[int], n_levels: int) -> bool:
    """Return whether one plane has all bits of a value but those of its head, which are 8, whatever its level."""
    return tuple(widths) == (bits - 8,) and n_levels == 1
