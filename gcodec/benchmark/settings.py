"""The modes that benchmarks run gcodec in: arguments for ``encode``, and the values that must come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .. import codec
from ..format.ladders import MANTISSA_BITS, Ladder
from ..options import LITERAL_GCOMP
from ..truncation.reference import round_to_levels
from .bounds import NO_DROPS, Bound, order0_bound, paper_layout
from .inputs import BF16_PARAMETERS, LADDERS, Input, gather, joined_count
from .timing import CodecTask

LOSSLESS, NEAR_LOSSLESS, LITERAL = "lossless", "near-lossless", "GComp, literal"
#: Mantissa bits kept by the fixed mode of the benchmarks: for float32 as many as bfloat16 has.
FIXED_BITS = {"float32": 7, "bfloat16": 3, "float16": 5, "float64": 23}
_SPARE = 1 << 20  #: bytes beyond the largest frame with which the encoder writes in place


@dataclass(frozen=True, eq=False)
class Setting:
    """A mode on one input.

    Attributes:
        data: The input.
        mode: Name of the mode in tables.
        options: Arguments of :func:`gcodec.encode`, without the levels.
        result: uintW[n], the values that decoding must give, by the laws of ``gcodec.truncation.reference`` and not by
            the codec.
        key: Which of the input's levels are used, empty if none.
        ladder: Mantissa bits dropped per level.
    """

    data: Input
    mode: str
    options: dict[str, Any]
    result: np.ndarray
    key: str = ""
    ladder: Ladder = NO_DROPS

    @property
    def levels(self) -> np.ndarray | None:
        """Each value's level, uint8[n]; None if there is one level only."""
        return self.data.levels[self.key] if self.key else None

    def bound(self) -> Bound:
        """Return the local order-0 bound of the values as stored."""
        return order0_bound(self.result, self.data.type, self.levels, self.ladder)

    def task(self, threads: int = 1, reuse: bool = True) -> CodecTask:
        """Return encoding and decoding with this many threads, into memory that exists already if ``reuse``."""
        data = self.data
        encode_options: dict[str, Any] = {"dtype": data.dtype, "threads": threads, **self.options}
        decode_options: dict[str, Any] = {"threads": threads}
        if self.key:
            encode_options |= {"levels": self.levels, "ladder": self.ladder}
        if data.shapes:
            encode_options["shapes"] = data.shapes
        if reuse:
            out_bytes = codec.max_encoded_size(data.bits.size, data.dtype) + _SPARE
            encode_options["out"], decode_options["out"] = np.zeros(out_bytes, np.uint8), np.zeros_like(data.values)

        def encode() -> Any:
            return codec.encode(data.bits, **encode_options)

        def decode(encoded: Any) -> Any:
            return codec.decode(encoded, **decode_options)

        return CodecTask(encode, decode, self.result, exact=self.data.bits)


def lossless_setting(data: Input) -> Setting:
    """Return the lossless setting."""
    return Setting(data, LOSSLESS, {}, data.bits)


def near_lossless_setting(data: Input, ladder: str = "fine", suffix: str = "") -> Setting:
    """Return the setting by the optimizer's rule; the levels have been computed: ``data.levels[ladder + suffix]``."""
    steps, key = LADDERS[ladder][data.dtype], ladder + suffix
    result = round_to_levels(data.values, data.levels[key], steps).view(data.bits.dtype)
    return Setting(data, NEAR_LOSSLESS + suffix, {}, result, key, steps)


def fixed_bits_setting(data: Input, kept: int | None = None) -> Setting:
    """Return the setting of ``kept`` mantissa bits, by default those of ``FIXED_BITS``."""
    kept = FIXED_BITS[data.dtype] if kept is None else kept
    steps = Ladder((MANTISSA_BITS[data.dtype] - kept,))
    result = round_to_levels(data.values, 0, steps, prune=False).view(data.bits.dtype)
    return Setting(data, f"{kept} mantissa bits", {"mantissa_bits": kept}, result, "", steps)


def literal_gcomp_setting(data: Input) -> Setting:
    """Return GComp's setting as the paper has it, but in our format: its ladder, plain truncation, one codebook, an
    escape."""
    steps = LADDERS["paper"][data.dtype]
    result = round_to_levels(data.values, data.levels["paper"], steps, "truncate").view(data.bits.dtype)
    options = {"rounding": "truncate", "options": LITERAL_GCOMP}
    return Setting(data, LITERAL, options, result, "paper", steps)


def settings_for(data: Input) -> list[Setting]:
    """Return the settings of an input: lossless, near-lossless where there are levels, and fixed bits where the type
    has them."""
    settings = [lossless_setting(data)]
    suffixes = [suffix for suffix in ("", BF16_PARAMETERS) if f"fine{suffix}" in data.levels]
    settings += [near_lossless_setting(data, suffix=suffix) for suffix in suffixes]
    if data.dtype in FIXED_BITS:
        settings.append(fixed_bits_setting(data))
    return settings


def join_settings(parts: Sequence[Setting], data: Input, at_least: int) -> Setting:
    """Return a mode's settings on several inputs as that on their :func:`gcodec.benchmark.inputs.joined`, which is
    ``data``."""
    result = gather([part.result for part in parts], joined_count([part.data for part in parts], at_least))
    return replace(parts[0], data=data, result=result)


def paper_bound(setting: Setting) -> Bound | None:
    """Return the GComp paper's layout of the same gradient at the same error rule; None for a mode without one."""
    data, mode = setting.data, setting.mode
    if not mode.startswith(NEAR_LOSSLESS):
        return None
    levels = data.levels["paper" + mode.removeprefix(NEAR_LOSSLESS)]
    return paper_layout(data.bits, data.type, levels, LADDERS["paper"][data.dtype])
