"""The two-shot all-reduce: contributions go to the owners of parts, and the sums of parts to all ranks.

rank r      part 0   part 1   part 2        each part encoded for its owner              (AllToAll)
owner of p  sum over ranks of part p, in the order of ranks, / W, encoded once more      (AllGather)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import torch

from .contract import AllGather, AllToAll, Place, Request, check_gradient, parts_of, wide
from .payload import errors_of_rank


class PartCodec(NamedTuple):
    """The coding of parts of a flat tensor.

    Attributes:
        encode: From a flat tensor on the CPU and some of its parts, the payload of each.
        decode: From a payload and a tensor of the part's size, the part's values, in that tensor's dtype or a wider
            one; it may write into that tensor.
        multiple: Every part but the last one that is not empty has a multiple of this many values.
        keeps_all: Decoding returns what was encoded.
    """

    encode: Callable[[torch.Tensor, Sequence[slice]], list[bytes]]
    decode: Callable[[bytes, torch.Tensor], torch.Tensor]
    multiple: int = 1
    keeps_all: bool = False


class Averaged(NamedTuple):
    """The result of a two-shot all-reduce.

    Attributes:
        average: The average, in the gradient's shape and dtype.
        contribution: What this rank's messages amount to, in the gradient's shape and its dtype or a wider one. What
            encoding a sum has taken from all ranks counts as its owner's, so that error feedback makes it good.
        sent_bytes: Bytes of the contributions.
    """

    average: torch.Tensor
    contribution: torch.Tensor
    sent_bytes: int


def average_by_parts(gradient: torch.Tensor, place: Place, codec: PartCodec) -> Generator[Request, Any, Averaged]:
    """Return the conversation that averages a gradient part by part.

    Args:
        gradient: The gradient.
        place: The rank and the tensor's name.
        codec: The coding of parts.
    """
    check_gradient(gradient)
    flat = gradient.detach().cpu().reshape(-1)
    parts = parts_of(flat.numel(), place.size, codec.multiple)
    sent = codec.encode(flat, parts)
    contribution = flat
    if not codec.keeps_all:
        decoded = [
            codec.decode(payload, torch.empty_like(flat[part])) for payload, part in zip(sent, parts, strict=True)
        ]
        contribution = torch.cat(decoded)
    received = yield AllToAll(sent)
    owned = parts[place.rank]
    total = torch.zeros_like(flat[owned], dtype=wide(flat.dtype))
    for rank, payload in enumerate(received):
        with errors_of_rank(rank):
            total += codec.decode(payload, torch.empty_like(flat[owned]))
    mean = torch.zeros_like(flat)
    mean[owned] = exact = total / place.size
    results = yield AllGather(codec.encode(mean, [owned])[0])
    for rank, (payload, part) in enumerate(zip(results, parts, strict=True)):
        with errors_of_rank(rank):
            mean[part] = codec.decode(payload, torch.empty_like(flat[part]))
    if not codec.keeps_all:
        contribution = contribution.to(total.dtype)  # of all ranks: more than the gradient's type may have room for
        contribution[owned] += (mean[owned] - exact) * place.size
    average, contribution = (x.view(gradient.shape).to(gradient.device) for x in (mean, contribution))
    return Averaged(average, contribution, sum(map(len, sent)))
