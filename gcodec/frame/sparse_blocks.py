"""Sparse blocks: what differs from a base, or from zero, where the values that do lie in an inner block."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, NamedTuple

import numpy as np

from ..base_hash import BaseArray
from ..format.change_codebook import ChangeCodebook
from ..format.prelude import Prelude
from ..kernels.block import header
from ..kernels.block.sparse_decode import apply_patch, check_sparse, read_sparse_blocks
from ..kernels.block.sparse_encode import write_sparse_blocks
from ..kernels.block.sparse_types import BaseWords, ChangedValues, Reading, SparseForm, SparseRules, SparseWriting
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.changes import ChangeTables
from ..memory import Borrowed, sparse_scratch_for
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest
from .coded_blocks import CodedDecoder, CodedEncoder

_write_sparse_blocks = Specialized(write_sparse_blocks)
_check_sparse, _read_sparse_blocks = Specialized(check_sparse), Specialized(read_sparse_blocks)
_apply_patch = Specialized(apply_patch)
_NOTHING = np.zeros(0, np.uint32)
_NO_WORDS = BaseWords(np.zeros(0, np.uint8), 0, np.zeros(0, np.uint64))


class BlockChanges(NamedTuple):
    """Says what sparse blocks that follow each other change.

    Attributes:
        places: uint32[n], places of values, counted from the first block's first.
        values: uintW[n], these values.
        status: ``header.OK``, or what is wrong with block ``end``.
        end: The first block that was not read.
    """

    places: np.ndarray
    values: np.ndarray
    status: int
    end: int


class _Tables(NamedTuple):
    """Holds a codebook of changes as it is decoded with; ``variant`` is the number of classes in the kernels."""

    tables: ChangeTables
    thresholds: tuple[np.unsignedinteger[Any], ...]
    variant: int


def base_template(plan: FramePlan) -> int:
    """Return the number of the template that stands for the base in a frame with sparse blocks: a prediction's own, or
    one that follows those."""
    templates = () if plan.prediction is None else plan.prediction.templates
    return next((number for number, template in enumerate(templates) if not len(template)), len(templates))


class SparseEncoder:
    """Encodes blocks of one frame whose plan is sparse; arguments as of :class:`kinds.MakeEncoder`."""

    def __init__(
        self,
        request: EncodeRequest,
        plan: FramePlan,
        geometry: Geometry,
        sizes: np.ndarray,
        rounded: np.ndarray | None,
    ) -> None:
        assert plan.sparse is not None
        assert rounded is None
        self._request, self._plan, self._geometry, self._sizes = request, plan, geometry, sizes
        self._found, self._with_base = plan.sparse.found, plan.sparse.codebook.with_base
        self._firsts = [found.first for found in self._found]
        self._codes = plan.sparse.codebook.encode_tables()
        self._levels = plan.sparse.levels
        template = base_template(plan) if self._with_base else header.NO_BASE
        self._form = SparseForm(geometry.n_values, plan.sparse.sizes, len(plan.codebooks), template)

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`."""
        bits = self._request.values.bits
        types = bits.dtype, bits.flags.aligned
        scratch = borrowed.take((bits.dtype, "sparse"), lambda: sparse_scratch_for(bits.dtype, 0))
        while begin < end:
            number = bisect_right(self._firsts, begin) - 1
            first, differences = self._found[number]
            stop, inner_bytes = min(end, self._found[number].end), 0
            if not self._with_base:
                stop = begin + 1
                inner_bytes = self._encode_inner(number, begin - first, out, at + header.CODED_HEADER, borrowed)
            writing = SparseWriting(bits, self._codes, self._form, scratch, out, self._sizes)
            at = _write_sparse_blocks(types, writing, differences, first, begin - first, stop - first, at, inner_bytes)
            begin = stop
        return at

    def _encode_inner(self, number: int, k: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write the inner block of block ``k`` of some found together: the values that are not zero, as block 0 of an
        array of their own. Return its bytes."""
        request, plan, differences = self._request, self._plan, self._found[number].differences
        begin, end = differences.ends.item(k - 1) if k else 0, differences.ends.item(k)
        if begin == end:
            return 0
        values, levels = differences.steps[begin:end], self._levels
        if len(levels):
            before = sum(len(found.differences.steps) for found in self._found[:number])
            levels = levels[before + begin : before + end]
        inner = request._replace(values=request.values._replace(bits=values), levels=levels)
        choice = np.full(1, 0 if plan.codebooks else -1, np.int64)
        # The plan is of all values that are not zero; where one base suits them all, codes may be for that alone.
        is_one = len(plan.bases) > 0 and (plan.bases == plan.bases[0]).all()
        bases = plan.bases[:1] if is_one else np.full(1, -1, np.int64)
        one_block = plan._replace(sparse=None, choice=choice, bases=bases)
        geometry = Geometry(len(values), *self._geometry[1:])
        encoder = CodedEncoder(inner, one_block, geometry, np.empty(1, np.uint32), None)
        return encoder.encode(0, 1, out, at, borrowed) - at


class SparseDecoder:
    """Decodes blocks of one frame; arguments as of :class:`kinds.MakeDecoder`."""

    def __init__(self, prelude: Prelude, geometry: Geometry, base: BaseArray | None) -> None:
        self._prelude, self._geometry, self._base = prelude, geometry, base
        self._tables: list[_Tables | None] = [None] * len(prelude.changes)
        self._inner: CodedDecoder | None = None
        n_classes = [len(book.classes) if book.with_base else 0 for book in prelude.changes]
        is_base = [len(template) == 0 for template in prelude.templates]
        self._rules = SparseRules(
            geometry.n_values,
            prelude.block_log2,
            np.array(is_base, np.bool_),
            len(prelude.codebooks),
            np.array(n_classes, np.int64),
        )

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Decode blocks; see :meth:`kinds.BlockDecoder.decode`."""
        n_values, block, _ = self._geometry
        while begin < end and blocks.data.item(blocks.offsets.item(begin)) == header.SPARSE:
            book = self._book_of(blocks, begin)
            if book is not None and book.with_base:
                changes = self._read(book, blocks, begin, end, out, out_first, borrowed)
            else:
                changes = self.read(blocks, begin, begin + 1, borrowed)
                if changes.status == header.OK:
                    first = begin * block
                    target = out[first - out_first : min(first + block, n_values) - out_first]
                    target.fill(0)
                    changed, types = ChangedValues(changes.places, changes.values), (target.dtype, target.flags.aligned)
                    _apply_patch(types, target, changed, len(changes.places))
            begin = changes.end
            if changes.status != header.OK:
                return changes.status, begin
        return header.OK, begin

    def read(self, blocks: FrameBlocks, begin: int, end: int, borrowed: Borrowed) -> BlockChanges:
        """Return what blocks from ``begin``, a sparse one, on change: of as many before ``end`` as are read together.
        The next call on this thread overwrites the arrays."""
        book = self._book_of(blocks, begin)
        if book is None:
            at, n_values, block = blocks.offsets.item(begin), self._geometry.n_values, self._geometry.block
            n, size = min(block, n_values - begin * block), blocks.sizes.item(begin)
            status = _check_sparse(None, blocks.data, at, size, n, begin, self._rules)
            assert status != header.OK
            return BlockChanges(_NOTHING, _NOTHING, status, begin)
        if book.with_base:
            return self._read(book, blocks, begin, end, None, 0, borrowed)
        changes = self._read(book, blocks, begin, begin + 1, None, 0, borrowed)
        if changes.status == header.OK:
            status = self._read_inner(blocks, begin, changes.values, borrowed)
            changes = changes._replace(status=status, end=begin + (status == header.OK))
        return changes

    def changes_base(self, blocks: FrameBlocks, b: int) -> bool:
        """Return True if what block ``b`` changes are values of the base, False if they are zeros."""
        book = self._book_of(blocks, b)
        return book is None or book.with_base  # a faulty block is refused when it is read

    def _book_of(self, blocks: FrameBlocks, b: int) -> ChangeCodebook | None:
        """Return the codebook that block ``b`` names; None if the frame has none of this number, or not its base."""
        number = blocks.data.item(blocks.offsets.item(b) + header.CODEBOOK) - self._rules.first_book
        book = self._prelude.changes[number] if 0 <= number < len(self._prelude.changes) else None
        return None if book is not None and book.with_base and self._base is None else book

    def _read(
        self,
        book: ChangeCodebook,
        blocks: FrameBlocks,
        begin: int,
        end: int,
        out: np.ndarray | None,
        out_first: int,
        borrowed: Borrowed,
    ) -> BlockChanges:
        """Read blocks of one codebook, without inner blocks; into ``out`` or, without it, return what they change."""
        n_values, block, _ = self._geometry
        kind = self._prelude.dtype.uint
        n = min((end - begin if out is None else 1) * block, n_values)
        # Other frames have these buffers afterwards, so their size is part of the key: a power of two, lest arrays of
        # every length had buffers of their own.
        room, changed_room = 1 << (min(block, n_values) - 1).bit_length(), 1 << (n - 1).bit_length()
        scratch = borrowed.take((kind, room, "changes"), lambda: sparse_scratch_for(kind, room))
        changed = borrowed.take(
            (kind, changed_room, "patch"),
            lambda: ChangedValues(np.empty(changed_room + 1, np.uint32), np.empty(changed_room + 1, kind)),
        )
        tables = self._tables_of(book)
        base, words = None, _NO_WORDS
        if book.with_base:
            assert self._base is not None
            base, hashing = self._base
            if hashing is not None:
                sums = np.empty(end - begin, np.uint64)
                words = BaseWords(hashing.data, begin * block * base.itemsize >> 2, sums)
        types = (
            kind,
            tables.variant,
            None if base is None else base.flags.aligned,
            None if out is None else out.flags.aligned,
        )
        reading = Reading(blocks.data, self._rules, tables.tables, tables.thresholds, words, scratch, changed)
        status, stop, count = _read_sparse_blocks(types, reading, blocks, begin, end, base, out, out_first)
        if book.with_base and self._base is not None and self._base.hashing is not None:
            self._base.hashing.put(begin, words.sums[: stop - begin].tolist())
        return BlockChanges(changed.places[:count], changed.values[:count], status, stop)

    def _tables_of(self, book: ChangeCodebook) -> _Tables:
        number = self._prelude.changes.index(book)
        tables = self._tables[number]
        if tables is None:
            tables = self._tables[number] = _Tables(book.decode_tables(), book.threshold_tuple(), book.variant)
        return tables

    def _read_inner(self, blocks: FrameBlocks, b: int, out: np.ndarray, borrowed: Borrowed) -> int:
        """Decode the inner block of block ``b``, which must have as many values as ``out``, and return a status."""
        at = blocks.offsets.item(b)
        field = at + header.INNER_BYTES
        inner_bytes = int.from_bytes(blocks.data[field : field + 4].tobytes(), "little")
        if (len(out) > 0) != (inner_bytes > 0):
            return header.BAD_SIZE
        if not len(out):
            return header.OK
        inner_at = at + header.CODED_HEADER
        if self._inner is None:
            self._inner = CodedDecoder(self._prelude, self._geometry, None)
        return self._inner.decode_inner(blocks.data, inner_at, inner_bytes, out, borrowed)
