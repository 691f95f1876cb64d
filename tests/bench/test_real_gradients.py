"""The law that near-lossless frames are never larger than lossless ones, over the gradients of whole trainings."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("rich")

from bench.data import named_inputs, read_series
from bench.record import PLANS
from gcodec.benchmark.inputs import GRADIENTS
from gcodec.benchmark.settings import LOSSLESS, NEAR_LOSSLESS, settings_for
from gcodec.demo.train import train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.slow
def test_near_lossless_frames_of_gradients_are_never_larger_than_lossless_ones(tmp_path):
    """The gradients are those of all 45 dumps of the benchmarks' trainings, in float32, bfloat16 and float16, also with
    parameters that are bfloat16 themselves."""
    for model, plan in PLANS.items():
        train(model, tmp_path, replace(plan, observe_every=plan.steps))
    larger: dict[tuple[str, str, str], float] = {}
    n_dumps = 0
    for _, parts in named_inputs(read_series(tmp_path), (GRADIENTS,)):
        for part in parts:
            sizes = {}
            for setting in settings_for(part):
                task = setting.task()
                task.verify()
                sizes[setting.mode] = len(task.encode())
            assert {LOSSLESS, NEAR_LOSSLESS} < set(sizes)
            larger |= {
                (part.name, part.dtype, mode): size / sizes[LOSSLESS]
                for mode, size in sizes.items()
                if size > sizes[LOSSLESS]
            }
            n_dumps += 1
    assert n_dumps == 3 * sum(len(plan.recorded) for plan in PLANS.values()) == 45
    assert not larger
