"""The recipes of docs/training/frameworks.md, run by torchrun: ``framework_cases.py RECIPE``.

Each trains a little and prints a checksum of this rank's parameters and the number of compressed collectives.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

import gcodec.distributed as gd
from tests.distributed.rank_basics import Net, crc

STEPS = 3


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's batches."""
    random = torch.Generator().manual_seed(int(os.environ["RANK"]))
    return [
        (torch.randn(16, 48, generator=random), torch.randint(0, 10, (16,), generator=random)) for _ in range(STEPS)
    ]


def lightning(strategy: Any, callbacks: list[Any]) -> Net:
    """Trains with Lightning."""
    import pytorch_lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=strategy,
        callbacks=callbacks,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, torch.utils.data.DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    return module.net


def lightning_backend() -> tuple[Net, float]:
    """Lightning's DDP on the process group."""
    from pytorch_lightning.strategies import DDPStrategy

    net = lightning(DDPStrategy(process_group_backend="gcodec"), [])
    return net, counted()


def lightning_hook() -> tuple[Net, float]:
    """The hook, registered by a callback: Lightning's own argument does nothing on a CPU."""
    import pytorch_lightning as pl
    from pytorch_lightning.strategies import DDPStrategy

    states = []

    class Compress(pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            states.append(gd.CompressedAllreduce(optimizer=trainer.optimizers, bypass=None))
            trainer.strategy.model.register_comm_hook(states[0], gd.hook)

    net = lightning(DDPStrategy(process_group_backend="gloo"), [Compress()])
    return net, states[0].stats()["calls"]


def lightning_argument() -> tuple[Net, float]:
    """The hook as an argument, by the call that Lightning makes on CUDA devices only; the mode, when there is an
    optimizer."""
    import pytorch_lightning as pl
    from pytorch_lightning.overrides.distributed import _register_ddp_comm_hook
    from pytorch_lightning.strategies import DDPStrategy

    class OnCuda(DDPStrategy):
        def _register_ddp_hooks(self) -> None:
            _register_ddp_comm_hook(self.model, self._ddp_comm_state, self._ddp_comm_hook, self._ddp_comm_wrapper)

    class NearLossless(pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            state.mode = gd.NearLossless(trainer.optimizers)

    state = gd.CompressedAllreduce(bypass=None)
    strategy = OnCuda(process_group_backend="gloo", ddp_comm_state=state, ddp_comm_hook=gd.hook)
    return lightning(strategy, [NearLossless()]), state.stats()["calls"]


def accelerate_hook() -> tuple[Net, float]:
    """The hook, on what ``prepare`` returns: Accelerate's own argument knows PyTorch's hooks only."""
    from accelerate import Accelerator

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state = gd.CompressedAllreduce(optimizer=optimizer, bypass=None)
    train(Accelerator(cpu=True), model, optimizer, state)
    return model, state.stats()["calls"]


def accelerate_backend() -> tuple[Net, float]:
    """Accelerate takes the process group that is there."""
    from accelerate import Accelerator

    dist.init_process_group("gcodec")
    model = Net()
    train(Accelerator(cpu=True), model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    return model, counted()


def train(
    accelerator: Any, model: Net, optimizer: torch.optim.Optimizer, state: gd.CompressedAllreduce | None = None
) -> None:
    """Trains with Accelerate."""
    wrapped, prepared = accelerator.prepare(model, optimizer)
    assert isinstance(wrapped, torch.nn.parallel.DistributedDataParallel)
    if state is not None:
        wrapped.register_comm_hook(state, gd.hook)
    for x, y in batches():
        accelerator.backward(torch.nn.functional.cross_entropy(wrapped(x), y))
        prepared.step()
        prepared.zero_grad()


def zero_0() -> tuple[Net, float]:
    """DeepSpeed, which all-reduces gradients."""
    return deepspeed(0)


def zero_1() -> tuple[Net, float]:
    """DeepSpeed, which shards the optimizer's state."""
    return deepspeed(1)


def zero_2() -> tuple[Net, float]:
    """DeepSpeed, which shards gradients, too."""
    return deepspeed(2)


def zero_3() -> tuple[Net, float]:
    """DeepSpeed, which shards parameters, too: gradients are reduced and scattered."""
    return deepspeed(3)


def deepspeed(stage: int) -> tuple[Net, float]:
    """Trains with DeepSpeed on the process group."""
    import deepspeed

    gd.register_backend("gcodec", gd.GroupOptions(bypass=None))
    deepspeed.init_distributed(dist_backend="gcodec", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": 16,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage},
    }
    net = Net()
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    for x, y in batches():
        engine.backward(torch.nn.functional.cross_entropy(engine(x), y))
        engine.step()
    if stage == 3:
        with deepspeed.zero.GatheredParameters(list(net.parameters())):
            whole = Net()
            whole.load_state_dict(net.state_dict())
        net = whole
    return net, counted()


def counted() -> float:
    """Return the number of compressed collectives of all groups."""
    groups = [group for group in distributed_c10d._world.pg_map if isinstance(group, gd.CompressedGroup)]
    return sum(group.stats()["calls"] for group in groups)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found, calls = globals()[sys.argv[1]]()
    line = f"\nfound {crc([one.detach() for one in found.parameters()])} {calls:.0f}\n"
    os.write(1, line.encode())  # in one call: the ranks share a pipe
    os._exit(0)
