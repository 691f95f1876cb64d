"""What docs/training.md and docs/training leave to their reader: a script with a model under DDP, here of one rank."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import gcodec
from gcodec.adaptive import GraVAC
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import TopK

#: Stand-ins for packages that are not installed; the real ones run the same recipes in tests/distributed.
STAND_INS: dict[str, dict[str, Any]] = {
    "pytorch_lightning": {"Trainer": SimpleNamespace, "Callback": object},
    "pytorch_lightning.strategies": {"DDPStrategy": SimpleNamespace},
    "accelerate": {"Accelerator": SimpleNamespace},
    "deepspeed": {"init_distributed": lambda **_: None, "initialize": lambda **_: (None, None)},
}


def before_page(names: dict[str, Any]) -> None:
    """Say who we are, as torchrun does, and put stand-ins in the place of packages that are missing."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for name, members in STAND_INS.items():
        if name.split(".")[0] in sys.modules or importlib.util.find_spec(name.split(".")[0]) is None:
            module = sys.modules.setdefault(name, ModuleType(name))
            vars(module).update(members)


def before_block(names: dict[str, Any], text: str) -> None:
    """Give the block a script of its own, in a group of its own unless it makes one."""
    if dist.is_initialized():
        gcodec.distributed.close_lanes()
        dist.destroy_process_group()
    start_group()
    model = (
        torch.nn.Linear(8, 8)
        if "fully_shard" in text
        else torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names.update(
        model=model,
        ddp=ddp,
        optimizer=optimizer,
        inner=optimizer,
        data=[0, 1],
        rank=0,
        size=1,
        replicas=1,
        shards=1,
        plan=CompressionPlan(TopK(0.1)),
        controller=GraVAC(TopK(0.1)),
        state=gcodec.distributed.CompressedAllreduce(),
        path="checkpoint.pt",
        config={"train_micro_batch_size_per_gpu": 1},
        accelerator=SimpleNamespace(prepare=lambda model, optimizer: (ddp, optimizer)),
        mesh=init_device_mesh("cpu", (1, 1), mesh_dim_names=("rep", "shard"))
        if "mesh[" in text
        else init_device_mesh("cpu", (1,)),
    )
    if "init_process_group(" in text:
        gcodec.distributed.close_lanes()
        dist.destroy_process_group()


def start_group() -> None:
    """Make this process the only rank of a group."""
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
