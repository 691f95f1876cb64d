"""Flower: arrays in messages between server and clients, compressed without loss."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict

from ..codec import decode, encode
from ..dtypes import BY_NAME
from ..errors import Corruption

if TYPE_CHECKING:
    from flwr.serverapp.strategy import Strategy

#: The serialization type of compressed arrays, and of those that Flower makes itself.
STYPE, PLAIN = "gcodec.frame", "numpy.ndarray"


def compress_strategy(strategy: Strategy, max_output_bytes: int | None = 1 << 32) -> Strategy:
    """Have a server's strategy compress what it sends, and restore what it receives; return it.

    Its own arrays stay plain. What it sends to several clients is compressed once.

    Args:
        strategy: Any, before its ``start`` is called: its methods ``configure_train``, ``configure_evaluate``,
            ``aggregate_train`` and ``aggregate_evaluate`` are wrapped.
        max_output_bytes: As for :func:`restore_message`.
    """
    for name in ("configure_train", "configure_evaluate"):
        setattr(strategy, name, _compressing(getattr(strategy, name)))
    for name in ("aggregate_train", "aggregate_evaluate"):
        setattr(strategy, name, _restoring(getattr(strategy, name), max_output_bytes))
    return strategy


def _compressing(configure: Callable[..., Iterable[Message]]) -> Callable[..., list[Message]]:
    def compressed(*arguments: Any, **options: Any) -> list[Message]:
        messages, made = list(configure(*arguments, **options)), _Made()
        return [_with_arrays(message, _compressed, made) for message in messages]

    return compressed


def _restoring(aggregate: Callable[..., Any], max_output_bytes: int | None) -> Callable[..., Any]:
    def restored(server_round: int, replies: Iterable[Message]) -> Any:
        return aggregate(server_round, [restore_message(message, max_output_bytes) for message in replies])

    return restored


def compress_message(message: Message) -> Message:
    """Compress the floating-point arrays of a message, and return it; others stay as they are.

    The message gets a content of its own: arrays that others hold as well are not touched.

    Args:
        message: What is about to be sent.
    """
    return _with_arrays(message, _compressed, _Made())


def restore_message(message: Message, max_output_bytes: int | None = 1 << 32) -> Message:
    """Restore the arrays of a message, and return it; what was not compressed stays as it is.

    Args:
        message: What was received.
        max_output_bytes: Refuse larger arrays; no limit if None.

    Raises:
        Corruption: An array is damaged, or is another than the message says.
        LimitExceeded: An array is above ``max_output_bytes``.
    """
    return _with_arrays(message, lambda array: _restored(array, max_output_bytes), _Made())


def gcodec_mod(message: Message, context: Any, call_next: Callable[[Message, Any], Message]) -> Message:
    """Restore what a client receives, and compress what it answers: ``ClientApp(mods=[gcodec_mod])``.

    Put it first, so that other mods see plain arrays. On the server, :func:`compress_strategy` does the same.
    """
    return compress_message(call_next(restore_message(message), context))


#: By the identity of a record: the record, which keeps the identity its own, and what was made of it.
_Made = dict[int, tuple[ArrayRecord, ArrayRecord]]


def _with_arrays(message: Message, change: Callable[[Array], Array], made: _Made) -> Message:
    """Give a message a content of its own in which every array is changed; strategies send one content to many."""
    if message.has_content():
        content = RecordDict(dict(message.content))
        for name, record in list(content.array_records.items()):
            if id(record) not in made:
                changed = {key: change(array) for key, array in record.items()}
                made[id(record)] = record, ArrayRecord(changed)
            content[name] = made[id(record)][1]
        message.content = content
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
