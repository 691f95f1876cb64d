"""The request to encode an array, gathered once: every later stage takes it instead of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..format.codebook import Codebook
from ..format.columns import ColumnReferences
from ..format.modes import BitLayout
from ..options import EncoderOptions
from ..tensors import Values

NO_LEVELS = np.zeros(0, np.uint8)  #: of an array whose values are all of one level


class FixedCodebooks(NamedTuple):
    """Codebooks to choose from instead of making new ones.

    Attributes:
        codebooks: The codebooks, all for the same value type and levels.
        records: The bytes that stand for each of them in a frame.
        references: True if they are meant for heads relative to each sub-stream's mean, not to each block's.
    """

    codebooks: tuple[Codebook, ...]
    records: tuple[bytes, ...]
    references: bool


@lru_cache(16)
def of_one_codebook(options: EncoderOptions) -> EncoderOptions:
    """Return the options by which what lies inside of sparse and indexed blocks is coded."""
    return replace(options, max_codebooks=1, prediction=False, columns=False, wide_heads=False)


class EncodeRequest(NamedTuple):
    """An array to be encoded as one frame, and how.

    Attributes:
        values: The array as bits, with its type and shape.
        bit_layout: Which bits of a value are kept, and at how many levels.
        levels: uint8[n_values], the level of each value; empty where there is one level.
        options: How codebooks are made, and what else the encoder may use.
        nearest: True to round to nearest even, False to truncate; lossless encoding does not ask.
        threads: Threads to use at most, None for all cores.
        fixed: Codebooks to choose from, or None to make new ones.
        shapes: Shapes of the tensors that the array holds end to end; empty for one, of the shape of ``values``.
        base: uintW[n_values], an earlier array of this kind that may be referred to, or None.
        standalone: True if the frame is not one of several that share codebooks.
        one_base: A base to try for all blocks, as suits numbers that are no sizes, such as indices; or None.
        columns: Column references that suit the values with the usual head, if these were looked for; else None.
    """

    values: Values
    bit_layout: BitLayout
    levels: np.ndarray
    options: EncoderOptions
    nearest: bool = True
    threads: int | None = None
    fixed: FixedCodebooks | None = None
    shapes: Sequence[Sequence[int]] = ()
    base: np.ndarray | None = None
    standalone: bool = False
    one_base: int | None = None
    columns: tuple[ColumnReferences, ...] | None = None
