"""Many conversations at once: their requests of a round become one request of each kind.

A model has a hundred tensors, and a message's latency is worth many kilobytes. So conversations advance in rounds; in
each round all tensors to reduce are laid end to end, by dtype, and all payloads for a rank become one payload.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import Corruption
from .contract import AllGather, AllReduce, AllToAll, Conversation, Outcome, Request


class Sent(NamedTuple):
    """The end of a conversation.

    Attributes:
        outcome: What it returned.
        payload_bytes: Bytes that this rank handed over in its course: of an all-reduce and an all-gather once, of an
            all-to-all those for other ranks.
    """

    outcome: Outcome
    payload_bytes: int


def batch_conversations(conversations: Sequence[Conversation], rank: int) -> Generator[Request, Any, list[Sent]]:
    """Conversations side by side, as one: returns how each ended. Its rules are those of a conversation.

    Raises Corruption where a payload does not hold one part for each that was asked for.
    """
    open_ones = dict(enumerate(conversations))
    answers: dict[int, Any] = dict.fromkeys(open_ones)
    n_bytes = [0] * len(conversations)
    ended: dict[int, Outcome] = {}
    while open_ones:
        requests: dict[int, Request] = {}
        for number, conversation in list(open_ones.items()):
            try:
                requests[number] = conversation.send(answers[number])
            except StopIteration as end:
                ended[number] = end.value
                del open_ones[number]
        for number, request in requests.items():
            n_bytes[number] += request_bytes(request, rank)
        answers = yield from _round(requests)
    return [Sent(ended[number], n_bytes[number]) for number in range(len(conversations))]


def request_bytes(request: Request, rank: int) -> int:
    """Return the bytes that a rank hands over with a request, as :class:`Sent` counts them."""
    match request:
        case AllReduce():
            return request.tensor.nbytes
        case AllGather(payload):
            return len(payload)
        case AllToAll(payloads):
            return sum(len(payload) for peer, payload in enumerate(payloads) if peer != rank)


def _round(requests: dict[int, Request]) -> Generator[Request, Any, dict[int, Any]]:
    """The answers to requests, by number; asked for in an order that follows from their kinds alone: payloads first,
    which on real ranks also tell whether all is well."""
    answers: dict[int, Any] = {}
    gathers = {number: request.payload for number, request in requests.items() if isinstance(request, AllGather)}
    if gathers:
        joined = yield AllGather(join_payloads(list(gathers.values())))
        split = [split_payloads(payload, len(gathers)) for payload in joined]
        answers |= dict(zip(gathers, map(list, zip(*split, strict=True)), strict=True))
    exchanges = {number: request.payloads for number, request in requests.items() if isinstance(request, AllToAll)}
    if exchanges:
        for_ranks = [join_payloads(list(parts)) for parts in zip(*exchanges.values(), strict=True)]
        joined = yield AllToAll(for_ranks)
        split = [split_payloads(payload, len(exchanges)) for payload in joined]
        answers |= dict(zip(exchanges, map(list, zip(*split, strict=True)), strict=True))
    kinds: dict[tuple[Any, ...], dict[int, AllReduce]] = {}
    for number, request in requests.items():
        if isinstance(request, AllReduce):
            kind = request.tensor.dtype, request.tensor.device, request.divisor
            kinds.setdefault(kind, {})[number] = request
    for kind in sorted(kinds, key=str) if len(kinds) > 1 else kinds:
        answers |= yield from _reduced(kinds[kind])
    return answers


def _reduced(requests: dict[int, AllReduce]) -> Generator[Request, Any, dict[int, torch.Tensor]]:
    """Tensors of one dtype, reduced end to end."""
    if len(requests) == 1:
        ((number, request),) = requests.items()
        return {number: (yield request)}
    tensors = [request.tensor for request in requests.values()]
    divisor = next(iter(requests.values())).divisor
    total = yield AllReduce(torch.cat([tensor.reshape(-1) for tensor in tensors]), divisor)
    parts = total.split([tensor.numel() for tensor in tensors])
    return {number: part.view(tensor.shape) for number, tensor, part in zip(requests, tensors, parts, strict=True)}


def join_payloads(parts: Sequence[bytes]) -> bytes:
    """Payloads as one: their lengths, u32 each, then they themselves. A single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    return b"".join([struct.pack(f"<{len(parts)}I", *map(len, parts)), *parts])


def split_payloads(joined: bytes, count: int) -> list[bytes]:
    """The inverse of :func:`join_payloads`. Raises Corruption."""
    if count == 1:
        return [joined]
    table = struct.Struct(f"<{count}I")
    lengths = table.unpack_from(joined) if len(joined) >= table.size else ()
    if table.size + sum(lengths) != len(joined) or len(lengths) != count:
        raise Corruption(f"a message of {len(joined)} bytes does not hold {count} payloads")
    parts, begin = [], table.size
    for length in lengths:
        parts.append(joined[begin : begin + length])
        begin += length
    return parts
