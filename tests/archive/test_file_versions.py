"""Files of one archive that are versions of each other: they are stored as differences, and come back."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.layout import MAX_VERSIONS
from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported
from tests.archive.test_damaged_archives import index_of, with_index
from tests.support import commands

folder = commands.folder
RNG = np.random.default_rng(0)
BACKBONE = RNG.standard_normal((300, 200)).astype(np.float32)


def version(step: int, *, seed: int = 0, moving: bool = True) -> dict[str, Any]:
    """Return weights after some steps of a training: most of a tensor stays as it was."""
    rng = np.random.default_rng(seed)
    weights = {f"layers.{n}.weight": rng.standard_normal((200, 150 + n)).astype(np.float32) for n in range(2)}
    weights |= {f"layers.{n}.bias": rng.standard_normal(30 + n).astype(np.float32) for n in range(4)}
    for each in weights.values():
        for passed in range(step if moving else 0):
            at = np.random.default_rng([seed, passed]).random(each.shape) < 0.02
            each[at] *= np.float32(1.01)
    return weights


def save(path: str, tensors: dict[str, Any]) -> None:
    """Write a file of tensors, in a folder that need not be there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


def compressed(**options: Any) -> Any:
    """Compress the folder "run", and check that it comes back, and return what the archive has."""
    result = gcodec.compress_file("run", "x.gc", force=True, **options)
    assert result.path == Path("x.gc") and result.exact and not result.needs_base
    gcodec.decompress_file("x.gc", "back/", force=True)
    files = [file for file in Path("run").rglob("*") if file.is_file()]
    assert files and result.input_bytes == sum(file.stat().st_size for file in files)
    assert all(Path("back", file).read_bytes() == file.read_bytes() for file in files)
    with ArchiveReader("x.gc") as archive:
        return archive.files


def versions_in(files: Any) -> dict[str, set[str]]:
    """Return for each file the paths of those that its segments are versions of."""
    return {
        entry.path: {files[segment.version_of[0]].path for segment in entry.segments if segment.version_of}
        for entry in files
    }


def test_each_is_stored_against_the_one_before_however_their_names_are_ordered():
    for step in (8, 9, 10, 11):
        save(f"run/step-{step}.safetensors", version(step))
    plain = gcodec.compress_file("run", "plain.gc")
    files = compressed(auto_base=True)
    names = [f"run/step-{step}.safetensors" for step in (8, 9, 10, 11)]
    assert versions_in(files) == {names[0]: set()} | {after: {before} for before, after in pairwise(names)}
    assert 2.5 * Path("x.gc").stat().st_size < plain.archive_bytes
    assert all(not versions for versions in versions_in(compressed()).values())


def test_parts_are_read_alone():
    for step in (1, 2, 3):
        save(f"run/{step}.safetensors", version(step))
    compressed(auto_base=True)
    last = version(3)
    with gcodec.open("x.gc") as file:
        assert np.array_equal(file.get_tensor("run/3.safetensors:layers.1.weight"), last["layers.1.weight"])
        assert np.array_equal(file.get_slice("run/3.safetensors:layers.0.weight")[7:30], last["layers.0.weight"][7:30])
    found = gcodec.load_file("x.gc", names=["run/3.safetensors:*"])
    assert {name.split(":")[-1] for name in found} == last.keys()


def test_no_chain_is_longer_than_readers_take():
    for step in range(2 * MAX_VERSIONS + 4):
        save(f"run/{step}.safetensors", version(step))
    files, depths = compressed(auto_base=True), dict[tuple[int, int], int]()
    for number, entry in enumerate(files):
        for at, segment in enumerate(entry.segments):
            depths[number, at] = 1 + depths[segment.version_of] if segment.version_of else 0
    assert max(depths.values()) == MAX_VERSIONS
    assert all(versions for versions in list(versions_in(files).values())[1:])


def test_what_did_not_change_is_stored_once_and_the_rest_as_differences():
    for step in (1, 2, 3):
        save(f"run/{step}.safetensors", {"backbone": BACKBONE, **version(step)})
    last = compressed(auto_base=True)[-1]
    kinds = {view.name: last.segments[view.segment] for view in last.tensors}
    assert kinds["backbone"].same == (0, kinds["backbone"].same[1])
    assert kinds["layers.0.weight"].version_of is not None


def test_kinds_of_files_and_files_that_grew_find_their_own():
    for step in (1, 2, 3):
        save(f"run/checkpoint-{step}/model.safetensors", version(step))
        save(f"run/checkpoint-{step}/ema.safetensors", {"ema": version(step, seed=1)["layers.0.weight"]})
    grown = version(4) | {"new": np.ones((10, 10), np.float32)}
    save("run/checkpoint-4/model.safetensors", grown)
    Path("run/notes.txt").write_text("no tensors")
    found = versions_in(compressed(auto_base=True))
    for step in (2, 3):
        for name in ("model", "ema"):
            paths = [f"run/checkpoint-{n}/{name}.safetensors" for n in (step, step - 1)]
            assert found[paths[0]] == {paths[1]}
    assert found["run/checkpoint-4/model.safetensors"] == {"run/checkpoint-3/model.safetensors"}


def test_files_of_the_same_shapes_that_are_no_versions_are_stored_whole():
    for seed in range(3):
        save(f"run/{seed}.safetensors", version(0, seed=seed))
    assert not any(versions_in(compressed(auto_base=True)).values())


def test_masters_are_differences_and_weights_are_casts_of_them():
    torch = pytest.importorskip("torch")
    Path("run").mkdir()
    for step in (1, 2, 3):
        masters = {name: torch.from_numpy(value) for name, value in version(step).items() if value.ndim == 2}
        weights = {name: value.bfloat16() for name, value in masters.items()}
        torch.save({"model": weights, "masters": masters}, f"run/{step}.pt")
    last = compressed(auto_base=True)[-1]
    assert {view.name for view in last.tensors if last.segments[view.segment].version_of} >= {"masters/layers.0.weight"}
    assert {view.name for view in last.tensors if last.segments[view.segment].cast} >= {"model/layers.0.weight"}


def test_such_an_archive_is_a_base_and_a_source_as_others_are():
    for step in (1, 2):
        save(f"run/{step}.safetensors", version(step))
    compressed(auto_base=True)
    save("next/2.safetensors", version(3))
    result = gcodec.compress_file("next", base="x.gc")
    assert result.needs_base and 3 * result.archive_bytes < result.input_bytes
    gcodec.decompress_file("next.gc", "there/", base="x.gc")
    assert Path("there/next/2.safetensors").read_bytes() == Path("next/2.safetensors").read_bytes()


def test_a_file_that_changes_meanwhile_is_an_error_and_leaves_no_archive():
    for step in (1, 2, 3):
        save(f"run/{step}.safetensors", version(step))
    done = 0

    def progress(n_bytes: int) -> None:
        nonlocal done
        done += n_bytes
        if done >= 2 * Path("run/2.safetensors").stat().st_size - 100_000:
            save("run/1.safetensors", version(5))
            save("run/2.safetensors", version(6))

    with pytest.raises(GcodecError, match="while other files were compressed against it") as caught:
        gcodec.compress_file("run", "x.gc", auto_base=True, progress=progress)
    assert not isinstance(caught.value, Corruption) and not Path("x.gc").exists()


@pytest.mark.parametrize(
    ("path", "options"),
    [("run/1.safetensors", {}), ("run", {"base": "run"}), ("run", {"mantissa_bits": 7})],
    ids=["a file", "a base", "a lossy mode"],
)
def test_auto_base_is_refused_where_it_means_nothing(path, options):
    save("run/1.safetensors", version(1))
    with pytest.raises(InvalidArgument, match="auto_base"):
        gcodec.compress_file(path, "x.gc", auto_base=True, **options)


def test_folders_are_packed_as_the_command_line_packs_them():
    for step in (1, 2):
        save(f"run/{step}/model.safetensors", version(step))
    Path("run/empty").mkdir()
    result = gcodec.compress_file("run")
    assert result.path == Path("run.gc").resolve() and len(result.skipped) == 1 and "empty" in result.skipped[0]
    commands.run("compress", "run", "-o", "other.gc", code=1)
    assert Path("run.gc").read_bytes() == Path("other.gc").read_bytes()
    gcodec.compress_file("run", "run/inside.gc")
    before = Path("run/inside.gc").read_bytes()
    gcodec.compress_file("run", "run/inside.gc", force=True)
    assert Path("run/inside.gc").read_bytes() == before
    with pytest.raises(InvalidArgument, match="is in a folder to be archived, and would be replaced"):
        gcodec.compress_file("run", Path("run/1/model.safetensors").rename("run/1/model.gc"), force=True)
    Path("nothing").mkdir()
    with pytest.raises(GcodecError, match="nothing: no files in this folder"):
        gcodec.compress_file("nothing")
    with pytest.raises(InvalidArgument, match="dtype is for a file"):
        gcodec.compress_file("run", "y.gc", dtype="float32")


def test_versions_of_no_segment_that_they_may_be_of_are_refused():
    for step in (1, 2):
        save(f"run/{step}.safetensors", {"a": version(step)["layers.0.weight"], "b": version(step)["layers.1.weight"]})
    compressed(auto_base=True)
    head, index = index_of(Path("x.gc").read_bytes())
    segments = index["files"][1]["segments"]
    number, other = (n for n, segment in enumerate(segments) if "version_of" in segment)
    first, of = segments[number]["version_of"]

    def refused(why: str, kind: type[GcodecError] = Corruption, **changes: Any) -> None:
        changed = json.loads(json.dumps(index))
        segment = changed["files"][1]["segments"][number]
        segment.update(changes)
        changed["files"][1]["segments"][number] = {key: value for key, value in segment.items() if value is not None}
        Path("bad.gc").write_bytes(with_index(head, changed))
        with pytest.raises(kind, match=why), ArchiveReader("bad.gc") as archive:
            for entry in archive.files:
                for _ in archive.restored(entry):
                    pass

    own = segments[other]["version_of"][1]
    for place in ([1, number], [1, other], [first, own], [first, 1 << 40], [2, 0], [1 << 60, 0]):
        refused("is no later version of", version_of=place)
    for place in ([], [0], [0, 0, 0]):
        refused("must name a file and a segment", version_of=place)
    refused("one of a base, a cast and an earlier version", base="0" * 16)
    refused("one of a base, a cast and an earlier version", cast=[first, of])
    refused("no chunks", same=[first, of])
    refused("is no later version of", lossy=True)
    refused("base", version_of=None, kind=Unsupported)  # its frame refers to a base, and nothing says to which


def test_damage_of_an_earlier_version_is_called_damage():
    for step in (1, 2):
        save(f"run/{step}.safetensors", version(step))
    files = compressed(auto_base=True)
    segment = next(segment for segment in files[1].segments if segment.version_of)
    of = files[0].segments[segment.version_of[1]]
    data = bytearray(Path("x.gc").read_bytes())
    data[of.offset + of.chunks[0].stored // 2] ^= 0x40
    Path("x.gc").write_bytes(data)
    with pytest.raises(Corruption), ArchiveReader("x.gc") as archive:
        for _ in archive.restored(archive.files[1]):
            pass


def test_why_a_chain_cannot_be_decoded_is_looked_for_once(monkeypatch):
    rng, run = np.random.default_rng(3), [{name: version(0)["layers.0.weight"] + n for n, name in enumerate("ab")}]
    for _ in range(MAX_VERSIONS):
        run.append({name: np.where(rng.random(old.shape) < 0.02, old * 2, old) for name, old in run[-1].items()})
    for step, tensors in enumerate(run):
        save(f"run/{step}.safetensors", tensors)
    compressed(auto_base=True)
    head, index = index_of(Path("x.gc").read_bytes())
    a, b = (segment for segment in index["files"][1]["segments"] if "version_of" in segment)
    a["version_of"], b["version_of"] = b["version_of"], a["version_of"]
    Path("bad.gc").write_bytes(with_index(head, index))
    checked, check = list[Any](), ArchiveReader._check_here

    def noted(self: ArchiveReader, blob: Any) -> None:
        checked.append(blob)
        check(self, blob)

    monkeypatch.setattr(ArchiveReader, "_check_here", noted)
    with pytest.raises(Unsupported, match="base is not the array"), ArchiveReader("bad.gc", threads=1) as archive:
        for _ in archive.restored(archive.files[MAX_VERSIONS]):
            pass
    assert len(checked) == 1
