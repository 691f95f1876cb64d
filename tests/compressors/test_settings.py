"""Settings of compressors and plans: what they may be, what they mean, and which tensors stay dense."""

from __future__ import annotations

import math
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch")

import torch

from gcodec.adaptive import GraVAC, LGreCo
from gcodec.averaging.averager import Averager, CompressionPlan, compression_plan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection, WarmUp
from gcodec.averaging.simulate import Simulation, run_conversations
from gcodec.compressors import (
    DGC,
    QSGD,
    Blockwise,
    Cast,
    Dense,
    Frames,
    GradZip,
    PowerSGD,
    RandomK,
    RedSync,
    SparCML,
    TopK,
    contract,
)
from gcodec.compressors.contract import AllGather, AllReduce, alone
from gcodec.errors import InvalidArgument, PeerError
from tests.support.compressor_settings import gradients_at, mean_of, norm, run, same
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: TopK(0.0),
        lambda: TopK(1.5),
        lambda: TopK(0.1, sample=2.0),
        lambda: QSGD(1),
        lambda: Blockwise(1),
        lambda: Blockwise(9),
        lambda: Blockwise(block=0),
        lambda: QSGD(9),
        lambda: QSGD(norm="l1"),
        lambda: PowerSGD(0),
        lambda: PowerSGD(True),
        lambda: GradZip(2, regularization=-1.0),
        lambda: GradZip(2, average=1.0),
        lambda: GradZip(2, dtype="int8"),
        lambda: Cast("float64"),
        lambda: DGC(0.1, upper=0.9),
        lambda: RedSync(0.1, method="other"),
        lambda: RedSync(0.1, same_sign=True, mantissa_bits=3),
        lambda: Frames(0),
        lambda: Dense().at(1),
        lambda: WarmUp(QSGD(), 3),
        lambda: Simulation(0, Dense()),
        lambda: Simulation(2, "bf16"),
        lambda: compression_plan(""),
        lambda: ErrorFeedback(0.0),
        lambda: CompressionPlan(Dense(), min_values=-1),
        lambda: DGC(0.1, upper=0.0),
        lambda: DGC(0.1, least=0),
        lambda: TopK(0.1, sample=0.1, least=0),
        lambda: TopK(0.1, sample=0.1, most=math.inf),
        lambda: TopK(0.1, mantissa_bits=0),
        lambda: GraVAC(TopK(0.1), most=math.inf),
        lambda: LGreCo(Frames()),
        lambda: Simulation("2", Dense()),  # type: ignore[arg-type]
        lambda: Simulation(2.5, Dense()),  # type: ignore[arg-type]
        lambda: Simulation(2, Dense()).set("a", 3),  # type: ignore[arg-type]
        lambda: PowerSGD(2).error(torch.eye(4), steps=0),
        lambda: PowerSGD(2).decompressed([1.0]),  # type: ignore[arg-type]
    ],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(InvalidArgument):
        wrong()


@pytest.mark.parametrize(
    "setting",
    [
        RandomK(0.1, unbiased=True),
        WarmUp(RandomK(0.1, unbiased=True), 3),
        QSGD(norm="l2"),
        QSGD(3, bucket=100, norm="l2"),
    ],
    ids=repr,
)
def test_settings_whose_residuals_would_grow_without_bound_are_refused_with_feedback(setting):
    for plan in (CompressionPlan, compression_plan, lambda given: CompressionPlan(given, MomentumCorrection())):
        with pytest.raises(InvalidArgument, match="feedback must be None"):
            plan(setting)
    assert CompressionPlan(setting, feedback=None).compressor is setting


@pytest.mark.parametrize(
    "setting",
    [
        RandomK(0.1),
        QSGD(5, norm="l2"),
        QSGD(4, bucket=196, norm="l2"),
        QSGD(2, norm="l2", stochastic=False),
        QSGD(2),
        QSGD(3),
        TopK(0.1),
        PowerSGD(4),
    ],
    ids=repr,
)
def test_residuals_of_settings_that_a_plan_takes_with_feedback_stay_bounded(setting):
    simulation = Simulation(1, setting)
    for step in range(100):
        simulation.average(gradients_at(step, 1, shapes={"x": (60, 70)}))
    residual = simulation.ranks[0].residual("x")
    assert residual is not None and norm(residual) < 15 * norm(gradients_at(0, 1, shapes={"x": (60, 70)})[0]["x"])


@pytest.mark.parametrize(
    "wrong", [TopK(0.1, mantissa_bits=3), RedSync(0.1, same_sign=True), RandomK(0.1), WarmUp(TopK(0.1), 3)], ids=repr
)
def test_sparcml_refuses_what_does_not_send_chosen_values_as_they_are(wrong):
    """SparCML would send all bits of every value, and count the bytes of fewer."""
    with pytest.raises(InvalidArgument):
        SparCML(wrong)


A, B = torch.ones(4, 4), torch.zeros(4, 4)


@pytest.mark.parametrize(
    "gradients",
    [
        [{"a": A, "b": B}, {"b": B, "a": A}],
        [{"a": A}, {"b": A}],
        [{"a": A, "b": B}, {"a": A}],
        {"a": A, "b": B},
        [A, A],
        [{"a": A}, {"a": A.numpy()}],
        [{"a": A}, {"a": None}],
    ],
)
def test_gradients_of_other_names_on_another_rank_are_refused_and_not_averaged(gradients):
    simulation = Simulation(2, CompressionPlan(Dense(), min_values=0))
    with pytest.raises(InvalidArgument, match="gradient"):
        simulation.average(gradients)


@pytest.mark.parametrize("setting", [Dense(), TopK(0.1), RandomK(0.1), QSGD(4), PowerSGD(2)], ids=repr)
@pytest.mark.parametrize("other", [torch.ones(50, 40), torch.ones(40, 50, dtype=torch.float64)], ids=["shape", "dtype"])
def test_gradients_of_another_shape_or_dtype_on_another_rank_are_refused_and_not_averaged(setting, other):
    """Flat, a transposed gradient would be of the same size."""
    simulation = Simulation(2, setting)
    with pytest.raises(InvalidArgument, match="gradient of 'w' must have the same shape and dtype on all ranks"):
        simulation.average([{"w": torch.ones(40, 50)}, {"w": other}])


def test_plans_are_given_by_themselves_by_a_compressor_or_by_an_accuracy():
    plan = CompressionPlan(TopK(0.5), None)
    assert compression_plan(plan) is plan
    assert compression_plan(TopK(0.5)) == CompressionPlan(TopK(0.5), ErrorFeedback())
    assert compression_plan("int4") == CompressionPlan(Blockwise(4))
    assert compression_plan("fp8") == Simulation(2, "fp8").plan == CompressionPlan(Frames(2), ErrorFeedback())


def test_integers_and_sparse_tensors_are_refused():
    for tensor in (torch.zeros(4, 4, dtype=torch.int32), torch.eye(4).to_sparse()):
        with pytest.raises(InvalidArgument):
            alone(Averager(CompressionPlan(TopK(0.5), min_values=0)).average({"x": tensor}))


def test_at_replaces_the_knob_of_a_setting():
    assert TopK(0.1).at(0.2) == TopK(0.2)
    assert PowerSGD(4).at(2).value == 2
    assert QSGD(4).at(3) == QSGD(3)
    assert WarmUp(DGC(0.1), 5).at(0.2) == WarmUp(DGC(0.2), 5)


def test_small_tensors_and_vectors_stay_dense():
    simulation, averages = run(CompressionPlan(TopK(0.01), min_values=2000), 2, 1)
    exact = mean_of(gradients_at(0, 2))
    assert all(same(averages[0][tensor], exact[tensor]) for tensor in ("bias", "images"))
    assert not same(averages[0]["linear"], exact["linear"])
    assert simulation.ranks[0].last["images"].ratio == 1


def test_densities_of_warm_up_are_the_papers():
    warm = WarmUp(DGC(0.001), steps=10)
    results = [warm.setting(step).value for step in (0, 9, 10, 20, 30, 39, 40, 1000)]
    assert results == pytest.approx([0.251, 0.251, 0.0631, 0.0158, 0.00398, 0.00398, 0.001, 0.001], rel=1e-2)


def test_ranks_whose_requests_differ_raise_PeerError():
    def asks(request):
        yield request

    with pytest.raises(PeerError):
        run_conversations([asks(AllGather(b"")), asks(AllReduce(torch.zeros(3)))])
    with pytest.raises(PeerError):
        run_conversations([asks(AllReduce(torch.zeros(4))), asks(AllReduce(torch.zeros(3)))])


def test_importing_a_compressor_loads_no_other():
    program = "import sys; from gcodec.compressors import PowerSGD; print(*(n for n in sys.modules if 'gcodec' in n))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {"powersgd", "lowrank", "casts", "contract", "outcome"}
    below = {"gcodec", "gcodec.dtypes", "gcodec.errors"}
    assert set(loaded) == {*below, "gcodec.compressors", *(f"gcodec.compressors.{x}" for x in ours)}


def test_the_page_about_compressors_of_ones_own_shows_the_example_of_the_contract():
    _, _, shown = (contract.__doc__ or "").partition("@dataclass")
    lines = textwrap.dedent("    @dataclass" + shown).replace("'''", '"""').strip()
    assert lines in (ROOT / "docs/algorithms/writing.md").read_text()
