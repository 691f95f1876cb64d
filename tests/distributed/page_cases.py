"""Run the Python blocks of docs/training.md one after another, on one rank: ``python -m tests.distributed.page_cases``.

Names that the page leaves to its reader (``model``, ``ddp``, ``optimizer`` ...) are given anew to every block.
Lightning and Accelerate have stand-ins here; with the real ones their recipes run in ``framework_cases``.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import textwrap
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import gcodec
import gcodec.distributed as gd
from gcodec.adaptive import GraVAC
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import PowerSGD, TopK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"
INDENTED = re.compile(r"(?:^    .*\n|^\n(?=    ))+", re.MULTILINE)


def blocks_of(text: str) -> list[str]:
    """The indented blocks of a page, but for those of the shell."""
    blocks = [textwrap.dedent(block).strip("\n") for block in INDENTED.findall(text)]
    return [block for block in blocks if block and "torchrun" not in block]


def start(backend: str = "gloo") -> None:
    """Make this process the only rank of a new group."""
    if dist.is_initialized():
        gd.close_lanes()
        dist.destroy_process_group()
    dist.init_process_group(backend, init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)


def names_for(block: str, directory: str) -> dict[str, Any]:
    """What a block may use without making it."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names: dict[str, Any] = {
        "torch": torch, "io": io, "gcodec": gcodec, "TopK": TopK, "PowerSGD": PowerSGD, "model": model, "ddp": ddp,
        "optimizer": optimizer, "inner": optimizer, "plain_optimizer": optimizer, "data": [0, 1],
        "plan": CompressionPlan(TopK(0.1)), "controller": GraVAC(TopK(0.1)), "rank": 0, "size": 1,
        "state": gd.CompressedAllreduce(), "path": f"{directory}/checkpoint", "replicas": 1, "shards": 1,
        "fully_shard": fully_shard, "init_device_mesh": init_device_mesh, "GroupOptions": gd.GroupOptions,
        "CompressedAllreduce": gd.CompressedAllreduce, "Callback": object, "Trainer": SimpleNamespace,
        "DDPStrategy": SimpleNamespace,
        "Accelerator": lambda **_: None, "accelerator": SimpleNamespace(prepare=lambda *prepared: (ddp, optimizer)),
    }
    if "fully_shard" in block:
        names["model"] = torch.nn.Linear(8, 8)
        names["mesh"] = init_device_mesh("cpu", (1,))
        if "mesh[" in block:
            names["mesh"] = init_device_mesh("cpu", (1, 1), mesh_dim_names=("rep", "shard"))
    return names


def main() -> None:
    """Run all blocks, and print the first line of each that ends well."""
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    start()
    with tempfile.TemporaryDirectory() as directory:
        for block in blocks_of(PAGE.read_text(encoding="utf-8")):
            block = block.replace('torch.distributed.init_process_group("gcodec")', "start()")
            try:
                exec(block, {**names_for(block, directory), "start": lambda: start("gcodec")})
            except Exception:
                traceback.print_exc()
                print(f"FAILED: {block}")
            else:
                print(f"ran: {block.splitlines()[0]}")


if __name__ == "__main__":
    main()
    os._exit(0)  # DDP's and torch's threads are none of this test's business
