"""The laws of fsspec's file system ``gcodec``: it has the files of an archive, which are read as they were."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.cli import main
from gcodec.errors import GcodecError, InvalidArgument, Unsupported

fsspec = pytest.importorskip("fsspec")

WEIGHTS = (np.random.default_rng(5).standard_normal((200, 100)) / 10).astype(np.float32)


@pytest.fixture
def run(tmp_path) -> Path:
    """A folder, with an archive of it beside it."""
    folder = tmp_path / "run"
    (folder / "sub" / "deep").mkdir(parents=True)
    np.save(folder / "w.npy", WEIGHTS)
    np.save(folder / "sub" / "deep" / "v.npy", WEIGHTS * 2)
    (folder / "notes.txt").write_bytes(b"text\n" * 5000)
    assert main(["compress", "-q", str(folder)]) == 0
    return folder


def test_files_are_listed_and_read_as_in_the_folder(run):
    archive = fsspec.filesystem("gcodec", fo=str(run.with_name("run.gc")))
    paths = sorted(str(path.relative_to(run.parent)) for path in run.rglob("*") if path.is_file())
    assert archive.find("") == paths == sorted([*archive.glob("**/*.npy"), "run/notes.txt"])
    assert archive.ls("", detail=False) == ["run"]
    assert {item["name"]: item["type"] for item in archive.ls("run")} == {
        "run/w.npy": "file",
        "run/sub": "directory",
        "run/notes.txt": "file",
    }
    assert archive.ls("run/sub/deep", detail=False) == ["run/sub/deep/v.npy"]
    assert archive.isdir("run/sub") and not archive.exists("run/sub/other")
    for path in paths:
        assert archive.cat(path) == (run.parent / path).read_bytes()
        assert archive.size(path) == (run.parent / path).stat().st_size
    assert archive.cat_file("run/w.npy", 128, 160) == WEIGHTS.tobytes()[:32]
    assert archive.cat_file("run/w.npy", -32) == archive.tail("run/w.npy", 32) == WEIGHTS.tobytes()[-32:]
    assert archive.cat_ranges(["run/w.npy"] * 2, [0, -32], [128, None]) == [
        (run / "w.npy").read_bytes()[:128],
        WEIGHTS.tobytes()[-32:],
    ]
    assert archive.read_block("run/notes.txt", 2, 10, b"\n") == b"text\ntext\n"
    with archive.open("run/w.npy") as file:
        assert np.array_equal(np.load(file), WEIGHTS)
    target = run.with_name("copy")
    archive.get("run/", str(target), recursive=True)
    assert (target / "sub" / "deep" / "v.npy").read_bytes() == (run / "sub" / "deep" / "v.npy").read_bytes()


def test_an_archive_may_be_at_a_url(run):
    memory = fsspec.filesystem("memory")
    memory.pipe("/there/run.gc", run.with_name("run.gc").read_bytes())
    with fsspec.open("gcodec://run/sub/deep/v.npy::memory://there/run.gc") as file:
        assert np.array_equal(np.load(file), WEIGHTS * 2)
    assert fsspec.filesystem("gcodec", fo="memory://there/run.gc").exists("run/notes.txt")
    memory.rm("/there", recursive=True)


def test_a_file_system_survives_a_pickle_and_reads_through_a_base(run, tmp_path):
    later = tmp_path / "later.npy"
    np.save(later, WEIGHTS * np.float32(1.0001))
    gcodec.compress_file(later, base=run / "w.npy")
    archive = fsspec.filesystem("gcodec", fo=str(tmp_path / "later.npy.gc"), base=str(run / "w.npy"))
    assert pickle.loads(pickle.dumps(archive)).cat("later.npy") == later.read_bytes()
    with pytest.raises(Unsupported, match="base= in Python"):
        fsspec.filesystem("gcodec", fo=str(tmp_path / "later.npy.gc")).cat("later.npy")


def test_nothing_is_written_and_errors_name_the_place(run, tmp_path):
    archive = fsspec.filesystem("gcodec", fo=str(run.with_name("run.gc")))
    with pytest.raises(Unsupported, match="only read"):
        archive.open("new", "wb")
    with pytest.raises(FileNotFoundError, match=r"nothing\.npy"):
        archive.open("nothing.npy")
    with pytest.raises(InvalidArgument, match="mode must be 'r'"):
        fsspec.filesystem("gcodec", fo=str(run.with_name("run.gc")), mode="w")
    with pytest.raises(InvalidArgument, match="base must be a path or a list of paths, not ndarray"):
        fsspec.filesystem("gcodec", fo=str(run.with_name("run.gc")), base=WEIGHTS)
    with pytest.raises(GcodecError):
        fsspec.filesystem("gcodec", fo=str(run / "w.npy"))
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("gcodec", fo=str(tmp_path / "nothing.gc"))
    file = archive.open("run/w.npy")
    archive.close()
    with pytest.raises(InvalidArgument, match="has been closed"):
        file.read()
