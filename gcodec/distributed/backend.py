"""The process-group backend "gcodec": how torch makes a group of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from ..errors import InvalidArgument
from .collectives import GroupOptions
from .group import CompressedGroup

_registered: dict[str, GroupOptions] = {}


def register_backend(name: str = "gcodec", options: GroupOptions | None = None) -> None:
    """Make ``name`` a backend of torch.distributed whose groups compress as ``options`` say, on all ranks alike.

    Importing gcodec.distributed registers "gcodec" with the default options; registering a name again changes groups
    made from then on. A group's own options, given as ``pg_options=`` to ``init_process_group`` or ``new_group``, go
    first. Raises InvalidArgument for the name of another backend.
    """
    name = name.lower()
    if not name.isidentifier() or (name in dist.Backend.backend_list and name not in _registered):
        raise InvalidArgument(f"name={name!r} is taken by another backend, or is not a name")
    _registered[name] = options or GroupOptions()

    def create(made: Any, own: GroupOptions | None) -> CompressedGroup:
        chosen = _registered[name] if own is None else own
        if not isinstance(chosen, GroupOptions):
            raise InvalidArgument(f"pg_options={own!r}: the options of this backend are a GroupOptions")
        chosen = replace(chosen, timeout=chosen.timeout or made.timeout)
        return CompressedGroup(made.store, made.group_rank, made.group_size, chosen, name)

    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu"])
