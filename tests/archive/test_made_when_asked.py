"""The laws of saving mappings that make each array when it is asked for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gcodec.archive import ArchiveReader, load_file, save_file


def test_mappings_that_make_their_arrays_when_asked_are_saved_as_they_are(tmp_path):
    """An array that has ended may leave its memory to the next one, which is no reason to take both for one."""
    rng = np.random.default_rng(7)
    tensors: dict[str, Any] = {f"{number}": rng.standard_normal(300, np.float32) for number in range(8)}
    np.savez(tmp_path / "x.npz", **tensors)
    with np.load(tmp_path / "x.npz") as made_when_asked:
        save_file(made_when_asked, tmp_path / "x.gc")
        save_file(tensors, tmp_path / "difference.gc", base=made_when_asked)
        for loaded in (load_file(tmp_path / "x.gc"), load_file(tmp_path / "difference.gc", base=made_when_asked)):
            assert {name: array.tobytes() for name, array in loaded.items()} == {
                name: array.tobytes() for name, array in tensors.items()
            }


class MadeWhenAsked(Mapping[str, Any]):
    """Makes an array or tensor whenever one is asked for, and knows which of them are still there."""

    def __init__(self, make: Callable[[int], Any], n: int = 8) -> None:
        self.make, self.n, self.made, self.most = make, n, list[weakref.ref[Any]](), 0

    def __getitem__(self, name: str) -> Any:
        if name not in self:
            raise KeyError(name)
        value = self.make(int(name))
        self.made.append(weakref.ref(value))
        self.most = max(self.most, sum(reference() is not None for reference in self.made))
        return value

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def __iter__(self) -> Iterator[str]:
        return iter(map(str, range(self.n)))

    def __len__(self) -> int:
        return self.n


def of_kind(array: np.ndarray, kind: str) -> Any:
    return array if kind == "numpy" else pytest.importorskip("torch").from_numpy(array)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_that_are_made_when_asked_for_and_copied_go_one_by_one(kind, tmp_path):
    tensors = MadeWhenAsked(lambda number: of_kind(np.full((7, 5), number, np.float32).T, kind))
    save_file(tensors, tmp_path / "x.gc")
    assert (len(tensors.made), tensors.most) == (8, 2)  # the last one, and that which is made
    for name, loaded in load_file(tmp_path / "x.gc").items():
        assert np.array_equal(loaded, np.full((5, 7), int(name), np.float32))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_views_of_memory_that_stays_are_stored_once_though_each_is_made_when_asked_for(kind, tmp_path):
    whole = of_kind(np.arange(35.0).reshape(5, 7), kind)
    save_file(MadeWhenAsked(lambda number: whole[:3]), tmp_path / "x.gc")
    save_file(dict.fromkeys("ab", whole.T), tmp_path / "y.gc")
    for path, expected in ((tmp_path / "x.gc", whole[:3]), (tmp_path / "y.gc", whole.T)):
        with ArchiveReader(path) as archive:
            assert {view.segment for view in archive.files[0].tensors} == {0}
        assert all(np.array_equal(loaded, expected) for loaded in load_file(path).values())
