"""Frames of CUDA tensors, made and read on the device (docs/gpu.md).

The bytes are those that the host's kernels write, given the same codebook, and either side decodes them. Here are
batches of many tensors, which share one codebook and three launches; ``gcodec.encode`` and ``gcodec.decode`` take
single ones.

Everything runs on the current stream of the tensors' device, in its order. The host waits for a fresh codebook's
histogram, for the sizes of frames, for preludes and statuses to decode; and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, Unsupported
from ..format.codebook import Codebook
from ..format.ladders import Ladder
from ..format.modes import BitLayout
from ..options import LADDERS, ROUNDINGS, EncoderOptions
from ..tensors import TORCH, is_torch
from ..truncation.evaluate import Policy

if TYPE_CHECKING:
    import torch

    from ..truncation.optimizers import OptimizerView
    from .encoder import Batch as Batch
    from .encoder import SharedCodebook as SharedCodebook

__all__ = [
    "decode_batch",
    "encode",
    "encode_batch",
    "fresh_codebook",
    "levels_batch",
    "max_frame_bytes",
    "start_batch",
]


def start_batch(
    tensors: Sequence[torch.Tensor],
    *,
    mantissa_bits: int | None = None,
    levels: Sequence[torch.Tensor] | None = None,
    ladder: Ladder | None = None,
    rounding: str | None = None,
    codebook: SharedCodebook | None = None,
    options: EncoderOptions | None = None,
    out: torch.Tensor | None = None,
) -> Batch:
    """Have a frame made of each of some CUDA tensors of one type: float32, bfloat16 or float16.

    ``mantissa_bits``, ``ladder``, ``rounding``, ``options``: as for ``gcodec.encode``; ``levels``: for each tensor one
    of uint8 on the same device. ``codebook``: of :func:`fresh_codebook`, of these or earlier tensors: with it, nothing
    here waits for the device; without, one is made. ``out``: for a batch of one, a flat, contiguous tensor of uint8 on
    the device, of at least :func:`max_frame_bytes`, to be filled; how long its frame is stands in the frame's header.

    Returns a :class:`encoder.Batch`: its ``frames`` (tensors of uint8) and ``sizes`` wait for the device, and raise
    InvalidArgument for levels that the ladder lacks; such a frame has no magic number, and cannot be decoded. Raises
    InvalidArgument, Unsupported.
    """
    from . import batches, encoder

    options = options or EncoderOptions()
    if rounding is not None and rounding not in ROUNDINGS:
        raise InvalidArgument(f"rounding={rounding!r}; one of {ROUNDINGS}")
    memory = _memory(tensors)
    sources, dtype = batches.sources_of(memory, tensors, levels)
    bit_layout = batches.bit_layout_of(dtype, mantissa_bits, levels is not None, ladder, options)
    nearest = (rounding or options.rounding) == "nearest"
    if out is not None:
        _check_out(out, len(tensors), memory, encoder.frame_bound(sources[0], dtype, bit_layout, TORCH))
    return batches.encode(memory, sources, dtype, bit_layout, nearest, codebook, options, out)


def encode(
    x: torch.Tensor,
    mantissa_bits: int | None,
    levels: Any,
    ladder: Ladder | None,
    rounding: str | None,
    optimizer: Any,
    param: Any,
    options: EncoderOptions,
    out: Any,
    device: str | None,
) -> Any:
    """``gcodec.encode`` of a CUDA tensor: its frame on the device, or as bytes if ``device`` is "cpu"; with ``out`` all
    of that, and nobody waits for the size."""
    if device not in (None, "cpu", str(x.device)):
        raise InvalidArgument(f"device={device!r}: a frame lies where its tensor lies, or on the host")
    if optimizer is not None:
        if levels is not None or param is None:
            raise InvalidArgument("give either levels, or an optimizer together with param")
        if mantissa_bits is not None:
            raise InvalidArgument("mantissa_bits and levels or optimizer exclude each other")
        ladder = ladder or LADDERS[options.ladder].get(str(x.dtype).removeprefix("torch."))
        (levels,) = levels_batch(optimizer, [param], [x], ladder=ladder)
    elif param is not None:
        raise InvalidArgument("param and ladder need an optimizer or levels")
    graded = None if levels is None else [levels]
    arguments: Any = {"mantissa_bits": mantissa_bits, "levels": graded, "ladder": ladder, "rounding": rounding}
    batch = start_batch([x], **arguments, options=options, out=out)
    if out is not None:
        return out
    (frame,) = batch.frames
    return frame.cpu().numpy().tobytes() if device == "cpu" else frame


def levels_batch(
    source: torch.optim.Optimizer | Sequence[OptimizerView],
    params: Sequence[torch.Tensor],
    grads: Sequence[torch.Tensor],
    *,
    ladder: Ladder | None = None,
    loss_scale: float = 1.0,
    in_group: bool = True,
    scale: float = 1.0,
) -> list[torch.Tensor]:
    """The level of every value of some CUDA gradients of one type, by the rule of the optimizer that will use them.

    ``source``: the live optimizer that holds ``params``, its state on their device, or a view for each, whose state is
    tensors there. Everything else as in ``gcodec.truncation.optimizers.levels_for``, and so are the levels, bit for
    bit: for each gradient a tensor of uint8 in its shape, on its device, for ``levels=`` of the functions here. Waits
    for the device only where the optimizer counts its steps there (``fused``, ``capturable``): once.

    Raises Unsupported: no rule for this optimizer, float64. InvalidArgument.
    """

    from . import level_choice as levels

    memory, policy = _memory(grads), Policy(ladder, in_group, scale, loss_scale)
    views = list(source) if isinstance(source, Sequence) else levels.views_of(source, params)
    if not len(views) == len(params) == len(grads):
        raise InvalidArgument(f"{len(views)} views, {len(params)} parameters and {len(grads)} gradients")
    asked = [levels.Asked(*one) for one in zip(grads, params, views, strict=True)]
    found = levels.choose(memory, asked, policy)
    return [own.view(grad.shape) for own, grad in zip(found, grads, strict=True)]


def encode_batch(tensors: Sequence[torch.Tensor], **arguments: Any) -> list[torch.Tensor]:
    """The frames of some CUDA tensors, on their device. Arguments and errors as of :func:`start_batch`; waits for the
    frames' sizes."""
    return list(start_batch(tensors, **arguments).frames)


def fresh_codebook(
    tensors: Sequence[torch.Tensor],
    *,
    mantissa_bits: int | None = None,
    levels: Sequence[torch.Tensor] | None = None,
    ladder: Ladder | None = None,
    options: EncoderOptions | None = None,
) -> SharedCodebook | None:
    """The codebook that suits some CUDA tensors together; None where they are all zero. Waits for their histogram."""
    from . import batches, encoder

    options, memory = options or EncoderOptions(), _memory(tensors)
    sources, dtype = batches.sources_of(memory, tensors, levels)
    bit_layout = batches.bit_layout_of(dtype, mantissa_bits, levels is not None, ladder, options)
    return encoder.fit_codebook(memory, sources, dtype, bit_layout, options)


def max_frame_bytes(tensor: torch.Tensor, ladder: Ladder | None = None, mantissa_bits: int | None = None) -> int:
    """Most bytes that a tensor's frame takes: what ``out`` needs to hold any values."""
    from . import batches, encoder

    memory = _memory([tensor])
    (source,), dtype = batches.sources_of(memory, [tensor], None)
    bit_layout: BitLayout = batches.bit_layout_of(dtype, mantissa_bits, ladder is not None, ladder, EncoderOptions())
    return encoder.frame_bound(source, dtype, bit_layout, TORCH)


def decode_batch(
    frames: Sequence[torch.Tensor | bytes],
    *,
    device: torch.device | str | None = None,
    codebooks: Sequence[Codebook] = (),
    max_output_bytes: int | None = None,
) -> list[torch.Tensor]:
    """Tensors on a CUDA device, of frames that lie there (flat tensors of uint8) or are bytes.

    ``device``: by default that of the first frame; ``codebooks``: that frames may name, besides those that come with
    gcodec; ``max_output_bytes``: of all of them together. Frames of other types, of larger blocks than gcodec writes,
    and those with predicted blocks are decoded by the host. Raises as ``gcodec.decode``.
    """
    if not frames:
        return []
    first: Any = frames[0]
    where = _indexed(device if device is not None else first.device if is_torch(first) else "cuda")

    from . import batches
    from . import gpu_memory as memory

    return batches.decode(memory.TorchMemory(where), frames, codebooks, max_output_bytes)


def _memory(tensors: Sequence[torch.Tensor]) -> Any:
    first: Any = tensors[0] if tensors else None
    if not is_torch(first) or not first.is_cuda:
        raise InvalidArgument("need at least one tensor, all of them on one CUDA device")

    from . import gpu_memory as memory

    return memory.TorchMemory(first.device)


def _indexed(device: Any) -> torch.device:
    """A CUDA device with its number; the current one where it has none. Raises InvalidArgument, Unsupported."""
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidArgument(f"device={device!r}: {error}") from None
    if found.type != "cuda":
        raise InvalidArgument(f"{found} is not a CUDA device")
    if not torch.cuda.is_available():
        raise Unsupported("torch finds no CUDA device here")
    index: Any = found.index
    return found if index is not None else torch.device("cuda", torch.cuda.current_device())


def _check_out(out: Any, n_tensors: int, memory: Any, most: int) -> None:
    import torch

    fits = isinstance(out, torch.Tensor) and out.dtype == torch.uint8 and out.ndim == 1 and out.is_contiguous()
    if n_tensors != 1 or not fits or out.device != memory.device or out.data_ptr() % 8 or len(out) < most:
        raise InvalidArgument(f"out is for one tensor: {most} contiguous bytes on its device, from a multiple of 8 on")
