"""Only damaged bytes are called Corruption: what reading a tensor raises comes out of loading as it is."""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

import gcodec
from gcodec.archive import ArchiveReader, structure_text
from gcodec.archive.found_values import with_found_values
from gcodec.archive.structure import flatten, rebuild
from gcodec.errors import Corruption, GcodecError, LimitExceeded
from gcodec.files import ArraySource, plan_file
from tests.support.gguf_files import Stored, gguf_file

torch = pytest.importorskip("torch")


class StoreError(Exception):
    """An error of a store's own kind."""


CAUSES = (
    OSError("no route to the store"),
    RuntimeError("can't start new thread"),
    torch.OutOfMemoryError("no memory"),
    LookupError("no such bucket"),
    ValueError("no such region"),
    StoreError("denied"),
    KeyboardInterrupt(),
)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_errors_of_reading_a_tensor_come_out_as_they_are(cause):
    def read(name, kind):
        raise cause

    with pytest.raises(type(cause)) as caught:
        rebuild(flatten({"w": [torch.ones(3)]}).text, read)
    assert caught.value is cause


def test_no_memory_for_a_tensor_is_a_limit_and_no_damage():
    def read(name, kind):
        raise MemoryError

    with pytest.raises(LimitExceeded):
        rebuild(flatten({"w": torch.ones(3)}).text, read)


class FailingSource(ArraySource):
    """A file in memory that raises an error at one of its reads."""

    def __init__(self, data, n, cause):
        super().__init__([np.frombuffer(data, np.uint8)])
        self.n_left, self.cause = n, cause

    def read(self, *range_):
        self.n_left -= 1
        if not self.n_left:
            raise self.cause
        return super().read(*range_)


@pytest.mark.parametrize(
    "cause",
    [
        *(OSError(5, "reset"), OSError("no number"), MemoryError(), StoreError("denied")),
        *(ValueError("of the store"), KeyError("of the store"), zipfile.BadZipFile("of the store")),
    ],
    ids=repr,
)
@pytest.mark.parametrize("name", ["npy", "npz", "compressed.npz", "safetensors", "pt", "gguf", "bin"])
def test_an_error_of_reading_a_tensor_file_is_no_malformed_file(name, cause):
    data, n_failed = file_of_kind(name), 0
    while True:
        source = FailingSource(data, n_failed + 1, cause)
        try:
            with closing(with_found_values(plan_file(f"x.{name}", source))) as plan:
                plan.source.read(0, plan.source.size)
        except type(cause) as error:
            assert error is cause or error.__cause__ is cause
            n_failed += 1
            continue
        assert source.n_left > 0, "the error is lost"
        break
    assert n_failed > 1


def file_of_kind(name):
    """Return a small file of a kind."""
    stream, values = io.BytesIO(), np.linspace(0, 1, 40, dtype=np.float32)
    match name:
        case "npy":
            np.save(stream, values)
        case "npz":
            np.savez(stream, a=values, b=values[:3])
        case "compressed.npz":
            np.savez_compressed(stream, a=values, b=values[:3])
        case "safetensors":
            return save({"a": values})
        case "pt":
            torch.save({"a": torch.from_numpy(values)}, stream)
        case "gguf":
            return gguf_file({"a": Stored("float32", (40,), values.tobytes())})
        case _:
            return np.random.default_rng(1).standard_normal(1 << 15).astype(np.float32).tobytes()
    return stream.getvalue()


@pytest.mark.parametrize("text", [",", "[", "{", '",', "\\,", '\\",'])
def test_commas_and_brackets_in_a_string_are_no_items(text, monkeypatch):
    monkeypatch.setattr(structure_text, "MAX_ITEMS", 1 << 12)
    state = {"note": text * (1 << 12), "last": 1}
    assert rebuild(flatten(state).text, lambda name, kind: None) == state


def test_too_many_items_outside_of_strings_are_refused():
    with pytest.raises(Corruption):
        rebuild(json.dumps({"version": 1, "state": [0] * ((1 << 22) + 1)}).encode(), lambda name, kind: None)


def _shrunk(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(100)


def _overwritten(path: Path) -> None:
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data[:64] + bytes(len(data) - 64))


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "shrunk": (_shrunk, "shrank from"),
    "overwritten": (_overwritten, "was written to"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_was_written_to_while_it_was_open_is_not_called_damaged(change, tmp_path):
    path = tmp_path / "x.gc"
    gcodec.save_file({"w": np.random.default_rng(0).standard_normal(5000).astype(np.float32), "i": np.arange(9)}, path)
    whole, (make, words) = path.read_bytes(), CHANGES[change]
    with gcodec.open(path) as file, ArchiveReader(path) as archive:
        make(path)
        for read in (
            lambda: file["w"],
            lambda: file.get_slice("w")[10:20],
            lambda: file.get_slice("w")[:],
            lambda: archive.read("w"),
            lambda: list(archive.restored(archive.files[0])),
        ):
            with pytest.raises(GcodecError, match=rf"x\.gc: {words}.* since it was opened, .*: open it again") as found:
                read()
            assert not isinstance(found.value, Corruption)
    path.write_bytes(whole)
    state = gcodec.load(path, lazy=True)
    make(path)
    with pytest.raises(GcodecError, match=rf"x\.gc: {words}.* since it was loaded"):
        state["w"].sum()
    with pytest.raises(Corruption):  # it is so when it is opened
        gcodec.load_file(path)
