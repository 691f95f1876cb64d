"""Any conversation, among the ranks of a process group: what ``gcodec.averaging.simulate.run_conversations`` is in one
process."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch.distributed as dist

from ..compressors.contract import Request
from .conversation import Talk
from .stats import Tally
from .transport.lane import Job
from .transport.lanes import lane_of


def converse(
    conversation: Generator[Request, Any, Any],
    group: dist.ProcessGroup | None = None,
    terms: tuple[object, ...] = (),
    tally: Tally | None = None,
) -> Any:
    """What this rank's conversation comes to; all ranks of ``group`` (default: the world) must call it together.

        optimizer = AdaptiveOptimizer(optimizer, model.named_parameters(), adaptive, gcodec.distributed.conversation)

    Waits for it, on the group's lane, behind whatever was handed in before. ``terms``: what ranks must have in common,
    by its repr. ``tally`` counts what was moved. Raises PeerError, Corruption, or what the conversation raised, after
    which the lane takes nothing more.
    """
    lane, counted = lane_of(group), Tally() if tally is None else tally
    talk = Talk(lane, ("converse", *terms), counted, "converse")
    return lane.submit(Job(lambda: talk.run(conversation), talk.refuse)).wait()
