"""The table of the laws of the CUDA path, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gcodec
from gcodec import EncoderOptions
from gcodec.dtypes import DType
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.codebook import Codebook
from gcodec.format.modes import BitLayout
from gcodec.frame.encode import encode_values
from gcodec.plan.request import EncodeRequest
from gcodec.tensors import Values, kernel_view
from tests.gpu.cuda_memory import HostMemory
from tests.support import laws
from tests.support.cases import CASES, Bits, Case

TYPES = ("float32", "bfloat16", "float16")
Law = Callable[[HostMemory, bool], None]
LAWS: dict[str, Law] = {}
CODING = EncoderOptions(exact_if_smaller=False)  # as devices encode


def law(function: Law) -> Law:
    """Register a law that either process runs; its second argument says whether it is quick, and there is time for all
    cases."""
    LAWS[function.__name__] = function
    return function


def cases(quick: bool, slow: tuple[str, ...], most: int) -> Iterator[Case]:
    """Yield all arrays of the types that devices code, or where that takes long the named ones, cut short."""
    types = TYPES if quick else TYPES[:2]
    for case in CASES:
        if case.dtype in types and (quick or case.name in slow):
            if not quick:
                case = Case(case.dtype, case.name)
                case.__dict__["bits"] = case.bits.reshape(-1)[:most].copy()
            yield case


def check_same_bytes(
    memory: HostMemory,
    arrays: list[Bits],
    dtype: DType,
    bit_layout: BitLayout,
    levels: list[Any] | None = None,
    nearest: bool = True,
    codebook: Any = None,
) -> list[bytes]:
    """Check that frames of a batch are those that the host's kernels make by the same plan, byte for byte."""
    from gcodec.gpu import encoder

    graded = levels or [None] * len(arrays)
    sources = [encoder.GpuSource(a.reshape(-1), a.size, a.shape, own) for a, own in zip(arrays, graded, strict=True)]
    if codebook is None:
        codebook = encoder.fit_codebook(memory, sources, dtype, bit_layout, CODING)
    waited = memory.waited
    batch = encoder.encode(memory, sources, dtype, bit_layout, nearest, codebook, 0)
    assert memory.waited == waited, "encoding with a codebook waited for the device"
    frames = [bytes(frame) for frame in batch.frames]
    for array, own, frame in zip(arrays, graded, frames, strict=True):
        bits = kernel_view(array.reshape(-1))
        plan = encoder.plan_of(dtype, -(-array.size >> 14), codebook)
        empty = np.zeros(0, np.uint8)
        values = Values(bits, dtype, array.shape, 0)
        request = EncodeRequest(values, bit_layout, empty if own is None else own, CODING, nearest, 1)
        expected = encode_values(request, plan)
        assert frame == expected, f"{dtype.name}: {len(frame)} bytes, {len(expected)} expected, {bit_layout}"
    return frames


def outcome(memory: HostMemory, frame: bytes, known: Any = None, books: Any = None) -> Any:
    """Return what the device makes of a frame: its values' bits, or the kind of refusal."""
    from gcodec.gpu import batches

    try:
        (result,) = batches.decode(memory, [frame], books or [])
    except gcodec.GcodecError as error:
        return laws.kind_of(error)
    return result.reshape(-1)


def books_of(known: Any) -> list[Codebook | ChangeCodebook]:
    """Return codebooks from the records that a frame names."""
    books = [laws.book_of(record, digest) for (_, digest), record in known.items()]
    return [book for book in books if book is not None]


#: Arrays for the simulator, which shows that threads wait for each other. Others differ in their values only, which the
#: kernels of one thread code.
SLOW_CASES = ("every corner of the type", "one value", "runs of equal sub-streams")
