"""The table of the laws of the kernels in CUDA C++, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.dtypes import DType
from gcodec.format import modes as bit_layouts
from gcodec.format import shipped
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.codebook import Codebook
from gcodec.format.levels import Level
from gcodec.format.modes import FIXED, BitLayout
from gcodec.format.prelude import prelude_size
from gcodec.frame.encode import encode_values
from gcodec.gpu import batches, encoder
from gcodec.gpu.encoder import GpuSource, SharedCodebook, plan_of
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from tests.gpu.host_library import HostThreads
from tests.support import laws
from tests.support.bit_patterns import Bits
from tests.support.cases import CASES, Case

TYPES = ("float32", "bfloat16", "float16")
CODING = EncoderOptions(exact_if_smaller=False)  # as devices encode
#: Ladders whose steps differ, some of them wide.
UNEVEN = {"float32": Ladder((1, 4, 11)), "bfloat16": Ladder((2, 7)), "float16": Ladder((0, 5, 10))}
Law = Callable[[HostThreads, int], None]
LAWS: list[Law] = []


def law(function: Law) -> Law:
    """Register a law; its second argument says how often to try what is random."""
    LAWS.append(function)
    return function


def numbered_cases(effort: int) -> list[tuple[int, Case]]:
    """Return arrays of every kind in all types, numbered; for little effort each is in one of the types of 16 bits, by
    turns, for these have the same kernels."""
    names = list(dict.fromkeys(case.name for case in CASES))
    wide = [{"float32", ("bfloat16", "float16")[number % 2]} for number in range(len(names))]
    types = {name: set(TYPES) if effort > 1 else some for name, some in zip(names, wide, strict=True)}
    return list(enumerate(case for case in CASES if case.dtype in types[case.name]))


def memory_of(library: Any) -> HostThreads:
    """Return a memory whose kernels are this library's."""
    return HostThreads(library, {"uint16": "bfloat16", "uint32": "float32"})


def placed(bits: Bits, begin: int) -> Bits:
    """Return a copy of an array that begins so many values after a multiple of 16 bytes."""
    room = np.empty(bits.size + 64, bits.dtype)
    first = -(room.__array_interface__["data"][0] // bits.itemsize) % 16 + begin
    result = room[first : first + bits.size]
    result[:] = bits
    return result


def books_of(known: Any) -> list[Codebook | ChangeCodebook]:
    """Return codebooks from the records that a frame names."""
    books = [laws.book_of(record, digest) for (_, digest), record in known.items()]
    return [book for book in books if book is not None]


def outcome(memory: HostThreads, frame: bytes, books: Any = ()) -> Any:
    """Return what the device makes of a frame: its values' bits, or the kind of refusal."""
    try:
        (result,) = batches.begin_decoding(memory, [frame], books).check()
    except gcodec.GcodecError as error:
        return laws.kind_of(error)
    return result.reshape(-1)


def check(memory: HostThreads, frame: bytes, expected: Any, books: Any = ()) -> None:
    """Check that a frame decodes to these bits, or is refused by this kind of error."""
    result = outcome(memory, frame, books)
    assert laws.same_outcome(result, expected), (str(result)[:80], str(expected)[:80])


def narrow_layouts(dtype: DType) -> list[BitLayout]:
    """Return layouts of a type whose planes have at most 8 bits: of few and many levels, of few and many bits."""
    m = dtype.mantissa_bits
    ladders = [
        FINE_LADDER[dtype.name],
        PAPER_LADDER[dtype.name],
        Ladder((m - 1,)),
        Ladder((1, m // 2, m)),
        Ladder(tuple(range(max(0, m - 7), m + 1))),
    ]
    layouts = [bit_layouts.ladder(dtype, ladder) for ladder in ladders]
    layouts += [bit_layouts.fixed(dtype, kept) for kept in {1, 3, 5, m // 2, min(m - 1, 15)}]
    return [layout for layout in layouts if max(layout.widths) <= 8]


def wide_layouts(dtype: DType) -> list[BitLayout]:
    """Return layouts of a type with a plane that has more than 8 bits, or that leave whole planes without an owner."""
    ladders = [UNEVEN[dtype.name], Ladder((0,)), Ladder((3,)), Ladder((0, dtype.mantissa_bits))]
    layouts = [bit_layouts.ladder(dtype, ladder) for ladder in ladders]
    by_widths = {24: ((16, 8), (8, 16), (23,), (9, 9), (56, 24, 12)), 8: ((1, 5), (40, 8), (9, 7, 1))}
    for widths in by_widths[dtype.tail_bits]:
        own = [p for p, width in enumerate(widths) if sum(widths[: p + 1]) <= dtype.tail_bits]
        own = own or [p for p, width in enumerate(widths) if width <= dtype.tail_bits][:1]
        mask, drop = sum(1 << p for p in own), dtype.tail_bits - sum(widths[p] for p in own)
        layouts.append(BitLayout(FIXED, widths, (Level(drop, mask),), (drop,), drop > 0, False))
    return layouts


def as_a_device(bits: Bits, dtype: DType) -> bytes:
    """Return the frame that a device makes of an array with a shipped codebook."""
    _, book = next(iter(shipped.fitting(dtype.name, 1)))
    plan = plan_of(dtype, -(-bits.size >> 14), SharedCodebook(book, book.record, True))
    values = Values(bits, dtype, bits.shape, 0)
    request = EncodeRequest(values, bit_layouts.lossless(dtype), np.zeros(0, np.uint8), CODING, True, 1)
    return bytes(encode_values(request, plan))


def check_same_bytes(
    memory: HostThreads,
    arrays: list[Bits],
    dtype: DType,
    bit_layout: BitLayout,
    levels: list[Any] | None = None,
    nearest: bool = True,
    codebook: SharedCodebook | None = None,
) -> list[bytes]:
    """Check that frames of a batch are those that the host's kernels make by the same plan, byte for byte; return them.

    Without a codebook, all blocks are constant or raw. Encoding waits for nothing, reading preludes and frames once.
    """
    graded = levels or [None] * len(arrays)
    sources = [GpuSource(a.reshape(-1), a.size, a.shape, own) for a, own in zip(arrays, graded, strict=True)]
    waited = memory.waited
    batch = encoder.encode(memory, sources, dtype, bit_layout, nearest, codebook, 0)
    assert memory.waited == waited, "encoding with a codebook waited for the device"
    preludes, frames = batch.preludes, [bytes(frame) for frame in batch.frames]
    assert memory.waited == waited + 1
    for array, own, frame in zip(arrays, graded, frames, strict=True):
        plan = plan_of(dtype, -(-array.size >> 14), codebook)
        values = Values(kernel_view(array.reshape(-1)), dtype, array.shape, 0)
        request = EncodeRequest(values, bit_layout, np.zeros(0, np.uint8) if own is None else own, CODING, nearest, 1)
        expected = encode_values(request, plan)
        assert frame == expected, f"{dtype.name}: {len(frame)} bytes, {len(expected)} expected, {bit_layout}"
    for prelude, frame in zip(preludes, frames, strict=True):
        assert frame.startswith(bytes(prelude)) and len(prelude) == prelude_size(prelude, len(frame))[0]
    return frames


def fitted(
    memory: HostThreads, arrays: list[Bits], dtype: DType, bit_layout: BitLayout, levels: list[Any] | None = None
) -> SharedCodebook | None:
    """Return the codebook that a device fits to arrays."""
    graded = levels or [None] * len(arrays)
    sources = [GpuSource(a.reshape(-1), a.size, a.shape, own) for a, own in zip(arrays, graded, strict=True)]
    return encoder.fit_codebook(memory, sources, dtype, bit_layout, CODING)
