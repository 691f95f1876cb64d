"""FSDP2: its reduce-scatter of gradients, its all-gather of parameters, and the all-reduce among replicas of shards,
compressed.

    fully_shard(model, mesh=mesh)
    gcodec.distributed.compress_fsdp(model)

A rank holds a shard of each parameter and of its optimizer state, but reduces whole gradients: so there are lossless
mode and fixed mantissa bits here, and no near-lossless mode. Parameters are always gathered without loss.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..errors import InvalidArgument, Unsupported, check_flag, first_few
from .collectives import Collectives, GroupOptions
from .group import CompressedGroup
from .modes import FixedBits, Lossless
from .reduction.allreduce import MIN_BYTES
from .reduction.bypass import Bypass
from .reduction.shared_codebooks import Refresh
from .transport.arguments import check_model
from .uncompressed import Awaited, small_reason

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Work
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

_MAX_UNDER_WAY = 1  #: reduce-scatters that autograd goes on beside


class _Allocating:
    """Gives FSDP2 memory for a communication, as torch's interfaces ask for."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a buffer, of the given size, type and device."""
        return torch.empty(*size, dtype=dtype, device=device)


class UnderWay:
    """The reduce-scatters of a model: which of them autograd has gone on without, and what the log is to say of them.

    ::

        backward of unit 3    reduce-scatter 3 begins
        backward of unit 2    beside it; then reduce-scatter 2 begins, and the end of 3 is waited for
        end of backward()     the end of the last one is waited for; ranks confirm all to each other

    Args:
        collectives: Makes the compressed ones.
    """

    def __init__(self, collectives: Collectives, model: torch.nn.Module) -> None:
        self._collectives, self._log = collectives, collectives.log
        self._model, self._has_looked = weakref.ref(model), False
        self._awaited = collectives.awaited = Awaited(
            collectives.log, "call compress_fsdp on the model that is trained"
        )
        self._works: deque[Work] = deque()

    def begin(self, group: dist.ProcessGroup) -> None:
        """Note that gradients have come."""
        self._awaited.end(self._parameters)
        self._look_for_others(group)

    def add(self, work: Work) -> None:
        """Wait for a work later, at the end of this backward pass at the latest, which then raises its error."""
        execution_engine: Any = torch.autograd.Variable._execution_engine
        execution_engine.queue_callback(self._end_pass)
        self._works.append(work)

    def _end_pass(self) -> None:
        """End a backward pass: no rank has found an error in what it has got from the others."""
        confirming = self._collectives.begin_confirming()
        self.wait()  # first, as it raises what this rank has found
        for future in confirming:
            future.wait()

    def wait(self, n_left: int = 0) -> None:
        """Wait for all works but the last ``n_left``: their values are there for what comes next on this stream."""
        try:
            while len(self._works) > n_left:
                self._works.popleft().wait()
        except BaseException:
            self._works.clear()
            raise

    def _parameters(self) -> list[torch.Tensor]:
        """Return the parameters that optimizers are given."""
        model = self._model()
        groups = [] if model is None else [group for module in _sharded(model).values() for group in _groups(module)]
        return [param.sharded_param for group in groups for param in group.fsdp_params]

    def _look_for_others(self, group: dist.ProcessGroup) -> None:
        """Say in the log, once, which modules have another reduce-scatter: ``fully_shard`` came after this object."""
        model = self._model()
        if self._has_looked or model is None:
            return
        self._has_looked = True
        others = [
            name or "model"
            for name, module in _sharded(model).items()
            if not all(isinstance(each._reduce_scatter_comm, CompressedReduceScatter) for each in _groups(module))
        ]
        if others:
            text = f"not compressed are the gradients of {first_few(others)}: compress_fsdp must come after the last "
            self._log.say(group.rank(), "others", f"{text}fully_shard, and be the last to set a reduce-scatter")


class CompressedReduceScatter(_Allocating):
    """The reduce-scatter of a module's gradients under FSDP2, with the interface of torch's ``ReduceScatter``.

    Args:
        collectives: Makes the compressed ones.
        under_way: Those of all modules.
        parameters: torch's group of the module's parameters; None of a module without own ones.
    """

    def __init__(self, collectives: Collectives, under_way: UnderWay, parameters: Any = None) -> None:
        self.collectives, self._under_way, self._parameters = collectives, under_way, parameters

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
            output_tensor: Takes this rank's part of the result: before the backward pass ends, if FSDP does not read it
                earlier; else before this returns.
            input_tensor: The whole tensor.
            group: The process group of the shards.
            op: The reduce operation.
            async_op: Return at once.

        Returns:
            A work to wait for if ``async_op``, else None.

        Raises:
            PeerError: Another rank failed or is silent, now or in an earlier call of this backward pass.
            Corruption: A message arrived damaged, likewise.
        """
        later = not async_op and op != dist.ReduceOp.SUM and _is_only_kept(output_tensor, self._parameters)
        if input_tensor.is_complex():  # a sum of complex numbers is one of their parts
            input_tensor, output_tensor = torch.view_as_real(input_tensor), torch.view_as_real(output_tensor)
        if op == dist.ReduceOp.PREMUL_SUM:  # of set_gradient_divide_factor; neither the codec nor Gloo has it
            input_tensor.mul_(op.__getstate__()[1])  # it is FSDP's own memory, which is of no use after this
            op = dist.ReduceOp.SUM
        self._under_way.begin(group)
        if not later:
            self._under_way.wait()
        mean, work = self.collectives.mean_of(op, [input_tensor], group), None
        if mean is not None and self.collectives.suits([input_tensor], group):
            name = f"gradients of {getattr(self._parameters, '_module_fqn', '') or 'the model'}" if later else ""
            work = self.collectives.reduce_scatter(group, [(input_tensor, output_tensor)], mean, later=name)
        if work is None:
            return _plain_reduce_scatter(output_tensor, input_tensor, group, op, async_op)
        if async_op:
            return work
        if later:
            self._under_way.add(work)
            # Each holds the gradients of a whole unit in memory, so there are no more at a time than work side by side.
            self._under_way.wait(_MAX_UNDER_WAY)
        else:
            work.wait()
        return None


class _ReplicaAverage:
    """The hook that averages shards over the replicas, compressed.

    Args:
        collectives: Makes the compressed ones.
        group: The replicas' process group.
    """

    def __init__(self, collectives: Collectives, group: dist.ProcessGroup) -> None:
        self.collectives, self.group = collectives, group

    def __call__(self, shard: torch.Tensor) -> None:
        if shard.is_complex():
            shard = torch.view_as_real(shard)
        suits = self.collectives.suits([shard], self.group)
        work = self.collectives.all_reduce(self.group, [shard], True) if suits else None
        if work is None:
            dist.all_reduce(shard, op=dist.ReduceOp.AVG, group=self.group)
        else:
            work.wait()


class CompressedAllGather(_Allocating):
    """The all-gather of a module's parameters under FSDP2, without loss, with the interface of torch's ``AllGather``.

    Args:
        collectives: Makes the compressed ones.
    """

    def __init__(self, collectives: Collectives) -> None:
        self.collectives = collectives

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        """Gather the parts of a tensor from all ranks.

        Args:
            output_tensor: Takes the whole tensor.
            input_tensor: This rank's part, perhaps where ``output_tensor`` has it.
            group: The process group of the shards.
            async_op: Return at once. FSDP waits for a compressed one where it needs the values in any case.

        Returns:
            A work to wait for, or None where the values are there.

        Raises:
            PeerError: Another rank failed or is silent.
            Corruption: A message arrived damaged.
        """
        whole, part, work = output_tensor, input_tensor, None
        if whole.is_complex():
            whole, part = torch.view_as_real(whole), torch.view_as_real(part)
        if not whole.is_cpu:
            reason = f"parameters on {whole.device.type} devices (those in CPU memory are)"
            self.collectives.say_uncompressed(group, [whole], reason, is_expected=True)
        elif self.collectives.suits([whole], group):
            work = self.collectives.all_gather(group, whole, part)
        if work is not None:
            return work
        function: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return function(output_tensor, input_tensor, group=group, async_op=async_op)


def compress_fsdp(
    model: torch.nn.Module,
    mode: Lossless | FixedBits | None = None,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    parameters: bool = True,
    min_bytes: int = MIN_BYTES,
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
        model: The sharded model.
        mode: ``Lossless()`` (default) or ``FixedBits(k)``.
        replicas: For models that are sharded over only one dimension of a mesh: the other dimension, or its group. The
            shards' gradients are averaged over it, compressed, in place of HSDP's own all-reduce. (To keep HSDP's
            own and compress only that, give its dimension the backend "gcodec".)
        parameters: Gather parameters compressed, too, without loss whatever the mode is.
        min_bytes: Bytes; smaller tensors are sent uncompressed.
        threads: Threads of the codec. Default: the cores divided by the ranks on this host, as torchrun tells.
        timeout: Time after which a silent rank is an error; default the group's own.
        bypass: Policy that measures whether compression pays; None always compresses.
        refresh: When shared codebooks are renewed; None: every frame carries its own.

    Returns:
        The counters: its ``stats()`` has wire bytes, ratio and seconds.

    Raises:
        Unsupported: This torch has no custom communications for FSDP2, or none for a module whose parameters are
            sharded over several meshes.
        InvalidArgument: Another mode, a model without parameters that FSDP2 has sharded, a module that is replicated
            and not sharded, or ``replicas`` that are no group, not ranks with the same shards, of a model that is
            already HSDP, or of one with an all-reduce hook of its own. No module has been changed then.
    """
    check_model(model)
    mode = Lossless() if mode is None else mode
    check_flag("parameters", parameters)
    collectives = Collectives(GroupOptions(mode, min_bytes, threads, timeout, bypass, refresh), "FSDP", on_gpu=True)
    modules = _sharded(model)
    group = None if replicas is None else _group_of(replicas)
    for name, module in modules.items():  # all of them, before any is changed
        which = f"module {name!r}" if name else "model"
        _check_meshes(which, module, group is not None)
        if group is not None:
            _check_replicas(which, module, group)
    if not any(map(_groups, modules.values())):
        raise InvalidArgument(
            "model has modules that fully_shard was called on, and none of their parameters is sharded: give the "
            "module that holds them, without ignored_params"
        )
    _say_if_small(collectives, modules.values())
    _say_of_replicas(collectives, modules.values())
    under_way, gather = UnderWay(collectives, model), CompressedAllGather(collectives)
    hook = None if group is None else _ReplicaAverage(collectives, group)
    for module in modules.values():
        comm = CompressedReduceScatter(collectives, under_way, next(iter(_groups(module)), None))
        module.set_custom_reduce_scatter(comm)  # type: ignore[arg-type]
        if parameters:
            module.set_custom_all_gather(gather)  # type: ignore[arg-type]
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
        raise InvalidArgument(
            "model has no module that is sharded: call fully_shard first (FullyShardedDataParallel is another class: "
            'give it process_group=new_group(backend="gcodec"), and DDP gets the hook)'
        )
    return modules


def _say_if_small(collectives: Collectives, modules: Iterable[FSDPModule]) -> None:
    """Say in the log that no module has gradients of as many bytes as are compressed, if that is so."""
    min_bytes, groups = collectives.options.min_bytes, [group for module in modules for group in _groups(module)]
    params = [[param.sharded_param for param in group.fsdp_params] for group in groups]
    if max(sum(param.numel() * param.element_size() for param in of_group) for of_group in params) < min_bytes:
        text = f"no gradients are compressed: those of all modules are {small_reason(min_bytes, 'tensors')}"
        collectives.log.say(dist.get_rank(), "small", text)


def _say_of_replicas(collectives: Collectives, modules: Iterable[FSDPModule]) -> None:
    """Say in the log that HSDP's own all-reduce is not compressed, if it is so."""
    infos = [group.mesh_info for module in modules for group in _groups(module)]
    replicas = [info.replicate_process_group for info in infos if getattr(info, "replicate_mesh_size", 1) > 1]
    if not all(isinstance(group, CompressedGroup) for group in replicas):
        text = (
            "not compressed is HSDP's all-reduce among replicas: give their dimension of the mesh the backend "
            '"gcodec", with backend_override of init_device_mesh'
        )
        collectives.log.say(dist.get_rank(), "replicas", text)


def _groups(module: FSDPModule) -> list[Any]:
    """Return a module's groups of parameters, each of which is reduced as one. A module without own ones has none."""
    # There is no public way to ask. Before torch 2.13 a module has one parameter group, since then a list.
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    return [group for group in groups if group is not None]


def _is_only_kept(result: torch.Tensor, parameters: Any) -> bool:
    """Return whether FSDP does nothing with the result of a reduce-scatter before the end of the backward pass but make
    views of it, the gradients: then nobody waits for its values until then.

    Args:
        parameters: torch's group of the parameters whose gradients it has, if that is known.
    """
    # As in torch's foreach_reduce, of which there is no public way to ask. A torch that has other names here waits.
    if parameters is None or torch._C._current_graph_task_id() < 0:
        return False
    try:
        is_read = (
            hasattr(parameters.mesh_info, "replicate_mesh_size")  # it is summed over replicas
            or parameters._all_reduce_hook is not None
            or parameters._orig_dtype not in (None, result.dtype)  # it is cast
            or any(
                param.offload_to_cpu
                or param.sharded_param.grad is not None  # it is added to that
                or getattr(param.sharded_param, "_post_accumulate_grad_hooks", None)
                for param in parameters.fsdp_params
            )
        )
    except AttributeError:
        return False
    return not is_read


def _group_of(replicas: DeviceMesh | dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the group of ``replicas``. Raises InvalidArgument if it is none that this process is in."""
    n_dimensions = getattr(replicas, "ndim", None)
    if not isinstance(replicas, dist.ProcessGroup) and n_dimensions != 1:
        which = f"a mesh of {n_dimensions} dimensions" if n_dimensions else f"{replicas!r:.80}"
        raise InvalidArgument(
            f'replicas must be one dimension of a mesh, such as mesh["rep"], or its process group, not {which}'
        )
    return replicas if isinstance(replicas, dist.ProcessGroup) else replicas.get_group()


def _check_meshes(which: str, module: FSDPModule, averages_replicas: bool) -> None:
    """Raise an error if compressed collectives would not be used for a module, or beside an all-reduce of its own."""
    backend = 'give the dimension of the mesh the backend "gcodec", with backend_override of init_device_mesh'
    groups = _groups(module)
    if len(groups) > 1:
        raise Unsupported(
            f"{which} has parameters that are sharded over several meshes, and torch takes no other "
            f"reduce-scatter for it: {backend}"
        )
    for group in groups:
        n_shards = getattr(group.mesh_info, "shard_mesh_size", 1)
        n_replicas = getattr(group.mesh_info, "replicate_mesh_size", 0)
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


def _check_replicas(which: str, module: FSDPModule, replicas: dist.ProcessGroup) -> None:
    """Raise InvalidArgument if a module's shards must not be averaged over ``replicas``, or something else is there."""
    for group in _groups(module):
        shards = getattr(group.mesh_info, "shard_process_group", None)
        common = _ranks(replicas) & (_ranks(shards) if shards is not None else {dist.get_rank()})
        if common != {dist.get_rank()}:
            raise InvalidArgument(
                f"replicas must be ranks that hold the same shards, and {which} has other shards on some of the ranks "
                f"{sorted(common)}: give the mesh's other dimension"
            )
        hook = getattr(group, "_all_reduce_hook", None)
        if hook is not None and not isinstance(hook, _ReplicaAverage):
            raise InvalidArgument(
                f"{which} has a hook of its own from set_all_reduce_hook, whose place the average over replicas= "
                "would take: leave out one of the two"
            )


def _ranks(group: dist.ProcessGroup) -> set[int]:
    return set(dist.get_process_group_ranks(group))


def _plain_reduce_scatter(
    output: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
) -> Any:
    function: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(output, whole, group=group, op=op, async_op=async_op)
