"""A relative path means the folder that it meant when an object was made, wherever the process works later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.distributed.checkpoint as dcp

import gcodec
from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter, SeriesReader, SeriesWriter
from gcodec.recorder import read_dump
from gcodec.sync import Publisher, Subscriber, VersionFolder

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning")
ONES = torch.ones(3000)


def of_checkpointer() -> tuple[Callable[[int], object], Callable[[], float]]:
    checkpoints = gcodec.Checkpointer("run", full_every=3, keep_last=3)
    return lambda step: checkpoints.save(step, {"w": ONES * step}), lambda: float(checkpoints.load()["w"][0])


def of_versions() -> tuple[Callable[[int], object], Callable[[], float]]:
    folder, publisher, subscriber = VersionFolder("run"), Publisher(), Subscriber()

    def read() -> float:
        subscriber.catch_up(folder)
        return float(subscriber.tensors["w"][0])

    return lambda step: folder.send(publisher.publish({"w": ONES * step})), read


def of_recorder() -> tuple[Callable[[int], object], Callable[[], float]]:
    model = torch.nn.Linear(1, 1, bias=False)
    recorder = gcodec.Recorder(model, torch.optim.SGD(model.parameters()), "run", every=1)
    dumps: list[Any] = []

    def write(step: int) -> None:
        model.weight.grad = torch.full((1, 1), float(step))
        path = recorder.record(step)
        assert path is not None
        dumps.append(read_dump(path))

    return write, lambda: float(dumps[-1].grad("weight")[0, 0])


def of_distributed_checkpoint() -> tuple[Callable[[int], object], Callable[[], float]]:
    writer, reader = CheckpointWriter("run"), CheckpointReader("run")

    def read() -> float:
        found = {"w": torch.zeros(3000)}
        dcp.load(found, storage_reader=reader, no_dist=True)
        return float(found["w"][0])

    return lambda step: dcp.save({"w": ONES * step}, storage_writer=writer, no_dist=True), read


def of_distributed_series() -> tuple[Callable[[int], object], Callable[[], float]]:
    writer, reader = SeriesWriter("run"), SeriesReader("run")

    def read() -> float:
        found = {"w": torch.zeros(3000)}
        dcp.load(found, storage_reader=reader, no_dist=True)
        return float(found["w"][0])

    def write(step: int) -> None:
        dcp.save({"w": ONES * step}, storage_writer=writer, checkpoint_id=str(step), no_dist=True)

    return write, read


MAKERS = (of_checkpointer, of_versions, of_recorder, of_distributed_checkpoint, of_distributed_series)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("first", ["before", "after"])
def test_what_is_written_and_read_stays_in_one_folder(make, first, tmp_path, monkeypatch):
    """``first``: whether something is written before the working folder changes for the first time."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).mkdir()
    write, read = make()
    for step in (1, 2, 3):
        if first == "after" or step > 1:
            os.chdir(tmp_path / "ab"[step % 2])
        write(step)
        os.chdir(tmp_path / "ba"[step % 2])
        assert read() == step
    assert (tmp_path / "run").is_dir() and not [*(tmp_path / "a").iterdir(), *(tmp_path / "b").iterdir()]


def test_a_dump_is_read_when_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write, _ = of_recorder()
    write(4)
    dump = read_dump(Path("run/step-000004.safetensors"))
    os.chdir("/")
    assert dump.grad("weight")[0, 0] == 4


@pytest.mark.parametrize("in_folder", [False, True])
@pytest.mark.parametrize("opener", [gcodec.open, gcodec.load])
def test_a_base_is_read_when_it_is_needed(opener, in_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    old = np.linspace(-1, 1, 4000, dtype=np.float32)
    gcodec.save_file({"w": old}, "old/tensors.safetensors.gc")
    base = "old" if in_folder else "old/tensors.safetensors.gc"
    gcodec.save_file({"w": old * np.float32(1.0001)}, "new.gc", base=base)
    opened = opener("new.gc", base=base, **({} if opener is gcodec.open else {"lazy": True}))
    os.chdir("/")
    assert np.array_equal(opened["w"], old * np.float32(1.0001))
