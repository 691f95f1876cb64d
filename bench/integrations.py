"""Sizes and times of gcodec inside other libraries, beside what these do by default.

    python -m bench.integrations [--quick] [--only NAME ...] [--out DIR]

writes ``bench/results/integrations.csv``, in about two minutes on two cores. Arrays and checkpoints are those of a
small transformer that is trained for a while first; fields are synthetic. What is stored is read and compared before
anything is reported. A library that is not installed is left out. Seconds are for one pass, with the files in memory.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.checkpoints import LAYERS, WIDTH, Run, Training, check
from bench.codec import RESULTS
from gcodec.archive.structure import flatten
from gcodec.benchmark.csv_tables import NamedRow, read_table, write_named
from gcodec.benchmark.timing import RoundTripError

STATE = Run("training", 1e-3)
N_STEPS = 60
CHUNK = 1 << 20  #: values


class Outcome(NamedTuple):
    """The result of storing something in one way: rows of the table have these, and what was stored and how."""

    original_bytes: int
    stored_bytes: int
    save_seconds: float
    load_seconds: float


def field_of(noise: float, rng: np.random.Generator) -> np.ndarray:
    """Return a field such as temperatures over a map: waves of falling amplitude, and noise relative to the total."""
    y, x = np.mgrid[0:1024, 0:2048] / 512.0
    field = np.full(x.shape, 285.0)
    for octave in range(1, 7):
        angle, phase = rng.uniform(0, 2 * np.pi, 2)
        field += 12 / octave**2 * np.sin(2.0**octave * (np.cos(angle) * x + np.sin(angle) * y) + phase)
    return (field + noise * rng.normal(size=field.shape)).astype(np.float32)


def arrays_of(training: Training) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what people keep in arrays: a name and the values."""
    parameters = [p for p in training.model.parameters() if p.ndim == 2]
    state = training.optimizer.state
    yield "weights", np.concatenate([p.detach().numpy().reshape(-1) for p in parameters])
    for moment in ("exp_avg", "exp_avg_sq"):
        yield moment, np.concatenate([state[p][moment].numpy().reshape(-1) for p in parameters])
    rng = np.random.default_rng(4)
    yield "smooth field", field_of(0.0, rng)
    yield "field with noise", field_of(0.05, rng)


def zarr_outcomes(training: Training) -> Iterator[tuple[str, str, Outcome]]:
    """Yield each array by each codec, stored in a Zarr array in memory."""
    import zarr
    from zarr.codecs import BloscCodec
    from zarr.codecs.numcodecs import PCodec

    from gcodec.integrations.zarr import GcodecCodec

    zarr.registry.register_codec("gcodec", GcodecCodec)
    methods: dict[str, dict[str, Any]] = {
        "Zarr's default (zstd)": {},
        "Blosc, zstd, bitshuffle": {"compressors": BloscCodec(cname="zstd", shuffle="bitshuffle")},
        "PCodec": {"serializer": PCodec(), "compressors": None},
        "gcodec": {"serializer": GcodecCodec(), "compressors": None},
    }
    for name, values in arrays_of(training):
        for method, options in methods.items():
            shape = values.shape
            chunks = (CHUNK,) if len(shape) == 1 else (CHUNK // shape[1], shape[1])
            array = zarr.create_array(
                zarr.storage.MemoryStore(), shape=shape, dtype=values.dtype, chunks=chunks, **options
            )

            def save(array: Any = array, values: np.ndarray = values) -> int:
                array[...] = values
                return int(array.nbytes_stored())

            yield name, method, timed(save, lambda array=array: array[...], values)  # type: ignore[misc]


def torch_checkpoint_outcomes(training: Training) -> Iterator[tuple[str, str, Outcome]]:
    """Yield the checkpoint of a training by each storage of torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp

    from gcodec.integrations.torch_checkpoint import CheckpointReader, CheckpointWriter, SeriesReader, SeriesWriter

    first = training.state(STATE)
    later = copy.deepcopy(training)
    later.take_steps(10, 1e-5)
    state = later.state(STATE)
    with TemporaryDirectory() as name:
        folder = Path(name)
        series = SeriesWriter(folder / "series")
        dcp.save(first, storage_writer=series, checkpoint_id="1", no_dist=True)
        storages: dict[str, tuple[Any, Any, Path]] = {
            "DCP's default": (dcp.FileSystemWriter(folder / "a"), dcp.FileSystemReader(folder / "a"), folder / "a"),
            "gcodec": (CheckpointWriter(folder / "b"), CheckpointReader(folder / "b"), folder / "b"),
            "gcodec, a difference": (series, SeriesReader(folder / "series"), folder / "series"),
        }
        for method, (writer, reader, place) in storages.items():
            before = _bytes_in(place)
            start = perf_counter()
            dcp.save(
                state, storage_writer=writer, checkpoint_id=2 if method.endswith("difference") else None, no_dist=True
            )
            saved = perf_counter()
            loaded = copy.deepcopy(first)
            begin = perf_counter()
            dcp.load(loaded, storage_reader=reader, no_dist=True)
            end = perf_counter()
            check(loaded, state)
            original = sum(leaf.size for leaf in flatten(state).leaves.values())
            yield (
                "weights and AdamW's state",
                method,
                Outcome(original, _bytes_in(place) - before, saved - start, end - begin),
            )


def lightning_outcomes(training: Training) -> Iterator[tuple[str, str, Outcome]]:
    """Yield the checkpoint of a training by each plugin of Lightning."""
    from lightning.fabric.plugins import TorchCheckpointIO

    from gcodec.integrations.lightning import GcodecCheckpointIO

    state = training.state(STATE)
    original = sum(leaf.size for leaf in flatten(state).leaves.values())
    for method, plugin in {"Lightning's default": TorchCheckpointIO(), "gcodec": GcodecCheckpointIO()}.items():
        with TemporaryDirectory() as name:
            path, start = Path(name, "x.ckpt"), perf_counter()
            plugin.save_checkpoint(state, path)
            saved = perf_counter()
            loaded = plugin.load_checkpoint(path)
            end = perf_counter()
            check(loaded, state)
            yield (
                "weights and AdamW's state",
                method,
                Outcome(original, _bytes_in(Path(name)), saved - start, end - saved),
            )


def huggingface_outcomes(training: Training) -> Iterator[tuple[str, str, Outcome]]:
    """Yield a small GPT-2 by each way of saving it, and the files of the Trainer's checkpoint."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    from gcodec.integrations.folder_files import compress_files_in, restore_files_in
    from gcodec.integrations.huggingface import from_pretrained, save_pretrained

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(1)
    words = training.tokens
    width = training.model.state_dict()["embedding.weight"].shape[1]
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=int(words.max()) + 1, n_embd=width, n_layer=4, n_head=4, n_positions=64)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(N_STEPS):
        batch = words[step * 1024 : (step + 1) * 1024].reshape(16, 64)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for dtype in (torch.float32, torch.bfloat16):
        narrow = copy.deepcopy(model).to(dtype)
        for method in ("safetensors, the default", "gcodec"):
            with TemporaryDirectory() as name:
                start = perf_counter()
                (narrow.save_pretrained if method != "gcodec" else partial(save_pretrained, narrow))(name)
                saved = perf_counter()
                loaded = (
                    from_pretrained(GPT2LMHeadModel, name, dtype=dtype)
                    if method == "gcodec"
                    else GPT2LMHeadModel.from_pretrained(name, dtype=dtype)
                )
                end = perf_counter()
                check(dict(loaded.state_dict()), dict(narrow.state_dict()))
                original = sum(item.nbytes for item in dict(narrow.named_parameters()).values())
                stored = sum(path.stat().st_size for path in Path(name).glob("model.safetensors*"))
                yield f"weights, {str(dtype)[6:]}", method, Outcome(original, stored, saved - start, end - saved)
    with TemporaryDirectory() as name:
        start = perf_counter()
        model.save_pretrained(name)
        torch.save(optimizer.state_dict(), Path(name, "optimizer.pt"))
        saved, plain = perf_counter(), _bytes_in(Path(name))
        yield "checkpoint of Trainer", "the default", Outcome(plain, plain, saved - start, 0.0)
        compress_files_in(name)
        compressed = perf_counter()
        stored = _bytes_in(Path(name))
        restore_files_in(name)
        restored = perf_counter() - compressed
        check(torch.load(Path(name, "optimizer.pt"), weights_only=True), optimizer.state_dict())
        yield "checkpoint of Trainer", "gcodec, afterwards", Outcome(plain, stored, compressed - saved, restored)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def timed(save: Callable[[], int], load: Callable[[], Any], values: np.ndarray) -> Outcome:
    """Return the outcome of saving and loading, the second time that it is done; raise RoundTripError if it fails."""
    for _ in range(2):
        start = perf_counter()
        stored = save()
        saved = perf_counter()
        loaded = np.asarray(load())
        end = perf_counter()
    if loaded.tobytes() != values.tobytes():
        raise RoundTripError("an array was not loaded as it was saved")
    return Outcome(values.nbytes, stored, saved - start, end - saved)


#: What is measured: the package that it needs, and the function that does.
INTEGRATIONS: dict[str, tuple[str, Callable[[Training], Iterator[tuple[str, str, Outcome]]]]] = {
    "zarr": ("zarr", zarr_outcomes),
    "torch-checkpoint": ("torch", torch_checkpoint_outcomes),
    "lightning": ("lightning", lightning_outcomes),
    "huggingface": ("transformers", huggingface_outcomes),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.integrations", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny model, few steps")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=INTEGRATIONS,
        default=list(INTEGRATIONS),
        help="measure these, and keep the other rows of the CSV file",
    )
    options = parser.parse_args(arguments)
    file = options.out / "integrations.csv"
    kept = read_table(file)[1] if file.exists() and len(options.only) < len(INTEGRATIONS) else []
    training = Training(*((64, 1) if options.quick else (WIDTH, LAYERS)))
    training.take_steps(2 if options.quick else 100, 1e-3)
    rows: list[NamedRow] = []
    for integration, (package, outcomes) in INTEGRATIONS.items():
        if integration not in options.only:
            rows += [dict[str, object](row) for row in kept if row["integration"] == integration]
            continue
        if importlib.util.find_spec(package) is None:
            print(f"{package} is not installed: left out")
            continue
        for data, method, outcome in outcomes(training):
            before, after, save, load = outcome
            rows.append(
                {
                    "integration": integration,
                    "data": data,
                    "method": method,
                    "original_bytes": before,
                    "stored_bytes": after,
                    "percent": f"{100 * after / before:.2f}",
                    "save_seconds": f"{save:.3f}",
                    "load_seconds": f"{load:.3f}",
                }
            )
            print(*rows[-1].values(), flush=True)
    write_named(file, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
