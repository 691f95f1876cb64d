"""The table of the laws of the CUDA path, and what several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from gcodec import EncoderOptions
from gcodec.format.change_codebook import ChangeCodebook
from gcodec.format.codebook import Codebook
from tests.gpu.cuda_memory import HostMemory
from tests.support import laws
from tests.support.cases import CASES, Case

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


def books_of(known: Any) -> list[Codebook | ChangeCodebook]:
    """Return codebooks from the records that a frame names."""
    books = [laws.book_of(record, digest) for (_, digest), record in known.items()]
    return [book for book in books if book is not None]
