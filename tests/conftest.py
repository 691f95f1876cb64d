"""The hypothesis profiles of all tests, their order, and fixtures that several rooms share."""

from __future__ import annotations

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.covering import covering

# Products of matrices have the same bits in all processes only then: otherwise they depend on where arrays lie.
os.environ.setdefault("MKL_CBWR", "COMPATIBLE")

#: Files that take longest, the longest first. Processes are given files in this order (``make test``): one that begins
#: last would leave the other cores without work.
LONGEST = (
    "gpu/test_native.py",
    "kernels/test_private_parts.py",
    "codec/test_corruption.py",
    "test_doc_blocks.py",
    "fuzz/test_fuzz.py",
    "errors/test_all_or_nothing.py",
    "gpu/test_pretended_device.py",
    "cli/test_safety.py",
    "sync/test_example.py",
    "kernels/test_vector_steps.py",
    "plan/test_indexing.py",
    "adaptive/test_every_controller.py",
    "compressors/test_feedback.py",
    "codec/test_codec.py",
    "format/test_reference.py",
    "integrations/test_torch_checkpoint.py",
    "truncation/test_optimizers.py",
    "kernels/test_shipped_kernels.py",
    "cli/test_short_forms.py",
    "kernels/test_kernel_cache.py",
    "format/test_reference_indexed.py",
    "compressors/test_compressors.py",
    "format/test_columns.py",
    "plan/test_frames_depend_on_arrays.py",
    "plan/test_prediction.py",
    "codec/test_predicted_rows.py",
    "archive/test_hostile_files.py",
    "archive/test_hostile_archives.py",
    "bench/test_demo.py",
    "archive/test_bases.py",
    "codec/test_interrupts.py",
    "codec/test_small_reads.py",
    "sync/test_training.py",
    "cli/test_special_files.py",
    "bench/test_bench.py",
    "sync/test_broadcast.py",
    "distributed/test_diloco.py",
    "distributed/test_compressors.py",
    "distributed/test_group.py",
    "distributed/test_ddp.py",
    "distributed/test_adaptive.py",
    "distributed/test_fsdp.py",
    "distributed/test_gpu_allreduce.py",
    "distributed/test_gpu_counts.py",
    "distributed/test_parts.py",
)
#: Tests of ranks come behind all others: by then no kernel is left to compile, for which ranks would wait.
LAST = Path(__file__).parent / "distributed"

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


@pytest.hookimpl(tryfirst=True)  # before those marked as slow are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, and end with those of ranks: with every commit a few of each law."""
    _leave_few_of_ranks(items)
    places = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    assert all(map(Path.exists, places)), "LONGEST names a file that does not exist"
    items.sort(key=lambda item: (item.path.parent == LAST, places.get(item.path, len(places))))


def _leave_few_of_ranks(items: list[pytest.Item]) -> None:
    """Mark as slow what a law of ranks has beyond each value of each of its arguments once: every test starts
    processes, and counts of ranks, types and modes multiply."""
    laws = defaultdict[str, list[Any]](list)
    for item in items:
        has_arguments = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if item.path.parent == LAST and has_arguments and not item.get_closest_marker("slow"):
            laws[item.nodeid.partition("[")[0]].append(item)
    for law in laws.values():
        few = covering(law, lambda item: tuple(map(repr, item.callspec.params.values())), together=1)
        for item in set(law).difference(few):
            item.add_marker(pytest.mark.slow)


def pytest_collection() -> None:
    """Look for no cycles among the tests while they are collected: ten thousand of them are a million objects."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for cycles only among what tests make from here on."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For many small tensors: torch's threads cost more than they give, most of all on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
