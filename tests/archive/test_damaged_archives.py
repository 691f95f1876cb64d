"""Archives with damage: every altered byte and every truncation is found, and nothing is restored from them."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

import gcodec
from gcodec.archive import ArchiveWriter, load_file
from gcodec.archive.dicts import plan_tensors
from gcodec.archive.layout import STORED, ZSTD, Trailer, archive_header
from gcodec.archive.structure import STRUCTURE
from gcodec.errors import (
    Corruption,
    GcodecError,
    InsufficientData,
    InvalidArgument,
    LimitExceeded,
    Unsupported,
    WrongKind,
)
from gcodec.files import ArraySource, FilePlan
from tests.archive.test_archive import archive_of, gradients, opened, plan_bytes, restored
from tests.archive.test_files import npy, npz

SMALL = archive_of(
    {"a.npy": npy(gradients(300)), "b.npz": npz({"x": np.arange(40), "y": gradients(4)}), "c/d.txt": b"hello " * 20}
)


def outcome(data: bytes) -> dict[str, bytes] | None:
    """Return the files, or None if a GcodecError was raised; any other error passes."""
    try:
        return restored(data, threads=1)
    except GcodecError:
        return None


def test_archives_that_follow_each_other_are_named_as_such_and_read_one_by_one():
    with io.BytesIO() as stream:
        starts = []
        for number in range(3):
            starts.append(stream.tell())
            gcodec.save({"x": np.arange(number)}, stream)
        whole = stream.getvalue()
    for first, end in ((0, 2), (0, 3), (1, 3)):
        data = whole[starts[first] : [*starts, len(whole)][end]]
        with pytest.raises(Corruption, match=f"several archives .* byte {starts[end - 1] - starts[first]} on: each"):
            gcodec.load(io.BytesIO(data))
    last = io.BytesIO(whole)
    last.seek(starts[2])
    assert np.array_equal(gcodec.load(last)["x"], np.arange(2))


def test_a_stream_that_was_written_and_not_rewound_is_named_as_such(tmp_path):
    stream = io.BytesIO()
    gcodec.save({"x": np.arange(3)}, stream)
    told = rf"^\w+: the stream stands at its end, at byte {stream.tell()}: call seek\(0\)"
    for read in (
        gcodec.load,
        gcodec.load_file,
        gcodec.open,
        gcodec.sync.Subscriber().apply,
        lambda file: gcodec.compress_file(file, tmp_path / "x.gc"),
        lambda file: gcodec.decompress_file(file, tmp_path / "x"),
    ):
        with pytest.raises(InvalidArgument, match=told):
            read(stream)
    assert not list(tmp_path.iterdir())
    stream.seek(0)
    assert np.array_equal(gcodec.load(stream)["x"], np.arange(3))


def test_damage_of_a_state_is_told_with_the_name_of_its_archive_and_no_circle_of_causes(tmp_path):
    path, buffer = tmp_path / "x.gc", io.BytesIO()
    gcodec.save({"x": gradients(5000)}, buffer)
    values = bytearray(buffer.getvalue())
    values[5000] ^= 1
    with io.BytesIO() as stream:
        with ArchiveWriter(stream) as archive:
            archive.add(plan_tensors({STRUCTURE: np.frombuffer(b"[1", np.uint8)}))
        structure = stream.getvalue()
    for data in (values, structure):
        path.write_bytes(data)
        with path.open("rb") as named, open(os.dup(named.fileno()), "rb") as numbered:
            for file, name in (
                (path, str(path)),
                (named, str(path)),
                (numbered, "archive"),
                (io.BytesIO(data), "archive"),
            ):
                with pytest.raises(Corruption, match=f"^{re.escape(name)}: ") as caught:
                    gcodec.load(file)
                assert caught.value.__cause__ is not caught.value


class Unseekable(io.BytesIO):
    """A stream that says that it can seek, and cannot, as some of network files do."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        raise io.UnsupportedOperation("seek")


def test_streams_that_wrongly_say_that_they_can_seek_are_read(tmp_path):
    buffer = io.BytesIO()
    gcodec.save({"x": np.arange(3)}, buffer)
    assert np.array_equal(gcodec.load(Unseekable(buffer.getvalue()))["x"], np.arange(3))
    gcodec.compress_file(Unseekable(npy(np.arange(5))), tmp_path / "x.gc")
    assert gcodec.decompress_file(tmp_path / "x.gc", tmp_path / "x.npy") == [tmp_path / "x.npy"]
    assert (tmp_path / "x.npy").read_bytes() == npy(np.arange(5))


@pytest.mark.parametrize("mode", ["r:gz", "r|gz"])
def test_members_of_a_tar_are_read_though_it_goes_front_to_back(mode, tmp_path):
    gcodec.save({"x": np.arange(3)}, tmp_path / "x.gc")
    np.save(tmp_path / "y.npy", np.arange(4))
    with tarfile.open(tmp_path / "all.tar.gz", "w:gz") as shards:
        for name in ("x.gc", "y.npy", "x.gc"):
            shards.add(tmp_path / name, name)
    found = list[object]()
    with tarfile.open(tmp_path / "all.tar.gz", mode) as shards:
        for member in shards:
            file: Any = shards.extractfile(member)
            if member.name == "x.gc":
                found += gcodec.load(file)["x"].tolist()
            else:
                gcodec.compress_file(file, tmp_path / "y.gc")
    (array,) = gcodec.load(tmp_path / "y.gc").values()
    assert found == [0, 1, 2, 0, 1, 2] and array.tolist() == [0, 1, 2, 3]


def test_archives_cut_off_anywhere_are_refused():
    for size in range(len(SMALL)):
        with pytest.raises((InsufficientData, Corruption)):
            opened(SMALL[:size], threads=1)


def test_archives_with_any_bit_flipped_are_refused_or_restored_right():
    good = restored(SMALL)
    for at in range(len(SMALL)):
        damaged = bytearray(SMALL)
        damaged[at] ^= 1 << at % 8
        assert outcome(bytes(damaged)) in (None, good)


def test_bytes_before_or_after_an_archive_and_other_versions_are_refused():
    assert outcome(SMALL + b"\0" * 8) is None and outcome(b"\0" * 8 + SMALL) is None
    with pytest.raises(WrongKind, match="not a gcodec archive"):
        opened(b"PK\x03\x04" + bytes(100))
    with pytest.raises(Unsupported, match="version 2"):
        opened(SMALL[:4] + b"\x02" + SMALL[5:])


def index_of(data: bytes) -> tuple[bytes, Any]:
    """Return the archive up to its index, and the index."""
    size = int.from_bytes(data[-32:-24], "little")
    start = len(data) - 32 - size - -size % 8
    return data[:start], json.loads(zstandard.decompress(data[start : start + size]))


def with_index(chunks: bytes, index: Any, codec: int = ZSTD) -> bytes:
    """Return an archive with an index of the tester's choice, and all its hashes right."""
    raw = index if isinstance(index, bytes) else json.dumps(index).encode()
    stored = zstandard.ZstdCompressor().compress(raw) if codec == ZSTD else raw
    return chunks + stored + bytes(-len(stored) % 8) + Trailer(len(stored), len(raw), codec).write_to(stored)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a JSON value."""
    yield path
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(child, (*path, key))


def holder_of(value: Any, path: tuple[Any, ...]) -> Any:
    """Return the object or array that holds a place."""
    for key in path[:-1]:
        value = value[key]
    return value


LIES = [None, True, -1, 0, 1, 7, 2**31, 2**61, 2**64, 1.5, "", "x", "../x", [], [1, 2, 3], {}, {"a": 1}, "0" * 16]


def test_an_index_with_any_value_replaced_is_refused_or_harmless():
    chunks, index = index_of(SMALL)
    good = restored(SMALL)
    assert outcome(with_index(chunks, index)) == outcome(with_index(chunks, index, STORED)) == good
    refused = 0
    for path in places(index):
        for lie in LIES if path else ():
            lied = copy.deepcopy(index)
            holder_of(lied, path)[path[-1]] = lie
            files = outcome(with_index(chunks, lied))
            refused += files is None
            # Only the order of the parts (skip) and names (path) are nobody's business but the index's.
            assert files is None or path[-1] == "skip" or sorted(files.values()) == sorted(good.values())
    assert refused > 500


@pytest.mark.parametrize("lie", [False, True, "", [], {}, 0.0, 1.0, None, -1])
def test_skip_is_an_integer_or_absent(lie):
    """Values that Python takes for false are not 0."""
    chunks, index = index_of(SMALL)
    index["files"][0]["segments"][0]["skip"] = lie
    with pytest.raises(Corruption, match=r"is not a number below 2\^62|left out rather than null"):
        opened(with_index(chunks, index))


OPTIONAL = ("skip", "dtype", "lossy", "stride", "offset", "container")


def test_an_index_that_lacks_a_key_or_has_another_is_refused():
    chunks, index = index_of(SMALL)
    for path in places(index):
        if path and path[-1] not in OPTIONAL:
            less = copy.deepcopy(index)
            del holder_of(less, path)[path[-1]]
            assert outcome(with_index(chunks, less)) is None or "tensors" in path
        if path and isinstance(path[-1], str):
            more = copy.deepcopy(index)
            holder_of(more, path)["surprise"] = 1
            with pytest.raises(Unsupported, match="reserved key"):
                opened(with_index(chunks, more))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"files":[],"files":[]}',
        b"[" * 100_000,
        b"\xff",
        b'"\\ud800"',
        b'{"files":[' + b"9" * 5000 + b"]}",
    ],
)
def test_an_index_that_is_no_index_is_refused(raw):
    for codec in (STORED, ZSTD):
        with pytest.raises(GcodecError):
            opened(with_index(archive_header(), raw, codec))


def test_an_index_that_unpacks_to_far_more_is_refused():
    with pytest.raises(Corruption, match="illegal"):
        opened(with_index(archive_header(), b" " * (1 << 24)))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/./b",
        "",
        "a//b",
        "a/",
        ".",
        "..",
        "C:/x",
        "c:x",
        "a\\b",
        "\0",
        "a\nb",
        "x" * 4097,
    ],
)
def test_paths_out_of_the_folder_are_refused(path):
    chunks, index = index_of(SMALL)
    index["files"][0]["path"] = path
    with pytest.raises(Corruption, match="file path"):
        opened(with_index(chunks, index))
    with pytest.raises(InvalidArgument, match="file path"), ArchiveWriter(io.BytesIO()) as archive:
        archive.add(FilePlan(path, "bytes", ArraySource([]), (), ()))


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "a/b"), ("a/b/c", "a/b")])
def test_paths_that_collide_are_refused(paths):
    with pytest.raises(InvalidArgument, match="file path"), ArchiveWriter(io.BytesIO()) as archive:
        for path in paths:
            archive.add(plan_bytes(path, b"x"))


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [76]},
        {"shape": [2**40, 2**40]},
        {"offset": 1},
        {"stride": [2]},
        {"offset": 2**61},
        {"segment": 9},
        {"shape": [1] * 65},
        {"stride": [1, 1]},
        {"dtype": "float64"},
        {"name": "\ud800"},
    ],
)
def test_tensors_outside_their_segment_are_refused(tensor):
    chunks, index = index_of(archive_of({"a.npy": npy(np.arange(75, dtype=np.float32))}))
    index["files"][0]["tensors"][0] |= tensor
    with pytest.raises(GcodecError):
        opened(with_index(chunks, index))


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [2**61, 2**61, 0]},
        {"shape": [1], "stride": [2**61]},
        {"shape": [0], "stride": [2**61], "offset": 2**61},
        {"shape": [2**50, 2**50], "stride": [0, 0]},
        {"dtype": "later"},
        {"dtype": "bool", "shape": [300]},
        {"dtype": "<M8[ns]"},
    ],
)
def test_reading_strange_tensors_raises_gcodec_errors_only(tensor):
    chunks, index = index_of(archive_of({"a.npy": npy(np.zeros(75, np.float32))}))
    index["files"][0]["tensors"][0] |= {"shape": [3], **tensor}
    for like in ("numpy", "torch"):
        if like == "torch":
            pytest.importorskip("torch")
        with opened(with_index(chunks, index)) as archive, suppress(GcodecError):
            archive.read("a", like=like)


def test_parts_that_unpack_to_more_than_the_index_says_are_refused():
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 24))
    chunk = bomb + bytes(-len(bomb) % 8)
    hash_ = xxhash.xxh3_64_hexdigest(bytes(8192))
    blob = {"bytes": 8192, "hash": hash_, "chunks": [[1, len(bomb), 8192]]}
    nothing = {"bytes": 0, "hash": xxhash.xxh3_64_hexdigest(b""), "chunks": []}
    file = {"path": "x", "format": "bytes", "exact": True, "size": 8192, "verbatim": nothing, "tensors": []}
    frame = gcodec.encode(np.zeros(1 << 22, np.float32))
    for stored, padded, codec in ((bomb, chunk, 1), (frame, frame, 2)):
        blob["chunks"] = [[codec, len(stored), 8192]]
        data = with_index(archive_header() + padded, {"files": [file | {"segments": [blob]}]})
        with opened(data) as archive, pytest.raises(GcodecError, match=r"where 8192 were expected|more than"):
            list(archive.restored(archive.files[0]))


@pytest.mark.parametrize("limit", [np.uint16(2**16 - 1), np.int32(2**31 - 1), np.int64(2**63 - 1), np.float16(60_000)])
def test_limits_of_numpy_are_limits_as_others_are(limit):
    assert len(load_file(io.BytesIO(SMALL), max_output_bytes=limit)) == 3
    with opened(SMALL, max_output_bytes=limit) as archive:
        archive.check_limit()
    with pytest.raises(LimitExceeded):
        load_file(io.BytesIO(SMALL), max_output_bytes=type(limit)(100))


def test_archives_above_the_output_limit_are_refused():
    with opened(SMALL, max_output_bytes=100) as archive:
        with pytest.raises(LimitExceeded):
            archive.read("a")
        with pytest.raises(LimitExceeded):
            list(archive.restored(archive.files[0]))
        with pytest.raises(LimitExceeded):
            archive.check_limit()
        assert archive.read("b.npz:y").size == 4
    with pytest.raises(LimitExceeded):
        load_file(io.BytesIO(SMALL), max_output_bytes=1000)
