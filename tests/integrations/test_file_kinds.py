"""The laws of files that other libraries write: they come back byte for byte, and their values are found."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import gcodec
from gcodec.files import gguf as gguf_format

RNG = np.random.default_rng(2)
WEIGHTS = {f"layer{i}/weight": (RNG.standard_normal((500, 300 + i)) / 20).astype(np.float32) for i in range(4)}
WEIGHTS |= {f"layer{i}/bias": (RNG.standard_normal(300 + i) / 20).astype(np.float32) for i in range(4)}


def compressed(path: Path) -> bytes:
    """Return the archive of a file, which must restore it."""
    archive, restored = io.BytesIO(), io.BytesIO()
    gcodec.compress_file(path, archive)
    archive.seek(0)
    gcodec.decompress_file(archive, restored)
    assert restored.getvalue() == path.read_bytes()
    return archive.getvalue()


def size_as_dictionary(tensors: Mapping[str, np.ndarray]) -> int:
    output = io.BytesIO()
    gcodec.save_file(tensors, output)
    return len(output.getvalue())


def hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in WEIGHTS.items():
            file.create_dataset(name, data=values)


def chunked_hdf5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, values in WEIGHTS.items():
            file.create_dataset(name, data=values, chunks=True)


def msgpack(path: Path) -> None:
    serialization = pytest.importorskip("flax.serialization")
    path.write_bytes(serialization.msgpack_serialize(WEIGHTS))


def onnx(path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    tensors = [onnx.numpy_helper.from_array(values, name) for name, values in WEIGHTS.items()]
    graph = onnx.helper.make_graph([], "weights", [], [], initializer=tensors)
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())


def old_torch(path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(values) for name, values in WEIGHTS.items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("write", [hdf5, chunked_hdf5, msgpack, onnx, old_torch])
def test_values_are_found_in_files_of_other_libraries(write, tmp_path):
    path = tmp_path / "model.bin"
    write(path)
    others = path.stat().st_size - sum(values.nbytes for values in WEIGHTS.values())
    assert len(compressed(path)) < 1.03 * size_as_dictionary(WEIGHTS) + others / 4


def test_files_of_the_gguf_package_are_read_with_all_types_that_it_has(tmp_path):
    gguf = pytest.importorskip("gguf")
    sizes = {int(kind): (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    blocks = {kind: size for kind, size in sizes.items() if kind not in gguf_format.PLAIN}
    known = {kind: gguf_format.BLOCKS[kind] for kind in blocks}
    assert {kind: (name, n_values, sum(record.sizes)) for kind, (name, n_values, record) in known.items()} == blocks
    for number, dtype in gguf_format.PLAIN.items():
        name, n_values, n_bytes = sizes[number]
        assert (n_values, n_bytes) == (1, np.dtype(dtype.removeprefix("b")).itemsize), name
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", [f"token {i}" for i in range(1000)])
    writer.add_array("tokenizer.ggml.scores", [0.5] * 1000)
    quantized = {}
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1"):
        of = gguf.GGMLQuantizationType[name]
        quantized[name] = gguf.quants.quantize(RNG.standard_normal((64, 512)).astype(np.float32), of)
        writer.add_tensor(f"blk.{name}", quantized[name], raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with gcodec.open(io.BytesIO(compressed(path)), framework="np") as archive:
        assert [archive.dtype(name) for name in archive.keys()] == [  # noqa: SIM118 - it is no dictionary
            "float32",
            "float16",
            "bfloat16",
            "Q8_0",
            "Q4_0",
            "Q5_1",
        ]
        for name in ("F32", "F16"):
            assert archive[f"blk.{name}"].tobytes() == quantized[name].tobytes()
            assert archive.shape(f"blk.{name}") == (64, 512)
