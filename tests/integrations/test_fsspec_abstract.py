"""fsspec's own tests of file systems, on the file system ``gcodec``, and laws that they leave out.

Nothing can be written to an archive. So of fsspec's classes only that of ``get`` applies; those of ``put``, ``copy``,
``pipe`` and ``open`` (which is about mode ``"xb"``) write, and a law below is that all such calls are refused. What
fsspec's fixtures make file by file is in the archive from the beginning.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gcodec.archive import ArchiveWriter
from gcodec.archive.whole_files import add_file
from gcodec.errors import Unsupported

pytest.importorskip("fsspec.tests.abstract")

from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests

from gcodec.integrations.fsspec import ArchiveFileSystem


def archive_of(folder: Path) -> str:
    """Return the path of a new archive of all files in a folder, beside it."""
    archive = folder.with_name(f"{folder.name}.gc")
    with ArchiveWriter(archive) as writer:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    add_file(writer, file, path.relative_to(folder).as_posix())
    return str(archive)


class Prefilled(ArchiveFileSystem):
    """An archive that has already what fsspec's tests write to it."""

    def mkdir(self, path: str, create_parents: bool = True, **more: Any) -> None:
        assert self.isdir(path)

    def touch(self, path: str, truncate: bool = True, **more: Any) -> None:
        assert self.size(path) == 0

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        assert self.exists(path)


#: What makes the trees of fsspec's fixtures: each of a file system, of what joins names, and of a folder's path.
BULK, GLOB = AbstractFixtures._bulk_operations_scenario_0, AbstractFixtures._glob_edge_cases_files
PREFIX, HASHED = AbstractFixtures._dir_and_file_with_same_name_prefix, AbstractFixtures._10_files_with_hashed_names


def joined(*names: str) -> str:
    return "/".join(names)


class ArchiveFixtures(AbstractFixtures):
    """The trees of fsspec's fixtures, and the one that a test makes by itself, in one archive.

    All are in a folder: ``get`` of fsspec gives a folder of the root its own name only where paths begin with a slash.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefilled]:
        folder = tmp_path_factory.mktemp("trees") / "files"
        local = LocalFileSystem(auto_mkdir=True)
        for make in (BULK, GLOB, PREFIX, HASHED):
            make(cls(), local, joined, f"{folder}/trees/{make.__name__}")
        local.touch(f"{folder}/trees/src/file")
        with contextlib.closing(Prefilled(archive_of(folder))) as archive:
            yield archive

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return joined

    @pytest.fixture
    def fs_path(self) -> str:
        return "trees"

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self) -> str:
        return f"trees/{BULK.__name__}/source"

    @pytest.fixture
    def fs_glob_edge_cases_files(self) -> str:
        return f"trees/{GLOB.__name__}/source"

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self) -> str:
        return f"trees/{PREFIX.__name__}/source"

    @pytest.fixture
    def fs_10_files_with_hashed_names(self) -> str:
        return f"trees/{HASHED.__name__}/source"


class TestGet(ArchiveFixtures, AbstractGetTests):
    """All that fsspec asks of ``get``."""


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[ArchiveFileSystem]:
    """The file system of an archive of an empty file, and of 300 bytes in a folder."""
    (tmp_path / "files" / "run" / "sub").mkdir(parents=True)
    (tmp_path / "files" / "run" / "empty").touch()
    (tmp_path / "files" / "run" / "sub" / "bytes").write_bytes(b"123" * 100)
    with contextlib.closing(ArchiveFileSystem(archive_of(tmp_path / "files"))) as found:
        yield found


@pytest.mark.parametrize("slashes", ["{}", "/{}", "{}/", "/{}/", "gcodec://{}", "gcodec://{}/"])
def test_a_path_means_the_same_with_slashes_around_it_and_with_the_protocol(archive, slashes):
    assert archive.ls(slashes.format("run"), detail=False) == ["run/empty", "run/sub"]
    assert archive.ls(slashes.format("run/sub"), detail=False) == ["run/sub/bytes"]
    assert archive.ls(slashes.format(""), detail=False) == ["run"]
    assert archive.isdir(slashes.format("run/sub")) and not archive.isfile(slashes.format("run/sub"))
    assert archive.isfile(slashes.format("run/empty")) and archive.size(slashes.format("run/sub/bytes")) == 300
    assert archive.find(slashes.format("run")) == ["run/empty", "run/sub/bytes"]
    assert not archive.exists(slashes.format("run/other")) and not archive.isfile(slashes.format("run/other"))


def test_what_reads_behind_the_end_gets_nothing(archive):
    assert archive.cat_file("run/sub/bytes", 400, 500) == archive.cat_file("run/empty", 1) == b""
    assert archive.cat_file("run/sub/bytes", 299, 500) == b"3"
    with archive.open("run/sub/bytes") as file:
        assert file.seek(1000) == 1000 and file.read() == file.read(10) == b""
        assert file.seek(-1, 2) == 299 and file.read() == b"3"


def test_a_folder_is_no_file_and_an_empty_archive_is_a_folder(archive, tmp_path):
    for call in (archive.open, archive.cat_file):
        with pytest.raises(IsADirectoryError, match="run/sub"):
            call("run/sub")
    (tmp_path / "none").mkdir()
    with contextlib.closing(ArchiveFileSystem(archive_of(tmp_path / "none"))) as empty:
        assert empty.isdir("") and empty.ls("") == empty.find("") == [] and empty.du("") == 0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "mkdir": lambda archive: archive.mkdir("new"),
    "makedirs": lambda archive: archive.makedirs("new/folder"),
    "makedirs of a folder": lambda archive: archive.makedirs("run"),
    "rmdir": lambda archive: archive.rmdir("run/sub"),
    "rm": lambda archive: archive.rm("run", recursive=True),
    "rm_file": lambda archive: archive.rm_file("run/empty"),
    "touch": lambda archive: archive.touch("new"),
    "touch without truncating": lambda archive: archive.touch("run/empty", truncate=False),
    "copy": lambda archive: archive.copy("run/empty", "new"),
    "mv": lambda archive: archive.mv("run/empty", "new"),
    "pipe": lambda archive: archive.pipe("new", b"data"),
    "pipe_file, mode create": lambda archive: archive.pipe_file("new", b"data", mode="create"),
    "put": lambda archive: archive.put(__file__, "new"),
    "put of a folder": lambda archive: archive.put(str(Path(__file__).parent), "new/", recursive=True),
    "write_text": lambda archive: archive.write_text("new", "data"),
    "a mapping": lambda archive: archive.get_mapper("run").update(key=b"data"),
    "open, mode w": lambda archive: archive.open("run/empty", "w"),
    "open, mode xb": lambda archive: archive.open("new", "xb"),
    "open, mode ab": lambda archive: archive.open("run/empty", "ab"),
    "open, mode r+b": lambda archive: archive.open("run/empty", "r+b"),
}


@pytest.mark.parametrize("call", CHANGES)
def test_what_would_change_an_archive_is_refused_with_a_sentence(archive, tmp_path, call):
    data = (tmp_path / "files.gc").read_bytes()
    with pytest.raises(Unsupported, match="only read"):
        CHANGES[call](archive)
    assert (tmp_path / "files.gc").read_bytes() == data and archive.find("") == ["run/empty", "run/sub/bytes"]


def test_a_folder_that_may_be_there_is_no_change(archive):
    archive.makedirs("run/sub", exist_ok=True)
