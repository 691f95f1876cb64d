"""The laws of reading tensors to a device, and of torch that is not there."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.errors import GcodecError, InvalidArgument

torch = pytest.importorskip("torch")

MATRIX = torch.arange(6000.0).reshape(100, 60)
STATE = {
    "matrix": MATRIX,
    "rows": MATRIX[10:20],
    "columns": MATRIX.t(),
    "whole": torch.arange(10),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "none": torch.ones(0, 3),
    "scalar": torch.tensor(2.5),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return archives of the same tensors: a saved object, a dictionary, a packed .pt file, and a checkpoint."""
    folder = tmp_path_factory.mktemp("devices")
    gcodec.save({"tensors": STATE, "array": np.arange(3)}, folder / "object.gc")
    gcodec.save_file(STATE, folder / "dictionary.gc")
    torch.save({"tensors": STATE}, folder / "file.pt")
    gcodec.compress_file(folder / "file.pt")
    gcodec.Checkpointer(folder / "series").save(1, {"tensors": STATE, "array": np.arange(3)})
    return {
        "object": folder / "object.gc",
        "dictionary": folder / "dictionary.gc",
        "file": folder / "file.pt.gc",
        "series": folder / "series",
    }


READERS: dict[str, Callable[[dict[str, Path], Any], dict[str, Any]]] = {
    "load": lambda paths, device: gcodec.load(paths["object"], device=device)["tensors"],
    "load of a .pt": lambda paths, device: gcodec.load(paths["file"], device=device)["tensors"],
    "load of a dictionary": lambda paths, device: gcodec.load(paths["dictionary"], device=device),
    "load_file": lambda paths, device: gcodec.load_file(paths["dictionary"], device=device),
    "Checkpointer": lambda paths, device: gcodec.Checkpointer(paths["series"]).load(device=device)["tensors"],
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta", *(["cuda"] * torch.cuda.is_available())])
def test_tensors_come_on_the_device_as_they_were(paths, reader, device):
    read = READERS[reader](paths, device)
    for name, value in STATE.items():
        assert read[name].device.type == torch.device(device).type
        assert (read[name].shape, read[name].dtype) == (value.shape, value.dtype)
        assert read[name].is_meta or torch.equal(read[name].cpu(), value)
    if reader in ("load", "Checkpointer") or (reader == "load of a .pt" and device != "meta"):  # that is torch's own
        assert len({read[name].untyped_storage()._cdata for name in ("matrix", "rows", "columns")}) == 1
        assert read["columns"].stride() == (1, 60) and read["rows"].storage_offset() == 600


def test_single_tensors_and_rows_come_on_the_device(paths):
    for path in (paths["object"], paths["dictionary"]):
        with gcodec.open(path, "pt", "meta") as file:
            name = next(key for key in file if key.endswith("matrix"))
            assert file.get_tensor(name).is_meta and file.get_slice(name)[3:5].shape == (2, 60)
            assert file.get_slice(name)[3:5].is_meta
        with gcodec.open(path, device="cpu") as file:
            assert torch.equal(file.get_tensor(name), MATRIX)
    # numpy arrays come as torch tensors where a device is named, and stay what they are in an object
    gcodec.save_file({"x": np.ones(4)}, path.with_name("numpy.gc"))
    assert gcodec.load_file(path.with_name("numpy.gc"), device="meta")["x"].is_meta
    assert isinstance(gcodec.load(paths["object"], device="meta")["array"], np.ndarray)


@pytest.mark.parametrize("device", ["cuda:77", "nothing", 3.5, "vulkan", 1 << 63])
def test_what_is_no_device_is_named(paths, device):
    for call in (
        lambda: gcodec.load(paths["object"], device=device),
        lambda: gcodec.load_file(paths["object"], device=device),
        lambda: gcodec.open(paths["object"], device=device),
        lambda: gcodec.Checkpointer(paths["series"]).load(device=device),
    ):
        with pytest.raises(InvalidArgument, match=f"device must be a torch device.* not {device!r}"):
            call()


def test_numpy_has_no_devices(paths):
    for call in (
        lambda: gcodec.load(paths["object"], device="cpu", like="numpy"),
        lambda: gcodec.load_file(paths["object"], device="cpu", like="numpy"),
        lambda: gcodec.open(paths["object"], "np", "cpu"),
    ):
        with pytest.raises(InvalidArgument, match="device is for torch tensors"):
            call()


def test_torch_that_is_missing_is_named(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GcodecError, match=r"needs torch: pip install torch$"):
        gcodec.open(paths["object"], "pt", "cpu")
    for call in (
        lambda: gcodec.load(paths["file"]),
        lambda: gcodec.load(paths["object"]),
        lambda: gcodec.load_file(paths["dictionary"]),
    ):
        with pytest.raises(GcodecError, match=r"needs torch: pip install torch, or read .*like='numpy'"):
            call()
    assert np.array_equal(gcodec.load(paths["object"], like="numpy")["tensors"]["matrix"], MATRIX.numpy())
    assert np.array_equal(gcodec.load(paths["file"], like="numpy")["tensors/matrix"], MATRIX.numpy())
    with gcodec.open(paths["dictionary"], "pt") as file, pytest.raises(GcodecError, match="needs torch"):
        file.get_tensor("matrix")
    assert np.array_equal(gcodec.load_file(paths["dictionary"], like="numpy")["matrix"], MATRIX.numpy())
