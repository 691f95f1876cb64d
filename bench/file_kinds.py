"""Files of kinds that other libraries write, compressed and restored by gcodec and its peers, on both cores.

    python -m bench.file_kinds [--quick] [--folder DIR] [--out DIR]

writes ``bench/results/file_kinds.csv``. The tensors are those of ``bench.files``, which are made first if they are not
there: the weights in bfloat16 as a .gguf file and as a .pt file as torch wrote it before 1.6, and the masters in
float32 as an HDF5 file, a .msgpack file as Flax writes it, and a pickle. Of these, gcodec reads .gguf files only, and
has to find the values of the others. Blosc2 and ZipNN are told their type. Turns are those of ``bench.files``.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.files import (
    LIBRARIES,
    ROUNDS,
    WORDS,
    Method,
    compress_in_process,
    restore_in_process,
    rows_of,
    with_files,
    zstd,
)
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.benchmark.peers import installed_version
from gcodec.files import open_source, plan_file

#: Of the peers that are libraries, those that take any bytes and are told the width of a value.
PEERS = ("Blosc2 zstd-1", "ZipNN")
Tensors = Mapping[str, np.ndarray]


def write_gguf(path: Path, tensors: Tensors) -> None:
    """Write bfloat16 tensors, which are given as uint16, as llama.cpp's converter does."""
    import gguf

    writer = gguf.GGUFWriter(path, "gpt2")
    for name, bits in tensors.items():
        writer.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_old_torch(path: Path, tensors: Tensors) -> None:
    """Write bfloat16 tensors, which are given as uint16, as torch before 1.6 did."""
    import torch

    state = {name: torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) for name, bits in tensors.items()}
    torch.save(state, path, _use_new_zipfile_serialization=False)


def write_hdf5(path: Path, tensors: Tensors) -> None:
    """Write tensors as datasets, as Keras does."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in tensors.items():
            file.create_dataset(name.replace(".", "/"), data=values)


def write_msgpack(path: Path, tensors: Tensors) -> None:
    """Write tensors as Flax does: an extension type of shape, type and bytes."""
    import msgpack

    def packed(values: np.ndarray) -> msgpack.ExtType:
        return msgpack.ExtType(1, msgpack.packb((values.shape, values.dtype.name, values.tobytes())))

    path.write_bytes(msgpack.packb(tensors, default=packed))


def write_pickle(path: Path, tensors: Tensors) -> None:
    """Write a dictionary of numpy arrays."""
    path.write_bytes(pickle.dumps(dict(tensors)))


#: The files: the package that writes it, the file of bench.files that it has the tensors of, their type.
KINDS: dict[str, tuple[str, Callable[[Path, Tensors], None], str, str]] = {
    "model.gguf": ("gguf", write_gguf, "weights", "bfloat16"),
    "old.pt": ("torch", write_old_torch, "weights", "bfloat16"),
    "model.h5": ("h5py", write_hdf5, "masters", "float32"),
    "model.msgpack": ("msgpack", write_msgpack, "masters", "float32"),
    "model.pickle": ("numpy", write_pickle, "masters", "float32"),
}


def tensors_of(path: Path) -> dict[str, np.ndarray]:
    """Return the tensors of a .safetensors file, bfloat16 as uint16."""
    plan = plan_file(path.name, open_source(path))
    spans = {view.name: (plan.segments[view.segment], view) for view in plan.tensors}
    return {
        name: plan.source.read(segment.start, segment.stop).view(WORDS[view.dtype]).reshape(view.shape)
        for name, (segment, view) in spans.items()
    }


def methods(dtype: str) -> Iterator[Method]:
    """Yield the methods that are installed."""
    yield Method("gcodec, in Python", compress_in_process, restore_in_process)
    yield from zstd(1, 3)
    for name, package, make in LIBRARIES:
        if name in PEERS and installed_version(package) is not None:
            codec = replace(make(dtype), has_header=False)
            yield Method(f"{name}, told the type", codec.compress, codec.restore)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = with_files(arguments, "bench.file_kinds", __doc__.splitlines()[0])
    rows: list[NamedRow] = []
    for name, (package, write, of, dtype) in KINDS.items():
        if installed_version(package) is None:
            print(f"{package} is not installed: {name} is left out")
            continue
        path = options.folder / name
        if not path.exists():
            partial_path = path.with_name(f"part-{name}")
            write(partial_path, tensors_of(options.folder / f"{of}.safetensors"))
            partial_path.rename(path)
        for row in rows_of(path, dtype, 1 if options.quick else ROUNDS, partial(methods, dtype)):
            rows.append(row | {"file": name})
            print(*rows[-1].values(), flush=True)
            write_named(options.out / "file_kinds.csv", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
