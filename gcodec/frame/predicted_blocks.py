"""Predicted blocks: from templates, or from a base, which a template of no columns stands for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..base_hash import BaseArray
from ..dtypes import DType
from ..format.prelude import Prelude
from ..format.tables import digit_tables, residual_tables
from ..kernels.block.predicted import (
    PredictedDecoding,
    PredictedEncoding,
    PredictionSources,
    decode_predicted_blocks,
    encode_predicted_blocks,
)
from ..kernels.core.bundles import FrameBlocks, Geometry
from ..kernels.core.specialized import Specialized
from ..memory import Borrowed, residual_scratch_for
from ..plan.plan import FramePlan
from ..plan.request import EncodeRequest

_encode_blocks, _decode_blocks = Specialized(encode_predicted_blocks), Specialized(decode_predicted_blocks)
_NO_TEMPLATE = np.zeros(0, np.float32)


def _sources_of(dtype: DType, templates: Sequence[np.ndarray], base: np.ndarray | None) -> PredictionSources:
    """Return what blocks are predicted from; ``base``: uintW[n_values] or None."""
    ends = np.cumsum([0, *map(len, templates)])
    return PredictionSources(
        np.concatenate([_NO_TEMPLATE, *templates]),
        np.stack([ends[:-1], ends[1:]], axis=1),
        base,
        dtype.narrow.code,
        digit_tables(dtype.bits // 4),
    )


class PredictedEncoder:
    """Encodes blocks of one frame whose plan predicts some; arguments as of :class:`kinds.MakeEncoder`."""

    def __init__(
        self,
        request: EncodeRequest,
        plan: FramePlan,
        geometry: Geometry,
        sizes: np.ndarray,
        rounded: np.ndarray | None,
    ) -> None:
        bits, self._dtype, prediction = request.values.bits, request.values.dtype, plan.prediction
        assert prediction is not None
        self._bits, self._rounded = bits, rounded
        self._coding = PredictedEncoding(
            bits,
            geometry,
            _sources_of(self._dtype, prediction.templates, request.base),
            np.array(prediction.origins, np.int64),
            prediction.choice,
            residual_tables(self._dtype, prediction.codebooks, False).table,
            sizes,
        )

    def encode(self, begin: int, end: int, out: np.ndarray, at: int, borrowed: Borrowed) -> int:
        """Encode blocks; see :meth:`kinds.BlockEncoder.encode`."""
        coding, dtype, (_, block, stream_len) = self._coding, self._dtype, self._coding.geometry
        scratch = borrowed.take(
            (dtype, stream_len, "residuals"), lambda: residual_scratch_for(dtype, block, stream_len)
        )
        types = dtype, _is_aligned(coding.sources.base)
        if self._rounded is not None:  # all bits are kept
            values = slice(begin * block, min(end * block, len(self._bits)))
            self._rounded[values] = self._bits[values]
        return _encode_blocks(types, coding, begin, end, scratch, out, at)


class PredictedDecoder:
    """Decodes blocks of one frame; arguments as of :class:`kinds.MakeDecoder`."""

    def __init__(self, prelude: Prelude, geometry: Geometry, base: BaseArray | None) -> None:
        self._dtype = prelude.dtype
        sources = _sources_of(prelude.dtype, prelude.templates, None if base is None else base.values)
        self._coding = PredictedDecoding(geometry, sources, residual_tables(prelude.dtype, prelude.residuals, True))

    def decode(
        self, blocks: FrameBlocks, begin: int, end: int, out: np.ndarray, out_first: int, borrowed: Borrowed
    ) -> tuple[int, int]:
        """Decode blocks; see :meth:`kinds.BlockDecoder.decode`."""
        coding, dtype, (_, block, stream_len) = self._coding, self._dtype, self._coding.geometry
        scratch = borrowed.take(
            (dtype, block, stream_len, "residuals"), lambda: residual_scratch_for(dtype, block, stream_len)
        )
        types = dtype, _is_aligned(coding.sources.base), out.flags.aligned
        return _decode_blocks(types, blocks, begin, end, coding, scratch, out, out_first)


def _is_aligned(base: np.ndarray | None) -> bool | None:
    """Return whether a base is aligned, None of None: what its type depends on."""
    return None if base is None else base.flags.aligned
