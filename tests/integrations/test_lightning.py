"""Lightning's checkpoints: a run that is resumed from an archive goes on as if it had not stopped."""

from __future__ import annotations

import importlib.util
import pickle
from inspect import signature
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("lightning") is None and importlib.util.find_spec("pytorch_lightning") is None:
    pytest.skip("Lightning is not installed", allow_module_level=True)

import torch
from torch.testing._internal.two_tensor import TwoTensor

try:
    import lightning.pytorch as pl
except ImportError:
    import pytorch_lightning as pl

import gcodec
from gcodec.integrations.lightning import GcodecCheckpointIO

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning gives advice by warnings


class Setting:
    """A hyperparameter of a class, which only a pickle can hold."""

    def __init__(self, width: int) -> None:
        self.width = width


#: What has Lightning load objects of classes; version 2.5 has no such argument.
OBJECTS: Any = {"weights_only": False} if "weights_only" in signature(pl.Trainer.fit).parameters else {}


class Model(pl.LightningModule):
    """A small network."""

    def __init__(self, width: int = 64, setting: object = None) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

    def training_step(self, batch, number):
        return self.layers(batch).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3)}


def train(folder, epochs, resume=None, plugin=None, **hyperparameters):
    """Train until an epoch; returns the model and the path of the last checkpoint."""
    saver = pl.callbacks.ModelCheckpoint(dirpath=folder, filename="{epoch}", save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[saver],
        plugins=[plugin or GcodecCheckpointIO()],
        logger=False,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Model(**hyperparameters)
    data: Any = torch.randn(64, 32, generator=torch.Generator().manual_seed(2))
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16), ckpt_path=resume, **OBJECTS)
    return model, saver.best_model_path


def same(one, other):
    """Whether two models have the same parameters."""
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("hyperparameters", [{}, {"setting": Setting(3)}], ids=["plain", "of a class"])
def test_a_resumed_run_is_the_run_that_did_not_stop(tmp_path, hyperparameters):
    whole, _ = train(tmp_path / "a", 4, **hyperparameters)
    _, path = train(tmp_path / "b", 2, **hyperparameters)
    with gcodec.open(path) as file:
        assert any("weight" in name for name in file.keys())  # noqa: SIM118 - it is no dictionary
    resumed, _ = train(tmp_path / "c", 4, resume=path, **hyperparameters)
    assert same(whole, resumed)


def test_plain_checkpoints_are_loaded_too(tmp_path):
    plain = pl.plugins.io.TorchCheckpointIO()
    whole, _ = train(tmp_path / "a", 3)
    _, path = train(tmp_path / "b", 2, plugin=plain)
    resumed, _ = train(tmp_path / "c", 3, resume=path)
    assert same(whole, resumed)


def test_checkpoints_are_loaded_to_a_device_replaced_and_removed(tmp_path):
    plugin, path = GcodecCheckpointIO(threads=1), tmp_path / "new" / "x.ckpt"
    for value in (1.0, 2.0):
        plugin.save_checkpoint({"state": {"w": torch.full((3,), value)}, "list": [1, (torch.ones(2), "x")]}, path)
    for location in (None, "cpu", "meta", torch.device("meta")):
        found = plugin.load_checkpoint(path, map_location=location)
        assert found["state"]["w"].device.type == ("meta" if "meta" in str(location) else "cpu")
        assert found["list"][1][0].device == found["state"]["w"].device
    assert torch.equal(plugin.load_checkpoint(path)["state"]["w"], torch.full((3,), 2.0))
    plugin.remove_checkpoint(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        plugin.load_checkpoint(path)
    with pytest.raises(TypeError):
        plugin.save_checkpoint({}, path, storage_options={"key": 1})


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3),
        np.linspace(0, 1, 5, dtype=">f4"),
        np.float32(2.5),
        np.float64(0.1),
        np.int64(7),
        np.bool_(True),
        torch.arange(3).bfloat16(),
        torch.tensor(1.5),
    ],
    ids=repr,
)
@pytest.mark.parametrize("device", [None, "cpu"])
def test_values_of_numpy_and_of_torch_come_back_as_what_they_were(tmp_path, value, device):
    """Arrays of numpy are no tensors when they come back."""
    GcodecCheckpointIO().save_checkpoint({"callbacks": {"x": [value]}}, tmp_path / "a.ckpt")
    found = GcodecCheckpointIO().load_checkpoint(tmp_path / "a.ckpt", device)["callbacks"]["x"][0]
    assert type(found) is type(value) and found.dtype == value.dtype and bool((found == value).all())


def test_objects_are_loaded_where_lightning_loads_them(tmp_path):
    """Objects are refused unless weights_only=False is given; Lightning 2.5 always loads them."""
    ours, plain = GcodecCheckpointIO(), pl.plugins.io.TorchCheckpointIO()
    for plugin, path in ((ours, tmp_path / "a.ckpt"), (plain, tmp_path / "b.ckpt")):
        plugin.save_checkpoint({"setting": Setting(3)}, path)
        assert ours.load_checkpoint(path, **OBJECTS)["setting"].width == 3
        if OBJECTS:  # Lightning 2.5 always loads them
            for options in ({}, {"weights_only": None}, {"weights_only": True}):
                with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
                    ours.load_checkpoint(path, **options)


def test_tensors_made_of_others_are_loaded_where_lightning_loads_objects(tmp_path):
    """Their class puts them together, by a function of its own."""
    plugin, path = GcodecCheckpointIO(), tmp_path / "a.ckpt"
    plugin.save_checkpoint({"state_dict": {"w": TwoTensor(torch.ones(4), torch.zeros(4))}}, path)
    found = plugin.load_checkpoint(path, **OBJECTS)["state_dict"]["w"]
    assert type(found) is TwoTensor and found.a.equal(torch.ones(4))
    if OBJECTS:
        with pytest.raises(gcodec.Unsupported, match="TwoTensor"):
            plugin.load_checkpoint(path)


def test_damage_is_an_error(tmp_path):
    plugin, path = GcodecCheckpointIO(), tmp_path / "x.ckpt"
    plugin.save_checkpoint({"w": torch.randn(5000)}, path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(gcodec.Corruption):
        plugin.load_checkpoint(path)
