"""The Blosc2 codec: arrays come back bit for bit, whole and in part, and frames are what is stored."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("blosc2")

import blosc2

import gcodec
from gcodec.integrations.blosc2 import blosc2_parameters


@pytest.fixture(autouse=True)
def _one_thread():
    """Blosc2 reads with codecs in Python on one thread only."""
    before = blosc2.set_nthreads(1)
    yield
    blosc2.set_nthreads(before)


RNG = np.random.default_rng(6)


@pytest.mark.parametrize("kind", ["f4", "f8", "f2"])
@pytest.mark.parametrize("shape", [(300, 200), (10, 30, 70), (1,), (100_003,)])
def test_arrays_come_back(kind, shape, tmp_path):
    values = RNG.normal(size=shape).astype(kind)
    values.reshape(-1)[::9] = np.nan
    path = str(tmp_path / "x.b2nd")
    blosc2.asarray(values, cparams=blosc2_parameters(values.dtype), urlpath=path)
    array = blosc2.open(path, mode="r")
    assert array[...].tobytes() == values.tobytes()
    assert array[:1].tobytes() == values[:1].tobytes()
    if values.size > 1000:
        assert array.schunk.cbytes < values.nbytes


def test_bits_of_bfloat16_and_of_numbers_that_are_no_floats_come_back():
    halves = RNG.integers(0, 65536, 50_000).astype("u2")
    for bits, dtype in [(halves, "bfloat16"), (np.arange(50_000, dtype="i4"), "f4")]:
        array = blosc2.asarray(bits, cparams=blosc2_parameters(dtype))
        assert np.array_equal(array[...], bits)


def test_senseless_parameters_are_refused():
    for dtype, options in [("i4", {}), ("?", {}), ("f4", {"codec": 3}), ("f4", {"nthreads": 4})]:
        with pytest.raises(gcodec.InvalidArgument):
            blosc2_parameters(dtype, **options)
    assert blosc2_parameters("f4", clevel=3)["clevel"] == 3
