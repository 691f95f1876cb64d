"""The laws of indexes from strangers: bounded by the archive's size or the caller's limit before they are parsed."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, Bases, entries, index, layout, reader, writer
from gcodec.archive.entries import Paths
from gcodec.archive.layout import STORED, TRAILER, ZSTD, Trailer, archive_header
from gcodec.archive.state_files import places_of
from gcodec.cli import main
from gcodec.errors import Corruption, InvalidArgument, LimitExceeded
from gcodec.files import ArraySource, FilePlan, FileSegment, TensorView
from tests.archive.test_archive import archive_of, opened
from tests.archive.test_damaged_archives import index_of, with_index
from tests.archive.test_files import npy, safetensors
from tests.support.archive_maker import archive_with, object_archive

#: What no compressor makes smaller than half: so the index has many bytes, and may be long.
NOISE = np.random.default_rng(1).bytes(50_000).hex().encode()


def plan_of(values: np.ndarray, tensors: list[TensorView], path: str = "x") -> FilePlan:
    """Return the plan of a file of values that are the tensors given."""
    data = values.view(np.uint8)
    return FilePlan(path, "raw", ArraySource([data]), (FileSegment(0, data.size, "float32"),), tuple(tensors))


def written(plan: FilePlan, **options: Any) -> bytes:
    stream = io.BytesIO()
    with ArchiveWriter(stream, **options) as archive:
        archive.add(plan)
    return stream.getvalue()


@pytest.mark.parametrize("items", [b"[]," * 800_000, b"{}," * 800_000, b"1," * 1_200_000, b'"",' * 800_000])
def test_an_index_with_more_items_than_its_archive_warrants_is_refused_before_it_is_parsed(items, monkeypatch):
    data = with_index(archive_header(), b'{"files":[' + items + b'"' + NOISE + b'"]}')
    monkeypatch.setattr(json, "loads", lambda *args, **options: pytest.fail("the index was parsed"))
    with pytest.raises(Corruption, match=f"too many for an archive of {len(data)} bytes"):
        opened(data)


def test_an_index_longer_than_its_archive_warrants_is_refused_before_it_is_unpacked(monkeypatch):
    data = with_index(archive_header(), b'{"files":["' + NOISE + b'"' + b" " * 4_000_000 + b"]}")
    monkeypatch.setattr(index, "unpack_chunk", lambda *args: pytest.fail("the index was unpacked"))
    with pytest.raises(Corruption, match=f"an archive of {len(data)} bytes cannot have an index of 4100014"):
        opened(data)


def test_an_index_above_the_callers_limit_is_refused_before_it_is_unpacked(monkeypatch):
    data = written(plan_of(np.zeros(1, np.float32), [TensorView(f"{n}", "float32", (), 0) for n in range(30_000)]))
    with opened(data, max_output_bytes=4_000_000) as archive:
        assert len(archive.files[0].tensors) == 30_000
    monkeypatch.setattr(index, "unpack_chunk", lambda *args: pytest.fail("the index was unpacked"))
    with pytest.raises(LimitExceeded, match=r"is above the limit of 1048576 \+ 100000"):
        opened(data, max_output_bytes=100_000)


def with_small_tensors(count: int) -> bytes:
    """Return an archive of as many tensors of one value, all the same: the longest index for the smallest archive."""
    stored = np.float32(1).tobytes()
    hash_ = index_of(archive_of({"x.bin": stored}))[1]["files"][0]["verbatim"]["hash"]
    empty = index_of(archive_of({"x.bin": b""}))[1]["files"][0]["verbatim"]
    segments = [{"dtype": "float32", "bytes": 4, "hash": hash_, "chunks": [[0, 4, 4]]}] * count
    names = [f"state.{n * 7919 % 1000003}.step" for n in range(count)]
    tensors = [{"name": name, "dtype": "float32", "shape": [], "segment": n} for n, name in enumerate(names)]
    file = {"path": "x", "format": "raw", "exact": True, "size": 4 * count, "verbatim": empty}
    text = json.dumps({"files": [{**file, "segments": segments, "tensors": tensors}]}, separators=(",", ":"))
    return with_index(archive_header() + (stored + bytes(4)) * count, text.encode())


@pytest.mark.parametrize("count", [60_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_archives_of_very_many_small_tensors_are_read(count):
    """Equal tensors make the smallest archive for their index; it has more brackets than may be there for nothing."""
    data = with_small_tensors(count)
    assert Trailer.read_from(data[-TRAILER.size :]).index_codec == ZSTD and 5 * count > layout.FREE_BRACKETS
    with opened(data) as archive:
        assert len(archive.files[0].tensors) == count
        assert archive.read("state.7919.step") == 1


def test_an_index_that_may_not_be_compressed_is_stored():
    """Tensors without values: an archive of a few bytes with a long index, which readers would not unpack."""
    views = [TensorView(f"nothing.{n}", "float32", (0,), 0) for n in range(60_000)]
    data = written(plan_of(np.zeros(1, np.float32), views))
    assert Trailer.read_from(data[-TRAILER.size :]).index_codec == STORED
    with opened(data) as archive:
        assert len(archive.files[0].tensors) == 60_000


def test_what_an_index_cannot_hold_is_refused_by_the_writer():
    for view in (
        TensorView("x", "float32", (1 << 62, 0), 0),
        TensorView("x", "float32", (0, 1), 0, 1 << 62),
        TensorView("x", "float32", (0, 1), 0, 0, (1 << 62, 1)),
        TensorView("x", "float32", (1,) * 65, 0),
    ):
        with pytest.raises(InvalidArgument, match=r"^x: tensor 'x': must have at most 64 dimensions"):
            written(plan_of(np.zeros(1, np.float32), [view]))
    with pytest.raises(InvalidArgument, match="part_bytes must be a multiple of 64 from 64"):
        ArchiveWriter(io.BytesIO(), part_bytes=1 << 29)


def test_the_name_of_a_base_may_be_any_that_a_file_can_have(tmp_path):
    """A name that is not UTF-8 is written with question marks."""
    values = np.random.default_rng(2).standard_normal(5000).astype(np.float32)
    old = tmp_path / "old\udcff.npy"
    old.write_bytes(npy(values))
    new = plan_of(values, [TensorView("x", "float32", (5000,), 0)])
    stream = io.BytesIO()
    with Bases(old) as bases, ArchiveWriter(stream) as archive:
        archive.add(new, None, bases.find("x"))
    with Bases(old) as bases, opened(stream.getvalue(), base=bases) as reader:
        assert reader.files[0].base == "old?.npy" and np.array_equal(reader.read("x"), values)


def test_deep_paths_take_memory_in_proportion_to_their_length():
    """Every folder above a file was kept as a string: 4 MB for a path of 4 kB."""
    paths = Paths()
    tracemalloc.start()
    for number in range(50):
        paths.add(f"{number:04}/" + "a/" * 2045 + "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_paths_that_are_folders_of_others_are_refused_in_any_order():
    names = ["a-", "a/b", "a/b-", "a/c/d", "a.b", "b"]
    for clash in ("a", "a/c", "a/b/x", "b/x/y", "a/b"):
        for turn in range(len(names) + 1):
            paths = Paths()
            with pytest.raises(Corruption, match=r"folder in the path|occurs twice"):
                for name in (*names[:turn], clash, *names[turn:]):
                    paths.add(name)


def test_archives_of_many_chunks_are_inspected_in_one_pass(tmp_path, monkeypatch):
    """The place of each chunk was the sum of all before it."""
    values = np.random.default_rng(3).standard_normal(1040 * 400).astype(np.float32)
    path = tmp_path / "x.gc"
    path.write_bytes(written(plan_of(values, []), part_bytes=4160))
    n_sums = 0

    def counted(size: int) -> int:
        nonlocal n_sums
        n_sums += 1
        return layout.padding(size)

    monkeypatch.setattr(reader, "padding", counted)
    assert main(["inspect", str(path), "--json"]) == 0
    assert n_sums < 10_000


def test_ranges_of_a_segment_are_found_without_a_walk_over_its_chunks(monkeypatch):
    """A step whose base has many chunks was read in time that grew with the square of their number."""
    values = np.random.default_rng(3).standard_normal(1040 * 400).astype(np.float32)
    n_sums = 0

    def counted(size: int) -> int:
        nonlocal n_sums
        n_sums += 1
        return layout.padding(size)

    with opened(written(plan_of(values, []), part_bytes=4160)) as archive:
        file, data = archive.files[0], values.view(np.uint8)
        for module in (reader, entries):
            monkeypatch.setattr(module, "padding", counted)
        for start in range(0, data.size, 4160):
            assert np.array_equal(archive.segment_range(file, 0, start, start + 4160), data[start : start + 4160])
        assert n_sums < 2000
        for start, stop in (
            (0, 0),
            (4160, 4160),
            (4159, 4161),
            (1, 12_479),
            (data.size - 1, data.size + 9),
            (0, 4161),
            (data.size, data.size + 1),
            (5000, 5001),
        ):
            assert np.array_equal(archive.segment_range(file, 0, start, stop), data[start:stop])


def test_long_headers_in_small_archives_are_not_read_for_their_metadata(monkeypatch):
    """A header of spaces, or of empty arrays, may be a few kilobytes in an archive that another writer made."""
    monkeypatch.setattr(writer, "may_compress_header", lambda part, n_stored: True)
    spaces = archive_of({"x.safetensors": safetensors(None, raw=b"{}" + b" " * 10_000_000)})
    with opened(spaces) as archive:
        assert archive.metadata(archive.files[0]) == {}
    meta = json.dumps({"__metadata__": {"who": "me"}}).encode()
    with opened(archive_of({"x.safetensors": safetensors(None, raw=meta)})) as archive:
        assert archive.metadata(archive.files[0]) == {"who": "me"}
        with pytest.raises(LimitExceeded):
            long = archive_of({"x.safetensors": safetensors(None, raw=meta + b" " * 1000)})
            with opened(long, max_output_bytes=99) as limited:
                limited.metadata(limited.files[0])


class Counted(tuple[TensorView, ...]):
    """Tensors that count how often all of them are looked at."""

    n_times = 0

    def __iter__(self) -> Iterator[TensorView]:
        Counted.n_times += 1
        return super().__iter__()


def test_the_tensors_of_a_file_are_not_looked_at_for_each_tensor():
    views = [TensorView(f"{n}", "float32", (), 0) for n in range(50)]
    with opened(written(plan_of(np.zeros(1, np.float32), views))) as archive:
        entry = replace(archive.files[0], tensors=Counted(views))
        Counted.n_times = 0
        assert [place.view for place in places_of(archive, entry)] == views
        assert all(archive.array(entry, view, np.zeros(4, np.uint8)) == 0 for view in views)
    assert Counted.n_times < 10


def long_path_archive(n_files: int) -> bytes:
    """Return an archive of files of 3,000 tensors and segments each, whose paths have 4 KB."""
    files: list[dict[str, Any]] = [{"path": "noise", "verbatim": NOISE}] if n_files > 1 else []
    for number in range(n_files - len(files)):
        path = "/".join(["d" * 200] * 20) + f"/{number}"
        tensors = [{"name": f"{n}", "dtype": "float32", "shape": [0], "segment": n} for n in range(3_000)]
        files.append({"path": path, "segments": [(b"", {})] * 3_000, "tensors": tensors})
    return archive_with(files)


@pytest.mark.parametrize(
    "read",
    [
        lambda data: gcodec.open(io.BytesIO(data)),
        lambda data: gcodec.load_file(io.BytesIO(data), threads=1),
        lambda data: [None for _ in ArchiveReader(io.BytesIO(data), threads=1).restored(opened(data).files[0])],
    ],
    ids=["open", "load_file", "restored"],
)
def test_the_path_of_a_file_is_not_kept_for_each_of_its_tensors(read):
    data = long_path_archive(1)
    read(data)  # imports what it needs
    tracemalloc.start()
    read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000  # the paths of all tensors are 12 MB


def test_names_of_tensors_with_their_files_count_for_the_limit():
    data = long_path_archive(2)
    with gcodec.open(io.BytesIO(data), max_output_bytes=1 << 20) as file:
        assert len(file) == 3_000 and "77" in file and f"{file._names.find('77').entry.path}:77" in file
        with pytest.raises(LimitExceeded, match="a list of the names of all tensors takes"):
            file.keys()
    with pytest.raises(LimitExceeded, match="a list of the names of all tensors takes"):
        gcodec.load_file(io.BytesIO(data), max_output_bytes=1 << 20)
    assert len(gcodec.load_file(io.BytesIO(data), max_output_bytes=1 << 26)) == 3_000


def test_names_of_tied_tensors_and_the_items_of_a_structure_count_for_the_limit():
    ties: Any = [{"numpy": "x"}] * 1_000
    for _ in range(50):
        ties = {"dict": ["d" * 200, ties]}
    tied, items = object_archive(ties), object_archive([[]] * 20_000)
    assert len(gcodec.open(io.BytesIO(tied)).keys()) == 1_000
    with pytest.raises(LimitExceeded, match="a list of the names of tied tensors takes"):
        gcodec.open(io.BytesIO(tied), max_output_bytes=1 << 20)
    assert gcodec.load(io.BytesIO(items), max_output_bytes=1 << 23) == [[]] * 20_000
    for read in (gcodec.load, gcodec.open):
        with pytest.raises(LimitExceeded, match="the structure of the state takes 5120256 bytes, above the limit"):
            read(io.BytesIO(items), max_output_bytes=1 << 20)


@pytest.mark.parametrize(
    "node",
    [
        {"dict": [0, None]},
        {"ordered": [0, None]},
        {"counter": [0, 1]},
        {"set": [0]},
        {"frozenset": [0]},
        {"state_dict": [[0, None], None]},
    ],
)
def test_keys_of_one_hash_are_refused_when_they_are_many(node):
    """Python takes a minute for the second hundred thousand of such keys, and an hour for the second million."""
    ((tag, content),) = node.items()
    row = content[0] if tag == "state_dict" else content

    def archive(n_keys: int) -> io.BytesIO:
        items = [item for n in range(n_keys) for item in (n * ((1 << 61) - 1), *row[1:])]
        return io.BytesIO(object_archive({tag: [items, None] if tag == "state_dict" else items}))

    assert len(gcodec.load(archive(100))) == 100
    with pytest.raises(Corruption, match="more than 100 keys or items of one hash are in one container"):
        gcodec.load(archive(101))
    assert gcodec.open(archive(1000)).keys() == []  # which hashes none
