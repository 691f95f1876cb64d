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
    """Start to make a frame of each of some CUDA tensors of one type: float32, bfloat16 or float16.

    Args:
        tensors: CUDA tensors of one device and type.
        mantissa_bits: mantissa bits to keep, as for ``gcodec.encode``.
        levels: for each tensor one of uint8 and its size on the same device, for near-lossless encoding.
        ladder: the ladder of ``levels``, as for ``gcodec.encode``.
        rounding: "nearest" or "truncate", as for ``gcodec.encode``.
        codebook: the result of :func:`fresh_codebook` for these or earlier tensors: with it, nothing here waits for the
            device; one is made if None.
        options: options of the encoder, as for ``gcodec.encode``.
        out: memory for the frame of a batch of one: a flat, contiguous tensor of uint8 on the device, of at least
            :func:`max_frame_bytes`. The frame's header states its size.

    Returns:
        The batch. Its ``frames`` (tensors of uint8) and ``sizes`` wait for the device, and raise InvalidArgument for
        levels that the ladder lacks; such a frame has no magic number, and cannot be decoded.

    Raises:
        InvalidArgument: tensors of several types or devices, or arguments that do not go together.
        Unsupported: tensors of a type that is not coded on CUDA devices.
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
    """Encode one CUDA tensor; ``gcodec.encode`` calls this with its own arguments, which are explained there.

    They come one by one, not in a bundle: which of them go together is only found here.

    Args:
        x: a CUDA tensor.
        mantissa_bits: mantissa bits to keep.
        levels: level of every value, uint8.
        ladder: the ladder of the levels.
        rounding: "nearest" or "truncate".
        optimizer: the optimizer whose rule finds the levels.
        param: the parameter whose gradient ``x`` is, for ``optimizer``.
        options: options of the encoder.
        out: memory for the frame, as for :func:`start_batch`.
        device: "cpu" for bytes on the host; None or the tensor's device for a frame there.

    Returns:
        The frame as a tensor of uint8 or as bytes; or all of ``out``, and nothing waits for the frame's size.

    Raises:
        InvalidArgument: arguments that do not go together.
        Unsupported: a type or an optimizer that is not known here.
    """
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
    """Choose the level of every value of some CUDA gradients, by the rule of the optimizer that will use them.

    The levels are, bit for bit, those of ``gcodec.truncation.optimizers.levels_for``. Waits for the device once, and
    only where the optimizer counts its steps there (``fused``, ``capturable``).

    Args:
        source: the live optimizer that holds ``params``, its state on their device; or a view for each parameter, whose
            state is tensors there.
        params: the parameters.
        grads: their gradients, all of one type.
        ladder: as in ``levels_for``.
        loss_scale: as in ``levels_for``.
        in_group: as in ``levels_for``.
        scale: as in ``levels_for``.

    Returns:
        For each gradient a tensor of uint8 of its shape, on its device, to be given as ``levels=`` here.

    Raises:
        InvalidArgument: sizes or counts that differ.
        Unsupported: there is no rule for this optimizer, or a tensor is of float64.
    """
    from . import level_choice as levels

    memory, policy = _memory(grads), Policy(ladder, in_group, scale, loss_scale)
    views = list(source) if isinstance(source, Sequence) else levels.views_of(source, params)
    if not len(views) == len(params) == len(grads):
        raise InvalidArgument(f"{len(views)} views, {len(params)} parameters and {len(grads)} gradients")
    requests = [levels.LevelRequest(*request) for request in zip(grads, params, views, strict=True)]
    chosen = levels.choose(memory, requests, policy)
    return [flat.view(grad.shape) for flat, grad in zip(chosen, grads, strict=True)]


def encode_batch(tensors: Sequence[torch.Tensor], **arguments: Any) -> list[torch.Tensor]:
    """Return the frames of some CUDA tensors, on their device; waits for the frames' sizes.

    Args:
        tensors: CUDA tensors of one device and type.
        arguments: further arguments of :func:`start_batch`, which raises the same errors.
    """
    return list(start_batch(tensors, **arguments).frames)


def fresh_codebook(
    tensors: Sequence[torch.Tensor],
    *,
    mantissa_bits: int | None = None,
    levels: Sequence[torch.Tensor] | None = None,
    ladder: Ladder | None = None,
    options: EncoderOptions | None = None,
) -> SharedCodebook | None:
    """Return the codebook that suits some CUDA tensors together; waits for their histogram.

    Args:
        tensors: CUDA tensors of one device and type.
        mantissa_bits: as for :func:`start_batch`, and as the tensors will be encoded.
        levels: likewise.
        ladder: likewise.
        options: likewise.

    Returns:
        The codebook; None where all values are zero.

    Raises:
        InvalidArgument: tensors of several types or devices, or arguments that do not go together.
        Unsupported: tensors of a type that is not coded on CUDA devices.
    """
    from . import batches, encoder

    options, memory = options or EncoderOptions(), _memory(tensors)
    sources, dtype = batches.sources_of(memory, tensors, levels)
    bit_layout = batches.bit_layout_of(dtype, mantissa_bits, levels is not None, ladder, options)
    return encoder.fit_codebook(memory, sources, dtype, bit_layout, options)


def max_frame_bytes(tensor: torch.Tensor, ladder: Ladder | None = None, mantissa_bits: int | None = None) -> int:
    """Return the max size of a tensor's frame in bytes, whatever its values: the size that ``out`` needs.

    Args:
        tensor: a CUDA tensor.
        ladder: the ladder, for near-lossless encoding.
        mantissa_bits: mantissa bits to keep, for encoding with fixed bits.
    """
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
    """Decode frames to tensors on a CUDA device.

    Frames of types that the kernels do not know, of larger blocks than gcodec writes, and those with predicted blocks
    are decoded by the host.

    Args:
        frames: flat tensors of uint8 on the device, or bytes.
        device: where the tensors go; the device of the first frame if None.
        codebooks: codebooks that frames may name, besides those that come with gcodec.
        max_output_bytes: max size of all tensors together.

    Returns:
        A tensor for each frame.

    Raises:
        GcodecError: as ``gcodec.decode`` raises.
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
    """Return a CUDA device with its number; the current one where it has none. Raises InvalidArgument, Unsupported."""
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


def _check_out(out: Any, n_tensors: int, memory: Any, bound: int) -> None:
    import torch

    fits = isinstance(out, torch.Tensor) and out.dtype == torch.uint8 and out.ndim == 1 and out.is_contiguous()
    if n_tensors != 1 or not fits or out.device != memory.device or out.data_ptr() % 8 or len(out) < bound:
        raise InvalidArgument(f"out is for one tensor: {bound} contiguous bytes on its device, from a multiple of 8 on")
