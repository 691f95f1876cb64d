"""Make the codebooks that suit counted symbols, and tell what a codebook would cost on counted symbols.

Symbols are counted in bins (``kernels.sample``): zero, everything outside the window, then one bin per (level,
relative head).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np

from ..dtypes import DType
from ..errors import InvalidArgument
from ..format.codebook import MAX_SYMBOLS, Codebook
from ..format.modes import BitLayout
from ..format.shipped import fitting as fitting_shipped
from ..format.tables import empty_books, tables_of_planes
from ..kernels.core.specialized import Specialized
from ..kernels.entropy import codebook_fit
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH
from ..kernels.sample import code_costs
from ..memory import acquire, release
from ..options import EncoderOptions

MAX_CLUSTERED = 96  #: blocks whose distributions are compared when codebooks are formed
TABLE_BITS = 400  #: what a codebook costs in the frame, about
MAX_SPREAD_LEVELS = 3  #: levels up to which their heads may lie as far apart as those of one level


def window_of(n_levels: int) -> tuple[int, int]:
    """Return (window, center) of the histograms of samples: bins per level, and the bin of relative head 0.

    A few levels may be those of unused bits (:mod:`unused_bits`), whose values lie as far apart as any: where an array
    is multiplied by a mask, -0 stands beside the weights. The levels of an optimizer's ladder, which are more, do not.
    """
    if n_levels <= MAX_SPREAD_LEVELS:
        return code_costs.WINDOW, code_costs.CENTER
    return code_costs.LADDER_WINDOW, code_costs.LADDER_CENTER


def n_bins_of(n_levels: int) -> int:
    """Return the number of bins of a sample's histogram: zero, outside, then a window for each level."""
    return 2 + n_levels * window_of(n_levels)[0]


def have_codes(counts: np.ndarray) -> np.ndarray:
    """Return which symbols get a code in a codebook that suits these counts: bool[n_levels, window].

    Args:
        counts: int64[n_levels, window], values of each level and relative head.
    """
    n_levels, window = counts.shape
    spans, n_weights = np.empty((1, n_levels, 2), np.int64), np.empty(1, np.int64)
    weights = np.zeros((1, MAX_SYMBOLS + 2), np.int64)
    histogram = np.concatenate([np.zeros(2, np.int64), counts.reshape(-1)])[None]
    codebook_fit.choose_symbols(histogram, window, False, spans, weights, n_weights)
    begins, ends, bins = spans[0, :, :1], spans[0, :, 1:], np.arange(window)
    result: np.ndarray = (bins >= begins) & (bins < ends)
    return result


def from_histogram(
    histogram: np.ndarray,
    head_bits: int,
    n_levels: int,
    center: int,
    *,
    exact: bool = False,
    max_length: int = MAX_LENGTH,
    escape_threshold: int | None = None,
) -> Codebook:
    """Make the codebook that suits counted symbols.

    Args:
        histogram: Unsigned integers[2 + n_levels * window] as ``kernels.sample`` counts them: zero, outside, then
            (level, relative head + center).
        center: Bin of relative head 0 in the window.
        exact: True if these are all values that will be coded, and none else will occur; otherwise nearby symbols, zero
            and the escape get codes unseen.
        max_length: Length limit in bits, 2 ... 12.
        escape_threshold: GComp's n_theta: symbols whose native Huffman code is longer than this are left to the escape;
            None for no such rule.

    Raises:
        InvalidArgument: If ``max_length`` is out of its range.
    """
    if not 2 <= max_length <= MAX_LENGTH:
        raise InvalidArgument(f"max_length must be in 2 ... {MAX_LENGTH}, not {max_length}")
    counts = np.asarray(histogram).astype(np.int64)[None]
    window = (counts.shape[1] - 2) // n_levels
    rules = _rules(n_levels, window, center, head_bits, 1, max_length, escape_threshold or 0)
    made = _new_books(1, n_levels, 0)
    codebook_fit.make_books(counts, exact, rules, made)
    return _codebooks_of(made, 1, head_bits)[0]


def _rules(
    n_levels: int, window: int, center: int, head_bits: int, max_books: int, max_length: int, escape_threshold: int
) -> codebook_fit.FitRules:
    """Return the numbers by which codebooks are made, as the kernels take them."""
    max_symbols = min(MAX_SYMBOLS, (1 << max_length) - 2)
    return codebook_fit.FitRules(
        n_levels,
        window,
        center,
        head_bits,
        max_books,
        MAX_CLUSTERED,
        256 * TABLE_BITS,
        max_symbols,
        max_length,
        escape_threshold,
    )


def _new_books(n: int, n_levels: int, n_bins: int) -> codebook_fit.MadeBooks:
    """Return memory for ``n`` codebooks, with lengths of zero."""
    return codebook_fit.MadeBooks(
        np.empty((n, n_levels, 2), np.int64),
        np.zeros((n, ESCAPE + 1), np.uint8),
        np.empty((n, codebook_fit.RECORD_BYTES), np.uint8),
        np.empty(n, np.int64),
        np.empty((n, n_bins), np.uint32),
    )


def _codebooks_of(made: codebook_fit.MadeBooks, n: int, head_bits: int) -> tuple[Codebook, ...]:
    """Return the first ``n`` codebooks, of memory of their own."""
    ranges, lengths, data = made.ranges[:n].copy(), made.lengths[:n].copy(), made.records[:n].tobytes()
    starts = range(0, len(data), codebook_fit.RECORD_BYTES)
    return tuple(
        [
            Codebook.made(head_bits, book_ranges, row, data[start : start + end])
            for book_ranges, row, start, end in zip(ranges, lengths, starts, made.ends[:n].tolist(), strict=True)
        ]
    )


class GivenCodebooks(tuple[Codebook, ...]):
    """The codebooks of a frame that were there before, perhaps none.

    Attributes:
        records: The bytes that stand for them in a frame.
        choice: int64[n_blocks], the codebook of each block, -1 where there is none.
    """

    records: tuple[bytes, ...]
    choice: np.ndarray

    @classmethod
    def of(cls, codebooks: Sequence[Codebook], records: tuple[bytes, ...], choice: np.ndarray) -> GivenCodebooks:
        """Return the codebooks with these attributes."""
        result = cls(codebooks)
        result.records, result.choice = records, choice
        return result

    @property
    def costs(self) -> np.ndarray | None:
        """Return the bits that each bin costs, uint32[n_codebooks, n_bins]; None if there are no codebooks."""
        return kept_costs(tuple(self)) if self else None


class FittedCodebooks(Sequence[Codebook]):
    """The codebooks that were made for a frame, as arrays; as objects only where somebody asks for them.

    Attributes:
        tables: Tables to encode with.
        records: The bytes that stand for them in a frame.
        choice: int64[n_blocks], the codebook of each block.
    """

    __slots__ = ("_codebooks", "_form", "_memory", "_n", "choice", "records", "tables")

    def __init__(
        self, memory: codebook_fit.FitMemory, n: int, shipped: Codebook | None, form: FitForm, choice: np.ndarray
    ) -> None:
        self._memory, self._n, self._form, self.choice = memory, n, form, choice
        made, self.tables = memory
        self._codebooks: tuple[Codebook, ...] | None = None if shipped is None else (shipped,)
        self.records: tuple[bytes, ...] = (made.records[0].tobytes()[: made.ends.item(0)],)
        if n > 1:
            self.records += tuple([made.records[k, : made.ends.item(k)].tobytes() for k in range(1, n)])

    @property
    def costs(self) -> np.ndarray:
        """Return the bits that each bin costs: uint32[n_codebooks, n_bins]."""
        return self._memory.made.costs[: self._n]

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, index: int) -> Codebook: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Codebook, ...]: ...
    def __getitem__(self, index: int | slice) -> Codebook | tuple[Codebook, ...]:
        if self._codebooks is None:
            self._codebooks = _codebooks_of(self._memory.made, self._n, self._form.head_bits)
        return self._codebooks[index]

    def close(self) -> None:
        """Give the memory back; the codebooks are not to be used any more."""
        release(self._form.key, self._memory)


class FitForm:
    """Holds what making codebooks depends on, beside what was counted: one object for each combination.

    Args:
        layout: Which bits of its values are kept.
        options: How codebooks are made.

    Attributes:
        head_bits: Bits of a head.
        key: What memory is kept by.
    """

    def __init__(self, dtype: DType, layout: BitLayout, options: EncoderOptions) -> None:
        n_levels, head_bits, max_books = len(layout.levels), dtype.head_bits, options.max_codebooks
        window, center = window_of(n_levels)
        self._size, self.head_bits = (max_books, n_levels, n_bins_of(n_levels)), head_bits
        self.key = "codebooks", *self._size
        self._rules = _rules(
            n_levels, window, center, head_bits, max_books, options.max_length, options.escape_threshold or 0
        )
        marks, shifts, _ = tables_of_planes(layout.widths, layout.masks, dtype.tail_bits)
        self._planes, self._shipped, self._none = (marks, shifts), shipped_for(dtype, n_levels), _none_shipped(n_levels)

    def new_memory(self) -> codebook_fit.FitMemory:
        """Return memory for as many codebooks as a frame may have."""
        return codebook_fit.FitMemory(_new_books(*self._size), empty_books(self._size[0], decode=False))

    def make(
        self,
        counts: np.ndarray,
        every: int,
        exact: bool,
        may_be_shipped: bool,
        memory: codebook_fit.FitMemory,
        choice: np.ndarray,
    ) -> tuple[int, int]:
        """Make codebooks as :meth:`fit` does, in memory of the caller's; return how many there are, and the number of
        the one that comes with gcodec, or -1."""
        shipped = self._shipped if may_be_shipped else self._none
        made: tuple[int, int] = _fit_books[None](
            counts, every, exact, self._rules, shipped.tables, self._planes, memory, choice
        )
        return made

    def fit(
        self, counts: np.ndarray, every: int, exact: bool, may_be_shipped: bool, choice: np.ndarray
    ) -> FittedCodebooks | GivenCodebooks:
        """Make codebooks for blocks, one for each group of similar blocks, or take one that comes with gcodec where
        naming that is cheaper than carrying a made one, as it is for small arrays.

        Args:
            counts: uint32[n_blocks, n_bins], a histogram of each block.
            every: One piece in ``every`` was counted.
            exact: True if no other values than the counted occur.
            may_be_shipped: True if a codebook that comes with gcodec may be taken.
            choice: int64[n_blocks], result: the codebook of each block, -1 where there is none.

        Returns:
            The codebooks; none if there are no heads to make one for.
        """
        memory = acquire(self.key, self.new_memory)
        n, number = self.make(counts, every, exact, may_be_shipped, memory, choice)
        if n:
            return FittedCodebooks(memory, n, self._shipped.codebooks[number] if number >= 0 else None, self, choice)
        release(self.key, memory)
        return no_codebooks(len(counts))


fit_form = lru_cache(256)(FitForm)


def no_codebooks(n_blocks: int) -> GivenCodebooks:
    """Return what stands for codebooks where there are none, of so many blocks."""
    return GivenCodebooks.of((), (), np.full(n_blocks, -1, np.int64))


_fit_books, _fill_bin_costs = Specialized(codebook_fit.fit_books), Specialized(codebook_fit.fill_bin_costs)


class Shipped(NamedTuple):
    """Codebooks that come with gcodec, for one value type and number of levels.

    Attributes:
        codebooks: The codebooks.
        tables: What fitting compares them by.
    """

    codebooks: tuple[Codebook, ...]
    tables: codebook_fit.ShippedBooks


@lru_cache(64)
def shipped_for(dtype: DType, n_levels: int) -> Shipped:
    """Return the shipped codebooks for a value type and number of levels, perhaps none."""
    numbered = [item for item in fitting_shipped(dtype.name, n_levels) if item[1].head_bits == dtype.head_bits]
    books, records = tuple(book for _, book in numbered), [book.reference(number) for number, book in numbered]
    if not books:
        return _none_shipped(n_levels)
    tables = codebook_fit.ShippedBooks(
        bin_costs(books),
        np.array([8 * len(record) for record in records], np.uint64),
        np.array([book.range_array for book in books]),
        np.array([book.length_array for book in books]),
        np.array([np.frombuffer(record, np.uint8) for record in records]),
    )
    return Shipped(books, tables)


@lru_cache(64)
def _none_shipped(n_levels: int) -> Shipped:
    """Return no codebooks, for a number of levels."""
    none = codebook_fit.ShippedBooks(
        np.empty((0, n_bins_of(n_levels)), np.uint32),
        np.empty(0, np.uint64),
        np.empty((0, n_levels, 2), np.int64),
        np.empty((0, ESCAPE + 1), np.uint8),
        np.empty((0, 0), np.uint8),
    )
    return Shipped((), none)


def bin_costs(codebooks: Sequence[Codebook]) -> np.ndarray:
    """Return the bits that each bin of a sample's histogram costs under codebooks for the same values.

    Args:
        codebooks: The codebooks, at least one.

    Returns:
        uint32[n_codebooks, n_bins]; a million where a bin has no code.
    """
    window, center = window_of(len(codebooks[0].ranges))
    ranges = np.array([codebook.range_array for codebook in codebooks])
    lengths = np.frombuffer(b"".join(codebook.lengths for codebook in codebooks), np.uint8).reshape(-1, ESCAPE + 1)
    costs = np.empty((len(ranges), 2 + ranges.shape[1] * window), np.uint32)
    _fill_bin_costs[None](ranges, lengths, codebooks[0].head_bits, window, center, costs)
    return costs


@lru_cache(64)
def tail_costs(kept: tuple[int, ...]) -> np.ndarray:
    """Return the tail bits of the values in each bin of a sample's histogram: uint32[n_bins].

    Args:
        kept: For each level, the tail bits that are kept of its values.
    """
    window, _ = window_of(len(kept))
    return np.concatenate([[0, kept[0]], np.repeat(kept, window)]).astype(np.uint32)


@lru_cache(1024)
def kept_costs(codebooks: tuple[Codebook, ...]) -> np.ndarray:
    """Return :func:`bin_costs` of codebooks that are used again and again, kept from the last time."""
    return bin_costs(codebooks)


def code_bits(counts: np.ndarray) -> float:
    """Return about how many bits symbols take as prefix codes, all together: their order-0 entropy, but that no code is
    shorter than a bit or longer than codes can be.

    Args:
        counts: How often each symbol is met.
    """
    counts = np.sort(counts[counts > 0])[::-1]
    left, bits, n_first = int(counts.sum()), 0, 0
    # A symbol that more than half of those have which are left takes one bit, and sets the others one bit apart.
    while n_first + 1 < len(counts) and 2 * counts[n_first] > left:
        bits += left
        left -= int(counts[n_first])
        n_first += 1
    others = counts[n_first:]
    return bits + float((others * np.minimum(np.log2(left / others), MAX_LENGTH - n_first)).sum())
