"""The laws of the CUDA path (:mod:`tests.gpu.cuda_cases`), its kernels compiled for one thread of the host."""

from __future__ import annotations

import pytest

from tests.gpu.cuda_cases import LAWS
from tests.gpu.law_process import problems


@pytest.mark.parametrize("law", LAWS)
def test_cuda_kernels_of_one_thread_obey_every_law(law):
    problem = problems("one-thread")[law]
    assert not problem, problem
