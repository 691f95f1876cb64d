"""The process-group backend "gcodec": what it is told, and how torch makes a group of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..errors import InvalidArgument
from .allreduce import SMALLEST
from .group import CompressedGroup
from .modes import FixedBits, Lossless


@dataclass(frozen=True)
class GroupOptions:
    """How a process group compresses; the same on all of its ranks.

    ``mode``: ``Lossless()`` or ``FixedBits``; NearLossless needs an optimizer's parameters, which a process group does
    not see. ``smallest``: tensors of fewer bytes go through Gloo as they are. ``threads`` of the codec: default all
    cores. ``timeout``: after which a silent rank is an error; default what torch was told (``timeout=``). Raises
    InvalidArgument for another mode.
    """

    mode: Lossless | FixedBits = field(default_factory=Lossless)
    smallest: int = SMALLEST
    threads: int | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, Lossless | FixedBits):
            raise InvalidArgument(
                f"mode={self.mode!r}: a process group is Lossless() or FixedBits(k); NearLossless needs the "
                "parameters, which only the DDP hook sees"
            )

    @property
    def _timeout(self) -> timedelta | None:
        """Under this name device meshes ask for it."""
        return self.timeout


def register_backend(name: str = "gcodec", options: GroupOptions | None = None) -> None:
    """Make ``name`` a backend of torch.distributed whose groups compress as ``options`` say, on all ranks alike.

    Importing gcodec.distributed registers "gcodec" with the default options; registering a name again changes groups
    made from then on. A group's own options, given as ``pg_options=`` to ``init_process_group`` or ``new_group``, go
    first. Raises InvalidArgument for the name of one of torch's own backends.
    """
    name = name.lower()
    if not name.isidentifier() or (name in dist.Backend.backend_list and name not in _registered):
        raise InvalidArgument(f"name={name!r} is taken by another backend, or is not a name")
    _registered[name] = options or GroupOptions()

    def create(made: Any, own: GroupOptions | None) -> CompressedGroup:
        chosen = _registered[name] if own is None else own
        if not isinstance(chosen, GroupOptions):
            raise InvalidArgument(f"pg_options={own!r}: the options of this backend are a GroupOptions")
        return CompressedGroup(
            made.store,
            made.group_rank,
            made.group_size,
            chosen.timeout or made.timeout,
            name=name,
            mode=chosen.mode,
            smallest=chosen.smallest,
            threads=chosen.threads,
        )

    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])


_registered: dict[str, GroupOptions] = {}
