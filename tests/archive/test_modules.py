"""The laws of models that take their tensors out of archives: they are as they were saved, or as they were before."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.archive import modules
from gcodec.errors import Corruption, InvalidArgument


def plain() -> torch.nn.Module:
    """Return a model with parameters and buffers of several types and shapes, one of them a number."""
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Linear(300, 200), torch.nn.LayerNorm(200)]
    model = torch.nn.Sequential(*layers)
    model.register_buffer("short", torch.randn(50, 7).bfloat16())
    model.register_buffer("empty", torch.zeros(0, 3))
    return model


def tied() -> torch.nn.ModuleDict:
    """Return a model of which two layers have one weight."""
    model = torch.nn.ModuleDict({"in": torch.nn.Linear(64, 64), "out": torch.nn.Linear(64, 64)})
    model["out"].weight = model["in"].weight
    return model


def transposed() -> torch.nn.Module:
    """Return a model whose weights lie in another order."""
    model: Any = plain()
    return model.to(memory_format=torch.channels_last)


def bits(model: torch.nn.Module) -> dict[str, bytes]:
    """Return the bytes of all tensors of a model."""
    state = model.state_dict()
    return {name: tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, tensor in state.items()}


def save_whole(model: torch.nn.Module, folder: Path) -> Path:
    """Save a model as one dictionary."""
    gcodec.save_file(model.state_dict(), folder / "m.gc")
    return folder / "m.gc"


def save_shards(model: torch.nn.Module, folder: Path) -> list[Path]:
    """Save a model in three files."""
    items = list(model.state_dict().items())
    for number in range(3):
        gcodec.save_file(dict(items[number::3]), folder / f"m-{number}.gc")
    return sorted(folder.glob("m-*.gc"))


def save_stream(model: torch.nn.Module, folder: Path) -> io.BytesIO:
    """Save a model into memory."""
    stream = io.BytesIO()
    gcodec.save(model.state_dict(), stream)
    stream.seek(0)
    return stream


@pytest.mark.parametrize("batch_bytes", [1, 2000, 1 << 26])
@pytest.mark.parametrize("save", [save_whole, save_shards, save_stream])
@pytest.mark.parametrize("make", [plain, tied, transposed])
def test_a_model_has_the_bits_that_were_saved(make, save, batch_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "BATCH_BYTES", batch_bytes)
    saved, model = make(), make()
    before = {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in model.state_dict().items()}
    assert gcodec.load_into(model, save(saved, tmp_path)) == ([], [])
    assert bits(model) == bits(saved)
    assert before == {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("make", [plain, tied])
def test_a_model_on_the_meta_device_becomes_the_one_that_was_saved(make, tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "BATCH_BYTES", 1)
    saved = make()
    with torch.device("meta"):
        model = make()
    with pytest.raises(InvalidArgument, match="device must say"):
        gcodec.load_into(model, save_whole(saved, tmp_path))
    assert all(tensor.is_meta for tensor in model.state_dict().values())
    assert gcodec.load_into(model, save_whole(saved, tmp_path), device="cpu") == ([], [])
    assert bits(model) == bits(saved)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in saved.named_parameters()]
    assert all(one.requires_grad for one in model.parameters())


def test_part_of_a_saved_object_is_loaded_and_nothing_else_is_read(tmp_path, monkeypatch):
    saved, model = plain(), plain()
    gcodec.save({"model": saved.state_dict(), "other": torch.randn(1000), "step": 3}, tmp_path / "x.gc")
    read, wholes = list[str](), gcodec.TensorFile.wholes

    def note(file: gcodec.TensorFile, names: list[str]) -> Iterator[object]:
        read.extend(names)
        return wholes(file, names)

    monkeypatch.setattr(gcodec.TensorFile, "wholes", note)
    gcodec.load_into(model, tmp_path / "x.gc", prefix="model/")
    assert bits(model) == bits(saved) and read == [f"model/{name}" for name in saved.state_dict()]


def test_a_tensor_that_shares_the_memory_of_a_loaded_one_is_not_missing(tmp_path):
    saved, model = tied(), tied()
    state = saved.state_dict()
    del state["out.weight"]
    gcodec.save_file(state, tmp_path / "x.gc")
    assert gcodec.load_into(model, tmp_path / "x.gc") == ([], []) and bits(model) == bits(saved)
    with torch.device("meta"):
        model = tied()
    assert gcodec.load_into(model, tmp_path / "x.gc", device="cpu") == ([], [])
    assert bits(model) == bits(saved) and model["in"].weight is model["out"].weight


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    """Return what takes a tensor out of a state."""
    return lambda state: state.pop(name)


@pytest.mark.parametrize(
    ("change", "said", "loose"),
    [
        (without("2.weight"), "lack 2.weight", (["2.weight"], [])),
        (lambda state: state.update(more=torch.ones(3)), "have more besides", ([], ["more"])),
        (
            lambda state: state.update({"2.weight": torch.ones(200, 299)}),
            r"2\.weight: its shape must be \(200, 300\)",
            None,
        ),
    ],
    ids=["missing", "unexpected", "shape"],
)
def test_what_does_not_fit_is_named_before_anything_is_loaded(change, said, loose, tmp_path):
    saved, model = plain(), plain()
    state = saved.state_dict()
    change(state)
    gcodec.save_file(state, tmp_path / "x.gc")
    before = bits(model)
    with pytest.raises(InvalidArgument, match=said):
        gcodec.load_into(model, tmp_path / "x.gc")
    assert bits(model) == before
    if loose is None:
        with pytest.raises(InvalidArgument, match=said):
            gcodec.load_into(model, tmp_path / "x.gc", strict=False)
        assert bits(model) == before
    else:
        assert gcodec.load_into(model, tmp_path / "x.gc", strict=False) == loose
        wanted = bits(saved)
        assert bits(model) == {name: before[name] if name in loose[0] else wanted[name] for name in wanted}


def test_wrong_arguments_are_named(tmp_path):
    model, path = plain(), save_whole(plain(), tmp_path)
    state: Any = model.state_dict()
    no_prefix: Any = None
    empty = tmp_path / "empty.gc"
    gcodec.save_file({}, empty)
    for call, said in (
        (lambda: gcodec.load_into(state, path), "model must be a torch.nn.Module, not a OrderedDict"),
        (lambda: gcodec.load_into(model, path, prefix="no/"), "prefix must begin the names"),
        (lambda: gcodec.load_into(model, path, prefix=no_prefix), "prefix must be a string"),
        (lambda: gcodec.load_into(model, []), "path must name an archive or several"),
        (lambda: gcodec.load_into(model, empty), "and lack short, empty, 0.weight and 10 more"),
        (lambda: gcodec.load_into(model, [path, path]), "two of the archives have it"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            call()


def test_a_damaged_tensor_is_not_loaded(tmp_path):
    saved, model = plain(), plain()
    path = save_whole(saved, tmp_path)
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[len(data) // 2] ^= 1
    path.write_bytes(data.tobytes())
    before, wanted = bits(model), bits(saved)
    with pytest.raises(Corruption):
        gcodec.load_into(model, path)
    assert all(value in (before[name], wanted[name]) for name, value in bits(model).items())
