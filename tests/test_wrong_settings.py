"""Settings of another type are refused where they are made, by the field's name, and nothing is saved to nowhere."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
import gcodec.adaptive as ga
import gcodec.compressors as gc
import gcodec.distributed as gd
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection, WarmUp
from gcodec.integrations.torch_ops import frame_room
from gcodec.truncation.optimizers import levels_for
from gcodec.truncation.reference import round_to_levels, ulp_histogram

TOP, FEW = gc.TopK(0.1), gc.TopK(0.01)
OPTIMIZER = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)

#: Settings, and what they need beside their defaults.
SETTINGS: dict[Any, dict[str, Any]] = {
    gc.TopK: {"density": 0.1},
    gc.DGC: {"density": 0.1},
    gc.RedSync: {"density": 0.1},
    gc.RandomK: {"density": 0.1},
    gc.QSGD: {},
    gc.Blockwise: {},
    gc.PowerSGD: {"rank": 2},
    gc.GradZip: {"rank": 2},
    gc.GradNA: {"rank": 2},
    gc.ACPSGD: {"rank": 2},
    gc.Cast: {},
    gc.Frames: {},
    gc.SparCML: {"sparsifier": TOP},
    ga.HardThreshold: {"density": 0.1},
    ga.Accordion: {"mild": TOP, "harsh": FEW},
    ga.GraVAC: {"compressor": TOP},
    ga.LGreCo: {"reference": TOP},
    ga.KMeans: {"reference": TOP, "ranked": (TOP, FEW)},
    ga.GlobalThreshold: {"initial": TOP},
    ga.Range: {},
    ga.Exponential: {},
    ga.Geometric: {},
    ga.Listed: {"values": (2.0, 3.0)},
    ga.Bytes: {},
    ga.Seconds: {"per_byte": {"a": 1.0}},
    ga.Prioritized: {"cost": ga.Bytes(), "buckets": {"a": 1}},
    gd.Bypass: {},
    gd.Refresh: {},
    gd.FixedBits: {"mantissa_bits": 3},
    gd.NearLossless: {"optimizer": OPTIMIZER},
    gd.Visible: {},
    gd.GroupOptions: {},
    gd.Streaming: {},
    CompressionPlan: {"compressor": TOP},
    ErrorFeedback: {},
    MomentumCorrection: {},
    WarmUp: {"compressor": TOP, "steps": 3},
    gcodec.EncoderOptions: {},
    gcodec.Ladder: {"drops": (1, 2)},
}
WRONG: tuple[Any, ...] = ("four", 2.5, None, [], object(), math.nan, True, TOP)


def fits(annotation: str, value: Any) -> bool:
    """Tell whether a value may be of the type that an annotation names."""
    kinds = annotation.split(" | ")
    if "Any" in kinds:
        return True
    if value is True:  # stands for the default where one of these may be left out
        return "bool" in kinds or "Bypass" in kinds or "Refresh" in kinds
    if isinstance(value, float):
        return "float" in kinds
    names = {str: "str", type(None): "None", list: "tuple", gc.TopK: "Compressor"}
    name = names.get(type(value), "nothing")
    return any(kind.split("[")[0] in (name, "Sparsifier" * (value is TOP)) for kind in kinds)


@pytest.mark.parametrize(
    ("settings", "name", "annotation"),
    [
        pytest.param(settings, field.name, str(field.type), id=f"{settings.__name__}.{field.name}")
        for settings in SETTINGS
        for field in fields(settings)
        if field.init
    ],
)
def test_fields_of_another_type_are_refused_by_their_name(settings, name, annotation):
    settings(**SETTINGS[settings])
    for wrong in WRONG:
        if not fits(annotation, wrong):
            with pytest.raises(gcodec.InvalidArgument, match=name):
                settings(**{**SETTINGS[settings], name: wrong})


def test_every_public_setting_is_tried_with_wrong_fields():
    public: set[Any] = {
        value
        for room in (gc, ga, gd)
        for value in (getattr(room, name) for name in room.__all__)
        if inspect.isclass(value) and is_dataclass(value) and not inspect.isabstract(value)
    }
    others = {kind.__name__ for kind in public - SETTINGS.keys() if any(field.init for field in fields(kind))}
    assert others <= {"Outcome", "Place"}


def test_a_compressor_of_ones_own_may_have_types_that_only_its_function_knows():
    class Own(float):
        pass

    half = Own(0.5)

    @dataclass(frozen=True)
    class Halves(gc.TopK):
        share: Own = half

    assert Halves(0.1).share == 0.5


@pytest.mark.parametrize(
    "load",
    [
        Averager(CompressionPlan(TOP)).load_state_dict,
        gd.CompressedAllreduce().load_state_dict,
        ga.GraVAC(TOP).load_state_dict,
        ga.Adaptive(Averager(CompressionPlan(TOP)), ga.GraVAC(TOP)).load_state_dict,
    ],
)
@pytest.mark.parametrize("state", [None, 3, [], "state"])
def test_states_that_are_no_dictionaries_are_refused(load, state):
    with pytest.raises(gcodec.InvalidArgument, match="state"):
        load(state)


def test_hooks_and_backends_refuse_other_objects_than_they_take():
    wrong: Any
    for wrong in ("group", 3, object()):
        with pytest.raises(gcodec.InvalidArgument, match="group must be a process group"):
            gd.CompressedAllreduce(group=wrong)
        with pytest.raises(gcodec.InvalidArgument, match="options"):
            gd.register_backend("other", wrong)
        with pytest.raises(gcodec.InvalidArgument, match="model"):
            gd.compress_fsdp(wrong)
        with pytest.raises(gcodec.InvalidArgument, match="optimizer must be the outer torch optimizer"):
            gd.DiLoCo(wrong, 4)


@pytest.mark.parametrize("save", [gcodec.save, gcodec.save_file])
def test_nothing_is_saved_to_what_is_no_file(save):
    """Without an error the tensors would be lost."""
    wrong: Any
    for wrong in (None, 3, ["a.gc"]):
        with pytest.raises(gcodec.InvalidArgument, match=r"must be written to|must be a path"):
            save({"a": np.ones(3)}, wrong)
        with pytest.raises(gcodec.InvalidArgument, match="folder must be a path"):
            gcodec.Checkpointer(wrong)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("dtype", 3), ("levels", 3), ("mantissa_bits", "3"), ("mantissa_bits", 2.5), ("metadata", 3), ("threads", "x")],
)
def test_options_of_save_file_of_another_type_are_refused(tmp_path: Path, name, wrong):
    with pytest.raises(gcodec.InvalidArgument, match=name):
        gcodec.save_file({"a": np.ones(3, np.float32)}, tmp_path / "a.gc", **{name: wrong})
    assert not list(tmp_path.iterdir())


class _Two:
    """An integer, as far as Python is concerned."""

    def __index__(self) -> int:
        return 2


@pytest.mark.parametrize("threads", [2, np.uint8(250), 1 << 70, _Two()], ids=["int", "numpy", "huge", "index"])
def test_any_integer_is_a_number_of_threads(tmp_path: Path, threads: Any):
    state = {"a": np.arange(3_000_000, dtype=np.float32)}
    gcodec.save(state, tmp_path / "a.gc", threads=threads)
    assert np.array_equal(gcodec.load(tmp_path / "a.gc", threads=threads)["a"], state["a"])
    frame = gcodec.encode(state["a"], threads=threads)
    assert np.array_equal(gcodec.decode(frame, threads=threads), state["a"])


MODEL = torch.nn.Linear(2, 2)
ADAPTIVE = ga.Adaptive(Averager(CompressionPlan(TOP)), ga.GraVAC(TOP))
FLOATS = np.ones(3, np.float32)

#: Functions, good arguments of theirs, and the one that is replaced by each of WRONG that it may not be.
CALLS: list[tuple[Callable[..., Any], dict[str, Any], str, tuple[type, ...]]] = [
    (gcodec.warmup, {}, "dtypes", (list,)),
    (gcodec.CodebookCycle, {"head_bits": 8, "n_levels": 1}, "head_bits", ()),
    (gcodec.CodebookCycle, {"head_bits": 8, "n_levels": 1}, "n_levels", ()),
    (gcodec.encode, {"x": FLOATS, "mantissa_bits": 3}, "rounding", (type(None),)),
    (gcodec.decode, {"data": gcodec.encode(FLOATS)}, "like", (type(None),)),
    (
        levels_for,
        {"source": OPTIMIZER, "param": OPTIMIZER.param_groups[0]["params"][0], "grad": FLOATS},
        "ladder",
        (type(None),),
    ),
    (
        levels_for,
        {"source": OPTIMIZER, "param": OPTIMIZER.param_groups[0]["params"][0], "grad": FLOATS},
        "scale",
        (float, bool),
    ),
    (
        levels_for,
        {"source": OPTIMIZER, "param": OPTIMIZER.param_groups[0]["params"][0], "grad": FLOATS},
        "loss_scale",
        (float, bool),
    ),
    (
        levels_for,
        {"source": OPTIMIZER, "param": OPTIMIZER.param_groups[0]["params"][0], "grad": FLOATS},
        "out",
        (type(None),),
    ),
    (round_to_levels, {"x": FLOATS, "levels": 0, "ladder": gcodec.Ladder((0,))}, "x", (np.ndarray,)),
    (round_to_levels, {"x": FLOATS, "levels": 0, "ladder": gcodec.Ladder((0,))}, "levels", ()),
    (round_to_levels, {"x": FLOATS, "levels": 0, "ladder": gcodec.Ladder((0,))}, "ladder", ()),
    (round_to_levels, {"x": FLOATS, "levels": 0, "ladder": gcodec.Ladder((0,))}, "rounding", ()),
    (ulp_histogram, {"a": FLOATS, "b": FLOATS}, "a", (np.ndarray,)),
    (ulp_histogram, {"a": FLOATS, "b": FLOATS}, "b", (np.ndarray,)),
    (ulp_histogram, {"a": FLOATS, "b": FLOATS}, "limit", (bool,)),
    (ga.gravac_bits, {}, "bits", ()),
    (ga.ranks, {"size": 2, "plan": TOP, "controller": ga.GraVAC(TOP)}, "size", ()),
    *(
        (
            ga.AdaptiveOptimizer,
            {
                "optimizer": torch.optim.SGD(MODEL.parameters()),
                "adaptive": ADAPTIVE,
                "named_parameters": MODEL.named_parameters(),
                "communicate": gc.alone,
            },
            name,
            (),
        )
        for name in ("optimizer", "named_parameters", "adaptive", "communicate")
    ),
    (gc.alone, {"conversation": iter(())}, "conversation", ()),
    (gd.converse, {"conversation": iter(())}, "conversation", ()),
    (gd.allreduce, {"tensor": torch.ones(3)}, "params", (type(None),)),
    (gd.allreduce, {"tensor": torch.ones(3)}, "op", ()),
    (gd.allreduce, {"tensor": torch.ones(3)}, "threads", (type(None),)),
    (gd.warmup, {"device": "cuda"}, "group", (type(None),)),
    (gd.warmup, {"device": "cuda"}, "timeout", (type(None),)),
    (gd.warmup, {}, "device", ()),
    (gd.close_lanes, {}, "group", (type(None),)),
    (gd.close_lanes, {}, "patience", (type(None), float)),
    (gd.StatsLog, {"path": "", "state": gd.CompressedAllreduce()}, "path", (str,)),
    (gd.log_to, {"writer": None, "numbers": {}, "step": 3}, "writer", ()),
    (gd.log_to, {"writer": SimpleNamespace(add_scalar=print), "numbers": {}, "step": 3}, "numbers", ()),
    (frame_room, {}, "x", (torch.Tensor,)),
]


@pytest.mark.parametrize(
    ("function", "arguments", "name", "right"),
    CALLS,
    ids=[f"{function.__name__}.{name}" for function, _, name, _ in CALLS],
)
def test_arguments_of_another_type_are_refused_by_their_name(function, arguments, name, right):
    for wrong in (*WRONG, 3j, b"four", np.ones((2, 3)), torch.ones(2, 3)):
        if not isinstance(wrong, right) or wrong is math.nan:
            with pytest.raises(gcodec.InvalidArgument, match=name if name not in ("a", "b", "x") else "array|tensor"):
                function(**{**arguments, name: wrong})


@pytest.mark.parametrize("progress", [True, 0, "yes", 3.5])
def test_progress_that_is_no_function_is_refused_before_anything_is_written(tmp_path: Path, progress):
    np.save(tmp_path / "x.npy", FLOATS)
    gcodec.compress_file(tmp_path / "x.npy", tmp_path / "y.gc")
    wrong: Any = progress
    for call in (
        lambda: gcodec.compress_file(tmp_path / "x.npy", progress=wrong),
        lambda: gcodec.decompress_file(tmp_path / "y.gc", tmp_path / "z.npy", progress=wrong),
        lambda: gcodec.sync.Publisher(progress=wrong),
        lambda: gcodec.sync.Subscriber(progress=wrong),
    ):
        with pytest.raises(gcodec.InvalidArgument, match="progress must be None or a function"):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.gc"]


#: Functions and classes with arguments that are True or False, and good arguments of theirs.
FLAGS: dict[Callable[..., Any], dict[str, Any]] = {
    gcodec.save: {"obj": {"a": FLOATS}, "file": "new.gc"},
    gcodec.load: {"file": "y.gc"},
    gcodec.save_file: {"tensors": {"a": FLOATS}, "path": "new.gc"},
    gcodec.load_into: {"model": torch.nn.Linear(3, 1, bias=False), "path": "m.gc"},
    gcodec.compress_file: {"path": "x.npy", "output": "y.gc"},
    gcodec.decompress_file: {"path": "y.gc", "output": "x.npy"},
    gcodec.archive.ArchiveWriter: {"target": "y.gc"},
    gcodec.Checkpointer: {"folder": "steps"},
    gcodec.Checkpointer.load: {"self": gcodec.Checkpointer("steps")},
    gcodec.sync.Publisher: {},
    gcodec.sync.Publisher.publish: {"self": gcodec.sync.Publisher(), "tensors": {"a": FLOATS}},
    gcodec.sync.Subscriber: {},
    gd.allreduce: {"tensor": torch.ones(3)},
    gd.compress_fsdp: {"model": torch.nn.Linear(2, 2)},
    gd.AdaptiveGradients: {"model": None, "plan": TOP, "controller": ga.GraVAC(TOP)},
}
#: Of ``gcodec.load`` they are in a dictionary of options.
LOAD_FLAGS = ("lazy", "mmap")


def flags_of(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    flags = [parameter.name for parameter in parameters if parameter.annotation == "bool" and parameter.name != "casts"]
    return [*flags, *(LOAD_FLAGS if function is gcodec.load else ())]


@pytest.mark.parametrize(
    ("function", "name"),
    [(function, name) for function in FLAGS for name in flags_of(function)],
    ids=lambda part: getattr(part, "__qualname__", part),
)
def test_flags_are_true_or_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function, name):
    """ "no" and "False", as settings of a run may have them, would count as True, and files be replaced."""
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", FLOATS)
    gcodec.compress_file("x.npy", "y.gc")
    gcodec.save_file({"weight": torch.ones(1, 3)}, "m.gc")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for wrong in ("no", "False", "", 2, [], None, object(), np.ones(2), torch.zeros(2), math.nan):
        if wrong is not None or name != "mmap":
            with pytest.raises(gcodec.InvalidArgument, match=f"{name} must be"):
                function(**{**FLAGS[function], name: wrong})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_every_public_flag_is_tried():
    rooms = (gcodec, gcodec.archive, gcodec.sync, gd)
    public = [getattr(room, name) for room in rooms for name in room.__all__]
    methods = [value for kind in public if inspect.isclass(kind) for value in vars(kind).values()]
    # Those of readers, bases, folders and codebooks choose what is read, and are no settings.
    inner = {"array", "bytes_for", "find", "message", "schedule"}
    found = {
        value
        for value in [*public, *methods]
        if inspect.isfunction(value) or (inspect.isclass(value) and not issubclass(value, tuple | Exception))
        if not is_dataclass(value) and not value.__name__.startswith("_") and value.__name__ not in inner
        if flags_of(value)
    }
    assert found == set(FLAGS)


@pytest.mark.parametrize("flag", [True, np.True_, 1])
def test_other_flags_than_pythons_are_taken(tmp_path: Path, flag):
    np.save(tmp_path / "x.npy", FLOATS)
    for _ in range(2):
        gcodec.compress_file(tmp_path / "x.npy", force=flag, smallest=flag)


@pytest.mark.parametrize("path", [None, 3, b"x", ["a"]])
def test_a_dump_is_read_from_a_path(path):
    with pytest.raises(gcodec.InvalidArgument, match="path must be a path or a URL"):
        gcodec.recorder.read_dump(path)


@pytest.mark.parametrize("bits", [(4,), (4, 5), (4, 0), (4, -9), (4, 3.0), (True, 0)])
def test_gravac_over_frames_takes_falling_numbers_of_bits(bits):
    with pytest.raises(gcodec.InvalidArgument, match="bits"):
        ga.gravac_bits(bits)


def test_names_of_tensors_that_are_no_names_are_refused(tmp_path: Path):
    gcodec.save_file({"a": FLOATS}, tmp_path / "a.gc")
    wrong: Any
    for wrong in (3, 2.5, object(), True, [3], [None]):
        with pytest.raises(gcodec.InvalidArgument, match="name"):
            gcodec.load_file(tmp_path / "a.gc", names=wrong)


class _Wrapper(torch.Tensor):
    """A tensor made of others, as libraries for quantization have them, which gives no values."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, *args, **kwargs):
        raise RuntimeError("no values")


def test_tensors_that_give_no_values_are_refused_by_their_name(tmp_path: Path):
    for save in (gcodec.save, gcodec.save_file):
        with pytest.raises(gcodec.GcodecError, match=r"a.*_Wrapper"):
            save({"a": _Wrapper()}, tmp_path / "a.gc")
    assert not list(tmp_path.iterdir())
