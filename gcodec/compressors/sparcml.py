"""SparCML's sparse all-reduce: split, then all-gather, with a switch to dense (Renggli et al., SC 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

from ..errors import InvalidArgument
from .contract import (
    AllGather,
    AllToAll,
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    check_gradient,
    check_share,
    parts_of,
    wide,
)
from .outcome import SparseValues
from .payload import errors_of_rank
from .sparse import Sparsifier, pack_sparse, unpack_sparse


@dataclass(frozen=True)
class SparCML(Compressor):
    """Sends a sparsifier's values to the owner of each part, which adds them up and sends the sum to all ranks.

    What a rank sends hardly grows with the number of ranks once sums are dense, where gathering everything grows in
    proportion. Nothing is rounded on the way.

    Attributes:
        sparsifier: Chooses the values, which are sent as they are: it has neither ``mantissa_bits`` nor ``same_sign``.
        switch: Density from which a sum is sent without indices, in (0, 1] (the paper's delta: one half, where an index
            takes as many bytes as a value).
    """

    knob: ClassVar[str | None] = "density"
    sparsifier: Sparsifier
    switch: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.sparsifier, Sparsifier):
            raise InvalidArgument(f"sparsifier must choose values, as TopK(0.01) does, unlike {self.sparsifier!r}")
        super().__post_init__()
        check_share("switch", self.switch)
        if self.sparsifier.mantissa_bits is not None or getattr(self.sparsifier, "same_sign", False):
            raise InvalidArgument(
                f"sparsifier must have neither mantissa_bits nor same_sign, for values are sent as they are, unlike "
                f"{self.sparsifier!r}"
            )

    @property
    def value(self) -> float:
        return self.sparsifier.value

    def at(self, value: float) -> Self:
        return replace(self, sparsifier=self.sparsifier.at(value))

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        flat = gradient.reshape(-1)
        indices = self.sparsifier.chosen(flat, memory, place)
        parts = parts_of(flat.numel(), place.size)
        cuts = torch.searchsorted(indices, torch.tensor([part.stop for part in parts], device=flat.device)).tolist()
        begins = [0, *cuts[:-1]]
        received = yield AllToAll(
            [
                pack_sparse(flat[part], indices[begin:end] - part.start)
                for part, begin, end in zip(parts, begins, cuts, strict=True)
            ]
        )
        results = yield AllGather(self._sum(received, flat[parts[place.rank]]))
        average = torch.empty_like(flat)
        for rank, (part, payload) in enumerate(zip(parts, results, strict=True)):
            total = torch.zeros_like(flat[part], dtype=wide(flat.dtype))
            with errors_of_rank(rank):
                where, values = unpack_sparse(payload, total)
            total[where] = values
            average[part] = total.div_(place.size).to(flat.dtype)
        return Outcome(average.view(gradient.shape), SparseValues(indices, flat[indices]), indices.numel())

    def _sum(self, payloads: Sequence[bytes], like: torch.Tensor) -> bytes:
        """Return the payload of the sum of what all ranks have sent for this rank's part, a tensor like ``like``."""
        total = torch.zeros_like(like, dtype=wide(like.dtype))
        touched = torch.zeros_like(like, dtype=torch.bool)
        for rank, payload in enumerate(payloads):
            with errors_of_rank(rank):
                where, values = unpack_sparse(payload, like)
            total[where] += values.to(total.dtype)
            touched[where] = True
        indices = torch.nonzero(touched).view(-1)
        if indices.numel() >= self.switch * like.numel():
            indices = torch.arange(like.numel(), device=like.device)
        return pack_sparse(total, indices)

    def floats(self, shape: Sequence[int]) -> float:
        return self.sparsifier.floats(shape)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        """Return how many bytes the chosen values take, which is the least that a rank hands over.

        Of W ranks, each hands over 1 - 1/W of that in the first phase. In the second it hands over the sum of its part:
        1/W of that where all ranks choose the same values, and as much as that again where no two choose the same one.
        """
        return self.sparsifier.payload_bytes(shape, dtype)
