"""Encode and decode: the public functions on arrays and tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .dtypes import BY_NAME, DType
from .errors import InvalidArgument, LimitExceeded, NoMemory, Unsupported, check_choice, check_output_limit
from .format.ladders import FINE_LADDER, Ladder
from .format.modes import BitLayout, lossless
from .format.prelude import Prelude
from .frame.decode import FrameReader
from .frame.encode import check_apart
from .frame.inspect import inspect
from .frame.sizes import max_encoded_size
from .frame.small_reads import SmallFrame, small_frame
from .frame.smallest import encode_array
from .options import (
    DEFAULT_OPTIONS,
    EXACT,
    EncoderOptions,
    Precision,
    check_base_array,
    check_level_array,
    check_level_shape,
    check_lossless,
    checked_options,
)
from .plan.kept_values import keep_values
from .plan.request import NO_LEVELS, EncodeRequest
from .tensors import Values, as_plain_array, check_has_data, kernel_view, new_output, output_bits, values_of
from .threads import check_threads, n_threads
from .truncation.optimizers import levels_for

__all__ = ["decode", "decode_range", "encode", "inspect", "max_encoded_size", "warmup"]

_NO_SCRATCH = np.zeros(0, np.uint8)


def bit_layout_for(values: Values, precision: Precision, options: EncoderOptions) -> tuple[BitLayout, np.ndarray]:
    """Return the bit layout that encode's arguments ask for, and the level of every value.

    Args:
        values: The array as bits.
        precision: The arguments.
        options: As for :func:`encode`.

    Returns:
        The layout, and uint8[n_values], or an empty array where there is one level for all.

    Raises:
        InvalidArgument: If the arguments contradict each other, or do not fit the array.
    """
    if precision is EXACT:
        return lossless(values.dtype), NO_LEVELS
    bit_layout, ladder = precision.bit_layout(values.dtype, options)
    if precision.keep is not None:
        return keep_values(values.bits, values.dtype, bit_layout, precision.keep)
    if ladder is None:
        return bit_layout, NO_LEVELS
    if precision.optimizer is not None:
        dtype = values.dtype  # which the array as the caller gave it need not tell: it may be of unsigned integers
        floats = values.bits.view(dtype.name) if dtype.in_numpy else values.bits
        levels = levels_for(precision.optimizer, precision.param, floats.reshape(values.shape), ladder=ladder)
    else:
        levels = as_plain_array(precision.levels, "levels")
        check_level_shape(levels.shape, values.shape)
    levels = kernel_view(np.ascontiguousarray(levels).reshape(-1))
    check_level_array(str(levels.dtype), levels.size, len(values.bits))
    if len(ladder.drops) == 1 and levels.any():  # where there are more, encoding itself finds those beyond the ladder
        raise InvalidArgument(f"levels must be at most 0 in a ladder of 1 level, not {int(levels.max())}")
    return bit_layout, levels


def encode(
    x: Any,
    *,
    mantissa_bits: int | None = None,
    levels: Any = None,
    ladder: Ladder | None = None,
    rounding: str | None = None,
    keep: Any = None,
    optimizer: Any = None,
    param: Any = None,
    dtype: str | None = None,
    shapes: Sequence[Sequence[int]] | None = None,
    base: Any = None,
    options: EncoderOptions | None = None,
    threads: int | None = None,
    out: Any = None,
    device: Any = None,
) -> Any:
    """Encode an array or tensor as one frame (docs/format.md), lossless unless told otherwise.

    ::

        frame = gcodec.encode(gradient)                      # bit for bit
        frame = gcodec.encode(gradient, mantissa_bits=7)     # to bfloat16's precision
        gradient = gcodec.decode(frame)

    Args:
        x: Numpy or JAX array or torch tensor, any shape and strides, never changed; float32, float64, float16,
            bfloat16 or float8. A CUDA tensor is encoded on its device (docs/gpu.md).
        mantissa_bits: Keep this many mantissa bits; the relative error of normal values is at most
            2**-(mantissa_bits + 1).
        levels: uint8, of x's shape or flat, an index into ``ladder`` per value.
        ladder: The bits dropped at each level; by default the one that ``options`` name, for the dtype.
        rounding: "nearest" (even) or "truncate"; by default as ``options`` say.
        keep: A number or several, with ``mantissa_bits``: values equal to one, such as a fill value, come
            back bit for bit, and no other value becomes equal to one.
        optimizer: Torch optimizer or OptimizerView, in place of ``levels``: levels follow the optimizer's rule (GComp,
            Table 2; docs/algorithms/near-lossless.md).
        param: The parameter whose gradient ``x`` is, with ``optimizer``.
        dtype: Name of the type whose bits an unsigned integer array holds.
        shapes: Shapes of the tensors that ``x`` holds end to end, such as a bucket's; x's own by default. What rows of
            one tensor have in common is used (docs/format.md, section 8).
        base: An earlier array of the same type and number of values, such as the same tensor of an earlier checkpoint:
            the difference is stored then, and decoding needs it again. That of a CUDA tensor lies on its device.
        options: How codebooks are made (``LITERAL_GCOMP``: all as in the paper).
        threads: Threads to use at most; by default all cores.
        out: Writable uint8 array or buffer of at least ``max_encoded_size`` bytes, apart from the other arrays. What it
            holds behind the frame may be overwritten, too.
        device: "cpu" to have the frame of a CUDA tensor as bytes all the same; a name, or a ``torch.device``.

    Returns:
        Bytes, or with ``out`` the memoryview of the part of it that was written; of a CUDA tensor a tensor of uint8 on
        its device, or all of ``out``.

    Raises:
        InvalidArgument: If the arguments contradict each other or do not fit ``x``; ``out`` may be partly written then.
        Unsupported: For a tensor on another device, or what the device's encoder cannot do.
    """
    options = DEFAULT_OPTIONS if options is None else checked_options(options)
    precision = EXACT
    if not (
        mantissa_bits is None
        and levels is None
        and ladder is None
        and rounding is None
        and optimizer is None
        and param is None
        and keep is None
    ):
        precision = Precision(mantissa_bits, levels, ladder, rounding, optimizer, param, keep)
    if _is_on_gpu(x):
        if dtype is not None:
            raise Unsupported("dtype is not supported for CUDA tensors; call .cpu() first")
        if keep is not None:
            raise Unsupported("keep is not supported for CUDA tensors; call .cpu() first")
        if device is not None and str(device) not in ("cpu", str(x.device)):
            raise InvalidArgument(f"device must be None, 'cpu' or '{x.device}', where x lies, not {device!r}")
        check_has_data(x)
        check_threads(threads)
        shapes = _check_shapes(shapes, tuple(x.shape))
        from . import gpu

        if base is None:
            return gpu.encode(x, precision, options, out, to_host=str(device) == "cpu")
        asked = gpu.BaseRequest(base, precision, options, shapes, threads)
        return gpu.encode_against(x, asked, out, to_host=str(device) == "cpu")
    if device is not None and str(device) != "cpu":
        raise InvalidArgument(
            f"device must be None or 'cpu' for an array on the host, not {device!r}; move the tensor there first"
        )
    if threads is not None:
        check_threads(threads)
    nearest = precision is EXACT or precision.is_nearest(options)
    values = values_of(x, dtype)
    shapes = (values.shape,) if shapes is None else _check_shapes(shapes, values.shape)
    bit_layout, level_array = bit_layout_for(values, precision, options)
    earlier = None if base is None else _base_bits(base, values.dtype, len(values.bits), dtype)
    if earlier is not None:
        check_lossless(bit_layout)
    request = EncodeRequest(
        values, bit_layout, level_array, options, nearest, threads, None, shapes, earlier, standalone=True
    )
    if out is not None:
        check_apart(request, out)
    return encode_array(request, out)


def _is_on_gpu(x: Any) -> bool:
    """Return True for a CUDA tensor; nothing else has torch's attribute, and torch need not be imported to ask."""
    return type(x) is not np.ndarray and getattr(x, "is_cuda", False) is True


def _base_bits(base: Any, dtype: DType, n_values: int, name: str | None = None) -> np.ndarray:
    """Return a base as bits, uintW[n_values], where ``name`` is the type that unsigned integers stand for. Raises
    InvalidArgument if it is of another type or size than the array."""
    values = values_of(base, name, "base")
    check_base_array(dtype, n_values, values.dtype, len(values.bits))
    return values.bits


def _check_shapes(shapes: Sequence[Sequence[int]] | None, shape: tuple[int, ...]) -> Sequence[Sequence[int]]:
    """Return a caller's shapes, as Python's integers, or the array's own in place of None. Raises InvalidArgument."""
    if shapes is None:
        return (shape,)
    n_values = math.prod(shape)
    try:
        whole = [tuple(map(operator.index, parts)) for parts in shapes]  # numpy's integers would overflow in products
    except TypeError:
        raise InvalidArgument(f"shapes must be sequences of integers, not {shapes!r}") from None
    if any(size < 0 for parts in whole for size in parts) or sum(map(math.prod, whole)) != n_values:
        raise InvalidArgument(f"shapes must have the array's {n_values} values in all, not {whole}")
    return whole


_LIKE = {None: None, "numpy": 0, "torch": 1}


def _container(like: str | None, recorded: int) -> int:
    """Return the container code for ``like``, or the recorded one in place of None. Raises InvalidArgument."""
    check_choice("like", like, _LIKE)
    container = _LIKE[like]
    return recorded if container is None else container


def decode(
    data: Any,
    *,
    out: Any = None,
    like: str | None = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
    base: Any = None,
    device: Any = None,
) -> Any:
    """Decode a frame into the kind of array that was encoded.

    Args:
        data: Bytes-like, one frame, or a CUDA tensor of uint8; bytes after the frame are ignored.
        out: Contiguous array or tensor to fill, of the frame's type and number of values; where it is decoded, and
            apart from ``data``.
        like: "numpy" or "torch" to override the recorded kind.
        threads: Threads to use at most; by default all cores.
        max_output_bytes: Refuse frames that decode to more; use it on bytes from strangers.
        base: The array that the frame was encoded against, if it was; where it is decoded. It may be ``out`` as well:
            then what differs is written over it, and nothing if anything is wrong.
        device: A CUDA device to decode on, or "cpu"; by default where the frame, ``base`` or ``out`` lies. On a CUDA
            device, the result is a tensor there.

    Returns:
        The array or tensor; ``out`` if that was given. A numpy array is in C order and native byte order, whatever was
        encoded; of a type that numpy lacks (bfloat16, float8) it is of ``ml_dtypes``' type where that is installed,
        else of unsigned integers.

    Raises:
        InvalidArgument: If ``out``, ``like`` or ``base`` do not fit the frame.
        InsufficientData: If ``data`` ends before the frame does.
        Corruption: If the frame is damaged; ``out`` may be partly written then, unless it is the base.
        Unsupported: If the frame needs a codebook, a base or a version that is not there.
        LimitExceeded: If the frame decodes to more than ``max_output_bytes`` or than there is memory for.
    """
    is_plain = type(data) is bytes and base is None and out is None
    there = [] if is_plain else [x for x in (data, base, out) if _is_on_gpu(x)]
    if (device is None and not there) or str(device) == "cpu":
        if _is_on_gpu(data):
            data = data.cpu().numpy()
        small = small_frame(data) if base is None else None
        if small is not None:
            result = _decode_small(small, out, like, threads, max_output_bytes)
            if result is not None:
                return result
        return decode_frame(FrameReader(data), out, like, threads, max_output_bytes, base)
    if like == "numpy":
        raise Unsupported("like='numpy' is not supported when decoding on a device; pass device='cpu'")
    from . import gpu

    where = there[0].device if device is None else device
    if base is None and out is None:
        (result,) = gpu.decode_batch([data], device=where, max_output_bytes=max_output_bytes)
        return result
    return gpu.decode_into(data, base, out, where, max_output_bytes)


def decode_frame(
    frame: FrameReader, out: Any, like: str | None, threads: int | None, max_output_bytes: int | None, base: Any = None
) -> Any:
    """Decode a parsed frame; other arguments and errors as for :func:`decode`."""
    prelude = frame.prelude
    container = _container(like, prelude.container)
    _check_limit(prelude.n_values * prelude.dtype.itemsize, max_output_bytes)
    if out is None:
        result, bits, _ = _new_arrays(prelude.dtype, prelude.shape, container)
    else:
        result, bits = out, output_bits(out, prelude.dtype.narrow, prelude.n_values)
        _check_apart(bits, frame.data)
    earlier, workers = _base_of(base, prelude), n_threads(threads, prelude.n_values)
    if earlier is not None and out is not None and np.may_share_memory(bits, earlier):
        if bits.ctypes.data != earlier.ctypes.data:
            raise InvalidArgument("out and base share memory: they must be one array, or apart")
        frame.decode_in_place(bits, workers)
    else:
        frame.decode_blocks(0, prelude.n_blocks, bits, workers, earlier)
    return result


def _decode_small(
    frame: SmallFrame, out: Any, like: str | None, threads: int | None, max_output_bytes: int | None
) -> Any:
    """Decode a small frame; None if it is not as usual. Arguments and errors as for :func:`decode`."""
    data, form, n_books = frame
    if threads is not None:
        check_threads(threads)
    container = form.container if like is None else _container(like, form.container)
    if max_output_bytes is not None:
        _check_limit(form.n_bytes, max_output_bytes)
    if out is None:
        result, bits, _ = _new_arrays(form.dtype, form.shape, container)
    else:
        result, bits = out, output_bits(out, form.dtype.narrow, form.n_values)
        _check_apart(bits, data)
    return result if form.decode(data, n_books, bits) else None


def _check_apart(out: np.ndarray, data: np.ndarray) -> None:
    """Raise InvalidArgument if values would be written over the frame that they are read from, and both be lost."""
    if np.may_share_memory(out, data):
        raise InvalidArgument("out must not share memory with data, the frame, which is read while out is written")


def _base_of(base: Any, prelude: Prelude) -> np.ndarray | None:
    """Return a decoder's base as bits, uintW[n_values], or None; unsigned integers are taken as the frame's type.
    Raises InvalidArgument."""
    if base is None:
        return None
    name = prelude.dtype.name if isinstance(base, np.ndarray) and base.dtype.kind == "u" else None
    return _base_bits(base, prelude.dtype, prelude.n_values, name)


def _check_limit(size: int, limit: int | None) -> None:
    """Raise LimitExceeded unless ``size`` bytes are at most ``limit``, or that is None; InvalidArgument if it is no
    number."""
    check_output_limit(limit)
    if limit is not None and size > limit:
        raise LimitExceeded(f"the frame decodes to {size} bytes, more than max_output_bytes={limit}")


def _new_arrays(
    dtype: DType, shape: tuple[int, ...], container: int, n_scratch: int = 0
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return an array to decode to, its bits, and uintW[n_scratch]. Raises NoMemory where there is none."""
    try:
        scratch = np.empty(n_scratch, dtype.uint) if n_scratch else _NO_SCRATCH
        return *new_output(dtype.narrow, shape, container), scratch
    except (MemoryError, ValueError, OverflowError):
        raise NoMemory(f"there is no memory for the frame's array of shape {shape}") from None


def decode_range(
    data: Any,
    start: int,
    stop: int,
    *,
    like: str | None = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
    base: Any = None,
) -> Any:
    """Decode a range of a frame's values; only the blocks that hold them are read and verified.

    Args:
        data: As for :func:`decode`, on the host.
        start: First value, in row-major order.
        stop: End of the values; 0 <= start <= stop <= number of values.
        like: "numpy" or "torch" to override the recorded kind.
        threads: Threads to use at most; by default all cores.
        max_output_bytes: Refuse ranges that decode to more.
        base: The whole array that the frame was encoded against, if it was.

    Returns:
        The values as a flat array.

    Raises:
        InvalidArgument: If the range does not lie in the frame; otherwise as :func:`decode` does.
    """
    frame = FrameReader(data)
    prelude = frame.prelude
    try:
        start, stop = operator.index(start), operator.index(stop)
    except TypeError:
        raise InvalidArgument(f"start and stop must be integers, not {start!r} and {stop!r}") from None
    if not 0 <= start <= stop <= prelude.n_values:
        raise InvalidArgument(
            f"0 <= start <= stop <= {prelude.n_values}, the frame's values, must hold, not start={start}, stop={stop}"
        )
    container = _container(like, prelude.container)
    _check_limit((stop - start) * prelude.dtype.itemsize, max_output_bytes)
    begin, end = (start >> prelude.block_log2, -(-stop >> prelude.block_log2)) if stop > start else (0, 0)
    first = begin << prelude.block_log2
    covered = min(end << prelude.block_log2, prelude.n_values) - first
    result, bits, scratch = _new_arrays(prelude.dtype, (stop - start,), container, covered)
    frame.decode_blocks(begin, end, scratch, n_threads(threads, covered), _base_of(base, prelude))
    bits[:] = scratch[start - first : stop - first] if stop > start else scratch
    return result


#: The arrays that warmup encodes have few different values: where indexed blocks are allowed, there are no others.
_WARMED_OPTIONS = EncoderOptions(indexed=False), EncoderOptions()


def _warmed_rows(name: str, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Yield matrices that are encoded in a way of their own each, with a base or None."""
    uniform = rng.uniform(-0.9, 0.9, (300, 160)).astype(np.float32)
    scales = np.exp2(-np.arange(160, dtype=np.float32) % 40)
    matrices = (
        uniform,  # wide heads
        uniform[0] * uniform[:, :1],  # predicted rows
        np.abs(uniform),  # signs in heads
        np.round(99 * uniform) * np.abs(uniform[:, :1]),  # indices of multiples of scales
        np.round(9 * uniform) * np.abs(uniform[:, :1]) + uniform[:, 1:2],  # and of scales and offsets
        np.where(rng.random(uniform.shape) < 0.05, uniform, np.round(9 * uniform)),  # and of few values beside others
        uniform * scales,  # references of columns
        np.where(np.arange(300)[:, None] < 150, uniform, rng.standard_exponential((300, 160)) ** 3),  # two codebooks
    )
    for matrix in matrices:
        near = matrix * (1 + np.float32(2**-9) * uniform)
        with np.errstate(over="ignore"):  # in float16 the largest columns are infinite
            rows, base = (
                part.astype(name)
                if name != "bfloat16"
                else (part.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
                for part in (matrix, near)
            )
        yield from ((rows, None), (rows, rows), (rows, base))
    yield rows.reshape(-1), None  # small frames of no rows


def warmup(dtypes: Sequence[str] | str = tuple(BY_NAME), *, device: Any = None) -> None:
    """Compile all kernels for these value types, so that no later call waits for the compiler.

    The results are cached on disk: this takes minutes on a fresh installation, and well under a second after that.

    Args:
        dtypes: Names of value types, or one of them; by default all.
        device: A CUDA device, to compile its kernels, which lie in files that the types share, and to load them there;
            by default the CPU.

    Raises:
        InvalidArgument: For anything but names of value types.
        Unsupported: There is no such device, or nothing compiles for it.
    """
    try:
        names = [dtypes] if isinstance(dtypes, str) else list(dtypes)
    except TypeError:
        raise InvalidArgument(f"dtypes must be names of value types, such as 'float32', not {dtypes!r:.80}") from None
    for name in names:
        check_choice("dtypes", name, BY_NAME)
    if device is not None and str(device) != "cpu":
        from .gpu import warmup_device

        warmup_device(names, device)
        return
    from .kernels.sample.repeated_words import share_repeated  # for archives

    rng = np.random.default_rng(0)
    for name in names:
        dtype = BY_NAME[name]
        exponents = rng.integers(1, 12, 40_000).astype(np.uint64) << np.uint64(max(dtype.head_shift, 1))
        bits = (exponents | rng.integers(0, 2, 40_000).astype(np.uint64)).astype(dtype.uint)
        settings: list[dict[str, Any]] = [{}]
        if dtype.tail_bits:
            steps = FINE_LADDER[name]
            levels = rng.integers(0, len(steps.drops), bits.size).astype(np.uint8)
            kept = (3, 7) if name == "float32" else (3,)  # seven make planes of a kind of their own
            settings += [*({"mantissa_bits": bits} for bits in kept), {"levels": levels, "ladder": steps}]
        for keywords in settings:
            as_type = bits.view(name) if dtype.in_numpy else bits
            for options in _WARMED_OPTIONS:
                decode(encode(as_type, dtype=name, options=options, **keywords))
        share_repeated(bits.view(np.uint8), 4)
        if dtype.predictable:
            for rows, base in _warmed_rows(name, rng):
                decode(encode(rows, dtype=name, base=base), base=base)
