"""Sparsifiers, which send few values and their indices: everything but the choice of values."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from .. import codec
from ..errors import Corruption
from .contract import (
    AllGather,
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    check_gradient,
    check_share,
    check_whole,
    n_kept,
    wide,
)
from .indices import bits_per_index, decode_indices, encode_indices
from .outcome import SparseValues, Summed
from .payload import ENVELOPE, SPARSE, errors_of_rank, seal, unseal

_RAW, _FRAMED = b"\0", b"\1"  #: how values are coded: a byte ahead of them
Unpack = Callable[[bytes, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
_MIN_FRAMED = 64  #: fewer values are not tried as a frame, whose header alone takes 48 bytes


@dataclass(frozen=True)
class Sparsifier(Compressor):
    """Every rank chooses some of its values, and all ranks get all choices.

    The payload is an envelope (``payload``), the indices (``indices``), and the values: as a frame, or as they are
    where that is shorter. Those that arrive are added up in the order of ranks, in float32 or wider.

    Attributes:
        density: Share of values that is kept, in (0, 1], at least one value.
        mantissa_bits: Mantissa bits that are sent of each value; None for all.
    """

    knob: ClassVar[str | None] = "density"
    density: float
    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("density", self.density)
        if self.mantissa_bits is not None:
            check_whole("mantissa_bits", self.mantissa_bits)

    @abstractmethod
    def select(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        """Return which values to send of a flat tensor that is not empty: int64[k] on its device, ascending."""

    def refine(self, chosen: SparseValues, n_values: int, memory: Memory, place: Place) -> SparseValues:
        """Choose among the values that a setting of greater density has chosen of a tensor of ``n_values``.

        This is compression of the compressed: it costs what they cost, not what all values would. ``memory`` does not
        change: whether there is anything left to choose depends on the rank, but all ranks must count as many draws,
        or Random-k would choose other values on each of them later.
        """
        k, k_chosen = n_kept(n_values, self.density), chosen.indices.numel()
        if k >= k_chosen:
            return chosen
        at = self.at(k / k_chosen).select(chosen.values, dict(memory), place)
        return SparseValues(chosen.indices[at], chosen.values[at])

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        flat = gradient.reshape(-1)
        return (yield from self.send(gradient, self.chosen(flat, memory, place), place))

    def chosen(self, flat: torch.Tensor, memory: Memory, place: Place) -> torch.Tensor:
        """Return the indices of :meth:`select`, or of all values where no choice is needed: int64[k]."""
        if self.density == 1 or not flat.numel():
            return torch.arange(flat.numel(), device=flat.device)
        return self.select(flat, memory, place)

    def send(self, gradient: torch.Tensor, indices: torch.Tensor, place: Place) -> Conversation:
        """Return the conversation about values that have been chosen.

        Args:
            gradient: The whole gradient.
            indices: int64[k], ascending, of the chosen values of the flat gradient.
            place: The rank and the tensor's name.
        """
        payload = self.pack(gradient.reshape(-1), indices)
        return (yield from gather_sparse(gradient, payload, place, self.unpack))

    def pack(self, flat: torch.Tensor, indices: torch.Tensor) -> bytes:
        """Return the payload of the chosen values of a flat tensor; ``indices``: int64[k], ascending."""
        return pack_sparse(flat, indices, self.mantissa_bits)

    def unpack(self, payload: bytes, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return indices and values of a payload; there is one value for each index, or one for all.

        Arguments and errors are those of :func:`unpack_sparse`.
        """
        return unpack_sparse(payload, like)

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return n_kept(n, self.density) if n else 0

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        k, n = self.floats(shape), math.prod(shape)
        bits = 8 * dtype.itemsize
        if self.mantissa_bits is not None:
            bits = min(bits, 9 + self.mantissa_bits)
        return ENVELOPE + 5 + (k * (bits + bits_per_index(k / n)) / 8 if n else 0)


def gather_sparse(gradient: torch.Tensor, payload: bytes, place: Place, unpack: Unpack | None = None) -> Conversation:
    """Return the conversation in which every rank gets the chosen values of all ranks.

    Args:
        gradient: The whole gradient.
        payload: The payload of this rank's values.
        place: The rank and the tensor's name.
        unpack: Reads a payload; default :func:`unpack_sparse`.
    """
    flat = gradient.reshape(-1)
    payloads = yield AllGather(payload)
    parts = []
    for rank, received in enumerate(payloads):
        with errors_of_rank(rank):
            parts.append(SparseValues(*(unpack or unpack_sparse)(received, flat)))
    mean, sent = Summed(parts, place.size, wide(flat.dtype)), parts[place.rank]
    return Outcome(mean, sent, sent.values.numel(), gradient.shape, gradient.dtype)


def pack_sparse(flat: torch.Tensor, indices: torch.Tensor, mantissa_bits: int | None = None) -> bytes:
    """Return the payload of some values of a flat tensor.

    Args:
        indices: int64[k], ascending, of the values to send.
        mantissa_bits: Mantissa bits to send of each value; None for all.
    """
    where = encode_indices(indices.cpu().numpy(), flat.numel())
    values = flat.detach()[indices].cpu()
    frame = b""
    if mantissa_bits is not None or len(values) >= _MIN_FRAMED:
        frame = codec.encode(values, mantissa_bits=_limited_bits(values, mantissa_bits), threads=1)
    if mantissa_bits is None and (not frame or len(frame) >= values.nbytes):
        frame = values.view(torch.uint8).numpy().tobytes()
        return seal(SPARSE, flat.dtype, flat.numel(), where, _RAW, frame)
    return seal(SPARSE, flat.dtype, flat.numel(), where, _FRAMED, frame)


def _limited_bits(values: torch.Tensor, mantissa_bits: int | None) -> int | None:
    """Return ``mantissa_bits``, or all that the values' dtype has if those are fewer."""
    if mantissa_bits is None:
        return None
    return min(mantissa_bits, round(-math.log2(torch.finfo(values.dtype).eps)))


def unpack_sparse(payload: bytes, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a payload of :func:`pack_sparse` holds.

    Args:
        like: A flat tensor of the size and dtype that the payload is for, and on the device for the result.

    Returns:
        Indices, int64[k], and k values.

    Raises:
        InsufficientData: The payload ends early.
        Corruption: The payload is damaged, or for another size or dtype.
    """
    body = unseal(payload, SPARSE, like.dtype, like.numel())
    where, used = decode_indices(body, like.numel())
    coding, rest = bytes(body[used : used + 1]), body[used + 1 :]
    values = torch.empty(len(where), dtype=like.dtype, device="cpu")
    if coding == _FRAMED:
        codec.decode(rest, out=values, threads=1)
    elif coding == _RAW and len(rest) == values.nbytes:
        values.view(torch.uint8).numpy()[:] = np.frombuffer(rest, np.uint8)
    else:
        raise Corruption(
            f"{len(values)} values must follow as a frame (coding 1) or as {values.nbytes} bytes (coding 0), not as "
            f"{len(rest)} bytes with coding {coding!r}"
        )
    return torch.from_numpy(where).to(like.device), values.to(like.device)
