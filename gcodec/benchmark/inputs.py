"""Inputs to measure: values as flat arrays with their levels, and those of recorded dumps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import numpy as np

from ..dtypes import BY_NAME, DType
from ..errors import InvalidArgument
from ..format.ladders import FINE_LADDER, PAPER_LADDER
from ..recorder import PARAM, Dump
from ..truncation.optimizers import levels_for, view_from_dump

GRADIENTS, PARAMETERS, STATE = "gradients", "parameters", "state"
LADDERS = {"fine": FINE_LADDER, "paper": PAPER_LADDER}
REPEATABLE = 8 << 20  #: bytes; repetitions of so much are farther apart than the peers look back
_SLICE = 1 << 18  #: values taken at a place
BF16_PARAMETERS = ", bf16 parameters"  #: after a ladder's name: levels for parameters that are bfloat16 themselves


@dataclass(frozen=True, eq=False)
class Input:
    """Values to compress.

    Attributes:
        name: What they are, such as ``"cnn step 100 gradients"``.
        dtype: The codec's name of their type.
        bits: Their bits, row-major, tensor after tensor: uintW[n].
        levels: Ladder name (``LADDERS``, perhaps with ``BF16_PARAMETERS``) to the level of every value, uint8[n]; empty
            without an optimizer's rule.
        model, step, group: Where they were recorded; empty and 0 for other files.
        level_seconds: Time that the fine ladder's levels took, on one core.
        shapes: Those of the tensors that ``bits`` holds end to end; empty where they are not known.
    """

    name: str
    dtype: str
    bits: np.ndarray
    levels: dict[str, np.ndarray] = field(default_factory=dict)
    model: str = ""
    step: int = 0
    group: str = ""
    level_seconds: float = 0.0
    shapes: tuple[tuple[int, ...], ...] = ()

    @property
    def type(self) -> DType:
        """The codec's description of the type."""
        return BY_NAME[self.dtype]

    @property
    def values(self) -> np.ndarray:
        """The values as numpy has them: of their type, or (bfloat16, float8) as bits."""
        return self.bits.view(self.dtype) if BY_NAME[self.dtype].in_numpy else self.bits

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.bits.nbytes


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Return float32 values as the bits of another type, rounded to nearest even: uintW."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if dtype == "bfloat16":
        word = values.view(np.uint32)
        rounded = (word + np.uint32(0x7FFF) + (word >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(values), word >> np.uint32(16) | np.uint32(64), rounded).astype(np.uint16)
    if dtype not in ("float16", "float32"):
        raise InvalidArgument(f"no cast from float32 to {dtype}")
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False).view(BY_NAME[dtype].uint)


def gradients(
    dump: Dump, model: str, dtype: str = "float32", names: Sequence[str] | None = None, with_levels: bool = True
) -> Input:
    """Return the gradients of a dump (or of its parameters ``names``), with the levels their optimizer's rule gives
    them.

    ``dtype``: a cast of the gradients; parameters and state stay as recorded, as with mixed precision. float16
    gradients are scaled by a power of two first, as a loss scaler does; bfloat16 ones have a second set of levels, as
    if the parameters were bfloat16 too.
    """
    names = dump.names if names is None else names
    exact = [np.asarray(dump.grad(name), dtype=np.float32).reshape(-1) for name in names]
    scale = _loss_scale(exact) if dtype == "float16" else 1.0
    bits = [cast(gradient * np.float32(scale), dtype) for gradient in exact]
    levels: dict[str, np.ndarray] = {}
    seconds = 0.0
    for ladder in LADDERS if with_levels else ():
        for suffix in ("", BF16_PARAMETERS) if dtype == "bfloat16" else ("",):
            calls = choices_of(dump, names, bits, dtype, ladder, scale, bool(suffix))
            parts = [call() for call in calls]  # reads and compiles
            if not levels:
                seconds = min(_seconds_of(calls, parts) for _ in range(3))
            levels[ladder + suffix] = np.concatenate([part.reshape(-1) for part in parts])
    label = f"{model} step {dump.step} {GRADIENTS}"
    shapes = tuple(np.shape(dump.grad(name)) for name in names)
    return Input(label, dtype, np.concatenate(bits), levels, model, dump.step, GRADIENTS, seconds, shapes)


def _loss_scale(parts: Sequence[np.ndarray]) -> float:
    """Return the usual 2**16, or the largest power of two that keeps the largest gradient below half of float16's
    range."""
    return min(2.0**16, _power_below(2.0**15, parts))


def _power_below(limit: float, parts: Sequence[np.ndarray]) -> float:
    """Return the largest power of two that takes no value beyond ``limit``; 1 where there is none."""
    largest = max((float(np.abs(part).max(initial=0)) for part in parts), default=0.0)
    return 2.0 ** math.floor(math.log2(limit / largest)) if 0 < largest < math.inf else 1.0


def choices_of(
    dump: Dump,
    names: Sequence[str],
    bits: Sequence[np.ndarray],
    dtype: str,
    ladder: str,
    loss_scale: float = 1.0,
    narrow: bool = False,
) -> list[Callable[..., np.ndarray]]:
    """Return what chooses the levels of each parameter's gradient: ``levels_for`` but for ``out``.

    ``narrow``: with the parameters rounded to bfloat16.
    """
    return [
        partial(
            levels_for,
            view_from_dump(dump.optimizer, dump.hyper(name), dump.state(name)),
            cast(dump.param(name), "bfloat16") if narrow else dump.param(name),
            word if dtype == "bfloat16" else word.view(dtype),
            ladder=LADDERS[ladder][dtype],
            loss_scale=loss_scale,
        )
        for name, word in zip(names, bits, strict=True)
    ]


def _seconds_of(calls: Sequence[Callable[..., np.ndarray]], parts: Sequence[np.ndarray]) -> float:
    """Return the seconds that choosing all levels takes, in turn, into memory that exists."""
    start = perf_counter()
    for call, part in zip(calls, parts, strict=True):
        call(out=part)
    return perf_counter() - start


def tensors(dump: Dump, model: str, group: str, dtype: str = "float32") -> Input:
    """Return the parameters of a dump, or its optimizer state without scalars, cast to ``dtype``.

    float16 state is scaled first, or second moments would vanish: each kind (``exp_avg`` ...) by the power of two that
    puts its largest value just below half of float16's range.
    """
    kinds = (PARAM,) if group == PARAMETERS else tuple(kind for kind in dump.state_kinds if kind != "step")
    keys = [key for kind in kinds for key in (f"{kind}/{name}" for name in dump.names) if key in dump.keys]
    if not keys:
        raise InvalidArgument(f"{dump.path} must hold tensors of the group {group!r}, but has none")
    arrays = {key: np.asarray(dump.tensor(key), dtype=np.float32) for key in keys}
    scales = dict.fromkeys(kinds, 1.0)
    if group == STATE and dtype == "float16":
        scales = {
            kind: _power_below(2.0**15, [arrays[key] for key in keys if key.startswith(f"{kind}/")]) for kind in kinds
        }
    bits = np.concatenate(
        [cast(array.reshape(-1) * np.float32(scales[key.partition("/")[0]]), dtype) for key, array in arrays.items()]
    )
    shapes = tuple(array.shape for array in arrays.values())
    return Input(f"{model} step {dump.step} {group}", dtype, bits, {}, model, dump.step, group, shapes=shapes)


def joined(parts: Sequence[Input], name: str, at_least: int = 0) -> Input:
    """Inputs of one type end to end, repeated or thinned out to about ``at_least`` bytes (:func:`gather`) to be timed.

    Levels are kept if all have them. 0 bytes means all of it, once.
    """
    if len({part.dtype for part in parts}) != 1:
        types = sorted({part.dtype for part in parts})
        raise InvalidArgument(f"inputs to join must be at least one, and of one dtype, not of {types}")
    count = joined_count(parts, at_least)
    ladders = set.intersection(*(set(part.levels) for part in parts))
    levels = {ladder: gather([part.levels[ladder] for part in parts], count) for ladder in ladders}
    bits, shapes = gather([part.bits for part in parts], count), [shape for part in parts for shape in part.shapes]
    repeats, rest = divmod(bits.size, sum(part.bits.size for part in parts) or 1)
    joined_shapes = tuple(shapes) * repeats if all(part.shapes for part in parts) and not rest else ()
    return replace(parts[0], name=name, bits=bits, levels=levels, shapes=joined_shapes)


def joined_count(parts: Sequence[Input], at_least: int) -> int:
    """Return the ``count`` for :func:`gather`. Small inputs are not repeated: an LZ codec would find the
    repetitions."""
    enough = sum(part.nbytes for part in parts) >= REPEATABLE
    return at_least // parts[0].bits.itemsize if enough else 0


def gather(arrays: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return about ``count`` values of ``arrays``, end to end; which ones depends on the lengths only.

    Fewer values are repeated as a whole until there are enough; of more, evenly spaced slices are taken.
    """
    whole = np.concatenate(arrays)
    if not count or not whole.size:
        return whole
    if whole.size <= count:
        return np.tile(whole, -(-count // whole.size))
    slices = max(1, count // _SLICE)
    starts = np.linspace(0, whole.size - min(_SLICE, whole.size), slices).astype(np.int64)
    return np.concatenate([whole[start : start + _SLICE] for start in starts])
