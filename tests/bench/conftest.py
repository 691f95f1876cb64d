"""What several tests of the benchmarks measure."""

from __future__ import annotations

import pytest

from gcodec.benchmark import inputs
from gcodec.recorder import read_dump
from tests.support.paths import CORPUS


@pytest.fixture(scope="module")
def gradient() -> inputs.Input:
    """Return 4096 recorded gradients with their levels."""
    dump = read_dump(CORPUS / "cnn-step-000600.safetensors")
    whole = inputs.gradients(dump, "cnn", names=["blocks.3.conv2.weight"])
    levels = {ladder: values[:4096] for ladder, values in whole.levels.items()}
    return inputs.Input(whole.name, whole.dtype, whole.bits[:4096].copy(), levels, "cnn", 600, inputs.GRADIENTS)
