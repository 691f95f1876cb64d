"""The laws of the CUDA path (:mod:`tests.gpu.cuda_laws`), its kernels in numba's simulator."""

from __future__ import annotations

import pytest

from tests.gpu.law_process import marked, problem_of


@pytest.mark.parametrize("law", marked("simulator"))
def test_cuda_kernels_in_the_simulator_obey_every_law(law):
    problem = problem_of(law, "simulator", NUMBA_ENABLE_CUDASIM="1")
    assert not problem, problem
