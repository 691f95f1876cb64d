"""Files at URLs, in fsspec's file system in memory: read and written whole, by everything that takes a path."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec

import gcodec
from gcodec import sync
from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.cli import main
from gcodec.files.urls import is_folder_at, name_at
from gcodec.recorder import read_dump
from tests.support.slots import CopyingSlots, Slots

VALUES: dict[str, np.ndarray] = {"w": np.random.default_rng(3).normal(size=(300, 100)).astype("f4"), "n": np.arange(7)}


@pytest.fixture
def url():
    """A folder in memory that nothing else uses."""
    return f"memory://{secrets.token_hex(4)}"


def names_at(url):
    """The names of what is in a folder."""
    filesystem, path = fsspec.core.url_to_fs(url)
    found = filesystem.ls(path, detail=False) if filesystem.exists(path) else []
    return sorted(item.rpartition("/")[2] for item in found)


def test_what_is_saved_at_a_url_is_loaded_from_there(url):
    gcodec.save_file(VALUES, f"{url}/run/a.gc")
    gcodec.save({"state": VALUES, "step": 3}, f"{url}/run/b.gc")
    assert names_at(f"{url}/run") == ["a.gc", "b.gc"]
    assert np.array_equal(gcodec.load_file(f"{url}/run/a.gc", names=["w"])["w"], VALUES["w"])
    assert np.array_equal(gcodec.load(f"{url}/run/b.gc")["state"]["w"], VALUES["w"])
    with gcodec.open(f"{url}/run/a.gc") as file:
        assert np.array_equal(file.get_slice("w")[5], VALUES["w"][5])


class CountedFile(fsspec.spec.AbstractBufferedFile):
    """A file in memory behind one of fsspec's caches, which notes what is fetched."""

    data = b""
    fetched: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, cache_type: str) -> None:
        super().__init__(None, "a.gc", block_size=1 << 20, cache_type=cache_type, size=len(self.data))

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fetched.append((start, end))
        return self.data[start:end]


@pytest.mark.parametrize("cache", ["readahead", "bytes", "none"])
def test_opening_an_archive_fetches_no_more_than_its_index(cache, tmp_path, monkeypatch):
    values = {f"w{i}": np.random.default_rng(i).normal(size=(100, 1000)) for i in range(8)}
    gcodec.save_file(values, tmp_path / "a.gc")
    monkeypatch.setattr(CountedFile, "data", (tmp_path / "a.gc").read_bytes())
    monkeypatch.setattr(CountedFile, "fetched", [])
    monkeypatch.setattr("gcodec.files.source.open_url", lambda url: CountedFile(cache))
    with gcodec.open("counted://a.gc") as file:
        assert sum(end - start for start, end in CountedFile.fetched) < 10_000 < len(CountedFile.data) // 100
        assert len(CountedFile.fetched) == 3
        for name, array in values.items():  # in order, as the cache is meant for
            assert np.array_equal(file.get_tensor(name), array)
    assert cache == "none" or len(CountedFile.fetched) < 3 + len(values)


def test_bases_may_be_at_urls_and_urls_have_bases(url, tmp_path):
    gcodec.save_file(VALUES, f"{url}/a.gc")
    later = {**VALUES, "w": VALUES["w"] + (VALUES["w"] > 2)}
    gcodec.save_file(later, f"{url}/b.gc", base=f"{url}/a.gc")
    gcodec.save_file(VALUES, tmp_path / "a.gc")
    for base in (f"{url}/a.gc", tmp_path / "a.gc", VALUES):
        assert np.array_equal(gcodec.load_file(f"{url}/b.gc", base=base)["w"], later["w"])
    with pytest.raises(gcodec.Unsupported):
        gcodec.load_file(f"{url}/b.gc")


def test_files_at_urls_are_compressed_and_restored(url, tmp_path):
    np.save(tmp_path / "x.npy", VALUES["w"])
    data = (tmp_path / "x.npy").read_bytes()
    fsspec.filesystem("memory").pipe_file(f"{url}/x.npy", data)
    gcodec.compress_file(f"{url}/x.npy", f"{url}/x.npy.gc")
    gcodec.compress_file(tmp_path / "x.npy", f"{url}/y.npy.gc")
    for name in ("x", "y"):
        gcodec.decompress_file(f"{url}/{name}.npy.gc", f"{url}/{name}.back")
        assert fsspec.filesystem("memory").cat_file(f"{url}/{name}.back") == data
    assert gcodec.decompress_file(f"{url}/x.npy.gc", f"{tmp_path}/out/") == [tmp_path / "out" / "x.npy"]
    for what in (
        lambda: gcodec.compress_file(f"{url}/x.npy", f"{url}/x.npy.gc"),
        lambda: gcodec.decompress_file(f"{url}/x.npy.gc", f"{url}/x.back"),
    ):
        with pytest.raises(gcodec.GcodecError, match="exists already"):
            what()
    for what in (lambda: gcodec.compress_file(f"{url}/x.npy"), lambda: gcodec.decompress_file(f"{url}/x.npy.gc")):
        with pytest.raises(gcodec.InvalidArgument, match="output must be given"):
            what()
    with pytest.raises(gcodec.GcodecError, match=f"{url}/x.npy: exists already"):
        gcodec.decompress_file(f"{url}/x.npy.gc", f"{url}/")
    assert gcodec.decompress_file(f"{url}/x.npy.gc", f"{url}/there/") == []
    assert names_at(f"{url}/there") == ["x.npy"]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("a/b.npy", "b.npy"),
        ("s3://bucket/a/b.npy", "b.npy"),
        ("https://host/a/b.npy?signature=x/y#z", "b.npy"),
        ("s3://bucket/a/", "a"),
        ("s3://bucket", "bucket"),
        ("memory://", ""),
    ],
)
def test_names_of_urls_are_those_of_files_without_the_query(place, name):
    assert name_at(place) == name


def test_nothing_appears_where_writing_fails(url):
    with pytest.raises(gcodec.InvalidArgument):
        gcodec.save_file({"x": np.array([object()])}, f"{url}/a.gc")
    with pytest.raises(RuntimeError), ArchiveWriter(f"{url}/a.gc") as archive:
        archive._write(b"x" * 100)
        raise RuntimeError
    assert names_at(url) == []
    gcodec.save_file(VALUES, f"{url}/a.gc")
    with pytest.raises(gcodec.GcodecError, match="exists already"):
        ArchiveWriter(f"{url}/a.gc")


def test_damage_is_found_and_missing_files_are_said_to_be_missing(url):
    gcodec.save_file(VALUES, f"{url}/a.gc")
    memory = fsspec.filesystem("memory")
    data = bytearray(memory.cat_file(f"{url}/a.gc"))
    data[len(data) // 2] ^= 1
    memory.pipe_file(f"{url}/a.gc", bytes(data))
    with pytest.raises(gcodec.Corruption, match=f"{url}/a.gc"):
        gcodec.load_file(f"{url}/a.gc")
    with pytest.raises(FileNotFoundError):
        gcodec.load_file(f"{url}/b.gc")


def test_file_urls_are_paths(tmp_path):
    gcodec.save_file(VALUES, (tmp_path / "a b.gc").as_uri())
    assert [path.name for path in tmp_path.iterdir()] == ["a b.gc"]
    with ArchiveReader((tmp_path / "a b.gc").as_uri()) as archive:
        assert np.array_equal(archive.read("w"), VALUES["w"])


@pytest.mark.parametrize("place", ["a\0b", "lone \ud800", "file:///a%00b", Path("a\0b")], ids=repr)
def test_what_no_path_can_be_is_an_invalid_argument_everywhere(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = {"x": np.ones(3)}
    gcodec.save(x, "good.gc")
    publish = sync.Publisher().publish
    calls: list[Callable[[Any], Any]] = [
        gcodec.load,
        gcodec.load_file,
        gcodec.open,
        gcodec.compress_file,
        gcodec.decompress_file,
        ArchiveReader,
        ArchiveWriter,
        partial(gcodec.save, x),
        partial(gcodec.save_file, x),
        sync.Subscriber().apply,
        lambda path: gcodec.compress_file("good.gc", path),
        lambda path: gcodec.decompress_file("good.gc", path),
        lambda path: gcodec.load("good.gc", base=path),
        lambda path: gcodec.save(x, "new.gc", base=[path]),
        lambda path: gcodec.Checkpointer(path).save(1, x),
        lambda path: gcodec.Checkpointer(path).load(),
        lambda path: sync.VersionFolder(path).send(publish(x)),
        read_dump,
    ]
    for call in calls:
        with pytest.raises(gcodec.InvalidArgument, match=r"^'.*': a path must (not hold a NUL|be text that)"):
            call(place)
    assert [path.name for path in tmp_path.iterdir()] == ["good.gc"]
    for verb in (["verify"], [], ["series", "list"], ["inspect"]):
        assert main([*verb, "file:///a%00b"]) == 1


@pytest.mark.parametrize("end", ["weights/a.gc", "", "a.gc", "/{}/a#1.gc", "/{}/a?1.gc", "/{}/a?"], ids=repr)
def test_file_urls_that_would_be_another_file_s_are_refused(end, tmp_path, monkeypatch):
    """A host is no folder, and what follows # or ? is no part of the path: two URLs would be one file."""
    monkeypatch.chdir(tmp_path)
    url = "file://" + end.format(tmp_path.as_posix().lstrip("/"))
    x = {"x": np.ones(3)}
    calls: list[Callable[[Any], Any]] = [
        gcodec.load,
        gcodec.load_file,
        gcodec.decompress_file,
        partial(gcodec.save, x),
        partial(gcodec.save_file, x),
        lambda path: gcodec.Checkpointer(path).save(1, x),
    ]
    for call in calls:
        with pytest.raises(gcodec.InvalidArgument, match=r"three slashes and an absolute path, .* %3F .* %23"):
            call(url)
    assert not any(tmp_path.iterdir())


def test_file_urls_whose_signs_are_quoted_are_different_files(tmp_path):
    for number in (1, 2):
        gcodec.save({"x": number}, f"file://localhost{tmp_path.as_posix()}/a%23{number}%3F.gc")
    assert [gcodec.load(tmp_path / f"a#{number}?.gc")["x"] for number in (1, 2)] == [1, 2]


def test_a_kind_of_url_that_nobody_knows_is_refused():
    for read in (gcodec.load_file, gcodec.Checkpointer):
        with pytest.raises(gcodec.GcodecError, match="nonsense"):
            read("nonsense://a/b.gc")


def test_a_url_that_is_read_is_not_replaced(url):
    gcodec.save_file(VALUES, f"{url}/a.gc")
    before = fsspec.filesystem("memory").cat_file(f"{url}/a.gc")
    with pytest.raises(gcodec.InvalidArgument, match="would be replaced"):
        gcodec.decompress_file(f"{url}/a.gc", f"{url}/a.gc", force=True)
    with pytest.raises(gcodec.InvalidArgument, match="would be replaced"):
        gcodec.compress_file(f"{url}/x", f"{url}/x", force=True)
    assert fsspec.filesystem("memory").cat_file(f"{url}/a.gc") == before


@pytest.mark.parametrize(
    ("target", "base"),
    [
        ("{file}", "{file}"),
        ("{file}", "{path}"),
        ("{path}", "{file}"),
        ("{path}", "local://{path}"),
        ("local://{path}", "{file}"),
        ("{path}", "simplecache::{file}"),
        ("{url}/a.gc", "{url}/a.gc"),
        ("{url}/a.gc", "memory:///{key}/a.gc"),
    ],
)
@pytest.mark.parametrize("form", ["name", "reader"])
def test_a_base_is_not_replaced_by_the_difference_from_it_whatever_name_it_has(url, tmp_path, target, base, form):
    names = {
        "url": url,
        "key": url.removeprefix("memory://"),
        "path": tmp_path / "a.gc",
        "file": (tmp_path / "a.gc").as_uri(),
    }
    target, base = target.format(**names), base.format(**names)
    gcodec.save(VALUES, target)
    np.save(tmp_path / "x.npy", VALUES["w"])
    later = {**VALUES, "w": VALUES["w"] + 1}
    with ArchiveReader(base) as reader:
        given = base if form == "name" else reader
        for write in (
            lambda: gcodec.save(later, target, base=given),
            lambda: gcodec.save_file(later, target, base=given),
            lambda: gcodec.compress_file(tmp_path / "x.npy", target, base=given, force=True),
        ):
            with pytest.raises(gcodec.InvalidArgument, match="would be replaced"):
                write()
        gcodec.save(later, f"{url}/b.gc", base=given)
    assert np.array_equal(gcodec.load(target)["w"], VALUES["w"])
    assert np.array_equal(gcodec.load(f"{url}/b.gc", base=target)["w"], later["w"])


@pytest.fixture
def slots():
    Slots.register()
    CopyingSlots.register()
    yield Slots
    Slots.reset()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(("protocol", "replaces"), [("slots", True), ("slots", False), ("copies", True)])
def test_a_store_that_fails_at_any_call_keeps_the_earlier_file_or_has_the_new_one(slots, protocol, replaces, is_late):
    url = f"{protocol}://run/last.gc"
    slots.replaces, slots.is_late = replaces, is_late
    first, second = {"step": 1, "w": VALUES["w"]}, {"step": 2, "w": VALUES["w"] * 2}
    n_failed = 0
    for n in range(1, 100):
        slots.store.clear()
        slots.fails_at = ()
        gcodec.save(first, url)
        slots.calls, slots.fails_at = 0, (n,)
        error = None
        try:
            gcodec.save(second, url)
        except OSError as raised:
            error = raised
            assert raised.filename == url and "\n" not in str(raised)
        reached, slots.fails_at = slots.calls, ()
        found = gcodec.load(url)["step"]
        assert found in ((2,) if error is None else (1, 2))
        if reached < n:
            break
        n_failed += error is not None
    assert n_failed >= 2 and len(slots.store) == 1


@pytest.mark.parametrize("n_copies", range(4))
def test_a_store_without_a_rename_and_without_room_keeps_the_earlier_file(slots, monkeypatch, n_copies):
    """In its place, or where that has half of the new one, and nothing can be copied back, beside it."""
    url = "copies://run/last.gc"
    gcodec.save({"step": 1, "w": VALUES["w"]}, url)
    monkeypatch.setattr(CopyingSlots, "n_copies", n_copies)
    if n_copies >= 2:
        gcodec.save({"step": 2, "w": VALUES["w"] * 2}, url)
        assert gcodec.load(url)["step"] == 2 and len(slots.store) == 1
        return
    with pytest.raises(OSError, match="No space left on device") as raised:
        gcodec.save({"step": 2, "w": VALUES["w"] * 2}, url)
    if not n_copies:
        assert gcodec.load(url)["step"] == 1 and len(slots.store) == 1
        return
    kept = re.search(r"kept at (\S+\.replaced)", str(raised.value))
    assert kept and gcodec.load(f"copies:/{kept[1]}")["step"] == 1


def test_errors_of_a_store_of_any_class_are_os_errors_that_name_the_url(slots, capsys):
    gcodec.save({"w": VALUES["w"]}, "slots://run/last.gc")
    slots.calls, slots.fails_at = 0, (1,)
    with pytest.raises(OSError, match=r"NoCredentials: Unable to locate credentials.*slots://run/last.gc"):
        gcodec.load("slots://run/last.gc")
    for command in (
        ["inspect", "slots://run/last.gc"],
        ["verify", "slots://run/last.gc"],
        ["decompress", "slots://run/last.gc", "-o", "x.npy"],
        ["-l", "slots://run/last.gc"],
    ):
        slots.calls = 0
        assert main(command) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "slots://run/last.gc" in error and "credentials" in error, error


def test_a_file_that_a_kept_listing_does_not_have_is_not_replaced(slots, monkeypatch):
    gcodec.save({"w": VALUES["w"]}, "slots://run/last.gc")
    stale = [True]
    monkeypatch.setattr(Slots, "invalidate_cache", lambda self, path=None: stale.clear())
    exists = Slots.exists
    monkeypatch.setattr(Slots, "exists", lambda self, path, **options: not stale and exists(self, path, **options))
    with pytest.raises(gcodec.GcodecError, match="exists already"):
        gcodec.compress_file(__file__, "slots://run/last.gc")


def test_an_earlier_file_that_a_store_does_not_take_back_is_named(slots):
    gcodec.save({"step": 1}, "slots://run/last.gc")
    slots.replaces, places = False, set()
    for n in range(1, 99):
        slots.calls, slots.fails_at = 0, range(n, 1000)
        with pytest.raises(OSError, match="credentials") as raised:
            gcodec.save({"step": 2}, "slots://run/last.gc")
        slots.fails_at = ()
        if "/run/last.gc" not in slots.store:
            place = str(raised.value).partition("kept at ")[2].partition(",")[0]
            slots.store["/run/last.gc"] = slots.store.pop(place)
            places.add(place)
        if gcodec.load("slots://run/last.gc")["step"] == 2:
            break
    assert n < 20 and len(places) == 1


@pytest.mark.parametrize("error", [PermissionError("no"), TimeoutError(), RuntimeError("busy"), KeyboardInterrupt()])
def test_a_store_that_cannot_say_what_is_there_has_nothing_replaced_and_nothing_called_missing(slots, error):
    gcodec.save({"w": VALUES["w"]}, "slots://run/last.gc")
    gcodec.Checkpointer("slots://run/steps").save(1, VALUES)
    before = slots.store["/run/last.gc"].getvalue()
    slots.error = staticmethod(lambda: error)
    kind = OSError if isinstance(error, Exception) else KeyboardInterrupt
    reached = 0
    for n in range(1, 3):  # to forget its listings, and to say what is there
        slots.calls, slots.fails_at = 0, (n,)
        with pytest.raises(kind):
            gcodec.compress_file(__file__, "slots://run/last.gc")
        slots.calls = 0
        with pytest.raises(kind):
            is_folder_at("slots://run/steps")
        reached += slots.failed
    assert slots.store["/run/last.gc"].getvalue() == before and reached
