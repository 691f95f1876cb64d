"""The laws of dumps as files: they are written whole or not at all, and what is none is refused by its name."""

from __future__ import annotations

import errno
import gc
import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save, save_file

import gcodec
from gcodec import recorder
from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported, WrongKind
from gcodec.recorder import Recorder, read_dump, write_dump

pytest.importorskip("torch")

import torch

from tests.archive.recorder_cases import backward, make_model, make_sgd, record


def test_a_failed_recording_leaves_no_file(tmp_path, monkeypatch):
    def fail(file, *_):
        file.write(b"half a dump")
        raise OSError("disk full")

    model = make_model()
    backward(model)
    model_recorder = Recorder(model, make_sgd(model), tmp_path, every=1)
    monkeypatch.setattr(recorder, "_write_safetensors", fail)
    with pytest.raises(OSError, match="disk full"):
        model_recorder.record()
    assert list(tmp_path.iterdir()) == []


def test_a_dump_that_cannot_be_written_is_an_error_that_names_it(tmp_path, monkeypatch):
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "dump"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *_, **__: Full())
        with pytest.raises(OSError, match=str(path)) as raised:
            write_dump(path, {"grad/a": torch.ones(2)}, step=1, optimizer="SGD", groups=[])
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(path))
    with pytest.raises(InvalidArgument, match=f"{path}: tensor 'grad/a'"):
        write_dump(path, {"grad/a": torch.ones(2, dtype=torch.complex128)}, step=1, optimizer="SGD", groups=[])
    assert list(tmp_path.iterdir()) == []


def test_a_dump_is_replaced_whole(tmp_path, monkeypatch):
    model = make_model()
    backward(model)
    optimizer = make_sgd(model)
    path = record(model, optimizer, tmp_path).path
    old = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "safetensors_header", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            record(model, optimizer, tmp_path)
    assert path.read_bytes() == old
    optimizer.step()
    record(model, optimizer, tmp_path)
    assert path.read_bytes() != old
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.skipif(sys.platform == "win32", reason="no permission bits")
def test_a_dump_has_the_permissions_of_any_new_file(tmp_path):
    plain = tmp_path / "plain"
    plain.touch()
    write_dump(tmp_path / "dump", {}, step=1, optimizer="SGD", groups=[])
    assert (tmp_path / "dump").stat().st_mode == plain.stat().st_mode


def test_dumps_of_numpy_arrays_can_be_written(tmp_path):
    tensors = {"grad/a": np.arange(3, dtype=np.float32), "param/a": np.ones(3, np.float32)}
    path = tmp_path / "deep" / "dump"
    write_dump(path, tensors, step=5, optimizer="SGD", groups=[{"lr": 1, "params": ["a"]}])
    dump = read_dump(path)
    assert (dump.step, dump.optimizer, dump.hyper("a")) == (5, "SGD", {"lr": 1})
    assert np.array_equal(dump.grad("a"), tensors["grad/a"])


GOOD = {"format": "gcodec-dump-1", "optimizer": "SGD", "step": "1", "groups": '[{"params": ["a"]}]'}


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (None, InvalidArgument),
        ({"format": "pt"}, InvalidArgument),
        ({**GOOD, "format": "gcodec-dump-2"}, Unsupported),
        ({**GOOD, "step": "one"}, Corruption),
        ({**GOOD, "groups": "["}, Corruption),
        ({**GOOD, "groups": "3"}, Corruption),
        ({**GOOD, "groups": "[3]"}, Corruption),
        ({**GOOD, "groups": "[{}]"}, Corruption),
        ({**GOOD, "groups": '[{"params": [["a"]]}]'}, Corruption),
        ({**GOOD, "groups": '[{"params": ["a", "b"]}]'}, Corruption),
        ({key: value for key, value in GOOD.items() if key != "optimizer"}, Corruption),
    ],
    ids=str,
)
def test_files_that_are_no_dumps_are_refused(metadata, error, tmp_path):
    zeros = np.zeros(2, np.float32)
    save_file({"grad/a": zeros, "param/a": zeros}, tmp_path / "file", metadata)
    with pytest.raises(error):
        read_dump(tmp_path / "file")


def test_a_dump_of_a_gradient_without_its_parameter_is_refused(tmp_path):
    save_file({"grad/a": np.zeros(2, np.float32)}, tmp_path / "file", GOOD)
    with pytest.raises(Corruption):
        read_dump(tmp_path / "file")


@pytest.mark.parametrize("keep", [0, 7, 40, -1])
def test_a_truncated_dump_is_refused(keep, tmp_path):
    zeros = np.zeros(2, np.float32)
    save_file({"grad/a": zeros, "param/a": zeros}, tmp_path / "file", GOOD)
    assert read_dump(tmp_path / "file").names == ("a",)
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:keep])
    with pytest.raises(Corruption):
        read_dump(tmp_path / "file")


def test_a_dump_that_was_compressed_is_named_as_what_it_is(tmp_path):
    zeros = np.zeros(2, np.float32)
    save_file({"grad/a": zeros, "param/a": zeros}, tmp_path / "step-000001.safetensors", GOOD)
    gcodec.compress_file(tmp_path / "step-000001.safetensors")
    with pytest.raises(WrongKind, match=r"step-000001\.safetensors\.gc .*this is a gcodec archive.*gcodec decompress"):
        read_dump(tmp_path / "step-000001.safetensors.gc")


@pytest.mark.skipif(os.name != "posix", reason="files as on Unix")
@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_no_dump_and_is_named_at_once(make, tmp_path):
    make(tmp_path / "dump")
    with pytest.raises(Corruption, match=f"{tmp_path / 'dump'}: must be a regular file"):
        read_dump(tmp_path / "dump")


def test_a_tensor_that_was_read_does_not_change_with_its_file(tmp_path):
    values = torch.ones(9000, dtype=torch.bfloat16)
    write_dump(tmp_path / "file", {"grad/a": values, "param/a": values}, step=1, optimizer="SGD", groups=[])
    gradient = read_dump(tmp_path / "file").grad("a")
    with (tmp_path / "file").open("r+b") as file:
        file.write(bytes((tmp_path / "file").stat().st_size))
    assert torch.equal(gradient, values)


def test_missing_files_and_missing_tensors_of_dumps_are_named(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_dump(tmp_path / "none")
    write_dump(tmp_path / "file", {}, step=1, optimizer="SGD", groups=[])
    with pytest.raises(InvalidArgument, match="grad/a"):
        read_dump(tmp_path / "file").grad("a")


def test_reading_bfloat16_without_torch_names_the_remedy(tmp_path, monkeypatch):
    values = torch.ones(2, dtype=torch.bfloat16)
    write_dump(tmp_path / "file", {"grad/a": values, "param/a": values}, step=1, optimizer="SGD", groups=[])
    dump = read_dump(tmp_path / "file")
    assert dump.grad("a").dtype == torch.bfloat16
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(GcodecError, match="pip install torch"):
        dump.grad("a")


def test_writing_a_dump_without_torch_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)
    with pytest.raises(GcodecError, match="a dump needs torch: pip install torch"):
        write_dump(tmp_path / "file", {}, step=1, optimizer="SGD", groups=[])
    assert not any(tmp_path.iterdir())


def test_dumps_are_written_to_a_url_and_are_those_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fsspec = pytest.importorskip("fsspec")
    url, memory = f"memory://{tmp_path.name}/dumps", fsspec.filesystem("memory")
    model = make_model()
    backward(model, seed=1)
    optimizer = make_sgd(model)
    assert Recorder(model, optimizer, url, steps=[1]).record() == f"{url}/step-000001.safetensors"
    path = Recorder(model, optimizer, tmp_path, steps=[1]).record()
    memory.get_file(f"{url}/step-000001.safetensors", tmp_path / "copy")
    assert path
    one, other = read_dump(path), read_dump(tmp_path / "copy")
    assert (one.groups, one.keys) == (other.groups, other.keys)
    assert all(np.array_equal(one.tensor(key), other.tensor(key)) for key in one.keys)
    remote = read_dump(f"{url}/step-000001.safetensors")
    copy = remote.path
    assert (remote.groups, remote.keys) == (one.groups, one.keys)
    assert all(np.array_equal(one.tensor(key), remote.tensor(key)) for key in one.keys)
    del remote
    gc.collect()
    assert not copy.exists()
    memory.pipe_file(f"{url}/other.safetensors", save({"a": np.ones(3)}))
    with pytest.raises(InvalidArgument, match=f"{url}/other.safetensors is not a gcodec dump"):
        read_dump(f"{url}/other.safetensors")
    save_file({"a": np.ones(3)}, "a")
    with pytest.raises(InvalidArgument, match=r"^\./a is not a gcodec dump|^a is not a gcodec dump"):
        read_dump("./a")
    with pytest.raises(FileNotFoundError, match=f"{url}/none"):
        read_dump(f"{url}/none.safetensors")


DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "int64", "int32", "uint8", "bool", "complex64")


def knows_complex() -> bool:
    """Return whether the safetensors library has complex numbers, as from 0.7 on."""
    try:
        save({"x": np.zeros(1, np.complex64)})
    except SafetensorError:
        return False
    return True


def test_complex_tensors_are_unsupported_by_an_old_library_and_damage_stays_damage(tmp_path, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise SafetensorError("InvalidHeaderDeserialization")

    path = tmp_path / "dump.safetensors"
    write_dump(path, {"grad/a": torch.ones(3, dtype=torch.complex64)}, step=1, optimizer="SGD", groups=[])
    monkeypatch.setattr(recorder, "safe_open", refuse)
    monkeypatch.setattr(recorder, "safetensors_version", "0.6.2")
    with pytest.raises(Unsupported, match=r"dump.safetensors holds complex tensors.*safetensors 0\.6\.2.*0\.7 does"):
        read_dump(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Corruption, match="not a readable safetensors file"):
        read_dump(path)


def test_a_dump_is_a_safetensors_file_for_its_library(tmp_path):
    from safetensors.torch import load_file

    names = [name for name in DTYPES if name != "complex64" or knows_complex()]
    tensors = {f"exp_avg/{name}": torch.arange(3).to(getattr(torch, name)) for name in names}
    tensors |= {"step/a": torch.tensor(2.0), "grad/empty": torch.empty(0, 4), "grad/é日": torch.ones(2, 3).half()}
    write_dump(tmp_path / "ours", tensors, step=1, optimizer="SGD", groups=[])
    found = load_file(tmp_path / "ours")
    assert list(found) and found.keys() == tensors.keys()
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value)
