"""RedSync: top-k by cheap searches for a threshold (Fang et al., JPDC 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..errors import Corruption, InvalidArgument, check_choice
from .contract import Memory, Place, n_kept, tick
from .indices import bits_per_index, decode_indices, encode_indices
from .magnitudes import Magnitudes, magnitudes_in
from .payload import ENVELOPE, SPARSE, seal, unseal
from .selection import above, largest
from .sparse import Sparsifier

METHODS = ("auto", "trimmed", "bisection")


@dataclass(frozen=True)
class RedSync(Sparsifier):
    """Searches for a threshold between the mean and the max of magnitudes.

    Attributes:
        method: "trimmed" lowers the threshold from the max until k values reach it, and keeps the k largest of these.
            "bisection" halves the interval until k ... 2k values reach the threshold, and keeps these, 2k at most.
            "auto" is bisection for tensors of ``large`` values and more, trimmed for others.
        large: Number of values from which "auto" bisects; the default is the paper's 4 MB.
        step: Step of "trimmed", as a share of the distance between mean and max, in (0, 1).
        tolerance: Width of the interval at which bisection ends, as a share of that distance, in (0, 1).
        same_sign: Choose among positive and among negative values in turns, and send one number, the mean of those
            chosen, beside the indices (the paper's quantization).
    """

    method: str = "auto"
    large: int = 1 << 20
    step: float = 0.2
    tolerance: float = 1e-3
    same_sign: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("method", self.method, METHODS)
        for name in ("step", "tolerance"):
            if not 0 < getattr(self, name) < 1:
                raise InvalidArgument(f"{name} must be above 0 and below 1, not {getattr(self, name)!r}")
        if self.same_sign and self.mantissa_bits is not None:
            raise InvalidArgument("mantissa_bits must be None with same_sign, which sends one mean as it is")

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
        """Return the indices of about the k largest values, int64, ascending."""
        magnitudes = magnitudes_in(flat)
        if not magnitudes.max < torch.inf:
            return largest(flat, k)
        bisect = self.method == "bisection" or (self.method == "auto" and flat.numel() >= self.large)
        limit = 2 * k if bisect else k
        find = self._bisected if bisect else self._trimmed
        threshold = find(magnitudes, k, magnitudes.mean, magnitudes.max - magnitudes.mean)
        indices = above(flat, threshold, magnitudes.max_above(threshold))
        return indices if indices.numel() <= limit else indices[largest(flat[indices], limit)]

    def _trimmed(self, magnitudes: Magnitudes, k: int, mean: float, distance: float) -> float:
        """Return a threshold that at least k values reach: below the mean too, where the density asks for that."""
        share = 1 - self.step
        while (threshold := mean + share * distance) > 0 and not magnitudes.reached(threshold, k):
            if not distance:
                return 0.0
            share -= self.step
        return max(threshold, 0.0)

    def _bisected(self, magnitudes: Magnitudes, k: int, mean: float, distance: float) -> float:
        """Return a threshold that k ... 2k values reach, or the one below which the search ended."""
        low = mean if magnitudes.reached(mean, k) else 0.0
        high = mean + distance
        while high - low > self.tolerance * distance:
            threshold = low + (high - low) / 2
            if not low < threshold < high:  # they are neighbors
                break
            if not magnitudes.reached(threshold, k):
                high = threshold
            elif magnitudes.reached(threshold, 2 * k + 1):
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
            raise Corruption(f"one mean of {like.element_size()} bytes must follow the indices, not {len(body) - used}")
        mean = torch.frombuffer(bytearray(body[used:]), dtype=like.dtype)
        return torch.from_numpy(where).to(like.device), mean.to(like.device)

    def floats(self, shape: Sequence[int]) -> float:
        return 1 if self.same_sign else super().floats(shape)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        if not self.same_sign:
            return super().payload_bytes(shape, dtype)
        return ENVELOPE + 4 + dtype.itemsize + super().floats(shape) * bits_per_index(self.density) / 8
