"""Encoding and decoding as operators of torch, which ``torch.compile`` takes into its graphs.

Importing this module registers ``torch.ops.gcodec.encode_out`` and ``torch.ops.gcodec.decode_out``. They write into
tensors that the caller brings, so that no size depends on values.
"""

from __future__ import annotations

import torch

from .. import codec
from ..errors import InvalidArgument
from ..format.prelude import FRAME_SIZE_AT
from ..frame.encode import OutputTooSmall
from ..frame.sizes import max_encoded_size
from ..tensors import check_tensor

_SIZE_BYTES = 8
# A CUDA graph would send pinned memory of the call again when it holds something else. torch.compile reads the tag.
_TAGS = (torch.Tag.cudagraph_unsafe,)


def frame_room(x: torch.Tensor) -> int:
    """Return the bytes that ``out`` of :func:`encode_out` needs, whatever the values.

    Args:
        x: The tensor to be encoded; only its shape and type matter.

    Raises:
        InvalidArgument: It is not a dense tensor of a type that gcodec encodes.
    """
    if not isinstance(x, torch.Tensor):
        raise InvalidArgument(f"x must be a torch tensor, not a {type(x).__name__}")
    return max_encoded_size(tuple(x.shape), check_tensor(x)[0].name)


def _check_given(**tensors: torch.Tensor | None) -> None:
    """Raise InvalidArgument for None, which torch lets through where an operator takes a tensor."""
    for name, tensor in tensors.items():
        if tensor is None:
            raise InvalidArgument(f"{name} must be a torch tensor, not None")


@torch.library.custom_op(
    "gcodec::encode_out",
    mutates_args=("out",),
    schema="(Tensor x, Tensor(a!) out, int? mantissa_bits=None) -> Tensor",
    tags=_TAGS,
)
def encode_out(x: torch.Tensor, out: torch.Tensor, mantissa_bits: int | None = None) -> torch.Tensor:
    """Encode a tensor as one frame at the beginning of another; what lies behind the frame means nothing.

    Args:
        x: Tensor of any shape and strides, of a type that ``gcodec.encode`` takes, in CPU memory or on a CUDA device.
        out: Contiguous uint8 tensor of at least :func:`frame_room` bytes where ``x`` lies; on a CUDA device it begins
            at a multiple of 8.
        mantissa_bits: Keep this many mantissa bits; all if None.

    Returns:
        The frame's bytes, an int64 tensor of no dimensions where ``x`` lies. The host need not wait for it: decoding
        ignores what lies behind a frame.

    Raises:
        InvalidArgument: ``out`` does not fit, or is not of uint8.
        Unsupported: The device's encoder does not know the type.
    """
    _check_given(x=x, out=out)
    if out.dtype != torch.uint8:  # any other type would do as memory, but not for reading the size below
        raise InvalidArgument(f"out must be uint8, not {out.dtype}: torch.empty(frame_room(x), dtype=torch.uint8)")
    values = x.detach()
    try:
        codec.encode(values, mantissa_bits=mantissa_bits, out=out if out.is_cuda else out.numpy())
    except OutputTooSmall:
        raise InvalidArgument(
            f"out has {out.numel()} bytes, too few for the frame; frame_room(x), {frame_room(x)} bytes, always suffices"
        ) from None
    return out.view(-1)[FRAME_SIZE_AT : FRAME_SIZE_AT + _SIZE_BYTES].clone().view(torch.int64).reshape(())


@encode_out.register_fake
def _(x: torch.Tensor, out: torch.Tensor, mantissa_bits: int | None = None) -> torch.Tensor:
    torch._check(out.dtype == torch.uint8, lambda: f"out must be of uint8, not {out.dtype}")
    torch._check(out.device == x.device, lambda: f"out must lie on {x.device}, where x does, not on {out.device}")
    return torch.empty((), dtype=torch.int64, device=x.device)


@torch.library.custom_op(
    "gcodec::decode_out", mutates_args=("out",), schema="(Tensor frame, Tensor(a!) out) -> ()", tags=_TAGS
)
def decode_out(frame: torch.Tensor, out: torch.Tensor) -> None:
    """Decode a frame into a tensor.

    Args:
        frame: Contiguous uint8 tensor that begins with a frame; bytes behind it are ignored.
        out: Contiguous tensor of the frame's type and number of values, on the frame's device; on a CUDA device the
            host waits for the blocks' statuses.

    Raises:
        InvalidArgument: ``out`` does not fit the frame.
        InsufficientData: ``frame`` ends before the frame does.
        Corruption: The frame is damaged; ``out`` may be partly written then.
        Unsupported: The frame needs a base, or a codebook that is not there.
    """
    _check_given(frame=frame, out=out)
    codec.decode(frame if frame.is_cuda else frame.numpy(), out=out)


@decode_out.register_fake
def _(frame: torch.Tensor, out: torch.Tensor) -> None:
    torch._check(frame.dtype == torch.uint8, lambda: f"frame must be of uint8, not {frame.dtype}")
    torch._check(out.device == frame.device, lambda: f"out must lie on {frame.device}, not on {out.device}")
