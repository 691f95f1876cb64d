"""The laws of archives where size is all that counts: they hold the same values, and are hardly ever larger."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zstandard

pytest.importorskip("torch")

import torch
from safetensors.numpy import save_file as save_safetensors

import gcodec
from gcodec.cli import main

N = 1 << 17


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """Return weights, second moments, values that repeat, integers, and small tensors."""
    rng = np.random.default_rng(seed)
    weights = (0.02 * rng.standard_normal((N // 256, 256))).astype(np.float32)
    return {
        "weights": weights,
        "moments": weights**2,
        "repeated": np.tile(weights, (2, 1)),  # farther apart than a sample shows
        "steps": rng.integers(0, 1000, 5000),
        "half": weights.astype(np.float16),
        "empty": np.zeros((0, 3), np.float32),
        **{f"bias.{n}": rng.standard_normal(300).astype(np.float32) for n in range(20)},
    }


def size_of(save, *args, **options) -> int:
    """Return the bytes that a function writes to a stream."""
    stream = io.BytesIO()
    save(*args, stream, **options)
    return len(stream.getvalue())


def test_dictionaries_are_smaller_and_hold_the_same_values(tmp_path):
    state = tensors()
    gcodec.save_file(state, tmp_path / "x.gc", smallest=True)
    gcodec.save_file(state, tmp_path / "y.gc")
    found = gcodec.load_file(tmp_path / "x.gc")
    assert found.keys() == state.keys()
    for name, values in state.items():
        assert found[name].dtype == values.dtype and found[name].tobytes() == values.tobytes()
    assert (tmp_path / "x.gc").stat().st_size < 0.99 * (tmp_path / "y.gc").stat().st_size


@pytest.mark.parametrize(("name", "share"), [("weights", 0.997), ("moments", 1), ("repeated", 0.6), ("half", 0.9995)])
def test_each_kind_of_tensor_takes_less(name, share):
    one = {name: tensors()[name]}
    assert size_of(gcodec.save_file, one, smallest=True) < share * size_of(gcodec.save_file, one)


def test_objects_and_differences_of_them_come_back(tmp_path):
    models = [{name: torch.from_numpy(values + step) for name, values in tensors().items()} for step in (0, 1)]
    gcodec.save({"model": models[0], "step": 0}, tmp_path / "0.gc", smallest=True)
    gcodec.save({"model": models[1], "step": 1}, tmp_path / "1.gc", base=tmp_path / "0.gc", smallest=True)
    for step, base in ((0, None), (1, tmp_path / "0.gc")):
        found = gcodec.load(tmp_path / f"{step}.gc", base=base)
        assert found["step"] == step
        assert all(torch.equal(found["model"][name], values) for name, values in models[step].items())


def test_values_that_are_rounded_stay_rounded_as_ever(tmp_path):
    state = {"weights": tensors()["weights"]}
    for name, smallest in (("x.gc", True), ("y.gc", False)):
        gcodec.save_file(state, tmp_path / name, mantissa_bits=7, smallest=smallest)
    assert (tmp_path / "x.gc").read_bytes() == (tmp_path / "y.gc").read_bytes()


def test_the_command_line_makes_the_same_archive(tmp_path):
    save_safetensors(tensors(), tmp_path / "x.safetensors")
    assert main(["compress", "-q", "--smallest", str(tmp_path / "x.safetensors")]) == 0
    gcodec.compress_file(tmp_path / "x.safetensors", tmp_path / "y.gc", smallest=True)
    assert (tmp_path / "x.safetensors.gc").read_bytes() == (tmp_path / "y.gc").read_bytes()
    assert main(["verify", "-q", str(tmp_path / "y.gc"), "--against", str(tmp_path / "x.safetensors")]) == 0


@pytest.mark.parametrize("kind", ["no values", "values"])
def test_what_is_no_value_is_as_small_as_zstandard_makes_it(kind, tmp_path):
    rng = np.random.default_rng(5)
    text = b"".join(b"%d %s\n" % (n, rng.choice(list(b"acgt"), 40).astype(np.uint8).tobytes()) for n in range(4000))
    path = tmp_path / ("x.bin" if kind == "no values" else "x.npy")
    if kind == "no values":
        path.write_bytes(text)
    else:  # of few values, which repeat
        np.save(path, np.frombuffer(text, np.uint8).astype(np.float32))
    best = len(zstandard.compress(path.read_bytes(), 19))
    result = gcodec.compress_file(path, smallest=True)
    assert result.archive_bytes < 1.01 * best + 400
    gcodec.decompress_file(tmp_path / f"{path.name}.gc", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == path.read_bytes()
