"""Checkpoints at URLs, in fsspec's file system in memory: what holds in a folder of a disk holds there, too."""

from __future__ import annotations

import io
import secrets
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

import gcodec
from gcodec.archive.folders import DiskFolder, folder_at, replace_file
from gcodec.checkpoints import StepFolder
from gcodec.checkpoints.step_files import step_name
from tests.support import commands
from tests.support.commands import run

folder = commands.folder


@pytest.fixture(params=["memory", "disk"])
def place(request, tmp_path):
    return f"memory://{secrets.token_hex(4)}/run" if request.param == "memory" else str(tmp_path / "run")


@pytest.fixture
def url():
    return f"memory://{secrets.token_hex(4)}/run"


def memory():
    return fsspec.filesystem("memory")


def state_of(step):
    values = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
    values[:: 50 + step] += step
    return {"weights": values, "step": step}


def check(checkpoints, steps):
    assert checkpoints.steps() == sorted(steps)
    for step in steps:
        state = checkpoints.load(step)
        assert state["step"] == step
        assert np.array_equal(state["weights"], state_of(step)["weights"])


@pytest.mark.parametrize("copy_in_memory", [False, True])
def test_steps_are_saved_as_differences_loaded_verified_pruned_and_deleted(place, copy_in_memory):
    checkpoints = gcodec.Checkpointer(place, full_every=4, copy_in_memory=copy_in_memory)
    assert checkpoints.latest() is None
    infos = [checkpoints.save(step, state_of(step)) for step in range(1, 8)]
    assert [info.base for info in infos] == [None, 1, 2, 3, None, 5, 6]
    assert max(infos[1].file_bytes, infos[2].file_bytes) < infos[0].file_bytes / 3
    assert [str(info.path) for info in infos] == [f"{place}/{step_name(step)}" for step in range(1, 8)]
    check(checkpoints, range(1, 8))
    checkpoints.delete(1, 3)
    check(gcodec.Checkpointer(place), [2, 4, 5, 6, 7])
    assert [info.base for info in checkpoints.overview()] == [None, 2, None, 5, 6]
    checkpoints.verify(7)
    assert checkpoints.prune(2) == [2, 4, 5]
    check(checkpoints, [6, 7])
    with pytest.raises(gcodec.InvalidArgument, match=r"has no step 5; there are 2 steps, from 6 to 7$"):
        checkpoints.load(5)
    gcodec.Checkpointer(f"{place}/other").save(6, state_of(6))
    with pytest.raises(gcodec.InvalidArgument, match=r"has no step 5; the only step there is 6$"):
        gcodec.Checkpointer(f"{place}/other").load(5)
    with pytest.raises(gcodec.InvalidArgument, match="is there already"):
        checkpoints.save(7, state_of(7))
    keeping = gcodec.Checkpointer(place, keep_last=2)
    keeping.save(8, state_of(8))
    check(keeping, [7, 8])


def test_damaged_and_missing_steps_are_named_by_url_and_saving_goes_on(url):
    checkpoints = gcodec.Checkpointer(url)
    for step in (1, 2, 3):
        checkpoints.save(step, state_of(step))
    name = f"{url}/{step_name(2)}"
    whole = memory().cat_file(name)
    memory().pipe_file(name, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(gcodec.GcodecError, match=name):
        checkpoints.load(3)
    memory().rm_file(name)
    with pytest.raises(gcodec.Unsupported, match=f"{url}/{step_name(3)}.*step 2.*there is no {name}"):
        checkpoints.load(3)
    with pytest.warns(gcodec.errors.CheckpointWarning, match=f"{url}/{step_name(4)}: is saved whole"):
        assert checkpoints.save(4, state_of(4)).base is None
    memory().pipe_file(name, whole)
    check(checkpoints, [1, 2, 3, 4])


def test_nothing_is_put_and_nothing_lost_where_the_store_refuses(url, monkeypatch):
    checkpoints = gcodec.Checkpointer(url)
    for step in (1, 2):
        checkpoints.save(step, state_of(step))

    def refuse(*args, **kwargs):
        raise PermissionError("no")

    with monkeypatch.context() as patched:
        patched.setattr(type(memory()), "put_file", refuse)
        with pytest.raises(PermissionError, match=f"{url}/{step_name(3)}"):
            checkpoints.save(3, state_of(3))
        with pytest.raises(PermissionError, match=f"{url}/{step_name(2)}"):
            checkpoints.delete(1)
    check(checkpoints, [1, 2])


def test_a_step_stays_readable_when_it_is_replaced_or_removed_while_it_is_open(place):
    steps = StepFolder(place)
    checkpoints = gcodec.Checkpointer(place)
    for step in (1, 2):
        checkpoints.save(step, state_of(step))
    with steps.opened(2) as opened:
        assert not opened.replaced()
        checkpoints.delete(1)
        assert opened.replaced()
        checkpoints.delete(2)
        assert opened.replaced()
        assert sum(part.size for part in opened.archive.restored(opened.entry)) == opened.entry.size


def test_a_folder_gives_back_what_was_put_and_tells_files_apart(place):
    files = folder_at(place)
    assert files.names() == []
    assert str(files) == place
    with pytest.raises(FileNotFoundError, match=f"{place}/a"):
        files.read("a", 1)
    with pytest.raises(FileNotFoundError, match=f"{place}/a"):
        files.identity("a")
    replace_file(files, "a", b"one")
    first = files.identity("a")
    assert first == files.identity("a")
    assert first.size == 3
    opened, identity = files.open("a")
    with opened:
        replace_file(files, "a", b"three")
        assert identity == first != files.identity("a")
        assert opened.read() == b"one"
    assert files.read("a", 4) == b"thre"
    with pytest.raises(gcodec.GcodecError, match="a: exists already"), files.output("a"):
        pass
    with pytest.raises(RuntimeError), files.output("b") as file:
        file.write(b"two")
        raise RuntimeError
    assert files.names() == ["a"]
    files.remove("a")
    files.remove("a")
    assert files.names() == []
    assert isinstance(files, DiskFolder) == ("://" not in place)


class ListingFileSystem(MemoryFileSystem):
    """A file system that keeps its listings, and what they say of files, as those of object stores do."""

    protocol = "listing"
    listings: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("listing://"))

    def ls(self, path, detail=True, **kwargs):
        found = super().ls(path, detail=True, **kwargs)
        self.listings.update((entry["name"], entry) for entry in found)
        return found if detail else [entry["name"] for entry in found]

    def info(self, path, **kwargs):
        return self.listings.get(self._strip_protocol(path)) or super().info(path, **kwargs)

    def find(self, path, *arguments, **kwargs):
        kept = {entry["name"]: entry for entry in self.listings.values() if entry["name"].startswith(f"{path}/")}
        return kept or super().find(path, *arguments, **kwargs)

    def _open(self, path, mode="rb", **kwargs):
        file = super()._open(path, mode, **kwargs)
        return io.BytesIO(file.getvalue()[: self.info(path)["size"]]) if mode == "rb" else file

    def invalidate_cache(self, path=None):
        self.listings.clear()


def test_a_file_that_another_process_has_replaced_since_it_was_listed_is_read_as_it_is():
    fsspec.register_implementation("listing", ListingFileSystem, clobber=True)
    place = f"{secrets.token_hex(4)}/run"
    ours, others = gcodec.sync.VersionFolder(f"listing://{place}"), gcodec.sync.VersionFolder(f"memory://{place}")
    publisher, subscriber = gcodec.sync.Publisher(), gcodec.sync.Subscriber(like="numpy")
    for step in range(3):
        others.send(publisher.publish(state_of(step) | {"step": np.array(step)}))
        assert subscriber.catch_up(ours) == 1 and subscriber.tensors["step"] == step
        fsspec.filesystem("listing").ls(f"/{place}")


def test_what_another_process_has_put_or_replaced_since_it_was_listed_is_loaded_and_compressed_as_it_is(tmp_path):
    fsspec.register_implementation("listing", ListingFileSystem, clobber=True)
    place, ours = secrets.token_hex(4), fsspec.filesystem("listing")
    for size in (5, 5000, 70):
        gcodec.save({"w": np.arange(float(size))}, f"memory://{place}/all/w.gc")
        assert gcodec.load(f"listing://{place}/all/w.gc")["w"].size == size
        ours.ls(f"/{place}/all")
    for size in (5, 5000, 70):
        memory().pipe_file(f"memory://{place}/in/{size}.txt", bytes(size))
        memory().pipe_file(f"memory://{place}/in/same.txt", bytes(size))
        run("compress", f"listing://{place}/in", "-o", str(tmp_path / f"{size}.gc"))
        run("decompress", str(tmp_path / f"{size}.gc"), "-o", f"{tmp_path}/{size}/")
        for name in (f"{size}.txt", "same.txt"):
            assert (tmp_path / f"{size}/in/{name}").read_bytes() == bytes(size)
        ours.ls(f"/{place}/in")


def test_a_series_on_the_command_line_takes_urls_of_folder_files_and_outputs(url, folder, capsys):
    for step in (1, 2, 3):
        np.save(f"step-{step}.npy", state_of(step)["weights"])
    memory().pipe_file(f"{url}/in/step-3.npy", Path("step-3.npy").read_bytes())
    run("series", "add", f"{url}/all", "step-1.npy", "step-2.npy", f"{url}/in/step-3.npy")
    run("series", "list", f"{url}/all")
    assert f"{url}/all: 3 steps" in capsys.readouterr().out
    run("series", "verify", f"{url}/all")
    run("series", "restore", f"{url}/all", "1", "3", "-o", f"{url}/out/")
    run("series", "restore", f"{url}/all", "2", "-o", f"{url}/two.npy")
    run("series", "restore", f"{url}/all", "2", "-o", "two.npy")
    for name, step in (("out/step-1.npy", 1), ("out/step-3.npy", 3), ("two.npy", 2)):
        assert memory().cat_file(f"{url}/{name}") == Path(f"step-{step}.npy").read_bytes()
    assert Path("two.npy").read_bytes() == Path("step-2.npy").read_bytes()
    run("series", "delete", f"{url}/all", "1")
    run("series", "verify", f"{url}/all")
    run("series", "prune", f"{url}/all", "--keep-last", "1")
    assert StepFolder(f"{url}/all").steps() == [3]


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("list {url}/none", 1, "{url}/none: no such folder"),
        ("add {url}/all {url}/step-7.npy", 1, "{url}/step-7.npy"),
        ("add {url}/all {url}/step-1.npy --rm", 2, "--rm needs files on this machine"),
        ("restore {url}/all 1 -o {url}/step-1.npy", 1, "{url}/step-1.npy: exists already"),
        ("restore {url}/all 1 -o {url}/all/step-00000001.gc -f", 2, "is the name of a step in this series"),
        ("restore {url}/all 9", 1, "{url}/all: has no step 9; the only step there is 1"),
    ],
)
def test_a_series_says_what_is_wrong_with_a_url(url, folder, capsys, command, code, message):
    np.save("step-1.npy", state_of(1)["weights"])
    memory().pipe_file(f"{url}/step-1.npy", Path("step-1.npy").read_bytes())
    run("series", "add", f"{url}/all", "step-1.npy")
    run("series", *command.format(url=url).split(), code=code)
    assert message.format(url=url) in capsys.readouterr().err
