"""``inspect`` describes what a frame holds, and refuses what is none."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gcodec
from gcodec.errors import WrongKind
from tests.support import laws
from tests.support.cases import Case
from tests.support.encode_modes import modes
from tests.support.frame_builder import Draft


@pytest.mark.parametrize(
    "which",
    [
        Case("float32", "runs of equal sub-streams"),
        Case("bfloat16", "spread by block"),
        Case("float64", "empty"),
        Case("float8_e5m2", "0-d"),
        Case("float16", "blocks of zeros"),
        Case("bfloat16", "multiples: blocks of noise among them"),
    ],
    ids=str,
)
def test_inspect_describes_what_a_frame_holds(which):
    for mode in modes(which.dtype):
        frame = gcodec.encode(which.array(), **mode.arguments(which))
        draft, info = Draft.of(frame, laws.SHIPPED), gcodec.inspect(frame)
        assert (info.dtype, info.shape, info.n_values) == (which.dtype, which.bits.shape, which.bits.size)
        assert info.mode == ("lossless", "fixed", "near-lossless")[draft.mode]
        assert info.container == "numpy"
        assert info.frame_bytes == len(frame)
        assert info.value_bytes == which.bits.nbytes
        assert info.prelude_bytes == len(frame) - sum(map(len, draft.blocks))
        assert info.levels == tuple(drop for drop, _ in draft.levels)
        assert info.planes == draft.planes
        assert info.n_codebooks == len(draft.records)
        assert info.n_blocks == len(draft.blocks) == sum(info.kinds.values())
        for number, name in enumerate(("constant", "raw", "coded", "predicted", "sparse")):
            assert info.kinds[name] == sum(block[0] == number for block in draft.blocks)
        assert info.ratio == which.bits.nbytes / len(frame)
        assert gcodec.inspect(frame + b"more") == info
        described = json.loads(json.dumps(info.as_dict()))
        assert described["bits_per_value"] == info.bits_per_value


def test_inspect_refuses_what_is_no_frame():
    laws.check_refused(gcodec.InsufficientData, lambda: gcodec.inspect(gcodec.encode(np.ones(6, np.float32))[:-1]))
    laws.check_refused(WrongKind, lambda: gcodec.inspect(b"x" * 100))  # text
    laws.check_refused(gcodec.Corruption, lambda: gcodec.inspect(bytes(100)))
