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
        encode: From a flat tensor on the CPU, some of its parts, and a tensor in the dtype in which sums are made, or
            None: the payload of each part. What it stands for is written to that part of the third tensor.
        decode: Writes a payload's values to a tensor of the part's size and the gradient's dtype.
        add: Adds a payload's values to a tensor of the part's size in the dtype in which sums are made. The third
            argument is the gradient's dtype.
        multiple: Every part but the last one that is not empty has a multiple of this many values.
        keeps_all: Decoding returns what was encoded.
    """

    encode: Callable[[torch.Tensor, Sequence[slice], torch.Tensor | None], list[bytes]]
    decode: Callable[[bytes, torch.Tensor], None]
    add: Callable[[bytes, torch.Tensor, torch.dtype], None]
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
        place: The rank and the tensor's name.
        codec: The coding of parts.
    """
    check_gradient(gradient)
    flat = gradient.detach().cpu().reshape(-1)
    parts = parts_of(flat.numel(), place.size, codec.multiple)
    contribution = flat if codec.keeps_all else torch.empty_like(flat, dtype=wide(flat.dtype))
    sent = codec.encode(flat, parts, None if codec.keeps_all else contribution)
    received = yield AllToAll(sent)
    owned = parts[place.rank]
    total = torch.zeros_like(flat[owned], dtype=wide(flat.dtype))
    for rank, payload in enumerate(received):
        with errors_of_rank(rank):
            codec.add(payload, total, flat.dtype)
    mean = torch.zeros_like(flat)
    mean[owned] = exact = total.div_(place.size)
    results = yield AllGather(codec.encode(mean, [owned], None)[0])
    for rank, (payload, part) in enumerate(zip(results, parts, strict=True)):  # its own, too: all ranks see an error
        with errors_of_rank(rank):
            codec.decode(payload, mean[part])
    if not codec.keeps_all:  # in the wider type: of all ranks, more than the gradient's may have room for
        contribution[owned] += (mean[owned] - exact) * place.size
    average, contribution = (x.view(gradient.shape).to(gradient.device) for x in (mean, contribution))
    return Averaged(average, contribution, sum(map(len, sent)))
