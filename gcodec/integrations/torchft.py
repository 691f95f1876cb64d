"""A process group for torchft, whose averages are compressed: ``Manager(pg=ProcessGroupGcodec(), ...)``."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from torchft.process_group import ProcessGroupWrapper

from ..distributed.collectives import GroupOptions
from ..distributed.group import CompressedGroup
from ..errors import InvalidArgument

_NAME = "torchft-gcodec"


class ProcessGroupGcodec(ProcessGroupWrapper):
    """Takes the place of torchft's ``ProcessGroupGloo``: each quorum gets a group that compresses sums of floats.

    Args:
        options: How to compress, the same on all replicas; default ``GroupOptions()``, which is lossless. Its
            ``timeout`` is not used.
        timeout: Time after which a silent replica is an error, and in which a quorum's replicas must meet.

    Raises:
        InvalidArgument: ``options`` are no GroupOptions.
    """

    def __init__(self, options: GroupOptions | None = None, timeout: timedelta = timedelta(seconds=60)) -> None:
        if options is not None and not isinstance(options, GroupOptions):
            raise InvalidArgument(f"options must be a GroupOptions, such as GroupOptions(), not {options!r:.80}")
        super().__init__(timeout)
        self.options = options or GroupOptions()
        self._pg: Any

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name that this kind of group goes by in torchft."""
        return _NAME

    def stats(self) -> dict[str, float]:
        """Return counts of the compressed collectives of the present quorum, as ``CompressedGroup.stats`` does; none
        where there is no quorum."""
        group: CompressedGroup | None = self._pg
        return {} if group is None else group.stats()

    def shutdown(self) -> None:
        """End the present quorum's group."""
        self.abort(errored=False)

    def _create_pg(self, store: Any, rank: int, world_size: int) -> CompressedGroup:
        options = replace(self.options, timeout=self._timeout)
        return CompressedGroup.made_by_hand(store, rank, world_size, options, _NAME)
