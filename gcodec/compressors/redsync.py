"""RedSync: top-k by cheap searches for a threshold (Fang et al., JPDC 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import Corruption, InvalidArgument
from .contract import Memory, Place, n_kept, tick
from .indices import bits_per_index, decode_indices, encode_indices
from .magnitudes import Magnitudes, magnitudes_in
from .payload import ENVELOPE, SPARSE, seal, unseal
from .selection import above, largest
from .sparse import Sparsifier

METHODS = ("auto", "trimmed", "bisection")


@dataclass(frozen=True)
class RedSync(Sparsifier):
    """Searches a threshold between the mean and the maximum of sizes.

    ``method``: "trimmed" top-k: lower the threshold from the maximum in steps of ``step`` of that distance until k
    values exceed it, then choose the k largest of these; "bisection": halve until k ... 2k values exceed it, or the
    interval is ``tolerance`` of the distance, and send these, 2k at most; "auto": bisection from ``large`` values on
    (the paper's 4 MB). ``same_sign``: choose among positive and among negative values in turns, and send one number,
    the mean of those chosen, beside the indices (the paper's quantization).
    """

    method: str = "auto"
    large: int = 1 << 20
    step: float = 0.2
    tolerance: float = 1e-3
    same_sign: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in METHODS:
            raise InvalidArgument(f"method={self.method!r}; one of {METHODS}")
        if not (0 < self.step < 1 and 0 < self.tolerance < 1):
            raise InvalidArgument(f"step={self.step}, tolerance={self.tolerance}: not in (0, 1)")
        if self.same_sign and self.mantissa_bits is not None:
            raise InvalidArgument("one mean is sent as it is: mantissa_bits has no meaning with same_sign")

    def chosen(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        if self.same_sign and flat.numel():
            return self.select(flat, memory, place)
        return super().chosen(flat, memory, place)

    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        if not self.same_sign:
            return self._largest(flat, n_kept(flat.numel(), self.density))
        sign = -1 if tick(memory) % 2 else 1
        one_sided = (flat * sign).nan_to_num(nan=torch.inf).clamp_(min=0)
        indices = self._largest(one_sided, n_kept(flat.numel(), self.density))
        return indices[one_sided[indices] > 0]

    def _largest(self, flat: torch.Tensor, k: int) -> torch.Tensor:
        sizes = magnitudes_in(flat)
        mean, most = sizes.mean, sizes.most
        if not most < torch.inf:
            return largest(flat, k)
        by_halves = self.method == "bisection" or (self.method == "auto" and flat.numel() >= self.large)
        limit = 2 * k if by_halves else k
        find = self._by_halves if by_halves else self._by_steps
        threshold = find(sizes, k, mean, most - mean)
        indices = above(flat, threshold, sizes.most_above(threshold))
        return indices if indices.numel() <= limit else indices[largest(flat[indices], limit)]

    def _by_steps(self, sizes: Magnitudes, k: int, mean: float, distance: float) -> float:
        """A threshold that at least k values reach: below the mean too, where the density asks for that."""
        share = 1 - self.step
        while (threshold := mean + share * distance) > 0 and not sizes.reached(threshold, k):
            if not distance:
                return 0.0
            share -= self.step
        return max(threshold, 0.0)

    def _by_halves(self, sizes: Magnitudes, k: int, mean: float, distance: float) -> float:
        """Return a threshold that k ... 2k values reach, or the one below which the search ended."""
        low = mean if sizes.reached(mean, k) else 0.0
        high = mean + distance
        while high - low > self.tolerance * distance:
            threshold = low + (high - low) / 2
            if not sizes.reached(threshold, k):
                high = threshold
            elif sizes.reached(threshold, 2 * k + 1):
                low = threshold
            else:
                return threshold
        return low

    def pack(self, flat: torch.Tensor, indices: torch.Tensor) -> bytes:
        if not self.same_sign:
            return super().pack(flat, indices)
        where = encode_indices(indices.cpu().numpy(), flat.numel())
        mean = flat[indices].double().mean().to(flat.dtype).cpu().view(1)
        return seal(SPARSE, flat.dtype, flat.numel(), where, mean.view(torch.uint8).numpy().tobytes())

    def unpack(self, payload: bytes, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.same_sign:
            return super().unpack(payload, like)
        body = unseal(payload, SPARSE, like.dtype, like.numel())
        where, used = decode_indices(body, like.numel())
        if len(body) - used != like.element_size():
            raise Corruption(f"{len(body) - used} bytes of values instead of a single mean")
        mean = torch.frombuffer(bytearray(body[used:]), dtype=like.dtype)
        return torch.from_numpy(where).to(like.device), mean.to(like.device)

    def floats(self, shape: Sequence[int]) -> float:
        return 1 if self.same_sign else super().floats(shape)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        if not self.same_sign:
            return super().payload_bytes(shape, dtype)
        return ENVELOPE + 4 + dtype.itemsize + super().floats(shape) * bits_per_index(self.density) / 8
