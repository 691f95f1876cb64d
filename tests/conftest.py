"""The hypothesis profiles of all tests, their order, and fixtures that several rooms share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Products of matrices have the same bits in all processes only then: otherwise they depend on where arrays lie.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

#: Files that take longest, the longest first. Processes are given files in this order (``make test``): one that begins
#: last would leave the other cores without work.
LONGEST = (
    "kernels/test_private_parts.py",
    "gpu/test_native.py",
    "codec/test_codec.py",
    "codec/test_corruption.py",
    "plan/test_indexing.py",
    "cli/test_safety.py",
    "compressors/test_compressors.py",
    "fuzz/test_fuzz.py",
    "kernels/test_kernel_cache.py",
    "plan/test_prediction.py",
    "test_doc_blocks.py",
    "bench/test_experiments.py",
    "cli/test_short_forms.py",
    "cli/test_special_files.py",
    "format/test_reference.py",
    "kernels/test_vector_steps.py",
    "integrations/test_torch_checkpoint.py",
    "errors/test_all_or_nothing.py",
    "gpu/test_pretended_device.py",
    "codec/test_interrupts.py",
    "format/test_reference_indexed.py",
    "codec/test_predicted_rows.py",
    "archive/test_bases.py",
    "codec/test_small_reads.py",
    "cli/test_cli.py",
    "bench/test_bench.py",
    "kernels/test_kernels.py",
    "distributed/test_diloco.py",
    "distributed/test_group.py",
    "distributed/test_parts.py",
    "distributed/test_compressors.py",
    "distributed/test_adaptive.py",
    "distributed/test_ddp.py",
    "distributed/test_fsdp.py",
    "distributed/test_gpu_allreduce.py",
    "sync/test_example.py",
    "sync/test_training.py",
    "sync/test_broadcast.py",
)

pytest.register_assert_rewrite("tests.support.laws")  # shared assertions explain a failure as a test's own do

# No deadline: the first example of a test may compile a kernel. In CI the examples are the same on every run.
# `pytest --hypothesis-profile=thorough` chooses another.
try:
    from hypothesis import settings
except ImportError:  # on a machine with a GPU, where `make test-gpu` installs nothing and needs no hypothesis
    pass
else:
    settings.register_profile("local", deadline=None, max_examples=50)
    settings.register_profile("ci", settings.get_profile("local"), max_examples=25, derandomize=True, print_blob=True)
    settings.register_profile("thorough", settings.get_profile("local"), max_examples=2000)
    settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest."""
    places = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    assert all(map(Path.exists, places)), "LONGEST names a file that does not exist"
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """Look for cycles only among what tests make from here on: ten thousand tests are a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For many small tensors: torch's threads cost more than they give, most of all on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
