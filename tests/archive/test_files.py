"""The laws of reading files: told by content, cut where tensors are; malformed files are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import math
import mmap
import pickle
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as safetensors_bytes

from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported, WrongKind
from gcodec.files import ArraySource, FilePlan, open_source, plan_file, plan_or_bytes
from gcodec.files.elements import name_of, numpy_dtype, stored_as, width
from gcodec.files.safetensors import safetensors_header
from gcodec.files.torch_pickle import named_tensors, read_pickle


def plan(data: bytes, path: str = "x", **options) -> FilePlan:
    return plan_file(path, ArraySource([np.frombuffer(data, np.uint8)]), **options)


def npy(array: np.ndarray, **options) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def npz(arrays: Mapping[str, np.ndarray], compressed: bool = False) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def torch_file(value: object, **options) -> bytes:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def array_of(found: FilePlan, name: str) -> np.ndarray:
    """Return a tensor's values, looked up where the plan says they are."""
    view = next(view for view in found.tensors if view.name == name)
    segment = found.segments[view.segment]
    dtype = numpy_dtype(view.dtype)
    assert dtype is not None
    values = found.source.read(segment.start, segment.stop).view(dtype)[view.offset :]
    if view.stride is None:
        return values[: int(np.prod(view.shape))].reshape(view.shape)
    return np.lib.stride_tricks.as_strided(values, view.shape, [step * dtype.itemsize for step in view.stride])


ARRAYS: dict[str, np.ndarray] = {
    "float32": np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 4, 5),
    "fortran": np.asfortranarray(np.arange(20, dtype=np.float64).reshape(4, 5)),
    "scalar": np.array(0.5, np.float16),
    "empty": np.empty((0, 3), np.float32),
    "complex": np.arange(6, dtype=np.complex64).reshape(2, 3),
    "integers": np.arange(-5, 5),
    "big-endian": np.arange(7, dtype=">f8"),
    "text": np.array(["a", "bcd"]),
    "dates": np.array(["2024-01-01", "1999-12-31"], "datetime64[D]"),
    "booleans": np.array([True, False]),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_npy_arrays_are_found_in_their_file(array):
    found = plan(npy(array), "x.npy")
    assert found.format == "npy" and found.exact
    assert np.array_equal(array_of(found, "x"), array)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float16"),
        ("complex64", "float32"),
        ("complex128", "float64"),
        ("int32", None),
        (">f4", None),
        ("<U3", None),
    ],
)
def test_only_floats_of_native_byte_order_are_coded_as_values(dtype, stored):
    assert plan(npy(np.zeros(3, dtype)), "x.npy").segments[0].dtype == stored


def test_npy_raw_bits_can_be_given_their_type():
    found = plan(npy(np.zeros((2, 3), np.uint16)), "x.npy", dtype="bfloat16")
    assert found.segments[0].dtype == found.tensors[0].dtype == "bfloat16"
    with pytest.raises(InvalidArgument, match="cannot hold"):
        plan(npy(np.zeros(3, np.uint16)), "x.npy", dtype="float32")
    with pytest.raises(InvalidArgument, match=r"^x\.npy: an array of float32 .* is for arrays of uint16$"):
        plan(npy(np.zeros(3, np.float32)), "x.npy", dtype="bfloat16")
    with pytest.raises(InvalidArgument, match="cannot hold"):
        plan(npy(np.zeros(3, np.float32)), "x.npy", dtype="float32")


def test_a_file_without_header_can_be_given_its_type():
    found = plan(np.arange(5, dtype=np.float32).tobytes(), "x.f32", dtype="float32")
    assert found.format == "raw" and np.array_equal(array_of(found, "x"), np.arange(5))
    with pytest.raises(InvalidArgument, match="whole number"):
        plan(bytes(7), dtype="float32")


def test_npy_files_of_objects_are_plain_bytes():
    found = plan(npy(np.array([{}, 1], object), allow_pickle=True), "x.npy")
    assert found.format == "bytes" and not found.tensors and "Python objects" in found.note


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
        b"(" * 2000,
        b"\x00",
        b"open('x')",
        b"{'descr': '<f4', 'fortran_order': 0, 'shape': (3,)}",
        b"{'descr': 7, 'fortran_order': False, 'shape': (3,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}",
    ],
)
def test_malformed_npy_headers_are_refused(header):
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12)
    with pytest.raises(Corruption):
        plan(data, "x.npy")


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.safetensors"])
def test_content_that_does_not_fit_the_files_name_is_refused(name):
    with pytest.raises(WrongKind, match="its content is not of that format; this is text"):
        plan(b"something else", name)
    with pytest.raises(Corruption, match=r"its content is not of that format$"):
        plan(bytes(100), name)
    source = ArraySource([np.frombuffer(b"something else", np.uint8)])
    kept = plan_or_bytes(name, source)
    assert kept.format == "bytes" and kept.note


def test_safetensors_are_cut_tensor_by_tensor():
    tensors: dict[str, np.ndarray] = {"b": ARRAYS["float32"], "a": np.arange(4), "one": np.array(2.5)}
    tensors["nothing"] = np.empty((0, 2), np.float32)
    found = plan(safetensors_bytes(tensors, {"who": "me"}), "x.safetensors")
    assert found.metadata == {"who": "me"}
    assert {view.name for view in found.tensors} == set(tensors)
    assert all(np.array_equal(array_of(found, name), array) for name, array in tensors.items())


def safetensors(header: object, data: bytes = b"", raw: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if raw is None else raw
    return len(text).to_bytes(8, "little") + text + data


GOOD = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": GOOD}, 3),
        ({"a": GOOD}, 5),
        ({"a": GOOD | {"data_offsets": [1, 5]}}, 5),
        ({"a": GOOD | {"shape": [2]}}, 4),
        ({"a": GOOD, "b": GOOD}, 4),
        ({"a": GOOD | {"dtype": "F31"}}, 4),
        ({"a": GOOD | {"data_offsets": [4, 0]}}, 4),
        ({"a": GOOD | {"shape": [-1]}}, 4),
        ({"a": GOOD | {"shape": [1.0]}}, 4),
        ({"a": GOOD | {"shape": [True]}}, 4),
        ({"a": GOOD | {"data_offsets": [0]}}, 4),
        ({"a": 5}, 0),
        ({"a": GOOD, "__metadata__": {"k": 1}}, 4),
        ([], 0),
        ({"a": GOOD | {"shape": [1] * 65}}, 4),
        ({"a": GOOD | {"data_offsets": [0, 1 << 70]}}, 4),
    ],
)
def test_malformed_safetensors_are_refused(header, size):
    with pytest.raises(Corruption):
        plan(safetensors(header, bytes(size)), "x.safetensors")


@pytest.mark.parametrize("raw", [b'{"a":1,"a":2}', b"{", b"[" * 5000, b"{\xff}", b'{"a": NaN}', b"{}x"])
def test_safetensors_headers_that_are_not_json_are_refused(raw):
    with pytest.raises(Corruption):
        plan(safetensors(None, raw=raw), "x.safetensors")


@pytest.mark.parametrize("metadata", [None, {}, {"a": "b", 'quoted "\\': "\n\u00e9"}])
def test_headers_of_safetensors_are_what_json_makes_of_their_entries(metadata):
    names = ["a", "layers.0.weight", 'quoted "\\/', "new\nline\t", "\u00e9\u4e2d\U0001f600", ""]
    shapes = [(), (3,), (2, 5), (0,), (1, 1, 4), (7,)]
    tensors = {name: ("float32", shape, 4 * math.prod(shape)) for name, shape in zip(names, shapes, strict=True)}
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, (_, shape, size) in tensors.items():
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    header = safetensors_header(tensors, metadata)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    assert header[8:].rstrip(b" ") == text
    assert int.from_bytes(header[:8], "little") == len(header) - 8 == len(text) + -len(text) % 8


def test_a_safetensors_header_longer_than_the_file_is_refused():
    with pytest.raises(GcodecError):
        plan((1 << 60).to_bytes(8, "little") + b"{}", "x.safetensors")


def test_members_of_an_npz_are_found_as_arrays():
    arrays = {"x": ARRAYS["float32"], "folder/y": ARRAYS["fortran"], "n": np.arange(3), "e": ARRAYS["empty"]}
    found = plan(npz(arrays), "x.npz")
    assert found.format == "npz" and found.exact
    assert all(np.array_equal(array_of(found, name), array) for name, array in arrays.items())


def test_a_compressed_npz_is_written_again_uncompressed():
    arrays = {"x": ARRAYS["float32"], "n": np.arange(3)}
    with closing(plan(npz(arrays, compressed=True), "x.npz")) as found:
        assert not found.exact and "uncompressed" in found.note
        assert all(np.array_equal(array_of(found, name), array) for name, array in arrays.items())
        remade = np.load(io.BytesIO(found.source.read(0, found.source.size).tobytes()))
        assert remade.files == ["x", "n"] and np.array_equal(remade["x"], arrays["x"])


def test_places_of_a_zips_checksums_are_found():
    data = npz({"x": ARRAYS["float32"], "y": np.arange(3)})
    crcs = {info.filename: info.CRC for info in zipfile.ZipFile(io.BytesIO(data)).infolist()}
    found = plan(data)
    for view in found.tensors:
        segment = found.segments[view.segment]
        assert len(segment.crc_at) == 2  # the member's own header, and the directory
        assert all(int.from_bytes(data[at : at + 4], "little") == crcs[f"{view.name}.npy"] for at in segment.crc_at)


def test_a_zip_without_arrays_is_plain_bytes():
    for name in ("x.zip", "x.npz"):
        assert plan(npz({}), name).format == "bytes"  # 22 bytes: an end and nothing before it
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert plan(stream.getvalue(), "x.zip").format == "bytes"


@given(st.data())
def test_damaged_zips_raise_gcodec_errors_only(data):
    """Flipped bytes in a zip give a plan or a GcodecError."""
    whole = bytearray(ZIP)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(GcodecError):
        plan(bytes(whole), "x.bin").close()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_members_begin_before_the_file_raises_corruption(method):
    """The end of the directory says that it begins later than it does: zipfile then looks for members before byte 0."""
    whole = bytearray(ZIP)
    end = whole.rindex(b"PK\x05\x06")
    whole[end + 18] = 1  # of the directory's place: + 65,536
    entry = whole.index(b"PK\x01\x02")
    whole[entry + 10] = method
    with pytest.raises(Corruption):
        plan(bytes(whole), "x.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_of_a_zip_that_does_not_decompress_raises_corruption(method):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.writestr("x.npy", npy(np.arange(300, dtype=np.float32)))
    whole = bytearray(stream.getvalue())
    whole[50:90] = bytes(40)
    with pytest.raises(Corruption):
        plan(bytes(whole), "x.npz")


ZIP = npz({"x": np.arange(3, dtype=np.float32), "y": np.arange(2)})


def test_torch_tensors_are_found_in_nested_structures():
    torch = pytest.importorskip("torch")
    base = torch.arange(12.0).reshape(3, 4)
    value = {
        "model": OrderedDict(weight=base, tied=base, column=base[:, 1], turned=base.t()),
        7: [base.bfloat16(), (torch.tensor(3), torch.nn.Parameter(base + 1))],
        "types": (torch.float32, torch.Size([1, 2]), None, "text", 1.5),
        "float8": base.to(torch.float8_e5m2),
        "unsigned": torch.tensor([1, 2], dtype=torch.uint16),
        "complex": base.to(torch.complex64),
    }
    found = plan(torch_file(value), "x.pt")
    assert found.format == "torch" and found.exact
    assert np.array_equal(array_of(found, "model/weight"), base)
    assert np.array_equal(array_of(found, "model/column"), base[:, 1])
    assert np.array_equal(array_of(found, "model/turned"), base.t())
    assert np.array_equal(array_of(found, "7/1/1"), base + 1)
    views = {view.name: view for view in found.tensors}
    assert len({views[f"model/{name}"].segment for name in ("weight", "tied", "column", "turned")}) == 1
    types = {name: (view.dtype, found.segments[view.segment].dtype) for name, view in views.items()}
    assert types["7/0"] == ("bfloat16", "bfloat16") and types["float8"] == ("float8_e5m2", "float8_e5m2")
    assert types["complex"] == ("complex64", "float32") and types["unsigned"] == ("uint16", None)
    assert types["7/1/0"] == ("int64", None)


def test_tensors_of_optimizer_states_and_bare_tensors_are_named():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    found = plan(torch_file(optimizer.state_dict()), "opt.pt")
    assert {view.name for view in found.tensors} == {"state/0/step", "state/0/exp_avg", "state/0/exp_avg_sq"}
    assert plan(torch_file(torch.ones(3)), "weights.pt").tensors[0].name == "weights"


class Surprise:
    """An object that leaves a file behind when it is really unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("surprise"),)


def test_reading_a_pickle_runs_no_code_in_it(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    found = plan(torch_file({"bad": Surprise(), "good": torch.ones(3)}), "x.pt")
    assert [view.name for view in found.tensors] == ["good"]
    assert not list(tmp_path.iterdir())


def test_tensors_inside_unknown_objects_are_found():
    torch = pytest.importorskip("torch")
    found = plan(torch_file(torch.nn.Linear(2, 3)), "x.pt")
    assert sorted(view.shape for view in found.tensors) == [(3,), (3, 2)]


@pytest.mark.parametrize(
    "front",
    [b"", npz({"x": np.ones(3)}), npz({"x": np.ones(3)}, compressed=True)],
    ids=["nothing", "npz", "compressed"],
)
def test_zips_of_torch_that_lie_end_to_end_are_all_taken_apart(front):
    torch = pytest.importorskip("torch")
    values = [torch.arange(6.0).reshape(2, 3), {"a": torch.ones(5).bfloat16(), "n": 3}, {"text": "x"}, torch.zeros(7)]
    found = plan(front + b"".join(map(torch_file, values)), "__0_0.distcp")
    assert found.format == "torch" and found.exact
    assert [view.name for view in found.tensors] == ["__0_0", "a", "__0_0#2"]
    assert np.array_equal(array_of(found, "__0_0"), values[0]) and np.array_equal(array_of(found, "__0_0#2"), values[3])
    for view in found.tensors:
        segment = found.segments[view.segment]
        crc = zlib.crc32(found.source.read(segment.crc_from, segment.stop).data)
        assert segment.crc_at and all(found.source.read(at, at + 4).view("<u4")[0] == crc for at in segment.crc_at)


def test_zips_that_lie_end_to_end_are_read_one_at_a_time(monkeypatch):
    torch = pytest.importorskip("torch")

    class Strict(zipfile.ZipFile):
        """As of Python 3.13.5, which looks for the end of the directory at the place in the file that a zip names."""

        def __init__(self, file: io.RawIOBase) -> None:
            assert file.read(4) == b"PK\x03\x04"
            super().__init__(file)
            assert min(info.header_offset for info in self.infolist()) == 0

    equal, other = torch_file(torch.ones(3)), torch_file(torch.ones(9))
    monkeypatch.setattr(zipfile, "ZipFile", Strict)
    for files in ([equal], [equal, equal, equal], [other, equal], [equal, other, equal]):
        shapes = [(3,) if file is equal else (9,) for file in files]
        assert [view.shape for view in plan(b"".join(files), "x.distcp").tensors] == shapes


def test_a_zip_that_cannot_be_read_hides_none_of_those_before_it():
    torch = pytest.importorskip("torch")
    first, broken, last = torch_file(torch.ones(3)), torch_file(torch.ones(4)), torch_file(torch.ones(5))
    assert broken.count(b"little") == 1
    found = plan(first + broken.replace(b"little", b"bigger") + last, "x.distcp")
    assert [view.shape for view in found.tensors] == [(3,), (5,)]


def test_torch_files_of_the_old_format_are_plain_bytes():
    torch = pytest.importorskip("torch")
    found = plan(torch_file(torch.ones(3), _use_new_zipfile_serialization=False), "x.pt")
    assert found.format == "bytes" and "torch.save" in found.note


def memo_bomb() -> bytes:
    return b"\x80\x02]r\xff\xff\xff\x7f."


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        memo_bomb(),
        b"\x80\x02X\xff\xff\xff\x7f.",
        pickle.dumps("x")[:-1],
        b"\x80\x02\x82\x01.",
        b"\x80\x02Q.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02}K\x01s.",
        b"\x80\x02ctorch\nx\nK\x01\x81.",
        b"\x80\x02e.",
    ],
)
def test_malformed_pickles_are_refused(data):
    with pytest.raises(ValueError, match="malformed pickle"):
        read_pickle(data)


@given(st.binary(max_size=60))
def test_random_pickles_raise_value_errors_only(data):
    with suppress(ValueError):
        list(named_tensors(read_pickle(b"\x80\x02" + data), "x"))


def test_shared_and_recursive_structures_are_walked_once():
    value: list = []
    for _ in range(60):
        value = [value, value]
    loop: list = []
    loop.append(loop)
    assert list(named_tensors(read_pickle(pickle.dumps([value, loop], 2)), "x")) == []


def test_pickles_that_do_not_fit_their_storages_are_unsupported():
    torch = pytest.importorskip("torch")
    data = torch_file(torch.ones(1000))
    damaged = data.replace(b"M\xe8\x03\x85", b"M\xe9\x03\x85", 1)  # the tensor's shape, a thousand, plus one
    assert damaged != data
    with pytest.raises(Unsupported, match="does not fit"):
        plan(damaged, "x.pt")


def test_names_of_types_are_those_of_numpy_and_have_widths():
    for name in ("float32", "bfloat16", "bool", "complex128", "<U7", ">f4", "<M8[ns]", "|S3"):
        dtype = numpy_dtype(name)
        assert dtype is not None and dtype.itemsize == width(name)
        assert stored_as(name) in (None, "float32", "bfloat16", "float64")
    for name in ("object", "|O8", "O", "structured", "<f3", "", "V0", "<U0", "F4", "int7"):
        assert width(name) is None
    assert name_of(np.dtype(">f4")) == ">f4" and name_of(np.dtype("f4")) == "float32"
    assert name_of(np.dtype([("a", "f4")])) == "structured"


def test_streams_that_cannot_seek_are_spooled():
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with closing(open_source(Pipe(b"0123456789"))) as source:
        assert source.size == 10 and source.read(3, 6).tobytes() == b"345"


@pytest.mark.parametrize("compression", [gzip, bz2, lzma], ids=["gzip", "bz2", "lzma"])
def test_streams_that_decompress_a_file_are_read_and_not_the_file(compression, tmp_path):
    with compression.open(tmp_path / "x", "wb") as file:
        file.write(b"0123456789")
    with compression.open(tmp_path / "x", "rb") as file, closing(open_source(file)) as source:
        assert source.size == 10 and source.read(3, 6).tobytes() == b"345"


def test_streams_of_few_methods_are_read_and_those_of_text_refused(tmp_path):
    class Reader:
        def __init__(self, data: bytes) -> None:
            self.read = io.BytesIO(data).read

    (tmp_path / "x").write_bytes(b"0123456789")
    with open(tmp_path / "x", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for stream in (mapped, Reader(b"0123456789")):
            with closing(open_source(stream)) as source:  # type: ignore[arg-type]
                assert source.size == 10 and source.read(3, 6).tobytes() == b"345"
    with open(tmp_path / "x") as text:
        for wrong in (text, io.StringIO("text")):
            with pytest.raises(InvalidArgument, match=f"binary stream, not {type(wrong).__name__}: open it with 'rb'"):
                open_source(wrong)  # type: ignore[arg-type]


def test_a_source_leaves_a_stream_as_it_was():
    stream = io.BytesIO(b"skip0123456789")
    stream.seek(4)
    with closing(open_source(stream)) as source:
        assert source.size == 10 and source.read(0, 2).tobytes() == b"01"
    assert stream.read() == b"0123456789"


def test_reading_a_file_that_shrinks_is_an_error(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(100))
    with closing(open_source(path)) as source:
        path.write_bytes(bytes(10))
        with pytest.raises(GcodecError, match="ends at byte 10"):
            source.read(0, 100)


def test_long_runs_of_verbatim_bytes_become_segments():
    found = plan(bytes(3 << 20), "x.bin")
    assert [(segment.start, segment.stop) for segment in found.segments] == [(0, 3 << 20)]
    assert plan(bytes(100), "x.bin").segments == ()
