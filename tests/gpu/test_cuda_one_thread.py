"""The laws of the CUDA path (:mod:`tests.gpu.cuda_laws`), its kernels compiled for one thread of the host."""

from __future__ import annotations

import pytest

from tests.gpu.law_process import marked, problem_of


@pytest.mark.parametrize("law", marked("one-thread"))
def test_cuda_kernels_of_one_thread_obey_every_law(law):
    problem = problem_of(law, "one-thread")
    assert not problem, problem
