"""Checks that ranks have the same options, before anything that depends on them is sent.

A difference found later would be one in what ranks send, or whether: on Gloo that hangs, or ends the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
import torch.distributed as dist

from ...errors import PeerError
from .message import agreement_of
from .transfers import labeled

_MESSAGE_BYTES = 1 << 13  #: of every rank's message: Gloo gathers tensors of one size
_SHOWN = 80  #: characters of an option


def compare_options(group: dist.ProcessGroup, options: Mapping[str, object], label: str) -> None:
    """Compare options with those of all other ranks; collective over the group.

    Every rank sends the repr of each value, cut off to be shown, and a hash of all of it, to be compared.

    Args:
        group: The process group, which must gather tensors in CPU memory.
        options: The options by name, a dozen at most.
        label: Begins the text of an error.

    Raises:
        PeerError: On all ranks, where any two differ; it names the option, its values and a rank with each.
    """
    if group.size() == 1:
        return
    message = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8, device="cpu")
    shown_and_hashed = {name: [repr(value)[:_SHOWN], agreement_of(value)] for name, value in options.items()}
    text = json.dumps(shown_and_hashed).encode()
    message[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    messages = [torch.empty_like(message) for _ in range(group.size())]
    labeled(f"{label}, options", lambda: group.allgather([messages], [message]).wait())
    by_rank = [json.loads(received.numpy().tobytes().rstrip(b"\0")) for received in messages]
    names = dict.fromkeys(name for received in by_rank for name in received)  # in order, each once
    differences = [_difference(name, by_rank) for name in names]
    if any(differences):
        raise PeerError(f"{label}: ranks differ in {'; '.join(filter(None, differences))}")


def _difference(name: str, by_rank: list[dict[str, list[object]]]) -> str:
    """Return the first rank with each value of an option as text; empty if all ranks have the same."""
    first: dict[str, str] = {}
    for rank, options in enumerate(by_rank):
        shown, digest = options.get(name, ["nothing", 0])
        first.setdefault(f"{digest}", f"{shown} on rank {rank}")
    return f"{name}: {', '.join(first.values())}" if len(first) > 1 else ""
