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
    """Compare options (a dozen at most) by their repr; collective over ``group``, which gathers tensors in CPU memory.

    Raises PeerError on all ranks where any two differ: it says which option, and on which ranks; ``label`` begins it.
    """
    if group.size() == 1:
        return
    own = torch.zeros(_MESSAGE_BYTES, dtype=torch.uint8)
    said = {name: [repr(value)[:_SHOWN], agreement_of(value)] for name, value in options.items()}
    text = json.dumps(said).encode()
    own[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    everywhere = [torch.empty_like(own) for _ in range(group.size())]
    labeled(f"{label}, options", lambda: group.allgather([everywhere], [own]).wait())
    heard = [json.loads(one.numpy().tobytes().rstrip(b"\0")) for one in everywhere]
    differing = [_different(name, heard) for name in dict.fromkeys(name for one in heard for name in one)]
    if any(differing):
        raise PeerError(f"{label}: ranks differ in {'; '.join(filter(None, differing))}")


def _different(name: str, heard: list[dict[str, list[object]]]) -> str:
    """Return the first rank with each value of an option as text; empty if all ranks have the same."""
    first: dict[str, str] = {}
    for rank, options in enumerate(heard):
        shown, digest = options.get(name, ["nothing", 0])
        first.setdefault(f"{digest}", f"{shown} on rank {rank}")
    return f"{name}: {', '.join(first.values())}" if len(first) > 1 else ""
