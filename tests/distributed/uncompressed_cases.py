"""Ways to ask for compression, each tried by the ranks of tests/distributed/test_uncompressed.py, in a Gloo world."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision
from torch.nn.utils import parametrize

import gcodec
import gcodec.distributed as gd
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import TopK
from gcodec.distributed import uncompressed
from gcodec.sync import Publisher, Subscriber
from tests.distributed.rank_basics import rank, size

WIDTH = 200
LARGE = 50_000  #: values; enough to be compressed
MB = 0.2  #: of a bucket: that of one layer


class Outcome(NamedTuple):
    """What a way to ask has led to.

    Attributes:
        sent: Bytes that the adapter has sent.
        dense: Bytes that the same would take uncompressed.
        lines: What it has said in the log.
        error: The error that it has raised, with its class; empty if none.
    """

    sent: float
    dense: float
    lines: list[str]
    error: str


c10d: Any = dist  # for the names that torch does not declare
Way = Callable[[], tuple[float, float]]
WAYS: dict[str, Way] = {}


def way(name: str) -> Callable[[Way], Way]:
    """Decorate a function that asks for compression, and returns the bytes sent and those of the same uncompressed."""

    def decorate(function: Way) -> Way:
        WAYS[name] = function
        return function

    return decorate


def outcomes() -> dict[str, Outcome]:
    """Try all ways, and return what each has led to on this rank."""
    return {name: outcome_of(function) for name, function in WAYS.items()}


def outcome_of(function: Way) -> Outcome:
    """Try one way."""
    sent, dense, error = 0.0, 0.0, ""
    uncompressed._awaited.clear()  # of ways that raised an error
    with lines_of_log() as lines:
        try:
            sent, dense = function()
        except Exception as found:
            error = f"{type(found).__name__}: {found}"
    return Outcome(sent, dense, lines, error)


def alone() -> list[str]:
    """Return what is logged where there is no other rank, to which anything would be sent."""
    with lines_of_log() as lines:
        dist.broadcast(values(), 0, group=(group := new_group()))
        dist.all_reduce(values(100), group=group)
        train_ddp(Stack(8))
        train_ddp(Stack(8), compressor=TopK(0.01))
        diloco(8)
        gd.allreduce(values(100))
    return lines


@contextmanager
def lines_of_log() -> Iterator[list[str]]:
    """Return the list that gets what the logger of gcodec.distributed is told meanwhile."""
    lines: list[str] = []
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("gcodec.distributed")
    before, logger.level = logger.level, logging.INFO
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)
    logger.level = before


class Stack(nn.Module):
    """Five layers of one size, and one that a forward pass may leave out."""

    def __init__(self, width: int = WIDTH, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.width, self.dtype = width, dtype
        self.first = nn.Linear(width, width, dtype=dtype)
        self.layers = nn.ModuleList([nn.Linear(width, width, dtype=dtype) for _ in range(3)])
        self.last = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum."""
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x).abs().sum()

    def batch(self) -> torch.Tensor:
        """This rank's batch."""
        random = torch.Generator().manual_seed(rank())
        return torch.randn(4, self.width, generator=random).to(self.dtype)


def layers(model: Any) -> list[tuple[str, nn.Parameter]]:
    """The parameters of the layers in the middle, by name."""
    return [(name, param) for name, param in model.named_parameters() if name.startswith("layers")]


# ------------------------------------------------------------------------------------------------------------ DDP


def train_ddp(
    model: Any = None, prepare: Any = None, compressor: Any = None, accumulate: bool = False, **options: Any
) -> tuple[float, float]:
    """Two steps under DDP with the hook; uncompressed would be the gradients of all parameters that DDP averages."""
    model = model or Stack()
    if prepare is not None:
        prepare(model)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=MB, **options)
    state: Any = gd.CompressedAllreduce(bypass=None)
    if compressor is not None:
        state = gd.CompressedGradients(wrapped, compressor)
    wrapped.register_comm_hook(state, gd.hook)
    for _ in range(2):
        if accumulate:
            with wrapped.no_sync():
                wrapped(model.batch()).backward()
        wrapped(model.batch()).backward()
    ignored = getattr(model, "_ddp_params_and_buffers_to_ignore", ())
    averaged = [param for name, param in model.named_parameters() if param.requires_grad and name not in ignored]
    numbers = state.stats()
    delayed = sum(param.nbytes for _, param in options.get("delay_all_reduce_named_params", ()))
    assert numbers["raw_bytes"] == 2 * (sum(param.nbytes for param in averaged) - delayed)
    return numbers["sent_bytes"], numbers["dense_bytes"]


def freeze(model: Any) -> None:
    """Leave only some parameters to be trained."""
    for _, param in layers(model):
        param.requires_grad_(False)


def add_integers(model: Any) -> None:
    """Add a parameter of integers, as quantized models have."""
    model.codes = nn.Parameter(torch.ones(LARGE, dtype=torch.int32), requires_grad=False)


def add_float8(model: Any) -> None:
    """Add a parameter of float8."""
    model.codes = nn.Parameter(torch.ones(LARGE).to(torch.float8_e5m2), requires_grad=False)


def ignore(model: Any) -> None:
    """Have DDP ignore some parameters."""
    names = [name for name, _ in layers(model)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


class Words(nn.Module):
    """An embedding whose gradient is sparse, before a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(LARGE // 10, 20, sparse=True)
        self.last = nn.Linear(20, LARGE // 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum."""
        return self.last(self.words(x)).sum()


class Halves(Stack):
    """Layers of which one is complex."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = nn.Linear(WIDTH, WIDTH, dtype=torch.complex64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A sum."""
        x = self.layers[0](self.first(x)).to(torch.complex64)
        return self.last(self.layers[2](self.layers[1](x).real)).sum()


MIXED = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
way("DDP")(train_ddp)
way("DDP, static graph")(lambda: train_ddp(static_graph=True))
way("DDP, views of buckets")(lambda: train_ddp(gradient_as_bucket_view=True))
way("DDP, unused parameters")(lambda: train_ddp(find_unused_parameters=True))
way("DDP, accumulation")(lambda: train_ddp(accumulate=True))
way("DDP, mixed precision")(lambda: train_ddp(mixed_precision=MIXED))
way("DDP, frozen parameters")(lambda: train_ddp(prepare=freeze))
way("DDP, parameters of integers")(lambda: train_ddp(prepare=add_integers))
way("DDP, parameters of float8")(lambda: train_ddp(prepare=add_float8))
way("DDP, ignored parameters")(lambda: train_ddp(prepare=ignore))
way("DDP, float64")(lambda: train_ddp(Stack(dtype=torch.float64)))
way("DDP, float16")(lambda: train_ddp(Stack(256, torch.float16)))
way("DDP, complex")(lambda: train_ddp(Stack(dtype=torch.complex64)))
way("DDP, a complex layer")(lambda: train_ddp(Halves()))
way("DDP, tiny")(lambda: train_ddp(Stack(8)))
way("DDP, top-k")(lambda: train_ddp(compressor=TopK(0.01)))
way("DDP, top-k, complex")(lambda: train_ddp(Stack(dtype=torch.complex64), compressor=TopK(0.01)))
way("DDP, top-k, tiny")(lambda: train_ddp(Stack(8), compressor=TopK(0.01)))


@way("DDP, sparse gradients")
def _sparse() -> tuple[float, float]:
    model = Words()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=MB)
    state = gd.CompressedAllreduce(bypass=None)
    wrapped.register_comm_hook(state, gd.hook)
    for _ in range(2):
        wrapped(torch.arange(50)).backward()
    return state.stats()["sent_bytes"], state.stats()["dense_bytes"]


@way("DDP, delayed parameters")
def _delayed() -> tuple[float, float]:
    model = Stack()
    delayed: dict[str, Any] = {
        "delay_all_reduce_named_params": layers(model),
        "param_to_hook_all_reduce": model.first.weight,
    }
    return train_ddp(model, **delayed)


@way("DDP, hook not registered")
def _not_registered() -> tuple[float, float]:
    model = Stack()
    wrapped = DistributedDataParallel(model)
    state = gd.CompressedAllreduce(bypass=None)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    for _ in range(10):
        wrapped(model.batch()).backward()
        optimizer.step()
    return state.stats()["sent_bytes"], state.stats()["dense_bytes"]


def in_turns(state_of: Callable[[Any], Any], is_registered: bool = True) -> tuple[float, float]:
    """Train a critic for nine steps before each of nine of a generator, whose gradients come together with some of the
    critic, as a GAN is trained; return the bytes of the generator's gradients."""
    models = Stack(), Stack()
    critic, generator = (DistributedDataParallel(model, bucket_cap_mb=MB) for model in models)
    states = [state_of(model) for model in (critic, generator)]
    critic.register_comm_hook(states[0], gd.hook)
    if is_registered:
        generator.register_comm_hook(states[1], gd.hook)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in models]
    for _ in range(9):
        for _ in range(9):
            critic(models[0].batch()).backward()
            optimizers[0].step()
        (generator(models[1].batch()) + critic(models[0].batch())).backward()
        optimizers[1].step()
    return states[1].stats()["sent_bytes"], states[1].stats()["dense_bytes"]


ALL = CompressionPlan(TopK(0.01), min_values=0, vectors=True)  #: compresses every tensor
way("DDP, two models in turns")(lambda: in_turns(lambda _: gd.CompressedAllreduce(bypass=None)))
way("DDP, top-k, two models in turns")(lambda: in_turns(lambda model: gd.CompressedGradients(model, ALL)))
way("DDP, hook of one of two models")(lambda: in_turns(lambda _: gd.CompressedAllreduce(bypass=None), False))


@way("DDP, a state that is not used")
def _unused_state() -> tuple[float, float]:
    model = Stack()
    wrapped = DistributedDataParallel(model)
    gd.CompressedAllreduce(bypass=None)  # as where a cell of a notebook runs again
    state = gd.CompressedAllreduce(bypass=None)
    wrapped.register_comm_hook(state, gd.hook)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-6)
    for _ in range(10):
        optimizer.zero_grad()
        wrapped(model.batch()).backward()
        optimizer.step()
    return state.stats()["sent_bytes"], state.stats()["dense_bytes"]


@way("DDP, hook registered twice")
def _twice() -> tuple[float, float]:
    wrapped = DistributedDataParallel(Stack())
    for _ in range(2):
        wrapped.register_comm_hook(gd.CompressedAllreduce(bypass=None), gd.hook)
    raise AssertionError("not refused")


@way("DDP, another group")
def _another_group() -> tuple[float, float]:
    return train_ddp(process_group=dist.new_group())


@way("DDP, python_reducer")
def _python_reducer() -> tuple[float, float]:
    import torch._dynamo

    model = Stack(8)
    wrapped = DistributedDataParallel(model)
    state = gd.CompressedAllreduce(bypass=None)
    wrapped.register_comm_hook(state, gd.hook)
    # Under "python_reducer" DDP calls hooks itself, with a gradient and its parameter in place of a bucket.
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        wrapped._register_accum_grad_hook()
    model(model.batch()).backward()
    raise AssertionError("not refused")


@way("replicate")
def _replicate() -> tuple[float, float]:
    from torch.distributed._composable.replicate import replicate

    model: Any = replicate(Stack(), bucket_cap_mb=MB)
    state = gd.CompressedAllreduce(bypass=None)
    model.register_comm_hook(state, gd.hook)
    for _ in range(2):
        model(model.batch()).backward()
    return state.stats()["sent_bytes"], state.stats()["dense_bytes"]


# --------------------------------------------------------------------------------------------------- Process group


def new_group() -> Any:
    """Return a new group that compresses, of all ranks."""
    return dist.new_group(backend="gcodec", pg_options=gd.GroupOptions(bypass=None))


def counted(action: Callable[[Any], object]) -> tuple[float, float]:
    """Return the bytes that a new group sends in an action, and what they would be uncompressed."""
    group = new_group()
    action(group)
    dist.barrier(group)
    return group.stats()["sent_bytes"], group.stats()["dense_bytes"]


def values(n: int = LARGE, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what this rank brings."""
    return torch.randn(n, generator=torch.Generator().manual_seed(rank())).to(dtype)


def collective(name: str) -> Callable[[Callable[[Any], object]], None]:
    """Decorate an action with the group."""

    def decorate(action: Callable[[Any], object]) -> None:
        way(f"group, {name}")(lambda: counted(action))

    return decorate


def scatter_single(group: Any, **options: Any) -> object:
    """Make a reduce-scatter, by the name that this torch has for it."""
    function: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return function(values(LARGE // size()), values(LARGE // size() * size()), group=group, **options)


def coalesced(group: Any) -> None:
    """Make several all-reduces as one."""
    with c10d._coalescing_manager(group=group, async_ops=True) as manager:
        for _ in range(3):
            dist.all_reduce(values(), group=group)
    manager.wait()


def exchange(group: Any) -> None:
    """Send from rank 0 to rank 1."""
    if rank() < 2:
        (dist.send if rank() == 0 else dist.recv)(values(), 1 - rank(), group=group)


def redistributed(group: Any, placement: Any) -> None:
    """Turn a DTensor of partial sums into another one."""
    mesh = DeviceMesh.from_group(group, "cpu")
    tensor = DTensor.from_local(values(40_000).view(200, 200), mesh, [Partial()])
    functional.wait_tensor(tensor.redistribute(mesh, [placement]).to_local())


def tensor_parallel(group: Any) -> None:
    """Train two layers, parallel over the ranks."""
    mesh = DeviceMesh.from_group(group, "cpu")
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    model(values(64 * 512).view(512, 64)).sum().backward()


class Gathered(nn.Module):
    """The parametrization by which SimpleFSDP gathers a parameter, and scatters the sum of its gradient."""

    def forward(self, x: Any) -> torch.Tensor:
        """The whole parameter."""
        whole: torch.Tensor = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])
        return whole


def parametrized(group: Any) -> None:
    """Train a layer as SimpleFSDP does."""
    layer: Any = nn.Linear(WIDTH, WIDTH, bias=False)
    layer.weight = nn.Parameter(distribute_tensor(layer.weight, DeviceMesh.from_group(group, "cpu"), [Shard(0)]))
    parametrize.register_parametrization(layer, "weight", Gathered(), unsafe=True)
    layer(values(4 * WIDTH).view(4, WIDTH)).sum().backward()
    functional.wait_tensor(layer.parametrizations.weight.original.grad.to_local())


def unhooked(group: Any, **options: Any) -> None:
    """Train under DDP without a hook."""
    model = Stack(dtype=torch.bfloat16 if options else torch.float32)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=MB, process_group=group, **options)
    wrapped(model.batch()).backward()


# DTensor takes meshes of the same ranks for one mesh, and later ones may get the group of this one.
collective("SimpleFSDP")(parametrized)
collective("sum")(lambda group: dist.all_reduce(values(), group=group))
collective("average")(lambda group: dist.all_reduce(values(), op=dist.ReduceOp.AVG, group=group))
collective("asynchronous")(lambda group: dist.all_reduce(values(), group=group, async_op=True).wait())
collective("coalesced")(coalesced)
collective("complex")(lambda group: dist.all_reduce(values(dtype=torch.complex64), group=group))
collective("reduce-scatter")(scatter_single)
collective("functional")(lambda group: functional.wait_tensor(functional.all_reduce(values(), "sum", group)))
collective("DTensor, replicated")(lambda group: redistributed(group, Replicate()))
collective("DTensor, sharded")(lambda group: redistributed(group, Shard(0)))
collective("tensor parallel")(tensor_parallel)
collective("DDP")(unhooked)
collective("DDP, mixed precision")(lambda group: unhooked(group, mixed_precision=MIXED))
collective("maximum")(lambda group: dist.all_reduce(values(), op=dist.ReduceOp.MAX, group=group))
collective("scaled sum")(lambda group: scatter_single(group, op=c10d._make_nccl_premul_sum(0.5)))
collective("integers")(lambda group: dist.all_reduce(values(dtype=torch.int64), group=group))
collective("small")(lambda group: dist.all_reduce(values(100), group=group))
collective("sparse")(lambda group: dist.all_reduce(torch.eye(300).to_sparse(), group=group))
collective("to one rank")(lambda group: dist.reduce(values(), 0, group=group))
collective("list")(lambda group: dist.reduce_scatter(values(), [values() for _ in range(size())], group=group))
collective("all-gather")(lambda group: dist.all_gather([values() for _ in range(size())], values(), group=group))
collective("broadcast")(lambda group: dist.broadcast(values(), 0, group=group))
collective("all-to-all")(lambda group: dist.all_to_all_single(values(), values(), group=group))
collective("send")(exchange)


# ----------------------------------------------------------------------------------------------------------- FSDP1


def wrapped_by_fsdp1(**options: Any) -> tuple[Any, Any]:
    """Return the model and FSDP1's wrapper of it."""
    model = Stack()
    return model, FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


@way("FSDP1, hook")
def _fsdp1_hook() -> tuple[float, float]:
    model, wrapped = wrapped_by_fsdp1()
    wrapped.register_comm_hook(gd.CompressedAllreduce(bypass=None), gd.hook)
    wrapped(model.batch()).backward()
    raise AssertionError("not refused")


@way("FSDP1, compress_fsdp")
def _fsdp1_compress() -> tuple[float, float]:
    gd.compress_fsdp(wrapped_by_fsdp1()[1])
    raise AssertionError("not refused")


@way("FSDP1, process group")
def _fsdp1_group() -> tuple[float, float]:
    def train(group: Any) -> None:
        model, wrapped = wrapped_by_fsdp1(process_group=group)
        wrapped(model.batch()).backward()

    return counted(train)


# ----------------------------------------------------------------------------------------------------------- FSDP2


def train_fsdp(
    model: Any = None,
    *,
    mesh: DeviceMesh | None = None,
    before: Callable[[Any], None] = lambda unit: None,
    after: Callable[[Any], None] = lambda unit: None,
    root_last: bool = False,
    replicas: Any = None,
    **options: Any,
) -> tuple[float, float]:
    """Two steps under FSDP2; before and after compress_fsdp something is done with each unit."""
    model = model or Stack()
    mesh = init_device_mesh("cpu", (size(),)) if mesh is None else mesh
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    if not root_last:
        fully_shard(model, mesh=mesh, **options)
    for unit in units(model):
        before(unit)
    comms = [unit._get_fsdp_state()._fsdp_param_groups for unit in units(model)]
    try:
        counts = gd.compress_fsdp(model, bypass=None, replicas=mesh if replicas == "the same" else replicas)
    except gcodec.GcodecError:
        assert all(type(each._reduce_scatter_comm) is DefaultReduceScatter for groups in comms for each in groups)
        raise
    if root_last:
        fully_shard(model, mesh=mesh, **options)
    for unit in units(model):
        after(unit)
    for _ in range(2):
        model(model.batch()).backward()
    return counts.stats()["sent_bytes"], counts.stats()["dense_bytes"]


def units(model: Any) -> list[Any]:
    """The modules that are sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def give_plain_reduce_scatter(unit: Any) -> None:
    """Give a layer torch's own reduce-scatter."""
    if not isinstance(unit, Stack):
        unit.set_custom_reduce_scatter(DefaultReduceScatter())


def both() -> DeviceMesh:
    """A mesh of all ranks as replicas, each of which has all shards."""
    return init_device_mesh("cpu", (size(), 1), mesh_dim_names=("rep", "shard"))


def all_ignored() -> tuple[float, float]:
    """A model whose parameters FSDP2 is to ignore."""
    model = Stack()
    return train_fsdp(model, ignored_params=set(model.parameters()))


def some_ignored() -> tuple[float, float]:
    """A model of whose parameters FSDP2 is to ignore some."""
    model = Stack()
    return train_fsdp(model, ignored_params=set(model.layers.parameters()))


def grouped() -> tuple[float, float]:
    """Layers that are sharded as one."""
    model: Any = Stack()
    fully_shard([*model.layers])
    fully_shard(model)
    counts = gd.compress_fsdp(model, bypass=None)
    model(model.batch()).backward()
    return counts.stats()["sent_bytes"], counts.stats()["dense_bytes"]


def with_tensor_parallel() -> tuple[float, float]:
    """A model that is sharded over one dimension of a mesh, and parallel over the other."""
    mesh = init_device_mesh("cpu", (size(), 1), mesh_dim_names=("data", "tensor"))
    model: Any = Stack()
    parallelize_module(model, mesh["tensor"], {"first": ColwiseParallel(), "layers.0": RowwiseParallel()})
    return train_fsdp(model, mesh=mesh["data"])


NARROW = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
way("FSDP2")(train_fsdp)
way("FSDP2, mixed precision")(lambda: train_fsdp(mp_policy=NARROW))
way("FSDP2, no resharding")(lambda: train_fsdp(reshard_after_forward=False))
way("FSDP2, float64")(lambda: train_fsdp(Stack(dtype=torch.float64)))
way("FSDP2, complex")(lambda: train_fsdp(Stack(dtype=torch.complex64)))
way("FSDP2, tiny")(lambda: train_fsdp(Stack(8)))
way("FSDP2, divide factor")(lambda: train_fsdp(after=lambda unit: unit.set_gradient_divide_factor(3.0)))
way("FSDP2, sums only")(lambda: train_fsdp(after=lambda unit: unit.set_force_sum_reduction_for_comms(True)))
way("FSDP2, memory of the group, before")(
    lambda: train_fsdp(before=lambda unit: unit.set_allocate_memory_from_process_group_for_comm(True))
)
way("FSDP2, memory of the group, after")(
    lambda: train_fsdp(after=lambda unit: unit.set_allocate_memory_from_process_group_for_comm(True))
)
way("FSDP2, some ignored")(some_ignored)
way("FSDP2, all ignored")(all_ignored)
way("FSDP2, layers as one")(grouped)
way("FSDP2, another reduce-scatter after")(lambda: train_fsdp(after=give_plain_reduce_scatter))
way("FSDP2, root after compress_fsdp")(lambda: train_fsdp(root_last=True))
way("FSDP2, tensor parallel")(with_tensor_parallel)
way("FSDP2, replicas")(lambda: train_fsdp(mesh=both()["shard"], replicas=both()["rep"]))
way("FSDP2, replicas of a wrong kind")(lambda: train_fsdp(replicas="rep"))
way("FSDP2, replicas of two dimensions")(lambda: train_fsdp(replicas=both()))
way("FSDP2, replicas with other shards")(lambda: train_fsdp(replicas="the same"))
way("FSDP2, replicas and a hook")(
    lambda: train_fsdp(
        mesh=both()["shard"], replicas=both()["rep"], before=lambda unit: unit.set_all_reduce_hook(print)
    )
)


@way("FSDP2, another model")
def _another_model() -> tuple[float, float]:
    mesh, model = init_device_mesh("cpu", (size(),)), Stack()
    trained: Any = fully_shard(model, mesh=mesh)
    counts = gd.compress_fsdp(fully_shard(Stack(), mesh=mesh), bypass=None)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    for _ in range(10):
        trained(model.batch()).backward()
        optimizer.step()
    return counts.stats()["sent_bytes"], counts.stats()["dense_bytes"]


@way("FSDP2, two models in turns")
def _sharded_in_turns() -> tuple[float, float]:
    mesh, models = init_device_mesh("cpu", (size(),)), (Stack(), Stack())
    sharded: list[Any] = [fully_shard(model, mesh=mesh) for model in models]
    counts = [gd.compress_fsdp(model, bypass=None) for model in sharded]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-6) for model in sharded]
    for number in (*[0] * 10, 1, *[0] * 10, 1):
        sharded[number](models[number].batch()).backward()
        optimizers[number].step()
    return counts[1].stats()["sent_bytes"], counts[1].stats()["dense_bytes"]


# ---------------------------------------------------------------------------------- allreduce, DiLoCo, weights, debug


def diloco(width: int, mode: str | None = None) -> tuple[float, float]:
    """Make one exchange."""
    model = Stack(width)
    outer = gd.DiLoCo(torch.optim.SGD(model.parameters(), lr=0.1), 1, mode=mode)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(values(param.numel()).view(param.shape), alpha=0.01)
    outer.step()
    return outer.stats()["sent_bytes"], outer.stats()["dense_bytes"]


def weights() -> tuple[float, float]:
    """Send a version of weights that differs from the one before in few values."""
    state, n_bytes = {"w": values().clone()}, 0
    broadcast, publisher, subscriber = gd.WeightBroadcast(), Publisher(), Subscriber({"w": torch.zeros(LARGE)})
    for _ in range(2):
        if rank() == 0:
            n_bytes = broadcast.send(publisher.publish(state))
            state["w"][:100] += 1
        else:
            broadcast.receive(subscriber)
            n_bytes = 1  # it sends next to nothing
    return n_bytes, 4 * LARGE


def small_tensor() -> tuple[float, float]:
    """All-reduce a tensor that is small."""
    gd.allreduce(values(100))
    return 400, 400


def refused(tensor: torch.Tensor, op: str) -> tuple[float, float]:
    """All-reduce what is no float, or not by a sum."""
    gd.allreduce(tensor, op=op)
    raise AssertionError("not refused")


def detail(action: Callable[[dist.ProcessGroup], tuple[float, float]], backend: str) -> tuple[float, float]:
    """Do something with a group of TORCH_DISTRIBUTED_DEBUG=DETAIL, for which torch wraps the backend."""
    c10d.set_debug_level(c10d.DebugLevel.DETAIL)
    try:
        if backend == "gcodec":
            return action(new_group())
        group = dist.new_group(backend=backend)
        assert hasattr(group._get_backend(torch.device("cpu")), "wrapped_pg")
        return action(group)
    finally:
        c10d.set_debug_level(c10d.DebugLevel.OFF)


def summed(group: Any) -> tuple[float, float]:
    """Make one all-reduce by a group that compresses."""
    dist.all_reduce(values(), group=group)
    return group.stats()["sent_bytes"], group.stats()["dense_bytes"]


way("allreduce, small")(small_tensor)
way("allreduce, integers")(lambda: refused(torch.ones(LARGE, dtype=torch.int32), "sum"))
way("allreduce, maximum")(lambda: refused(values(), "max"))
way("DiLoCo")(lambda: diloco(WIDTH))
way("DiLoCo, tiny")(lambda: diloco(8))
way("DiLoCo, int4")(lambda: diloco(WIDTH, "int4"))
way("DiLoCo, int4, tiny")(lambda: diloco(8, "int4"))
way("weights")(weights)
way("DETAIL, group")(lambda: detail(summed, "gcodec"))
way("DETAIL, FSDP2")(lambda: detail(lambda group: train_fsdp(mesh=DeviceMesh.from_group(group, "cpu")), "gloo"))


# The last one, as torch.compile ends the hooks of optimizers.
@way("DDP, torch.compile")
def _compiled() -> tuple[float, float]:
    model = Stack(512)  # torch.compile wants no bucket below 1 MB
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
    state = gd.CompressedAllreduce(bypass=None)
    wrapped.register_comm_hook(state, gd.hook)
    compiled: Any = torch.compile(wrapped, backend="eager")
    for _ in range(2):
        compiled(model.batch()).backward()
    return state.stats()["sent_bytes"], state.stats()["dense_bytes"]
