"""The laws of values that occur again, in one tensor or in several: an archive is no larger than with Zstandard."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zstandard
from safetensors.numpy import save_file as save_safetensors

import gcodec
from gcodec.archive import ArchiveReader
from gcodec.archive.layout import CODECS

RNG = np.random.default_rng(0)
WEIGHTS = RNG.standard_normal(1 << 18).astype(np.float32)
#: Bytes of an archive besides the tensor's: header, index, footer, a checksum.
OVERHEAD = 400


def sines() -> np.ndarray:
    """Return the basis of a Fourier transform: each row occurs again, with the other sign, or backwards."""
    k, n = np.ogrid[0:129, 0:256]
    angle = 2 * np.pi * k * n / 256
    return np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize(
    "values",
    [
        np.repeat(WEIGHTS[: 1 << 16].reshape(8, 1, -1), 4, axis=1),
        np.tile(WEIGHTS[: 1 << 15], 5),
        np.tile(WEIGHTS[: 1 << 10], 40),
        sines(),
    ],
    ids=["heads of grouped queries", "far apart", "close together", "sines"],
)
def test_a_tensor_that_repeats_itself_is_no_larger_than_with_zstandard(values, dtype):
    values, stream = values.astype(dtype), io.BytesIO()
    gcodec.save_file({"w": values}, stream)
    assert len(stream.getvalue()) <= len(zstandard.compress(values.tobytes(), 3)) + OVERHEAD
    stream.seek(0)
    assert np.array_equal(gcodec.load_file(stream, like="numpy")["w"], values)


def _after(value: float, dtype: str, n: int = 1 << 18) -> np.ndarray:
    """Return a random walk, of which a part is a fill value."""
    walk = np.cumsum(np.random.default_rng(2).standard_normal(n)).astype(dtype)
    walk[np.repeat(np.random.default_rng(3).random(n // 64) < 0.4, 64)] = value
    return walk


def _of_events(n: int = 1 << 18) -> np.ndarray:
    """Return seconds since 1970, at which something happened."""
    return 1.7e9 + np.cumsum(np.random.default_rng(4).exponential(1, n))


#: Values in whose bits Zstandard finds more than a codec of single values does, though none of them repeats for long.
UNLIKE_WEIGHTS = {
    "counted": np.arange(1 << 18, dtype=np.float64),
    "timestamps": _of_events(),
    "two decimals": np.round(10 * WEIGHTS, 2),
    "missing values": _after(np.nan, "float64"),
    "fill values": _after(-999.0, "float64"),
    "fill values, float32": _after(1e20, "float32"),
    "denormal": WEIGHTS * np.float32(1e-42),
    "columns of several kinds": np.stack([np.arange(1 << 16), np.sin(np.arange(1 << 16) / 9), np.ones(1 << 16)], 1),
    "rounded imaginary part": (WEIGHTS + 1j * np.round(WEIGHTS, 1)).astype(np.complex64),
    "few heads for many queries": np.repeat(WEIGHTS[: 1 << 15].reshape(2, 1, -1), 4, axis=1).astype(np.float16),
}


@pytest.mark.parametrize("name", UNLIKE_WEIGHTS)
@pytest.mark.parametrize("share", [1, 8], ids=["all", "an eighth"])
def test_a_tensor_unlike_weights_is_no_larger_than_with_zstandard(name, share):
    values, stream = UNLIKE_WEIGHTS[name], io.BytesIO()
    values = np.ascontiguousarray(values[: len(values) // share] if values.ndim < 3 else values)
    gcodec.save_file({"w": values}, stream)
    assert len(stream.getvalue()) <= 1.0005 * len(zstandard.compress(values.tobytes(), 3)) + OVERHEAD
    stream.seek(0)
    assert gcodec.load_file(stream, like="numpy")["w"].tobytes() == values.tobytes()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("n_tensors", [1, 50])
def test_weights_of_8_bits_are_no_larger_than_with_zstandard(dtype, n_tensors, tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    weights = torch.from_numpy(100 * WEIGHTS[:100_000]).to(getattr(torch, dtype)).reshape(n_tensors, -1)
    tensors = {f"w{n}": row.clone() for n, row in enumerate(weights)}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    made = gcodec.compress_file(tmp_path / "x.safetensors")
    zstd_bytes = len(zstandard.compress((tmp_path / "x.safetensors").read_bytes(), 3))
    assert made.archive_bytes <= zstd_bytes + OVERHEAD + 20 * n_tensors
    found = gcodec.load_file(tmp_path / "x.safetensors.gc", like="torch")
    assert all(torch.equal(found[name].view(torch.uint8), value.view(torch.uint8)) for name, value in tensors.items())


def layers(dtype: str, n_layers: int = 6) -> dict[str, np.ndarray]:
    """Return the small tensors of a model whose layers are copies of each other, as many are at first.

    In a file with very many of them, the list of those that are stored once has its size, too.
    """
    rng = np.random.default_rng(1)
    layer = {
        "attention.weight": rng.standard_normal((96, 64)).astype(dtype),
        "attention.bias": rng.standard_normal(96).astype(dtype),
        "feed.weight": rng.standard_normal((64, 64)).astype(dtype),
        "norm.weight": np.ones(64, dtype),
    }
    return {f"layers.{n}.{name}": value.copy() for n in range(n_layers) for name, value in layer.items()}


@pytest.mark.parametrize(("dtype", "n_layers", "most"), [("float32", 6, 1), ("float32", 40, 1.3), ("float16", 6, 1)])
def test_small_tensors_that_are_copies_are_no_larger_than_with_zstandard(dtype, n_layers, most, tmp_path):
    tensors = layers(dtype, n_layers)
    save_safetensors(tensors, tmp_path / "x.safetensors")
    gcodec.compress_file(tmp_path / "x.safetensors")
    gcodec.save_file(tensors, tmp_path / "dictionary.gc")
    zstd_bytes = len(zstandard.compress((tmp_path / "x.safetensors").read_bytes(), 3))
    for name in ("x.safetensors.gc", "dictionary.gc"):
        assert (tmp_path / name).stat().st_size <= most * zstd_bytes + 2 * OVERHEAD
    found = gcodec.load_file(tmp_path / "dictionary.gc")
    assert all(np.array_equal(found[name], value) for name, value in tensors.items())
    gcodec.decompress_file(tmp_path / "x.safetensors.gc", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "x.safetensors").read_bytes()


def test_small_tensors_that_are_no_copies_stay_in_one_frame():
    values = {f"b{n}": RNG.standard_normal(1000).astype(np.float32) for n in range(20)}
    values |= {f"zeros{n}": np.zeros(1000, np.float32) for n in range(20)}
    stream = io.BytesIO()
    gcodec.save_file(values, stream)
    stream.seek(0)
    with ArchiveReader(stream) as archive:
        chunks = [chunk for segment in archive.files[0].segments if segment.dtype for chunk in segment.chunks]
    assert [CODECS[chunk.codec] for chunk in chunks] == ["frame"]
