"""An archive never takes the place of its own base, however the base is named: nothing could read it then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.cli import main
from gcodec.errors import GcodecError, InvalidArgument

RNG = np.random.default_rng(5)
WEIGHTS, MOMENTS = (RNG.standard_normal(n).astype(np.float32) for n in (5000, 3000))
OLD: dict[str, Any] = {"w": WEIGHTS, "o": {"m": MOMENTS}}
NEW: dict[str, Any] = {"w": OLD["w"] * np.float32(1.0001), "o": {"m": OLD["o"]["m"] * np.float32(1.0001)}}


def file_url(name: str) -> str:
    return Path(name).absolute().as_uri()


def stream_of(name: str) -> Any:
    return Path(name).open("rb")


def elsewhere(base: Any) -> Any:
    """Return a base after the working folder has changed: the file is in the folder above."""
    Path("below").mkdir()
    os.chdir("below")
    return base


def read_all(base: Any) -> Any:
    assert len(list(base["o"].values())) == 1 and len(base.values()) == 2 and base["w"].size
    return base


SAME: dict[str, tuple[str, Callable[[], Any]]] = {
    "path": ("a.gc", lambda: "a.gc"),
    "absolute": ("a.gc", lambda: Path("a.gc").absolute()),
    "to absolute": ("{here}/a.gc", lambda: "a.gc"),
    "dots": ("./x/../a.gc", lambda: "a.gc"),
    "URL": ("a.gc", lambda: file_url("a.gc")),
    "to URL": ("file://{here}/a.gc", lambda: "a.gc"),
    "link": ("a.gc", lambda: "link.gc"),
    "chain": ("a.gc", lambda: ["b.gc", "a.gc"]),
    "open": ("a.gc", lambda: gcodec.open("a.gc")),
    "open by link": ("a.gc", lambda: gcodec.open("link.gc")),
    "open stream": ("a.gc", lambda: gcodec.open(stream_of("a.gc"))),
    "open by number": ("a.gc", lambda: gcodec.open(os.fdopen(os.open("a.gc", os.O_RDONLY), "rb"))),
    "open against it": ("a.gc", lambda: gcodec.open("b.gc", base="a.gc")),
    "open, then elsewhere": ("../a.gc", lambda: elsewhere(gcodec.open("a.gc"))),
    "reader": ("a.gc", lambda: ArchiveReader("a.gc")),
    "lazy": ("a.gc", lambda: gcodec.load("a.gc", lazy=True)),
    "lazy, to absolute": ("{here}/a.gc", lambda: gcodec.load("a.gc", lazy=True)),
    "lazy by link": ("a.gc", lambda: gcodec.load("link.gc", lazy=True)),
    "lazy, to URL": ("file://{here}/a.gc", lambda: gcodec.load("a.gc", lazy=True)),
    "lazy from URL": ("a.gc", lambda: gcodec.load(file_url("a.gc"), lazy=True)),
    "lazy, all read": ("a.gc", lambda: read_all(gcodec.load("a.gc", lazy=True))),
    "a part of a lazy one": ("a.gc", lambda: gcodec.load("a.gc", lazy=True)["o"]),
    "a copy of a lazy one": ("a.gc", lambda: gcodec.load("a.gc", lazy=True).copy()),
    "a lazy one in others": ("a.gc", lambda: [{"model": gcodec.load("a.gc", lazy=True)}]),
    "lazy against it": ("a.gc", lambda: gcodec.load("b.gc", base="a.gc", lazy=True)),
    "lazy, then elsewhere": ("../a.gc", lambda: elsewhere(gcodec.load("a.gc", lazy=True))),
}
OTHER: dict[str, tuple[str, Callable[[], Any]]] = {
    "lazy": ("c.gc", lambda: gcodec.load("a.gc", lazy=True)),
    "open": ("b.gc", lambda: gcodec.open("a.gc")),
    "another hard link": ("a.gc", lambda: "second.gc"),  # replacing one name leaves the file under the other
    "lazy by another hard link": ("a.gc", lambda: gcodec.load("second.gc", lazy=True)),
    "a dictionary": ("a.gc", lambda: {"w": OLD["w"], "o": {"m": OLD["o"]["m"]}}),
    "no base": ("a.gc", lambda: None),
}


def make_files(*, linked: bool) -> None:
    gcodec.save(OLD, "a.gc")
    gcodec.save(NEW, "b.gc", base="a.gc")
    Path("link.gc").symlink_to("a.gc")
    if linked:
        os.link("a.gc", "second.gc")


@pytest.mark.parametrize("save", [gcodec.save, gcodec.compress_file])
@pytest.mark.parametrize("way", SAME)
@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning")
def test_the_base_is_not_replaced_however_it_is_named(way, save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(linked=False)
    before = Path("a.gc").read_bytes()
    target, name_base = SAME[way]
    given: Any = NEW
    options: dict[str, Any] = {}
    if save is gcodec.compress_file:
        gcodec.save(NEW, "new.safetensors.gc")
        gcodec.decompress_file("new.safetensors.gc")
        given, options = tmp_path / "new.safetensors", {"force": True}
    base = name_base()
    with pytest.raises(InvalidArgument, match=r"a\.gc: is .*, and would be replaced"):
        save(given, target.format(here=tmp_path), base=base, **options)
    assert (tmp_path / "a.gc").read_bytes() == before
    left = {"a.gc", "b.gc", "link.gc", "below"} | {"new.safetensors", "new.safetensors.gc"}
    assert {path.name for path in tmp_path.iterdir()} <= left


OPENERS: dict[str, Callable[[str], Any]] = {
    "open": gcodec.open,
    "lazy": lambda path: gcodec.load(path, lazy=True),
    "path": lambda path: path,
}


@pytest.mark.parametrize("opener", OPENERS)
def test_a_dictionary_does_not_replace_its_base(opener, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gcodec.save_file({"w": OLD["w"]}, "a.gc")
    with pytest.raises(InvalidArgument, match=r"a\.gc: is the base, and would be replaced"):
        gcodec.save_file({"w": NEW["w"]}, tmp_path / "a.gc", base=OPENERS[opener]("a.gc"))
    assert np.array_equal(gcodec.load_file("a.gc")["w"], OLD["w"])


@pytest.mark.parametrize("save", [gcodec.save, gcodec.save_file])
@pytest.mark.parametrize("mode", ["r+b", "ab", "unbuffered", "hard link"])
@pytest.mark.parametrize(
    "name_base",
    [lambda: "a.gc", lambda: ["b.gc", "a.gc"], lambda: gcodec.open("a.gc"), lambda: gcodec.open("b.gc", base="a.gc")],
)
def test_a_stream_does_not_write_over_the_base(name_base, mode, save, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(linked=True)
    before = Path("a.gc").read_bytes()
    name = "second.gc" if mode == "hard link" else "a.gc"
    given: Any = {"w": NEW["w"]} if save is gcodec.save_file else NEW
    with (
        open(name, "ab" if mode == "ab" else "r+b", buffering=0 if mode == "unbuffered" else -1) as stream,
        pytest.raises(InvalidArgument, match=rf"{name}: is the base, and would be replaced"),
    ):
        save(given, stream, base=name_base())
    assert Path("a.gc").read_bytes() == before
    with Path("c.gc").open("w+b") as stream:
        gcodec.save(NEW, stream, base="a.gc")
    assert np.array_equal(gcodec.load("c.gc", base="a.gc")["w"], NEW["w"])


def test_a_stream_does_not_write_over_what_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(linked=False)
    Path("folder").mkdir()
    gcodec.decompress_file("b.gc", "folder/new.safetensors", base="a.gc")
    gcodec.decompress_file("a.gc", "folder/old.safetensors")
    ways: dict[str, Callable[[Any], Any]] = {
        "folder/new.safetensors": lambda out: gcodec.compress_file("folder/new.safetensors", out),
        "folder/old.safetensors": lambda out: gcodec.compress_file("folder/new.safetensors", out, base="folder"),
        "a.gc": lambda out: gcodec.compress_file("folder/new.safetensors", out, base="a.gc"),
        "b.gc": lambda out: gcodec.decompress_file("b.gc", out, base="a.gc"),
        "link.gc": lambda out: gcodec.decompress_file("b.gc", out, base="a.gc"),
    }
    for name, write in ways.items():
        before = Path(name).read_bytes()
        with (
            Path(name).open("r+b") as stream,
            pytest.raises(InvalidArgument, match=f"{name}: is read, and would be wr"),
        ):
            write(stream)
        assert Path(name).read_bytes() == before
    with Path("a.gc").open("r+b") as both, pytest.raises(InvalidArgument, match="is read"):
        gcodec.decompress_file(both, both)
    with Path("new.gc").open("w+b") as stream:
        gcodec.compress_file("folder/new.safetensors", stream, base="a.gc")
    assert np.array_equal(gcodec.load("new.gc", base="a.gc")["w"], NEW["w"])


@pytest.mark.parametrize("way", OTHER)
def test_what_is_not_the_base_is_replaced(way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_files(linked=True)
    target, name_base = OTHER[way]
    base = name_base()
    gcodec.save(NEW, target, base=base)
    found = gcodec.load(target, base=OLD)
    assert np.array_equal(found["w"], NEW["w"]) and np.array_equal(found["o"]["m"], NEW["o"]["m"])
    kept = gcodec.load("second.gc")
    assert np.array_equal(kept["w"], OLD["w"])


def test_a_lazy_object_is_saved_over_its_own_file(tmp_path):
    gcodec.save(OLD, tmp_path / "a.gc")
    state = gcodec.load(tmp_path / "a.gc", lazy=True)
    state["step"] = 3
    gcodec.save(state, tmp_path / "a.gc")
    assert gcodec.load(tmp_path / "a.gc", names="step") == {"step": 3}
    assert np.array_equal(gcodec.load(tmp_path / "a.gc")["w"], OLD["w"])


def test_the_step_that_a_lazy_state_was_loaded_from_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = gcodec.Checkpointer("run")
    checkpoints.save(1, OLD)
    info = checkpoints.save(2, NEW)
    with pytest.raises(InvalidArgument, match="is the base, and would be replaced"):
        gcodec.save(OLD, info.path, base=checkpoints.load(lazy=True))
    assert np.array_equal(checkpoints.load()["w"], NEW["w"])


@pytest.mark.parametrize("base", ["a.gc", "{here}/a.gc", "link.gc", "file://{here}/a.gc"])
@pytest.mark.parametrize("target", ["a.gc", "{here}/a.gc", "file://{here}/a.gc"])
def test_the_command_line_does_not_replace_a_base(base, target, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_files(linked=False)
    gcodec.decompress_file("b.gc", base="a.gc")
    before = Path("a.gc").read_bytes()
    options = ["--base", base.format(here=tmp_path), "-o", target.format(here=tmp_path), "-f"]
    assert main(["compress", "b.safetensors", *options]) == 2
    assert "is needed as --base, and would be replaced" in capsys.readouterr().err
    assert main(["decompress", "b.gc", *options]) == 2
    assert "is needed as --base, and would be replaced" in capsys.readouterr().err
    assert Path("a.gc").read_bytes() == before


def test_files_that_were_read_whole_are_not_kept_open_by_what_is_known_of_them(tmp_path):
    gcodec.save(OLD, tmp_path / "a.gc")
    state = read_all(gcodec.load(tmp_path / "a.gc", lazy=True))
    opened = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]  # noqa: PTH208
    assert not [place for place in opened if place.is_symlink() and place.readlink() == tmp_path / "a.gc"]
    with pytest.raises(GcodecError, match="would be replaced"):
        gcodec.save(NEW, tmp_path / "a.gc", base=state)
