"""Archives, series of checkpoints and versions of weights that must be readable forever: ``tests/golden-archives``.

``make golden``, or ``python -m tests.support.golden_archives``, adds what is missing, and leaves alone what is there,
whatever today's writers would make of it (docs/archive.md). Each is a file or a folder; ``manifest.json`` says what it
holds, as :func:`described` puts it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, Flag
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file as save_safetensors

import gcodec
from gcodec.archive import ArchiveReader, ArchiveWriter
from gcodec.files import FileSource, plan_file
from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter, SeriesReader, SeriesWriter
from gcodec.sync import Publisher, Subscriber, VersionFolder
from tests.support.commands import run
from tests.support.gguf_files import Stored, gguf_file
from tests.support.paths import GOLDEN_ARCHIVES

MANIFEST = GOLDEN_ARCHIVES / "manifest.json"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)


class Golden(NamedTuple):
    """Something that was written once.

    Attributes:
        write: Writes it to a path that is free.
        read: Reads it from there, and returns what it holds by name.
    """

    write: Callable[[Path], None]
    read: Callable[[Path], Mapping[str, Any]]


def described(value: Any) -> Any:
    """Return what a manifest says of a value: shape and hash of arrays, and the text of everything else."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)} {_hash(dense)}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype.str} {list(value.shape)} {_hash(np.asarray(value).tobytes())}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes {_hash(value)}"
    if isinstance(value, Mapping):
        return {str(key): described(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(described, value)]
    return repr(value)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def state_at(step: int) -> dict[str, torch.Tensor]:
    """Return the weights at a step of what looks like training: types, sizes and shapes of many kinds."""
    generator = torch.Generator().manual_seed(7)
    state = {
        f"layer.{n}.{dtype}".replace("torch.", ""): 0.02 * torch.randn(n, 80, generator=generator)
        for n, dtype in enumerate(DTYPES, 3)
    }
    state |= {
        "bias": 1e-3 * torch.randn(300, generator=generator),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(2, 0, 3),
        "zeros": torch.zeros(90),
    }
    for _ in range(step):
        for value in state.values():
            chosen = torch.rand(value.shape, generator=generator) < 0.05
            value += chosen * 1e-3 * torch.randn(value.shape, generator=generator)
    types = {f"layer.{n}.{dtype}".replace("torch.", ""): dtype for n, dtype in enumerate(DTYPES, 3)}
    return {name: value.to(types.get(name, torch.float32)) for name, value in state.items()}


def structured() -> dict[Any, Any]:
    """Return an object with all that ``gcodec.save`` takes."""
    weights = state_at(0)["bias"]
    return {
        "step": 7,
        "rate": 0.1,
        "name": "run",
        "none": None,
        "flags": [True, False],
        "bytes": b"\0\1\2",
        "weights": weights,
        "tied": weights,
        "view": weights[3:9],
        "numbers": np.arange(5, dtype=">i4"),
        "complex": np.array([1 + 2j, -0.0j]),
        4: ("tuple", np.float32(1.5)),
        "dtype": torch.bfloat16,
        "bool": weights > 0,
    }


class Color(Enum):
    """An enumeration that a golden archive has a member of."""

    RED = 1
    GREEN = 2


class Access(Flag):
    """Flags that a golden archive has a combination of."""

    READ = 1
    WRITE = 2


class Moments(NamedTuple):
    """A named tuple in a golden archive."""

    mean: Any
    steps: int


@dataclass
class Config:
    """A dataclass in a golden archive."""

    rate: float
    sizes: tuple[int, ...]


def structured_later() -> dict[Any, Any]:
    """Return an object with all that the second version of its structure has beside the first."""
    generator = torch.Generator().manual_seed(9)
    halves = torch.randn(5, 2, generator=generator).half()
    sparse = torch.tensor([[0.0, 2.0, 0.0], [1.0, 0.0, 0.5]])
    config = Config(0.1, (3, 4))
    config.note = "not a field"  # type: ignore[attr-defined]
    zone = timezone(timedelta(hours=1), "CET")
    return {
        "args": argparse.Namespace(lr=0.1, out=PurePosixPath("runs/1"), other=PureWindowsPath("C:\\x")),
        "simple": SimpleNamespace(a=1),
        "counts": defaultdict(int, a=1),
        "recent": deque([1.5, 2.5], maxlen=3),
        "bytes": bytearray(b"\0\1"),
        "ranges": [range(1, 9, 2), slice(None, 3)],
        "dates": [date(2025, 11, 29), datetime(2025, 11, 2, 1, 30, fold=1, tzinfo=zone), time(1, 2, 3, 4), zone],
        "duration": timedelta(1, 2, 3),
        "numpy": [np.str_("x"), np.bytes_(b"x"), np.dtype(">f4"), np.datetime64("2025-11-29")],
        "strings": np.array(["a", "bcd"]),
        "big-endian strings": np.array(["a", "bcd"], ">U3"),
        "days": np.array(["2025-11-29", "NaT"], "M8[D]"),
        "complex32": torch.view_as_complex(halves),
        "coo": sparse.to_sparse(),
        "csr": sparse.to_sparse_csr(),
        "config": config,
        "moments": Moments(torch.ones(3), 7),
        Color.RED: Color.GREEN,
        "access": Access.READ | Access.WRITE,
    }


def read_later(path: Path) -> dict[str, Any]:
    """Return an object with classes of this module, which is another one where it is run."""
    found = gcodec.load(path, classes=[Color, Access, Moments, Config])
    return {**found, "coo": found["coo"].to_dense(), "csr": found["csr"].to_dense(), "further": found["config"].note}


def write_dict(path: Path) -> None:
    """Write a dictionary of tensors."""
    state = state_at(0)
    integers = {"int64": torch.arange(9), "bool": state["bias"] > 0, "uint8": torch.arange(40, dtype=torch.uint8)}
    gcodec.save_file(state | integers | {"tied": state["bias"]}, path, metadata={"step": "0"})


def write_equal(path: Path) -> None:
    """Write a dictionary of tensors of which two are equal, but are not tied."""
    weights = 0.02 * torch.randn(100, 170, generator=torch.Generator().manual_seed(8))
    gcodec.save_file({"embedding": weights, "head": weights.clone(), "others": weights[::2] + 1}, path)


def write_casts(path: Path) -> None:
    """Write weights of 16 bits beside the float32 values that they are casts of, some of which are none of the type."""
    few = torch.randint(-9, 9, (260, 150), generator=torch.Generator().manual_seed(6))  # so that the archive is small
    masters = few * 1.0009765625  # which neither type has
    masters[4, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
    half, brain = masters.half(), masters.bfloat16()
    brain[100:102] *= 2
    gcodec.save_file({"half": half, "brain": brain, "masters": masters}, path)


def write_quantized_object(path: Path) -> None:
    """Write an object of tensors that torch has quantized."""
    values = torch.randn(4, 3, generator=torch.Generator().manual_seed(10))
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])
    quantized = {
        "tensor": torch.quantize_per_tensor(values, 0.1, 3, torch.quint8),
        "channels": torch.quantize_per_channel(values, scales, zeros, 1, torch.qint8),
        "floats": torch.quantize_per_channel(values, scales, zeros.float(), 1, torch.quint8),
    }
    gcodec.save(quantized, path)


def read_quantized_object(path: Path) -> dict[str, Any]:
    """Return the values of such tensors, and what they are made of."""
    found = gcodec.load(path)
    made_of = {f"{name} of": [str(value.qscheme()), value.int_repr()] for name, value in found.items()}
    return {name: value.dequantize() for name, value in found.items()} | made_of


def write_file_versions(path: Path) -> None:
    """Write a folder of three versions of a file, each against the one before, and one that equals the first."""
    folder, generator = path.with_suffix(""), torch.Generator().manual_seed(9)
    folder.mkdir()
    weights = torch.randint(-9, 9, (150, 120), generator=generator) * 0.01  # so that the archive is small
    for step in range(3):
        save_safetensors({"weights": weights, "frozen": torch.arange(2000.0)}, folder / f"{step}.safetensors")
        weights = torch.where(torch.rand(weights.shape, generator=generator) < 0.01, weights * 1.01, weights)
    (folder / "last.safetensors").write_bytes((folder / "0.safetensors").read_bytes())
    gcodec.compress_file(folder, path, auto_base=True)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def write_base_casts(path: Path) -> None:
    """Write the difference from tensors of the same names and other types."""
    base = GOLDEN_ARCHIVES / "casts.gc"
    others = {torch.float32: torch.bfloat16, torch.bfloat16: torch.float16, torch.float16: torch.float32}
    tensors = {name: value.to(others[value.dtype]) for name, value in gcodec.load_file(base).items()}
    gcodec.save_file(tensors, path, base=base)


def write_difference(path: Path) -> None:
    """Write a dictionary against the one before it, which is written beside it."""
    gcodec.save_file(state_at(1), path, base=GOLDEN_ARCHIVES / "dictionary.gc")


def write_alone(path: Path) -> None:
    """Write a tensor file in which each tensor is a segment of its own, as writers did before small ones shared one."""
    file = path.with_suffix(".safetensors")
    save_safetensors(state_at(0), file, metadata={"format": "pt"})
    with file.open("rb") as opened, ArchiveWriter(path) as archive:
        archive.add(plan_file("model.safetensors", FileSource(opened, owned=False)))
    file.unlink()


def write_files(path: Path) -> None:
    """Write a folder of files of all kinds."""
    folder = path.with_suffix("")
    folder.mkdir()
    array = (1e-2 * np.random.default_rng(3).standard_normal((20, 30))).astype(np.float32)
    np.save(folder / "plain.npy", array)
    np.save(folder / "fortran.npy", np.asfortranarray(array))
    np.save(folder / "big-endian.npy", array.astype(">f8"))
    np.savez(folder / "several.npz", a=array, b=np.arange(9), c=np.float16(array))
    save_safetensors(state_at(0), folder / "model.safetensors")
    (folder / "text.txt").write_text("not numbers\n" * 30)
    (folder / "empty").write_bytes(b"")
    torch.save({"weights": torch.from_numpy(array), "step": 3}, folder / "state.pt")
    run("compress", str(folder), "-o", str(path), "--quiet")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def read_files(path: Path) -> dict[str, Any]:
    """Return the files of an archive."""
    with ArchiveReader(path) as archive:
        return {entry.path: b"".join(part.tobytes() for part in archive.restored(entry)) for entry in archive.files}


def write_quantized(path: Path) -> None:
    """Write a file of quantized weights whose integers are in classes by scale and minimum, and of another type."""
    rng, n = np.random.default_rng(4), 8400
    scales = (2.0 ** -rng.integers(3, 5, n)).astype("<f2")
    ratios = rng.integers(1, 3, n)
    integers = 17 * rng.binomial(2, (0.1 * ratios)[:, None], (n, 16)).astype(np.uint8)
    columns = [scales[:, None].view(np.uint8), (-ratios * scales).astype("<f2")[:, None].view(np.uint8), integers]
    tensors = {
        "large": Stored("Q4_1", (n, 32), np.concatenate(columns, axis=1).tobytes()),
        "small": Stored("Q8_0", (10, 64), rng.integers(0, 30, 680, np.uint8).tobytes()),
    }
    file = path.with_suffix(".gguf")
    file.write_bytes(gguf_file(tensors))
    run("compress", str(file), "-o", str(path), "--quiet")
    file.unlink()


def write_series(path: Path) -> None:
    """Write checkpoints of five steps, of which the first and the fourth are whole."""
    checkpoints = gcodec.Checkpointer(path, full_every=3)
    for step in range(5):
        checkpoints.save(10 * step, {"model": state_at(step), "step": step})


def read_series(path: Path) -> dict[str, Any]:
    """Return the states of all steps."""
    checkpoints = gcodec.Checkpointer(path, full_every=3)
    return {str(step): checkpoints.load(step) for step in checkpoints.steps()}


def write_versions(path: Path) -> None:
    """Write versions of weights for weight sync, of which the first and the fourth are anchors, too."""
    publisher, folder = Publisher(anchor_every=3), VersionFolder(path)
    for step in range(5):
        folder.send(publisher.publish(state_at(step), metadata={"step": str(step)}))


def read_versions(path: Path) -> dict[str, Any]:
    """Return the weights of every version, for a subscriber that follows, and those of one that comes last."""
    folder, found = VersionFolder(path), dict[str, Any]()
    following = Subscriber({name: torch.zeros_like(value) for name, value in state_at(0).items()})
    for number in range(1, 6):
        following.catch_up(folder, to=number)
        found[str(number)] = described(following.tensors)
    late = Subscriber({name: torch.zeros_like(value) for name, value in state_at(0).items()})
    late.catch_up(folder)
    return {**found, "late": late.tensors}


def write_distributed(path: Path) -> None:
    """Write a distributed checkpoint of one rank."""
    dcp.save({"model": state_at(0), "step": 3}, storage_writer=CheckpointWriter(path))


def read_distributed(path: Path) -> dict[str, Any]:
    """Return a distributed checkpoint."""
    state = {"model": {name: torch.zeros_like(value) for name, value in state_at(0).items()}, "step": 0}
    dcp.load(state, storage_reader=CheckpointReader(path))
    return state


def write_distributed_series(path: Path) -> None:
    """Write three steps of distributed checkpoints."""
    for step in range(3):
        writer = SeriesWriter(path, full_every=2)
        dcp.save({"model": state_at(step)}, storage_writer=writer, checkpoint_id=str(step))


def read_distributed_series(path: Path) -> dict[str, Any]:
    """Return the states of all steps of distributed checkpoints."""
    found = {}
    for step in range(3):
        state = {"model": {name: torch.zeros_like(value) for name, value in state_at(0).items()}}
        dcp.load(state, storage_reader=SeriesReader(path), checkpoint_id=str(step))
        found[str(step)] = state
    return found


GOLDENS: dict[str, Golden] = {
    "dictionary.gc": Golden(write_dict, gcodec.load_file),
    "difference.gc": Golden(
        write_difference, lambda path: gcodec.load_file(path, base=GOLDEN_ARCHIVES / "dictionary.gc")
    ),
    "equal.gc": Golden(write_equal, gcodec.load_file),
    "casts.gc": Golden(write_casts, gcodec.load_file),
    "base-casts.gc": Golden(write_base_casts, lambda path: gcodec.load_file(path, base=GOLDEN_ARCHIVES / "casts.gc")),
    "quantized-object.gc": Golden(write_quantized_object, read_quantized_object),
    "file-versions.gc": Golden(write_file_versions, read_files),
    "object.gc": Golden(lambda path: gcodec.save(structured(), path), gcodec.load),
    "object-later.gc": Golden(lambda path: gcodec.save(structured_later(), path), read_later),
    "lossy.gc": Golden(lambda path: gcodec.save_file(state_at(0), path, mantissa_bits=3), gcodec.load_file),
    "alone.gc": Golden(write_alone, gcodec.load_file),
    "files.gc": Golden(write_files, read_files),
    "quantized.gc": Golden(write_quantized, read_files),
    "series": Golden(write_series, read_series),
    "versions": Golden(write_versions, read_versions),
    "distributed": Golden(write_distributed, read_distributed),
    "distributed-series": Golden(write_distributed_series, read_distributed_series),
}


def read_manifest() -> dict[str, Any]:
    """Return what each of them holds."""
    return json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}


def main() -> None:
    """Add what is missing."""
    argparse.ArgumentParser(
        prog="python -m tests.support.golden_archives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    GOLDEN_ARCHIVES.mkdir(exist_ok=True)
    manifest, added = read_manifest(), 0
    for name, golden in GOLDENS.items():
        path = GOLDEN_ARCHIVES / name
        if name not in manifest:
            golden.write(path)
            manifest[name], added = described(golden.read(path)), added + 1
    for lock in GOLDEN_ARCHIVES.rglob(".lock"):
        lock.unlink()
    MANIFEST.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    print(f"golden-archives: {added} added, {len(manifest)} in all")


if __name__ == "__main__":
    main()
