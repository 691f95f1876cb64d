"""The Zarr codec: what is written is read, whole and in parts, sharded or not, by this array's metadata only."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest

pytest.importorskip("zarr", minversion="3.1")

import zarr
from zarr.codecs import TransposeCodec
from zarr.registry import register_codec

import gcodec
from gcodec.integrations.zarr import GcodecCodec

RNG = np.random.default_rng(8)
SELECTIONS = [
    (slice(None), slice(None)),
    (slice(3, 9), slice(None)),
    (5, slice(None)),
    (slice(40, 70), slice(2, 41)),
    (slice(None, None, 7), 3),
    (slice(10, 10), slice(None)),
    (99, 99),
]


@pytest.fixture(autouse=True)
def _registered():
    register_codec("gcodec", GcodecCodec)  # as the entry point does where the package is installed


def created(values, **options):
    """An array in memory with these values."""
    arguments = {"chunks": (32, 64), "serializer": GcodecCodec(), "compressors": None, **options}
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=values.shape, dtype=values.dtype, **arguments)
    array[...] = values
    return array


def bits(values):
    """The bytes of values in little-endian order: Zarr's metadata has a byte order only where the codec has one."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def numbers(kind, shape=(100, 100)):
    """Values of which some are not numbers."""
    values = RNG.normal(size=shape).astype(kind)
    values.reshape(-1)[::97] = np.nan
    values.reshape(-1)[1::97] = -0.0
    return values


@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shards": (64, 128)},
        {"chunks": (100, 100)},
        {"chunks": (7, 100), "shards": (28, 100)},
        {"config": {"order": "F"}},
    ],
    ids=["chunks", "shards", "one chunk", "rows in shards", "F order"],
)
def test_arrays_come_back_whole_and_in_parts(kind, options):
    values = numbers(kind)
    array = zarr.open_array(created(values, **options).store, mode="r")  # by its metadata
    for selection in SELECTIONS:
        assert bits(array[selection]) == bits(values[selection])
    rows = [70, 3, 3, 99]
    assert bits(array.oindex[rows, 5:9]) == bits(values[rows, 5:9])
    assert bits(array.vindex[rows, [0, 1, 2, 3]]) == bits(values[rows, [0, 1, 2, 3]])


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"shards": (12, 10, 8)}, {"chunks": (12, 10, 8)}], ids=["chunks", "shards", "one chunk"]
)
def test_transposed_chunks_of_arrays_in_any_order_of_memory_come_back(order, options):
    """Also those whose order is not its own inverse, in parts, and beside chunks that were never written."""
    values = numbers("f4", (12, 10, 8))
    transposed = {"chunks": (6, 5, 4), "filters": [TransposeCodec(order=order)], "fill_value": np.nan, **options}
    for given in (values, np.asfortranarray(values), np.ascontiguousarray(values.T).T):
        array = created(given, **transposed)
        assert array[...].tobytes() == values.tobytes()
        assert array[1:7, 2:, 3:5].tobytes() == values[1:7, 2:, 3:5].tobytes()
        array[2:5, 3:9] = -given[2:5, 3:9]
        assert array[2:5, 3:9].tobytes() == (-values[2:5, 3:9]).tobytes()
    part = zarr.create_array(
        {}, shape=values.shape, dtype="f4", serializer=GcodecCodec(), compressors=None, **transposed
    )
    part[:3] = np.asfortranarray(values)[:3]
    assert part[:3].tobytes() == values[:3].tobytes() and np.isnan(part[3:]).all()


@pytest.mark.parametrize("shape", [(), (0,), (5000,), (3, 4, 5, 6)])
def test_arrays_of_any_number_of_dimensions_come_back(shape):
    values = numbers("f4", shape)
    array = created(values, chunks=tuple(max(1, size // 2) for size in shape))
    assert np.asarray(array[...]).tobytes() == values.tobytes()


def test_parts_of_arrays_can_be_written_again():
    values = numbers("f4")
    array = created(values, shards=(64, 128))
    array[10:50, 3:80] = values[10:50, 3:80] = 7.5
    assert array[...].tobytes() == values.tobytes()


def test_chunks_are_frames_and_near_lossless_ones_have_the_bits_that_encode_keeps():
    values = RNG.normal(size=(64, 64)).astype("f4")
    array = created(values, chunks=(64, 64), serializer=GcodecCodec(mantissa_bits=6, rounding="truncate"))
    frame = gcodec.encode(values, mantissa_bits=6, rounding="truncate")
    chunk = bytes(next(data.to_bytes() for key, data in array.store._store_dict.items() if key != "zarr.json"))
    assert chunk == frame
    assert np.array_equal(array[...], gcodec.decode(frame))


@pytest.mark.parametrize(
    "codec", [GcodecCodec(), GcodecCodec(mantissa_bits=4), GcodecCodec(3, "truncate"), GcodecCodec(np.int64(4))]
)
def test_metadata_builds_the_codec_again(codec):
    assert GcodecCodec.from_dict(json.loads(json.dumps(codec.to_dict()))) == codec


@pytest.mark.parametrize("kind", ["i4", "u2", "?", "c8"])
def test_arrays_of_other_types_are_refused(kind):
    with pytest.raises(gcodec.InvalidArgument, match="leave out serializer="):
        created(np.zeros((4, 4), kind))


def test_senseless_settings_are_refused():
    for settings in ({"level": 3}, {"mantissa_bits": 99}, {"mantissa_bits": 2, "rounding": "up"}):
        with pytest.raises(gcodec.InvalidArgument):
            GcodecCodec.from_dict({"name": "gcodec", "configuration": settings})
    with pytest.raises(gcodec.InvalidArgument):  # more bits than float16 has
        created(np.zeros((4, 4), "f2"), serializer=GcodecCodec(mantissa_bits=20))


@pytest.mark.parametrize("selection", [(slice(None), slice(None)), (slice(2, 5), slice(None))])
def test_damaged_and_exchanged_chunks_are_errors(selection):
    values = numbers("f4")
    array = created(values, chunks=(100, 100))
    (key,) = (key for key in array.store._store_dict if key != "zarr.json")
    buffer = type(array.store._store_dict[key])
    whole = array.store._store_dict[key].to_bytes()
    spoilt = bytearray(whole)
    spoilt[len(spoilt) // 100] ^= 16
    others = gcodec.encode(values.T[:50]), gcodec.encode(values.astype("f8")), whole[:-9], bytes(spoilt)
    for other in (*others, whole + b"\0", whole + whole):
        array.store._store_dict[key] = buffer.from_bytes(other)
        with pytest.raises(gcodec.Corruption):
            array[selection]


def test_the_entry_point_names_the_codec():
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="zarr.codecs") if point.name == "gcodec"]
    if not found:
        pytest.skip("gcodec was installed before it had this entry point")
    assert found[0].load() is GcodecCodec


@pytest.mark.filterwarnings("ignore:Consolidated metadata")  # of Zarr, which xarray makes it write
@pytest.mark.parametrize(
    ("version", "options"),
    [
        (3, {}),
        (3, {"chunks": (7, 100)}),
        (3, {"chunks": (20, 50), "shards": (100, 100)}),
        (2, {}),
        (2, {"chunks": (7, 100)}),
    ],
    ids=["version 3", "chunks", "shards", "version 2", "chunks of version 2"],
)
def test_datasets_of_xarray_come_back_and_keep_the_codec(tmp_path, version, options):
    xarray = pytest.importorskip("xarray")
    from gcodec.integrations.numcodecs import Gcodec

    codec = {"compressors": [Gcodec()]} if version == 2 else {"serializer": GcodecCodec(), "compressors": None}
    floats = {f"float{kind[1:]}": (("x", "y"), numbers(kind)) for kind in ("f2", "f4", "f8")}
    dataset = xarray.Dataset({**floats, "step": ("x", np.arange(100))}, coords={"y": np.linspace(0, 1, 100)})
    encoding = {name: {**codec, **options} for name in floats}
    dataset.to_zarr(tmp_path / "0", encoding=encoding, zarr_format=version)
    for n in range(2):
        again = xarray.open_dataset(tmp_path / str(n), engine="zarr", chunks=None)
        assert again.identical(dataset)
        assert all(bits(again[name]) == bits(dataset[name]) for name in floats)
        group = zarr.open_group(tmp_path / str(n), mode="r")
        coded = {name for name, array in group.arrays() if "gcodec" in str(array.metadata.to_dict())}
        assert coded == floats.keys()
        again.load().to_zarr(tmp_path / str(n + 1), zarr_format=version)  # as it was read


MISSING = [
    (fill, mantissa_bits, kind)
    for fill in (1e20, -9999.0, -32767.0, -999.0, 9.969209968386869e36, -12345.678)
    for mantissa_bits in (7, 10, 12)
    for kind in ("f4", "f8")
]


def field_with_gaps(fill, kind):
    """Return temperatures, 29 % of which are missing, in contiguous places and single ones, and which are."""
    rng = np.random.default_rng(0)
    values, missing = rng.normal(280, 20, (180, 360)).astype(kind), rng.random((180, 360)) < 0.05
    missing[20:70, 100:300] = True
    values[missing] = fill
    return values, missing


@pytest.mark.parametrize(("fill", "mantissa_bits", "kind"), MISSING)
def test_rounding_leaves_fill_values_that_zarr_is_not_told_of(tmp_path, fill, mantissa_bits, kind):
    values, missing = field_with_gaps(fill, kind)
    array = zarr.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype=kind,
        chunks=(90, 90),
        compressors=None,
        serializer=GcodecCodec(mantissa_bits=mantissa_bits),
    )
    array[...] = values
    assert np.array_equal(array[...] == values.dtype.type(fill), missing)


@pytest.mark.parametrize("told", ["by the array", "by the codec"])
def test_a_rare_fill_value_is_kept_where_the_codec_is_told_of_it(tmp_path, told):
    values = np.random.default_rng(0).normal(280, 20, (100, 100)).astype("f4")
    values[7, 7] = 281.2345
    fill, keep = (values[7, 7], None) if told == "by the array" else (0, (281.2345,))
    array = zarr.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype="f4",
        chunks=(50, 50),
        compressors=None,
        serializer=GcodecCodec(mantissa_bits=7, keep=keep),
        fill_value=fill,
    )
    array[...] = values
    again = zarr.open_array(tmp_path / "a")
    assert again[7, 7] == values[7, 7] and np.allclose(again[...], values, rtol=2.0**-8)
    assert again.metadata.codecs[0] == GcodecCodec(mantissa_bits=7, keep=keep)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("fill", "mantissa_bits", "kind"), MISSING)
def test_what_is_missing_for_xarray_stays_missing_after_rounding(tmp_path, fill, mantissa_bits, kind, version):
    xarray = pytest.importorskip("xarray")
    from gcodec.integrations.numcodecs import Gcodec

    values, missing = field_with_gaps(np.nan, kind)
    settings = (
        {"compressors": [Gcodec(mantissa_bits=mantissa_bits)]}
        if version == 2
        else {"serializer": GcodecCodec(mantissa_bits=mantissa_bits), "compressors": None}
    )
    dataset = xarray.Dataset({"t": (("y", "x"), values)})
    dataset.to_zarr(tmp_path / "t", encoding={"t": {**settings, "_FillValue": fill}}, zarr_format=version)
    again = xarray.open_dataset(tmp_path / "t", engine="zarr", chunks=None)
    assert np.array_equal(np.isnan(again["t"].values), missing)
