"""FSDP2: its reduce-scatter of gradients, its all-gather of parameters, and the all-reduce among replicas of shards,
compressed.

    fully_shard(model, mesh=mesh)
    gcodec.distributed.compress_fsdp(model)

A rank holds a shard of each parameter and of its optimizer state, but reduces whole gradients: so there are lossless
mode and fixed mantissa bits here, and no near-lossless mode. Parameters are always gathered without loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported
from .collectives import Collectives, GroupOptions, is_mean
from .modes import FixedBits, Lossless
from .reduction.allreduce import SMALLEST
from .reduction.bypass import Bypass
from .reduction.reduce_request import TYPES
from .reduction.shared_codebooks import Refresh
from .transport.arguments import check_model

_log = logging.getLogger("gcodec.distributed")

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule


class CompressedReduceScatter:
    """The reduce-scatter of a module's gradients under FSDP2, with the interface of torch's ``ReduceScatter``.

    Args:
        collectives: makes the compressed ones.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a buffer, of the given size, type and device."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        """Sum or average a tensor over the group, and keep this rank's part.

        Args:
            output_tensor: takes this rank's part of the result.
            input_tensor: the whole tensor.
            group: the process group of the shards.
            op: the reduce operation.
            async_op: return at once.

        Returns:
            A work to wait for if ``async_op``, else None.

        Raises:
            PeerError: another rank failed or is silent.
            Corruption: a message arrived damaged.
        """
        mean, work = is_mean(op), None
        if mean is not None and self.collectives.suits([input_tensor], group):
            work = self.collectives.reduce_scatter(group, [(input_tensor, output_tensor)], mean)
        if work is None:
            return _plain_reduce_scatter(output_tensor, input_tensor, group, op, async_op)
        if async_op:
            return work
        work.wait()
        return None


class CompressedAllGather:
    """The all-gather of a module's parameters under FSDP2, without loss, with the interface of torch's ``AllGather``.

    Args:
        collectives: makes the compressed ones.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives
        self._logged = False

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a buffer, of the given size, type and device."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Gather the parts of a tensor from all ranks.

        Args:
            output_tensor: takes the whole tensor.
            input_tensor: this rank's part, perhaps where ``output_tensor`` has it.
            group: the process group of the shards.
            async_op: return at once. FSDP waits for a compressed one where it needs the values in any case.

        Returns:
            A work to wait for, or None where the values are there.

        Raises:
            PeerError: another rank failed or is silent.
            Corruption: a message arrived damaged.
        """
        work = None
        if output_tensor.is_cpu and self.collectives.suits([output_tensor], group):
            work = self.collectives.all_gather(group, output_tensor, input_tensor)
        elif not self._logged:
            self._log_reason(output_tensor)
        if work is not None:
            return work
        function: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return function(output_tensor, input_tensor, group=group, async_op=async_op)

    def _log_reason(self, tensor: torch.Tensor) -> None:
        """Log once why parameters of this kind are gathered as they are; small ones need no reason."""
        if not tensor.is_cpu:
            reason = f"on {tensor.device.type}: only in CPU memory are they compressed"
        elif tensor.dtype not in TYPES:
            reason = "of several types, or of a type that is not compressed, in one fully_shard unit"
        else:
            return
        self._logged = True
        _log.info("FSDP: not compressing the all-gather of parameters %s", reason)


def compress_fsdp(
    model: torch.nn.Module,
    mode: Lossless | FixedBits | None = None,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    parameters: bool = True,
    smallest: int = SMALLEST,
    threads: int | None = None,
    timeout: timedelta | None = None,
    bypass: Bypass | None = Bypass(),  # noqa: B008 - frozen
    refresh: Refresh | None = Refresh(),  # noqa: B008 - frozen
) -> Collectives:
    """Compress what FSDP2 sends for every module of ``model`` that ``fully_shard`` has been called on: gradients, and
    parameters on their way to the ranks that need them, which arrive bit for bit.

    Errors of the exchange are raised by the forward pass or by ``backward()``. On CUDA, gradients in float32, bfloat16
    and float16 are compressed, on the device, and parameters are not.

    Args:
        model: the sharded model.
        mode: ``Lossless()`` (default) or ``FixedBits(k)``.
        replicas: for models that are sharded over only one dimension of a mesh: the other dimension, or its group. The
            shards' gradients are averaged over it, compressed, in place of HSDP's own all-reduce. (To keep HSDP's
            own and compress only that, give its dimension the backend "gcodec".)
        parameters: gather parameters compressed, too, without loss whatever the mode is.
        smallest: bytes; smaller tensors are sent uncompressed.
        threads: threads of the codec. Default: the cores divided by the ranks on this host, as torchrun tells.
        timeout: time after which a silent rank is an error; default the group's own.
        bypass: policy that measures whether compression pays; None always compresses.
        refresh: when shared codebooks are renewed; None: every frame carries its own.

    Returns:
        The counters: its ``stats()`` has wire bytes, ratio and seconds.

    Raises:
        Unsupported: this torch has no custom communications for FSDP2, or none for a module whose parameters are
            sharded over several meshes.
        InvalidArgument: another mode, a model without FSDP2 modules, a module that is replicated and not sharded, or
            ``replicas`` of a model that is already HSDP. No module has been changed then.
    """
    check_model(model)
    mode = Lossless() if mode is None else mode
    if not isinstance(parameters, bool):
        raise InvalidArgument(f"parameters must be True or False, not {parameters!r:.80}")
    collectives = Collectives(GroupOptions(mode, smallest, threads, timeout, bypass, refresh), "FSDP", on_gpu=True)
    modules = _sharded(model)
    for name, module in modules.items():  # all of them, before any is changed
        _check_meshes(name, module, replicas is not None)
    hook = None if replicas is None else _averaging(collectives, replicas)
    for module in modules.values():
        module.set_custom_reduce_scatter(CompressedReduceScatter(collectives))  # type: ignore[arg-type]
        if parameters:
            module.set_custom_all_gather(CompressedAllGather(collectives))  # type: ignore[arg-type]
        if hook is not None:
            module.set_all_reduce_hook(hook)
    return collectives


def _sharded(model: torch.nn.Module) -> dict[str, FSDPModule]:
    needed = f"compress_fsdp needs torch 2.11 or later, and this is {torch.__version__}"
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError as error:
        raise Unsupported(needed) from error
    if not hasattr(FSDPModule, "set_custom_reduce_scatter") or not hasattr(FSDPModule, "set_all_reduce_hook"):
        raise Unsupported(needed)
    modules = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not modules:
        raise InvalidArgument("model has no module that is sharded: call fully_shard first")
    return modules


def _averaging(collectives: Collectives, replicas: DeviceMesh | dist.ProcessGroup) -> Callable[[torch.Tensor], None]:
    group = replicas if isinstance(replicas, dist.ProcessGroup) else replicas.get_group()

    def average(shard: torch.Tensor) -> None:
        suits = collectives.suits([shard], group)
        work = collectives.all_reduce(group, [shard], True) if suits else None
        if work is None:
            dist.all_reduce(shard, op=dist.ReduceOp.AVG, group=group)
        else:
            work.wait()

    return average


def _check_meshes(name: str, module: FSDPModule, averages_replicas: bool) -> None:
    """Raise an error if compressed collectives would not be used for a module, or beside an all-reduce of its own."""
    # There is no public way to ask. Before torch 2.13 a module has one parameter group, since then a list.
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    which = f"module {name!r}" if name else "model"
    backend = 'give the dimension of the mesh the backend "gcodec", with backend_override of init_device_mesh'
    if len(groups) > 1:
        raise Unsupported(
            f"{which} has parameters that are sharded over several meshes, and torch takes no other "
            f"reduce-scatter for it: {backend}"
        )
    for group in groups:
        mesh = getattr(group, "mesh_info", None)  # None: a module without parameters of its own
        n_shards, n_replicas = getattr(mesh, "shard_mesh_size", 1), getattr(mesh, "replicate_mesh_size", 0)
        if n_replicas > 1 and n_shards == 1:
            raise InvalidArgument(
                f"{which} is replicated over {n_replicas} ranks and not sharded, so there is no "
                f"reduce-scatter to compress: {backend}"
            )
        if n_replicas and averages_replicas:
            raise InvalidArgument(
                f"{which} must be sharded over one dimension where replicas= is given: its replicas "
                "are averaged without that"
            )


def _plain_reduce_scatter(
    output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
) -> Any:
    function: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(output, whole, group=group, op=op, async_op=async_op)
