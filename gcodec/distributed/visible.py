"""The part of an outer update that the next forward pass in a narrow type would see.

Miahi and Belilovsky, "Understanding and Exploiting Weight Update Sparsity for Communication-Efficient Distributed RL"
(2026), call it compute-visible sparsification, and its use in DiLoCo PULSELoCo.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from ..codec import warmup
from ..compressors.contract import Compressor, Conversation, Memory, Place, check_whole
from ..compressors.sparse import gather_sparse, pack_sparse, unpack_sparse
from ..errors import InvalidArgument

_VIEWS = (torch.bfloat16, torch.float16)
_TYPES = (torch.float32, torch.float64)  #: of parameters, which must be wider than what is seen of them


@dataclass(frozen=True)
class Visible(Compressor):
    """The mode of DiLoCo that sends only the values of an outer gradient that the next forward pass would see.

    A value p is sent if the parameter has another value in the type ``view`` with it than without it, view(w - p) !=
    view(w), where w is the parameter after the last outer step. All else stays in this rank's residual, which is added
    to its next outer gradient: what was sent plus the residual is the sum of the outer gradients, to rounding. NaN and
    infinity are always sent.

    Attributes:
        view: The type in which the forward pass reads parameters, ``torch.bfloat16`` or ``torch.float16``. The
            parameters themselves must be float32 or float64.
        mantissa_bits: Mantissa bits that are sent of each value, at least 1; None for all. The residual keeps what this
            rounds away, too.

    Raises:
        InvalidArgument: An attribute has another type or value.
    """

    carries_nan: ClassVar[bool] = True
    view: torch.dtype = torch.bfloat16
    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        if self.view not in _VIEWS:
            raise InvalidArgument(f"view must be torch.bfloat16 or torch.float16, not {self.view!r:.80}")
        if self.mantissa_bits is not None:
            check_whole("mantissa_bits", self.mantissa_bits)

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        if place.param is None:
            raise InvalidArgument(f"place.param must be the parameter whose update {place.name!r} is, not None")
        flat, param = gradient.reshape(-1), place.param.detach().reshape(-1)
        indices = torch.nonzero((param - flat).to(self.view) != param.to(self.view)).view(-1)
        return (yield from gather_sparse(gradient, pack_sparse(flat, indices, self.mantissa_bits), place))

    def floats(self, shape: Sequence[int]) -> float:
        return math.prod(shape)  # at most; how many it is depends on the values

    def prepare(self, params: Sequence[torch.Tensor]) -> None:
        """Check the types of parameters, and compile what their exchange needs.

        Raises:
            InvalidArgument: A parameter is neither float32 nor float64.
        """
        for dtype in dict.fromkeys(param.dtype for param in params):
            if dtype not in _TYPES:
                raise InvalidArgument(
                    f"parameters must be float32 or float64 for Visible(), not {dtype}: it keeps back what a narrower "
                    "type does not show"
                )
            warmup([str(dtype).removeprefix("torch.")])
            values = torch.linspace(1, 2, 1000, dtype=dtype, device="cpu")
            where = torch.arange(0, 1000, 7, device="cpu")
            unpack_sparse(pack_sparse(values, where, self.mantissa_bits), values)
