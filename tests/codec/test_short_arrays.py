"""Short arrays are encoded by fewer calls than others: to the frames that all the steps of the planner make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gcodec
from gcodec.dtypes import BY_NAME
from gcodec.frame import short_arrays, smallest
from gcodec.frame.encode import OwnBuffer
from gcodec.frame.short_arrays import Tried, encode_short
from gcodec.frame.sizes import roomy_size
from gcodec.frame.writer import FrameWriter
from gcodec.options import LITERAL_GCOMP, EncoderOptions
from gcodec.plan import plan
from gcodec.plan.columns import fit_columns
from gcodec.plan.request import EncodeRequest
from gcodec.threads import MIN_SHARED
from tests.support.bit_patterns import KINDS, from_floats, noise, specials, typed
from tests.support.cases import CASES

#: About the ends of sub-streams, the fewest bytes of an array that is coded, the fewest values for which other heads,
#: rows and repetitions are looked for, a block, the values that are all counted, and the most values of a short array.
SIZES = (33, 64, 65, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1024, 2048, 4095, 4096, 4097)
LONGER_SIZES = (8191, 8192, 16383, 16384, 16385, 20000, 32767, 32768, 32769, 65535, 65537, 100_000, MIN_SHARED - 1)
OPTIONS = (
    EncoderOptions(),
    EncoderOptions(references=False),
    EncoderOptions(max_codebooks=1, max_length=7),
    EncoderOptions(wide_heads=False, indexed=False),
    EncoderOptions(prediction=False),
    LITERAL_GCOMP,
)


@contextmanager
def noted() -> Iterator[list[bool]]:
    """Note of each array that is asked for as a short one whether it was encoded as such."""
    notes: list[bool] = []

    def encode_noted(request: EncodeRequest, out: Any) -> Tried:
        tried = encode_short(request, out)
        notes.append(tried.frame is not None)
        return tried

    with patch.object(smallest, "encode_short", encode_noted):
        yield notes


def both_frames(values: np.ndarray, dtype: str, options: EncoderOptions) -> tuple[bytes, bytes]:
    """Return the frames of an array by few calls, where it is short, and by all steps."""
    few = gcodec.encode(values, dtype=dtype, options=options)
    with patch.object(smallest, "encode_short", lambda request, out: (None, None, None)):
        return few, gcodec.encode(values, dtype=dtype, options=options)


@pytest.mark.parametrize("dtype", BY_NAME)
def test_short_arrays_of_all_cases_have_the_frames_of_all_steps(dtype: str) -> None:
    with noted() as notes:
        for case in CASES:
            if case.dtype == dtype and case.array().size <= max(SIZES):
                for options in OPTIONS:
                    few, all_steps = both_frames(case.array(), dtype, options)
                    assert few == all_steps, (case, options)
    assert sum(notes) >= 8


@given(
    st.sampled_from(list(BY_NAME)),
    st.sampled_from(SIZES) | st.integers(1, 4200),
    st.sampled_from(OPTIONS),
    st.integers(0, 2**32),
    st.floats(0, 12),
    st.sampled_from((0, 0.01, 0.03, 0.1, 0.5)),
)
@settings(max_examples=300)
def test_short_arrays_have_the_frames_of_all_steps(
    dtype: str, n: int, options: EncoderOptions, seed: int, spread: float, share: float
) -> None:
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    length = int(rng.choice([64, 256]))  # sub-streams of different means, or parts of them
    scales = np.exp2(-rng.uniform(0, spread, n // length + 1)).repeat(length)[:n]
    values = from_floats(kind, rng.standard_normal(n) * scales)
    others = rng.choice(specials(kind), n) if rng.random() < 0.5 else noise(kind, rng, n)
    values = np.where(rng.random(n) < share, others, values).astype(kind.container)
    few, all_steps = both_frames(typed(dtype, values), dtype, options)
    assert few == all_steps


@given(
    st.sampled_from(list(BY_NAME)),
    st.sampled_from(LONGER_SIZES) | st.integers(4096, 70_000),
    st.sampled_from((1, 2, 32, 48, 64, 128, 200)),
    st.sampled_from(OPTIONS),
    st.integers(0, 2**32),
    st.sampled_from(
        ("plain", "columns", "scaled rows", "rows", "uniform", "few", "positive", "two scales", "special", "zeros")
    ),
)
@settings(max_examples=200)
def test_longer_arrays_and_matrices_have_the_frames_of_all_steps(
    dtype: str, n: int, columns: int, options: EncoderOptions, seed: int, how: str
) -> None:
    kind, rng = KINDS[dtype], np.random.default_rng(seed)
    n_rows = n // columns
    values = rng.standard_normal((n_rows, columns))
    if how == "columns":
        values *= np.exp2(-rng.uniform(0, 6, columns))
    elif how == "scaled rows":  # each a sub-stream of its own
        values *= np.exp2(-rng.uniform(0, 6, (n_rows, 1)))
    elif how == "zeros":  # a share of the rows, and of the values
        values *= (rng.random((n_rows, 1)) < 0.7) & (rng.random(values.shape) < rng.random())
    elif how == "rows":
        values = np.outer(np.exp(values[:, 0]), values[0]) * (1 + rng.uniform(0, 1e-3, values.shape))
    elif how == "uniform":
        values = rng.uniform(1, 2, values.shape)
    elif how == "few":
        values = rng.choice(values.reshape(-1)[:7], values.shape)
    elif how == "positive":
        values = values**2
    elif how == "two scales":
        values *= np.where(np.arange(n_rows)[:, None] < n_rows // 2, 1, 1e-3)
    flat = from_floats(kind, values.reshape(-1))
    if how == "special":
        flat = np.where(rng.random(flat.size) < 0.04, rng.choice(specials(kind), flat.size), flat)
    matrix = typed(dtype, flat.astype(kind.container)).reshape(values.shape)
    few, all_steps = both_frames(matrix, dtype, options)
    assert few == all_steps


@pytest.mark.parametrize("dtype", ("float32", "bfloat16", "float16", "float64"))
@pytest.mark.parametrize("n", (257, 1024, 4095, 4096, 16384, 32768, 100_000))
def test_usual_short_arrays_are_encoded_by_few_calls(dtype: str, n: int) -> None:
    values = typed(dtype, from_floats(KINDS[dtype], np.random.default_rng(n).standard_normal(n)))
    with noted() as notes:
        frame = gcodec.encode(values, dtype=dtype)
        out = np.empty(len(frame), np.uint8)
        assert bytes(gcodec.encode(values, dtype=dtype, out=out)) == frame
        with pytest.raises(gcodec.InvalidArgument, match="too few for the frame"):
            gcodec.encode(values, dtype=dtype, out=out[:-1])
    assert notes == [True] * 2  # and the third says what is wrong itself


@pytest.mark.parametrize("dtype", BY_NAME)
@pytest.mark.parametrize("columns", [64, 128, 192])
def test_matrices_with_rows_of_zeros_and_of_different_scales_have_the_frames_of_all_steps(
    dtype: str, columns: int
) -> None:
    """Whether sub-streams as long as rows are tried depends on the options."""
    rng = np.random.default_rng(columns)
    for n_rows, options in product((70, 256), OPTIONS):
        values = rng.standard_normal((n_rows, columns)) * np.exp2(-rng.uniform(0, 12, (n_rows, 1)))
        values[rng.random(n_rows) < 0.5] = 0
        matrix = typed(dtype, from_floats(KINDS[dtype], values.reshape(-1))).reshape(values.shape)
        few, all_steps = both_frames(matrix, dtype, options)
        assert few == all_steps, (n_rows, options)


def test_column_references_are_looked_for_once():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((256, 256)) * np.exp2(-rng.uniform(0, 6, 256))).astype(np.float32)
    with (
        patch.object(short_arrays, "fit_columns", wraps=fit_columns) as first,
        patch.object(plan, "fit_columns", wraps=fit_columns) as again,
    ):
        frame = gcodec.encode(values)
    assert (first.call_count, again.call_count) == (1, 0)
    assert len(frame) < len(gcodec.encode(values, options=EncoderOptions(columns=False)))


@pytest.mark.parametrize("n", [1000, 65_537, 300_000])
@pytest.mark.parametrize("dtype", BY_NAME)
def test_a_frame_in_a_buffer_of_its_own_is_made_where_it_is_to_lie(dtype, n):
    values = typed(dtype, from_floats(KINDS[dtype], np.random.default_rng(n).standard_normal(n)))
    room = np.empty(roomy_size(n, dtype), np.uint8).view(OwnBuffer)
    with patch.object(FrameWriter, "_write_apart", side_effect=AssertionError):
        frame = gcodec.encode(values, dtype=dtype, out=room, threads=1)
    assert bytes(frame) == gcodec.encode(values, dtype=dtype)
    assert np.shares_memory(np.frombuffer(frame, np.uint8), room)
