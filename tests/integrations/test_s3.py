"""URLs of a store that speaks S3's interface: a server on this machine, through s3fs, which caches what it lists."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server")

import s3fs
import torch
from moto.server import ThreadedMotoServer
from safetensors.torch import save_file

import gcodec
from gcodec.cli import main
from gcodec.sync import Publisher, Subscriber, VersionFolder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store() -> Iterator[None]:
    """Run a store, and make it the one that s3fs finds, with a bucket in it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "test"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patched.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture
def url(store: None) -> str:
    return f"s3://bucket/{secrets.token_hex(4)}"


def state_of(step: int) -> dict[str, Any]:
    values = np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    values[:: 50 + step] += step
    return {"weights": values, "step": step}


def test_a_series_is_saved_loaded_and_deleted(url):
    checkpoints = gcodec.Checkpointer(url, full_every=3, keep_last=4)
    for step in range(7):
        checkpoints.save(step, state_of(step))
    assert checkpoints.steps() == [3, 4, 5, 6]
    other = gcodec.Checkpointer(url)
    other.delete(4)
    for step in (3, 5, 6):
        state = checkpoints.load(step)
        assert state["step"] == step
        assert np.array_equal(state["weights"], state_of(step)["weights"])
    assert [info.base for info in checkpoints.overview()] == [None, 3, None]
    with pytest.raises(gcodec.InvalidArgument, match="has no step 4"):
        checkpoints.load(4)


def test_archives_and_folders_are_written_and_read(url, tmp_path):
    np.save(tmp_path / "a.npy", state_of(1)["weights"])
    np.save(tmp_path / "b.npy", state_of(2)["weights"])
    run = f"{url}/run"
    for command in (
        ["compress", str(tmp_path / "a.npy"), str(tmp_path / "b.npy"), "-o", f"{run}/"],
        ["verify", f"{run}/a.npy.gc", "--against", str(tmp_path / "a.npy")],
        ["decompress", f"{run}/a.npy.gc", f"{run}/b.npy.gc", "-o", f"{url}/back/"],
        ["compress", f"{url}/back"],
        ["decompress", f"{url}/back.gc", "-o", f"{tmp_path}/there/"],
    ):
        assert main(command) == 0, command
    for name in ("a.npy", "b.npy"):
        assert Path(tmp_path, "there", "back", name).read_bytes() == Path(tmp_path, name).read_bytes()
    with gcodec.open(f"{run}/a.npy.gc") as file:
        (name,) = file.keys()
        assert np.array_equal(file.get_slice(name)[10:20], state_of(1)["weights"][10:20])
    with pytest.raises(FileNotFoundError, match=f"{url}/none.gc"):
        gcodec.load_file(f"{url}/none.gc")


def test_the_commands_of_the_page_work_as_printed(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = {"weights": torch.from_numpy(state_of(1)["weights"])}
    save_file(state, "model.safetensors")
    Path("run").mkdir()
    for step in (100, 200):
        torch.save(state, f"run/step-{step}.pt")
        s3fs.S3FileSystem().put_file("model.safetensors", f"bucket/run/step-{step}.safetensors")
    page = (ROOT / "docs/integrations/fsspec.md").read_text(encoding="utf-8")
    commands = re.findall("^gcodec (.*)$", page, re.MULTILINE)
    assert len(commands) >= 5
    for command in commands:
        words = [path for word in shlex.split(command, comments=True) for path in _expanded(word)]
        assert main(words) == 0, command
    assert Path("copy.safetensors").read_bytes() == Path("model.safetensors").read_bytes()
    names = s3fs.S3FileSystem().find("bucket")
    for name in ("models/model.safetensors.gc", "run/step-100.safetensors.gc", "run.gc", "series/step-00000200.gc"):
        assert f"bucket/{name}" in names


def _expanded(word: str) -> list[str]:
    """Return the files that a shell makes of a word."""
    return sorted(map(str, Path().glob(word))) if "*" in word and "://" not in word else [word]


def test_versions_of_weights_are_followed(url):
    publisher, weights = Publisher(), {"a": torch.randn(50_000).bfloat16()}
    folder, target = VersionFolder(url), {"a": torch.zeros(50_000).bfloat16()}
    subscriber = Subscriber(target)
    for place in range(3):
        weights["a"][place] += 1
        folder.send(publisher.publish(weights))
        subscriber.catch_up(VersionFolder(url))
        assert torch.equal(target["a"].view(torch.int16), weights["a"].view(torch.int16))
