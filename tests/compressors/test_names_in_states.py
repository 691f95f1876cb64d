"""Names that stand in checkpoints, or that ranks compare with each other, do not change with the code's."""

from __future__ import annotations

import inspect

import pytest

pytest.importorskip("torch")

import torch

import gcodec.compressors
from gcodec.averaging.averager import Averager, CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, MomentumCorrection, WarmUp
from gcodec.averaging.state import pack_state
from gcodec.compressors import ACPSGD, DGC, Compressor, Dense, GradNA, GradZip, PowerSGD, RandomK, RedSync, TopK, alone
from gcodec.compressors.lowrank import Alternating
from gcodec.compressors.payload import DTYPE_CODES, PART, QUANTIZED, SPARSE
from tests.support.compressor_settings import PROMISES, is_described

REPRS = {
    "dense": "Dense()",
    "float16": "Cast(dtype='float16')",
    "topk": "TopK(density=0.05, mantissa_bits=None, sample=None, least=100, most=1.5, seed=0)",
    "random-k": "RandomK(density=0.05, unbiased=False, seed=0)",
    "dgc": "DGC(density=0.05, mantissa_bits=None, sample=0.01, lower=0.8, upper=1.3, rounds=10, reselect=True, "
    "least=2, seed=0)",
    "dgc warming up": "WarmUp(compressor=DGC(density=0.02, mantissa_bits=None, sample=0.01, lower=0.8, upper=1.3, "
    "rounds=10, reselect=True, least=2, seed=0), steps=2, stages=2)",
    "redsync trimmed": "RedSync(density=0.05, mantissa_bits=None, method='trimmed', large=1048576, step=0.2, "
    "tolerance=0.001, same_sign=False)",
    "qsgd": "QSGD(bits=4, bucket=512, norm='max', stochastic=True, seed=0)",
    "int8": "Blockwise(bits=8, block=128)",
    "int4": "Blockwise(bits=4, block=128)",
    "powersgd": "PowerSGD(rank=4, always=False, seed=0, warm_start=True, iterations=1)",
    "acp-sgd": "ACPSGD(rank=4, always=False, seed=0, dtype=None)",
    "gradzip": "GradZip(rank=4, always=False, seed=0, dtype=None, regularization=1e-05, relative=False, average=0.0)",
    "gradna": "GradNA(rank=4, always=False, seed=0, dtype=None, regularization=1e-05, relative=False, average=0.0)",
    "sparcml": "SparCML(sparsifier=TopK(density=0.05, mantissa_bits=None, sample=None, least=100, most=1.5, seed=0), "
    "switch=0.5)",
    "fp8": "Frames(bits=2, optimizer=None)",
}


def test_every_public_compressor_has_its_laws_its_page_and_its_repr_here():
    public = {value for name in gcodec.compressors.__all__ if is_setting(value := getattr(gcodec.compressors, name))}
    assert [kind.__name__ for kind in public if not is_described(kind.__name__)] == []
    assert public - {type(promise.setting) for promise in PROMISES.values()} == set()
    assert public - {type(PROMISES[name].setting) for name in REPRS} == set()


def is_setting(value):
    """Tell whether something is a compressor that can be made."""
    return isinstance(value, type) and issubclass(value, Compressor) and not inspect.isabstract(value)


@pytest.mark.parametrize("name", REPRS)
def test_settings_have_the_reprs_that_ranks_compare(name):
    assert repr(PROMISES[name].setting) == REPRS[name]


def test_feedback_has_the_repr_that_ranks_compare():
    assert repr(ErrorFeedback()) == "ErrorFeedback(decay=1.0)"
    assert repr(MomentumCorrection()) == "MomentumCorrection(momentum=0.9, nesterov=False, masking=True, clip=None)"


def test_a_plan_has_the_terms_that_ranks_compare():
    assert repr(CompressionPlan(Dense())) == (
        "CompressionPlan(compressor=Dense(), feedback=ErrorFeedback(decay=1.0), min_values=1024, vectors=False)"
    )
    assert CompressionPlan(Dense(), None, min_values=0).terms == (
        "Plan(compressor=Dense(), feedback=None, min_values=0, vectors=False)"
    )


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        (ACPSGD(2), {"residual", "acpsgd.0", "acpsgd.side"}),
        (GradZip(2), {"residual", "gradzip.0", "gradzip.side"}),
        (GradNA(2), {"residual", "gradna.1"}),
    ],
)
def test_factors_are_saved_under_the_prefix_of_their_algorithm(setting, keys):
    assert isinstance(setting, Alternating)
    assert memory_after(setting).keys() == keys
    assert setting.memory_prefix == type(setting).__name__.lower()


@pytest.mark.parametrize(
    ("setting", "keys"),
    [
        (Dense(), set()),
        (TopK(0.1), {"residual"}),
        (TopK(0.1, sample=0.1), {"residual", "step"}),
        (DGC(0.1), {"residual", "step"}),
        (RandomK(0.1), {"residual", "step"}),
        (RedSync(0.1, same_sign=True), {"residual", "step"}),
        (PowerSGD(2), {"residual", "powersgd.q"}),
        (WarmUp(TopK(0.1), 2), {"residual", "warmup.step"}),
    ],
)
def test_memories_have_the_keys_that_checkpoints_have(setting, keys):
    assert memory_after(setting).keys() == keys


def test_momentum_is_saved_under_the_key_momentum():
    assert memory_after(TopK(0.1), MomentumCorrection()).keys() == {"residual", "momentum"}


def test_an_averager_has_the_state_that_checkpoints_have():
    rank = averager(TopK(0.1), ErrorFeedback())
    assert list(rank.state_dict()) == ["version", "rank", "size", "tensors"]
    assert pack_state({"a": torch.arange(2), 3: [None, 1.5]}) == (
        '{"gcodec.pairs": [["a", {"gcodec.plain_tensor": {"array": "<i8", "base64": "AAAAAAAAAAABAAAAAAAAAA=="}, '
        '"shape": [2]}], [3, [null, 1.5]]]}'
    )
    assert '"gcodec.tensor"' in pack_state(torch.ones(3))


def averager(setting, feedback):
    """Return a single rank's averager after a step."""
    rank = Averager(CompressionPlan(setting, feedback))
    alone(rank.average({"x": torch.randn(60, 70, generator=torch.Generator().manual_seed(0))}))
    return rank


def memory_after(setting, feedback=None):
    """Return what is kept of a tensor after a step, by name."""
    return averager(setting, feedback or ErrorFeedback()).memories["x"]


def test_dtypes_have_the_numbers_that_payloads_have():
    assert {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3} == DTYPE_CODES
    kinds = [SPARSE, QUANTIZED, PART]
    assert kinds == [1, 2, 3]
