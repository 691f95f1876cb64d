"""The public functions that read or write, each on little data: what the laws of faults are tried on."""

from __future__ import annotations

import errno
import io
import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.numpy import save_file as save_safetensors

import gcodec
from gcodec.averaging.state import pack_state, unpack_state
from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter
from gcodec.recorder import read_dump, write_dump
from gcodec.sync import Publisher, Subscriber, VersionFolder
from tests.support.gguf_files import Stored, gguf_file


class Case(NamedTuple):
    """A call of a public function.

    Attributes:
        call: Makes it, and returns what is to be the same each time, as bytes.
        folder: Where it may write; None: it writes nothing.
    """

    call: Callable[[], bytes]
    folder: Path | None = None


def bytes_of(value: Any) -> bytes:
    """Return the content of whatever gcodec returns, in containers too."""
    if isinstance(value, dict):
        return b"".join(f"{key}:".encode() + bytes_of(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return b"".join(map(bytes_of, value))
    if isinstance(value, torch.Tensor):
        return value.detach().numpy().tobytes()
    return value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode()


def content_of(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by their paths."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def some_values(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((40, 50)).astype(np.float32)


def some_state(seed: int = 0) -> dict[str, Any]:
    x = torch.from_numpy(some_values(seed))
    return {
        "model": {"w": x, "view": x[3:, ::2], "half": x.half()},
        "step": 3,
        "betas": (0.9, 0.999),
        "set": {1, 2},
        "numpy": some_values(seed).astype(">f8"),
        "complex": torch.complex(x.double(), x.double()),
        "scalar": np.float32(2),
        "name": "run",
        "bytes": b"abc",
        "size": torch.Size([1, 2]),
    }


def weights(seed: int) -> dict[str, torch.Tensor]:
    w = torch.from_numpy(some_values())
    w[seed % 40] += seed
    return {"w": w, "half": w.half(), "steps": torch.arange(5) + seed}


def file_of(kind: str, folder: Path) -> Path:
    """Write a tensor file of a kind."""
    path, x = folder / f"file.{kind}", some_values()
    if kind == "npy":
        np.save(path, x)
    elif kind == "npz":
        np.savez(path, a=x, b=x[0])
    elif kind == "zip.npz":
        np.savez_compressed(path, a=x, b=x[0])
    elif kind == "safetensors":
        save_safetensors({"a": x, "b": x[0]}, path, {"key": "value"})
    elif kind == "pt":
        torch.save({"w": torch.from_numpy(x), "n": 1, "view": torch.from_numpy(x)[2:4]}, path)
    elif kind == "gguf":
        path.write_bytes(gguf_file({"w": Stored("float32", (40, 50), x.tobytes())}))
    else:
        path.write_bytes(b"no tensors at all, " * 50)
    return path


FILES = ("npy", "npz", "zip.npz", "safetensors", "pt", "gguf", "bin")


def reading(folder: Path) -> Iterator[tuple[str, Case]]:
    """Yield what reads, by name."""
    x, w = some_values(), weights(0)
    frame, sparse = gcodec.encode(x, threads=1), gcodec.encode(np.where(x > 2, x, np.float32(0)), threads=1)
    based = gcodec.encode(x, base=some_values(1), threads=1)
    yield "decode", Case(lambda: bytes_of(gcodec.decode(frame, threads=1)))
    yield "decode sparse", Case(lambda: bytes_of(gcodec.decode(sparse, like="torch", threads=1)))
    yield "decode with base", Case(lambda: bytes_of(gcodec.decode(based, base=some_values(1), threads=1)))
    yield "decode into", Case(lambda: bytes_of(gcodec.decode(frame, out=np.empty_like(x), threads=1)))
    yield "decode_range", Case(lambda: bytes_of(gcodec.decode_range(frame, 100, 300, threads=1)))
    yield "inspect", Case(lambda: repr(gcodec.inspect(frame)).encode())
    encoder = gcodec.Encoder(threads=1)
    frames = [encoder.encode(x) for _ in range(2)]

    def decode_stream() -> bytes:
        decoder = gcodec.Decoder(threads=1)
        return bytes_of([decoder.decode(frame) for frame in frames])

    yield "Decoder.decode", Case(decode_stream)

    state, tensors = folder / "state.gc", folder / "tensors.gc"
    gcodec.save(some_state(), state, threads=1)
    gcodec.save_file({"w": x, "v": x[0]}, tensors, threads=1)
    later = folder / "later.gc"
    gcodec.save(some_state(1), later, base=state, threads=1)
    yield "load", Case(lambda: bytes_of(gcodec.load(state, threads=1)))
    yield "load parts", Case(lambda: bytes_of(gcodec.load(state, names=["model/half", "set"], threads=1)))
    yield "load on a device", Case(lambda: bytes_of(gcodec.load(state, device="cpu", threads=1)))
    yield "load with base", Case(lambda: bytes_of(gcodec.load(later, base=state, threads=1)))
    yield "load a stream", Case(lambda: bytes_of(gcodec.load(io.BytesIO(state.read_bytes()), threads=1)))
    yield "load_file", Case(lambda: bytes_of(gcodec.load_file(tensors, threads=1)))
    yield "load_file of a state", Case(lambda: bytes_of(gcodec.load_file(state, like="torch", threads=1)))

    def read_lazily() -> bytes:
        with gcodec.open(tensors, framework="np") as file:
            return bytes_of([file.get_tensor("w"), file.get_slice("w")[3:5, 1], file.keys(), file.shape("v")])

    yield "open", Case(read_lazily)
    url = "memory://gcodec-faults/state.gc"
    gcodec.save(some_state(), url, threads=1)
    yield "load a URL", Case(lambda: bytes_of(gcodec.load(url, threads=1)))
    for kind in FILES:
        path = file_of(kind, folder)
        gcodec.compress_file(path, threads=1)
        if kind != "bin":
            yield f"load a plain .{kind}", Case(lambda path=path: bytes_of(gcodec.load(path, threads=1)))  # type: ignore[misc]
        yield from _reading_file(kind, path.with_name(path.name + ".gc"), folder)
    yield from _reading_versions(folder, w)
    checkpoints = gcodec.Checkpointer(folder / "steps", full_every=3, threads=1)
    for step in range(2):
        checkpoints.save(step, some_state(step))
    yield "Checkpointer.load", Case(lambda: bytes_of(gcodec.Checkpointer(folder / "steps", threads=1).load()))

    def verify() -> bytes:
        checkpoints.verify(1)
        return b""

    yield "Checkpointer.verify", Case(verify)

    def list_steps() -> bytes:
        steps = checkpoints.overview()
        for step in steps:
            if step.problem:
                raise OSError(errno.EIO, step.problem)
        return repr(steps).encode()

    yield "Checkpointer.overview", Case(list_steps)
    text = pack_state({"w": w["w"], "n": np.arange(3), "list": [1, None]})
    yield "unpack_state", Case(lambda: bytes_of(unpack_state(text)))
    write_dump(folder / "dump.safetensors", {"grad/w": x, "param/w": x}, step=3, optimizer="AdamW", groups=[])
    yield "read_dump", Case(lambda: bytes_of(read_dump(folder / "dump.safetensors").grad("w")))
    dcp.save({"w": w["w"], "n": 3}, storage_writer=CheckpointWriter(folder / "dcp", threads=1))

    def load_dcp() -> bytes:
        target = {"w": torch.zeros_like(w["w"]), "n": 0}
        dcp.load(target, storage_reader=CheckpointReader(folder / "dcp", threads=1))
        return bytes_of(target)

    yield "torch checkpoint, read", Case(load_dcp)


def _reading_file(kind: str, archive: Path, folder: Path) -> Iterator[tuple[str, Case]]:
    out = folder / f"restored-{kind}"
    out.mkdir()

    def restore() -> bytes:
        gcodec.decompress_file(archive, out / "file", force=True, threads=1)
        content = (out / "file").read_bytes()
        (out / "file").unlink()
        return content

    yield f"decompress_file .{kind}", Case(restore, out)
    if kind in ("pt", "npz"):
        yield f"load .{kind}", Case(lambda: bytes_of(gcodec.load(archive, threads=1)))


def _reading_versions(folder: Path, first: dict[str, torch.Tensor]) -> Iterator[tuple[str, Case]]:
    publisher, store = Publisher(threads=1), VersionFolder(folder / "versions")
    versions = [publisher.publish(weights(n)) for n in range(3)]
    for version in versions:
        store.send(version)

    def follow() -> bytes:
        subscriber = Subscriber({name: torch.zeros_like(value) for name, value in first.items()}, threads=1)
        for version in versions:
            subscriber.apply(version.anchor() if version is versions[0] else version.data)
        return bytes_of(subscriber.tensors)

    def catch_up() -> bytes:
        subscriber = Subscriber(threads=1)
        subscriber.catch_up(VersionFolder(folder / "versions"))
        return bytes_of(subscriber.tensors)

    yield "Subscriber.apply", Case(follow)
    yield "Subscriber.catch_up", Case(catch_up)


def writing(folder: Path) -> Iterator[tuple[str, Case]]:
    """Yield what writes, by name."""
    x = some_values()
    yield "encode", Case(lambda: gcodec.encode(x, threads=1))
    yield "encode torch", Case(lambda: gcodec.encode(torch.from_numpy(x).half(), mantissa_bits=3, threads=1))
    yield "encode sparse", Case(lambda: gcodec.encode(np.where(x > 2, x, np.float32(0)), threads=1))
    yield "encode with base", Case(lambda: gcodec.encode(x, base=some_values(1), threads=1))

    def stream() -> bytes:
        encoder = gcodec.Encoder(threads=1)
        return b"".join(encoder.encode(x) for _ in range(3))

    yield "Encoder.encode", Case(stream)
    yield "save", _written(folder / "save", lambda path: gcodec.save(some_state(), path / "out.gc", threads=1))
    yield (
        "save smallest",
        _written(folder / "smallest", lambda path: gcodec.save({"w": x}, path / "out.gc", smallest=True, threads=1)),
    )
    gcodec.save(some_state(), folder / "base.gc", threads=1)
    yield (
        "save with base",
        _written(
            folder / "with-base",
            lambda path: gcodec.save(some_state(1), path / "out.gc", base=folder / "base.gc", threads=1),
        ),
    )
    yield (
        "save_file",
        _written(
            folder / "save_file",
            lambda path: gcodec.save_file({"w": x, "v": torch.from_numpy(x)}, path / "out.gc", threads=1),
        ),
    )

    def save_stream() -> bytes:
        file = io.BytesIO()
        gcodec.save(some_state(), file, threads=1)
        return file.getvalue()

    yield "save to a stream", Case(save_stream)

    def save_url() -> bytes:
        gcodec.save({"w": x}, "memory://gcodec-faults/out.gc", threads=1)
        return bytes_of(gcodec.load("memory://gcodec-faults/out.gc"))

    yield "save to a URL", Case(save_url)

    def compress(source: Path, path: Path) -> None:
        gcodec.compress_file(source, path / "out.gc", threads=1)

    for kind in FILES:
        source = file_of(kind, folder)
        yield f"compress_file .{kind}", _written(folder / f"compressed-{kind}", partial(compress, source))

    def publish() -> bytes:
        publisher = Publisher(threads=1)
        versions = [publisher.publish(weights(n)) for n in range(2)]
        return versions[0].anchor() + versions[1].data

    yield "Publisher.publish", Case(publish)
    version = Publisher(threads=1).publish(weights(0))
    yield "VersionFolder.send", _written(folder / "sent", lambda path: VersionFolder(path).send(version))

    def save_steps(path: Path) -> None:
        checkpoints = gcodec.Checkpointer(path, full_every=3, keep_last=2, threads=1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # which say what was not done
            for step in range(3):
                checkpoints.save(step, some_state(step))

    yield "Checkpointer.save", _written(folder / "saved", save_steps)
    yield (
        "write_dump",
        _written(
            folder / "dump",
            lambda path: write_dump(path / "out.safetensors", {"grad/w": x}, step=3, optimizer="AdamW", groups=[]),
        ),
    )

    def save_dcp() -> bytes:
        place = folder / "dcp-out" / "one"
        dcp.save({"w": torch.from_numpy(x), "n": 3}, storage_writer=CheckpointWriter(place, threads=1))
        target = {"w": torch.zeros(x.shape), "n": 0}
        dcp.load(target, storage_reader=CheckpointReader(place, threads=1))
        shutil.rmtree(place)
        return bytes_of(target)

    (folder / "dcp-out").mkdir()
    yield "torch checkpoint, written", Case(save_dcp)


def _written(folder: Path, write: Callable[[Path], Any]) -> Case:
    """Return the case of a call that writes to a folder, which is empty before."""
    folder.mkdir()

    def call() -> bytes:
        write(folder)
        content = content_of(folder)
        for name in content:
            (folder / name).unlink()
        return repr(sorted(name for name in content)).encode() + b"".join(
            value for name, value in sorted(content.items()) if name.endswith(".gc")
        )

    return Case(call, folder)
