"""States of every kind in a series: they come back with the same types, bits and shared memory."""

from __future__ import annotations

import math
import os
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec.archive import structure
from gcodec.archive.structure import flatten, rebuild
from gcodec.archive.structure_text import MAX_ITEMS
from gcodec.checkpoints import Checkpointer
from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported
from tests.support.same import assert_same

CYCLE: list[Any] = []
CYCLE.append(CYCLE)
VALUES: list[Any] = [
    {},
    [],
    (),
    None,
    3,
    -(1 << 80),
    0.1,
    -0.0,
    math.nan,
    -math.inf,
    "ä\ud800/\0",
    b"\0\xff",
    1 + 2j,
    {1, 2},
    frozenset("a"),
    {"a/b": np.ones(2), "a": {"b": np.zeros(2)}},
    {"__metadata__": np.ones(1), "__structure__": np.ones(1), "": np.ones(3)},
    {1: "one", "1": 2, (1, "x"): None, None: 0, 2.5: [], True + 1: ()},
    OrderedDict(b=1, a=[2]),
    Counter("abba"),
    np.float32(1.5),
    np.bool_(True),
    np.array(3.0),
    np.empty((0, 4), np.float16),
    np.arange(12).reshape(3, 4).T,
    np.arange(6, dtype=">f8").reshape(2, 3),
    np.array([1 + 2j, complex("nan")]),
    np.array([1j], np.complex64),
    [np.frombuffer(os.urandom(4000), np.float32), np.array([True, False]), np.uint16(7), np.arange(5, dtype=np.int8)],
    {"x" * 10_000: np.ones(2), "x" * 9_999: np.zeros(2)},
    [[[[[[np.ones(1)]]]]]],
]


@pytest.mark.parametrize("number", range(len(VALUES)))
def test_what_is_saved_comes_back_with_types_and_bits(number, tmp_path):
    checkpoints = gcodec.Checkpointer(tmp_path)
    checkpoints.save(7, VALUES[number])
    checkpoints.save(8, VALUES[number])
    for step in (7, 8, None):
        assert_same(checkpoints.load(step), VALUES[number])


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [object()]}, "a/0"),
        ({"f": print}, "f"),
        ({"o": np.array([None])}, "o"),
        ({"r": np.zeros(2, "f4,f4")}, "r"),
        ({"m": np.ma.masked_array([1.0])}, "m"),
        ({object(): 1}, "key"),
        ({"k": {(1, (2,)): 3}}, "k"),
        (CYCLE, "containers"),
        ({"n": 10**5000}, "too"),
        ({"list": [0] * 5001}, "array"),
    ],
)
def test_what_cannot_be_saved_is_named_with_its_place(value, place, tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "MAX_ITEMS", 5000)
    checkpoints = Checkpointer(tmp_path / "steps")
    with pytest.raises(InvalidArgument, match=place):
        checkpoints.save(1, value)
    assert checkpoints.steps() == [] and checkpoints.latest() is None


def test_states_of_torch_come_back(tmp_path, one_thread):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 20).bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 5, 9])
    checkpoints, states = Checkpointer(tmp_path, full_every=3), {}
    for step in range(4):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        odd = torch.randn(6, 4)
        states[step] = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "rng": torch.get_rng_state(),
            "views": [odd.T, odd[::2], odd[:0], odd.conj(), torch.tensor(3)],
            "size": odd.shape,
            "dtype": torch.float16,
            "device": torch.device("cpu"),
            "wide": torch.randn(3) * 1j,
            "z": torch.randn(3).to(torch.complex128),
            "e": odd.to(torch.float8_e5m2),
            "b": odd > 0,
            "parameter": torch.nn.Parameter(odd),
            "array": np.ones(2),
        }
        checkpoints.save(step, states[step])
        states[step] = rebuild(flatten(states[step]).text, snapshot(flatten(states[step]).leaves))
    for step, state in states.items():
        assert_same(checkpoints.load(step), state)
    state = checkpoints.load(2)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert isinstance(checkpoints.load(2, like="numpy")["rng"], np.ndarray)


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "ASGD": {"t0": 3},
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {},
    "Adamax": {},
    "LBFGS": {"max_iter": 3},
    "Muon": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
    "SparseAdam": {},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_trainings_with_each_of_torchs_optimizers_go_on_bit_for_bit_from_any_step(name, tmp_path, one_thread):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, name):
        pytest.skip("this torch has no such optimizer")

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        table = torch.nn.Embedding(30, 8, sparse=name == "SparseAdam")
        layers = [table] if name == "SparseAdam" else [table, torch.nn.Linear(8, 9), torch.nn.Linear(9, 1)]
        model = torch.nn.Sequential(*layers)
        return model, getattr(torch.optim, name)(
            [param for param in model.parameters() if param.ndim == 2 or name != "Muon"], **OPTIMIZERS[name]
        )

    def step(model: Any, optimizer: Any, number: int) -> None:
        def loss() -> Any:
            optimizer.zero_grad()
            found = model(torch.arange(number, number + 9)).square().mean()
            found.backward()
            return found

        if name != "LBFGS":
            loss()
        optimizer.step(*[loss] if name == "LBFGS" else [])

    def state(model: Any, optimizer: Any) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    checkpoints, run = Checkpointer(tmp_path, full_every=4), made()
    for number in range(10):
        step(*run, number)
        checkpoints.save(number, state(*run))
    for number in (2, 7):
        resumed, loaded = made(), checkpoints.load(number)
        resumed[0].load_state_dict(loaded["model"])
        resumed[1].load_state_dict(loaded["optimizer"])
        for later in range(number + 1, 10):
            step(*resumed, later)
        assert_same(state(*resumed), checkpoints.load(9))


def snapshot(leaves: dict[str, Any]) -> Callable[[str, str], Any]:
    """Return what reads copies of tensors, which later steps do not change."""
    import torch

    def read(name: str, kind: str) -> Any:
        value = leaves[name].value
        if kind == "numpy":
            return np.array(value)
        copy = value.detach().clone()
        return torch.view_as_real(copy) if leaves[name].shape != tuple(copy.shape) else copy

    return read


def test_tensors_without_plain_values_are_refused(tmp_path):
    torch = pytest.importorskip("torch")
    checkpoints = Checkpointer(tmp_path)

    def save_within(x: Any) -> Any:
        checkpoints.save(1, {"a": {"x": x}})
        return x

    for value in (
        torch.ones(3, device="meta"),
        torch.nn.LazyLinear(3).weight,
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    ):
        with pytest.raises(InvalidArgument, match="a/x"):
            save_within(value)
    with pytest.raises(InvalidArgument, match="a/x"):
        torch.vmap(save_within)(torch.ones(2, 3))
    assert checkpoints.steps() == []


@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 1), (1, 3), (5, 1, 1, 1), (2, 1, 3), (0, 3), ()])
def test_tensors_come_back_with_the_strides_of_row_major_order_also_where_a_size_is_one(shape, tmp_path):
    torch = pytest.importorskip("torch")
    value, checkpoints = torch.randn(shape), Checkpointer(tmp_path)
    checkpoints.save(1, {"x": value})
    subscriber = gcodec.sync.Subscriber()
    subscriber.apply(gcodec.sync.Publisher().publish({"x": value}).data)
    loaded = [checkpoints.load()["x"], gcodec.load_file(tmp_path / "step-00000001.gc")["x"], subscriber.tensors["x"]]
    for found in loaded:
        assert found.stride() == value.stride()
        if shape:
            assert torch.equal(found.view(torch.int16), value.view(torch.int16))  # torch looks at the last stride first


def test_tensors_of_the_same_memory_are_stored_once_and_shared_again(tmp_path):
    shared = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    checkpoints = Checkpointer(tmp_path)
    info = checkpoints.save(1, {"in": shared, "out": shared, "part": shared[1:]})
    assert info.state_bytes < 2.2 * shared.nbytes
    state = checkpoints.load()
    assert state["in"] is state["out"] and np.array_equal(state["part"], shared[1:])


MALFORMED = b""" { [] {} {"version":1} {"version":1,"state":{"x":1}} {"version":1,"state":{"dict":[1]}}
{"version":1,"state":{"torch":"w"}} {"version":1,"state":{"dict":[[],1]}} {"version":1,"state":{"float":"1"}}
{"version":1,"state":{}} {"version":1,"state":{"tuple":1}} {"version":1,"state":{"bytes":"?"}}
{"version":1,"state":{"numpy":["w"]}} {"version":1,"state":{"numpy":"v","complex":"x"}}
{"version":1,"state":{"dtype":"load"}} {"version":1,"state":{"device":"nowhere"}} {"version":1,"state":{"Size":["x"]}}
{"version":1,"state":{"tuple":[],"dict":[]}} {"version":1,"state":{"counter":[1,{"dict":[{"list":1},1]}]}}
""".split()
MALFORMED += [b"", b"\xff", b'{"version":1,"state":' + b"[" * 500 + b"]" * 500 + b"}", b"[" * 100_000]


@pytest.mark.parametrize("text", [*MALFORMED, b"," * (MAX_ITEMS + 1)], ids=range(len(MALFORMED) + 1))
def test_malformed_structures_are_corruption(text):
    pytest.importorskip("torch")  # without it, structures that name what is torch's are refused before they are read

    def read(name: str, kind: str) -> Any:
        if name != "v":
            raise Corruption(f"the file lacks {name!r}")
        return np.ones(3)

    with pytest.raises(Corruption):
        rebuild(text, read)


@settings(max_examples=300)
@given(place=st.integers(0, 10_000), data=st.binary(max_size=6), length=st.integers(0, 6))
def test_mutated_structures_give_a_state_or_an_error_of_ours(place, data, length):
    def read(name: str, kind: str) -> Any:
        if name != "n":
            raise Corruption(f"the file lacks {name!r}")
        return np.ones(2)

    state = {"d": {1: (2.5, math.inf)}, "o": OrderedDict(a=b"x"), "c": Counter("ab"), "j": 1j, "n": np.ones(2)}
    text = flatten(state).text
    place %= len(text)
    with suppress(GcodecError):
        rebuild(text[:place] + data + text[place + length :], read)


def test_later_versions_of_the_structure_are_unsupported():
    with pytest.raises(Unsupported, match="version 3"):
        rebuild(b'{"version":3,"state":null}', lambda name, kind: None)
