"""The laws of the CUDA path (:mod:`tests.gpu.cuda_cases`), its kernels in numba's simulator."""

from __future__ import annotations

import pytest

from tests.gpu.cuda_cases import LAWS
from tests.gpu.law_process import problems


def simulated() -> dict[str, str]:
    """Return what went wrong with each law in the simulator."""
    return problems("simulator", NUMBA_ENABLE_CUDASIM="1")


@pytest.mark.parametrize("law", LAWS)
def test_cuda_kernels_in_the_simulator_obey_every_law(law):
    problem = simulated()[law]
    assert not problem, problem


def test_every_law_of_cuda_kernels_is_run():
    assert sorted(simulated()) == sorted(LAWS)
