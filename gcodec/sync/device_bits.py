"""Bits of tensors on a CUDA device: kept, compared and hashed there, and copied to the host part by part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from ..files.source import Bytes
from ..tensors import is_torch

if TYPE_CHECKING:
    import torch

#: Values are compared on a device in runs of so many, whose comparison takes as many bytes.
COMPARE_VALUES = 1 << 26


class DeviceBits:
    """The row-major bits of a tensor on a device.

    Args:
        words: Integers of the values' width, [n], contiguous.

    Attributes:
        words: As above.
        size: Size in bytes.
        device: The device.
    """

    def __init__(self, words: torch.Tensor) -> None:
        self.words, self.size, self.device = words, int(words.nbytes), words.device

    def __getitem__(self, part: slice) -> Bytes:
        """Return bytes ``start`` to ``stop`` as a copy on the host."""
        copied: np.ndarray = as_bytes_there(self.words)[part].cpu().numpy()
        return copied

    def __repr__(self) -> str:
        return f"DeviceBits({self.size} bytes on {self.device})"


Bits = Bytes | DeviceBits


def is_on_device(value: Any) -> bool:
    """Return True for a tensor on a CUDA device."""
    return is_torch(value) and bool(value.is_cuda)


def as_bytes_there(words: torch.Tensor) -> torch.Tensor:
    """Return a flat, contiguous tensor as bytes, which share its memory."""
    import torch

    return words.view(torch.uint8)


def device_bits(value: torch.Tensor) -> DeviceBits:
    """Return the bits of a tensor on a device, in its own memory where they lie one after the other there."""
    import torch

    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    dense = value.detach().resolve_conj().resolve_neg().contiguous()
    # Flat before it is viewed, for a scalar has no last dimension to be cut up.
    flat = dense.reshape(-1)
    return DeviceBits(flat.view(integers.get(value.element_size(), torch.uint8)))


def held_copy(bits: Bits, room: Bits | None) -> Bits:
    """Return a copy of bits, in the memory of ``room`` if that is of their size and in the same place."""
    if isinstance(bits, DeviceBits):
        fits = isinstance(room, DeviceBits) and (room.device, room.words.shape) == (bits.device, bits.words.shape)
        if not fits or room.words.dtype != bits.words.dtype:  # type: ignore[union-attr]
            return DeviceBits(bits.words.clone())
        room.words.copy_(bits.words)  # type: ignore[union-attr]
        return room  # type: ignore[return-value]
    own = room if isinstance(room, np.ndarray) and room.size == bits.size else np.empty_like(bits)
    np.copyto(own, bits)
    return own


def bits_beside(bits: Bits, other: Bits) -> Bits:
    """Return bits in the same place as others, on the host or on their device; copied only if they are elsewhere."""
    if isinstance(other, DeviceBits):
        if isinstance(bits, DeviceBits):
            same = bits.device == other.device
            return bits if same else DeviceBits(bits.words.to(other.device))
        import torch

        room = torch.empty_like(other.words)
        as_bytes_there(room).copy_(torch.from_numpy(bits.copy()))
        return DeviceBits(room)
    return bits[:] if isinstance(bits, DeviceBits) else bits


def wait_for_copies(bits: Iterable[Bits]) -> None:
    """Wait until devices have made the copies of bits on them, so that other streams may change what was copied."""
    for device in {item.device for item in bits if isinstance(item, DeviceBits) and item.device.type == "cuda"}:
        import torch

        torch.cuda.current_stream(device).synchronize()


def n_different(before: DeviceBits, after: DeviceBits) -> int:
    """Return how many values of two tensors of one type and size differ, on one device."""
    one, other, step = before.words, after.words, COMPARE_VALUES
    return sum(
        int((one[start : start + step] != other[start : start + step]).sum().item())
        for start in range(0, len(one), step)
    )


def hashes_of(bits: Mapping[str, Bits], threads: Any) -> dict[str, str]:
    """Return the XXH3 of bits by name: 16 hexadecimal digits each.

    Args:
        bits: Bits by name, each on the host or on a device.
        threads: A pool that hashes those on the host.
    """
    on_host = {name: item for name, item in bits.items() if not isinstance(item, DeviceBits)}
    there = [name for name in bits if name not in on_host]
    pending = threads.map(lambda item: xxhash.xxh3_64_hexdigest(item.data), on_host.values())
    found = dict(zip(there, hashes_on_device([as_bytes_there(bits[name].words) for name in there]), strict=True))  # type: ignore[union-attr]
    return found | dict(zip(on_host, pending, strict=True))


def hashes_on_device(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return the XXH3 of flat tensors of uint8, on any devices: 16 hexadecimal digits each."""
    from .. import gpu

    digests = [""] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        own = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        for k, digest in zip(own, gpu.device_hashes([tensors[k] for k in own]), strict=True):
            digests[k] = digest
    return digests
