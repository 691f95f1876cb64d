"""QSGD: stochastic quantization (Alistarh et al., NeurIPS 2017)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..errors import Corruption, InvalidArgument, check_choice
from ..tensors import kernel_view
from .bit_packing import packed_size
from .contract import (
    AllGather,
    Compressor,
    Conversation,
    Memory,
    Outcome,
    Place,
    check_gradient,
    check_whole,
    key_of,
    tick,
    wide,
)
from .payload import ENVELOPE, QUANTIZED, errors_of_rank, seal, unseal
from .quantization import dequantize, norms_of, quantize

NORMS = ("max", "l2")


@dataclass(frozen=True)
class QSGD(Compressor):
    """Quantizes every value to sign * norm * l / s, l one of 0 ... s, drawn so that its expectation is the value.

    All ranks get all payloads, so no sum is quantized a second time. Where a value of a bucket is NaN, infinite, or of
    float64 and beyond float32's range, all values of the bucket become NaN, as norms are float32.

    Attributes:
        bits: Bits per value, 2 ... 8, one of them the sign: s = 2**(bits - 1) - 1 levels.
        bucket: Number of values that share a norm, which is sent as a float32.
        norm: Norm of a bucket, "max" or "l2"; the paper's theory has the latter.
        stochastic: Draw one of the two levels nearest to a value; otherwise take the nearer one.
        seed: Seed that determines the draws, together with rank, tensor and step.
    """

    knob: ClassVar[str | None] = "bits"
    bits: int = 4
    bucket: int = 512
    norm: str = "max"
    stochastic: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("bits", self.bits, 2, 8)
        check_whole("bucket", self.bucket)
        check_choice("norm", self.norm, NORMS)

    @property
    def levels(self) -> int:
        """The greatest level, the paper's s."""
        return (1 << self.bits - 1) - 1

    def check_feedback(self) -> None:
        # A value loses at most 1/4 of the squared distance of levels, norm / levels, in expectation.
        if self.norm == "l2" and self.stochastic and self.bucket > 4 * self.levels**2:
            raise InvalidArgument(
                f"feedback must be None, as in CompressionPlan(..., feedback=None), for {self!r}: the error of so few "
                f"levels of an l2 norm may exceed the gradient, and residuals then grow without bound. With feedback "
                f"take norm='max', more bits, or a bucket of at most {4 * self.levels**2} values"
            )

    def compress(self, gradient: torch.Tensor, memory: Memory, place: Place) -> Conversation:
        check_gradient(gradient)
        flat = gradient.reshape(-1)
        key = key_of("qsgd", self.seed, place.name, place.rank, tick(memory))
        payloads = yield AllGather(self.pack(flat, key))
        total, sent = torch.zeros_like(flat, dtype=wide(flat.dtype)), flat
        for rank, payload in enumerate(payloads):
            with errors_of_rank(rank):
                values = self.unpack(payload, flat)
            total += values
            if rank == place.rank:
                sent = values.to(flat.dtype)
        average = total.div_(place.size).to(flat.dtype)
        return Outcome(average.view(gradient.shape), sent.view(gradient.shape), self.floats(gradient.shape))

    def pack(self, flat: torch.Tensor, key: int) -> bytes:
        """Return the payload of a flat tensor: norms, float32 each, then codes, each a level and above it the sign.

        Args:
            flat: The tensor, flat.
            key: Key of the draws, 64 bits.
        """
        values = kernel_view(flat.detach().cpu().float().contiguous().numpy())
        norms = norms_of(values, self.bucket, self.norm == "max")
        packed = quantize(values, norms, self.bucket, self.bits, key if self.stochastic else None)
        return seal(QUANTIZED, flat.dtype, flat.numel(), norms.tobytes(), packed.tobytes())

    def unpack(self, payload: bytes, like: torch.Tensor) -> torch.Tensor:
        """Return the payload's values on the device of ``like``, in the dtype in which they are added up.

        Raises:
            InsufficientData, Corruption: As :func:`~gcodec.compressors.payload.unseal` does; Corruption also where the
                payload has another length than its values take.
        """
        body, n = unseal(payload, QUANTIZED, like.dtype, like.numel()), like.numel()
        n_norms = -(-n // self.bucket)
        n_bytes = 4 * n_norms + packed_size(n, self.bits)
        if len(body) != n_bytes:
            raise Corruption(
                f"{n} values of {self.bits} bits in buckets of {self.bucket} must take {n_bytes} bytes, not {len(body)}"
            )
        norms = np.frombuffer(body[: 4 * n_norms], np.float32).copy()
        values = dequantize(body[4 * n_norms :], norms, self.bucket, self.bits, n)
        return torch.from_numpy(values).to(like.device, wide(like.dtype))

    def floats(self, shape: Sequence[int]) -> float:
        n = math.prod(shape)
        return n * self.bits / 32 + -(-n // self.bucket)

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> float:
        n = math.prod(shape)
        return ENVELOPE + packed_size(n, self.bits) + 4 * -(-n // self.bucket)
