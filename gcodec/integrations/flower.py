"""Flower: arrays in messages between server and clients, compressed without loss."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, Message

from ..codec import decode, encode
from ..dtypes import BY_NAME
from ..errors import Corruption

#: The serialization type of compressed arrays, and of those that Flower makes itself.
STYPE, PLAIN = "gcodec.frame", "numpy.ndarray"


def compress_message(message: Message) -> Message:
    """Compress the floating-point arrays of a message in place, and return it; others stay as they are.

    Args:
        message: what is about to be sent; on the server from a strategy's ``configure_train`` or
            ``configure_evaluate``, on a client from :func:`gcodec_mod`.
    """
    return _with_arrays(message, _compressed)


def restore_message(message: Message, max_output_bytes: int | None = 1 << 32) -> Message:
    """Restore the arrays of a message in place, and return it; what was not compressed stays as it is.

    Args:
        message: what was received.
        max_output_bytes: refuse larger arrays; no limit if None.

    Raises:
        Corruption: an array is damaged, or is another than the message says.
        LimitExceeded: an array is above ``max_output_bytes``.
    """
    return _with_arrays(message, lambda array: _restored(array, max_output_bytes))


def gcodec_mod(message: Message, context: Any, call_next: Callable[[Message, Any], Message]) -> Message:
    """Restore what a client receives, and compress what it answers: ``ClientApp(mods=[gcodec_mod])``.

    Put it first, so that other mods see plain arrays. The server calls :func:`restore_message` on replies, and may call
    :func:`compress_message` on what it sends.
    """
    return compress_message(call_next(restore_message(message), context))


def _with_arrays(message: Message, change: Callable[[Array], Array]) -> Message:
    if message.has_content():
        for record in message.content.array_records.values():
            for name, array in list(record.items()):
                record[name] = change(array)
    return message


def _compressed(array: Array) -> Array:
    if array.stype != PLAIN or array.dtype not in BY_NAME:
        return array
    frame = encode(np.load(io.BytesIO(array.data), allow_pickle=False))
    if len(frame) >= len(array.data):
        return array
    return Array(dtype=array.dtype, shape=array.shape, stype=STYPE, data=frame)


def _restored(array: Array, max_output_bytes: int | None) -> Array:
    if array.stype != STYPE:
        return array
    values = decode(array.data, like="numpy", max_output_bytes=max_output_bytes)
    if (str(values.dtype), values.shape) != (array.dtype, tuple(array.shape)):
        raise Corruption(
            f"an array holds {values.dtype} of shape {values.shape}, but the message says {array.dtype} of shape "
            f"{tuple(array.shape)}"
        )
    return Array(values)
