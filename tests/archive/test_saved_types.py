"""What training scripts put into checkpoints comes back as it was, and none of its classes' code runs."""

from __future__ import annotations

import argparse
import io
import json
import math
import pathlib
import sys
import types
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec.archive import own_classes
from gcodec.archive.structure import flatten, rebuild
from gcodec.errors import Corruption, GcodecError, InvalidArgument, LimitExceeded, Unsupported
from tests.support.archive_maker import object_archive
from tests.support.same import assert_same

pytestmark = pytest.mark.filterwarnings("ignore:.*(Sparse|ComplexHalf|quantize).*:UserWarning")

CALLS: list[str] = []


class Color(Enum):
    RED = 1
    GREEN = "g"
    CRIMSON = 1

    @property
    def name(self) -> str:
        return "any"

    def __str__(self) -> str:
        return "any"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    MAX = "max"


class Access(Flag):
    READ = 1
    WRITE = 2
    EXECUTE = 4


class Bits(IntFlag):
    A = 1
    B = 2


class Moments(NamedTuple):
    mean: Any
    steps: int = 0


class Empty(NamedTuple):
    pass


@dataclass
class Config:
    rate: float
    name: str = "run"
    nested: Any = None

    def __post_init__(self) -> None:
        CALLS.append("Config")

    class Inner(NamedTuple):
        x: int

    def method(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Frozen:
    sizes: tuple[int, ...]
    where: Path = Path()


@dataclass(kw_only=True)
class Derived(Config):
    made: list[int] = field(default_factory=list, init=False)


@dataclass
class Body:
    x: int


class Planet(Body, Enum):
    EARTH = 3


class Asking(type):
    """The class of classes that must not be asked."""

    def __getattr__(cls, name: str) -> Any:
        raise AssertionError("a class was asked")


class Asked(metaclass=Asking):
    pass


def with_more() -> Config:
    """Return an object with an attribute that is no field."""
    config = Config(0.5, nested=torch.ones(2))
    config.seen = {"a": np.arange(3)}  # type: ignore[attr-defined]
    return config


def through(value: Any, **options: Any) -> Any:
    """Return an object saved to a stream and loaded from it."""
    stream = io.BytesIO()
    gcodec.save(value, stream)
    stream.seek(0)
    return gcodec.load(stream, **options)


with warnings.catch_warnings():  # torch says of these that they are new
    warnings.simplefilter("ignore")
    COO = torch.sparse_coo_tensor(torch.tensor([[0, 2, 0], [1, 0, 1]]), torch.tensor([1.0, 2, 3]), (3, 4))
    COMPRESSED = [getattr(torch.eye(4), f"to_sparse_{name}")() for name in ("csr", "csc")]
    HALVES = [torch.randn(3, 2, dtype=torch.float16).view(torch.complex32), torch.zeros(0, dtype=torch.complex32)]
    QUANTIZED = [
        *[torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 0, x) for x in (torch.qint8, torch.quint8, torch.qint32)],
        torch.quantize_per_tensor(torch.randn(3, 4), 0.03, 7, torch.qint8).t(),
        torch.quantize_per_tensor(torch.randn(0, 4), 0.1, 3, torch.qint8),
        torch.quantize_per_tensor(torch.tensor(2.0), 0.1, 3, torch.qint8),
        torch.quantize_per_channel(torch.randn(3, 4), torch.rand(4) + 1, torch.arange(4), 1, torch.quint8),
        torch.quantize_per_channel(torch.randn(3, 4), torch.rand(3) + 1, torch.rand(3), 0, torch.quint8),
    ]
    BLOCKS = [getattr(torch.eye(4), f"to_sparse_{name}")((2, 2)) for name in ("bsr", "bsc")]
VALUES: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, out=Path("runs/1"), weights=torch.ones(3)),
    "simple namespace": types.SimpleNamespace(a=1, b=[2]),
    "defaultdict": defaultdict(list, a=[1], b=[torch.ones(2)]),
    "defaultdict without a factory": defaultdict(None, {1: 2}),
    "defaultdict of dictionaries": defaultdict(OrderedDict, {Color.RED: OrderedDict(x=1)}),
    "deque": deque([1, torch.ones(2), (3,)], maxlen=5),
    "deque without end": deque(),
    "bytes": [bytearray(b"\0\xff"), b"\1", bytearray()],
    "ranges": [range(5), range(9, 1, -2), slice(None), slice(1, None, -1)],
    "paths": [Path("a/b"), PurePosixPath("/x"), PureWindowsPath("C:\\x"), Path("\udcff\0")],
    "dates": [date(2024, 2, 29), datetime(1, 1, 1), datetime(2025, 11, 2, 1, 30, 0, 7, fold=1), time(23, 59, 59, 9)],
    "zones": [datetime.now(UTC), datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30), "IST"))],
    "durations": [timedelta(-3, 4, 5), UTC, timezone(timedelta(seconds=-1)), time(1, tzinfo=UTC)],
    "scalars of strings": [np.str_("ä\ud800"), np.str_(), np.bytes_(b"x\0y"), np.bytes_()],
    "scalars": [np.float16(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.datetime64("2025-11-29T12")],
    "durations of numpy": [np.timedelta64(5, "D"), np.timedelta64("NaT"), np.datetime64("NaT", "ns")],
    "arrays of strings": [np.array(["a", "bcd", ""]), np.array([[b"x"], [b"yz"]]), np.array(["ä"], ">U3")],
    "arrays of dates": [np.array(["2025-01-01", "NaT"], "M8[D]"), np.zeros((2, 0), "m8[25s]"), np.zeros((), "M8[us]")],
    "views of strings": np.array(["a", "bc", "d", "e"]).reshape(2, 2).T[:, ::-1],
    "numpy types": [np.dtype(x) for x in ("f4", ">i8", "?", "U7", "S", "M8[ns]", "c16", "V3")],
    "types of torch": [torch.bfloat16, torch.device("cuda:1"), torch.Size([2, 3]), torch.complex32],
    "complex32": HALVES,
    "coo": [COO, COO.coalesce(), torch.zeros(2, 3).to_sparse(), torch.eye(3, dtype=torch.complex128).to_sparse()],
    "hybrid": torch.arange(12.0).reshape(2, 3, 2).to_sparse(2),
    "compressed": COMPRESSED,
    "quantized": QUANTIZED,
    "blocks": BLOCKS,
    "enumerations": [Color.RED, Color.GREEN, Color.CRIMSON, Level.HIGH, Mode.MAX, Access.READ, Bits.A],
    "dataclass of an enumeration": Planet.EARTH,
    "flags": [Access.READ | Access.EXECUTE, Access(0), Bits.A | Bits.B, Bits(0)],
    "named tuples": [Moments(torch.ones(2), 3), Empty(), Config.Inner(4), {"x": (Moments(1, 2),)}],
    "dataclasses": [Config(0.1, nested=Config(math.nan)), Frozen((1, 2)), Derived(rate=3)],
    "further attributes": with_more(),
    "keys": {
        Color.GREEN: 1,
        Level.LOW: 2,
        b"x": 3,
        Path("p"): 4,
        date(2025, 1, 1): 5,
        torch.float16: 6,
        (1, "a"): 7,
        np.str_("y"): 8,
    },
    "sets": [{Color.RED, Mode.MAX}, frozenset([Path("x"), (1, 2)]), {date(2025, 1, 1)}, {frozenset([1])}],
    "counter": Counter({Level.LOW: 3}),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_come_back_with_their_types(name, tmp_path):
    made = len(CALLS)
    assert_same(through(VALUES[name]), VALUES[name])
    checkpoints = gcodec.Checkpointer(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, VALUES[name])
    assert_same(checkpoints.load(), VALUES[name])
    assert len(CALLS) == made  # no __post_init__


@pytest.mark.parametrize("name", VALUES)
def test_tensors_of_any_object_are_read_one_by_one_and_without_its_classes(name, monkeypatch):
    monkeypatch.setattr(own_classes, "_imported", lambda entry: None)
    stream = io.BytesIO()
    gcodec.save({"x": VALUES[name]}, stream)
    stream.seek(0)
    with gcodec.open(stream) as file:
        names = file.keys()
        assert sorted(set(names)) == sorted(names)
        assert all(name.startswith("x") for name in names)
        for each in names:
            assert tuple(file.get_tensor(each).shape) == file.shape(each)
    stream.seek(0)
    assert gcodec.load_file(stream).keys() == set(names)


def test_tensors_in_objects_are_named_by_their_fields():
    shared = torch.ones(2)
    state = {
        "config": with_more(),
        "moments": Moments(shared, 1),
        Color.RED: [shared],
        "args": argparse.Namespace(w=torch.zeros(3)),
        "sparse": COO,
        b"k": deque([np.array(["a"])]),
    }
    stream = io.BytesIO()
    gcodec.save(state, stream)
    stream.seek(0)
    found = gcodec.load_file(stream)
    assert list(found) == [
        "config/nested", "config/seen/a", "moments/mean", "Color.RED/0", "args/w", "sparse/indices", "sparse/values",
        "b'k'/0",
    ]  # fmt: skip
    assert found["b'k'/0"].tolist() == ["a"]


def version(value: Any) -> int:
    """Return the version of the structure that an object gets."""
    return int(json.loads(flatten(value).text)["version"])


def test_objects_of_the_first_version_are_still_written_in_it():
    first = {"a": (1, {2}), "b": OrderedDict(x=b"y"), "c": [1j, math.inf, torch.Size([1]), torch.int8, Counter("a")]}
    assert version({**first, "t": torch.zeros(2), "n": np.zeros(2, ">c16"), "s": np.float32(1)}) == 1
    assert {name for name in VALUES if version(VALUES[name]) == 1} == {"types of torch"}


REFUSED: dict[str, tuple[Any, str]] = {
    "a factory": (defaultdict(lambda: 3), r"x: a defaultdict must have one of these factories .*pass dict\(value\)"),
    "a zone": (datetime(2025, 1, 1, tzinfo=ZoneInfo("UTC")), r"x: a datetime must have no time zone.*astimezone"),
    "a slice": (slice(0.5), "x: a slice must be of integers"),
    "objects": (np.array([{}]), "x: .*not of |O"),
    "strings of any length": (np.array(["a"], np.dtypes.StringDType()), "x: a tensor must be of"),
    "a type of records": (np.dtype("f4,i4"), r"x: a numpy\.dtype must be of"),
    "a class": (Config, "x: a type cannot be saved"),
    "a module": (torch.nn.Linear(1, 1), r"x: a .*Linear cannot be saved; pass its state_dict\(\)"),
    "a set": ({Frozen((1,))}, "x: an item of a set must be no Frozen"),
    "a set in a set": ({frozenset([(Moments(1),)])}, "x: an item of a set must be no Moments"),
    "a key": ({Moments(1): 2}, "x: a key must be a string"),
    "a number of numpy as a key": ({np.int64(1): 2}, r"x: a key must be .*, not a number of numpy's, .* key\.item\(\)"),
    "one in a tuple": ({("a", np.float32(1)): 2}, r"x: a key must be .*, not a number of numpy's, .* key\.item\(\)"),
    "a tensor as a key": ({torch.ones(1): 2}, "x: a key must be a string"),
    "an error": (ValueError("x"), "x: a ValueError cannot be saved"),
    "torch's results": (torch.max(torch.ones(2, 2), 0), "x: a torch.return_types.max cannot be saved"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_saved_is_named_with_its_place(name):
    value, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        gcodec.save({"x": value}, io.BytesIO())


def test_a_quantized_tensor_of_another_type_is_refused_with_what_it_is_made_of():
    value = torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.ones(2), 0, torch.quint4x2)
    with pytest.raises(InvalidArgument, match=r"q: a tensor .* must be of torch.qint8, .* its int_repr\(\), scales"):
        gcodec.save({"q": value}, io.BytesIO())


def test_quantized_tensors_of_the_same_integers_count_for_the_limit():
    node, integers = {"quantized": ["per_tensor_affine", [{"torch": "q"}], 0.5, 0]}, torch.ones(1000, dtype=torch.int8)
    for n, limit in ((1, 0), (4, 3000)):
        assert len(rebuild(own_text([node] * n), lambda name, kind: integers, limit)) == n
    with pytest.raises(LimitExceeded, match="copies of tensors take 4000 bytes, above the 3000"):
        rebuild(own_text([node] * 5), lambda name, kind: integers, 3000)


def test_a_quantized_tensor_of_which_torch_cannot_make_floats_is_refused():
    integers, scales = torch.ones(2, 2, dtype=torch.int32), torch.ones(2)
    value = torch._make_per_channel_quantized_tensor(integers, scales, scales, 0)
    with pytest.raises(InvalidArgument, match=r"torch.qint32, per_channel_affine_float_qparams: pass its int_repr\(\)"):
        gcodec.save({"q": value}, io.BytesIO())


class Closing:
    """Says that it has ended."""

    def __del__(self) -> None:
        CALLS.append("__del__")


class WithProperty:
    """Has a property in place of a field."""

    @property
    def x(self) -> int:
        """Return any number."""
        return 1

    @x.setter
    def x(self, value: int) -> None:
        CALLS.append("property")


NOT_SAFE: dict[str, Any] = {
    "ends": make_dataclass("Ends", ["x"], bases=(Closing,)),
    "property": dataclass(type("Managed", (WithProperty,), {"__annotations__": {"x": int}})),
    "dictionary": make_dataclass("Output", ["x"], bases=(dict,), eq=False),
    "module": make_dataclass("Layer", ["x"], bases=(torch.nn.Module,), eq=False),
}


@pytest.mark.parametrize("name", NOT_SAFE)
def test_dataclasses_whose_code_would_run_are_neither_saved_nor_loaded(name, monkeypatch):
    kind = NOT_SAFE[name]
    with pytest.raises(InvalidArgument, match=f"x: a dataclass .*{kind.__name__} cannot be saved, for it "):
        gcodec.save({"x": kind.__new__(kind)}, io.BytesIO())
    monkeypatch.setitem(sys.modules, kind.__module__, sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], kind.__name__, kind, raising=False)
    CALLS.clear()
    text = own_text({"dataclass": [0, [1], []]}, [kind.__module__, kind.__qualname__, ["x"]])
    for classes in (None, [kind]):
        with pytest.raises(Unsupported, match=f"{kind.__qualname__}, but {kind.__qualname__} "):
            rebuild(text, no_tensor, known=own_classes.KnownClasses(classes))
    assert not CALLS


def test_an_attribute_that_hides_a_method_is_not_saved():
    config = Config(1)
    config.method = 3  # type: ignore[method-assign,assignment]
    with pytest.raises(InvalidArgument, match="x: the attribute 'method' cannot be saved, for it hides one"):
        gcodec.save({"x": config}, io.BytesIO())


def own_text(state: Any, *classes: Any) -> bytes:
    """Return a structure with classes."""
    return json.dumps({"version": 2, "state": state, "classes": list(classes)}).encode()


def no_tensor(name: str, kind: str) -> Any:
    """Refuse to read a tensor."""
    raise Corruption(f"the file lacks {name!r}")


HERE = __name__
CONFIG, COLOR = [HERE, "Config", ["rate", "name", "nested"]], [HERE, "Color", []]
MALFORMED: list[tuple[Any, list[Any]]] = [
    ({"dataclass": [0, [1, "a", None], ["__class__", 1]]}, CONFIG),
    ({"dataclass": [0, [1, "a", None], ["method", 1]]}, CONFIG),
    ({"dataclass": [0, [1, "a", None], ["rate", 1]]}, CONFIG),
    ({"dataclass": [0, [1, "a", None], [1, 1]]}, CONFIG),
    ({"dataclass": [0, [1, "a"], []]}, CONFIG),
    ({"dataclass": [0, [1, "a", None]]}, CONFIG),
    ({"dataclass": [1, [1, "a", None], []]}, CONFIG),
    ({"dataclass": [-1, [1, "a", None], []]}, CONFIG),
    ({"dataclass": [False, [1, "a", None], []]}, CONFIG),
    ({"set": [{"dataclass": [0, [1, "a", None], []]}]}, CONFIG),
    ({"dict": [{"tuple": [{"dataclass": [0, [1, "a", None], []]}]}, 1]}, CONFIG),
    ({"named_tuple": [0, [1], 3]}, [HERE, "Moments", ["mean", "steps"]]),
    ({"named_tuple": [0, [1]]}, [HERE, "Moments", ["mean", "steps"]]),
    ({"enum": [0, ["RED"]]}, COLOR),
    ({"enum": [0, "RED", 1]}, COLOR),
    ({"flag": [0, "READ"]}, [HERE, "Access", []]),
    ({"defaultdict": ["open", []]}, CONFIG),
    ({"defaultdict": ["type", []]}, CONFIG),
    ({"deque": [1, [1, 2]]}, CONFIG),
    ({"deque": [-1, []]}, CONFIG),
    ({"namespace": [1, 2]}, CONFIG),
    ({"range": [1, 2, 0]}, CONFIG),
    ({"range": [1, 2, True]}, CONFIG),
    ({"slice": [1, 2, "a"]}, CONFIG),
    ({"path": ["Path", "x"]}, CONFIG),
    ({"path": ["PosixPath", ["x"]]}, CONFIG),
    ({"date": [2025, 13, 1]}, CONFIG),
    ({"datetime": [2025, 1, 1, 0, 0, 0, 0, 0, [1, 0, 0, None]]}, CONFIG),
    ({"datetime": [2025, 1, 1, 0, 0, 0, 0, 0]}, CONFIG),
    ({"timedelta": [10**10, 0, 0]}, CONFIG),
    ({"timezone": [0, 0, 0, 1]}, CONFIG),
    ({"numpy_str": 1}, CONFIG),
    ({"numpy_dtype": "O"}, CONFIG),
    ({"numpy_dtype": "f4,f4"}, CONFIG),
    ({"numpy_dtype": [1]}, CONFIG),
    ({"enum": [0, "RED"]}, [HERE, "Color"]),
    ({"enum": [0, "RED"]}, [HERE, 1, []]),
    ({"enum": [0, "RED"]}, [HERE, "Color", ["a", "a"]]),
    (1, [[], {}, None]),
]


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_malformed_nodes_of_later_tags_are_corruption(number):
    state, entry = MALFORMED[number]
    CALLS.clear()
    with pytest.raises(Corruption, match="malformed"):
        rebuild(own_text(state, entry), no_tensor)
    assert not CALLS


UNKNOWN: list[tuple[Any, list[Any], str]] = [
    ({"dataclass": [0, [1], []]}, [HERE, "Nothing", ["x"]], r"Nothing, whose class is not known here: import .*dict"),
    ({"dataclass": [0, [1], []]}, [HERE, "Config", ["x"]], r"Config has other fields .* had \(x\), and has \(rate, na"),
    ({"dataclass": [0, [1], []]}, [HERE, "Color", ["x"]], "but Color is no dataclass"),
    ({"dataclass": [0, [1], []]}, [HERE, "VALUES", ["x"]], "VALUES, whose class is not known"),
    ({"dataclass": [0, [1], []]}, [HERE, "Planet", ["x"]], "but Planet is no dataclass"),
    ({"dataclass": [0, [1], []]}, [HERE, "Asked", ["x"]], "but Asked is no dataclass"),
    ({"named_tuple": [0, [1]]}, [HERE, "Asked", ["x"]], "but Asked is no named tuple"),
    ({"dataclass": [0, [], []]}, ["os", "path", []], "os.path, whose class is not known"),
    ({"dataclass": [0, [], []]}, ["builtins", "object", []], "but object is no dataclass"),
    ({"named_tuple": [0, [1]]}, [HERE, "Moments", ["mean"]], "Moments has other fields"),
    ({"named_tuple": [0, [1]]}, [HERE, "Config", ["mean"]], "but Config is no named tuple"),
    ({"enum": [0, "BLUE"]}, [HERE, "Color", []], "Color has no member 'BLUE'"),
    ({"enum": [0, "mro"]}, [HERE, "Color", []], "Color has no member 'mro'"),
    ({"enum": [0, "RED"]}, [HERE, "Gone", []], "classes={'.*Gone': str} gives names of its members"),
    ({"flag": [0, ["RED"]]}, [HERE, "Color", []], "but Color is no enumeration of flags"),
    ({"subclass": [0, [], None, [], []]}, ["torch", "Tensor", []], "pass classes=.Tensor. if you trust it"),
]


@pytest.mark.parametrize("number", range(len(UNKNOWN)))
def test_classes_that_are_not_known_or_changed_are_named(number):
    state, entry, message = UNKNOWN[number]
    with pytest.raises(Unsupported, match=message):
        rebuild(own_text(state, entry), no_tensor)


def test_an_unknown_class_is_named_with_the_file(tmp_path, monkeypatch):
    gcodec.save({"config": Config(1)}, tmp_path / "x.gc")
    monkeypatch.delattr(sys.modules[__name__], "Config")
    with pytest.raises(Unsupported, match=rf"x\.gc: the state has a dataclass {HERE}\.Config, whose class is not"):
        gcodec.load(tmp_path / "x.gc")


def test_nothing_is_imported_for_a_file(monkeypatch):
    lazy = types.ModuleType("lazy_classes")
    lazy.__getattr__ = lambda name: CALLS.append(name)  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_classes", lazy)
    CALLS.clear()
    for module in ("lazy_classes", "this", "xml.dom.minidom", "", "torch.", "nowhere"):
        modules = set(sys.modules)
        with pytest.raises(Unsupported, match="not known here"):
            rebuild(own_text({"enum": [0, "A"]}, [module, "Any.Thing", []]), no_tensor)
        assert set(sys.modules) == modules and not CALLS


def test_classes_may_be_given(tmp_path):
    @dataclass
    class Config:
        rate: float
        kind: Any

    class Kind(Enum):
        A = 1

    saved = Config(1.5, Kind.A)
    file = tmp_path / "x.gc"
    gcodec.save([saved], file)
    with pytest.raises(Unsupported, match=r"pass classes=\[Config\]"):
        gcodec.load(file)
    for classes in ([Config, Kind], (Kind, Config), {Config, Kind}):
        assert gcodec.load(file, classes=classes) == [saved]
    start = f"{HERE}.test_classes_may_be_given.<locals>"
    for kind, member in ((Kind, Kind.A), (str, "A")):
        found = gcodec.load(file, classes={f"{start}.Config": dict, f"{start}.Kind": kind})
        assert found == [{"rate": 1.5, "kind": member}]
    other = make_dataclass("Other", ["rate", "kind"])
    assert gcodec.load(file, classes={f"{start}.Config": other, f"{start}.Kind": Kind}) == [other(1.5, Kind.A)]
    checkpoints = gcodec.Checkpointer(tmp_path / "steps")
    checkpoints.save(1, saved)
    assert checkpoints.load(classes=[Config, Kind]) == saved


def test_a_class_that_was_saved_by_a_script_is_found_by_its_name_where_it_is_given():
    text = own_text({"dataclass": [0, [1, "x", None], []]}, ["__main__", "Config", ["rate", "name", "nested"]])
    with pytest.raises(Unsupported, match=r"__main__\.Config, .*it was that of a script, so pass classes=\[Config\]"):
        rebuild(text, no_tensor)
    assert rebuild(text, no_tensor, known=own_classes.KnownClasses([Config])) == Config(1, "x")
    twice = [Config, type("Config", (Config,), {"__module__": "elsewhere"})]
    with pytest.raises(Unsupported, match=r"__main__\.Config"):
        rebuild(text, no_tensor, known=own_classes.KnownClasses(twice))


@pytest.mark.parametrize("classes", [Config, 3, "Config", [Config(1)], {"Config": "dict"}, {"a": None}], ids=repr)
def test_classes_that_are_none_are_refused(classes, tmp_path):
    gcodec.save([1], tmp_path / "x.gc")
    with pytest.raises(InvalidArgument, match=r"classes must be a list of classes, such as \[Config\], or a dict"):
        gcodec.load(tmp_path / "x.gc", classes=classes)


@pytest.mark.parametrize(
    "parts",
    [
        {"indices": [[0, 9], [0, 0]], "values": [1.0, 2]},
        {"indices": [[0, 0], [1, 1]], "values": [1.0, 2], "coalesced": True},
        {"indices": [[0, 1]], "values": [1.0, 2]},
        {"indices": [[0.5, 1], [0, 0]], "values": [1.0, 2]},
        {"layout": "csr", "crow_indices": [0, 1, 5], "col_indices": [0, 1], "values": [1.0, 2]},
        {"layout": "csr", "indices": [[0, 1], [0, 0]], "values": [1.0, 2]},
        {"kind": "numpy", "indices": [[0, 1], [0, 0]], "values": [1.0, 2]},
        {"layout": "coo2", "indices": [[0, 1], [0, 0]], "values": [1.0, 2]},
        {"shape": [2.0, 2], "indices": [[0, 1], [0, 0]], "values": [1.0, 2]},
        {"shape": [-2, 2], "indices": [[0, 1], [0, 0]], "values": [1.0, 2]},
    ],
    ids=str,
)
def test_sparse_tensors_with_wrong_parts_are_corruption(parts):
    own = {"layout": "coo", "shape": [2, 2], "coalesced": False} | parts
    tensors = {name: torch.tensor(value) for name, value in parts.items() if name.endswith(("indices", "values"))}
    node = [own["layout"], own["shape"], own["coalesced"], *({parts.get("kind", "torch"): name} for name in tensors)]
    with pytest.raises(Corruption, match="malformed"):
        rebuild(own_text({"sparse": node}), lambda name, kind: tensors[name])


@pytest.mark.parametrize(
    ("content", "more"),
    [
        (["per_tensor_affine", ["torch"], 0.5], {}),
        (["per_tensor_affine", ["torch"], "x", 0], {}),
        (["per_tensor_affine", ["torch"], 0.5, 0.5], {}),
        (["per_tensor_affine", ["torch"], 0.5, 1 << 70], {}),
        (["per_tensor_affine", ["torch", "torch"], 0.5, 0], {}),
        (["per_tensor_affine", ["torch"], 0.5, 0], {"int_repr": torch.ones(2)}),
        (["per_channel_affine", ["torch", "torch", "torch"], 1], {}),
        (["per_channel_affine", ["torch", "torch", "torch"], -1], {}),
        (["per_channel_affine", ["torch", "torch", "torch"], 0], {"scales": torch.ones(3, dtype=torch.float64)}),
        (["per_channel_affine", ["torch", "torch", "torch"], 0], {"scales": torch.ones(2)}),
        (["per_channel_affine_float_qparams", ["torch", "torch", "torch"], 0], {}),
        (
            ["per_channel_affine_float_qparams", ["torch", "torch", "torch"], 0],
            {"int_repr": torch.ones(2, dtype=torch.int32), "scales": torch.ones(2), "zero_points": torch.zeros(2)},
        ),
        (["per_channel_affine", ["numpy", "torch", "torch"], 0], {}),
        (["per_channel", ["torch", "torch", "torch"], 0], {}),
        (["per_tensor_affine"], {}),
    ],
    ids=str,
)
def test_quantized_tensors_with_wrong_parts_are_corruption(content, more):
    integers, scales = torch.ones(2, dtype=torch.int8), torch.ones(2, dtype=torch.float64)
    tensors = {"int_repr": integers, "scales": scales, "zero_points": torch.zeros(2, dtype=torch.int64), **more}
    if len(content) > 1:
        content = [content[0], [{kind: name} for kind, name in zip(content[1], tensors, strict=False)], *content[2:]]
    with pytest.raises(Corruption, match="malformed"):
        rebuild(own_text({"quantized": content}), lambda name, kind: tensors[name])


class Scaled(torch.Tensor):
    """A tensor made of two others, as quantized weights are."""

    @staticmethod
    def __new__(cls, codes: Any, scale: Any, kind: Any) -> Any:
        """Return one of a shape and type, and no memory."""
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

    def __init__(self, codes: Any, scale: Any, kind: Any) -> None:
        self.codes, self.scale, self.kind = codes, scale, kind

    def __tensor_flatten__(self) -> Any:
        return ["codes", "scale"], {"kind": self.kind, "block": (1, 2)}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        if inner["codes"].numel() == 0:
            raise RuntimeError("there are no codes")
        assert type(size) is torch.Size and type(stride) is tuple and context["block"] == (1, 2)
        return Scaled(inner["codes"], inner["scale"], context["kind"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotImplementedError(str(func))


def test_tensors_made_of_others_come_back_where_their_class_is_given(tmp_path):
    made = Scaled(torch.arange(6, dtype=torch.int8).reshape(2, 3), torch.tensor([[0.5], [2]]), Color.RED)
    state = {"w": made, "again": made, "in a list": [Scaled(made, made.scale, Moments(1))]}
    gcodec.save(state, tmp_path / "x.gc")
    with pytest.raises(Unsupported, match=r"Scaled, which a function .* puts together: pass classes=\[Scaled"):
        gcodec.load(tmp_path / "x.gc")
    found = gcodec.load(tmp_path / "x.gc", classes=[Scaled])
    assert type(found["w"]) is Scaled and found["w"].kind is Color.RED and found["w"].shape == (2, 3)
    assert_same([found["w"].codes, found["w"].scale], [made.codes, made.scale])
    assert found["again"].codes.data_ptr() == found["w"].codes.data_ptr()
    inner = found["in a list"][0]
    assert type(inner.codes) is Scaled and inner.kind == Moments(1) and torch.equal(inner.codes.codes, made.codes)
    tensors = gcodec.load_file(tmp_path / "x.gc")
    assert list(tensors)[:2] == ["w/codes", "w/scale"] and len(tensors) == 7
    with pytest.raises(InvalidArgument, match="has a Scaled, which is no numpy array: leave out like"):
        gcodec.load(tmp_path / "x.gc", classes=[Scaled], like="numpy")


def test_a_class_that_does_not_put_a_tensor_together_is_named(tmp_path):
    gcodec.save([Scaled(torch.zeros(0), torch.ones(1), None)], tmp_path / "x.gc")
    with pytest.raises(Unsupported, match="a Scaled cannot be put together: there are no codes"):
        gcodec.load(tmp_path / "x.gc", classes=[Scaled])
    with pytest.raises(Unsupported, match="but Config is no tensor"):
        gcodec.load(tmp_path / "x.gc", classes={f"{HERE}.Scaled": Config})
    with pytest.raises(InvalidArgument, match=r"w/context/kind: a .*Linear cannot be saved"):
        gcodec.save({"w": Scaled(torch.ones(1), torch.ones(1), torch.nn.Linear(1, 1))}, io.BytesIO())


def test_what_has_no_numpy_or_torch_array_says_so_or_stays(monkeypatch):
    with pytest.raises(InvalidArgument, match="sparse tensor, which is no numpy array: leave out like"):
        through([COO], like="numpy")
    with pytest.raises(InvalidArgument, match="quantized tensor, which is no numpy array: leave out like"):
        through(QUANTIZED, like="numpy")
    with monkeypatch.context() as patch:
        patch.delattr(torch, "_make_per_tensor_quantized_tensor")
        with pytest.raises(Unsupported, match=r"torch .* has none any more: gcodec\.open and load_file"):
            through(QUANTIZED)
    with pytest.raises(Unsupported, match="quantized tensor, which cannot be on the device meta"):
        through(QUANTIZED, map_location="meta")
    found = through({"names": np.array(["a"]), "x": np.ones(2), "z": VALUES["complex32"][0]}, like="torch")
    assert isinstance(found["names"], np.ndarray) and isinstance(found["x"], torch.Tensor)
    bits = through([VALUES["complex32"][0]], like="numpy")[0]
    assert bits.dtype == np.uint32 and bits.tobytes() == VALUES["complex32"][0].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", ["<U2", "|S9", "<f4", "O", "<U0", "|V8", "M8[zz]", ">U1", 5, None])
def test_bytes_as_strings_of_another_type_are_corruption(dtype):
    data = object_archive([{"numpy": "x", "as": dtype}], dtype="uint8", width=1, version=2)
    for read in (gcodec.load, gcodec.load_file):
        with pytest.raises(Corruption, match="malformed"):
            read(io.BytesIO(data))


def test_paths_of_another_system_come_as_pure_ones():
    other = "WindowsPath" if isinstance(Path(), pathlib.PosixPath) else "PosixPath"
    found = rebuild(own_text({"path": [other, "a"]}), no_tensor)
    assert type(found).__name__ == f"Pure{other}" and str(found) == "a"


def test_a_state_that_was_restored_and_compressed_again_is_read_as_before(tmp_path):
    state = {str(n): value for n, value in enumerate(VALUES.values())}
    gcodec.save(state, tmp_path / "x.gc")
    gcodec.decompress_file(tmp_path / "x.gc", tmp_path / "x.safetensors")
    gcodec.compress_file(tmp_path / "x.safetensors", tmp_path / "y.gc")
    assert_same(gcodec.load(tmp_path / "y.gc"), state)


MUTATED = {
    name: VALUES[name]
    for name in ("defaultdict of dictionaries", "flags", "dates", "ranges", "numpy types", "keys", "sets", "paths")
} | {"c": Config(1, nested=Moments(deque([1], 3))), "n": argparse.Namespace(a=np.array(["b"])), "f": Frozen(())}


@settings(max_examples=400)
@given(place=st.integers(0, 10_000), data=st.binary(max_size=6), length=st.integers(0, 6))
def test_mutated_structures_give_a_state_or_an_error_of_ours(place, data, length):
    text = flatten(MUTATED).text
    place %= len(text)
    with suppress(GcodecError):
        rebuild(text[:place] + data + text[place + length :], lambda name, kind: np.zeros((1, 4), np.uint8))
