"""Encode and decode indexed blocks: few values, or few factors of values, named by their places in a dictionary."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..base_hash import BaseArray
from ..format.dictionary import INDEX_TYPE, MAX_ENTRIES, Dictionary
from ..format.modes import lossless
from ..format.prelude import Prelude
from ..kernels.block import header
from ..kernels.block.indexed import (
    IndexedRules,
    IndexedWriting,
    Lookup,
    check_indexed,
    finish_indexed,
    look_up_values,
    write_if_constant,
)
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..memory import Borrowed
from ..plan.indexing import index_request
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest
from .coded_blocks import CodedDecoder, CodedEncoder

_check_indexed, _look_up_values = Specialized(check_indexed), Specialized(look_up_values)
_write_if_constant, _finish_indexed = Specialized(write_if_constant), Specialized(finish_indexed)
_NO_FACTORS = np.zeros(0, np.float32)
_MAX_BATCH_VALUES = 1 << 17  #: of blocks that are decoded together: as many as have their indices in the cache


def _rules(dictionary: Dictionary, number: int, n_values: int, block: int, value_bytes: int) -> IndexedRules:
    """Return the rules of blocks of ``block`` values that name the dictionary by this number among all codebooks."""
    forms = dictionary.has_factors, dictionary.has_offsets
    return IndexedRules(n_values, block.bit_length() - 1, number, *forms, dictionary.n_entries, value_bytes)


class IndexedEncoder:
    """Encodes blocks of one frame whose plan is indexed; arguments as of :class:`kinds.MakeEncoder`."""

    def __init__(
        self,
        request: EncodeRequest,
        plan: FramePlan,
        geometry: Geometry,
        sizes: np.ndarray,
        rounded: np.ndarray | None,
    ) -> None:
        assert plan.indexed is not None
        assert plan.inner is not None
        assert rounded is None
        indexed, values = plan.indexed, request.values
        rules = _rules(indexed.dictionary, 0, geometry.n_values, geometry.block, values.dtype.itemsize)
        self._writing = IndexedWriting(
            values.bits, indexed.indices, indexed.scales, indexed.offsets, indexed.segment, rules, sizes
        )
        self._types = values.bits.dtype, values.bits.flags.aligned
        asked = index_request(request, indexed.indices)
        self._inner = CodedEncoder(asked, plan.inner, geometry, np.empty_like(sizes), None)

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`."""
        for b in range(begin, end):
            stop = _write_if_constant(self._types, self._writing, b, out, at)
            if stop == at:
                inner_end = self._inner.encode(b, b + 1, out, at + header.CODED_HEADER, borrowed)
                stop = _finish_indexed(self._types, self._writing, b, out, at, inner_end)
            at = stop
        return at


class _DictionaryDecoder(NamedTuple):
    """Holds what blocks of one dictionary are decoded with."""

    rules: IndexedRules
    factors: np.ndarray
    table: np.ndarray
    inner: CodedDecoder


class IndexedDecoder:
    """Decodes blocks of one frame; arguments as of :class:`kinds.MakeDecoder`."""

    def __init__(self, prelude: Prelude, geometry: Geometry, base: BaseArray | None) -> None:
        self._prelude, self._geometry = prelude, geometry
        self._first = len(prelude.codebooks) + len(prelude.changes)
        self._inner_offsets, self._inner_sizes = np.empty((2, prelude.n_blocks), np.int64)
        self._decoders = [self._decoder_of(number) for number in range(len(prelude.dictionaries))]

    def _decoder_of(self, number: int) -> _DictionaryDecoder:
        prelude, (n_values, block, _) = self._prelude, self._geometry
        dictionary, layout = prelude.dictionaries[number], lossless(INDEX_TYPE)
        rules = _rules(dictionary, self._first + number, n_values, block, prelude.dtype.itemsize)
        factors = dictionary.factors if dictionary.has_factors else _NO_FACTORS
        table = np.zeros(MAX_ENTRIES, prelude.dtype.uint) if dictionary.has_factors else dictionary.table
        inner = prelude._replace(
            dtype=INDEX_TYPE, widths=layout.widths, levels=layout.levels, codebooks=(dictionary.codebook,), columns=()
        )
        return _DictionaryDecoder(rules, factors, table, CodedDecoder(inner, self._geometry, None))

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Decode blocks; see :meth:`kinds.BlockDecoder.decode`."""
        n_blocks = max(_MAX_BATCH_VALUES // self._geometry.block, 1)
        while begin < end and blocks.data.item(blocks.offsets.item(begin)) == header.INDEXED:
            number = blocks.data.item(blocks.offsets.item(begin) + header.CODEBOOK) - self._first
            if not 0 <= number < len(self._decoders):
                status = header.check_block(blocks.data, blocks.offsets.item(begin), blocks.sizes.item(begin), begin)
                return header.BAD_FIELD if status == header.OK else status, begin
            stop = min(begin + n_blocks, end)
            status, begin = self._decode_run(self._decoders[number], blocks, begin, stop, out, out_first, borrowed)
            if status != header.OK:
                return status, begin
        return header.OK, begin

    def _decode_run(
        self,
        decoder: _DictionaryDecoder,
        blocks: FrameBlocks,
        begin: int,
        end: int,
        out: np.ndarray,
        out_first: int,
        borrowed: Borrowed,
    ) -> tuple[int, int]:
        """Decode blocks of one dictionary from ``begin`` on, as many before ``end`` as are such; see :meth:`decode`."""
        rules, geometry = decoder.rules, self._geometry
        n_values = min(end * geometry.block, geometry.n_values) - begin * geometry.block
        room = 1 << (n_values - 1).bit_length()
        indices = borrowed.take((room, "indices"), lambda: np.empty(room, np.uint8))[:n_values]
        inner_blocks = FrameBlocks(blocks.data, self._inner_offsets, self._inner_sizes)
        status, end = _check_indexed(None, blocks, begin, end, rules, inner_blocks.offsets, inner_blocks.sizes)
        first = begin * geometry.block
        inner_status, inner_end = decoder.inner.decode(inner_blocks, begin, end, indices, first, borrowed)
        if inner_end < end:  # faulty, or of a kind that inner blocks must not be
            status, end = inner_status or header.BAD_FIELD, inner_end
        table = decoder.table
        if rules.has_factors:
            table = borrowed.take((table.dtype, "products"), lambda: np.empty(MAX_ENTRIES, decoder.table.dtype))
        planes = borrowed.take("table planes", lambda: np.empty(8 * MAX_ENTRIES, np.uint8))
        lookup = Lookup(decoder.factors, self._prelude.dtype.narrow.code, table, planes)
        types = out.dtype, out.flags.aligned
        found, stop = _look_up_values(types, blocks, begin, end, rules, lookup, indices, out, out_first)
        return (status, end) if found == header.OK else (found, stop)
