"""Compressors that send factors of low rank: PowerSGD, GradZip and GradNA."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.compressors import ACPSGD, GradNA, GradZip, Place, PowerSGD, gradzip, lowrank
from gcodec.compressors.contract import Memory, alone
from tests.support.compressor_settings import gradients_at, norm, same
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("setting", [PowerSGD(3), PowerSGD(3, iterations=2), GradZip(3), GradZip(3, relative=True)])
def test_gradients_of_low_rank_are_sent_exactly_after_a_few_steps(setting):
    """The matrix of rank 3 stays the same; the ridge takes a little."""
    random = torch.Generator().manual_seed(2)
    matrix = torch.randn(50, 3, generator=random) @ torch.randn(3, 40, generator=random)
    memory: Memory = {}
    for _ in range(6):
        outcome = alone(setting.compress(matrix, memory, Place()))
    assert norm(outcome.average - matrix) <= 1e-4 * norm(matrix)


@pytest.mark.parametrize("setting", [PowerSGD(4), GradZip(4, regularization=1e-8)])
def test_warm_starts_approach_the_best_approximation(setting):
    """Power iteration on a matrix that stays the same ends at its singular value decomposition; the step's error
    too."""
    random = torch.Generator().manual_seed(3)
    values = torch.tensor([10.0, 9, 8, 7, 2, 1, 1, 1])
    left, right = (torch.linalg.qr(torch.randn(n, 8, generator=random)).Q for n in (60, 50))
    matrix = (left * values) @ right.T
    best = float(values[4:].square().sum())
    assert setting.error(matrix, steps=20) == pytest.approx(best, rel=1e-2)
    assert setting.error(matrix, steps=20) <= setting.error(matrix, steps=1)


@pytest.mark.parametrize(
    "setting",
    [PowerSGD(3), PowerSGD(3, iterations=3), PowerSGD(3, warm_start=False), ACPSGD(3), GradZip(3, relative=True)],
)
@pytest.mark.parametrize("power", [-80, 80])
def test_gradients_may_have_any_scale(setting, power):
    """Products of a gradient and a factor of its scale would vanish, or overflow."""
    plan = CompressionPlan(setting, min_values=0)
    usual, far = Averager(plan), Averager(plan)
    for step in range(4):
        gradient = gradients_at(step, 1, scale=1.0)[0]["linear"]
        average, other = (
            alone(one.average({"x": x}))["x"] for one, x in ((usual, gradient), (far, gradient * 2.0**power))
        )
        assert norm(other * 2.0**-power - average) <= 1e-3 * norm(average)


@pytest.mark.parametrize("warm_start", [True, False])
def test_residuals_of_powersgd_stay_bounded(warm_start):
    """The residual of a step is orthogonal to its Q: with the same Q in all steps it would never be sent."""
    rank = Averager(CompressionPlan(PowerSGD(2, warm_start=warm_start), min_values=0))
    gradient = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    for _ in range(100):
        alone(rank.average({"x": gradient}))
    residual = rank.residual("x")
    assert residual is not None
    assert norm(residual) <= 20 * norm(gradient)


@pytest.mark.parametrize("setting", [PowerSGD(4), GradZip(4)])
def test_a_warm_start_survives_a_change_of_rank(setting):
    gradient = gradients_at(0, 1)[0]["linear"]
    memory: Memory = {}
    for _ in range(2):
        alone(setting.compress(gradient, memory, Place()))
    before = {key: value.clone() for key, value in memory.items() if torch.is_tensor(value)}
    key = "powersgd.q" if isinstance(setting, PowerSGD) else "gradzip.1"
    for rank in (2, 6):
        start = setting.at(rank).start(key, 70, rank, gradient, memory, Place())
        assert start.shape == (70, rank)
        assert torch.equal(start[:, : min(rank, 4)], before[key][:, : min(rank, 4)])


def test_gradzip_solves_the_papers_normal_equations():
    """(V V^T + lambda I) U^T = V G^T, and only U is sent: m k floats at one step, k n at the next."""
    gradient = gradients_at(0, 1)[0]["linear"]
    memory: Memory = {}
    setting = GradZip(4, regularization=0.01)
    first = alone(setting.compress(gradient, memory, Place()))
    u = memory["gradzip.0"]
    start = setting.start("gradzip.1", 70, 4, gradient, {}, Place())
    wanted = torch.linalg.solve(start.T @ start + 0.01 * torch.eye(4), start.T @ gradient.T).T
    assert norm(u - wanted) <= 1e-5 * norm(wanted)
    assert norm(first.average - u @ start.T) <= 1e-6 * norm(first.average)
    second = alone(setting.compress(gradient, memory, Place()))
    v = memory["gradzip.1"].T
    wanted = torch.linalg.solve(u.T @ u + 0.01 * torch.eye(4), u.T @ gradient)
    assert norm(v - wanted) <= 1e-5 * norm(wanted)
    assert (first.floats, second.floats) == (60 * 4, 70 * 4)
    assert setting.floats((60, 70)) == (60 + 70) * 4 / 2


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 7), (90, 4), (300, 16)])
def test_gradzip_solves_small_systems_as_it_solves_large_ones(monkeypatch, shape, dtype, relative):
    factor = torch.randn(shape, generator=torch.Generator().manual_seed(6), dtype=dtype)
    factor *= torch.logspace(0, -4, shape[1], dtype=dtype)
    setting = GradZip(shape[1], relative=relative)
    results = []
    for few in (1 << 30, 0):
        monkeypatch.setattr(gradzip, "_MAX_KERNEL_PRODUCTS", few)
        results.append(setting._solved(factor))
    assert results[0].dtype == results[1].dtype == dtype
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-6 * float(results[1].abs().max()))


def test_gradna_draws_its_first_factor_once(monkeypatch):
    memory: Memory = {}
    gradients = [gradients_at(step, 1)[0]["linear"] for step in range(3)]
    first = alone(GradNA(4).compress(gradients[0], memory, Place()))
    assert memory["gradna.1"].shape == (70, 4)
    monkeypatch.setattr(lowrank, "orthonormal", None)  # is not called again
    results = [alone(GradNA(4).compress(gradient, memory, Place())).average for gradient in gradients]
    assert same(results[0], first.average)
    monkeypatch.undo()
    for gradient, result in zip(gradients, results, strict=True):
        assert same(alone(GradNA(4).compress(gradient, {}, Place())).average, result)


def test_gradna_never_leaves_the_span_of_its_first_factor():
    """Without alternation all that is ever sent lies in the span of the first V: what the paper's comparison shows."""
    memory: Memory = {}
    spans = []
    for step in range(4):
        outcome = alone(GradNA(4).compress(gradients_at(step, 1)[0]["linear"], memory, Place()))
        spans.append(outcome.average)
    assert int(torch.linalg.matrix_rank(torch.cat(spans), rtol=1e-4)) == 4


_PRODUCTS = """
import torch
from gcodec.compressors.lowrank import thin_product

for rank in (1, 2, 4):
    gradient, right, left = torch.randn(100, 64), torch.randn(64, rank), torch.randn(100, rank)
    for offset in range(5):
        there = torch.empty(gradient.numel() + offset)[offset:].view(gradient.shape).copy_(gradient)
        assert torch.equal(thin_product(there, right), thin_product(gradient, right)), (rank, offset)
        assert torch.equal(thin_product(there.T, left), thin_product(gradient.T, left)), (rank, offset)
"""


def test_bits_of_a_product_do_not_depend_on_where_the_gradient_lies():
    """DDP rebuilds buckets, and a resumed run has other ones in its first step. In a process of its own, as users have
    it: the tests' own processes have MKL_CBWR, under which no product depends on that."""
    environment = {name: value for name, value in os.environ.items() if name != "MKL_CBWR"}
    child = subprocess.run([sys.executable, "-c", _PRODUCTS], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
