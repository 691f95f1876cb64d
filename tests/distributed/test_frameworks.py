"""The recipes for Lightning, Accelerate and DeepSpeed train, where these are installed."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.torchrun import output_under_torchrun

pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("package", "recipe"),
    [
        ("pytorch_lightning", "lightning_backend"),
        ("pytorch_lightning", "lightning_hook"),
        ("pytorch_lightning", "lightning_argument"),
        ("accelerate", "accelerate_backend"),
        ("accelerate", "accelerate_hook"),
        ("deepspeed", "zero_0"),
        ("deepspeed", "zero_1"),
        ("deepspeed", "zero_2"),
        ("deepspeed", "zero_3"),
    ],
)
def test_recipes_of_frameworks_train_replicas_that_stay_the_same(package, recipe):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    program = ["-m", "tests.distributed.framework_cases", recipe]
    lines = output_under_torchrun(2, program, {"ACCELERATE_USE_CPU": "true"}, timeout=280)
    results = [line.split()[1:] for line in lines if line.startswith("found ")]
    assert len(results) == 2
    assert results[0][0] == results[1][0]  # the same parameters
    assert all(int(calls) >= 3 for _, calls in results)
