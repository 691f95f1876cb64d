"""The laws of the recorder: a dump holds what the optimizer had and is enough to repeat the step."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gcodec.errors import InvalidArgument, Unsupported
from gcodec.recorder import Dump, Recorder, read_dump

pytest.importorskip("torch")

import torch
from torch import nn

from tests.archive.recorder_cases import backward, gradient, make_model, make_sgd, record

OPTIMIZERS = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 5e-4}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adagrad", {"lr": 0.01, "lr_decay": 1e-3}),
    ("Adadelta", {"lr": 1.0}),
    ("RMSprop", {"lr": 0.01}),
    ("RMSprop", {"lr": 0.01, "momentum": 0.9, "centered": True}),
    ("Adam", {"lr": 1e-3, "weight_decay": 0.01}),
    ("Adam", {"lr": 1e-3, "amsgrad": True}),
    ("AdamW", {"lr": 1e-3, "betas": (0.8, 0.95)}),
    ("Adamax", {"lr": 1e-3}),
    ("NAdam", {"lr": 1e-3}),
    ("RAdam", {"lr": 1e-3}),
    ("ASGD", {"lr": 1e-3}),
    ("Rprop", {"lr": 1e-3}),
    ("Adafactor", {"lr": 1e-2}),
    ("Muon", {"lr": 1e-3}),
]


def repeat_step(dump: Dump) -> dict[str, torch.Tensor]:
    """Return the parameters after the step, computed from nothing but the dump."""
    parameters = {name: nn.Parameter(torch.from_numpy(dump.param(name))) for name in dump.names}
    optimizer = getattr(torch.optim, dump.optimizer)([{"params": [p]} for p in parameters.values()], lr=1.0)
    for (name, parameter), group in zip(parameters.items(), optimizer.param_groups, strict=True):
        group.update(dump.hyper(name))
        parameter.grad = torch.from_numpy(dump.grad(name))
        if state := dump.state(name):
            optimizer.state[parameter] = {key: torch.as_tensor(value) for key, value in state.items()}
    optimizer.step()
    return {name: parameter.detach() for name, parameter in parameters.items()}


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=lambda value: str(value))
def test_a_dump_is_enough_to_repeat_the_optimizers_step(name, options, tmp_path):
    if not hasattr(torch.optim, name):
        pytest.skip("this torch has no such optimizer")
    model = make_model()
    optimizer = getattr(torch.optim, name)(model.parameters(), **options)
    recorder = Recorder(model, optimizer, tmp_path, every=1)
    for step in range(1, 4):
        backward(model, seed=step)
        path = recorder.record()
        optimizer.step()
        assert path
        dump = read_dump(path)
        assert (dump.step, dump.optimizer, dump.names) == (step, name, ("0.weight", "2.weight"))
        assert {key: dump.hyper("0.weight")[key] for key in options} == json.loads(json.dumps(options))
        for parameter, after in zip(model.parameters(), repeat_step(dump).values(), strict=True):
            assert torch.equal(parameter, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_recorded_values_keep_their_bits(dtype, tmp_path):
    model = make_model().to(dtype)
    optimizer = make_sgd(model)
    recorder = Recorder(model, optimizer, tmp_path, steps=[2])
    for _ in range(2):
        model.zero_grad()
        model(torch.ones(2, 6, dtype=dtype)).sum().backward()
        before = [tensor.detach().clone() for p in model.parameters() for tensor in (gradient(p), p)]
        momenta = [state["momentum_buffer"].clone() for state in optimizer.state.values()]
        path = recorder.record()
        optimizer.step()
    assert path
    dump = read_dump(path)
    recorded = [tensor for name in dump.names for tensor in (dump.grad(name), dump.param(name))]
    recorded += [dump.state(name)["momentum_buffer"] for name in dump.names]
    assert dtype == torch.bfloat16 or all(isinstance(array, np.ndarray) for array in recorded)
    for expected, found in zip([*before, *momenta], recorded, strict=True):
        found = torch.as_tensor(found)
        assert found.dtype == dtype
        assert torch.equal(expected, found)


def test_optimizer_state_is_recorded_after_the_first_step(tmp_path):
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    recorder = Recorder(model, optimizer, tmp_path, steps=(1, 3))
    paths = []
    for step in range(1, 5):
        backward(model, seed=step)
        paths.append(recorder.record())
        optimizer.step()
    expected = [tmp_path / f"step-{step:06d}.safetensors" for step in (1, 3)]
    assert paths == [expected[0], None, expected[1], None]
    first, third = map(read_dump, expected)
    assert first.state("0.weight") == {}
    assert first.state_kinds == ()
    assert third.state_kinds == ("exp_avg", "exp_avg_sq", "step")
    state = third.state("0.weight")
    assert state["step"].shape == ()
    assert state["step"] == 2
    assert state["exp_avg_sq"].shape == third.param("0.weight").shape


def test_a_recorder_combines_steps_every_and_a_resumed_count(tmp_path):
    model = make_model()
    recorder = Recorder(model, make_sgd(model), tmp_path, steps=[1, 103], every=50)
    backward(model)
    recorder.record()
    for step in range(99, 105):
        recorder.record(step) if step == 99 else recorder.record()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-{step:06d}.safetensors" for step in (1, 100, 103)
    ]


def test_recorded_groups_keep_their_hyperparameters(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
    weights = [p for p in model.parameters() if p.ndim == 2]
    biases = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": weights, "weight_decay": 0.1, "tag": object(), "scales": torch.ones(2)},
        {"params": biases, "lr": torch.tensor(0.25), "note": "bias"},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.5, betas=(0.7, 0.9))
    backward(model)
    dump = record(model, optimizer, tmp_path)
    assert [group["params"] for group in dump.groups] == [["0.weight", "1.weight"], ["0.bias", "1.bias"]]
    weight, bias = dump.hyper("0.weight"), dump.hyper("1.bias")
    assert (weight["lr"], weight["weight_decay"], weight["betas"]) == (0.5, 0.1, [0.7, 0.9])
    assert (bias["lr"], bias["note"], bias["weight_decay"]) == (0.25, "bias", 0.01)
    assert not {"tag", "scales", "params"} & weight.keys()


def test_parameters_without_gradient_are_left_out_and_without_optimizer_have_no_hyperparameters(tmp_path):
    model = nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in ("used", "frozen", "alone")})
    model["frozen"].requires_grad_(False)
    used, frozen, _ = model.parameters()
    optimizer = torch.optim.SGD([used, frozen], lr=0.1)
    model["used"](model["frozen"](model["alone"](torch.ones(1, 2)))).sum().backward()
    dump = record(model, optimizer, tmp_path)
    assert dump.names == ("used.weight", "alone.weight")
    assert dump.groups[0]["params"] == ["used.weight"]
    assert dict(dump.grads()).keys() == set(dump.names)
    with pytest.raises(InvalidArgument, match=r"alone\.weight"):
        dump.hyper("alone.weight")
    with pytest.raises(InvalidArgument, match=r"frozen\.weight"):
        dump.state("frozen.weight")


class Tied(nn.Module):
    """An embedding that is also the output head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def test_a_tied_parameter_is_recorded_once(tmp_path):
    model = Tied()
    optimizer = make_sgd(model)
    model(torch.arange(3)).sum().backward()
    dump = record(model, optimizer, tmp_path)
    assert dump.names == ("embedding.weight",)
    assert np.array_equal(dump.grad("embedding.weight"), gradient(model.head.weight).numpy())


def test_views_transposes_and_sparse_gradients_are_recorded_with_their_values(tmp_path):
    flat = torch.arange(24.0)
    model = nn.ParameterDict(
        {
            "transposed": nn.Parameter(torch.arange(12.0).view(3, 4).t()),
            "first": nn.Parameter(flat[:12].view(3, 4)),
            "second": nn.Parameter(flat[12:].view(3, 4)),
            "overlapping": nn.Parameter(flat[6:18]),
            "scalar": nn.Parameter(torch.tensor(3.0)),
            "empty": nn.Parameter(torch.zeros(0, 3)),
            "sparse": nn.Parameter(torch.ones(4, 2)),
        }
    )
    for parameter in model.values():
        parameter.grad = torch.rand_like(parameter)
    model["first"].grad = torch.ones(1, 1).expand(3, 4)
    model["sparse"].grad = torch.eye(4, 2).to_sparse()
    dump = record(model, make_sgd(model), tmp_path)
    assert len(dump.names) == len(model)
    for name, parameter in model.items():
        assert np.array_equal(dump.param(name), parameter.detach().numpy())
        assert np.array_equal(dump.grad(name), parameter.grad.to_dense().numpy())


def test_conjugated_and_negated_gradients_are_recorded_with_their_values(tmp_path):
    model = nn.ParameterDict(
        {"conjugated": nn.Parameter(torch.ones(3, 4, dtype=torch.complex64)), "negated": nn.Parameter(torch.ones(3))}
    )
    model["conjugated"].grad = torch.randn(3, 4, dtype=torch.complex64).conj()
    model["negated"].grad = torch._neg_view(torch.randn(3))
    try:
        dump = record(model, make_sgd(model), tmp_path)
    except Unsupported as error:
        pytest.skip(str(error))  # safetensors before 0.7
    for name, parameter in model.items():
        assert np.array_equal(dump.grad(name), gradient(parameter).resolve_conj().resolve_neg().numpy())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("0.weight", "2.weight")),
        (["0.*"], ("0.weight",)),
        ("2.*", ("2.weight",)),
        (lambda name: "2" in name, ("2.weight",)),
        (iter(["0.*", "2.*"]), ("0.weight", "2.weight")),
    ],
    ids=["all", "pattern list", "pattern", "function", "iterator"],
)
def test_names_select_the_parameters_that_are_recorded(names, expected, tmp_path):
    model = make_model()
    backward(model)
    dump = record(model, make_sgd(model), tmp_path, names=names)
    assert dump.names == expected


class Wrapper(nn.Module):
    """A module that names its parameters as DistributedDataParallel does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs):
        return self.module(inputs)


class HalfWrapper(Wrapper):
    """A module of which ``module`` is one part, so that its name has to stay."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.other = nn.Linear(3, 3, bias=False)


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (Wrapper, ("0.weight", "2.weight")),
        (lambda model: Wrapper(Wrapper(model)), ("0.weight", "2.weight")),
        (lambda model: nn.ModuleDict({"_orig_mod": model}), ("0.weight", "2.weight")),
        (HalfWrapper, ("module.0.weight", "module.2.weight")),
    ],
    ids=["ddp", "twice", "compiled", "part"],
)
def test_wrapping_modules_leave_no_trace_in_recorded_names(wrap, names, tmp_path):
    model = make_model()
    backward(model)
    wrapped = wrap(model)
    assert record(wrapped, make_sgd(wrapped), tmp_path).names == names


def test_modules_under_ddp_are_recorded_by_their_own_names(tmp_path):
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch without gloo")

    def check() -> None:
        model = DistributedDataParallel(make_model(), gradient_as_bucket_view=True)
        backward(model)
        dump = record(model, make_sgd(model), tmp_path)
        assert dump.names == ("0.weight", "2.weight")
        for name, parameter in model.module.named_parameters():
            assert np.array_equal(dump.grad(name), parameter.grad.numpy())

    meeting_place = (tmp_path / "store").as_uri()
    distributed.init_process_group("gloo", init_method=meeting_place, rank=0, world_size=1)
    try:
        check()  # the model ends here: as the last to hold the group it might wait for Gloo's thread forever
    finally:
        distributed.destroy_process_group()


def test_lists_and_none_in_optimizer_state_are_not_recorded(tmp_path):
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    backward(model)
    optimizer.step(lambda: model(torch.ones(1, 6)).sum())
    dump = record(model, optimizer, tmp_path)
    assert dump.state("0.weight")["n_iter"].shape == ()
    assert "old_dirs" not in dump.state_kinds


def test_recorded_numbers_of_optimizer_state_keep_their_precision(tmp_path):
    model = make_model()
    optimizer = make_sgd(model)
    backward(model)
    optimizer.state[next(model.parameters())] = {"step": 7, "decay": 0.1, "momentum_buffer": None}
    state = record(model, optimizer, tmp_path).state("0.weight")
    assert state == {"step": 7, "decay": 0.1}
    assert state["decay"].dtype == np.float64


def test_recording_does_not_change_training(tmp_path):
    runs = []
    for folder in (tmp_path, None):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(3):
            backward(model, seed=step)
            if folder:
                Recorder(model, optimizer, folder, every=1).record()
            optimizer.step()
        runs.append([parameter.detach() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


# Refusals


@pytest.mark.parametrize("options", [{}, {"steps": []}, {"steps": [0]}, {"every": 0}, {"every": -5}], ids=str)
def test_a_recorder_that_never_records_is_refused(options, tmp_path):
    model = make_model()
    with pytest.raises(InvalidArgument):
        Recorder(model, make_sgd(model), tmp_path, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 3}, "steps must be several iterations, as in .*, not 3"),
        ({"steps": "12"}, "steps must be several"),
        ({"steps": ["1"]}, "must be integers, not '1'"),
        ({"every": "5"}, "every must be an integer, not '5'"),
        ({"every": 2.5}, "every must be an integer, not 2.5"),
        ({"steps": [[1]]}, r"must be integers, not \[1\]"),
        ({"every": 1, "names": 3}, "names must be shell patterns or a function of the name, not 3"),
        ({"every": 1, "names": [3]}, "names must be shell patterns"),
    ],
)
def test_steps_that_are_no_integers_are_refused(options, message, tmp_path):
    model = make_model()
    with pytest.raises(InvalidArgument, match=message):
        Recorder(model, make_sgd(model), tmp_path, **options)


@pytest.mark.parametrize("step", [0, -1, 1.5, "3", True])
def test_steps_that_are_none_are_not_recorded_under_a_name_of_their_own(step, tmp_path):
    model = make_model()
    recorder = Recorder(model, make_sgd(model), tmp_path, every=1)
    backward(model)
    with pytest.raises(InvalidArgument, match="step must be None or an integer of at least 1"):
        recorder.record(step)
    assert recorder.step == 0 and not list(tmp_path.iterdir())


def test_a_model_and_an_optimizer_in_each_others_place_are_refused(tmp_path):
    model: Any = make_model()
    optimizer: Any = make_sgd(model)
    with pytest.raises(InvalidArgument, match=r"model must be a torch\.nn\.Module, not SGD: .*, optimizer, folder"):
        Recorder(optimizer, model, tmp_path, every=1)
    with pytest.raises(InvalidArgument, match=r"optimizer must be a torch\.optim\.Optimizer, not Sequential"):
        Recorder(model, model, tmp_path, every=1)
    with pytest.raises(InvalidArgument, match="folder must be a path or a URL, not SGD"):
        Recorder(model, optimizer, optimizer, every=1)


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="optimizer holds none"):
        Recorder(make_model(), make_sgd(make_model()), tmp_path, every=1)
    model = make_model()
    with pytest.raises(InvalidArgument, match="optimizer holds none"):
        Recorder(model, make_sgd(model), tmp_path, every=1, names=["no.such.*"])


def test_recording_before_backward_is_refused(tmp_path):
    model = make_model()
    with pytest.raises(InvalidArgument, match="backward"):
        Recorder(model, make_sgd(model), tmp_path, every=1).record()


@pytest.mark.parametrize("key", ["grad", "param", "a/b", 3], ids=str)
def test_optimizer_state_that_cannot_be_named_is_refused(key, tmp_path):
    model = make_model()
    optimizer = make_sgd(model)
    backward(model)
    optimizer.state[next(model.parameters())] = {key: torch.zeros(1)}
    with pytest.raises(InvalidArgument, match="cannot be named"):
        Recorder(model, optimizer, tmp_path, every=1).record()
