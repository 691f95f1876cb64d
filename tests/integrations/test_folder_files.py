"""Folders of archives: each restores to one file of its own name there, and nothing is written anywhere else."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("safetensors")

from safetensors.numpy import save

import gcodec
from gcodec.errors import GcodecError, InvalidArgument
from gcodec.integrations import folder_files
from gcodec.integrations.folder_files import compress_files_in, restore_files_in, restored_folder
from tests.support.archive_maker import archive_with


def restored_elsewhere(folder: Path) -> None:
    with restored_folder(folder):
        pass


ONE = archive_with([{"path": "authorized_keys", "verbatim": b"evil\n"}])
TWO = archive_with([{"path": path, "verbatim": b"evil\n"} for path in ("authorized_keys", "new")])
BOTH = pytest.mark.parametrize("restore", [restore_files_in, restored_elsewhere])


@BOTH
@pytest.mark.parametrize(
    ("archive", "kind"),
    [
        (ONE, "link"),
        (ONE, "folder"),
        (TWO, "link"),
        (TWO, "folder"),
        (TWO, "nothing"),
    ],
)
def test_nothing_is_written_through_links_or_into_folders(tmp_path, restore, archive, kind):
    """An archive was restored below a folder of its name, and so below what a link named."""
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    (home / "authorized_keys").write_text("mine\n")
    if kind == "link":
        (folder / "x").symlink_to(home)
    elif kind == "folder":
        (folder / "x").mkdir()
    (folder / "x.gc").write_bytes(archive)
    (folder / "a.gc").write_bytes(ONE)
    with pytest.raises(InvalidArgument, match="must be"):
        restore(folder)
    assert {path.name: path.read_text() for path in home.iterdir()} == {"authorized_keys": "mine\n"}
    assert {path.name for path in folder.rglob("*")} <= {"x", "x.gc", "a.gc"}


@BOTH
@pytest.mark.parametrize("name", [".gc", "..gc", "...gc"])
def test_an_archive_must_have_a_name_to_restore_to(tmp_path, restore, name):
    (tmp_path / name).write_bytes(ONE)
    with pytest.raises(InvalidArgument, match="must be called after the file"):
        restore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_links_to_files_are_not_replaced(tmp_path):
    (tmp_path / "mine").write_text("mine\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").symlink_to(tmp_path / "mine")
    (folder / "x.gc").write_bytes(ONE)
    with pytest.raises(InvalidArgument, match="symbolic link"):
        restore_files_in(folder)
    assert (folder / "x").is_symlink() and (tmp_path / "mine").read_text() == "mine\n"
    with restored_folder(folder) as whole:
        assert (whole / "x").read_bytes() == b"evil\n" and not (whole / "x").is_symlink()
    assert (tmp_path / "mine").read_text() == "mine\n"


def written(path: Path, data: bytes, seconds: int) -> None:
    """Write a file that was last changed at a time."""
    path.write_bytes(data)
    os.utime(path, (seconds, seconds))


def test_files_are_restored_also_beside_themselves_and_others_linked(tmp_path):
    (tmp_path / "x").write_bytes(bytes(1000))
    gcodec.compress_file(tmp_path / "x")
    os.utime(tmp_path / "x", (1000, 1000))
    (tmp_path / "y").write_bytes(b"y")
    (tmp_path / "sub.gc").mkdir()
    with restored_folder(tmp_path) as whole:
        assert sorted(path.name for path in whole.iterdir()) == ["sub.gc", "x", "y"]
        assert (whole / "x").read_bytes() == bytes(1000) and (whole / "y").read_bytes() == b"y"
    assert restore_files_in(tmp_path) == [tmp_path / "x"] and (tmp_path / "x").read_bytes() == bytes(1000)


OLD, NEW = (save({"w": np.full(10_000, value, np.float32)}) for value in (1, 2))
SMALL = save({"w": np.ones(1, np.float32)})


def test_files_that_are_newer_than_their_archives_are_what_is_loaded(tmp_path):
    """A save that was interrupted, or made without gcodec, was written over by the archives of the save before it."""
    model, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    written(model, OLD, 1000)
    written(other, OLD, 1000)
    compress_files_in(tmp_path)
    written(other, NEW, 2000)
    with restored_folder(tmp_path) as whole:
        assert (whole / model.name).read_bytes() == OLD and (whole / other.name).read_bytes() == NEW
    assert restore_files_in(tmp_path) == [model] and other.read_bytes() == NEW
    compress_files_in(tmp_path)
    assert restore_files_in(tmp_path) == [model, other] and (model.read_bytes(), other.read_bytes()) == (OLD, NEW)


@BOTH
@pytest.mark.parametrize("other", [NEW, SMALL], ids=["of its size", "smaller"])
@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_file_that_differs_from_its_archive_and_is_not_newer_is_kept(tmp_path, restore, other, seconds):
    """A file that was saved later was replaced in a copy of its folder, for the copy had other times."""
    model, first = tmp_path / "model.safetensors", tmp_path / "first.safetensors"
    for path in (model, first):
        written(path, OLD, 1000)
    compress_files_in(tmp_path)
    written(model, other, seconds)
    with pytest.raises(InvalidArgument, match=r"model\.safetensors: differs from what model\.safetensors\.gc restores"):
        restore(tmp_path)
    assert model.read_bytes() == other and not first.exists()


@pytest.mark.parametrize("changed", [NEW, OLD + b"more"], ids=["was written to", "grew"])
def test_a_file_that_changes_while_it_is_compressed_is_kept(tmp_path, monkeypatch, request, changed):
    model, other = tmp_path / "model.safetensors", tmp_path / "other.safetensors"
    written(model, OLD, 1000)
    written(other, OLD, 1000)

    def compress_slowly(path, *args, **options):
        gcodec.compress_file(path, *args, **options)
        if path == other:
            written(other, changed, 2000)

    monkeypatch.setattr(folder_files, "compress_file", compress_slowly)
    with pytest.raises(GcodecError, match=rf"other.safetensors: {request.node.callspec.id}.* it is kept"):
        compress_files_in(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors.gc", "other.safetensors"]
    assert other.read_bytes() == changed


def test_a_small_file_takes_the_place_of_an_archive_of_its_name(tmp_path):
    model, small = tmp_path / "model.safetensors", tmp_path / "small.safetensors"
    written(model, OLD, 1000)
    written(small, SMALL, 1000)
    compress_files_in(tmp_path)
    written(model, SMALL, 1000)
    assert compress_files_in(tmp_path) == [tmp_path / "model.safetensors.gc"]
    assert small.exists() and not model.exists()
    with restored_folder(tmp_path) as whole:
        assert (whole / model.name).read_bytes() == SMALL
