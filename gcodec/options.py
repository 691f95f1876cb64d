"""The options of an encoder: how codebooks are made, and which bits of values are kept, on the host and on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .dtypes import DType
from .errors import InvalidArgument, check_choice, check_field_types
from .format import modes as bit_layouts
from .format.ladders import FINE_LADDER, PAPER_LADDER, Ladder
from .format.limits import MAX_CODEBOOKS
from .format.modes import BitLayout

ROUNDINGS = ("nearest", "truncate")
LADDERS = {"fine": FINE_LADDER, "paper": PAPER_LADDER}


@dataclass(frozen=True)
class EncoderOptions:
    """The options that say how an encoder makes codebooks, and the defaults of near-lossless encoding.

    The default values are the best known ones; :data:`LITERAL_GCOMP` follows the paper.

    Attributes:
        max_length: Length of the longest code, 2 ... 12 bits.
        escape_threshold: GComp's n_theta, the longest native Huffman code that is kept; None for no such rule.
        max_codebooks: Max codebooks in a frame, 1 ... 255.
        references: Allow a reference head for each sub-stream.
        ladder: The levels of near-lossless encoding where the caller gives none: "fine" or "paper".
        rounding: The rounding where the caller names none: "nearest" (ties to even) or "truncate".
        prediction: Allow lossless blocks to be predicted from a template row.
        wide_heads: Allow lossless values more than the exponent in the head: the sign, or mantissa bits.
        columns: Allow column references.
        sparse: Allow frames that say which values differ from a base, or from zero.
        indexed: Allow lossless frames of few values, or of few factors times the scales of tensors, rows or groups, as
            quantized weights are, to name each value by its place in a dictionary.
        exact_if_smaller: Allow modes that may drop bits to keep all of some values or of all, where that is smaller.
        smallest: Try more ways to code an array, and take the smallest, however slow it is to encode and decode.

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
    sparse: bool = True
    indexed: bool = True
    exact_if_smaller: bool = True
    smallest: bool = False

    def __post_init__(self) -> None:
        check_choice("ladder", self.ladder, LADDERS)
        check_choice("rounding", self.rounding, ROUNDINGS)
        check_field_types(self)
        if self.escape_threshold is not None and self.escape_threshold < 1:
            raise InvalidArgument(f"escape_threshold must be at least 1, not {self.escape_threshold}")
        if not 1 <= self.max_codebooks <= MAX_CODEBOOKS:
            raise InvalidArgument(f"max_codebooks must be in 1 ... {MAX_CODEBOOKS}, not {self.max_codebooks}")
        if not 2 <= self.max_length <= 12:
            raise InvalidArgument(f"max_length must be in 2 ... 12, not {self.max_length}")

    @cached_property
    def _hash(self) -> int:
        # Of numbers alone, whose hashes are the same in the next process: copies take this along.
        switches = self.references, self.prediction, self.wide_heads, self.columns, self.sparse, self.indexed
        return hash((self.max_length, self.escape_threshold or 0, self.max_codebooks, *switches, self.smallest))

    def __hash__(self) -> int:
        """Return the hash, kept: options are the keys of what is kept from call to call."""
        return self._hash


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
    sparse=False,
    indexed=False,
    exact_if_smaller=False,
)


DEFAULT_OPTIONS = EncoderOptions()


def checked_options(options: EncoderOptions | None) -> EncoderOptions:
    """Return a caller's options, the defaults in place of None. Raises InvalidArgument for anything else."""
    if options is None:
        return DEFAULT_OPTIONS
    if not isinstance(options, EncoderOptions):
        raise InvalidArgument(f"options must be a gcodec.EncoderOptions, not {options!r}")
    return options


class Precision(NamedTuple):
    """The arguments of ``gcodec.encode`` that say which bits of values are kept, as the caller gave them.

    The checks of these arguments are here, once for arrays on the host and for tensors on a device.

    Attributes:
        mantissa_bits: Mantissa bits to keep of every value.
        levels: Level of every value; for a batch of tensors, one such argument for each.
        ladder: The ladder that levels are indices into; by default the one that the options name.
        rounding: "nearest" or "truncate"; by default as the options say.
        optimizer: The optimizer whose rule chooses the levels.
        param: The parameter whose gradient is encoded, with ``optimizer``.
        keep: Numbers that keep all bits where they are met, with ``mantissa_bits``.
    """

    mantissa_bits: int | None = None
    levels: Any = None
    ladder: Ladder | None = None
    rounding: str | None = None
    optimizer: Any = None
    param: Any = None
    keep: Any = None

    def is_nearest(self, options: EncoderOptions) -> bool:
        """Return True if values are to be rounded to nearest even, False if truncated.

        Raises:
            InvalidArgument: ``rounding`` is neither.
        """
        if self.rounding is not None:
            check_choice("rounding", self.rounding, ROUNDINGS)
        return (self.rounding or options.rounding) == "nearest"

    def bit_layout(self, dtype: DType, options: EncoderOptions) -> tuple[BitLayout, Ladder | None]:
        """Return the bit layout that is asked for, and the ladder of its levels; None if there is one level for all.

        Args:
            dtype: Type of the values.
            options: Options of the encoder.

        Raises:
            InvalidArgument: The arguments contradict each other, or do not fit the type.
        """
        mantissa_bits, levels, ladder, rounding, optimizer, param, keep = self
        by_level = levels is not None or optimizer is not None
        if param is not None and optimizer is None:
            raise InvalidArgument("param was given without optimizer, whose rule it is for")
        if mantissa_bits is not None and by_level:
            name = "optimizer" if levels is None else "levels"
            raise InvalidArgument(f"mantissa_bits and {name} cannot both be given")
        if keep is not None and mantissa_bits is None:
            raise InvalidArgument("keep was given without mantissa_bits; where values have levels, level 0 keeps them")
        if not by_level:
            if ladder is not None:
                raise InvalidArgument("ladder was given without levels or optimizer, which say how it is used")
            if mantissa_bits is None:
                if rounding is not None:
                    raise InvalidArgument("rounding was given without mantissa_bits, levels or optimizer")
                return bit_layouts.lossless(dtype), None
            return bit_layouts.fixed(dtype, mantissa_bits), None
        if ladder is not None and not isinstance(ladder, Ladder):
            raise InvalidArgument(f"ladder must be a gcodec.Ladder, not {ladder!r}")
        ladder = ladder or LADDERS[options.ladder].get(dtype.name)
        if ladder is None:
            name = "optimizer" if levels is None else "levels"
            raise InvalidArgument(f"{name} must be None for {dtype.name}, which can only be encoded losslessly")
        if optimizer is not None:
            if levels is not None:
                raise InvalidArgument("levels and optimizer cannot both be given")
            if param is None:
                raise InvalidArgument("optimizer was given without param, the parameter whose gradient is encoded")
        return bit_layouts.ladder(dtype, ladder), ladder


EXACT = Precision()  #: what callers ask for who give none of these arguments


def check_level_array(dtype: str, n_levels: int, n_values: int) -> None:
    """Raise InvalidArgument unless a caller's levels fit the values.

    Args:
        dtype: Name of the levels' type.
        n_levels: How many levels are given.
        n_values: Number of values.
    """
    if dtype != "uint8" or n_levels != n_values:
        raise InvalidArgument(f"levels must be {n_values} uint8 level indices, not {n_levels} of {dtype}")


def check_level_shape(levels: Sequence[int], shape: Sequence[int]) -> None:
    """Raise InvalidArgument for levels in another shape than the array's, such as that of its transpose, where each
    would be another value's. Where one of them is flat, both are in row-major order.

    Args:
        levels: Shape of the levels.
        shape: Shape of the array.
    """
    if len(levels) > 1 and len(shape) > 1 and tuple(levels) != tuple(shape):
        raise InvalidArgument(f"levels must have the array's shape, {tuple(shape)}, or be flat, not {tuple(levels)}")


def check_base_array(dtype: DType, n_values: int, found: DType, n_found: int) -> None:
    """Raise InvalidArgument unless a caller's base fits the array.

    Args:
        dtype: Type of the array.
        n_values: Its number of values.
        found: Type of the base.
        n_found: Number of the base's values.
    """
    if found is not dtype.narrow or n_found != n_values:
        raise InvalidArgument(f"base must hold {n_values} values of {dtype.narrow.name}, not {n_found} of {found.name}")


def check_lossless(bit_layout: BitLayout) -> None:
    """Raise InvalidArgument if bits are to be dropped although there is a base."""
    if bit_layout.lossy:
        raise InvalidArgument("base is for lossless encoding: mantissa_bits, levels and optimizer must be None")
