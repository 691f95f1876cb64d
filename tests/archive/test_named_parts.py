"""Parts of an object by name: what is named comes back, the rest is not decoded; and the arguments of torch.load."""

from __future__ import annotations

import argparse
import fnmatch
import io
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.errors import Corruption, InvalidArgument, LimitExceeded, Unsupported
from tests.support.archive_maker import object_archive


class Part(Enum):
    HEAD = 1


@dataclass
class Pair:
    first: Any
    second: Any


def numbered(n: int) -> Any:
    return torch.full((40_000,), float(n))  # a segment of its own


def state() -> dict[Any, Any]:
    """Return an object with containers of all kinds."""
    shared = numbered(1)
    return {
        "model": OrderedDict({"a.weight": shared, "b.weight": numbered(2), "a.bias": numbered(3)}),
        "tied": [shared, shared[3:9]],
        "optimizer": {"state": {0: {"m": numbered(4)}, 1: {"m": numbered(5)}}, "groups": [{"lr": 0.1}, {"lr": 0.2}]},
        "tuple": (1, numbered(6), "x"),
        "args": argparse.Namespace(lr=0.1, w=numbered(7)),
        "seen": defaultdict(list, a=[1], b=[2]),
        "recent": deque([1, 2], maxlen=3),
        "pair": Pair(numbered(8), {"x": 1}),
        "count": Counter("aab"),
        Part.HEAD: {(1, "a"): 5},
        "w[0]": 7,
        "w0": 8,
    }


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of the object's archive."""
    gcodec.save(state(), tmp_path / "x.gc")
    return tmp_path / "x.gc"


def described(value: Any) -> Any:
    """Return a value with tensors as what fills them."""
    if isinstance(value, torch.Tensor):
        return f"{value[0].item():.0f}"
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(described(item) for item in value)
    return described(vars(value)) if isinstance(value, argparse.Namespace | Pair) else value


CASES: dict[Any, Any] = {
    "model": {"model": {"a.weight": "1", "b.weight": "2", "a.bias": "3"}},
    "model/*.weight": {"model": {"a.weight": "1", "b.weight": "2"}},
    ("model/a.*", "args/lr"): {"model": {"a.weight": "1", "a.bias": "3"}, "args": {"lr": 0.1}},
    "*/m": {"optimizer": {"state": {0: {"m": "4"}, 1: {"m": "5"}}}},
    "optimizer/state/1": {"optimizer": {"state": {1: {"m": "5"}}}},
    "optimizer/groups/1/lr": {"optimizer": {"groups": [None, {"lr": 0.2}]}},
    "tied/1": {"tied": [None, "1"]},
    "tuple/2": {"tuple": (None, None, "x")},
    "seen/b": {"seen": {"b": [2]}},
    "recent/0": {"recent": deque([1, 2], maxlen=3)},
    "pair/second/x": {"pair": {"first": "8", "second": {"x": 1}}},
    "count/a": {"count": {"a": 2}},
    "Part.HEAD": {Part.HEAD: {(1, "a"): 5}},
    "Part.HEAD/(1, 'a')": {Part.HEAD: {(1, "a"): 5}},
    "w[0]": {"w[0]": 7},
    "w?": {"w0": 8},
    "w[0-1]": {"w0": 8},
}


@pytest.mark.parametrize("names", CASES, ids=str)
def test_named_parts_come_with_the_containers_that_they_are_in(names, file):
    found = gcodec.load(file, names=names)
    assert described(found) == CASES[names]
    whole = gcodec.load(file)
    for key, value in found.items():
        assert type(value) is type(whole[key])
        assert getattr(value, "default_factory", None) is getattr(whole[key], "default_factory", None)
    assert described(gcodec.load(file, names=iter([names] if isinstance(names, str) else names))) == CASES[names]


def test_all_is_named_by_a_star(file):
    assert described(gcodec.load(file, names="*")) == described(state())


def test_only_what_is_named_is_decoded(file, monkeypatch):
    read, segments_bytes = list[str](), ArchiveReader.segments_bytes

    def noted(self: ArchiveReader, wanted: Any) -> Any:
        read.extend(view.name for _, view in wanted)
        return segments_bytes(self, wanted)

    monkeypatch.setattr(ArchiveReader, "segments_bytes", noted)
    gcodec.load(file, names=["model/a.bias", "tied/1", "w0"])
    assert sorted(read) == ["__structure__", "model/a.bias", "model/a.weight"]


def test_parts_count_for_the_limit_by_themselves(file):
    limit = 2 * 160_000
    assert described(gcodec.load(file, names=["tied", "tuple"], max_output_bytes=limit))["tied"] == ["1", "1"]
    with pytest.raises(LimitExceeded, match=r"x\.gc: 480000 bytes are above the limit of 320000"):
        gcodec.load(file, names=["model"], max_output_bytes=limit)


def test_classes_of_what_is_not_named_need_not_be_known(tmp_path):
    @dataclass
    class Local:
        x: int

    gcodec.save({"config": Local(1), "w": torch.ones(2)}, tmp_path / "x.gc")
    with pytest.raises(Unsupported, match="Local"):
        gcodec.load(tmp_path / "x.gc")
    assert list(gcodec.load(tmp_path / "x.gc", names="w")) == ["w"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("modle", r"x\.gc: nothing is called 'modle'; did you mean model\?"),
        ("weight", r"x\.gc: nothing is called 'weight'; did you mean model/a.weight\?"),
        (["model", "w/*"], r"x\.gc: nothing matches 'w/\*'"),
        ("", "nothing is called ''"),
        (3, "names must be a name or several, not 3"),
        ([b"model"], r"names must be a name or several, not \[b'model'\]"),
    ],
)
def test_names_of_nothing_are_errors(names, message, file):
    with pytest.raises(InvalidArgument, match=message):
        gcodec.load(file, names=names)


@pytest.mark.parametrize("error", [KeyError, ValueError, TypeError, AttributeError])
def test_errors_of_what_gives_the_names_come_out_as_they_are(error, file, tmp_path):
    """They are no damage of the file, which is not even opened."""

    def names() -> Any:
        yield "model"
        raise error("of the caller")

    series = gcodec.Checkpointer(tmp_path / "run")
    series.save(1, state())
    for load in (lambda given: gcodec.load(file, names=given), lambda given: series.load(names=given)):
        with pytest.raises(error, match="of the caller"):
            load(names())
        assert load(name for name in ["seen"]) == {"seen": {"a": [1], "b": [2]}}


def test_names_are_looked_up_and_patterns_alone_tried_on_each_path(file, monkeypatch):
    """A list of thousands of names would take minutes where there are thousands of paths."""
    tried, translate = list[str](), fnmatch.translate

    def noted(text: str) -> str:
        tried.append(text)
        return translate(text)

    monkeypatch.setattr(fnmatch, "translate", noted)
    found = gcodec.load(file, names=["model/a.weight", "count", "w[0]", "model/b.*", "tuple/0", "count"])
    assert tried == ["w[0]", "model/b.*"]
    assert (found["count"], found["tuple"], found["w[0]"]) == (Counter("aab"), (1, None, None), 7)
    assert list(found) == ["model", "tuple", "count", "w[0]"]
    assert list(found["model"]) == ["a.weight", "b.weight"]


def test_no_names_are_nothing(file):
    with pytest.raises(InvalidArgument, match="names must be a name or several"):
        gcodec.load(file, names=[])


@pytest.mark.parametrize("value", [torch.arange(3), [1, 2], (), 5, {"a": ()}], ids=str)
def test_objects_that_are_no_dictionaries_have_parts(value):
    stream = io.BytesIO()
    gcodec.save(value, stream)

    def part(names: str) -> Any:
        stream.seek(0)
        return gcodec.load(stream, names=names)

    if isinstance(value, torch.Tensor):
        assert part("tensor").equal(value)
    elif isinstance(value, list):
        assert part("1") == [None, 2]
    elif isinstance(value, dict):
        assert part("a") == value
    with pytest.raises(InvalidArgument, match="nothing is called 'x'"):
        part("x")


def test_tensors_of_files_are_parts_too(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(3), b=np.zeros(2))
    torch.save({"a": torch.ones(2), "b": {"c": torch.ones(3)}}, tmp_path / "x.pt")
    for name in ("x.npz", "x.pt"):
        gcodec.compress_file(tmp_path / name)
    assert list(gcodec.load(tmp_path / "x.npz.gc", names="b")) == ["b"]
    assert list(gcodec.load(tmp_path / "x.pt.gc", names="b/*", like="numpy")) == ["b/c"]
    with pytest.raises(Unsupported, match=r"is a file of torch\.save, .* leave out names, or give like="):
        gcodec.load(tmp_path / "x.pt.gc", names="b/*")


def test_a_series_is_read_in_parts(tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"model": {"w": numbered(step)}, "other": numbered(9)})
    assert described(checkpoints.load(names="model")) == {"model": {"w": "2"}}


@pytest.mark.parametrize(
    "node",
    [
        {"dict": ["a", 1, "b"]},
        {"dict": [["a"], 1]},
        {"sparse": ["coo", [2]]},
        {"dataclass": [0, [1], []]},
        {"unknown": [1]},
        {"dict": ["a", {"torch": "y"}]},
    ],
    ids=str,
)
def test_parts_of_malformed_structures_are_corruption(node):
    with pytest.raises(Corruption, match="malformed"):
        gcodec.load(io.BytesIO(object_archive({"dict": ["x", {"torch": "x"}, "n", node]})), names=["x", "n", "n*"])


LOCATIONS: dict[str, Any] = {
    "name": "cpu",
    "device": torch.device("cpu"),
    "dictionary": {"cuda:0": "cpu"},
    "empty dictionary": {},
    "function": lambda storage, place: storage,
    "function of nothing": lambda storage, place: None,
    "function that copies": lambda storage, place: storage.clone() if place == "cpu" else 1 / 0,
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_map_location_is_taken_as_torch_takes_it(name, file):
    found = gcodec.load(file, map_location=LOCATIONS[name], weights_only=True, mmap=False)
    assert described(found) == described(state())
    found["model"]["a.weight"][5] = 3
    assert found["tied"][1][2] == 3 and found["tied"][0] is not None


@pytest.mark.parametrize("location", ["meta", torch.device("meta"), {"cpu": "meta", "cuda:0": "meta"}], ids=str)
def test_map_location_moves_all_tensors(location, file):
    found = gcodec.load(file, map_location=location, weights_only=None, mmap=None)
    assert found["tied"][0].is_meta and found["args"].w.is_meta


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"map_location": {"cuda:0": "cuda:1"}}, r"one device for all tensors, .*as in map_location='cuda:1'$"),
        ({"map_location": "nowhere"}, "device must be a torch device of this machine, not 'nowhere'"),
        ({"map_location": "cpu", "device": "cpu"}, "device and map_location mean the same"),
        ({"map_location": "cpu", "like": "numpy"}, "leave it out for numpy arrays, as map_location"),
        ({"map_location": lambda storage, place: 3}, "map_location must return a storage or None, not a int"),
        ({"weights_only": False}, r"weights_only must be True or None, .* torch\.load\(weights_only=False\)"),
        ({"lazy": "x"}, "lazy must be True or False, not 'x'"),
        ({"mmap": "r"}, "mmap must be True or False, not 'r'"),
        ({"map_locations": "cpu"}, "load has no argument 'map_locations'; did you mean map_location"),
        ({"pickle_module": None}, "load has no argument 'pickle_module'"),
    ],
)
def test_arguments_of_torch_load_that_mean_nothing_here_are_named(options, message, file):
    with pytest.raises(InvalidArgument, match=message):
        gcodec.load(file, **options)
