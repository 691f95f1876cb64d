"""The laws of the table of value types: numbers that stand in frames and messages never change; kernels agree."""

from __future__ import annotations

import re

import pytest

from gcodec.dtypes import BY_CODE, BY_NAME, DTYPES
from gcodec.kernels.cuda import nvrtc
from gcodec.kernels.predict import residuals


def test_codes_of_types_in_frames_are_those_of_the_format():
    assert {code: (t.name, t.head_bits) for code, t in BY_CODE.items()} == {
        1: ("float32", 8),
        2: ("bfloat16", 8),
        3: ("float16", 8),
        4: ("float64", 11),
        5: ("float8_e4m3fn", 8),
        6: ("float8_e5m2", 8),
        7: ("bfloat16", 9),
        8: ("float32", 9),
        16: ("bfloat16", 9),
        17: ("float32", 9),
        18: ("float16", 8),
        19: ("float64", 12),
        20: ("bfloat16", 12),
        21: ("float32", 12),
    }


def test_numbers_of_types_in_payloads_never_change():
    torch = pytest.importorskip("torch")
    from gcodec.compressors import payload

    numbers = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3}
    assert {getattr(torch, t.name): t.payload_number for t in DTYPES if t.payload_number is not None} == numbers
    for dtype, number in numbers.items():
        sealed = payload.seal(payload.SPARSE, dtype, 5, b"abc")
        assert sealed[1] == number
        assert bytes(payload.unseal(sealed, payload.SPARSE, dtype, 5)) == b"abc"


def test_kernels_number_types_as_the_table_does():
    numbered = re.search(r"enum FloatKind : u32 {(.*?)}", nvrtc.sources()["levels.cu"])
    assert numbered is not None and numbered[1].split(",") == [" WIDE", " BFLOAT16", " HALF "]
    assert [BY_NAME[name].float_kind for name in ("float32", "bfloat16", "float16")] == [0, 1, 2]
    assert [BY_NAME[name].code for name in ("float32", "bfloat16", "float16")] == [
        residuals.FLOAT32,
        residuals.BFLOAT16,
        residuals.FLOAT16,
    ]
    assert {t.name for t in DTYPES if t.predictable} == {"float32", "bfloat16", "float16"}
