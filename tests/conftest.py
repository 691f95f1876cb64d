"""What every test gets: a hypothesis profile."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Products of matrices have the same bits in all processes only then: otherwise they depend on where arrays lie.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

pytest.register_assert_rewrite("tests.support.laws")     # shared assertions explain a failure as a test's own do

# No deadline: the first example of a test may compile a kernel. In CI the examples are the same on every run.
# `pytest --hypothesis-profile=thorough` chooses another.
try:
    from hypothesis import settings
except ImportError:     # on a machine with a GPU, where `make test-gpu` installs nothing and needs no hypothesis
    pass
else:
    settings.register_profile("local", deadline=None, max_examples=50)
    settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
    settings.register_profile("thorough", settings.get_profile("local"), max_examples=2000)
    settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For many small tensors: torch's threads cost more than they give, most of all on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
