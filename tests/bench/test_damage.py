"""The benchmark of damaged bytes: each of gcodec's formats notices every flipped bit and every truncation."""

from __future__ import annotations

import sys

import pytest

from tests.support import reliability
from tests.support.paths import CORPUS


@pytest.fixture(params=["gcodec", "gcodec near-lossless", "gcodec message", "gcodec archive"])
def damaged(request):
    """Return one of our own contestants of bench.corruption, by name: what makes and reads what is damaged."""
    if sys.platform == "win32":
        pytest.skip("forks")
    from bench import corruption

    if request.param not in corruption.contestants():
        pytest.skip("needs torch")
    return request.param, corruption.contestants()[request.param]


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_bit_flips_and_truncations_of_frames_messages_and_archives_are_noticed(damaged):
    from bench import corruption

    result = corruption.examine(damaged[1], corruption.sample(CORPUS), 300, 200)
    assert {kind: dict(counts) for kind, counts in result.items()} == {
        "bit flip": {"detected": 300},
        "truncation": {"detected": 200},
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_ten_thousand_bit_flips_and_every_truncation_are_noticed(damaged):
    from bench import corruption

    name, contestant = damaged
    result = corruption.examine(contestant, corruption.sample(CORPUS), corruption.TRIALS, None)
    n_cases = sum(counts.total() for counts in result.values())
    n_detected = sum(counts["detected"] for counts in result.values())
    reliability.record(
        f"bit flips and every truncation: {name}",
        n_cases,
        n_cases - n_detected,
        f"{100 * n_detected / n_cases:g} % detected",
    )
    assert result["bit flip"] == {"detected": corruption.TRIALS}
    assert n_detected == n_cases
