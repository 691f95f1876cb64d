"""URLs on the command line, in fsspec's file system in memory: the same results and errors as for paths."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as safetensors_bytes

import gcodec
from gcodec.cli import jobs, main
from gcodec.files.urls import place_of
from tests.support import commands
from tests.support.commands import run
from tests.support.slots import Slots

VALUES = {"a": np.linspace(-1, 1, 4000, dtype=np.float32), "b": np.arange(5, dtype=np.float32)}
FILE = safetensors_bytes(VALUES)

folder = commands.folder


@pytest.fixture
def url(folder):
    """A folder in memory that has a file, in a folder on this machine that has the same file."""
    place = f"memory://{secrets.token_hex(4)}"
    memory().pipe_file(f"{place}/x.safetensors", FILE)
    Path("x.safetensors").write_bytes(FILE)
    return place


def memory():
    return fsspec.filesystem("memory")


def content_at(url):
    return {name: memory().cat_file(f"{url}/{name}") for name in names_at(url) if name not in ("empty", "evil", "deep")}


def names_at(url):
    return sorted(path.rpartition("/")[2] for path in memory().ls(url, detail=False))


def test_each_of_many_archives_restored_to_a_url_is_not_compared_with_all_others(url, monkeypatch):
    """Twice as many archives take twice as many looks at places."""
    looks: list[Any] = []

    def counted(place: Any) -> Path | str:
        looks.append(place)
        return place_of(place)

    monkeypatch.setattr("gcodec.cli.outputs.place_of", counted)

    def looks_at(n: int) -> int:
        names = [f"{n}-{i}.safetensors" for i in range(n)]
        for name in names:
            Path(name).write_bytes(FILE)
        run("compress", *names)
        looks.clear()
        run("decompress", *(f"{name}.gc" for name in names), "-o", f"{url}/{n}/")
        assert all(memory().cat_file(f"{url}/{n}/{name}") == FILE for name in names)
        return len(looks)

    assert looks_at(20) <= 2 * looks_at(10)


@pytest.mark.parametrize(
    ("source", "output", "archive"),
    [
        ("{url}/x.safetensors", None, "{url}/x.safetensors.gc"),
        ("{url}/x.safetensors", "{url}/all.gc", "{url}/all.gc"),
        ("{url}/x.safetensors", "{url}/into/", "{url}/into/x.safetensors.gc"),
        ("{url}/*.safetensors", "{url}/into/", "{url}/into/x.safetensors.gc"),
        ("x.safetensors", "{url}/into/", "{url}/into/x.safetensors.gc"),
        ("{url}/x.safetensors", "x.gc", "x.gc"),
        ("{url}/x.safetensors", "./", "x.safetensors.gc"),
    ],
)
def test_files_are_compressed_and_restored_between_urls_and_paths(url, source, output, archive):
    source, output, archive = (text and text.format(url=url) for text in (source, output, archive))
    run("compress", source, *(["-o", output] if output else []))
    run("verify", archive)
    run("decompress", archive, "-o", f"{url}/back")
    run("decompress", archive, "-o", "back")
    assert memory().cat_file(f"{url}/back") == Path("back").read_bytes() == FILE


def test_an_archive_at_a_url_is_restored_beside_it_and_listed_and_inspected(url, capsys):
    run("compress", f"{url}/x.safetensors")
    memory().rm_file(f"{url}/x.safetensors")
    run("decompress", f"{url}/x.safetensors.gc")
    assert memory().cat_file(f"{url}/x.safetensors") == FILE
    for line in (["decompress", "--list"], ["inspect"]):
        capsys.readouterr()
        run(*line, f"{url}/x.safetensors.gc", "--json")
        assert '"a"' in capsys.readouterr().out
    run("compress", f"{url}/x.safetensors", "-o", f"{url}/json.gc", "--json")
    assert json.loads(capsys.readouterr().out)[0]["archive"] == f"{url}/json.gc"


def test_tensors_are_taken_out_to_urls(url):
    run("compress", "x.safetensors")
    run("decompress", "x.safetensors.gc", "--only", "a", "-o", f"{url}/a.npy")
    with memory().open(f"{url}/a.npy") as file:
        assert np.array_equal(np.load(file), VALUES["a"])
    run("decompress", "x.safetensors.gc", "--only", "*", "-o", f"{url}/all.safetensors")
    found = load_safetensors(memory().cat_file(f"{url}/all.safetensors"))
    assert all(np.array_equal(found[name], VALUES[name]) for name in VALUES)


def test_bases_are_at_urls(url):
    run("compress", "x.safetensors", "--base", f"{url}/x.safetensors", "-o", f"{url}/y.gc")
    run("decompress", f"{url}/y.gc", "--base", "x.safetensors", "-o", "y")
    assert Path("y").read_bytes() == FILE


def test_archives_are_verified_against_files_and_folders_at_urls(url, capsys):
    memory().pipe_file(f"{url}/run/deep/y.safetensors", FILE)
    memory().get(f"{url}/run/", "run/", recursive=True)
    run("compress", "run", "-o", f"{url}/run.gc")
    run("compress", "run")
    run("compress", f"{url}/x.safetensors", "--mantissa-bits", "7", "-o", "lossy.gc")
    lossy, path = "lossy.gc", "run/deep/y.safetensors"
    for archive, original, found in (
        (f"{url}/run.gc", f"{url}/run", f"{url}/{path}"),
        (f"{url}/run.gc", f"{url}/", f"{url}/{path}"),
        ("run.gc", "run", str(Path(path).absolute())),
        (lossy, f"{url}/x.safetensors", f"{url}/x.safetensors"),
        (lossy, url, f"{url}/x.safetensors"),
        (lossy, ".", "./x.safetensors"),
    ):
        capsys.readouterr()
        run("verify", archive, "--against", original, "--json")
        (file,) = json.loads(capsys.readouterr().out)[0]["files"]
        assert file["original"] == found
        assert bool(file["differences"]) == (archive == lossy)


def test_dumps_at_urls_are_listed(url, capsys):
    for source in (f"{url}/x.safetensors", url, "."):
        run("record", source, "--json")
        (row,) = json.loads(capsys.readouterr().out)
        assert row.pop("dump") == (f"{url}/x.safetensors" if source != "." else "x.safetensors")
        assert row["bytes"] == len(FILE)


def test_reports_and_benchmarks_read_urls(url, capsys):
    gcodec.compress_file("x.safetensors", f"{url}/a.gc")
    run("report", f"{url}/a.gc")
    run("report", f"{url}/a.gc", "-o", "here.html")
    assert memory().cat_file(f"{url}/a.gc.html") == Path("here.html").read_bytes()
    assert b"<title>a.gc" in Path("here.html").read_bytes()
    memory().pipe_file(f"{url}/run/log/stats.jsonl", b'{"step": 1, "sent_bytes": 5, "raw_bytes": 9}\n' * 2)
    for source in (f"{url}/run", f"{url}/run/", f"{url}/run/log/stats.jsonl"):
        capsys.readouterr()
        run("report", source, "-o", "-")
        assert "stats.jsonl" in capsys.readouterr().out
    run("bench", f"{url}/x.safetensors", "--sizes", "--peers", "none", "--json")
    assert "x.safetensors float32" in {row["dump"] for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("compress {url}/none.npy -o x.gc", 1, "{url}/none.npy: No such file"),
        ("compress {url}/*.npy -o x.gc", 1, "{url}/*.npy: no such file"),
        ("record {url}/empty", 1, "{url}/empty: no .safetensors files"),
        ("record {url}/none.safetensors", 1, "{url}/none.safetensors: No such file"),
        ("compress memory:// -o x.gc", 2, "must be the URL of a file or folder"),
        ("compress {url}/empty -o x.gc", 1, "{url}/empty: no files in this folder"),
        ("compress {url}/evil -o x.gc", 1, "skipped: its path in the archive"),
        ("compress {url}/deep --rm", 2, "--rm needs files"),
        ("compress {url}/x.safetensors -f -o {url}/x.safetensors", 2, "is an input itself"),
        ("compress x.safetensors -f --base {url}/x.safetensors -o {url}/x.safetensors", 2, "is needed as --base"),
        ("compress x.safetensors -o {url}/x.safetensors", 1, "exists already"),
        ("compress {url}/x.safetensors --rm", 2, "--rm needs files"),
        ("compress x.safetensors --rm -o {url}/y.gc", 2, "--rm needs files"),
        ("compress x.safetensors -o nonsense://a/b.gc", 1, "nonsense"),
        ("decompress {url}/none.gc -o y", 1, "{url}/none.gc: No such file"),
        ("decompress {url}/a.gc -o {url}/x.safetensors", 1, "exists already"),
        ("decompress {url}/a.gc -f -o {url}/a.gc", 2, "is an input itself"),
        ("decompress {url}/a.gc --rm", 2, "--rm needs archives"),
        ("decompress {url}/two.gc", 1, "{url}/x.safetensors: exists already"),
        ("decompress {url}/two.gc -o {url}/one", 2, "-o must be the URL of a folder, which ends in /"),
        ("decompress {url}/broken.gc -o {url}/y", 1, "{url}/broken.gc"),
        ("verify {url}/broken.gc", 1, "{url}/broken.gc"),
        ("verify {url}/a.gc --against {url}/none.safetensors", 1, "{url}/none.safetensors"),
        ("verify {url}/two.gc --against {url}/empty", 1, "{url}/empty: has no file x.safetensors"),
        ("verify {url}/two.gc --against {url}/x.safetensors", 1, "{url}/x.safetensors: is not a folder"),
        (
            "verify {url}/a.gc --against {url}/other.safetensors",
            1,
            "x.safetensors: differs from {url}/other.safetensors",
        ),
        ("report {url}/none.gc", 1, "{url}/none.gc: No such file"),
        ("report {url}/a.gc -f -o {url}/a.gc", 2, "is an input itself"),
        ("report {url}/a.gc -o {url}/x.safetensors", 1, "exists already"),
        ("report {url}/broken.gc", 1, "{url}/broken.gc"),
        ("report {url}/empty", 1, "{url}/empty: nothing to report on"),
        ("report {url}/evil", 1, "{url}/evil: has a file whose name leads out of the folder"),
        ("bench {url}/none.npy --sizes --peers none", 1, "{url}/none.npy: No such file"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(url, capsys, line, code, words):
    gcodec.compress_file("x.safetensors", f"{url}/a.gc")
    Path("y.safetensors").write_bytes(FILE)
    run("compress", "x.safetensors", "y.safetensors", "-o", f"{url}/two.gc")
    data = bytearray(memory().cat_file(f"{url}/a.gc"))
    data[100] ^= 1
    memory().pipe_file(f"{url}/broken.gc", bytes(data))
    memory().pipe_file(f"{url}/other.safetensors", FILE[:-4] + b"\0\0\0\0")
    memory().makedirs(f"{url}/empty")
    memory().pipe_file(f"{url}/evil/x", b"")
    memory().pipe_file(f"{url}/deep/x.safetensors", FILE)
    store = memory().store
    store[f"/{url.removeprefix('memory://')}/evil/../../../x"] = store.pop(f"/{url.removeprefix('memory://')}/evil/x")
    before = content_at(url)
    here = sorted(path.name for path in Path().iterdir())
    capsys.readouterr()
    run(*line.format(url=url).split(), code=code)
    assert words.format(url=url) in capsys.readouterr().err
    assert content_at(url) == before
    assert sorted(path.name for path in Path().iterdir()) == here


def test_an_archive_is_not_replaced_by_what_is_read_from_it_under_another_name(url, capsys):
    gcodec.compress_file("x.safetensors", "a.gc")
    before, here = Path("a.gc").read_bytes(), Path.cwd()
    for line in (
        f"report a.gc -f -o local://{here}/a.gc",
        f"decompress file://{here}/a.gc -f -o local://{here}/a.gc",
        f"compress x.safetensors -f -o local://{here}/a.gc --base a.gc",
    ):
        run(*line.split(), code=2)
        assert "would be replaced" in capsys.readouterr().err
        assert Path("a.gc").read_bytes() == before


def test_a_file_url_that_ends_in_a_slash_is_a_folder_as_a_path_is(url):
    Path("step-1.safetensors").write_bytes(FILE)
    run("series", "add", "steps", "step-1.safetensors")
    for form in ("{}/", f"file://{Path.cwd()}/{{}}/"):
        kind = "url" if "file:" in form else "path"
        run("compress", "x.safetensors", "-o", form.format(f"{kind}-archives"))
        run("decompress", f"{kind}-archives/x.safetensors.gc", "-o", form.format(f"{kind}-files"))
        run("decompress", f"{kind}-archives/x.safetensors.gc", "--only", "a", "-o", form.format(f"{kind}-arrays"))
        run("series", "restore", "steps", "1", "-o", form.format(f"{kind}-steps"))
        made = {path.relative_to(Path.cwd()) for path in Path.cwd().rglob(f"{kind}-*/*")}
        assert made == {
            Path(f"{kind}-{name}")
            for name in ("archives/x.safetensors.gc", "files/x.safetensors", "arrays/a.npy", "steps/step-1.safetensors")
        }
    assert not Path("file:").exists()


@pytest.mark.parametrize("output", [None, "{url}/into/", "all.gc"])
def test_a_folder_at_a_url_is_archived_as_a_whole_and_restored_to_another(url, output, capsys):
    files = {"run/x.safetensors": FILE, "run/deep/y.safetensors": FILE, "run/deep/notes.txt": b"notes"}
    for name, data in files.items():
        memory().pipe_file(f"{url}/{name}", data)
    run("compress", f"{url}/run", *([] if output is None else ["-o", output.format(url=url)]))
    archive = {None: f"{url}/run.gc", "all.gc": "all.gc"}.get(output, f"{url}/into/run.gc")
    assert f"{archive}: " in capsys.readouterr().out
    run("verify", archive, "--against", url)
    memory().pipe_file(f"{url}/run/deep/later.txt", b"later")
    run("verify", archive, "--against", f"{url}/run", code=1)
    assert capsys.readouterr().err == f"gcodec: error: {url}/run/deep/later.txt: is not in {archive}\n"
    run("decompress", archive, "-o", f"{url}/back/")
    assert f"3 files in {url}/back/" in capsys.readouterr().out
    gcodec.decompress_file(archive, f"{url}/again/")
    run("decompress", archive, "-o", "here/")
    for name, data in files.items():
        assert memory().cat_file(f"{url}/back/{name}") == memory().cat_file(f"{url}/again/{name}") == data
        assert Path("here", name).read_bytes() == data


def test_no_file_is_put_before_all_of_an_archive_are_complete(url):
    Path("y.safetensors").write_bytes(FILE)
    run("compress", "x.safetensors", "y.safetensors", "-o", "two.gc")
    data = bytearray(Path("two.gc").read_bytes())
    with gcodec.archive.ArchiveReader("two.gc") as archive:
        second = archive.files[1].segments[0].offset
    data[second + 50] ^= 1
    Path("broken.gc").write_bytes(data)
    run("decompress", "broken.gc", "-o", f"{url}/into/", code=1)
    assert names_at(url) == ["x.safetensors"]


def test_nothing_is_put_where_the_store_refuses(url, capsys, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise PermissionError("no")

    monkeypatch.setattr(type(memory()), "put_file", refuse)
    run("compress", "x.safetensors", "-o", f"{url}/y.gc", code=1)
    assert f"{url}/y.gc: Permission denied" in capsys.readouterr().err
    assert names_at(url) == ["x.safetensors"]


def test_an_empty_folder_and_what_is_no_file_at_a_url_have_a_line_each(url, folder, capsys):
    memory().pipe_file(f"{url}/run/full/x.safetensors", FILE)
    memory().makedirs(f"{url}/run/empty")
    for make in (
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("full"),
        lambda path: path.symlink_to("gone"),
        lambda path: path.symlink_to("loop"),
    ):
        (folder / "run/full").mkdir(parents=True)
        (folder / "run/full/x.safetensors").write_bytes(FILE)
        make(folder / "run/loop")
        for place, odd in ((f"{url}/run", "empty"), (f"local://{folder}/run", "loop")):
            for line in (["compress", place, "-o", "run.gc", "-f"], ["verify", "run.gc", "--against", place]):
                run(*line, code=1)
                assert f"{place}/{odd}: " in capsys.readouterr().err, line
        shutil.rmtree(folder / "run")


def test_a_folder_at_a_url_that_cannot_be_listed_has_a_line(folder, monkeypatch, capsys):
    for name in ("open", "closed"):
        (folder / "run" / name).mkdir(parents=True)
        (folder / "run" / name / "x.safetensors").write_bytes(FILE)
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    run("compress", f"local://{folder}/run", "-o", "run.gc", code=1)
    assert "run/closed: skipped: Permission denied" in capsys.readouterr().err


def test_patterns_of_urls_leave_alone_what_has_their_very_name_and_keep_every_protocol(url, capsys):
    memory().pipe_file(f"{url}/x[1].safetensors", FILE)
    memory().pipe_file(f"{url}/x1.safetensors", FILE)
    run("compress", f"{url}/x[1].safetensors", f"simplecache::{url}/x[12].*", "-o", "all.gc", "--json")
    assert json.loads(capsys.readouterr().out)[0]["files"] == 2
    run("decompress", "--list", "all.gc")
    listed = capsys.readouterr().out
    assert "x[1].safetensors" in listed and "x1.safetensors" in listed
    assert jobs._expanded(f"simplecache::{url}/x[12].*") == [f"simplecache::{url}/x1.safetensors"]


def test_an_error_of_a_store_that_is_asked_for_a_pattern_is_one_line(url, monkeypatch, capsys):
    def fail(*args, **options):
        raise RuntimeError("no\ncredentials")

    monkeypatch.setattr(type(memory()), "glob", fail)
    run("compress", f"{url}/*.npy", "-o", "x.gc", code=1)
    assert capsys.readouterr().err == f"gcodec: error: {url}/*.npy: RuntimeError: no credentials\n"


def test_a_store_that_fails_at_any_call_leaves_out_no_file_and_is_named(folder, capsys):
    Slots.register()
    Slots.reset()
    store = Slots()
    for name in ("a.safetensors", "deep/b.safetensors", "deep/deeper/c.safetensors"):
        store.pipe_file(f"slots://in/{name}", FILE)
    given = dict(Slots.store)
    for source, output in (
        ("slots://in", "slots://out.gc"),
        ("slots://in/deep/*", "slots://out/"),
        ("slots://in/**/*.safetensors", "slots://out/"),
    ):
        n, done = 0, False
        while not done:
            n += 1
            Slots.store.clear()
            Slots.store.update(given)
            Slots.calls, Slots.failed, Slots.fails_at = 0, 0, (n,)
            code = main(["compress", source, "-o", output, "-q"])
            Slots.fails_at, done = (), not Slots.failed
            error = capsys.readouterr().err
            assert code == Slots.failed, error
            assert done or (error.count("\n") == 1 and "slots://" in error), error
        assert n > 10
    Slots.reset()
