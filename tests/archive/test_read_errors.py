"""Only damaged bytes are called Corruption: what reading a tensor raises comes out of loading as it is."""

import io
import json
import zipfile
from contextlib import closing

import numpy as np
import pytest
from safetensors.numpy import save

from gcodec.archive import structure_text
from gcodec.archive.found_values import with_found_values
from gcodec.archive.structure import flatten, rebuild
from gcodec.errors import Corruption, LimitExceeded
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
