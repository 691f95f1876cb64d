"""What is measured: tensors from files and dumps, cast and scaled."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gcodec.benchmark import inputs, sources
from gcodec.errors import InvalidArgument
from gcodec.recorder import read_dump
from tests.support.paths import CORPUS


def test_casts_round_to_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -0.0, np.inf, np.nan, 1e-45], np.float32)
    assert inputs.cast(values, "bfloat16").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x7F80, 0x7FC0, 0]
    assert np.array_equal(inputs.cast(values, "float32"), values.view(np.uint32))
    assert np.array_equal(inputs.cast(values, "float16"), values.astype(np.float16).view(np.uint16))
    with pytest.raises(InvalidArgument, match="no cast"):
        inputs.cast(values, "float64")


def test_gather_repeats_small_inputs_and_thins_out_large_ones():
    small, large = np.arange(10), np.arange(3 * inputs._SLICE)
    assert inputs.gather([small, small], 0).size == 20
    assert inputs.gather([small, small], 50).tolist() == [*range(10)] * 6
    thinned = inputs.gather([large, large], 2 * inputs._SLICE)
    assert thinned.size == 2 * inputs._SLICE
    assert (thinned[0], thinned[-1]) == (0, large[-1])


def test_any_tensor_file_is_an_input(tmp_path):
    values = np.linspace(-1, 1, 999, dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", x=values, y=values.astype(np.float16), n=np.arange(3))
    (only,) = sources.read_file(tmp_path / "a.npy")
    assert (only.dtype, only.levels) == ("float32", {})
    assert np.array_equal(only.values, values)
    assert [part.dtype for part in sources.read_file(tmp_path / "b.npz")] == ["float32", "float16"]
    (part,) = sources.read_file(tmp_path / "a.npy", limit=400)
    assert part.bits.size == 100
    assert "10 % of it" in part.name
    np.save(tmp_path / "c.npy", np.arange(3))
    with pytest.raises(InvalidArgument, match="no floating-point"):
        sources.read_file(tmp_path / "c.npy")


def test_a_dump_gives_gradients_with_levels_parameters_and_state():
    result = sources.read_file(CORPUS / "transformer-step-000020.safetensors")
    assert [part.group for part in result] == [inputs.GRADIENTS, inputs.PARAMETERS, inputs.STATE]
    assert set(result[0].levels) == set(inputs.LADDERS)
    assert all(levels.size == result[0].bits.size for levels in result[0].levels.values())
    short = sources.read_file(CORPUS / "transformer-step-000020.safetensors", limit=4000)
    assert [part.bits.size for part in short] == [1000] * 3
    assert short[0].levels["fine"].size == 1000


def test_float16_gradients_are_scaled_and_keep_their_levels():
    dump = read_dump(CORPUS / "cnn-step-000600.safetensors")
    half, whole = (inputs.gradients(dump, "cnn", dtype) for dtype in ("float16", "float32"))
    scale = half.values[whole.values != 0].astype(np.float64) / whole.values[whole.values != 0]
    assert math.log2(np.median(scale)) == pytest.approx(round(math.log2(np.median(scale))), abs=1e-3)
    assert np.isfinite(half.values).all()


def test_optimizer_state_is_scaled_into_float16():
    dump = read_dump(CORPUS / "transformer-step-000400.safetensors")
    state = inputs.tensors(dump, "transformer", inputs.STATE, "float16")
    assert np.isfinite(state.values).all()
    first, second = np.split(state.values.astype(np.float32), 2)
    assert all(2.0**13 <= np.abs(part).max() <= 2.0**15 for part in (first, second))
