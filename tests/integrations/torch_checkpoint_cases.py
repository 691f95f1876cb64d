"""Cases that the ranks of tests/integrations/test_torch_checkpoint.py run, in a Gloo world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter, SeriesReader, SeriesWriter
from tests.distributed.rank_basics import Net, batch_of, crc


class Run:
    """A model that is sharded by FSDP2, and its optimizer."""

    def __init__(self) -> None:
        self.model = Net()
        for layer in (self.model.deep, self.model.last):
            fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.001)

    def train(self, first: int, stop: int) -> None:
        """Take steps."""
        for step in range(first, stop):
            x, y = batch_of(step)
            nn.functional.cross_entropy(self.model(x).float(), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self, step: int) -> dict[str, Any]:
        """What is saved: sharded tensors, whole ones, and objects that are no tensors."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "step": step,
            "whole": torch.arange(step + 7.0)[:7].half(),
            "name": "run",
            "list": [torch.tensor(step), {"x": step / 3}],
        }

    def load(self, reader: Any, **options: Any) -> dict[str, Any]:
        """Load a checkpoint into the model and optimizer; returns the rest of it."""
        state = self.state(0)
        dcp.load(state, storage_reader=reader, **options)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return {name: state[name] for name in ("step", "name", "whole", "list")}

    def crc(self) -> int:
        """One number for the bits of all parameters and the optimizer's state, put together from all ranks."""
        state = self.optimizer.state_dict()["state"]
        moments = [item for entry in state.values() for item in entry.values()]
        tensors = [*self.model.parameters(), *moments]
        return crc([(item.full_tensor() if hasattr(item, "full_tensor") else item).detach() for item in tensors])


def save(folder: Path, asynchronous: bool = False) -> int:
    """Train, save while the state is changed or not, and return what was saved."""
    run = Run()
    run.train(0, 2)
    found, state = run.crc(), run.state(2)
    if asynchronous:
        group = dist.new_group(backend="gloo")  # training and saving would take each other's messages in one group
        future: Any = dcp.async_save(state, storage_writer=CheckpointWriter(folder), process_group=group)
        run.train(2, 3)
        future.result()
    else:
        dcp.save(state, storage_writer=CheckpointWriter(), checkpoint_id=str(folder))
    return found


def load(folder: Path) -> tuple[int, Any]:
    """Load into a model that was trained otherwise."""
    run = Run()
    run.train(5, 6)
    rest = run.load(CheckpointReader(folder))
    return run.crc(), rest


def load_failing(folder: Path) -> str:
    """The error of a checkpoint that cannot be loaded."""
    try:
        Run().load(CheckpointReader(folder))
    except dcp.CheckpointException as error:
        return str(error)
    return "loaded"


def save_series(folder: Path, steps: list[int], **options: Any) -> list[int]:
    """Train, saving after each step of ``steps``; returns what was saved."""
    run, writer, found = Run(), SeriesWriter(folder, **options), []
    for number, step in enumerate(steps):
        run.train(number, number + 1)
        dcp.save(run.state(step), storage_writer=writer, checkpoint_id=str(step))
        found.append(run.crc())
    return found


def save_series_of_one_rank(folder: Path, steps: list[int], *, owner: int, **options: Any) -> None:
    """Save steps of which one rank has all there is, and the others nothing."""
    writer = SeriesWriter(folder, **options)
    for step in steps:
        state = {"x": torch.arange(5.0) + step} if dist.get_rank() == owner else {}
        dcp.save(state, storage_writer=writer, checkpoint_id=str(step))


def load_series(folder: Path, steps: list[int | None]) -> list[tuple[int, Any]]:
    """Load steps, each into a new model."""
    found = []
    for step in steps:
        run = Run()
        run.train(5, 6)
        rest = run.load(SeriesReader(folder), checkpoint_id=None if step is None else str(step))
        found.append((run.crc(), rest["step"]))
    return found


def die_while_saving(folder: Path, step: int) -> int:
    """Save a step of which the last rank writes nothing; then load the last, and save it again."""

    class Failing(SeriesWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            if dist.get_rank() == dist.get_world_size() - 1:
                raise OSError("no space left")
            return super().write_data(plan, planner)

    run = Run()
    run.load(SeriesReader(folder))
    run.train(7, 8)
    try:
        dcp.save(run.state(step), storage_writer=Failing(folder), checkpoint_id=str(step))
    except dcp.CheckpointException as error:
        assert "no space left" in str(error)
    else:
        raise AssertionError("the failed save was not noticed")
    again = Run()
    again.load(SeriesReader(folder))
    again.train(7, 8)
    assert again.crc() == run.crc()
    dcp.save(again.state(step), storage_writer=SeriesWriter(folder), checkpoint_id=str(step))
    return again.crc()
