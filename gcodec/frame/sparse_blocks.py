"""Sparse blocks: what differs from a base, or from zero, where the values that do lie in an inner block."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..format.prelude import Prelude
from ..kernels.block import header
from ..kernels.block.sparse_decode import apply_patch, check_sparse, read_sparse_block
from ..kernels.block.sparse_encode import write_raw_block, write_sparse_block
from ..kernels.block.sparse_types import ChangedValues, Reading, SparseForm, SparseRules
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..kernels.entropy.changes import ChangeTables
from ..memory import Borrowed, sparse_scratch_for
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest
from .coded_blocks import CodedDecoder, CodedEncoder

_write_sparse_block, _write_raw_block = Specialized(write_sparse_block), Specialized(write_raw_block)
_check_sparse, _read_sparse_block = Specialized(check_sparse), Specialized(read_sparse_block)
_apply_patch = Specialized(apply_patch)


class BlockChanges(NamedTuple):
    """Says what a sparse block changes.

    Attributes:
        first: Number of the block's first value.
        places: uint32[n], places of values in the block.
        values: uintW[n], these values.
        status: ``header.OK``, or what is wrong with the block.
    """

    first: int
    places: np.ndarray
    values: np.ndarray
    status: int


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
        self._codes = plan.sparse.codebook.encode_tables()
        ends = np.cumsum([0 if found is None else len(found.gaps) for found in self._found])
        self._first_changes = [0, *ends.tolist()]  # where the levels of each block's changes begin
        self._template = base_template(plan) if self._with_base else header.NO_BASE
        self._levels, self._stream_log2 = plan.sparse.levels, plan.sparse.sizes.stream_log2

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`."""
        bits, (n_values, block, _) = self._request.values.bits, self._geometry
        scratch = borrowed.take((bits.dtype, "sparse"), lambda: sparse_scratch_for(bits.dtype, 0))
        types, stream_log2 = bits.dtype, self._stream_log2
        for b in range(begin, end):
            found = self._found[b]
            assert found is not None
            n = min(block, n_values - b * block)
            inner_end = at + header.CODED_HEADER
            if not self._with_base and len(found.gaps):
                inner_end = self._encode_inner(b, found.steps, out, inner_end, borrowed)
            form = SparseForm(b, n, len(self._plan.codebooks), self._template, stream_log2)
            stop = _write_sparse_block(types, found, self._codes, form, scratch, out, at, inner_end)
            if stop - at > header.BLOCK_HEADER + (n * bits.itemsize + 7 & ~7):
                part = bits[b * block : b * block + n]
                stop = _write_raw_block((types, part.flags.aligned), part, b, out, at)
            self._sizes[b] = stop - at
            at = stop
        return at

    def _encode_inner(self, b: int, values: np.ndarray, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Write the inner block of block ``b``: the values that are not zero, as block 0 of an array of their own.
        Return its end."""
        request, plan = self._request, self._plan
        levels = self._levels[self._first_changes[b] : self._first_changes[b + 1]]
        inner = request._replace(values=request.values._replace(bits=values), levels=levels)
        choice = np.full(1, 0 if plan.codebooks else -1, np.int64)
        one_block = plan._replace(sparse=None, choice=choice, bases=np.full(1, -1, np.int64))
        geometry = Geometry(len(values), *self._geometry[1:])
        encoder = CodedEncoder(inner, one_block, geometry, np.empty(1, np.uint32), None)
        return encoder.encode(0, 1, out, at, borrowed)


class SparseDecoder:
    """Decodes blocks of one frame; arguments as of :class:`kinds.MakeDecoder`."""

    def __init__(self, prelude: Prelude, geometry: Geometry, base: np.ndarray | None) -> None:
        self._prelude, self._geometry, self._base = prelude, geometry, base
        self._tables: list[_Tables | None] = [None] * len(prelude.changes)
        self._inner: CodedDecoder | None = None
        n_classes = [len(book.classes) if book.with_base else 0 for book in prelude.changes]
        is_base = [len(template) == 0 for template in prelude.templates]
        self._rules = SparseRules(
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
        for b in range(begin, end):
            if blocks.data[blocks.offsets[b]] != header.SPARSE:
                return header.OK, b
            changes = self.read(blocks, b, borrowed)
            if changes.status != header.OK:
                return changes.status, b
            first = changes.first
            n = min(block, n_values - first)
            target = out[first - out_first : first - out_first + n]
            if self._is_based(blocks, b):
                assert self._base is not None
                np.copyto(target, self._base[first : first + n])
            else:
                target.fill(0)
            changed = ChangedValues(changes.places, changes.values)
            _apply_patch((target.dtype, target.flags.aligned), target, changed, len(changes.places))
        return header.OK, end

    def read(self, blocks: FrameBlocks, b: int, borrowed: Borrowed) -> BlockChanges:
        """Return what block ``b``, a sparse one, changes; the next call on this thread overwrites the arrays."""
        n_values, block, _ = self._geometry
        data, at, size = blocks.data, blocks.offsets.item(b), blocks.sizes.item(b)
        first, kind = b * block, self._prelude.dtype.uint
        n = min(block, n_values - first)
        # Other frames have these buffers afterwards, so their size is part of the key: a power of two, lest arrays of
        # every length had buffers of their own.
        room = 1 << (min(block, n_values) - 1).bit_length()
        scratch = borrowed.take((kind, room, "changes"), lambda: sparse_scratch_for(kind, room))
        patch = borrowed.take(
            (kind, room, "patch"), lambda: ChangedValues(np.empty(room + 1, np.uint32), np.empty(room + 1, kind))
        )
        status = _check_sparse(None, data, at, size, n, b, self._rules)
        if status != header.OK:
            return BlockChanges(first, patch.places[:0], patch.values[:0], status)
        number = data.item(at + header.CODEBOOK) - self._rules.first_book
        book = self._prelude.changes[number]
        tables = self._tables[number]
        if tables is None:
            tables = self._tables[number] = _Tables(book.decode_tables(), book.threshold_tuple(), book.variant)
        base = None
        if book.with_base:
            assert self._base is not None
            base = self._base[first : first + n]
        types = kind, tables.variant, None if base is None else base.flags.aligned
        reading = Reading(data, tables.tables, scratch, patch)
        status, count = _read_sparse_block(types, reading, at, n, base, tables.thresholds)
        if status == header.OK and base is None:
            status = self._read_inner(blocks, b, count, patch.values, borrowed)
        return BlockChanges(first, patch.places[:count], patch.values[:count], status)

    def _is_based(self, blocks: FrameBlocks, b: int) -> bool:
        number = blocks.data.item(blocks.offsets.item(b) + header.CODEBOOK) - self._rules.first_book
        return self._prelude.changes[number].with_base

    def _read_inner(
        self, blocks: FrameBlocks, b: int, count: int, out: np.ndarray, borrowed: Borrowed
    ) -> int:
        """Decode the inner block of block ``b``, which must have ``count`` values, and return a status."""
        at = blocks.offsets.item(b)
        field = at + header.INNER_BYTES
        inner_bytes = int.from_bytes(blocks.data[field : field + 4].tobytes(), "little")
        if (count > 0) != (inner_bytes > 0):
            return header.BAD_SIZE
        if not count:
            return header.OK
        inner_at = at + header.CODED_HEADER
        if self._inner is None:
            self._inner = CodedDecoder(self._prelude, self._geometry, None)
        return self._inner.decode_inner(blocks.data, inner_at, inner_bytes, out[:count], borrowed)
