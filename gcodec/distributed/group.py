"""A process group of torch whose all-reduces and reduce-scatters of floats are compressed; the rest goes to Gloo, or of
CUDA tensors to NCCL.

    import gcodec.distributed
    torch.distributed.init_process_group("gcodec")

It is a Python ``ProcessGroup`` around two private groups: a plain one, to which everything else is handed on, and the
lane's. Their messages cannot get in each other's way, so it does not matter how the two kinds interleave.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, Work

from ..errors import InvalidArgument, Unsupported
from .collectives import Collectives, GroupOptions
from .torch_version import OLDEST_FOR_GROUPS, is_older
from .transport.arguments import check_not_expanded
from .transport.delegation import hands_on, inner_method
from .transport.gpu import adopt_nccl, nccl_of
from .transport.lane import adopt, close_lanes
from .uncompressed import has_floats

_COMPRESSED = "all_reduce and reduce_scatter_single"  #: the collectives that may be compressed
_registered: dict[str, GroupOptions] = {}  #: by the backend's name


@hands_on
class CompressedGroup(dist.ProcessGroup):
    """The process group that ``init_process_group("gcodec")`` makes.

    Dense float32, float64, bfloat16 and float16 tensors of at least ``min_bytes`` bytes are compressed when they are
    summed or averaged by an all-reduce or a reduce-scatter of one tensor, alone or coalesced; on a CUDA device, all but
    float64. Sums are then made in the order of ranks; every rank ends with the same bits. Floats on other kinds of
    devices raise Unsupported.

    Args:
        store: The store that the ranks meet through.
        rank: This rank.
        size: The number of ranks.
        options: How to compress.
        name: The name under which the backend is registered.

    Attributes:
        own_store: The store of a group that torch.distributed does not know, from :meth:`made_by_hand` until it ends;
            None for others.
    """

    own_store: Store | None = None

    def __init__(self, store: Store, rank: int, size: int, options: GroupOptions, name: str) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # the constructor for Python groups, not in the stubs
        self.options, self._name = options, name
        self._collectives = Collectives(options, name, on_gpu=True)
        timeout = options.timeout or timedelta(minutes=30)
        gloo = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        gloo._set_sequence_number_for_group()
        self.inner = dist.ProcessGroup(store, rank, size)
        for group in (self, self.inner):
            adopt(group, gloo)
        has_device = torch.cuda.is_available()
        if has_device and dist.is_nccl_available():
            nccl = nccl_of(self.inner, PrefixStore("cuda/", store), timeout, name)
            nccl._set_sequence_number_for_group()
            adopt_nccl([self, self.inner], torch.device("cuda"), nccl)
        if size > 1 and not has_device:  # else tensors may all be there: the first one in CPU memory compiles
            self._collectives.precompile(torch.float32)

    @classmethod
    def made_by_hand(cls, store: Store, rank: int, size: int, options: GroupOptions, name: str) -> CompressedGroup:
        """Return a group that torch.distributed does not know, for a library that makes groups itself, and ends them by
        :meth:`shutdown` or :meth:`abort`.

        Args:
            store: A part of a store that no other group uses.
            rank: As for the class.
            size: As for the class.
            options: As for the class.
            name: As for the class.

        Raises:
            Unsupported: This torch is older than 2.11.
        """
        _check_version()
        group = cls(store, rank, size, options, name)
        group.own_store = PrefixStore("lane/", store)
        return group

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name under which the backend is registered."""
        return self._name

    def stats(self) -> dict[str, float]:
        """Return counts of the compressed collectives so far, as in :class:`gcodec.distributed.stats.Counters`."""
        return self._collectives.stats()

    def allreduce(self, *arguments: Any, **options: Any) -> Work:
        """Make ``ProcessGroup.allreduce``, compressed where that is possible."""
        return self._all_reduce("allreduce", *arguments, **options)

    def allreduce_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """Make ``ProcessGroup.allreduce_coalesced``, compressed where possible; all tensors travel as one."""
        return self._all_reduce("allreduce_coalesced", *arguments, **options)

    def reduce_scatter_single(self, *arguments: Any, **options: Any) -> Work:
        """Make ``ProcessGroup.reduce_scatter_single``, compressed where that is possible."""
        return self._reduce_scatter("reduce_scatter_single", *arguments, **options)

    def _reduce_scatter_base(self, *arguments: Any, **options: Any) -> Work:
        return self._reduce_scatter("reduce_scatter_single", *arguments, **options)

    def reduce_scatter_single_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """Make ``ProcessGroup.reduce_scatter_single_coalesced``, compressed where that is possible."""
        return self._reduce_scatter("reduce_scatter_single_coalesced", *arguments, **options)

    def reduce_scatter_tensor_coalesced(self, *arguments: Any, **options: Any) -> Work:
        """Call :meth:`reduce_scatter_single_coalesced`, which torch 2.11 knows by this name."""
        return self._reduce_scatter("reduce_scatter_single_coalesced", *arguments, **options)

    def note_handed_on(self, name: str, arguments: Sequence[Any]) -> None:
        """Say in the log that a collective which moves many floats is not compressed.

        Args:
            name: Its name, as torch calls it.
            arguments: Its arguments.
        """
        floats = [tensor for tensor in _tensors_in(arguments) if has_floats([tensor])]
        if floats:
            reason = f"calls of {name.strip('_')}: only sums and averages are, by {_COMPRESSED}"
            self._collectives.say_uncompressed(self, floats, reason, is_expected=not name.startswith("reduce"))

    def shutdown(self) -> None:
        """End the lane and the connections. ``destroy_process_group`` calls it."""
        close_lanes(self)
        self.own_store = None
        self.inner.shutdown()

    def abort(self) -> None:
        """End the lane and the connections, and wait for no other rank. What is under way ends in errors, that which
        waits for a silent rank when its timeout is over."""
        close_lanes(self, 0.0)
        self.own_store = None
        self.inner.abort()

    def _all_reduce(self, name: str, tensors: Any, *arguments: Any, **options: Any) -> Work:
        listed = _as_list(tensors)
        _check_written(listed)
        compressed, mean = None, self._collectives.mean_of(_operation(arguments, options), listed, self)
        if mean is not None and self._collectives.suits(listed, self):
            compressed = self._collectives.all_reduce(self, listed, mean)
        if compressed is not None or all(map(_lies_in_order, listed)):
            work: Work = compressed or inner_method(self.inner, name)(tensors, *arguments, **options)
            return work
        # Gloo would take what lies in memory behind the first value, whatever that is, and write there.
        copies = [tensor.detach().contiguous() for tensor in listed]
        work = inner_method(self.inner, name)(copies, *arguments, **options)
        work.wait()
        for tensor, copy in zip(listed, copies, strict=True):
            tensor.detach().copy_(copy)
        return work

    def _reduce_scatter(self, name: str, outputs: Any, inputs: Any, *arguments: Any, **options: Any) -> Work:
        parts, wholes = _as_list(outputs), _as_list(inputs)
        _check_written(parts)
        fits = len(parts) == len(wholes) and all(
            whole.numel() == part.numel() * self.size() and whole.dtype == part.dtype
            for whole, part in zip(wholes, parts, strict=True)
        )
        compressed, mean = None, self._collectives.mean_of(_operation(arguments, options), wholes, self)
        if mean is not None and fits and self._collectives.suits(wholes, self):
            compressed = self._collectives.reduce_scatter(self, list(zip(wholes, parts, strict=True)), mean)
        work: Work = compressed or inner_method(self.inner, name)(outputs, inputs, *arguments, **options)
        return work


def register_backend(name: str = "gcodec", options: GroupOptions | None = None) -> None:
    """Make ``name`` a backend of torch.distributed whose groups compress as ``options`` say, on all ranks alike.

    Importing gcodec.distributed registers "gcodec" with the default options; registering a name again changes groups
    made from then on. A group's own options, given as ``pg_options=`` to ``init_process_group`` or ``new_group``, take
    precedence.

    Args:
        name: The backend's name, an identifier; its case does not matter.
        options: How its groups compress; default ``GroupOptions()``.

    Raises:
        InvalidArgument: Another backend has the name, or it is not an identifier.
    """
    if options is not None and not isinstance(options, GroupOptions):
        raise InvalidArgument(f"options must be a GroupOptions, such as GroupOptions(), not {options!r:.80}")
    name = str(name).lower()
    if not name.isidentifier() or (name in dist.Backend.backend_list and name not in _registered):
        raise InvalidArgument(f"name must be an identifier that no other backend has, not {name!r}")
    _registered[name] = options or GroupOptions()

    def create(torch_options: Any, group_options: GroupOptions | None) -> CompressedGroup:
        _check_version()
        chosen = _registered[name] if group_options is None else group_options
        if not isinstance(chosen, GroupOptions):
            raise InvalidArgument(f"pg_options must be a GroupOptions, such as GroupOptions(), not {chosen!r}")
        chosen = replace(chosen, timeout=chosen.timeout or torch_options.timeout)
        return CompressedGroup(torch_options.store, torch_options.group_rank, torch_options.group_size, chosen, name)

    dist.Backend.register_backend(name, create, extended_api=True, devices=["cpu", "cuda"])


def _check_version() -> None:
    """Raise Unsupported for a torch whose process groups are called in other ways than those that are defined here."""
    if is_older(OLDEST_FOR_GROUPS):
        raise Unsupported(
            f"the process group needs torch {'.'.join(map(str, OLDEST_FOR_GROUPS))} or later, and this is "
            f"{torch.__version__}; DDP's hook, CompressedAllreduce, works with 2.6"
        )


def _operation(arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return the reduce operation of a call: torch gives an options object, or the operation itself, or neither."""
    operations = [*arguments[:1], *(options[key] for key in ("opts", "op") if key in options)]
    return getattr(operations[0], "reduceOp", operations[0]) if operations else dist.ReduceOp.SUM


def _check_written(tensors: list[torch.Tensor]) -> None:
    """Raise InvalidArgument for expanded tensors, which Gloo would write past the end of."""
    for tensor in tensors:
        check_not_expanded("tensor", tensor)


def _lies_in_order(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's values lie in memory one after another, row by row; True for sparse tensors."""
    return tensor.layout != torch.strided or tensor.is_contiguous()


def _tensors_in(arguments: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments of a collective, which are lists of tensors or lists of these."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    if isinstance(arguments, list | tuple):
        return [tensor for each in arguments for tensor in _tensors_in(each)]
    return []


def _as_list(tensors: Any) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
