"""The laws of archives: files come out bit for bit; damage, lies and traversal are refused; a tensor is read alone."""

from __future__ import annotations

import io
import json
import zlib
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as safetensors_bytes

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter, load_file, save_file
from gcodec.archive.dicts import plan_tensors
from gcodec.archive.encoding_policy import GivenLevels, MantissaBits
from gcodec.archive.output import Staging
from gcodec.errors import GcodecError, InvalidArgument, Unsupported
from gcodec.files import ArraySource, FilePlan, plan_file, plan_or_bytes
from gcodec.files.source import FileSource
from tests.archive.test_files import ARRAYS, npy, npz, torch_file
from tests.support.paths import CORPUS

RNG = np.random.default_rng(7)


def gradients(*shape: int, dtype: str = "float32") -> np.ndarray:
    return (RNG.standard_normal(shape) * 10.0 ** RNG.integers(-8, 0, shape)).astype(dtype)


def plan_bytes(path: str, data: bytes, **options: Any) -> FilePlan:
    return plan_or_bytes(path, ArraySource([np.frombuffer(data, np.uint8)]), **options)


def archive_of(files: dict[str, bytes], **options: Any) -> bytes:
    """Return an archive of files given by their contents."""
    stream = io.BytesIO()
    with ArchiveWriter(stream, **options) as archive:
        for path, data in files.items():
            with closing(plan_bytes(path, data)) as plan:
                archive.add(plan)
    return stream.getvalue()


def opened(data: bytes, **options: Any) -> ArchiveReader:
    return ArchiveReader(io.BytesIO(data), **options)


def restored(data: bytes, **options: Any) -> dict[str, bytes]:
    """Return the files of an archive by their paths."""
    with opened(data, **options) as archive:
        return {entry.path: b"".join(part.tobytes() for part in archive.restored(entry)) for entry in archive.files}


FLOATS = gradients(40, 50)
FILES = {
    **{f"arrays/{name}.npy": npy(array) for name, array in ARRAYS.items()},
    "floats.npy": npy(FLOATS),
    "structured.npy": npy(np.zeros(4, [("a", "f4"), ("b", "i8")])),
    "plain.npz": npz({"x": FLOATS, "y": gradients(9, dtype="float16"), "n": np.arange(5)}),
    "tensors.safetensors": safetensors_bytes({"w": FLOATS, "ids": np.arange(30)}, {"made": "here"}),
    "notes/readme.txt": b"not a tensor " * 40,
    "notes/empty": b"",
}


# ------------------------------------------------------------------------------------------------ There and back


@pytest.mark.parametrize("part_bytes", [64, 1 << 12, 1 << 22])
@pytest.mark.parametrize("threads", [1, 3])
def test_archived_files_are_restored_byte_for_byte(part_bytes, threads):
    data = archive_of(FILES, part_bytes=part_bytes, threads=threads)
    assert restored(data, threads=threads) == FILES
    assert data == archive_of(FILES, part_bytes=part_bytes, threads=1)  # and the archive is a function of them


def test_a_reader_written_from_the_page_alone_reads_archives():
    data = archive_of(FILES, part_bytes=1 << 10)
    assert read_as_written(data) == FILES


def read_as_written(data: bytes) -> dict[str, bytes]:
    """Read an archive as docs/archive.md says, without gcodec's reader."""
    assert data[:8] == b"\x89GCA\x01\0\0\0" and data[-4:] == b"ACG\x89"
    size, raw = (int.from_bytes(data[at : at + 8], "little") for at in (-32, -24))
    start = len(data) - 32 - size - -size % 8
    index = data[start : start + size]
    signed = index + data[-32:-16] + bytes(8) + data[-8:]
    assert xxhash.xxh3_64_intdigest(signed) == int.from_bytes(data[-16:-8], "little")
    text = zstandard.decompress(index) if data[-8] == 1 else index
    assert len(text) == raw
    at, files = 8, {}

    def blob(entry: dict[str, Any]) -> bytes:
        nonlocal at
        result = b""
        for codec, stored, length in entry["chunks"]:
            chunk = data[at : at + stored]
            part = (bytes, zstandard.decompress, lambda frame: gcodec.decode(frame).tobytes())[codec](chunk)
            assert len(part) == length
            result += part
            at += stored + -stored % 8
        assert xxhash.xxh3_64_hexdigest(result) == entry["hash"] and len(result) == entry["bytes"]
        return result

    for file in json.loads(text)["files"]:
        segments = [(entry.get("skip", 0), blob(entry)) for entry in file["segments"]]
        verbatim, whole = blob(file["verbatim"]), b""
        for skip, segment in segments:
            whole += verbatim[:skip] + segment
            verbatim = verbatim[skip:]
        files[file["path"]] = whole + verbatim
        assert len(files[file["path"]]) == file["size"]
    assert at == start
    return files


def test_archived_torch_files_are_restored_byte_for_byte():
    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(FLOATS)
    value = {"tied": [weight, weight.t(), weight[3:, ::2]], "half": weight.bfloat16(), "step": 7, 3: torch.arange(4)}
    file = torch_file(value)
    data = archive_of({"model.pt": file})
    assert restored(data) == {"model.pt": file}
    loaded = load_file(io.BytesIO(data), like="torch")
    wanted = {"tied/0": weight, "tied/1": weight.t(), "tied/2": weight[3:, ::2], "half": weight.bfloat16()}
    for name, tensor in wanted.items():
        assert torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype
    assert loaded["tied/0"].untyped_storage().data_ptr() == loaded["tied/2"].untyped_storage().data_ptr()


def test_a_restored_compressed_npz_has_the_same_arrays():
    arrays = {"x": FLOATS, "n": np.arange(1000)}
    data = archive_of({"x.npz": npz(arrays, compressed=True)})
    assert not opened(data).files[0].exact
    loaded = np.load(io.BytesIO(restored(data)["x.npz"]))
    assert loaded.files == list(arrays) and all(np.array_equal(loaded[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_archives_of_gradients_are_smaller_than_their_files(dtype):
    file = npy(gradients(20_000, dtype=dtype))
    assert len(archive_of({"x.npy": file})) < 0.97 * len(file)


def test_archives_of_noise_are_hardly_larger_than_their_files():
    noise = RNG.bytes(100_000)
    for path in ("x", "x.f32"):
        data = archive_of({path: noise})
        assert len(data) < len(noise) * 1.001 + 300


def test_reading_one_tensor_reads_no_others():
    class Counting:
        def __init__(self, data: bytes) -> None:
            self._source, self.count = ArraySource([np.frombuffer(data, np.uint8)]), 0
            self.size = self._source.size

        def read(self, start: int, stop: int) -> np.ndarray:
            self.count += stop - start
            return self._source.read(start, stop)

    tensors = {f"t{number}": gradients(17_000) for number in range(8)}
    stream = io.BytesIO()
    save_file(tensors, stream)
    source = Counting(stream.getvalue())
    with ArchiveReader(source) as archive:
        index = source.count
        assert np.array_equal(archive.read("t5"), tensors["t5"])
        assert source.count - index < 68_100 and index < 0.1 * source.size


def test_arrays_keep_the_order_and_byte_order_of_their_file():
    array = np.asfortranarray(gradients(5, 7))
    with opened(archive_of({"f.npy": npy(array), "g.npy": npy(array.astype(">f8"))})) as archive:
        assert np.array_equal(archive.read("f"), array) and archive.read("f").flags.f_contiguous
        assert np.array_equal(archive.read("g.npy:g"), array) and archive.read("g").dtype == ">f8"


def test_a_name_in_several_files_must_be_qualified():
    data = archive_of({"a.npz": npz({"x": np.arange(3)}), "b.npz": npz({"x": np.arange(4), "y": np.arange(5)})})
    with opened(data) as archive:
        assert archive.read("y").size == 5 and archive.read("b.npz:x").size == 4
        with pytest.raises(InvalidArgument, match="several"):
            archive.read("x")
        with pytest.raises(InvalidArgument, match="no tensor"):
            archive.read("z")
    assert set(load_file(io.BytesIO(data))) == {"a.npz:x", "b.npz:x", "b.npz:y"}
    assert set(load_file(io.BytesIO(data), names=["y", "a.npz:x"])) == {"y", "a.npz:x"}


def test_structured_arrays_cannot_be_read_alone():
    with opened(archive_of({"s.npy": FILES["structured.npy"]})) as archive, pytest.raises(Unsupported):
        archive.read("s")


# ------------------------------------------------------------------------------------------- Dictionaries of tensors


def test_saved_dictionaries_load_unchanged(tmp_path):
    tensors = {name: array for name, array in ARRAYS.items() if array.dtype.kind not in "UM" or array.dtype.kind == "b"}
    tensors |= {"strided": gradients(8, 8)[::2, 1::3], "": gradients(3)}
    save_file(tensors, tmp_path / "x.gc", metadata={"step": "7"})
    loaded = load_file(tmp_path / "x.gc")
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].shape == array.shape and np.array_equal(loaded[name], array)
    with ArchiveReader(tmp_path / "x.gc") as archive:
        assert archive.metadata(archive.files[0]) == {"step": "7"}


def test_the_safetensors_library_reads_saved_dictionaries(tmp_path):
    dtypes = ["f2", "f4", "f8", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "?"]
    with suppress(SafetensorError):  # safetensors before 0.7 knows no complex numbers
        safetensors_bytes({"x": np.zeros(1, "c8")})
        dtypes.append("c8")
    tensors = {dtype: RNG.integers(0, 100, (8, 8)).astype(dtype)[::2, 1::3] for dtype in dtypes}
    save_file(tensors, tmp_path / "x.gc")
    with ArchiveReader(tmp_path / "x.gc") as archive:
        loaded = load_safetensors(b"".join(part.tobytes() for part in archive.restored(archive.files[0])))
    assert loaded.keys() == tensors.keys()
    for name, array in tensors.items():
        assert loaded[name].dtype == array.dtype and np.array_equal(loaded[name], array)


def test_memory_seen_as_two_types_is_saved_as_both(tmp_path):
    """numpy knows types that it lacks by their sizes alone: ``<V1`` is one of several."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(100, dtype=np.uint8)
    tensors = {"x": bits.view(ml_dtypes.float8_e4m3fn), "scales": bits.view(ml_dtypes.float8_e8m0fnu), "bits": bits}
    save_file(tensors, tmp_path / "file.gc")
    gcodec.save(tensors, tmp_path / "state.gc")
    types = {name: array.dtype for name, array in tensors.items()}
    for loaded in (load_file(tmp_path / "file.gc", like="numpy"), gcodec.load(tmp_path / "state.gc")):
        assert {name: array.dtype for name, array in loaded.items()} == types


@pytest.mark.parametrize(("argument", "end"), [("mantisa_bits", "; did you mean mantissa_bits?"), ("qwerty", ""),
                                               ("roundng", "; did you mean rounding?")])  # fmt: skip
@pytest.mark.parametrize("mode", [{}, {"mantissa_bits": 3}])
def test_unknown_arguments_are_refused_whatever_the_tensors(argument, end, mode, tmp_path):
    """Those of integers are encoded by none of them."""
    arguments: dict[str, Any] = {**mode, argument: 7}
    with pytest.raises(InvalidArgument) as caught:
        save_file({"x": np.arange(5)}, tmp_path / "x.gc", **arguments)
    assert str(caught.value) == f"save_file has no argument {argument!r}{end}"


@pytest.mark.parametrize(
    ("tensors", "metadata", "place"),
    [
        ({"x": np.ones(3)}, {"step": 7}, "'step': 7"),
        ({"x": np.ones(3)}, {"rate": None}, "'rate': None"),
        ({"x": np.ones(3)}, {"a": "b", "list": [1]}, r"'list': \[1\]"),
        ({"x": np.ones(3)}, {"bytes": b"z"}, "'bytes': b'z'"),
        ({"x": np.ones(3)}, {7: "step"}, "7: 'step'"),
        ({"x": np.ones(3)}, {"half": "\ud800"}, "'half'"),
        ({"x": np.ones(3)}, ["step"], "metadata must be a dictionary of strings, not a list"),
        ({1: np.ones(3)}, None, "a tensor's name must be a string .*, not 1"),
        ({"\udc00": np.ones(3)}, None, "tensor's name"),
        ({"x": np.ones(3), None: np.ones(3)}, None, "not None"),
        ({"__metadata__": np.ones(3)}, None, "'__metadata__': must have another name"),
        (
            {"x": np.ones(3), "c": np.ones(3, complex)},
            None,
            "'c': must be of a type .*, not of complex128.* gcodec.save",
        ),
        ({"x": np.ones(3), "n" * 60_001: np.ones(3)}, None, "at most 60000 bytes of UTF-8, not 60001: 'nnn"),
        ({"\N{SNOWMAN}" * 20_001: np.ones(3)}, None, "at most 60000 bytes of UTF-8, not 60003"),
    ],
)
def test_names_and_metadata_that_are_no_strings_are_refused_by_name(tensors, metadata, place, tmp_path):
    with pytest.raises(InvalidArgument, match=place):
        save_file(tensors, tmp_path / "x.gc", metadata=metadata)
    assert not (tmp_path / "x.gc").exists()


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10_000_000,
        "[" * 3_000_000,
        "," * 9_000_000,
        "".join(map(str, range(400_000))) + "{" * 2_000_000,
    ],
    ids=["repeated", "brackets", "commas", "mixed"],
)
def test_metadata_are_read_however_long_they_are_and_however_well_they_compress(value, tmp_path):
    save_file({"n" * 60_000: FLOATS}, tmp_path / "x.gc", metadata={"config": value})
    with gcodec.open(tmp_path / "x.gc") as file:
        assert file.metadata() == {"config": value}
        assert file.keys() == ["n" * 60_000]


def test_saved_dictionaries_of_tensors_load_as_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    weight = torch.from_numpy(FLOATS)
    tensors = {"w": weight, "t": weight.t(), "b": weight.bfloat16(), "f8": weight.to(torch.float8_e4m3fn)}
    tensors |= {"n": torch.arange(4), "s": torch.tensor(2.5), "e": torch.empty(0, 3)}
    tensors |= {"c": weight.to(torch.complex64).conj(), "grad": torch.ones(3, requires_grad=True)}
    save_file(tensors, tmp_path / "x.gc")
    loaded = load_file(tmp_path / "x.gc")
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        assert torch.equal(loaded[name].to(torch.complex64), tensor.detach().to(torch.complex64))
    bits = load_file(tmp_path / "x.gc", like="numpy")["b"].view(np.uint16)
    assert np.array_equal(bits, tensors["b"].view(torch.uint16).numpy())


def test_saved_raw_bits_can_be_given_their_type(tmp_path):
    bits = (FLOATS.view(np.uint32) >> 16).astype(np.uint16)
    for dtype in ("bfloat16", {"w": "bfloat16"}):
        save_file({"w": bits, "n": np.arange(3)}, tmp_path / "x.gc", dtype=dtype)
        with ArchiveReader(tmp_path / "x.gc") as archive:
            assert archive.find("w")[1].dtype == "bfloat16"
        assert np.array_equal(load_file(tmp_path / "x.gc")["w"].view(np.uint16), bits)


def test_a_failed_save_leaves_the_old_file(tmp_path):
    save_file({"w": FLOATS}, tmp_path / "x.gc")
    before = (tmp_path / "x.gc").read_bytes()
    for bad in (
        {"w": np.array([{}], object)},
        {"w": np.array(["text"])},
        {"__metadata__": FLOATS},
        {"w": FLOATS, "__structure__": FLOATS},
        {"__structure__": np.arange(9, dtype=np.uint8)},
    ):
        with pytest.raises(InvalidArgument):
            save_file(bad, tmp_path / "x.gc")
    with pytest.raises(InvalidArgument, match="of use only with"):
        save_file({"w": FLOATS}, tmp_path / "x.gc", rounding="nearest")
    assert (tmp_path / "x.gc").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


# -------------------------------------------------------------------------------------------------------- Lossy modes


def test_files_with_rounded_values_keep_their_bound_and_hold_valid_checksums():
    arrays = {"x": FLOATS, "half": gradients(300, dtype="float16"), "n": np.arange(5)}
    arrays["step"] = np.array([1001], np.float32)
    stream = io.BytesIO()
    plan = plan_bytes("x.npz", npz(arrays))
    with ArchiveWriter(stream, part_bytes=1 << 10) as archive:
        entry = archive.add(plan, MantissaBits(plan, 8))
    assert not entry.exact and [segment.lossy for segment in entry.segments] == [True, True, False, False]
    file = restored(stream.getvalue())["x.npz"]
    loaded = np.load(io.BytesIO(file))  # which checks the members' CRC-32
    assert np.abs(loaded["x"] - FLOATS).max() > 0 and loaded["step"] == 1001
    assert (np.abs(loaded["x"] - FLOATS) <= np.abs(FLOATS) * 2.0**-9).all()
    assert np.array_equal(loaded["n"], arrays["n"])
    with opened(stream.getvalue()) as reader:
        assert np.array_equal(reader.read("x"), loaded["x"])


def test_torch_files_with_rounded_values_hold_valid_checksums():
    torch = pytest.importorskip("torch")
    file, stream = torch_file({"w": torch.from_numpy(FLOATS)}), io.BytesIO()
    plan = plan_bytes("x.pt", file)
    with ArchiveWriter(stream) as archive:
        archive.add(plan, MantissaBits(plan, 4))
    lossy = restored(stream.getvalue())["x.pt"]
    [segment] = plan.segments
    crc = zlib.crc32(lossy[segment.start : segment.stop]).to_bytes(4, "little")
    assert len(lossy) == len(file) and all(lossy[at : at + 4] == crc for at in segment.crc_at)
    loaded = torch.load(io.BytesIO(lossy), weights_only=True)["w"]
    assert (np.abs(loaded.numpy() - FLOATS) <= np.abs(FLOATS) * 2.0**-5).all()


def test_levels_are_given_by_the_names_of_tensors(tmp_path):
    levels = RNG.integers(0, 4, FLOATS.shape).astype(np.uint8)
    ladder = gcodec.PAPER_LADDER["float32"]
    save_file({"w": FLOATS, "v": FLOATS}, tmp_path / "x.gc", levels={"w": levels}, ladder=ladder)
    loaded = load_file(tmp_path / "x.gc")
    expected = gcodec.decode(gcodec.encode(FLOATS, levels=levels, ladder=ladder))
    assert np.array_equal(loaded["w"], expected) and np.array_equal(loaded["v"], FLOATS)
    with pytest.raises(InvalidArgument, match="no such tensor"):
        save_file({"w": FLOATS}, tmp_path / "y.gc", levels={"u": levels})


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bf16", "dtype must be a type such as .*, not 'bf16'"),
        ({"w": "bf16"}, "dtype must be a type"),
        ({"w": None}, "dtype must be a type"),
        ({"u": "bfloat16"}, "'u', but there is no such tensor"),
        ({"t": "float64"}, "tensor 't': dtype must be None or 'float32'"),
        ({"w": "float32"}, "tensor 'w'"),
    ],
)
def test_types_that_no_tensor_can_have_are_refused(dtype, message, tmp_path):
    torch = pytest.importorskip("torch")
    tensors = {"w": np.ones(3, np.uint16), "t": torch.ones(3)}
    with pytest.raises(InvalidArgument, match=message):
        save_file(tensors, tmp_path / "x.gc", dtype=dtype)
    np.save(tmp_path / "w.npy", FLOATS)
    with pytest.raises(InvalidArgument, match=r"dtype must be a type such as .*, not 'f4'"):
        gcodec.compress_file(tmp_path / "w.npy", dtype="f4")
    assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]


def test_dictionaries_of_both_kinds_keep_types_that_numpy_lacks(tmp_path):
    torch = pytest.importorskip("torch")
    save_file({"w": torch.ones(3).bfloat16(), "v": np.ones(3)}, tmp_path / "x.gc")
    assert load_file(tmp_path / "x.gc")["w"].dtype == torch.bfloat16
    save_file({"w": torch.ones(3), "v": np.ones(3)}, tmp_path / "x.gc")
    assert all(type(value) is np.ndarray for value in load_file(tmp_path / "x.gc").values())


def test_masked_arrays_are_not_saved_without_their_mask(tmp_path):
    masked = np.ma.masked_array([1.0, 2.0], [True, False])
    for tensors, base in (({"w": masked}, None), ({"w": np.ones(2)}, {"w": masked})):
        with pytest.raises(InvalidArgument, match=r"tensor 'w': .* for its mask would be lost"):
            save_file(tensors, tmp_path / "x.gc", base=base)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_lists_that_are_no_array_are_refused(tmp_path, dtype):
    with pytest.raises(InvalidArgument, match=r"tensor 'w': .*must be an array, which this list is not"):
        save_file({"w": [[1], [1, 2]]}, tmp_path / "x.gc", dtype=dtype)


def test_levels_that_do_not_fit_their_tensor_or_another_mode_are_refused(tmp_path):
    tensors = {"w": np.ones((20, 30), np.float32), "i": np.arange(600)}
    for name, levels, message in (
        ("w", np.zeros(601, np.uint8), "must be 600 uint8"),
        ("i", np.zeros(600, np.uint8), "'i', but that tensor is of int64"),
        ("w", np.zeros((30, 20), np.uint8), "shape"),
        ("w", np.zeros((20, 30), int), "must be 600 uint8"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            save_file(tensors, tmp_path / "x.gc", levels={name: levels})
    with pytest.raises(InvalidArgument, match="levels and mantissa_bits cannot both be given"):
        save_file(tensors, tmp_path / "x.gc", levels={"w": np.zeros((20, 30), np.uint8)}, mantissa_bits=7)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("how", ["mantissa bits", "levels"])
def test_lossy_modes_change_no_tensor_that_they_do_not_make_smaller(how, tmp_path):
    sizes = (2, 3, 5, 8, 10, 11, 12, 13, 20, 50, 1000)
    tensors = {f"x{size}": RNG.standard_normal(size).astype(np.float32) for size in sizes}
    tensors |= {f"round{size}": np.tile(np.float32(0.1), size) for size in sizes}
    more = (
        {"mantissa_bits": 7}
        if how == "mantissa bits"
        else {"levels": {name: np.full(x.shape, 1, np.uint8) for name, x in tensors.items()}}
    )
    save_file(tensors, tmp_path / "x.gc", **more)
    after = load_file(tmp_path / "x.gc")
    changed = {name for name, x in tensors.items() if after[name].tobytes() != x.tobytes()}
    with ArchiveReader(tmp_path / "x.gc") as archive:
        [entry] = archive.files
        for view in entry.tensors:
            segment = entry.segments[view.segment]
            stored = sum(chunk.stored for chunk in segment.chunks)
            assert segment.lossy or view.name not in changed
            assert not segment.lossy or stored < segment.bytes
        assert "x1000" in changed and not changed & {"x2", "x3", "x5", "x8", "round2", "round3"}
        assert not entry.exact


def test_levels_are_split_into_parts_as_the_values_are():
    levels = RNG.integers(0, 4, FLOATS.shape).astype(np.uint8)
    plan, files = plan_tensors({"w": FLOATS}), []
    for part_bytes in (64, 1 << 22):
        stream = io.BytesIO()
        with ArchiveWriter(stream, part_bytes=part_bytes) as archive:
            more = {"ladder": gcodec.PAPER_LADDER["float32"], "options": gcodec.EncoderOptions(exact_if_smaller=False)}
            archive.add(plan, GivenLevels(plan, {"w": levels}, more))
        files.append(restored(stream.getvalue()))
    assert files[0] == files[1]


# ------------------------------------------------------------------------------------------------------- Output files


def test_an_archive_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), ArchiveWriter(tmp_path / "x.gc") as archive:
        archive.add(plan_bytes("a.npy", FILES["floats.npy"]))
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    with ArchiveWriter(tmp_path / "x.gc") as archive:
        archive.add(plan_bytes("a.npy", FILES["floats.npy"]))
        assert not (tmp_path / "x.gc").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["x.gc"]


def test_existing_archives_are_replaced_only_by_force(tmp_path):
    (tmp_path / "x.gc").write_bytes(b"precious")
    with pytest.raises(GcodecError, match="exists already"):
        ArchiveWriter(tmp_path / "x.gc")
    with pytest.raises(GcodecError, match="exists already"), Staging() as staging:  # it appears meanwhile
        staging.create(tmp_path / "y.gc").write(b"new")
        (tmp_path / "y.gc").write_bytes(b"precious")
    assert (tmp_path / "y.gc").read_bytes() == b"precious"
    with ArchiveWriter(tmp_path / "x.gc", force=True):
        pass
    assert restored((tmp_path / "x.gc").read_bytes()) == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.gc", "y.gc"]


def test_archives_write_nothing_through_symbolic_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="symbolic link"), Staging() as staging:
        staging.make_folder(tmp_path / "out", tmp_path / "out" / "a" / "b")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_new_folders_are_removed_with_the_files_of_a_failed_write(tmp_path):
    with pytest.raises(RuntimeError), Staging() as staging:
        staging.make_folder(tmp_path / "out", tmp_path / "out" / "a" / "b")
        staging.create(tmp_path / "out" / "a" / "b" / "c")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_the_corpus_is_restored_byte_for_byte():
    corpus = sorted(CORPUS.glob("*.safetensors"))
    files = {path.name: path.read_bytes() for path in corpus}
    assert restored(archive_of(files)) == files
    with corpus[0].open("rb") as file:
        assert plan_file("x.safetensors", FileSource(file)).format == "safetensors"


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_matrices_of_float8_whose_columns_differ_in_scale_are_restored(dtype):
    random = np.random.default_rng(0)
    heads = random.integers(40, 70, 64) + random.integers(0, 4, (4096, 64))  # columns of their own scales
    stream = io.BytesIO()
    save_file({"w": heads.astype(np.uint8)}, stream, dtype=dtype)
    assert np.array_equal(load_file(io.BytesIO(stream.getvalue()))["w"].view(np.uint8), heads)
