"""Run the Python blocks of docs/weight-sync.md one after another, on one rank: ``python -m tests.sync.page_cases``."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gcodec
import gcodec.distributed
import gcodec.sync

PAGE = Path(__file__).resolve().parents[2] / "docs" / "weight-sync.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def train_one_step(model: torch.nn.Module) -> None:
    """Move all weights a little."""
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1.01)


def main() -> None:
    """Run all blocks in one namespace, and print the first line of each."""
    os.chdir(tempfile.mkdtemp())
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    model, worker, engine = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4), torch.nn.Linear(8, 4).bfloat16()
    engine.update = lambda name, indices, values: None      # type: ignore[assignment]
    names: dict[str, Any] = {"gcodec": gcodec, "torch": torch, "model": model, "worker": worker, "engine": engine,
                             "train_one_step": train_one_step, "group": None, "rank": 0}
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if "read(data)" in block:
            train_one_step(model)
            names["data"] = names["publisher"].publish(model.state_dict()).data
        exec(block, names)
        print(f"ran: {block.splitlines()[0]}")
        if "catch_up(" in block:
            wanted = model.bfloat16().state_dict() if "engine" in block else None
            assert wanted is None or all(torch.equal(engine.state_dict()[name], wanted[name]) for name in wanted)
            model.float()
    assert isinstance(names["subscriber"], gcodec.sync.Subscriber)
    assert torch.equal(worker.weight, model.weight)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
