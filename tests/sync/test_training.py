"""Workers of a real training have the trainer's bfloat16 weights at every version, bit for bit."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.support.ranks import rank_context
from tests.sync.training import follow


@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_two_workers_have_the_weights_of_every_version_bit_for_bit(tmp_path, steps, one_thread):
    published, workers = follow(str(tmp_path), steps, (1, 3), rank_context())
    assert len({digest for digest, _ in published}) == steps
    for every, versions in zip((1, 3), workers, strict=True):
        assert [number for number, *_ in versions] == [min(steps, n) for n in range(every, steps + every, every)]
        assert all((digest, answer) == published[number - 1] for number, digest, answer in versions)
