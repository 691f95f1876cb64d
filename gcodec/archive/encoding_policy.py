"""The encoding of a file's values: the policy that an archive's writer asks for every part of it.

Without a policy everything is lossless. :class:`MantissaBits` and :class:`GivenLevels` are the lossy policies for any
file; ``gcodec compress --mode gcomp`` has one of its own, which reads a dump's optimizer state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..errors import InvalidArgument
from ..files.elements import FLOATS, width
from ..files.file_plan import FilePlan, TensorView
from ..files.source import Bytes
from ..options import check_level_array, check_level_shape
from ..tensors import as_plain_array


class Part(NamedTuple):
    """A run of bytes of one segment of a file, which is encoded on its own.

    Attributes:
        segment: Number of the segment in the file's plan.
        start: First byte, counted from the segment's beginning.
        stop: The byte after the last one.
    """

    segment: int
    start: int
    stop: int


class EncodingPolicy(Protocol):
    """Says how the values of a file are encoded."""

    def options(self, part: Part, data: Bytes) -> dict[str, Any]:
        """Return arguments of ``gcodec.encode`` for a part of a segment; none means lossless.

        Called from several threads at once.

        Args:
            part: Which part.
            data: The part's bytes.
        """
        ...


@dataclass(frozen=True)
class MantissaBits:
    """Keeps a number of mantissa bits of every floating-point tensor that has more, except single values.

    Attributes:
        plan: The file whose parts are encoded.
        bits: Mantissa bits to keep.
        more: Further arguments of ``gcodec.encode``.

    Raises:
        InvalidArgument: No floating-point type has that many mantissa bits.
    """

    plan: FilePlan
    bits: int
    more: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        most = max(FLOATS.values())
        if not isinstance(self.bits, Integral) or not 1 <= self.bits <= most:
            raise InvalidArgument(f"mantissa_bits must be an integer from 1 to {most}, not {self.bits!r:.80}")

    def options(self, part: Part, data: Bytes) -> dict[str, Any]:
        """See :class:`EncodingPolicy`."""
        whole = self.plan.segments[part.segment]
        dtype = whole.dtype or ""
        if self.bits >= FLOATS[dtype] or whole.stop - whole.start <= (width(dtype) or 0):
            return {}
        return {"mantissa_bits": self.bits, **self.more}


class GivenLevels:
    """Encodes tensors near-losslessly with levels that the caller chose; tensors without levels stay as they are.

    Args:
        plan: The file whose parts are encoded.
        levels: Name of a tensor to its level indices, uint8, one for each value.
        more: Further arguments of ``gcodec.encode``.

    Raises:
        InvalidArgument: Levels for a tensor that the file lacks, that holds no floating-point numbers, or that has
            another shape or another number of values.
    """

    def __init__(self, plan: FilePlan, levels: Mapping[str, Any], more: Mapping[str, Any]) -> None:
        self._plan, self._more, self._levels = plan, more, {}
        views = {view.name: view for view in plan.tensors}
        for name, indices in levels.items():
            if name not in views:
                raise InvalidArgument(f"levels has the key {name!r}, but there is no such tensor")
            self._levels[views[name].segment] = self._flat(views[name], as_plain_array(indices, "levels"))

    def _flat(self, view: TensorView, indices: np.ndarray) -> np.ndarray:
        """Return the levels of a tensor in row-major order."""
        segment = self._plan.segments[view.segment]
        if segment.dtype is None:
            raise InvalidArgument(f"levels has the key {view.name!r}, but that tensor is of {view.dtype}")
        n_values = (segment.stop - segment.start) // (width(segment.dtype) or 1)
        try:
            check_level_array(str(indices.dtype), indices.size, n_values)
            check_level_shape(indices.shape, view.shape if segment.dtype == view.dtype else ())
        except InvalidArgument as error:
            raise InvalidArgument(f"tensor {view.name!r}: {error}") from None
        return np.ascontiguousarray(indices).reshape(-1)

    def options(self, part: Part, data: Bytes) -> dict[str, Any]:
        """See :class:`EncodingPolicy`."""
        if part.segment not in self._levels:
            return {}
        size = width(self._plan.segments[part.segment].dtype or "") or 1
        return {"levels": self._levels[part.segment][part.start // size : part.stop // size], **self._more}
