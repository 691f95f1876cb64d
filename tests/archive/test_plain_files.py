"""Tensor files that were never compressed, loaded by the same call as archives."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import save_file as save_safetensors

import gcodec
from gcodec.cli import main
from gcodec.errors import (
    Corruption,
    GcodecError,
    InsufficientData,
    InvalidArgument,
    LimitExceeded,
    NoMemory,
    Unsupported,
    WrongKind,
)
from tests.support.gguf_files import Stored, gguf_file
from tests.support.same import assert_same

STATE: dict[str, Any] = {"model": {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2).bfloat16()}, "step": 3}


def write_restored(path: Path) -> None:
    """Write what decompressing an object's archive gives."""
    gcodec.save(STATE, path.with_suffix(".gc"))
    gcodec.decompress_file(path.with_suffix(".gc"), path)


ARRAYS: dict[str, Any] = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(3)}
FILES: dict[str, tuple[Any, Any]] = {
    "a.pt": (lambda path: torch.save(STATE, path), STATE),
    "a.pth": (lambda path: torch.save(STATE["model"], path), STATE["model"]),
    "a.ckpt": (lambda path: torch.save(STATE, path), STATE),
    "old.pt": (lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=False), STATE),
    "a.safetensors": (lambda path: save_safetensors(STATE["model"], path), STATE["model"]),
    "state.safetensors": (write_restored, STATE),
    "a.npz": (lambda path: np.savez(path, **ARRAYS), ARRAYS),
    "packed.npz": (lambda path: np.savez_compressed(path, **ARRAYS), ARRAYS),
    "a.npy": (lambda path: np.save(path, ARRAYS["a"]), {"a": ARRAYS["a"]}),
}


@pytest.mark.parametrize("name", FILES)
def test_files_are_loaded_as_their_archives_are(name, tmp_path):
    write, expected = FILES[name]
    write(tmp_path / name)
    found = gcodec.load(tmp_path / name)
    assert_same(found, expected)
    assert_same(gcodec.load(str(tmp_path / name)), expected)
    assert_same(gcodec.load(f"file://{tmp_path / name}"), expected)
    gcodec.compress_file(tmp_path / name, tmp_path / "x.gc")
    assert_same(gcodec.load(tmp_path / "x.gc"), found)
    with (tmp_path / name).open("rb") as stream:
        content = gcodec.load(stream)
        assert_same(content if name != "a.npy" else {"a": content["stream"]}, expected)
    stream = io.BytesIO(b"before" + (tmp_path / name).read_bytes())
    stream.seek(6)
    assert isinstance(gcodec.load(stream), dict)


def test_an_old_file_of_torch_in_an_archive_is_loaded_by_torch_alone(tmp_path):
    FILES["old.pt"][0](tmp_path / "old.pt")
    gcodec.compress_file(tmp_path / "old.pt")
    assert_same(gcodec.load(tmp_path / "old.pt.gc", lazy=True), STATE)
    meta = gcodec.load(tmp_path / "old.pt.gc", map_location="meta")
    assert all(tensor.is_meta for tensor in meta["model"].values())
    for options in ({"like": "numpy"}, {"names": "model"}):
        with pytest.raises(Unsupported, match=r"old\.pt: .*leave out like and names"):
            gcodec.load(tmp_path / "old.pt.gc", **options)  # type: ignore[arg-type]
    with pytest.raises(LimitExceeded):
        gcodec.load(tmp_path / "old.pt.gc", max_output_bytes=100)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.npz", "state.safetensors"])
def test_kinds_of_arrays_and_devices_are_chosen_as_for_archives(name, tmp_path):
    FILES[name][0](tmp_path / name)
    cases: list[dict[str, Any]] = [{"like": "torch"}, {"map_location": "cpu"}, {"device": "cpu"}]
    for options in cases:
        found = gcodec.load(tmp_path / name, **options)
        tensors = found.get("model", found)
        assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    found = gcodec.load(tmp_path / name, like="numpy")
    tensors = found.get("model", found)
    assert all(isinstance(value, np.ndarray) for value in tensors.values() if not isinstance(value, int))
    assert next(iter(gcodec.load(tmp_path / name, map_location="meta").values())) is not None


def test_parts_of_files_are_named_as_those_of_archives(tmp_path):
    for name in ("a.npz", "state.safetensors", "a.pt"):
        FILES[name][0](tmp_path / name)
    assert list(gcodec.load(tmp_path / "a.npz", names="b")) == ["b"]
    assert_same(gcodec.load(tmp_path / "state.safetensors", names="model/w"), {"model": {"w": STATE["model"]["w"]}})
    assert list(gcodec.load(tmp_path / "a.pt", names="*/w", like="torch")) == ["model/w"]
    with pytest.raises(Unsupported, match=r"a\.pt: is a file of torch\.save, .*leave out names, or give like="):
        gcodec.load(tmp_path / "a.pt", names="model")


def test_torch_gets_what_it_takes(tmp_path):
    torch.save(STATE, tmp_path / "a.pt")
    assert_same(gcodec.load(tmp_path / "a.pt", map_location={"cuda:0": "cuda:1", "cpu": "cpu"}), STATE)
    assert_same(gcodec.load(tmp_path / "a.pt", map_location=lambda storage, place: storage, weights_only=True), STATE)
    assert gcodec.load(tmp_path / "a.pt", map_location="meta")["model"]["w"].is_meta
    mapped = gcodec.load(tmp_path / "a.pt", mmap=True)
    assert_same(mapped, STATE)
    with (tmp_path / "a.pt").open("rb") as stream, pytest.raises(InvalidArgument, match="only a file at a path can be"):
        gcodec.load(stream, mmap=True)


class Trap:
    """An object whose pickle would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("old", [False, True])
def test_no_pickle_is_executed(old, tmp_path):
    torch.save(
        {"w": torch.ones(2), "x": Trap(tmp_path / "trap")}, tmp_path / "a.pt", _use_new_zipfile_serialization=not old
    )
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(tmp_path / "trap"), 2))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(GcodecError, match=rf"{name}: torch\.load\(weights_only=True\) does not read it: .*trust"):
            gcodec.load(tmp_path / name)
    assert not (tmp_path / "trap").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TorchScript:UserWarning")
def test_what_torch_does_not_read_is_named_with_what_to_do(tmp_path):
    torch.save({"args": argparse.Namespace(lr=1)}, tmp_path / "a.pt")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "b.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "c.pt").write_bytes(b"\x80\x02].")
    for name, reason in (("a.pt", "argparse.Namespace was not an allowed"), ("b.pt", ""), ("c.pt", "")):
        with pytest.raises(
            GcodecError, match=rf"{name}: torch.load.*{reason}.*gcodec\.save takes what it returns"
        ) as error:
            gcodec.load(tmp_path / name)
        assert str(error.value).isprintable()  # torch's own has bold type for terminals
    (tmp_path / "d.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Corruption, match=r"d\.pt: is cut, or damaged at its end"):
        gcodec.load(tmp_path / "d.pt")
    (tmp_path / "d.pt").write_bytes(whole.replace(b"PK\1\2", b"PK\1\3"))
    with pytest.raises(Corruption, match=r"d\.pt: not a readable zip file"):
        gcodec.load(tmp_path / "d.pt")
    for lost in (b"\0" * 8, b"\xff" * 8):
        (tmp_path / "e.pt").write_bytes(lost + whole[8:])
        with pytest.raises(Corruption, match=r"e\.pt: not a gcodec archive.*; nor is it a \.pt"):
            gcodec.load(tmp_path / "e.pt")


@pytest.mark.parametrize("is_old", [False, True])
def test_a_file_of_torch_that_was_cut_says_so_wherever_that_was(is_old, tmp_path):
    state = {"w": torch.randn(20, 30), "n": 3, "half": torch.ones(7).half(), "empty": torch.zeros(0)}
    torch.save(state, tmp_path / "whole.pt", _use_new_zipfile_serialization=not is_old)
    whole = (tmp_path / "whole.pt").read_bytes()
    for size in {*range(4, min(len(whole), 900)), *range(900, len(whole), 97), *range(len(whole) - 9, len(whole))}:
        cut = tmp_path / "cut.pt"
        cut.write_bytes(whole[:size])
        for given in (cut, io.BytesIO(whole[:size])):
            with pytest.raises(Corruption, match=r"(cut\.pt|stream): is cut") as error:
                gcodec.load(given)
            assert "torch.load" not in str(error.value)
    gcodec.load(tmp_path / "whole.pt")


def test_kinds_of_arrays_cannot_be_chosen_for_files_that_only_torch_reads(tmp_path):
    torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    for like in ("numpy", "torch"):
        with pytest.raises(Unsupported, match=r"a\.pt: .* not the zip file that torch\.save .* leave out like"):
            gcodec.load(tmp_path / "a.pt", like=like)


def test_a_file_that_torch_cannot_map_says_so(tmp_path):
    torch.save(STATE, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(Unsupported, match=r"a\.pt: .* not the zip file .* leave out mmap"):
        gcodec.load(tmp_path / "a.pt", mmap=True)
    assert_same(gcodec.load(tmp_path / "a.pt", lazy=True), STATE)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_no_array_of_an_npz_is_left_out_without_a_word(save, tmp_path):
    objects = np.array([1, None], object)
    save(tmp_path / "a.npz", allow_pickle=True, **ARRAYS, objects=objects)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("text.npy", "no array")
    gcodec.compress_file(tmp_path / "a.npz")
    for path in (tmp_path / "a.npz", tmp_path / "a.npz.gc"):
        for name, kind in (("objects", "object"), ("text", "unknown")):
            with pytest.raises(Unsupported, match=rf"{name}: type {kind}"):
                gcodec.load(path, names=["a", name])
        with pytest.raises(Unsupported, match="names= takes tensors of other types alone"):
            gcodec.load(path)
        assert_same(gcodec.load(path, names=["a", "b"]), ARRAYS)
    np.save(tmp_path / "objects.npy", objects, allow_pickle=True)
    with pytest.raises(Unsupported, match=r"objects\.npy: is an array of Python objects"):
        gcodec.load(tmp_path / "objects.npy")


@pytest.mark.parametrize("lazy", [False, True])
def test_damage_in_an_npz_is_found_by_its_checksums(lazy, tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    whole = (tmp_path / "a.npz").read_bytes()
    at = whole.index(ARRAYS["a"].tobytes())
    for place in range(at, at + ARRAYS["a"].nbytes, 7):
        (tmp_path / "a.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(Corruption, match=r"a\.npz:a: .* checksum"):
            gcodec.load(tmp_path / "a.npz", lazy=lazy)["a"].sum()
        assert_same(gcodec.load(tmp_path / "a.npz", names="b", lazy=lazy)["b"], ARRAYS["b"])


@pytest.mark.parametrize("place", ["array", "header", "checksum"])
def test_an_npz_with_a_wrong_checksum_does_not_become_an_archive_that_seems_sound(place, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "a.npz"
    np.savez(path, allow_pickle=True, **ARRAYS)
    data = bytearray(path.read_bytes())
    begin = data.index(ARRAYS["a"].tobytes())
    at = {"array": begin + 5, "header": begin - 100, "checksum": data.index(b"PK\x01\x02") + 16}[place]
    data[at] ^= 16
    path.write_bytes(data)
    for options in ({}, {"mantissa_bits": 3}, {"base": ARRAYS}):
        with pytest.raises(Corruption, match=r"a\.npz: a: .* checksum"):
            gcodec.compress_file(path, **options)
    with pytest.raises(Corruption, match=r"a\.npz:a: .* checksum"):
        gcodec.load(path)
    assert main(["compress", str(path)]) == main(["series", "add", str(tmp_path / "s"), str(path), "--step", "1"]) == 1
    assert capsys.readouterr().err.count("checksum") == 2
    assert [file.name for file in path.parent.iterdir()] == ["a.npz"]
    note = gcodec.compress_file(path.parent).note
    assert "a.npz: kept as plain bytes: a: its bytes are not those that the checksum" in note
    gcodec.decompress_file(tmp_path / "run.gc", f"{tmp_path}/back/")
    assert (tmp_path / "back" / "run" / "a.npz").read_bytes() == data
    assert not gcodec.load_file(tmp_path / "run.gc")


def test_what_is_no_tensor_file_says_so(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"no tensors, but enough bytes to be an archive of some kind")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.txt", "x" * 100)
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "empty").write_bytes(b"")
    for name, what in (("a.txt", "; this is text"), ("a.zip", "; this is a zip file of something else"), ("short", "")):
        text = rf"{name}: not a gcodec archive; nor is it a \.pt, \.safetensors, \.npy, \.npz or \.gguf file{what}$"
        with pytest.raises(WrongKind, match=text):
            gcodec.load(tmp_path / name)
    with pytest.raises(InsufficientData, match=r"empty: the file is empty.*; nor is it a"):
        gcodec.load(tmp_path / "empty")
    gcodec.save(STATE, tmp_path / "x.gc")
    damaged = (tmp_path / "x.gc").read_bytes()[:-9]
    with pytest.raises(Corruption) as found:
        gcodec.load(io.BytesIO(damaged))
    assert "nor is it" not in str(found.value)


def test_a_file_with_another_name_than_it_holds_is_corruption_only_where_it_holds_no_other_kind(tmp_path):
    path = tmp_path / "a.safetensors"
    save_safetensors({"w": torch.ones(9)}, path)
    whole = path.read_bytes()
    for damaged in (whole[:12], bytes(len(whole)), b""):
        path.write_bytes(damaged)
        with pytest.raises(Corruption, match=r"is named \.safetensors but its content is not of that format$"):
            gcodec.load(path)
    for other, what in (
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "text .* git lfs pull"),
        (b"<html>not found</html>", "text$"),
        (b"GGUF" + whole, r"a \.gguf file"),
    ):
        path.write_bytes(other)
        with pytest.raises(WrongKind, match=rf"is named \.safetensors but its content is not .*; this is {what}"):
            gcodec.load(path)


def test_quantized_files_name_the_tensor_and_the_others_can_be_named(tmp_path):
    plain, quantized = Stored("float32", (4,), np.ones(4, np.float32).tobytes()), Stored("Q4_0", (32,), bytes(18))
    (tmp_path / "m.gguf").write_bytes(gguf_file({"plain": plain, "q": quantized}))
    with pytest.raises(Unsupported, match=r"m\.gguf: m\.gguf:q: type .* names= takes tensors of other types alone"):
        gcodec.load(tmp_path / "m.gguf")
    assert_same(gcodec.load(tmp_path / "m.gguf", names="plain"), {"plain": np.ones(4, np.float32)})


@pytest.mark.parametrize("name", ["a.pt", "a.npz", "packed.npz", "a.safetensors", "state.safetensors"])
def test_files_of_strangers_have_limits(name, tmp_path):
    FILES[name][0](tmp_path / name)
    with pytest.raises(LimitExceeded):
        gcodec.load(tmp_path / name, max_output_bytes=40)
    assert_same(gcodec.load(tmp_path / name, max_output_bytes=1 << 16), FILES[name][1])


def test_a_stream_that_cannot_seek_must_be_an_archive(tmp_path):
    class Pipe(io.RawIOBase):
        """A stream that can be read once."""

        def __init__(self, data: bytes) -> None:
            self._data = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            return self._data.readinto(buffer)

    torch.save(STATE, tmp_path / "a.pt")
    gcodec.save(STATE, tmp_path / "x.gc")
    assert_same(gcodec.load(io.BufferedReader(Pipe((tmp_path / "x.gc").read_bytes()))), STATE)
    with pytest.raises(WrongKind, match="not a gcodec archive"):
        gcodec.load(io.BufferedReader(Pipe((tmp_path / "a.pt").read_bytes())))


def test_the_structure_in_a_file_of_a_stranger_is_not_trusted(tmp_path):
    text = json.dumps({"version": 1, "state": {"numpy": "w"}}).encode()
    save_safetensors(
        {"__structure__": torch.frombuffer(bytearray(text), dtype=torch.uint8)}, tmp_path / "a.safetensors"
    )
    with pytest.raises(Corruption, match=r"a\.safetensors: .* the file lacks the tensor 'w'"):
        gcodec.load(tmp_path / "a.safetensors")


def test_files_are_loaded_without_torch_where_it_is_not_needed(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    torch.save(STATE, tmp_path / "a.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert_same(gcodec.load(tmp_path / "a.npz"), ARRAYS)
    assert gcodec.load(tmp_path / "a.pt", like="numpy", names="*/w")["model/w"].shape == (2, 3)
    with pytest.raises(GcodecError, match=r"a\.pt is a file of torch\.save, which needs torch: .*like='numpy'"):
        gcodec.load(tmp_path / "a.pt")


def test_no_host_memory_for_torch_is_no_error_of_its_own(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    torch.save({"a": torch.ones(3)}, tmp_path / "x.pt")

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000 bytes.")

    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises(NoMemory, match=r"x\.pt: there is no memory to load it: .* 8000 bytes"):
        gcodec.load(tmp_path / "x.pt")
