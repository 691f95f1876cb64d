"""The laws of states packed into text: tensors, arrays and keys come back as they were, damaged text is refused."""

from __future__ import annotations

import base64
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

import gcodec
from gcodec.averaging.state import pack_state, unpack_state


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (0, 4), (3,), (50, 40)])
def test_float_tensors_of_a_packed_state_keep_their_bits(dtype, shape):
    """Tensors come back bit for bit, whatever is in them."""
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    if tensor.numel() > 2:
        tensor.view(-1)[:3] = torch.tensor([math.nan, -0.0, -math.inf])
    result = unpack_state(pack_state({"x": tensor, "y": None}))["x"]
    assert result.dtype == dtype
    assert result.shape == tensor.shape
    assert bool((result.reshape(-1).view(torch.uint8) == tensor.reshape(-1).view(torch.uint8)).all())


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.booleans(), st.none())
STATES = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
        st.dictionaries(st.floats(allow_nan=False), inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


@given(STATES)
def test_packed_states_keep_their_keys(state):
    assert unpack_state(pack_state(state)) == state


@pytest.mark.parametrize("tensor", [torch.arange(6).view(2, 3), torch.tensor(7), torch.tensor([True, False])])
def test_integer_and_bool_tensors_of_a_packed_state_keep_their_values(tensor):
    result = unpack_state(pack_state({"x": tensor}))["x"]
    assert result.dtype == tensor.dtype
    assert torch.equal(result, tensor)


def test_arrays_of_a_packed_state_keep_their_values():
    counts = np.arange(7, dtype=np.int64)
    assert np.array_equal(unpack_state(pack_state({"counts": counts}))["counts"], counts)


#: A frame of a numpy array, where packed states have tensors.
OF_NUMPY = f'{{"gcodec.tensor": "{base64.b64encode(gcodec.encode(np.ones(3, np.float32))).decode()}"}}'


@pytest.mark.parametrize(
    "damage",
    [
        "{",
        '{"gcodec.tensor": "AAAA"}',
        '{"gcodec.tensor": 5}',
        '{"gcodec.pairs": [1]}',
        '{"array": "<f4", "base64": "AAA"}',
        '{"gcodec.plain_tensor": {"array": "<f4", "base64": ""}, "shape": 3}',
        '{"array": "(", "base64": ""}',
        '{"gcodec.plain_tensor": {"array": "<i4", "base64": ""}, "shape": [2]}',
        pytest.param("[" * 100_000, id="deep"),
        pytest.param(OF_NUMPY, id="numpy"),
    ],
)
def test_damaged_packed_states_are_refused(damage):
    with pytest.raises(gcodec.GcodecError):
        unpack_state(damage)
