"""Tensors out of archives one by one: names and types without reading, slices that read no more than they need."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import signal
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, arrays, lazy_file, load_file, structure, structure_places
from gcodec.archive.structure import STRUCTURE, flatten
from gcodec.archive.structure_places import tensor_places
from gcodec.cli import main
from gcodec.errors import Corruption, InvalidArgument, LimitExceeded, Unsupported, WrongKind
from gcodec.files.file_plan import TensorView
from gcodec.files.safetensors import CODES
from tests.archive.test_archive import archive_of
from tests.archive.test_files import npz
from tests.support.archive_maker import object_archive
from tests.support.children import forked

torch = pytest.importorskip("torch")

MATRIX = np.random.default_rng(0).standard_normal((300, 70)).astype(np.float32)
TENSORS = {
    "matrix": MATRIX,
    "cube": MATRIX[:12].reshape(4, 6, 35),
    "vector": MATRIX[0],
    "ids": np.arange(50),
    "one": np.float64(3),
    "none": np.empty((0, 5), np.float16),
    "mask": MATRIX > 0,
}
KEYS: list[Any] = [
    0,
    5,
    -1,
    slice(2, 9),
    slice(None),
    slice(-3, None),
    slice(1, 40, 7),
    slice(9, 2),
    slice(1000, 2000),
    ...,
    (..., 3),
    (0, 1000),
    (slice(2), -1000),
    (..., 1000),
    (slice(3, 5), slice(1, 4)),
    (2, slice(None, None, 2)),
    (slice(0, 4), 1),
    (-2, 3),
    np.int64(1),
    (),
]


@pytest.fixture(params=["dictionary", "object", "file"], scope="module")
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive of the tensors, of whatever origin, in small parts."""
    folder = tmp_path_factory.mktemp("lazy")
    if request.param == "dictionary":
        gcodec.save_file(TENSORS, folder / "x.gc")
    elif request.param == "object":
        gcodec.save({name: np.asarray(value) for name, value in TENSORS.items()}, folder / "x.gc")
    else:
        np.savez(folder / "x.npz", **TENSORS)
        main(["compress", "-q", str(folder / "x.npz"), "-o", str(folder / "x.gc")])
    return folder / "x.gc"


def test_names_types_and_shapes_are_those_that_were_saved(path):
    with gcodec.open(path) as file:
        assert file.offset_keys() == file.keys()
        assert set(file.keys()) == set(file) == set(TENSORS) and len(file) == len(TENSORS)
        for name, value in TENSORS.items():
            assert name in file and file.shape(name) == np.shape(value)
            assert file.dtype(name) == str(np.asarray(value).dtype)
        assert "nothing" not in file and 3 not in file and STRUCTURE not in file
    for call in (lambda: file.get_tensor("ids"), lambda: file.get_slice("ids")[0], file.metadata):
        with pytest.raises(InvalidArgument, match="closed"):
            call()


@pytest.mark.parametrize("framework", ["np", "pt"])
def test_tensors_and_slices_are_those_of_the_array(path, framework):
    with gcodec.open(path, framework) as file:
        for name, value in TENSORS.items():
            expected = np.asarray(value)
            whole = file.get_tensor(name)
            assert isinstance(whole, torch.Tensor if framework == "pt" else np.ndarray)
            assert np.array_equal(np.asarray(whole), expected) and np.array_equal(np.asarray(file[name]), expected)
            part = file.get_slice(name)
            assert part.get_shape() == list(expected.shape) and part.get_dtype() == CODES[str(expected.dtype)]
            for key in KEYS:
                try:
                    wanted = expected[key]
                except IndexError:
                    with pytest.raises(InvalidArgument):
                        part[key]
                else:
                    found = np.asarray(part[key])
                    assert np.array_equal(found, wanted) and found.shape == wanted.shape, (name, key)


@pytest.mark.parametrize(
    "key",
    [
        None,
        "0",
        1.0,
        True,
        [1, 2],
        (..., ...),
        slice(None, None, -1),
        np.array([True]),
        slice("1"),
        slice(1.5, 3),
        (0, slice(None, "2")),
        slice(np.array([1, 2])),
        slice(None, None, np.array([1, 2])),
        slice(np.array(1.5)),
    ],
)
def test_other_indices_are_refused(path, key):
    with gcodec.open(path) as file, pytest.raises(InvalidArgument, match="must be"):
        file.get_slice("matrix")[key]


@pytest.mark.parametrize("use", [list, np.asarray, np.float32, lambda part: np.add(part, 1)])
def test_a_slice_that_was_not_read_is_no_array(path, use):
    with gcodec.open(path) as file, pytest.raises(InvalidArgument, match=r"get_slice\('matrix'\)\[10:20\] reads rows"):
        use(file.get_slice("matrix"))


def test_a_slice_reads_only_the_parts_that_hold_it(tmp_path, monkeypatch):
    stream = io.BytesIO()
    plan = gcodec.archive.dicts.plan_tensors({"matrix": MATRIX})
    with ArchiveWriter(stream, part_bytes=6400) as archive:
        archive.add(plan)
    stream.seek(0)
    unpacked: list[Any] = []
    original = ArchiveReader._unpacked

    def noted(self: ArchiveReader, item: Any) -> Any:
        unpacked.append(item)
        return original(self, item)

    monkeypatch.setattr(ArchiveReader, "_unpacked", noted)
    with gcodec.open(stream) as file:
        assert file.shape("matrix") == (300, 70) and not unpacked
        assert np.array_equal(file.get_slice("matrix")[100:102], MATRIX[100:102])
        assert 1 <= len(unpacked) <= 2
        unpacked.clear()
        monkeypatch.setattr(lazy_file, "PART_BYTES", 6400)
        for framework in ("np", "pt"):
            file = gcodec.open(stream, framework)
            for key in (slice(7, None, 100), (slice(7, None, 100), slice(1, 3)), (slice(250, None, 100), 2)):
                assert np.array_equal(file.get_slice("matrix")[key], MATRIX[key])
        assert len(unpacked) <= 2 * (3 + 3 + 1)
        with gcodec.open(stream, max_output_bytes=700) as limited:
            assert np.array_equal(limited.get_slice("matrix")[::200], MATRIX[::200])
            with pytest.raises(LimitExceeded, match="matrix: 840 bytes are above"):
                limited.get_slice("matrix")[::100]
        with pytest.raises(LimitExceeded), gcodec.open(stream, max_output_bytes=400) as limited:
            assert np.array_equal(limited.get_slice("matrix")[5], MATRIX[5])
            limited.get_slice("matrix")[5:7]


@pytest.mark.parametrize("threads", [1, 3])
def test_slices_of_many_parts_are_unpacked_by_all_threads_into_one_piece_of_memory(threads):
    stream = io.BytesIO()
    with ArchiveWriter(stream, part_bytes=6400) as archive:
        archive.add(gcodec.archive.dicts.plan_tensors({"matrix": MATRIX, "bits": MATRIX.view(np.uint32)}))
    stream.seek(0)
    with gcodec.open(stream, threads=threads) as file:
        for name, values in (("matrix", MATRIX), ("bits", MATRIX.view(np.uint32))):
            for start, stop in ((0, 299), (1, 300), (5, 290), (22, 23), (20, 70), (7, 7)):
                found = file.get_slice(name)[start:stop]
                assert np.array_equal(found, values[start:stop]) and found.flags.writeable


def test_a_slice_takes_hardly_more_memory_than_what_it_returns():
    stream, values = io.BytesIO(), np.tile(MATRIX, (60, 1))
    with ArchiveWriter(stream, part_bytes=1 << 16) as archive:
        archive.add(gcodec.archive.dicts.plan_tensors({"values": values}))
    stream.seek(0)
    with gcodec.open(stream, threads=1) as file:
        file.get_slice("values")[1:2]  # loads kernels
        tracemalloc.start()
        found = file.get_slice("values")[1:]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert np.array_equal(found, values[1:]) and peak < 1.5 * found.nbytes


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize(
    "key",
    [
        np.s_[:, 3:5],
        np.s_[:, 3],
        np.s_[10:200:7],
        np.s_[4, 2:6],
        np.s_[4, 2],
        np.s_[..., :1],
    ],
)
def test_a_slice_keeps_no_more_memory_than_what_it_returns(key, framework, tmp_path):
    torch = pytest.importorskip("torch")
    gcodec.save({"rows": MATRIX, "columns": torch.from_numpy(MATRIX.T.copy()).T}, tmp_path / "x.gc")
    with gcodec.open(tmp_path / "x.gc", framework) as file:
        for name in ("rows", "columns"):
            found, expected = file.get_slice(name)[key], MATRIX[key]
            assert np.array_equal(np.asarray(found), expected)
            if framework == "pt":
                assert found.untyped_storage().nbytes() == expected.nbytes
            elif isinstance(found, np.ndarray):
                assert (found if found.base is None else found.base).nbytes == expected.nbytes


def test_tensors_with_strides_and_ties_of_a_pt_file_are_those_that_were_saved(tmp_path):
    base = torch.randn(40, 30)
    state = {"w": base, "tied": base, "t": base.t(), "row": base[7], "half": base[:, ::2], "b": base.bfloat16()}
    torch.save(state, tmp_path / "x.pt")
    main(["compress", "-q", str(tmp_path / "x.pt")])
    gcodec.save(state, tmp_path / "y.gc")
    for name in ("x.pt.gc", "y.gc"):
        with gcodec.open(tmp_path / name) as file:
            assert set(file) == set(state)
            for key, value in state.items():
                assert file.get_tensor(key).equal(value) and file.get_tensor(key).dtype == value.dtype
                assert file.get_slice(key)[3:9].equal(value[3:9])
                if value.ndim == 2:
                    assert file.get_slice(key)[-2, 1:5].equal(value[-2, 1:5])


def test_names_of_several_files_and_objects_of_several_depths(tmp_path):
    for name in ("a", "b"):
        gcodec.save_file({"x": MATRIX[: len(name)], name: MATRIX[0]}, tmp_path / f"{name}.gc")
        (tmp_path / name).mkdir()
        main(["decompress", "-q", str(tmp_path / f"{name}.gc"), "-o", str(tmp_path / name / "t.safetensors")])
    main(["compress", "-q", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "ab.gc")])
    with gcodec.open(tmp_path / "ab.gc") as file:
        assert set(file) == {f"{name}/t.safetensors:{key}" for name in "ab" for key in ("x", name)}
        assert np.array_equal(file["b"], MATRIX[0]) and np.array_equal(file["a/t.safetensors:x"], MATRIX[:1])
        for name in ("x", "c"):
            with pytest.raises(InvalidArgument, match=r"called 'x'; say which|no tensor is called 'c'"):
                file.get_tensor(name)
    nested = {"a/b": np.ones(1), "a": {"b": np.ones(2), 0: [np.ones(3), (np.ones(4),)]}}
    gcodec.save(nested, tmp_path / "n.gc")
    with gcodec.open(tmp_path / "n.gc") as file:
        assert {name: file.shape(name) for name in file} == {"a/b": (1,), "a/b#2": (2,), "a/0/0": (3,), "a/0/1/0": (4,)}


def test_patterns_choose_tensors(path):
    found = gcodec.load_file(path, names=["m*", "ids", "[vx]ector"])
    assert set(found) == {"matrix", "mask", "ids", "vector"}
    assert set(gcodec.load_file(path, names="m*")) == {"matrix", "mask"}
    with pytest.raises(InvalidArgument, match=r"no tensor matches 'q\*'"):
        gcodec.load_file(path, names=["q*"])
    gcodec.save_file({"a[0]": MATRIX, "a0": MATRIX[0]}, path.parent / "brackets.gc")
    assert set(gcodec.load_file(path.parent / "brackets.gc", names=["a[0]"])) == {"a[0]"}


@pytest.mark.parametrize("protocol", ["memory", "file"])
def test_streams_of_fsspec_are_read_and_written(tmp_path, protocol):
    fsspec = pytest.importorskip("fsspec")
    place = f"{protocol}://{tmp_path}/x.gc"
    with fsspec.open(place, "wb") as file:
        gcodec.save({"matrix": MATRIX}, file)
    with fsspec.open(place, "rb") as file:
        assert np.array_equal(gcodec.load_file(file)["matrix"], MATRIX)
    with fsspec.open(place, "rb") as file, gcodec.open(file) as opened:
        assert np.array_equal(opened.get_slice("matrix")[7:9], MATRIX[7:9])
    with fsspec.open(place, "rb") as file:
        assert np.array_equal(gcodec.load(file)["matrix"], MATRIX)


def test_files_come_as_what_holds_their_types(tmp_path, monkeypatch):
    from safetensors.torch import save_file as save_safetensors

    save_safetensors({"b": torch.ones(3).bfloat16(), "n": torch.arange(3)}, tmp_path / "b.safetensors")
    save_safetensors({"f": torch.ones(3)}, tmp_path / "f.safetensors")
    torch.save({"f": torch.ones(3)}, tmp_path / "f.pt")
    kinds = {"b.safetensors": torch.Tensor, "f.safetensors": np.ndarray, "f.pt": torch.Tensor}
    for name, kind in kinds.items():
        main(["compress", "-q", str(tmp_path / name)])
        assert all(type(value) is kind for value in gcodec.load_file(tmp_path / f"{name}.gc").values())
        with gcodec.open(tmp_path / f"{name}.gc", "np") as file:
            assert all(isinstance(file[key], np.ndarray) for key in file)
    assert gcodec.load_file(tmp_path / "b.safetensors.gc")["b"].dtype == torch.bfloat16
    monkeypatch.setattr(arrays, "_has_torch", lambda: False)
    assert all(type(value) is np.ndarray for value in gcodec.load_file(tmp_path / "b.safetensors.gc").values())


def test_ties_of_dictionaries_are_kept(tmp_path):
    from safetensors.torch import load_file as load_safetensors

    weight, array = torch.randn(500, 20), MATRIX.copy()
    for name, state in {
        "t": {"in": weight, "out": weight, "other": weight.clone(), "row": weight[3]},
        "n": {"in": array, "out": array, "view": array.view(), "other": array.T},
    }.items():
        gcodec.save_file(state, tmp_path / f"{name}.gc")
        found = gcodec.load_file(tmp_path / f"{name}.gc")
        assert set(found) == set(state)
        assert all(np.array_equal(np.asarray(found[key]), np.asarray(value)) for key, value in state.items())
        found["in"][0, 0] = 7
        assert found["out"][0, 0] == 7 and found["other"][0, 0] != 7
        with gcodec.open(tmp_path / f"{name}.gc") as file:
            assert file.metadata()["out"] == "in"
    assert (tmp_path / "t.gc").stat().st_size < 2.2 * 0.95 * weight.nbytes
    main(["decompress", "-q", str(tmp_path / "t.gc"), "-o", str(tmp_path / "t.safetensors")])
    assert set(load_safetensors(tmp_path / "t.safetensors")) == {"in", "other", "row"}


def test_levels_and_types_of_their_own_untie():
    bits = np.arange(4000, dtype=np.uint16)
    values = np.linspace(1, 2, 4000, dtype=np.float32)
    cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"a": values, "b": values}, {"levels": {"a": np.full(4000, 3, np.uint8)}}),
        ({"a": bits, "b": bits}, {"dtype": {"a": "bfloat16"}}),
    ]
    for state, options in cases:
        stream = io.BytesIO()
        gcodec.save_file(state, stream, **options)
        stream.seek(0)
        found = gcodec.load_file(stream, like="numpy")
        assert np.array_equal(found["b"], state["b"]) and not np.may_share_memory(found["a"], found["b"])


def test_frameworks_and_archives_are_checked(tmp_path):
    (tmp_path / "x.gc").write_bytes(b"nothing of the kind" * 10)
    with pytest.raises(WrongKind, match="not a gcodec archive"):
        gcodec.open(tmp_path / "x.gc")
    with pytest.raises(InvalidArgument, match="framework"):
        gcodec.open(tmp_path / "x.gc", "jax")
    with pytest.raises(FileNotFoundError):
        gcodec.open(tmp_path / "y.gc")
    for wrong in ("1 MB", float("nan")):
        with pytest.raises(InvalidArgument, match="max_output_bytes must be None or a number of bytes"):
            gcodec.open(tmp_path / "x.gc", max_output_bytes=wrong)  # type: ignore[arg-type]
    gcodec.save({"w": MATRIX}, tmp_path / "old.gc")
    gcodec.save({"w": MATRIX * np.float32(1.000001)}, tmp_path / "new.gc", base=tmp_path / "old.gc")
    with gcodec.open(tmp_path / "new.gc", base=tmp_path / "old.gc") as file:
        with pytest.raises(InvalidArgument, match="name must be a string, not 3"):
            file.get_tensor(3)  # type: ignore[arg-type]
        assert np.array_equal(file.get_slice("w")[:5], MATRIX[:5] * np.float32(1.000001))
    with gcodec.open(tmp_path / "new.gc") as file, pytest.raises(Unsupported, match="base"):
        file.get_tensor("w")


@pytest.mark.parametrize(
    "node",
    [
        {"torch": "x", "view": [[6], [1], 5]},
        {"torch": "x", "view": [[2], [1], 0], "complex": "complex128"},
        {"torch": "d", "view": [[9], [1], 0], "complex": "complex128"},
        {"torch": "strided", "view": [[1], [1], 0]},
        {"torch": "moved", "view": [[1], [1], 0]},
        {"torch": "nothing"},
        {"torch": "x", "complex": "float32"},
    ],
)
def test_places_beyond_what_is_stored_are_refused(node):
    stored = {
        "x": TensorView("x", "float32", (10,), 0),
        "strided": TensorView("s", "float32", (100,), 0, 0, (0,)),
        "moved": TensorView("m", "float32", (5,), 0, 5),
        "d": TensorView("d", "float64", (4, 2), 1),
    }
    with pytest.raises(Corruption, match="malformed"):
        tensor_places(json.dumps({"version": 1, "state": [node]}).encode(), stored)


def places_named(state: Any) -> list[str]:
    """Return the names of the tensors of a state that has one stored tensor, x."""
    stored = {"x": TensorView("x", "float32", (10,), 0)}
    return [place.view.name for place in tensor_places(json.dumps({"version": 1, "state": state}).encode(), stored)]


def test_ties_get_the_lowest_free_number():
    x = {"numpy": "x"}
    assert places_named([x, x, {"dict": ["a/b", x, "a/b#3", x, "a", {"dict": ["b", x]}, "a/b#2", x]}]) == [
        "x",
        "1",
        "2/a/b",
        "2/a/b#3",
        "2/a/b#2",
        "2/a/b#2#2",
    ]
    same = {"dict": ["a/b/c", x, "a/b", {"dict": ["c", x]}, "a", {"dict": ["b/c", x, "b/c#2", x]}]}
    assert places_named([x, same]) == ["x", "1/a/b/c", "1/a/b/c#2", "1/a/b/c#3", "1/a/b/c#2#2"]
    flat = flatten({"a/b/c": np.ones(1), "a/b": {"c": np.ones(1)}, "a": {"b/c": np.ones(1), "b/c#2": np.ones(1)}})
    assert list(flat.leaves) == ["a/b/c", "a/b/c#2", "a/b/c#3", "a/b/c#2#2"]


def all_ways(n_parts: int) -> Any:
    """Return dictionaries in which a/a/.../a is cut into keys in every way: as many tensors of one path."""
    items: list[Any] = ["/".join("a" * n_parts), {"numpy": "x"}]
    for first in range(1, n_parts):
        items += ["/".join("a" * first), all_ways(n_parts - first)]
    return {"dict": items}


def test_tensors_of_one_path_are_named_in_one_pass():
    """Each tensor began to count at 2 again: an archive of a kilobyte took minutes."""

    class Reserved(dict[str, TensorView]):
        n_lookups = 0

        def __contains__(self, name: object) -> bool:
            self.n_lookups += 1
            return super().__contains__(name)

    path, view = "/".join("a" * 12), TensorView("x", "float32", (10,), 0)
    stored = Reserved({"x": view, **{f"{path}#{number}": view for number in range(2, 1000)}})
    places = tensor_places(json.dumps({"version": 1, "state": all_ways(12)}).encode(), stored)
    assert [place.view.name for place in places][:3] == ["x", path, f"{path}#1000"] and len(places) == 2048
    assert places[-1].view.name == f"{path}#3045" and stored.n_lookups < 5000


@pytest.mark.parametrize(("path", "n_leaves"), [("a" * 50_000, 300), ("a", 20_000)])
def test_names_made_for_ties_are_bounded(path, n_leaves, monkeypatch):
    """A long path was in the name of every tensor below it, all of it."""
    stored = {"x": TensorView("x", "float32", (10,), 0)}
    monkeypatch.setattr(structure_places, "MAX_MADE_NAMES", 1 << 20)
    texts = [
        json.dumps({"version": 1, "state": {"dict": [path, [{"numpy": "x"}] * n]}}).encode() for n in (200, n_leaves)
    ]
    assert max(len(place.view.name) for place in tensor_places(texts[0], stored)) <= structure.MAX_NAME + 5
    with pytest.raises(LimitExceeded, match=r"gcodec\.load reads the state"):
        tensor_places(texts[1], stored)


def test_texts_with_code_points_beyond_unicode_are_damage():
    data = object_archive({"numpy": "x"}, b"\xff" * 8, "<U1", 4)
    with gcodec.open(io.BytesIO(data)) as file, pytest.raises(Corruption, match="tensor 'x': no value of type <U1"):
        file.get_slice("x")[0]
    with pytest.raises(Corruption, match="tensor 'x': no value of type <U1"):
        gcodec.load(io.BytesIO(object_archive({"scalar": "x"}, b"\xff" * 4, "<U1", 4)))
    sound = object_archive({"numpy": "x"}, "gc".encode("utf-32-le"), "<U1", 4)
    with gcodec.open(io.BytesIO(sound)) as file:
        assert file.get_slice("x")[1] == "c"


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda use: use.__name__)
def test_an_open_archive_says_why_no_other_process_gets_it(path, use):
    with gcodec.open(path) as file, pytest.raises(InvalidArgument, match="opened by its path in each process"):
        use(file)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_an_open_archive_is_read_in_forked_processes_too(tmp_path):
    """As by the workers of a DataLoader, whose data set has read something before they begin."""
    large = np.random.default_rng(0).standard_normal((3 << 20) + 5).astype(np.float32)
    gcodec.save_file({"large": large, "small": MATRIX}, tmp_path / "x.gc")
    with gcodec.open(tmp_path / "x.gc", threads=2) as file:
        assert np.array_equal(file.get_tensor("large"), large)  # its threads are there

        def worker() -> int:
            signal.alarm(60)  # a read that waits for the parent's threads would never end
            for _ in range(2):
                assert np.array_equal(file.get_tensor("large"), large)
                assert np.array_equal(file.get_slice("small")[7:9], MATRIX[7:9])
            file.close()
            return 0

        for child in [forked(worker) for _ in range(3)]:
            assert child.wait() == (0, "")
        assert np.array_equal(file.get_tensor("large"), large)


@pytest.mark.parametrize("n_rows", [1_000, 40_000], ids=["one chunk", "several chunks"])
def test_rows_of_compressed_parts_are_those_that_were_saved_or_an_error(n_rows):
    table = np.random.default_rng(1).integers(0, 50, (n_rows, 64), np.int32)
    stream = io.BytesIO()
    gcodec.save_file({"table": table}, stream)
    whole = stream.getvalue()
    damaged, n_refused = range(1000, len(whole) // 3, len(whole) // 300), 0
    for place in damaged:
        data = bytearray(whole)
        data[place] ^= 1
        with gcodec.open(io.BytesIO(data), framework="np") as file:
            try:
                assert np.array_equal(file.get_slice("table")[10:-10], table[10:-10])
            except Corruption:
                n_refused += 1
    assert n_refused > len(damaged) // 2


@pytest.mark.parametrize(
    "pattern, names",
    {
        "model.*": {"run/model.npz:model.w", "run/model.npz:model.b"},  # not the others of model.npz
        "model.npz:*": {"run/model.npz:model.w", "run/model.npz:model.b", "run/model.npz:head"},
        "run/mo*": {"run/model.npz:model.w", "run/model.npz:model.b", "run/model.npz:head"},
        "other.npz:h*": {"run/other.npz:head"},
        "other.npz:head": {"run/other.npz:head"},
        "*": {"run/model.npz:model.w", "run/model.npz:model.b", "run/model.npz:head", "run/other.npz:head"},
    }.items(),
)
def test_a_pattern_means_names_of_tensors_and_of_files_where_no_tensor_is_called_so(pattern, names):
    x = np.arange(3)
    model = npz({"model.w": x, "model.b": x, "head": x})
    data = archive_of({"run/model.npz": model, "run/other.npz": npz({"head": x})})
    assert load_file(io.BytesIO(data), names=[pattern]).keys() == names
