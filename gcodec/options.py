"""The options of an encoder: how codebooks are made, and the defaults of near-lossless encoding."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import InvalidArgument, check_choice
from .format.ladders import FINE_LADDER, PAPER_LADDER
from .format.prelude import MAX_CODEBOOKS

ROUNDINGS = ("nearest", "truncate")
LADDERS = {"fine": FINE_LADDER, "paper": PAPER_LADDER}


@dataclass(frozen=True)
class EncoderOptions:
    """The options that say how an encoder makes codebooks, and what near-lossless encoding does where it is not told.

    The defaults are the best known; :data:`LITERAL_GCOMP` follows the paper.

    Attributes:
        max_length: Length of the longest code, 2 ... 12 bits.
        escape_threshold: GComp's n_theta, the longest native Huffman code that is kept; None for no such rule.
        max_codebooks: Max codebooks in a frame, 1 ... 255.
        references: Allow a reference head for each sub-stream.
        ladder: The levels of near-lossless encoding where the caller gives none: "fine" or "paper".
        rounding: The rounding where the caller names none: "nearest" (ties to even) or "truncate".
        prediction: Allow lossless blocks to be predicted from a template row.
        wide_heads: Allow lossless bfloat16 and float32 a mantissa bit in the head.
        columns: Allow column references.

    Raises:
        InvalidArgument: An option is outside its values.
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
        check_choice("ladder", self.ladder, LADDERS)
        check_choice("rounding", self.rounding, ROUNDINGS)
        if self.escape_threshold is not None and self.escape_threshold < 1:
            raise InvalidArgument(f"escape_threshold must be at least 1, not {self.escape_threshold}")
        if not 1 <= self.max_codebooks <= MAX_CODEBOOKS:
            raise InvalidArgument(f"max_codebooks must be in 1 ... {MAX_CODEBOOKS}, not {self.max_codebooks}")
        if not 2 <= self.max_length <= 12:
            raise InvalidArgument(f"max_length must be in 2 ... 12, not {self.max_length}")


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
