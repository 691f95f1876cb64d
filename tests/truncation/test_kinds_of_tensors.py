"""The laws of tensors of unusual kinds: they are read as the values that they have, or refused by name."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gcodec.errors import InvalidArgument
from gcodec.truncation.optimizers import OptimizerView, levels_for, view_from_dump
from tests.truncation.test_optimizers import stepped


def test_a_view_reads_a_learning_rate_that_is_a_tensor_when_it_is_made():
    ones, rate = np.ones(2, np.float32), torch.tensor(1e-3)
    hyper = {"lr": rate, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False}
    for number in (1e-3, 1e-6):
        rate.fill_(number)
        want = levels_for(view_from_dump("SGD", {"lr": number}, {}), ones, ones)
        assert np.array_equal(levels_for(OptimizerView("SGD", hyper, {}), ones, ones), want)


def test_a_view_reads_betas_that_are_tensors_when_it_is_made():
    rng, betas = np.random.default_rng(5), (torch.tensor(0.9), torch.tensor(0.999))
    param, grad, mean = rng.standard_normal((3, 1000), np.float32)
    state = {"step": 3.0, "exp_avg": mean, "exp_avg_sq": mean * mean}
    hyper, found = {**view_from_dump("Adam", {"lr": 1e-3}, {}).hyper, "betas": betas}, []
    for number in (0.9, 0.0):
        betas[0].fill_(number)
        plain = view_from_dump("Adam", {"lr": 1e-3, "betas": betas}, state)
        found.append(levels_for(OptimizerView("Adam", hyper, state), param, grad))
        assert np.array_equal(found[-1], levels_for(plain, param, grad))
    assert not np.array_equal(found[0], found[1])


def test_negated_tensors_are_read_as_the_values_that_they_have():
    param, optimizer = stepped(torch.optim.SGD, shape=(2,))
    grad = torch.complex(param.grad, param.grad).conj().imag
    assert grad.is_neg()
    assert np.array_equal(levels_for(optimizer, param, grad), levels_for(optimizer, param, grad.resolve_neg()))
    known = view_from_dump("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer": grad})
    assert np.array_equal(known.state["momentum_buffer"], -param.grad.numpy())


def fake():
    """Return a tensor that has no data."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.ones(2).to(torch.float8_e5m2), "not torch.float8_e5m2"),
        (lambda: torch.ones(2, dtype=torch.int32), "not torch.int32"),
        (lambda: np.ma.masked_array([1.0, 2.0], mask=[True, False]), "must not be a masked array"),
        (fake, "FakeTensor has no data"),
    ],
    ids=["float8", "int32", "masked", "fake"],
)
def test_errors_name_the_array_that_cannot_be_read(make, text):
    plain, known = torch.ones(2), view_from_dump("SGD", {"lr": 0.1}, {})
    for name, call in {
        "param": lambda: levels_for(known, make(), plain),
        "grad": lambda: levels_for(known, plain, make()),
        "momentum_buffer": lambda: view_from_dump("SGD", {"lr": 0.1, "momentum": 0.9}, {"momentum_buffer": make()}),
    }.items():
        with pytest.raises(InvalidArgument, match=f"^{name} .*{text}"):
            call()
