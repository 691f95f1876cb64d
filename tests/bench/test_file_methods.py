"""The laws of the benchmark of files: what a method writes is restored, and a wrong method is found out."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench import files
from gcodec.benchmark.timing import RoundTripError


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"a": np.linspace(-1, 1, 5000, dtype=np.float32), "b": np.arange(7, dtype=np.float32)}, path)
    return path


@pytest.mark.parametrize("piece_bytes", [64, 4096, 1 << 20])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_is_restored_from_its_pieces(model, tmp_path, piece_bytes, threads):
    codec = files.PieceCodec(zlib.compress, zlib.decompress, piece_bytes, threads)
    codec.compress(model, tmp_path / "compressed")
    codec.restore(tmp_path / "compressed", tmp_path / "restored")
    assert (tmp_path / "restored").read_bytes() == model.read_bytes()


def test_a_turn_notes_seconds_or_compares_and_leaves_nothing_behind(model, tmp_path):
    codec, turns = files.PieceCodec(zlib.compress, zlib.decompress), files.Turns()
    method = files.Method("zlib", codec.compress, codec.restore)
    files.take_turn(method, model, tmp_path, turns, timed=False)
    assert 0 < turns.stored_bytes < model.stat().st_size and not turns.compress
    files.take_turn(method, model, tmp_path, turns, timed=True)
    assert len(turns.compress) == len(turns.restore) == 1 and turns.spent > 0
    assert list(tmp_path.iterdir()) == [model]


def test_a_file_that_is_not_restored_is_an_error(model, tmp_path):
    def nothing(source: Path, target: Path) -> None:
        target.write_bytes(b"")

    with pytest.raises(RoundTripError, match=r"forgetful: weights\.safetensors was not restored"):
        files.take_turn(files.Method("forgetful", nothing, nothing), model, tmp_path, files.Turns(), timed=False)
    assert list(tmp_path.iterdir()) == [model]
