"""The laws of .gguf files: tensors are found, files come back byte for byte, malformed ones are refused."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gcodec
from gcodec.cli import main
from gcodec.errors import Corruption, GcodecError, InvalidArgument, Unsupported
from gcodec.files import ArraySource, FilePlan, plan_file, plan_or_bytes
from tests.support.gguf_files import Stored, gguf_file, strings, uint32


def plan(data: bytes, path: str = "model.gguf", **options: object) -> FilePlan:
    return plan_file(path, ArraySource([np.frombuffer(data, np.uint8)]), **options)  # type: ignore[arg-type]


def weights(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) / 50).astype(np.float32)


def bfloat16(values: np.ndarray) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


MATRIX, NORM = weights(1, (64, 256)), 1 + weights(2, (256,))
QUANTIZED = np.random.default_rng(3).integers(0, 256, 64 * 8 * 34).astype(np.uint8).tobytes()
TENSORS = {
    "blk.0.attn.weight": Stored("bfloat16", MATRIX.shape, bfloat16(MATRIX)),
    "blk.0.norm.weight": Stored("float32", NORM.shape, NORM.tobytes()),
    "blk.0.up.weight": Stored("Q8_0", (64, 256), QUANTIZED),
    "blk.0.down.weight": Stored("float16", MATRIX.shape, MATRIX.astype("<f2").tobytes()),
    "empty": Stored("float32", (0,), b""),
    "scalar": Stored("float64", (), struct.pack("<d", 0.1)),
}
KEYS = (strings("tokenizer.ggml.tokens", [f"token {i}" for i in range(3000)]), uint32("general.alignment", 64))
FILE = gguf_file(TENSORS, KEYS, alignment=64)


def test_tensors_are_found_with_their_types_shapes_and_values():
    found = plan(FILE)
    assert found.format == "gguf"
    assert {view.name: (view.dtype, view.shape) for view in found.tensors} == {
        name: (tensor.dtype, tensor.shape) for name, tensor in TENSORS.items()
    }
    for view in found.tensors:
        segment = found.segments[view.segment]
        assert found.source.read(segment.start, segment.stop).tobytes() == TENSORS[view.name].data, view.name


@pytest.mark.parametrize("version", [2, 3])
def test_files_come_back_byte_for_byte_with_each_tensor_to_be_read_alone(version, tmp_path):
    data = gguf_file(TENSORS, KEYS, alignment=64, version=version)
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    made = gcodec.compress_file(path)
    assert made.exact and made.path is not None and not made.note
    # 66 % of bfloat16 weights, 84 % of float16 and float32 ones; quantized weights and the header hardly shrink.
    floats = sum(len(tensor.data) for tensor in TENSORS.values() if tensor.dtype in ("bfloat16", "float16", "float32"))
    assert made.archive_bytes < len(data) - 0.2 * floats
    with gcodec.open(made.path, framework="np") as archive:
        assert archive["blk.0.norm.weight"].tobytes() == NORM.tobytes()
        assert archive["blk.0.down.weight"].shape == MATRIX.shape
        with pytest.raises(Unsupported, match="Q8_0 can only be restored with its file"):
            archive["blk.0.up.weight"]
    path.unlink()
    gcodec.decompress_file(made.path)
    assert path.read_bytes() == data


def test_load_leaves_out_no_tensor_in_silence(tmp_path):
    for name, tensors in (("quantized", TENSORS), ("plain", {"w": TENSORS["blk.0.norm.weight"]})):
        (tmp_path / name).write_bytes(gguf_file(tensors))
        gcodec.compress_file(tmp_path / name)
    assert gcodec.load(tmp_path / "plain.gc", like="numpy")["w"].tobytes() == NORM.tobytes()
    for read in (gcodec.load, gcodec.load_file):
        with pytest.raises(Unsupported, match=r"blk\.0\.up\.weight: type Q8_0 can only be restored with its file"):
            read(tmp_path / "quantized.gc", like="numpy")


def test_inspect_knows_the_size_of_quantized_weights(tmp_path, capsys):
    path = tmp_path / "model.gguf"
    path.write_bytes(FILE)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Q8_0      64x256  17.41 kB" in shown and "?" not in shown
    assert main(["inspect", "--json", str(path)]) == 0
    (file,) = json.loads(capsys.readouterr().out)
    assert [tensor["bytes"] for tensor in file["tensors"]] == [len(tensor.data) for tensor in TENSORS.values()]


def test_tensors_of_an_earlier_file_are_the_bases_of_those_of_the_same_name(tmp_path):
    changed = MATRIX.copy()
    changed[::8] *= 1.01
    later = gguf_file({"w": Stored("bfloat16", MATRIX.shape, bfloat16(changed))}, KEYS)
    (tmp_path / "old.gguf").write_bytes(gguf_file({"w": Stored("bfloat16", MATRIX.shape, bfloat16(MATRIX))}))
    (tmp_path / "new.gguf").write_bytes(later)
    alone = gcodec.compress_file(tmp_path / "new.gguf", io.BytesIO())
    output = io.BytesIO()
    made = gcodec.compress_file(tmp_path / "new.gguf", output, base=tmp_path / "old.gguf")
    assert made.needs_base and made.archive_bytes < 0.6 * alone.archive_bytes
    output.seek(0)
    restored = io.BytesIO()
    gcodec.decompress_file(output, restored, base=tmp_path / "old.gguf")
    assert restored.getvalue() == later


def test_mantissa_bits_apply_to_values_and_never_to_quantized_weights(tmp_path):
    path, output, restored = tmp_path / "model.gguf", io.BytesIO(), io.BytesIO()
    path.write_bytes(FILE)
    assert not gcodec.compress_file(path, output, mantissa_bits=5).exact
    output.seek(0)
    gcodec.decompress_file(output, restored)
    data, found = restored.getvalue(), plan(FILE)
    for view in found.tensors:
        segment = found.segments[view.segment]
        same = data[segment.start : segment.stop] == TENSORS[view.name].data
        assert same == (view.dtype == "Q8_0" or view.shape in ((0,), ())), view.name


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (gguf_file(TENSORS, version=1), Unsupported, "of version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), Unsupported, "is a big-endian .gguf file of version 3;"),
        (gguf_file({"w": Stored(4242, (4,), bytes(64))}), Unsupported, "tensor 'w' is of type 4242"),
        (gguf_file({"w": Stored("Q8_0", (33,), bytes(64))}), Corruption, "no whole number of blocks"),
        (gguf_file({"w": Stored("float32", (1, 1, 1, 1, 1), bytes(4))}), Corruption, "has 5 dimensions"),
        (gguf_file({"w": Stored("float32", (1 << 40, 1 << 40), b"")}), Corruption, "or too many"),
        (gguf_file({"w": Stored("float32", (0, 1 << 62), b"")}), Corruption, "or too many"),
        (gguf_file({"w": Stored("float32", (64,), bytes(64))}), Corruption, "short"),
        (gguf_file({}, (uint32("general.alignment", 0),)), Corruption, "must not be 0"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), Corruption, "at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), Corruption, "header ends at byte 24"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), Corruption, "header ends at byte 32"),
        (gguf_file({}, (b"\0" * 8 + struct.pack("<I", 99),)), Corruption, "unknown type 99"),
        (gguf_file({}, (b"\0" * 8 + struct.pack("<IIQ", 9, 10, 1 << 61),)), Corruption, "header ends at byte"),
        (gguf_file({}, (bytes(8) + struct.pack("<I", 9) + 9 * struct.pack("<IQ", 9, 1),)), Corruption, "type 9"),
    ],
)
def test_malformed_files_are_refused_alone_and_kept_as_bytes_in_folders(data, error, words):
    with pytest.raises(error, match=words):
        plan(data)
    kept = plan_or_bytes("model.gguf", ArraySource([np.frombuffer(data, np.uint8)]))
    assert kept.format == "bytes" and "kept as plain bytes" in kept.note


@pytest.mark.parametrize("keys", [strings("words", [""] * 100), 100 * strings("none", [])], ids=["strings", "keys"])
def test_what_takes_long_to_count_is_refused(keys, monkeypatch):
    n_keys = 1 if keys.count(b"words") else 100
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, n_keys) + keys + bytes(32)
    assert plan(data).format == "gguf"
    monkeypatch.setattr("gcodec.files.gguf.MAX_VALUES", 99)
    with pytest.raises(Corruption, match="at most 99 values, but more were counted up to byte"):
        plan(data)


def test_a_name_is_a_promise_and_a_dtype_is_refused():
    with pytest.raises(Corruption, match=r"is named \.gguf but its content is not"):
        plan(b"GGML" + FILE[4:])
    with pytest.raises(InvalidArgument, match="is a gguf file, and has types of its own"):
        plan(FILE, dtype="float32")
    assert plan(FILE, path="").path == "stdin.gguf"


@given(st.data())
def test_damaged_headers_raise_gcodec_errors_or_give_plans_that_restore_the_file(data):
    small = gguf_file({name: TENSORS[name] for name in ("scalar", "empty", "blk.0.norm.weight")}, (KEYS[1],))
    damaged = bytearray(small[: data.draw(st.integers(0, len(small)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            at = data.draw(st.integers(0, min(len(damaged), 300) - 1))
            damaged[at] = data.draw(st.integers(0, 255))
    try:
        found = plan(bytes(damaged), "x")
    except GcodecError as error:
        assert str(error).startswith("x: ")
        return
    ends = [0, *(stop for segment in found.segments for stop in (segment.start, segment.stop)), len(damaged)]
    assert ends == sorted(ends)


def test_an_archive_is_not_given_the_name_of_a_model(tmp_path: Path):
    (tmp_path / "a.gguf").write_bytes(FILE)
    with pytest.raises(InvalidArgument, match=r"\.gguf"):
        gcodec.compress_file(tmp_path / "a.gguf", tmp_path / "b.gguf")
