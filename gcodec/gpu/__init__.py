"""Frames of CUDA tensors, made and read on the device (docs/gpu.md).

The bytes are those that the host's kernels write, given the same codebook, and either side decodes them. Here are
batches of many tensors, which share one codebook and three launches; ``gcodec.encode`` and ``gcodec.decode`` take
single ones.

Everything runs on the current stream of the tensors' device, in its order. The host waits for a fresh codebook's
histogram, for the sizes of frames, for preludes and statuses to decode; and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtypes import BY_NAME
from ..errors import InvalidArgument, Unsupported, check_choice, missing_torch, named_device
from ..format.change_codebook import ChangeCodebook
from ..format.codebook import Codebook
from ..format.ladders import Ladder
from ..options import EncoderOptions, Precision, check_level_shape, check_lossless, checked_options
from ..plan.request import EncodeRequest
from ..tensors import TORCH, Values, check_has_memory, is_torch
from ..truncation.evaluate import Policy

if TYPE_CHECKING:
    import torch

    from ..truncation.optimizers import OptimizerView
    from .batches import DecodedBatch as DecodedBatch
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
    "start_decode",
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
    """Start to encode CUDA tensors of one type, a frame each: float32, bfloat16 or float16.

    Args:
        tensors: CUDA tensors of one device and type.
        mantissa_bits: Mantissa bits to keep, as for ``gcodec.encode``.
        levels: A tensor of uint8 of its size, on the same device, for each tensor, for near-lossless encoding.
        ladder: The ladder of ``levels``, as for ``gcodec.encode``.
        rounding: "nearest" or "truncate", as for ``gcodec.encode``.
        codebook: The result of :func:`fresh_codebook` for these or earlier tensors: with it, nothing here waits for the
            device; one is made if None.
        options: Options of the encoder, as for ``gcodec.encode``.
        out: Memory for the frame of a batch of one: a flat, contiguous tensor of uint8 on the device, of at least
            :func:`max_frame_bytes`, apart from the tensor's. The frame's header states its size.

    Returns:
        The batch. Its ``frames`` (tensors of uint8) and ``sizes`` wait for the device, and raise InvalidArgument for
        levels that the ladder lacks; such a frame has no magic number, and cannot be decoded.

    Raises:
        InvalidArgument: Tensors of several types or devices, or arguments that do not go together.
        Unsupported: Tensors of a type that is not coded on CUDA devices.
    """
    precision = Precision(mantissa_bits, levels, ladder, rounding)
    return _start(tensors, precision, checked_options(options), codebook, out)


def encode(x: torch.Tensor, precision: Precision, options: EncoderOptions, out: Any, *, to_host: bool) -> Any:
    """Encode one CUDA tensor; ``gcodec.encode`` calls this with its own arguments, which are explained there.

    Args:
        x: A CUDA tensor.
        precision: Which bits of its values are kept.
        options: Options of the encoder.
        out: Memory for the frame, as for :func:`start_batch`.
        to_host: Return the frame as bytes.

    Returns:
        The frame as a tensor of uint8 or as bytes; or all of ``out``, and nothing waits for the frame's size.

    Raises:
        InvalidArgument: Arguments that do not go together.
        Unsupported: A type or an optimizer that is not known here.
    """
    if precision.levels is not None:
        check_level_shape(getattr(precision.levels, "shape", ()), x.shape)
        precision = precision._replace(levels=[precision.levels])
    batch = _start([x], precision, options, None, out)
    if out is not None:
        return out
    (frame,) = batch.frames
    return frame.cpu().numpy().tobytes() if to_host else frame


class BaseRequest(NamedTuple):
    """Holds what ``gcodec.encode`` was asked for with a base; its own arguments, which are explained there.

    Attributes:
        base: The base, a CUDA tensor.
        precision: Which bits are kept, which must be all.
        options: Options of the encoder.
        shapes: Shapes of the tensors that the tensor holds end to end.
        threads: Threads of the host to use at most.
    """

    base: Any
    precision: Precision
    options: EncoderOptions
    shapes: Sequence[Sequence[int]]
    threads: int | None


def encode_against(x: torch.Tensor, asked: BaseRequest, out: Any, *, to_host: bool) -> Any:
    """Encode one CUDA tensor against a base on its device; ``gcodec.encode`` calls this.

    Args:
        asked: What ``gcodec.encode`` was asked for.
        out: Memory for the frame, a flat tensor of uint8 on the device, or None.
        to_host: Return the frame as bytes.

    Returns:
        The frame as a tensor of uint8 or as bytes; or all of ``out``.

    Raises:
        InvalidArgument: Arguments that do not go together, or ``out`` is too small.
    """
    from . import batches

    memory, options = _memory([x]), asked.options
    nearest = asked.precision.is_nearest(options)
    _, dtype, shape = memory.see(x)
    bit_layout, _ = asked.precision.bit_layout(dtype, options)
    check_lossless(bit_layout)
    if out is not None:
        _check_out(out, 1, memory)
    values, levels = Values(np.zeros(0, dtype.uint), dtype, shape, TORCH), np.zeros(0, np.uint8)
    request = EncodeRequest(
        values, bit_layout, levels, options, nearest, asked.threads, shapes=asked.shapes, standalone=True
    )
    frame = batches.encode_patch(memory, x, asked.base, request)
    if out is None:
        return frame.cpu().numpy().tobytes() if to_host else frame
    if len(out) < len(frame):
        raise InvalidArgument(f"out has {len(out)} bytes, too few for the frame, which takes {len(frame)}")
    memory.copy(frame, out[: len(frame)])
    return out


def _start(
    tensors: Sequence[Any], precision: Precision, options: EncoderOptions, codebook: SharedCodebook | None, out: Any
) -> Batch:
    """Start to make frames; ``precision`` has levels for each tensor, or an optimizer and the parameter of one."""
    from . import batches

    nearest = precision.is_nearest(options)
    memory = _memory(tensors)
    sources, dtype = batches.sources_of(memory, tensors)
    bit_layout, ladder = precision.bit_layout(dtype, options)
    if out is not None:
        _check_out(out, len(tensors), memory)
    levels = precision.levels
    if precision.optimizer is not None:
        levels = levels_batch(precision.optimizer, [precision.param], tensors, ladder=ladder)
    sources = batches.with_levels(memory, sources, levels)
    return batches.encode(memory, sources, dtype, bit_layout, nearest, codebook, options, out)


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
    """Choose the level of every value of CUDA gradients, by the rule of the optimizer that will use them.

    The levels are, bit for bit, those of ``gcodec.truncation.optimizers.levels_for``. Waits for the device once, and
    only where the optimizer counts its steps there (``fused``, ``capturable``).

    Args:
        source: The live optimizer that holds ``params``, its state on their device; or a view for each parameter, whose
            state is tensors there.
        params: The parameters.
        grads: Their gradients, all of one type.
        ladder: As in ``levels_for``.
        loss_scale: As in ``levels_for``.
        in_group: As in ``levels_for``.
        scale: As in ``levels_for``.

    Returns:
        For each gradient a tensor of uint8 of its shape, on its device, to be given as ``levels=`` here.

    Raises:
        InvalidArgument: Sizes or counts that differ.
        Unsupported: There is no rule for this optimizer, or a tensor is of float64.
    """
    from . import level_choice as levels

    memory, policy = _memory(grads), Policy(ladder, in_group, scale, loss_scale)
    memory.check_capture()  # an optimizer whose step is captured counts its steps on the device
    views = list(source) if isinstance(source, Sequence) else levels.views_of(source, params)
    if not len(views) == len(params) == len(grads):
        raise InvalidArgument(
            f"source, params and grads must be equally many, not {len(views)}, {len(params)} and {len(grads)}"
        )
    requests = [levels.LevelRequest(*request) for request in zip(grads, params, views, strict=True)]
    chosen = levels.choose(memory, requests, policy)
    return [flat.view(grad.shape) for flat, grad in zip(chosen, grads, strict=True)]


def encode_batch(tensors: Sequence[torch.Tensor], **arguments: Any) -> list[torch.Tensor]:
    """Return the frames of CUDA tensors, on their device; waits for the frames' sizes.

    Args:
        tensors: CUDA tensors of one device and type.
        arguments: Further arguments of :func:`start_batch`, which raises the same errors.
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
    """Return the codebook that suits CUDA tensors together; waits for their histogram.

    Args:
        tensors: CUDA tensors of one device and type.
        mantissa_bits: As for :func:`start_batch`, and as the tensors will be encoded.
        levels: As for :func:`start_batch`.
        ladder: As for :func:`start_batch`.
        options: As for :func:`start_batch`.

    Returns:
        The codebook; None where all values are zero.

    Raises:
        InvalidArgument: Tensors of several types or devices, or arguments that do not go together.
        Unsupported: Tensors of a type that is not coded on CUDA devices.
    """
    from . import batches, encoder

    options, memory = checked_options(options), _memory(tensors)
    sources, dtype = batches.sources_of(memory, tensors)
    bit_layout, _ = Precision(mantissa_bits, levels, ladder).bit_layout(dtype, options)
    sources = batches.with_levels(memory, sources, levels)
    return encoder.fit_codebook(memory, sources, dtype, bit_layout, options)


def max_frame_bytes(tensor: torch.Tensor, ladder: Ladder | None = None, mantissa_bits: int | None = None) -> int:
    """Return the max size of a tensor's frame in bytes, whatever its values: the size that ``out`` needs.

    Args:
        tensor: A CUDA tensor.
        ladder: The ladder, for near-lossless encoding.
        mantissa_bits: Mantissa bits to keep, for encoding with fixed bits.
    """
    from . import batches, encoder

    memory = _memory([tensor])
    (source,), dtype = batches.sources_of(memory, [tensor])
    levels = None if ladder is None else ()  # a ladder is for levels, whatever these will be
    bit_layout, _ = Precision(mantissa_bits, levels, ladder).bit_layout(dtype, EncoderOptions())
    return encoder.frame_bound(source, dtype, bit_layout, TORCH)


def start_decode(
    frames: Sequence[torch.Tensor | bytes],
    *,
    device: torch.device | str | None = None,
    codebooks: Sequence[Codebook | ChangeCodebook] = (),
    max_output_bytes: int | None = None,
    preludes: Sequence[Any] = (),
) -> DecodedBatch:
    """Start to decode frames to tensors on a CUDA device, and wait for nothing but their preludes.

    Frames of types that the kernels do not know, of larger blocks than gcodec writes, and those with predicted, sparse
    or indexed blocks are decoded by the host, which takes as long as that.

    Args:
        frames: Flat tensors of uint8 on the device, or bytes.
        device: Where the tensors go; the device of the first frame if None.
        codebooks: Codebooks that frames may name, besides those that come with gcodec.
        max_output_bytes: max size of all tensors together.
        preludes: The prelude of each frame on the host, as ``Batch.preludes`` has it, or None where it is to be fetched
            from the device: nothing waits where all are given.

    Returns:
        The batch. Its ``tensors`` may be used at once by what comes later on the stream. ``check()`` waits for the
        device and raises GcodecError if a frame is damaged: what was made of the tensors is then worth nothing.

    Raises:
        GcodecError: As ``gcodec.decode`` raises, for what is wrong before the blocks.
    """
    _check_several("frames", frames)
    first: Any = frames[0] if frames else None
    where = _indexed(device if device is not None else first.device if is_torch(first) else "cuda")

    from . import batches
    from . import gpu_memory as memory

    return batches.begin_decoding(memory.TorchMemory(where), frames, codebooks, max_output_bytes, preludes)


def decode_batch(
    frames: Sequence[torch.Tensor | bytes],
    *,
    device: torch.device | str | None = None,
    codebooks: Sequence[Codebook | ChangeCodebook] = (),
    max_output_bytes: int | None = None,
) -> list[torch.Tensor]:
    """Decode frames to tensors on a CUDA device, and wait for them; arguments as for :func:`start_decode`.

    Returns:
        A tensor for each frame.

    Raises:
        GcodecError: As ``gcodec.decode`` raises.
    """
    _check_several("frames", frames)
    if not frames:
        return []
    return start_decode(frames, device=device, codebooks=codebooks, max_output_bytes=max_output_bytes).check()


def decode_into(data: Any, base: Any, out: Any, device: Any, max_output_bytes: int | None) -> Any:
    """Decode one frame against a base or into a given tensor; ``gcodec.decode`` calls this with its own arguments,
    which are explained there.

    Args:
        data: A frame: a flat tensor of uint8, or bytes.
        base: The frame's base, a tensor on the device; or None.
        out: A tensor on the device to fill; or None.
        device: The CUDA device.
        max_output_bytes: Max size of the result.

    Returns:
        ``out``, or a new tensor on the device.

    Raises:
        GcodecError: As ``gcodec.decode`` raises.
    """
    where = _indexed(device)

    from . import batches
    from . import gpu_memory as memory

    return batches.decode_one(memory.TorchMemory(where), data, base, out, max_output_bytes=max_output_bytes)


def device_hashes(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Return the XXH3 of tensors' bytes, computed on their device; weight sync calls this.

    Args:
        tensors: Flat, contiguous CUDA tensors of uint8, of one device.

    Returns:
        16 hexadecimal digits for each, as of ``xxhash.xxh3_64_hexdigest``.
    """
    if not tensors:
        return []
    from . import hashing

    return hashing.hash_tensors(_memory(tensors), tensors)


def warmup_device(dtypes: Sequence[str], device: Any) -> torch.device:
    """Compile all kernels for a device, as they lie in files that several types share, and load them there, with those
    of the host that make codebooks for it; ``gcodec.warmup`` calls this.

    Args:
        dtypes: Names of value types; where no value of these is coded on a device, nothing is compiled.
        device: The CUDA device.

    Returns:
        The device, with its number.

    Raises:
        InvalidArgument: For unknown names, or another device.
        Unsupported: There is no such device, or nothing compiles for it.
    """
    for name in dtypes:
        check_choice("dtype", name, BY_NAME)
    where = _indexed(device)
    if any(BY_NAME[name].bits <= 32 for name in dtypes):
        from ..kernels.cuda.launch import prepare_all
        from .encoder import warm_codebooks

        prepare_all(where.index)
        warm_codebooks()
    return where


def _memory(tensors: Sequence[torch.Tensor]) -> Any:
    """Return the device of the first tensor. Raises InvalidArgument unless that is a CUDA tensor."""
    _check_several("tensors", tensors)
    first: Any = tensors[0] if tensors else None
    if getattr(first, "is_cuda", False) is not True:
        raise InvalidArgument("tensors must be CUDA tensors of one device, at least one")

    from . import gpu_memory as memory

    return memory.TorchMemory(first.device)


def _check_several(name: str, items: Any) -> None:
    """Raise InvalidArgument unless an argument is a sequence: of one tensor the rows, or the values, would be taken for
    tensors."""
    is_one = is_torch(items) or isinstance(items, str | bytes | bytearray | memoryview | np.ndarray | np.generic)
    if is_one or not hasattr(items, "__getitem__"):
        raise InvalidArgument(f"{name} must be a list or tuple, not a {type(items).__name__}; pass [x] for one")


def _indexed(device: Any) -> torch.device:
    """Return a CUDA device with its number; the current one where it has none.

    Raises:
        InvalidArgument: It is no CUDA device.
        Unsupported: torch finds no such device.
        NotInstalled: There is no torch.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_torch(f"device={device!r}") from error
    try:
        where = named_device(device)
    except ValueError as error:
        raise InvalidArgument(f"device must be a CUDA device or 'cpu', not {device!r}: {error}") from None
    if where.type != "cuda":
        raise InvalidArgument(f"device must be a CUDA device or 'cpu', not '{where}'")
    if not torch.cuda.is_available():
        raise Unsupported("torch finds no CUDA device here")
    index: Any = where.index
    return where if index is not None else torch.device("cuda", torch.cuda.current_device())


def _check_out(out: Any, n_tensors: int, memory: Any) -> None:
    """Raise InvalidArgument unless ``out`` is memory for a frame; its size is checked where bounds are known."""
    import torch

    if n_tensors != 1:
        raise InvalidArgument(f"out must be None for a batch of {n_tensors} tensors: it is for the frame of one")
    flat = isinstance(out, torch.Tensor) and out.dtype == torch.uint8 and out.ndim == 1 and out.is_contiguous()
    if not flat or out.device != memory.device or out.data_ptr() % 8:
        raise InvalidArgument(
            f"out must be a flat, contiguous tensor of uint8 on {memory.device} that begins at a multiple of 8 bytes"
        )
    check_has_memory(out, "out")


def __dir__() -> list[str]:
    return __all__
