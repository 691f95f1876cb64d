"""``gcodec.load(path, lazy=True)``: the same object, whose tensors are read when they are first used."""

from __future__ import annotations

import copy
import io
import operator
import os
import pickle
import sys
import weakref
from argparse import Namespace
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file as save_safetensors

import gcodec
from gcodec.archive import ArchiveReader, held_file
from gcodec.errors import Corruption, GcodecError, InvalidArgument, LimitExceeded

N = 40_000  # values of a tensor that is a segment of its own


def state() -> dict[str, Any]:
    """Return an object with tensors in containers of many kinds."""
    shared = torch.randn(N, generator=torch.Generator().manual_seed(1))
    return {
        "model": OrderedDict({"a": shared, "b": torch.full((N,), 2.0), "small": torch.ones(3)}),
        "optimizer": {"state": {0: {"m": torch.full((N,), 4.0), "step": torch.tensor(1.0)}}, "groups": [{"lr": 0.1}]},
        "tied": {"whole": shared, "rows": shared[3:9]},
        "array": np.arange(N, dtype=np.float32),
        "list": [{"w": torch.full((N,), 5.0)}, 3],
        "args": Namespace(lr=0.1, w=torch.full((N,), 6.0)),
        "step": 7,
        "config": {"depth": 12},
    }


def described(value: Any) -> Any:
    """Return a value with tensors and arrays as lists, and every dictionary as a plain one."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[:5].tolist() if value.ndim else value.item()
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, list):
        return [described(item) for item in value]
    return described(vars(value)) if isinstance(value, Namespace) else value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the object's archive."""
    gcodec.save(state(), tmp_path / "x.gc")
    return tmp_path / "x.gc"


@pytest.fixture
def n_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the tensors that are read from now on, but not those of structures."""
    read, segment_bytes = list[str](), ArchiveReader.segment_bytes

    def noted(self: ArchiveReader, entry: Any, view: Any) -> Any:
        if view.name != "__structure__":
            read.append(view.name)
        return segment_bytes(self, entry, view)

    monkeypatch.setattr(ArchiveReader, "segment_bytes", noted)
    return read


@pytest.mark.parametrize("how", [{"lazy": True}, {"mmap": True}], ids=str)
def test_each_tensor_is_read_once_when_it_is_used(how, file, n_read):
    found = gcodec.load(file, **how)
    assert not n_read
    assert found["step"] == 7 and type(found["config"]) is dict and len(found) == 8 and "args" in found
    assert "'step': 7" in repr(found) and "'model': <not read>" in repr(found)
    model: Any = found["model"]
    assert isinstance(model, dict) and list(model) == ["a", "b", "small"] and not n_read
    assert model["b"] is model["b"] and model["b"][0] == 2
    assert n_read == ["model/b"] and "'a': <not read>" in repr(model)
    assert described(found) == described(state())
    assert sorted(n_read) == sorted(set(n_read))


USES: dict[str, Any] = {
    "dict": lambda x: dict(x),
    "two stars": lambda x: {**x},
    "OrderedDict": lambda x: OrderedDict(x),
    "update": lambda x: _updated({}, x),
    "or": lambda x: x | {},
    "or behind": lambda x: {} | x,
    "or in place": lambda x: _or_in_place(x),
    "items": lambda x: dict(x.items()),
    "values": lambda x: dict(zip(x, x.values(), strict=True)),
    "get": lambda x: {key: x.get(key) for key in x},
    "setdefault": lambda x: {key: x.setdefault(key, 3) for key in x},
    "pop": lambda x: {key: x.pop(key) for key in list(x)},
    "popitem": lambda x: dict(reversed([x.popitem() for _ in range(len(x))])),
    "copy": lambda x: x.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "torch.save": lambda x: _through(torch.save, torch.load, x),
    "gcodec.save": lambda x: _through(gcodec.save, gcodec.load, x),
    "reversed items": lambda x: dict(reversed(list(reversed(x.items())))),
    "reversed values": lambda x: dict(zip(x, reversed(list(reversed(x.values()))), strict=True)),
    "function": lambda x: (lambda **items: items)(**x),
}


def _updated(target: Any, x: Any) -> Any:
    target.update(x)
    return target


def _or_in_place(x: Any) -> Any:
    x |= {"b": x["b"]}
    return x


def _through(write: Any, read: Any, x: Any) -> Any:
    stream = io.BytesIO()
    write(x, stream)
    stream.seek(0)
    return read(stream)


@pytest.mark.parametrize("name", USES)
def test_it_is_a_dictionary_in_all_uses(name, file):
    model = gcodec.load(file, lazy=True)["model"]
    found = USES[name](model)
    assert isinstance(found, dict) and described(found) == described(state()["model"])
    assert all(isinstance(found[key], torch.Tensor) for key in found)


def test_it_is_compared_and_changed_as_a_dictionary(file):
    found = gcodec.load(file, lazy=True, names=["config", "step", "model"])
    model = found.pop("model")
    model.update(a=1, b=2)
    del model["small"]
    plain = {"a": 1, "b": 2}
    assert model == plain and plain == model and model != {"a": 1}
    assert not model != plain and not plain != model and not model != model.copy()  # noqa: SIM202 - as dict has them
    assert model.get("x") is None and model.get("x", 3) == 3 and model.pop("x", 4) == 4
    for missing in (lambda: model["x"], lambda: model.pop("x"), lambda: type(model)().popitem()):
        with pytest.raises(KeyError):
            missing()


def test_what_has_not_been_read_is_compared_by_its_values(tmp_path):
    gcodec.save({"model": {"n": np.array(3), "m": np.array(4)}}, tmp_path / "x.gc")
    for other in ({"n": 3, "m": 4}, {"n": 3, "m": 5}):
        for equal, unequal in ((operator.eq, operator.ne), (lambda a, b: b == a, lambda a, b: b != a)):
            model = [gcodec.load(tmp_path / "x.gc", lazy=True)["model"] for _ in range(2)]
            assert equal(model[0], other) == (not unequal(model[1], other)) == (other["m"] == 4)


def test_copies_have_the_same_tensors(file, n_read):
    model = gcodec.load(file, lazy=True)["model"]
    twin = model.copy()
    assert twin["a"] is model["a"] and n_read == ["model/a"]
    assert type(twin) is type(model)


def test_a_model_and_an_optimizer_take_it(tmp_path, n_read):
    def made() -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(200, 200), torch.nn.BatchNorm1d(200))
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = made()
    model(torch.randn(4, 200)).sum().backward()
    optimizer.step()
    gcodec.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "x.gc")
    other, its_optimizer = made()
    found = gcodec.load(tmp_path / "x.gc", lazy=True)
    other.load_state_dict(found["model"])
    assert all(name.startswith("model/") for name in n_read)
    its_optimizer.load_state_dict(found["optimizer"])
    assert found["model"]._metadata == model.state_dict()._metadata
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    both = (value.state_dict()["state"][0]["exp_avg"] for value in (optimizer, its_optimizer))
    assert torch.equal(*both)


def test_tied_tensors_share_memory_whichever_comes_first(file):
    for order in (("model", "tied"), ("tied", "model")):
        found = gcodec.load(file, lazy=True)
        first, second = ((found[key]["a" if key == "model" else "rows"]) for key in order)
        assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    tied = torch.randn(N)
    gcodec.save_file({"x": tied, "y": tied}, file)
    found = gcodec.load(file, lazy=True)
    assert found["x"].data_ptr() == found["y"].data_ptr()


def test_memory_goes_with_what_is_taken_out(file, n_read):
    model = gcodec.load(file, lazy=True)["model"]
    taken = weakref.ref(model.pop("b"))
    assert taken() is None and n_read == ["model/b"] and list(model) == ["a", "small"]


def test_names_kinds_and_devices_are_as_for_a_whole_object(file, tmp_path):
    found = gcodec.load(file, lazy=True, names=["model/a", "step"], like="numpy")
    assert list(found) == ["model", "step"] and isinstance(found["model"]["a"], np.ndarray)
    assert gcodec.load(file, lazy=True, map_location="meta")["model"]["b"].is_meta
    with pytest.raises(LimitExceeded, match=r"x\.gc: "):
        gcodec.load(file, lazy=True, max_output_bytes=N)
    later = state()
    later["model"]["b"][5] = 3
    gcodec.save(later, tmp_path / "later.gc", base=file)
    found = gcodec.load(tmp_path / "later.gc", lazy=True, base=file)
    assert found["model"]["b"][5] == 3 and described(found) == described(later)


FILES: dict[str, Any] = {
    "a.safetensors": lambda path: save_safetensors(state()["optimizer"]["state"][0], path),
    "a.npz": lambda path: np.savez(path, x=np.arange(4.0), y=np.arange(3)),
    "packed.npz": lambda path: np.savez_compressed(path, x=np.arange(4.0)),
    "a.npy": lambda path: np.save(path, np.arange(4.0)),
    "a.pt": lambda path: torch.save(state()["model"], path),
    "old.pt": lambda path: torch.save(state()["model"], path, _use_new_zipfile_serialization=False),
    "a.pt.gc": lambda path: _compressed(path),
}


def _compressed(path: Path) -> None:
    torch.save(state()["model"], path.with_suffix(""))
    gcodec.compress_file(path.with_suffix(""))


@pytest.mark.parametrize("name", FILES)
def test_other_tensor_files_are_loaded_by_the_same_call(name, tmp_path):
    FILES[name](tmp_path / name)
    assert described(gcodec.load(tmp_path / name, lazy=True)) == described(gcodec.load(tmp_path / name))


def test_what_is_no_dictionary_is_loaded_too(tmp_path):
    for value in (torch.ones(N), [torch.ones(N), {"w": torch.ones(N)}], 3, {"a": 1}):
        gcodec.save(value, tmp_path / "x.gc")
        assert described(gcodec.load(tmp_path / "x.gc", lazy=True)) == described(value)


def test_series_are_loaded_lazily_though_steps_are_deleted(tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path / "run")
    for step in range(3):
        checkpoints.save(step, {"model": {"w": torch.full((N,), 1 + step / 8)}, "step": step})
    found = checkpoints.load(2, lazy=True)
    checkpoints.delete(0, 1, 2)
    assert found["step"] == 2 and found["model"]["w"][0] == 1.25


def test_threads_get_the_same_tensors_each_read_once(file, n_read):
    found = gcodec.load(file, lazy=True, threads=2)
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(lambda n: found["model"]["ab"[n % 2]], range(40)))
    assert len({id(value) for value in asked}) == 2 and sorted(n_read) == ["model/a", "model/b"]


def test_the_handler_of_a_signal_may_read_what_is_being_read(tmp_path):
    """It runs between any two lines, some of which a signal meets once in a million times."""
    whole = torch.arange(500.0)
    gcodec.save({"a": {"whole": whole, "small": torch.ones(3)}, "b": {"rows": whole[3:9]}}, tmp_path / "small.gc")
    expected = described(gcodec.load(tmp_path / "small.gc"))
    reading = {"__getitem__", "once", "keep", "take", "read", "value", "_lazy", "_tensor"}  # each item passes through

    def read(loaded: Any, at: Any) -> list[Any]:
        """Read everything; where a line is reached first, meanwhile, as well. Return the lines that were reached."""
        places: list[Any] = []

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_name not in reading or "gcodec" not in frame.f_code.co_filename:
                return None
            place = frame.f_code, frame.f_lineno
            if event == "line" and place not in places:
                places.append(place)
                if place == at:
                    assert described(loaded) == expected
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            values = [loaded["b"]["rows"], loaded["a"]["small"], loaded["a"]["whole"]]
        finally:
            sys.settrace(before)
        assert described(loaded) == expected
        again = [loaded["b"]["rows"], loaded["a"]["small"], loaded["a"]["whole"]]
        assert all(value is other for value, other in zip(values, again, strict=True))
        assert values[0].untyped_storage().data_ptr() == values[2].untyped_storage().data_ptr()
        return places

    for place in read(gcodec.load(tmp_path / "small.gc", lazy=True), None):
        read(gcodec.load(tmp_path / "small.gc", lazy=True), place)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_processes_read_though_a_thread_was_reading(file):
    found = gcodec.load(file, lazy=True)
    (lock,) = [each._lock for each in held_file._held]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lock.acquire).result()
        child = os.fork()
        if not child:
            os._exit(0 if found["model"]["b"][0] == 2 else 1)
        assert os.waitpid(child, 0)[1] == 0
        pool.submit(lock.release).result()


def _written_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)


@pytest.mark.parametrize("kind", ["archive", "safetensors"])
def test_a_file_that_is_written_to_is_named(kind, file, tmp_path):
    if kind == "safetensors":
        file = tmp_path / "x.safetensors"
        save_safetensors({"a": torch.ones(N), "b": torch.ones(N)}, file)
    found = gcodec.load(file, lazy=True)
    first = found["model"]["a"] if kind == "archive" else found["a"]
    _written_in_place(file)
    with pytest.raises(GcodecError, match=r"x\..*: shrank from \d+ to \d+ bytes since it was loaded") as caught:
        described(found)
    assert not isinstance(caught.value, Corruption)
    assert first is (found["model"]["a"] if kind == "archive" else found["a"])


@pytest.mark.skipif(sys.platform == "win32", reason="files that are open stay")
def test_a_file_that_is_gone_or_replaced_is_read_as_it_was(file):
    found, other = gcodec.load(file, lazy=True), gcodec.load(file, lazy=True)
    file.unlink()
    assert described(found) == described(state())
    gcodec.save({"model": {"a": 1}}, file)
    assert described(other) == described(state())


def test_damage_is_named_where_it_is_met(file):
    with ArchiveReader(file) as archive:
        entry, view = archive.find("model/a")
        at = entry.segments[view.segment].offset + 200
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    found = gcodec.load(file, lazy=True)
    assert found["model"]["b"][0] == 2
    for _ in range(2):
        with pytest.raises(Corruption, match=r"x\.gc: .*model/a"):
            found["model"]["a"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's list of open files")
def test_the_file_is_closed_when_nothing_is_left_to_read(file):
    def is_open() -> bool:
        links = []
        for link in Path("/proc/self/fd").iterdir():
            try:
                links.append(link.readlink())
            except OSError:  # that of the list itself
                continue
        return file in links

    found = gcodec.load(file, lazy=True)
    model = found["model"]
    del found
    assert is_open() and model["b"][0] == 2
    del model
    assert not is_open()


def test_streams_are_refused(file):
    with file.open("rb") as stream, pytest.raises(InvalidArgument, match="lazy must be False for a stream"):
        gcodec.load(stream, lazy=True)
