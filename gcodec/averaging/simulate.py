"""Ranks in one process, to see what a compressor does to training without a network."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from ..compressors.contract import (
    AllGather,
    AllReduce,
    AllToAll,
    Compressor,
    Conversation,
    Place,
    Request,
    check_gradient,
    check_whole,
    sum_by_rank,
)
from ..errors import InvalidArgument, PeerError
from .averager import Averager, CompressionPlan, compression_plan


def run_conversations(conversations: Sequence[Generator[Request, Any, Any]]) -> list[Any]:
    """Run one conversation per rank in this process, and return their results by rank.

    Sums are made in the order of ranks, as real ranks make them.

    Args:
        conversations: Each rank's conversation, by rank.

    Raises:
        PeerError: Ranks do not ask for the same.
    """
    answers: list[Any] = [None] * len(conversations)
    while True:
        requests, results = [], []
        for conversation, answer in zip(conversations, answers, strict=True):
            try:
                requests.append(conversation.send(answer))
            except StopIteration as end:
                results.append(end.value)
        if not requests:
            return results
        answers = _answers(requests, len(conversations))


def _answers(requests: Sequence[Request], size: int) -> list[Any]:
    kinds = {
        (type(r), (r.tensor.shape, r.tensor.dtype, r.divisor) if isinstance(r, AllReduce) else None) for r in requests
    }
    if len(requests) != size or len(kinds) != 1:
        raise PeerError(f"{len(requests)} of {size} ranks go on, and ask for {kinds}")
    match requests[0]:
        case AllReduce() as first:
            terms = [request.tensor for request in requests if isinstance(request, AllReduce)]
            mean = first.result(sum_by_rank(terms, torch.empty_like(first.tensor)))
            return [mean.clone() for _ in requests]
        case AllGather():
            return [[request[0] for request in requests] for _ in requests]
        case AllToAll(payloads):
            if any(len(request[0]) != size for request in requests):
                raise PeerError(f"{len(payloads)} payloads for {size} ranks")
            return [[request[0][rank] for request in requests] for rank in range(size)]


class Simulation:
    """Simulated ranks that average the gradients of one model.

    Args:
        size: The number of ranks.
        plan: A plan; a compressor, which gets error feedback; or "fp8", "int8" or "int4".

    Attributes:
        ranks: Each rank's :class:`Averager`, with its settings, residuals and counts.

    Raises:
        InvalidArgument: ``size`` is no integer of at least 1, or ``plan`` is something else.
    """

    def __init__(self, size: int, plan: CompressionPlan | Compressor | str) -> None:
        check_whole("size", size)
        self.plan = compression_plan(plan)
        self.ranks = [Averager(self.plan, rank, size) for rank in range(size)]

    def average(
        self, gradients: Sequence[Mapping[str, torch.Tensor]], params: Mapping[str, torch.Tensor] | None = None
    ) -> list[dict[str, torch.Tensor]]:
        """Average the gradients of a step.

        Args:
            gradients: Each rank's gradients, by name: the same names in the same order.
            params: The parameters by name, for compressors that look at them.

        Returns:
            The averages that each rank arrives at, by name.

        Raises:
            InvalidArgument: There are gradients of more or fewer ranks, or ranks have other names, another order, or
                gradients of another shape or dtype.
        """
        given: Any = gradients
        if not isinstance(given, Sequence) or not all(isinstance(of_rank, Mapping) for of_rank in given):
            raise InvalidArgument("gradients must be a list of dictionaries of tensors by name, one for each rank")
        if len(gradients) != len(self.ranks):
            raise InvalidArgument(f"gradients must be those of {len(self.ranks)} ranks, not of {len(gradients)}")
        first, *others = map(list, gradients)
        for rank, names in enumerate(others, 1):
            if names != first:  # what stands at one place is averaged
                raise InvalidArgument(
                    f"gradients must have the same names in the same order on all ranks, but rank 0 has {first!r:.200} "
                    f"and rank {rank} has {names!r:.200}"
                )
        for rank, of_rank in enumerate(gradients):
            for name, gradient in of_rank.items():
                check_gradient(gradient, name)
                like = gradients[0][name]
                if (gradient.shape, gradient.dtype) != (like.shape, like.dtype):
                    raise InvalidArgument(
                        f"gradient of {name!r} must have the same shape and dtype on all ranks, but rank 0 has "
                        f"{tuple(like.shape)} of {like.dtype} and rank {rank} has {tuple(gradient.shape)} of "
                        f"{gradient.dtype}"
                    )
        pairs = zip(self.ranks, gradients, strict=True)
        return run_conversations([rank.average(of_rank, params) for rank, of_rank in pairs])

    def set(self, name: str, compressor: Compressor) -> None:
        """Set the compressor of a tensor on all ranks, for the steps to come.

        Args:
            name: The tensor's name.
            compressor: The compressor.

        Raises:
            InvalidArgument: ``compressor`` is something else.
        """
        if not isinstance(compressor, Compressor):
            raise InvalidArgument(f"compressor must be a compressor, such as PowerSGD(4), not {compressor!r:.80}")
        for rank in self.ranks:
            rank.compressors[name] = compressor


def compress_on(
    compressor: Compressor, gradients: Sequence[torch.Tensor], memories: Sequence[dict[str, Any]] | None = None
) -> list[Any]:
    """Run a compressor on one tensor of each rank, with nothing around it.

    Args:
        compressor: The compressor.
        gradients: Each rank's tensor.
        memories: Each rank's memory of the tensor, which the compressor changes; default empty ones.

    Returns:
        Each rank's :class:`~gcodec.compressors.Outcome`.
    """
    size = len(gradients)
    memories = [{} for _ in gradients] if memories is None else memories
    conversations: list[Conversation] = [
        compressor.compress(gradient, memory, Place(rank, size))
        for rank, (gradient, memory) in enumerate(zip(gradients, memories, strict=True))
    ]
    return run_conversations(conversations)
