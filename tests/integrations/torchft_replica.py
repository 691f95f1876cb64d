"""One replica of a training under torchft: ``python -m tests.integrations.torchft_replica KIND NUMBER STEPS [DIES]``.

KIND is "ddp" or "diloco". It prints ``step NUMBER REPLICAS CHECKSUM`` after every step that was committed, ends after
so many steps that two replicas or more have taken together, and prints what its process group has counted. With DIES it
leaves without a word after so many steps of that kind.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torchft import DistributedDataParallel, Manager, Optimizer
from torchft.local_sgd import DiLoCo

from gcodec.distributed import GroupOptions
from gcodec.integrations.torchft import ProcessGroupGcodec

TIMEOUT = timedelta(seconds=30)
SYNC_EVERY = 2  #: of DiLoCo, inner steps


def main(kind: str, number: int, n_steps: int, dies: int | None) -> None:
    """Train."""
    torch.manual_seed(number)
    store = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
    model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    group = ProcessGroupGcodec(GroupOptions(bypass=None, min_bytes=1 << 12), timeout=TIMEOUT)
    manager = Manager(
        pg=group,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        replica_id=f"replica {number}",
        timeout=TIMEOUT,
        use_async_quorum=kind == "ddp",
    )
    together = 0

    def after_step() -> None:
        nonlocal together
        together += manager.num_participants() > 1
        checksum = zlib.crc32(b"".join(value.detach().numpy().tobytes() for value in model.parameters()))
        print("step", manager.current_step(), manager.num_participants(), checksum, flush=True)
        if together == dies:
            os._exit(7)

    if kind == "ddp":
        ddp, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
        while together < n_steps:
            optimizer.zero_grad()
            loss_of(ddp).backward()
            if optimizer.step() is not False:
                after_step()
    else:
        outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        with DiLoCo(manager, [model], inner, outer, sync_every=SYNC_EVERY):
            while together < n_steps:
                before = manager.current_step()
                inner.zero_grad()
                loss_of(model).backward()
                inner.step()
                if manager.current_step() > before:
                    after_step()
    print("stats", json.dumps(group.stats()), flush=True)
    manager.shutdown(wait=False)
    group.shutdown()


def loss_of(model: nn.Module) -> torch.Tensor:
    """Return the loss of a batch of this replica."""
    batch = torch.randn(16, 32)
    return (model(batch) - batch).square().mean()


if __name__ == "__main__":
    kind, *numbers = sys.argv[1:]
    number, n_steps, *more = map(int, numbers)
    main(kind, number, n_steps, next(iter(more), None))
