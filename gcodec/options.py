"""How codebooks are made, as a caller may set it."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidArgument
from .format.ladders import FINE_LADDER, PAPER_LADDER
from .format.prelude import MAX_CODEBOOKS

ROUNDINGS = ("nearest", "truncate")
LADDERS = {"fine": FINE_LADDER, "paper": PAPER_LADDER}


@dataclass(frozen=True)
class EncoderOptions:
    """How codebooks are made, and what near-lossless encoding does where it is not told. The defaults are the best
    known; :data:`LITERAL_GCOMP` follows the paper.

    ``max_length``: longest code, 2 ... 12 bits; ``escape_threshold``: GComp's n_theta, the longest native Huffman code
    that is kept, None for no such rule; ``max_codebooks``: most codebooks in a frame, 1 ... 255; ``references``:
    allow a reference head per sub-stream; ``ladder``: which levels near-lossless encoding uses where the caller names
    none, "fine" or "paper"; ``rounding``: "nearest" (even) or "truncate", likewise; ``prediction``: allow lossless
    blocks to be predicted from a template row; ``wide_heads``: allow lossless bfloat16 a mantissa bit in the head;
    ``columns``: allow column references.
    """

    max_length: int = 12
    escape_threshold: int | None = None
    max_codebooks: int = 8
    references: bool = True
    ladder: str = "fine"
    rounding: str = "nearest"
    prediction: bool = True
    wide_heads: bool = True
    columns: bool = True

    def __post_init__(self) -> None:
        if self.ladder not in LADDERS or self.rounding not in ROUNDINGS:
            raise InvalidArgument(
                f"ladder={self.ladder!r}, rounding={self.rounding!r}; one of {list(LADDERS)}, {ROUNDINGS}"
            )
        if self.escape_threshold is not None and self.escape_threshold < 1:
            raise InvalidArgument(f"escape_threshold={self.escape_threshold} is not positive")
        if not 1 <= self.max_codebooks <= MAX_CODEBOOKS:
            raise InvalidArgument(f"max_codebooks={self.max_codebooks} is not in 1 ... {MAX_CODEBOOKS}")
        if not 2 <= self.max_length <= 12:
            raise InvalidArgument(f"max_length={self.max_length} is not in 2 ... 12")


#: GComp to the letter: one codebook for everything, an escape for codes beyond n_theta = 11 bits (our choice: the paper
#: gives none), the four-level ladder, plain truncation.
LITERAL_GCOMP = EncoderOptions(
    max_length=11,
    escape_threshold=11,
    max_codebooks=1,
    references=False,
    ladder="paper",
    rounding="truncate",
    prediction=False,
    wide_heads=False,
    columns=False,
)
