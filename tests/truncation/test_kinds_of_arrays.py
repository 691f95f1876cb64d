"""The laws of numbers and arrays of unusual kinds: levels are those of plain ones of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gcodec.truncation.evaluate import Policy
from gcodec.truncation.formulas import sgd_formula
from tests.truncation.test_truncation import sgd_levels, wild


@pytest.mark.parametrize("kind", [np.array, np.float64, lambda number: pytest.importorskip("torch").tensor(number)])
def test_scales_of_any_kind_are_read_when_a_policy_is_made(kind):
    assert Policy(scale=kind(2.0), loss_scale=kind(4.0)) == Policy(scale=2.0, loss_scale=4.0)
    scale = kind(2.0)
    before = sgd_formula(0.5, policy=Policy(loss_scale=scale))
    scale *= 2
    after = sgd_formula(0.5, policy=Policy(loss_scale=scale))
    assert after == sgd_formula(0.5, policy=Policy(loss_scale=4.0)) != before


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_levels_of_matrices_which_are_never_flat_are_those_of_plain_arrays(dtype):
    rng = np.random.default_rng(5)
    theta, g, buf = (wild(rng, 400, -8, 2).astype(dtype) for _ in range(3))
    out = np.matrix(np.zeros(400, np.uint8))
    got = sgd_levels(np.matrix(theta), np.matrix(g), np.matrix(buf), lr=0.1, momentum=0.9, out=out)
    assert got is out
    assert np.array_equal(np.asarray(out)[0], sgd_levels(theta, g, buf, lr=0.1, momentum=0.9))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("kind", "word", "nan"),
    [(np.float16, np.uint16, 0x7C01), (np.float32, np.uint32, 0x7F800001), (np.uint16, np.uint16, 0x7F81)],
)
def test_signaling_nan_is_widened_without_a_warning(kind, word, nan):
    g = np.array([nan, 0], word).view(kind)
    assert sgd_levels(np.ones(2), g, lr=0.1).tolist() == [0, 7]


def test_levels_follow_any_layout_of_memory_and_fill_a_given_output():
    rng = np.random.default_rng(4)
    theta, g, buf = (wild(rng, 600).reshape(20, 30) for _ in range(3))
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}
    want = sgd_levels(theta, g, buf, **options)
    assert want.shape == g.shape
    assert want.dtype == np.uint8
    turned = sgd_levels(np.asfortranarray(theta), np.asfortranarray(g), buf, **options)
    assert np.array_equal(turned, want)
    frozen = np.frombuffer(b"x" + g.tobytes(), np.uint8)[1:].view(np.float32)  # read-only and not aligned
    assert np.array_equal(sgd_levels(theta, frozen, buf, **options), want.reshape(-1))
    out = np.empty(600, np.uint8)
    assert sgd_levels(theta, g, buf, **options, out=out) is out
    assert np.array_equal(out, want.reshape(-1))
    assert sgd_levels(theta[:0], g[:0], **options).shape == (0, 30)
    assert sgd_levels(theta[0, 0:1].reshape(()), g[0, 0:1].reshape(()), **options).shape == ()
