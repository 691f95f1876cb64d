"""The laws of objects that are saved to streams and read from pipes."""

from __future__ import annotations

import io
import math
import os
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec import sync
from gcodec.errors import Corruption, InvalidArgument
from tests.support.special_files import ENDLESS, no_waiting, put

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("file", [{"w": torch.ones(3)}, None, 3])
def test_a_place_that_cannot_be_written_to_is_refused_by_name(file):
    with pytest.raises(InvalidArgument, match=f"a path, a URL or a binary stream, not {type(file).__name__}: the"):
        gcodec.save("last.gc", file)


class ShortWrites(io.RawIOBase):
    """A stream without a buffer, which takes less than it is given, and at last no more."""

    def __init__(self, room: float) -> None:
        super().__init__()
        self.data, self.room = b"", room

    def write(self, data: Any) -> int | None:
        part = bytes(data)[: int(min(100, self.room - len(self.data)))]
        self.data += part
        return len(part) or None


class OnlyWrite:
    """What has a write that returns nothing, and no other method."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: Any) -> None:
        self.data += bytes(data)


@pytest.mark.parametrize("make", [lambda: ShortWrites(math.inf), OnlyWrite], ids=["short writes", "only write"])
def test_every_stream_that_can_be_written_to_gets_the_whole_archive(make):
    stream, whole = make(), io.BytesIO()
    gcodec.save({"x": torch.arange(1000.0)}, stream)
    gcodec.save({"x": torch.arange(1000.0)}, whole)
    assert stream.data == whole.getvalue()


def test_streams_that_take_no_more_and_streams_of_text_are_errors():
    with pytest.raises(OSError, match="takes no more bytes"):
        gcodec.save({"x": torch.arange(1000.0)}, ShortWrites(250))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="a path, a URL or a binary stream, not to a StringIO"):
        gcodec.save({"x": torch.arange(1000.0)}, io.StringIO())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [kind for kind in ENDLESS if kind not in ("folder", "huge file")])
def test_a_path_of_what_is_no_file_is_refused_at_once(tmp_path, kind):
    place = tmp_path / "x.gc"
    place.touch()
    put(kind, place)
    calls = (gcodec.load, gcodec.load_file, gcodec.open, sync.Subscriber().apply, sync.read_version_info)
    for call in (*calls, lambda path: gcodec.save({"w": np.ones(3)}, tmp_path / "y.gc", base=path)):
        with no_waiting(), pytest.raises(Corruption, match=r"x\.gc: must be a regular file"):
            call(place)


def test_an_archive_is_read_from_an_open_pipe_by_the_name_that_the_system_gives_it():
    stream = io.BytesIO()
    gcodec.save([1, 2], stream)
    reading, writing = os.pipe()
    os.write(writing, stream.getvalue())
    os.close(writing)
    try:
        assert gcodec.load(f"/dev/fd/{reading}") == [1, 2]
    finally:
        os.close(reading)
