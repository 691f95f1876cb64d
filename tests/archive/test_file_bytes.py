"""The laws of files read inside an archive: any range of them is what the restored file has there."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.file_bytes import FileBytes
from gcodec.cli import main
from gcodec.errors import GcodecError, InsufficientData, InvalidArgument

RNG = np.random.default_rng(8)
WEIGHTS = (RNG.standard_normal((300, 200)) / 10).astype(np.float32)


@cache
def files() -> dict[str, bytes]:
    """Return files of several kinds by their paths."""
    arrays, array = io.BytesIO(), io.BytesIO()
    np.savez(arrays, w=WEIGHTS, b=WEIGHTS[0], text=np.array(["a", "b"]))
    np.save(array, WEIGHTS[::-1])
    return {
        "run/arrays.npz": arrays.getvalue(),
        "run/sub/array.npy": array.getvalue(),
        "run/notes.txt": b"some text\n" * 20_000,
        "run/unknown.h5": b"header" * 1000 + WEIGHTS.tobytes() + b"end",
        "run/short": b"abc",
        "run/none": b"",
    }


@cache
def archive() -> bytes:
    """Return an archive of these files."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for path, data in files().items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        assert main(["compress", "-q", str(folder / "run")]) == 0
        return (folder / "run.gc").read_bytes()


@given(st.data())
def test_any_range_is_that_of_the_file(data):
    with ArchiveReader(io.BytesIO(archive())) as opened:
        entry = data.draw(st.sampled_from(opened.files))
        source, whole = FileBytes(opened, entry), files()[entry.path]
        assert source.size == len(whole)
        for _ in range(8):
            start = data.draw(st.integers(0, len(whole)))
            stop = data.draw(st.integers(start, len(whole)))
            assert source.read(start, stop).tobytes() == whole[start:stop]
        with pytest.raises(InsufficientData, match="were asked for, but there are"):
            source.read(0, len(whole) + 1)


def test_file_objects_are_read_by_whatever_reads_files():
    with gcodec.open(io.BytesIO(archive())) as opened:
        with opened.open_file("run/sub/array.npy") as file:
            assert np.array_equal(np.load(file), WEIGHTS[::-1])
        with zipfile.ZipFile(opened.open_file("run/arrays.npz")) as arrays:
            assert arrays.testzip() is None
        lines = list(opened.open_file("run/notes.txt"))
        assert len(lines) == 20_000 and set(lines) == {b"some text\n"}
        with opened.open_file("run/unknown.h5") as file:
            assert not file.writable()
            file.seek(-3, io.SEEK_END)
            assert file.read() == b"end" and file.tell() == len(files()["run/unknown.h5"])


def test_other_paths_and_closed_archives_are_named():
    with gcodec.open(io.BytesIO(archive())) as opened:
        with pytest.raises(InvalidArgument, match=r"no file 'run/note\.txt'; did you mean run/notes\.txt\?"):
            opened.open_file("run/note.txt")
        file = opened.open_file("run/sub/array.npy")
    with pytest.raises(InvalidArgument, match="has been closed"):
        file.read()
    with pytest.raises(InvalidArgument, match="has been closed"):
        opened.open_file("run/notes.txt")


@pytest.mark.parametrize("path", ["run/sub/array.npy", "run/unknown.h5"])
def test_damaged_frames_are_found_where_they_are_read(path):
    with ArchiveReader(io.BytesIO(archive())) as opened:
        (entry,) = (entry for entry in opened.files if entry.path == path)
        values = max(entry.segments, key=lambda segment: segment.bytes)
    data = bytearray(archive())
    data[values.offset + 500] ^= 8
    with gcodec.open(io.BytesIO(bytes(data))) as opened, pytest.raises(GcodecError, match="checksum"):
        opened.open_file(path).read()
