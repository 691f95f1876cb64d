"""Run many conversations at once: their requests of a round become one request of each kind.

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
    """The result of a conversation, and what it sent.

    Attributes:
        outcome: The outcome that it returned.
        payload_bytes: Bytes that this rank handed over: those of an all-reduce or all-gather once, those of an
            all-to-all for other ranks only.
    """

    outcome: Outcome
    payload_bytes: int


def batch_conversations(conversations: Sequence[Conversation], rank: int) -> Generator[Request, Any, list[Sent]]:
    """Run conversations side by side as one conversation, whose rules hold for it too.

    Args:
        conversations: The conversations, in the same order on all ranks.
        rank: This rank.

    Returns:
        The results, in the order of ``conversations``.

    Raises:
        Corruption: A payload does not hold one part for each conversation that asked for one.
    """
    running = dict(enumerate(conversations))
    answers: dict[int, Any] = dict.fromkeys(running)
    n_bytes = [0] * len(conversations)
    outcomes: dict[int, Outcome] = {}
    while running:
        requests: dict[int, Request] = {}
        for number, conversation in list(running.items()):
            try:
                requests[number] = conversation.send(answers[number])
            except StopIteration as end:
                outcomes[number] = end.value
                del running[number]
        for number, request in requests.items():
            n_bytes[number] += request_bytes(request, rank)
        answers = yield from _round(requests)
    return [Sent(outcomes[number], n_bytes[number]) for number in range(len(conversations))]


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
    """Ask for the answers to requests, and return them by number.

    The order of asking follows from the kinds of request alone. Payloads come first, for on real ranks they also tell
    whether all is well.
    """
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
    """Reduce tensors of one dtype, end to end."""
    if len(requests) == 1:
        ((number, request),) = requests.items()
        return {number: (yield request)}
    tensors = [request.tensor for request in requests.values()]
    divisor = next(iter(requests.values())).divisor
    total = yield AllReduce(torch.cat([tensor.reshape(-1) for tensor in tensors]), divisor)
    parts = total.split([tensor.numel() for tensor in tensors])
    return {number: part.view(tensor.shape) for number, tensor, part in zip(requests, tensors, parts, strict=True)}


def join_payloads(parts: Sequence[bytes]) -> bytes:
    """Join payloads: their lengths, u32 each, then the payloads. A single one stays as it is."""
    if len(parts) == 1:
        return parts[0]
    return b"".join([struct.pack(f"<{len(parts)}I", *map(len, parts)), *parts])


def split_payloads(joined: bytes, count: int) -> list[bytes]:
    """Undo :func:`join_payloads` for ``count`` payloads. Raises Corruption unless there are as many."""
    if count == 1:
        return [joined]
    table = struct.Struct(f"<{count}I")
    lengths = table.unpack_from(joined) if len(joined) >= table.size else ()
    if table.size + sum(lengths) != len(joined) or len(lengths) != count:
        raise Corruption(f"a message of {len(joined)} bytes must hold {count} payloads of the lengths that it states")
    parts, begin = [], table.size
    for length in lengths:
        parts.append(joined[begin : begin + length])
        begin += length
    return parts
