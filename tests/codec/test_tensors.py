"""The laws of arrays in and out: layouts in memory, byte orders, numpy and torch, types that numpy lacks."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import warnings

import numpy as np
import pytest

import gcodec
from gcodec import InvalidArgument, Unsupported
from tests.support import laws
from tests.support.bit_patterns import BITS_ONLY, KINDS, gaussian, specials
from tests.support.cases import Case
from tests.support.paths import ROOT

FLOATS = ("float32", "float64", "float16")
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


def grid(dtype: str, *shape: int) -> np.ndarray:
    """Return bits of a type in a shape, NaN payloads and all."""
    kind = KINDS[dtype]
    n = int(np.prod(shape))
    some = np.concatenate([specials(kind), gaussian(kind, np.random.default_rng(n), n, zeros=0.1)])[:n]
    return np.random.default_rng(1).permutation(some).reshape(shape)


# numpy


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: np.asfortranarray(x),
        lambda x: x.T,
        lambda x: x[::2],
        lambda x: x[:, ::-1],
        lambda x: x[::-1, ::-2],
        lambda x: x[3:9, 5:6],
        lambda x: x[:, None, :],
        lambda x: x.transpose(1, 0)[2:4],
        lambda x: np.broadcast_to(x[:1], (30, 40)),
        lambda x: np.broadcast_to(x[0, 0], (300,)),
        lambda x: np.lib.stride_tricks.sliding_window_view(x[0], 7),
        lambda x: x.reshape(-1)[1:-1],
        lambda x: x[0, 0],
        lambda x: x[0, 0:1].reshape(()),
        lambda x: x[:0],
        lambda x: np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(x.dtype),
        lambda x: x[:4, :5].view(Subclass),
    ],
    ids=lambda call: f"layout {call.__code__.co_firstlineno}",
)
def test_arrays_of_any_layout_in_memory_are_encoded(dtype, layout):
    bits = grid(dtype, 20, 40)
    x = layout(bits.view(dtype))
    frame = laws.check_round_trip(np.asarray(x), np.ascontiguousarray(layout(bits)).reshape(np.shape(x)))
    assert frame == gcodec.encode(np.ascontiguousarray(x).reshape(np.shape(x)))
    laws.check_agreement(frame)


class Subclass(np.ndarray):
    """An array of another class, as libraries have them."""


@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_of_other_byte_orders_are_encoded(dtype):
    bits = grid(dtype, 30, 9)
    x = bits.astype(bits.dtype.newbyteorder(">")).view(np.dtype(dtype).newbyteorder(">"))
    decoded = gcodec.decode(laws.check_round_trip(x, bits))
    assert decoded.dtype == np.dtype(dtype)
    assert gcodec.encode(x) == gcodec.encode(bits.view(dtype))
    laws.check_round_trip(x.T[::-1], np.ascontiguousarray(bits.T[::-1]))


@pytest.mark.parametrize("dtype", BITS_ONLY)
def test_raw_bits_of_other_byte_orders_are_encoded(dtype):
    bits = grid(dtype, 30, 9)
    x = bits.astype(bits.dtype.newbyteorder(">"))
    assert gcodec.encode(x, dtype=dtype) == gcodec.encode(bits, dtype=dtype)


def test_read_only_arrays_and_levels_are_encoded():
    bits = grid("float32", 700)
    x = bits.view(np.float32)
    x.setflags(write=False)
    laws.check_round_trip(x, bits)
    levels = np.zeros(700, np.uint8)
    levels.setflags(write=False)
    assert gcodec.encode(x, levels=levels) == gcodec.encode(x.copy(), levels=levels.copy())


def test_lists_and_scalars_are_encoded_as_numpy_converts_them():
    assert gcodec.decode(gcodec.encode([1.5, -2.0])).tolist() == [1.5, -2.0]
    assert gcodec.decode(gcodec.encode([1.5, -2.0])).dtype == np.float64
    assert gcodec.decode(gcodec.encode(3.25)).shape == ()
    assert gcodec.decode(gcodec.encode(np.float32(3.25))).dtype == np.float32


def test_decoded_arrays_may_be_written_to():
    decoded = gcodec.decode(gcodec.encode(grid("float32", 5, 8).view(np.float32)))
    assert decoded.flags.writeable
    assert decoded.flags.c_contiguous
    decoded[...] = 0


@pytest.mark.parametrize("dtype", BITS_ONLY)
def test_types_that_numpy_lacks_are_decoded_as_ml_dtypes_or_bits(dtype):
    bits = grid(dtype, 13, 50)
    decoded = gcodec.decode(gcodec.encode(bits, dtype=dtype))
    assert decoded.dtype.name == dtype if HAS_ML_DTYPES else decoded.dtype == bits.dtype
    laws.assert_same_bits(decoded, bits)
    out = np.empty_like(bits)
    assert gcodec.decode(gcodec.encode(bits, dtype=dtype), out=out) is out
    assert np.array_equal(out, bits)


@pytest.mark.skipif(not HAS_ML_DTYPES, reason="needs ml_dtypes")
@pytest.mark.parametrize("dtype", BITS_ONLY)
def test_arrays_of_ml_dtypes_need_no_named_type(dtype):
    import ml_dtypes

    bits = grid(dtype, 13, 50)
    x = bits.view(getattr(ml_dtypes, dtype))
    assert laws.check_round_trip(x, bits) == gcodec.encode(bits, dtype=dtype)
    assert gcodec.encode(x, dtype=dtype) == gcodec.encode(x)
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(x, dtype="float16"))


def test_the_type_may_be_named_where_it_is_known():
    for dtype in FLOATS:
        bits = grid(dtype, 77)
        frame = gcodec.encode(bits.view(dtype), dtype=dtype)
        assert frame == gcodec.encode(bits.view(dtype)) == gcodec.encode(bits, dtype=dtype)


def test_outputs_of_other_shapes_and_slices_are_filled():
    bits = grid("float32", 4, 6)
    frame = gcodec.encode(bits.view(np.float32))
    for shape in ((24,), (6, 4), (2, 3, 4), (1, 24)):
        out = np.empty(shape, np.float32)
        assert gcodec.decode(frame, out=out) is out
        laws.assert_same_bits(out.reshape(4, 6), bits)
    inner = np.full((10, 6), 7, np.float32)
    gcodec.decode(frame, out=inner[3:7])
    laws.assert_same_bits(inner[3:7], bits)
    assert (inner[:3] == 7).all()
    assert (inner[7:] == 7).all()


def test_outputs_that_are_not_aligned_are_filled():
    bits = grid("float64", 50)
    out = np.zeros(1 + 8 * 50, np.uint8)[1:].view(np.float64)
    gcodec.decode(gcodec.encode(bits.view(np.float64)), out=out)
    laws.assert_same_bits(out, bits)


# torch


@pytest.fixture
def torch():
    """The package, where it is installed."""
    return pytest.importorskip("torch")


def as_tensor(torch, dtype, bits):
    """A tensor of these bits, in their shape."""
    integers = torch.from_numpy(bits.reshape(-1).view(f"i{bits.itemsize}").copy())
    return integers.view(getattr(torch, dtype)).reshape(bits.shape)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    "name",
    [
        "every corner of the type",
        "corners among gaussian values",
        "empty",
        "empty of three dimensions",
        "0-d",
        "three dimensions",
        "all zero",
        "noise",
        "a block and one",
    ],
)
def test_tensors_of_every_type_obey_the_laws_of_arrays(torch, dtype, name):
    which = Case(dtype, name)
    x = as_tensor(torch, dtype, which.bits)
    frame = laws.check_round_trip(x, which.bits)
    assert frame[7] == 1
    assert frame[8:40] == gcodec.encode(which.array(), **which.options)[8:40]
    laws.check_agreement(frame)
    laws.check_encode_buffers(x, frame)
    laws.check_decode_buffers(frame)
    assert gcodec.encode(x, dtype=dtype) == frame
    assert isinstance(gcodec.decode_range(frame, 0, 0), torch.Tensor)


@pytest.mark.parametrize("dtype", KINDS)
def test_tensors_of_any_layout_are_encoded(torch, dtype):
    bits = grid(dtype, 20, 30)
    x = as_tensor(torch, dtype, bits)
    for tensor, wanted in (
        (x.t(), bits.T),
        (x[::3], bits[::3]),
        (x[2:5, 7:], bits[2:5, 7:]),
        (x[:, 4], bits[:, 4]),
        (x[:1].expand(9, 30), np.broadcast_to(bits[:1], (9, 30))),
        (x[0, 0].expand(500), np.broadcast_to(bits[0, 0], (500,))),
        (x[:, :1].expand(20, 13), np.broadcast_to(bits[:, :1], (20, 13))),
        (x.unsqueeze(1).permute(2, 0, 1), bits[:, None].transpose(2, 0, 1)),
        (x.reshape(-1)[1:], bits.reshape(-1)[1:]),
        (x[0, 0], bits[0, 0].reshape(())),
    ):
        frame = laws.check_round_trip(tensor, np.ascontiguousarray(wanted).reshape(wanted.shape))
        assert tuple(gcodec.decode(frame).shape) == tuple(tensor.shape)
        assert gcodec.decode(frame).is_contiguous()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_channels_last_tensors_keep_their_values(torch, dtype):
    bits = grid(dtype, 2, 3, 5, 7)
    x = as_tensor(torch, dtype, bits).to(memory_format=torch.channels_last)
    laws.check_round_trip(x, bits)


def test_tensors_with_a_gradient_are_encoded_without_it(torch):
    bits = grid("float32", 40, 10)
    x = as_tensor(torch, "float32", bits).requires_grad_()
    decoded = gcodec.decode(laws.check_round_trip(x, bits))
    assert not decoded.requires_grad
    grown = x * 1
    assert grown.grad_fn is not None
    gcodec.decode(gcodec.encode(grown))
    parameter = torch.nn.Parameter(x.detach().clone())
    laws.check_round_trip(parameter, bits)


def test_negative_views_are_encoded_and_complex_tensors_refused(torch):
    z = torch.randn(30, 2, dtype=torch.complex64)
    negative = z.conj().imag
    assert negative.is_neg()
    laws.check_round_trip(negative, (-z.imag.clone()).numpy().view(np.uint32))
    laws.check_round_trip(z.real, np.ascontiguousarray(z.real.numpy()).view(np.uint32))
    laws.check_round_trip(z.conj().real, np.ascontiguousarray(z.real.numpy()).view(np.uint32))
    for tensor in (z, z.conj()):
        laws.check_refused(InvalidArgument, lambda: gcodec.encode(tensor))  # noqa: B023 - called here


def test_sparse_integer_complex_and_meta_tensors_are_refused(torch):
    x = torch.zeros(4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about its sparse layouts
        refused = [x.to_sparse(), x.to_sparse_csr()]
    refused += [
        x.int(),
        x.bool(),
        x.to(torch.uint8),
        x.to(torch.complex128),
        torch.zeros(3, dtype=torch.float8_e4m3fnuz),
    ]
    for tensor in refused:
        laws.check_refused(InvalidArgument, lambda: gcodec.encode(tensor))  # noqa: B023 - called here
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(x, dtype="bfloat16"))
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(x.to(torch.uint16), dtype="bfloat16"))
    laws.check_refused(Unsupported, lambda: gcodec.encode(torch.zeros(4, device="meta")))
    assert gcodec.encode(torch.zeros(4), device=torch.device("cpu")) == gcodec.encode(torch.zeros(4), device="cpu")
    laws.check_refused(InvalidArgument, lambda: gcodec.encode(torch.zeros(4), device=torch.device("meta")))


def test_decode_fills_tensors_of_the_same_type_and_size(torch):
    bits = grid("bfloat16", 6, 8)
    frame = gcodec.encode(as_tensor(torch, "bfloat16", bits))
    out = torch.zeros(48, dtype=torch.bfloat16)
    assert gcodec.decode(frame, out=out) is out
    laws.assert_same_bits(out, bits.reshape(-1))
    leaf = torch.zeros(48, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(InvalidArgument, match=r"requires gradients: pass out\.detach\(\)$"):
        gcodec.decode(frame, out=leaf)
    laws.assert_same_bits(gcodec.decode(frame, out=leaf.detach()), bits.reshape(-1))
    for wrong in (
        torch.zeros(47, dtype=torch.bfloat16),
        torch.zeros(48),
        torch.zeros(48, dtype=torch.float16),
        torch.zeros(96, dtype=torch.bfloat16)[::2],
        torch.zeros(8, 6, dtype=torch.bfloat16).t(),
        torch.zeros(48, dtype=torch.bfloat16, device="meta"),
        leaf,
    ):
        laws.check_refused(InvalidArgument, lambda: gcodec.decode(frame, out=wrong))  # noqa: B023 - called here
    for wrong, why in (
        (leaf, r"requires gradients: pass out\.detach\(\)"),
        (out.expand(2, 48)[0:0], "shape"),
        (torch.zeros(96, dtype=torch.bfloat16)[::2], "not contiguous"),
        (torch.zeros(48, dtype=torch.bfloat16, device="meta"), "on meta"),
        (torch.eye(7).to_sparse(), "sparse|float32"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            gcodec.decode(frame, out=wrong)
    with torch.no_grad():
        gcodec.decode(frame, out=leaf)
    laws.assert_same_bits(leaf, bits.reshape(-1))


def test_an_output_that_stands_for_other_memory_is_refused_or_filled(torch):
    """A lazily negated view holds the negative of its memory."""
    frame = gcodec.encode(torch.ones(4))
    for lazy in (torch._neg_view(torch.zeros(4)), torch.zeros(1, dtype=torch.complex64).conj().imag):
        assert lazy.is_neg()
        try:
            gcodec.decode(frame, out=lazy)
        except InvalidArgument:
            continue
        assert torch.equal(lazy, torch.ones(4))
    laws.check_refused(InvalidArgument, lambda: gcodec.decode(frame, out=torch.zeros(1).expand(4)))


def test_decode_returns_the_kind_of_array_encoded_or_asked_for(torch):
    bits = grid("float32", 5, 7)
    from_array, from_tensor = gcodec.encode(bits.view(np.float32)), gcodec.encode(as_tensor(torch, "float32", bits))
    assert from_array[48:] == from_tensor[48:]  # the same but for the kind, and the checksum
    for frame in (from_array, from_tensor):
        for like, kind in (("numpy", np.ndarray), ("torch", torch.Tensor)):
            for decoded in (gcodec.decode(frame, like=like), gcodec.decode_range(frame, 0, 35, like=like)):
                assert isinstance(decoded, kind)
                assert np.array_equal(laws.bits_of(decoded), bits.reshape(-1))
    assert isinstance(gcodec.decode(from_tensor), torch.Tensor)
    assert isinstance(gcodec.decode(from_array), np.ndarray)
    out = np.empty(35, np.float32)
    gcodec.decode(from_tensor, out=out)
    laws.assert_same_bits(out, bits.reshape(-1))


def test_levels_of_tensors_follow_their_layout(torch):
    x = as_tensor(torch, "float32", grid("float32", 20, 30))
    levels = torch.arange(600).reshape(20, 30).remainder(8).to(torch.uint8)
    frame = gcodec.encode(x, levels=levels)
    assert frame[6:8] == b"\x02\x01"
    assert frame[48:] == gcodec.encode(x.numpy(), levels=levels.numpy())[48:]
    turned = gcodec.encode(x.t(), levels=levels.t())
    assert np.array_equal(laws.bits_of(gcodec.decode(turned).t()), laws.bits_of(gcodec.decode(frame)))


def test_without_torch_frames_are_decoded_to_arrays_and_tensors_are_refused():
    program = """
import sys
sys.modules["torch"] = None
import numpy as np, gcodec, gcodec.errors
x = np.linspace(0, 1, 100, dtype=np.float32)
frame = bytearray(gcodec.encode(x))
assert np.array_equal(gcodec.decode(bytes(frame), like="numpy"), x)
for call in (
    lambda: gcodec.decode(bytes(frame), like="torch"),
    lambda: gcodec.decode_range(bytes(frame), 0, 2, like="torch"),
    lambda: gcodec.decode(bytes(frame), device="cuda"),
    lambda: gcodec.warmup(device="cuda"),
    lambda: gcodec.gpu.decode_batch([bytes(frame)]),
):
    try:
        call()
    except gcodec.errors.NotInstalled as error:
        assert "needs torch: pip install torch" in str(error), error
    else:
        raise AssertionError("nothing was raised")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_backward_pass_that_saved_what_is_decoded_over_says_so(torch):
    frame = gcodec.encode(torch.zeros(1000))
    doubled = 2 * torch.ones(1000, requires_grad=True)
    loss = (doubled * doubled).sum()
    with torch.no_grad():
        gcodec.decode(frame, out=doubled)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes"),
    ],
)
def test_a_copy_that_finds_no_memory_is_a_memory_error_and_no_other_kind_of_tensor(torch, kind, text, monkeypatch):
    def fail(tensor):
        raise getattr(torch, kind, RuntimeError)(text)

    tensor = torch.ones(4, 5).t()
    monkeypatch.setattr(torch.Tensor, "contiguous", fail)
    with pytest.raises(MemoryError, match="allocate"):
        gcodec.encode(tensor)
