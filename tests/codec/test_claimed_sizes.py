"""Frames of a few bytes that stand for many values: nothing is allocated before a limit is checked."""

from __future__ import annotations

import mmap
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gcodec
from tests.support import laws
from tests.support.frame_builder import Draft, plain_block


def test_frames_that_claim_many_values_allocate_nothing():
    """The frames have a few bytes and claim up to 2^47 values."""
    for shape in ((2**47,), (2**46, 1), (2**24, 2**20)):
        n_values = int(np.prod(shape, dtype=object))
        draft = Draft(4, 0, 0, 20, 8, n_values, shape, (53,), ((0, 1),), (), ())
        frame = draft.seal()
        assert laws.outcome(frame) == "corruption"  # there is no index
        assert laws.reference_outcome(frame) == "corruption"
        assert laws.outcome(replace(draft, shape=(2**20, 2**20, 2**20)).seal()) == "corruption"


def test_the_output_limit_is_checked_before_memory_is_allocated():
    """A constant block stands for a million values in 24 bytes: 128 GiB in half a megabyte."""
    n_blocks = 1 << 14
    block = plain_block(0, 1 << 20, bytes(8))
    draft = Draft(4, 0, 0, 20, 8, n_blocks << 20, (n_blocks << 20,), (53,), ((0, 1),), (), (block,) * n_blocks)
    frame = draft.seal()
    assert len(frame) < 1 << 19
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode(frame, max_output_bytes=1 << 30)
    with pytest.raises(gcodec.LimitExceeded):
        gcodec.decode_range(frame, 0, n_blocks << 20, max_output_bytes=1 << 30)
    few = gcodec.decode_range(frame, (5 << 20) - 2, (5 << 20) + 1, max_output_bytes=24)
    assert few.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of memory")
@pytest.mark.parametrize("container", [0, 1])
def test_no_memory_for_a_frame_is_a_limit_that_is_exceeded(container):
    """Half a megabyte stands for an array that no machine can hold."""
    import resource

    pytest.importorskip("torch")
    n_blocks = 1 << 14
    block = plain_block(0, 1 << 20, bytes(8))
    n_values = n_blocks << 20
    frame = Draft(4, 0, container, 20, 8, n_values, (n_values,), (53,), ((0, 1),), (), (block,) * n_blocks).seal()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 33), hard))
    try:
        for decode in (
            lambda: gcodec.decode(frame),
            lambda: gcodec.Decoder().decode(frame),
            lambda: gcodec.decode_range(frame, 0, n_values),
            lambda: gcodec.decode_range(frame, 5, n_values - 5),
        ):
            laws.check_refused(gcodec.LimitExceeded, decode)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
