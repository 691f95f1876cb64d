"""The numcodecs codec takes and returns what numcodecs asks of a codec, for every type, byte order and memory order."""

from __future__ import annotations

import array
import json
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numcodecs")

import numcodecs

import gcodec
from gcodec.integrations.numcodecs import Gcodec

RNG = np.random.default_rng(5)
VALUES = RNG.normal(size=6000)
ARRAYS = {
    "line": VALUES,
    "matrix": VALUES.reshape(60, 100),
    "cube, F order": VALUES.reshape(10, 20, 30, order="F"),
    "matrix, F order": np.asfortranarray(VALUES.reshape(100, 60)),
    "special": np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-7, 60000.0]),
    "one": np.array([[1.5]]),
    "none": np.zeros((0, 3)),
}
#: What numcodecs' callers hand bytes over as.
BUFFERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "array.array": lambda content: array.array("b", content),
    "array of uint8": lambda content: np.frombuffer(content, np.uint8),
}
TYPES = ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2"]


@pytest.fixture(autouse=True)
def _registered():
    numcodecs.register_codec(Gcodec)  # as the entry point does where the package is installed


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_arrays_come_back_flat_with_their_type_or_into_what_the_caller_has(values, kind):
    given = values.astype(kind)
    content = given.tobytes(order="A")
    for codec in (Gcodec(), Gcodec(dtype=kind), Gcodec(dtype=np.dtype(kind).name)):
        encoded = codec.encode(given)
        for buffer in BUFFERS.values():
            decoded = codec.decode(buffer(encoded))
            assert isinstance(decoded, np.ndarray)
            assert (decoded.shape, decoded.dtype) == ((given.size,), given.dtype)
            assert decoded.tobytes() == content
        for out in (np.zeros_like(given), bytearray(given.nbytes)):
            assert codec.decode(encoded, out=out) is out
            assert (out.tobytes(order="A") if isinstance(out, np.ndarray) else out) == content


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
def test_buffers_come_back_as_the_values_of_the_codecs_type(buffer, kind):
    for values in ARRAYS.values():
        content = values.astype(kind).tobytes(order="A")
        decoded = Gcodec(dtype=kind).decode(Gcodec(dtype=kind).encode(buffer(content)))
        assert decoded.dtype == np.dtype(kind)
        assert decoded.tobytes() == content


def test_configurations_and_representations_build_the_codec_again():
    for codec in (Gcodec(), Gcodec(dtype=">f4"), Gcodec("bfloat16", mantissa_bits=3, rounding="truncate")):
        again = numcodecs.get_codec(json.loads(json.dumps(codec.get_config())))
        assert again == codec
        assert eval(repr(codec)) == codec


@pytest.mark.parametrize("dtype", [np.float32, np.dtype(">f8"), "float32", ">f8"])
@pytest.mark.parametrize("bits", [np.int64(5), np.uint8(5), 5])
def test_a_configuration_is_json_where_arguments_are_those_of_numpy(dtype, bits):
    codec = Gcodec(dtype, mantissa_bits=bits)
    assert numcodecs.get_codec(json.loads(json.dumps(codec.get_config()))) == codec
    values = VALUES.astype(dtype)
    assert codec.encode(values) == Gcodec(mantissa_bits=5).encode(values)


def test_objects_are_refused():
    with pytest.raises(TypeError):
        Gcodec().encode(np.array(["a", 1.5], object))
    with pytest.raises(TypeError):
        Gcodec().decode(Gcodec().encode(VALUES), out=np.empty(VALUES.size, object))


@pytest.mark.parametrize("kind", ["i4", "u2", "?", "S3", "U3", "M8[s]", "c8"])
def test_what_holds_no_floats_is_refused(kind):
    with pytest.raises(gcodec.InvalidArgument, match="floating-point values"):
        Gcodec().encode(np.zeros(12, kind))


@pytest.mark.parametrize("codec", [Gcodec(), Gcodec(dtype="float64"), Gcodec(dtype=">f8")])
def test_masked_arrays_are_refused(codec):
    with pytest.raises(gcodec.InvalidArgument, match="buf must not be a masked array, for its mask would be lost"):
        codec.encode(np.ma.masked_array([1.0, 2.0], [True, False]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_lacks_come_as_bits(dtype):
    bits = RNG.integers(0, 256, 4096).astype(np.uint8)
    codec = Gcodec(dtype=dtype)
    for given in (bits, bits.tobytes(), bits.view(np.uint16) if dtype == "bfloat16" else bits):
        encoded = codec.encode(given)
        assert gcodec.inspect(encoded).dtype == dtype
        assert codec.decode(encoded).tobytes() == bits.tobytes()


def test_types_of_ml_dtypes_are_kept():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = VALUES.astype(ml_dtypes.bfloat16)
    decoded = Gcodec().decode(Gcodec().encode(values))
    assert decoded.dtype == values.dtype
    assert decoded.tobytes() == values.tobytes()


def test_frames_are_those_of_gcodec():
    values = VALUES.astype(np.float32).reshape(60, 100)
    assert Gcodec().encode(values) == gcodec.encode(values)
    assert Gcodec().encode(values.astype(">f4")) == b">" + gcodec.encode(values)
    rounded = gcodec.decode(gcodec.encode(values, mantissa_bits=5))
    assert np.array_equal(Gcodec(mantissa_bits=5).decode(Gcodec(mantissa_bits=5).encode(values)), rounded.reshape(-1))


@pytest.mark.parametrize(
    "arguments",
    [
        {"dtype": "int32"},
        {"dtype": "nonsense"},
        {"mantissa_bits": 99},
        {"mantissa_bits": 3, "rounding": "up"},
    ],
)
def test_senseless_arguments_are_refused(arguments):
    with pytest.raises(gcodec.InvalidArgument):
        Gcodec(**arguments)


def test_damage_and_wrong_sizes_are_errors():
    encoded = Gcodec().encode(VALUES)
    for wrong in (encoded + b"<", encoded + b">>", bytes(40), encoded[:-1]):
        with pytest.raises(gcodec.Corruption):
            Gcodec().decode(wrong)
    spoilt = bytearray(encoded)
    spoilt[len(spoilt) // 2] ^= 4
    with pytest.raises(gcodec.Corruption):
        Gcodec().decode(spoilt)
    for out in (np.zeros(3), bytes(VALUES.nbytes)):
        with pytest.raises(gcodec.InvalidArgument, match="out must be"):
            Gcodec().decode(encoded, out=out)
    with pytest.raises(gcodec.InvalidArgument, match="no values"):
        Gcodec(dtype="float32").encode(b"12345")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("values", ARRAYS.values(), ids=ARRAYS)
def test_a_chunk_that_is_cut_short_anywhere_is_refused(values, kind):
    encoded = Gcodec().encode(values.astype(kind))
    for stop in {*range(0, len(encoded), 97), *range(max(len(encoded) - 12, 0), len(encoded))}:
        with pytest.raises(gcodec.Corruption):
            Gcodec().decode(encoded[:stop])


def test_big_endian_chunks_of_earlier_snapshots_are_read():
    values = VALUES.astype(">f4")
    earlier = gcodec.encode(values.astype("<f4")) + b">"
    decoded, out = Gcodec().decode(earlier), np.empty_like(values)
    assert decoded.dtype == values.dtype
    assert decoded.tobytes() == values.tobytes()
    Gcodec().decode(earlier, out=out)
    assert out.tobytes() == values.tobytes()
    with pytest.raises(gcodec.Corruption, match="follow"):
        Gcodec().decode(b">" + earlier)


def test_the_entry_point_names_the_codec():
    found = [point for point in entry_points(group="numcodecs.codecs") if point.name == "gcodec"]
    if not found:
        pytest.skip("gcodec was installed before it had this entry point")
    assert found[0].load() is Gcodec
    assert numcodecs.get_codec(json.loads('{"id": "gcodec", "mantissa_bits": 7}')) == Gcodec(mantissa_bits=7)


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8"])
def test_rounding_leaves_fill_values(kind):
    values = np.random.default_rng(0).normal(280, 20, 20_000).astype(kind)
    values[::3], values[7], values[8] = 1e20, -9999, -54321.987
    for data, dtype in ((values, None), (values.tobytes(), kind)):
        codec = Gcodec(dtype=dtype, mantissa_bits=7, keep=-54321.987)
        back = codec.decode(codec.encode(data)).view(kind)
        same = back == values
        assert same[::3].all() and same[7:9].all() and same.mean() < 0.4
        assert numcodecs.get_codec(json.loads(json.dumps(codec.get_config()))) == codec
    assert "keep" not in Gcodec(mantissa_bits=7).get_config()
