"""The modes to encode arrays in, and what decoding must return in each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gcodec import FINE_LADDER, LITERAL_GCOMP, PAPER_LADDER, EncoderOptions, Ladder
from gcodec.truncation.reference import round_to_levels
from tests.support.bit_patterns import BITS_ONLY, KINDS, Bits, infinity
from tests.support.cases import CASES, Case
from tests.support.covering import covering
from tests.support.reference import DType


@dataclass(frozen=True)
class Mode:
    """A way to encode. ``options`` go to ``encode``; with a ladder every value gets a level, at random."""

    name: str
    options: dict[str, Any]

    def __str__(self) -> str:
        return self.name

    def arguments(self, which: Case) -> dict[str, Any]:
        """Return all keywords of ``encode`` for a case."""
        options = which.options | self.options
        if "ladder" in options:
            options["levels"] = levels_at_random(which.bits, len(options["ladder"].drops))
        return options


def levels_at_random(bits: Bits, n_levels: int) -> npt.NDArray[np.uint8]:
    """Draw levels in runs and one by one, infinities and NaNs included; of the shape of ``bits``."""
    rng = np.random.default_rng(bits.size + n_levels)
    single = rng.integers(0, n_levels, bits.size, np.uint8)
    runs = np.repeat(rng.integers(0, n_levels, bits.size // 50 + 1, np.uint8), 50)[: bits.size]
    return np.where(rng.random(bits.size) < 0.3, single, runs).astype(np.uint8).reshape(bits.shape)


LOSSLESS = Mode("lossless", {})


@cache
def modes(dtype: str) -> tuple[Mode, ...]:
    """Return all modes of a type."""
    kind = KINDS[dtype]
    codings = [
        LOSSLESS,
        Mode("lossless with GComp's code", {"options": LITERAL_GCOMP}),
        Mode("lossless with short codes", {"options": EncoderOptions(max_length=4, max_codebooks=2, references=False)}),
    ]
    if kind.T == 0:
        return tuple(codings)
    half, M = kind.M // 2, kind.M
    ladders = {
        "fine ladder": FINE_LADDER[dtype],
        "paper's ladder": PAPER_LADDER[dtype],
        "uneven ladder": Ladder((1, M // 3 + 1, M - 1, M)),
        "ladder of one level": Ladder((half,)),
        "longest ladder": Ladder(tuple(range(max(0, M - 14), M + 1))),
    }
    lossy = [
        Mode("1 mantissa bit", {"mantissa_bits": 1}),
        Mode("half the mantissa", {"mantissa_bits": half}),
        Mode("half the mantissa, truncated", {"mantissa_bits": half, "rounding": "truncate"}),
        Mode("all mantissa bits but one", {"mantissa_bits": M - 1}),
        Mode("all mantissa bits", {"mantissa_bits": M}),
        *(Mode(name, {"ladder": ladder}) for name, ladder in ladders.items()),
        Mode("fine ladder, truncated", {"ladder": FINE_LADDER[dtype], "rounding": "truncate"}),
        Mode("GComp", {"ladder": PAPER_LADDER[dtype], "rounding": "truncate", "options": LITERAL_GCOMP}),
    ]
    return (*codings, *lossy)


def promised(kind: DType, bits: Bits, options: dict[str, Any]) -> Bits:
    """Return what decoding must return for values encoded with these keywords
    (``gcodec.truncation.reference.round_to_levels``)."""
    coding = options.get("options") or EncoderOptions()
    rounding: Any = options.get("rounding") or coding.rounding
    if options.get("mantissa_bits") is not None:
        ladder, levels, prune = Ladder((kind.M - options["mantissa_bits"],)), np.zeros(bits.shape, np.uint8), False
        if ladder.drops == (0,):
            return bits
    elif options.get("levels") is not None:
        usual = PAPER_LADDER if coding.ladder == "paper" else FINE_LADDER
        ladder, levels, prune = options.get("ladder") or usual[kind.name], options["levels"], True
    else:
        return bits
    finite = (bits & kind.container.type((1 << kind.W - 1) - 1)) < infinity(kind)
    values = bits if kind.name in BITS_ONLY else bits.view(kind.name)
    return round_to_levels(values, np.where(finite, levels, 0), ladder, rounding, prune).view(kind.container)


every_case = pytest.mark.parametrize("which", CASES, ids=str)
#: Every case in some of its type's modes: each mode meets each array and each type, each array each type, but not all
#: three meet.
CASES_AND_MODES: list[tuple[Case, Mode]] = covering(
    [(which, mode) for which in CASES for mode in modes(which.dtype)],
    lambda pair: (pair[0].dtype, pair[0].name, pair[1].name),
)
case_and_mode = pytest.mark.parametrize(("which", "mode"), CASES_AND_MODES, ids=str)
