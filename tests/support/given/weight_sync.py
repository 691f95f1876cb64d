"""What docs/weight-sync.md leaves to its reader: a model in training and workers, here in one process of one group."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.support.given.training import start_group


class Engine(torch.nn.Linear):
    """A worker's model, which takes changes by index."""

    def update(self, name: str, indices: Any, values: Any) -> None:
        """Put values at flat indices of the weights of a name."""
        parameter = self.state_dict()[name]
        parameter.view(-1)[torch.as_tensor(indices)] = torch.as_tensor(values)


def before_page(names: dict[str, Any]) -> None:
    """Start a group, and make the models."""
    start_group()
    names.update(
        model=torch.nn.Linear(8, 4),
        worker=torch.nn.Linear(8, 4),
        engine=Engine(8, 4).bfloat16(),
        train_one_step=train_one_step,
        group=None,
        rank=0,
    )


def before_block(names: dict[str, Any], text: str) -> None:
    """Send the next version, where a block is given one."""
    if "read(data)" in text:
        train_one_step(names["model"])
        names["data"] = names["publisher"].publish(names["model"].state_dict()).data


def after_page(names: dict[str, Any]) -> None:
    """Check that the workers have what the trainer has."""
    model, worker = names["model"], names["worker"]
    assert torch.equal(worker.weight, model.weight) and torch.equal(worker.bias, model.bias)
    assert not torch.equal(names["engine"].weight, torch.zeros(4, 8))
    dist.destroy_process_group()


def train_one_step(model: torch.nn.Module) -> None:
    """Move all weights a little."""
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(1.01)
