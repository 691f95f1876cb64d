"""Tensors of an archive in one ``.safetensors`` file, whatever kind of file they came in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ..archive import ArchiveReader, FileEntry
from ..errors import GcodecError, InvalidArgument, Unsupported
from ..files.elements import numpy_dtype, width
from ..files.file_plan import TensorView
from ..files.safetensors import CODES, safetensors_header
from ..files.source import Bytes

SUFFIX = ".safetensors"
#: The frameworks that a .safetensors file may say it was written by; transformers asks for one of these.
FRAMEWORKS = ("pt", "np", "tf", "flax", "mlx", "jax")


def is_joined(output: str | None) -> bool:
    """Return True if ``-o`` names a ``.safetensors`` file, which takes any number of tensors."""
    return output is not None and output.endswith(SUFFIX) and not Path(output).is_dir()


def joined_tensors(
    archive: ArchiveReader, tensors: Sequence[tuple[FileEntry, TensorView]]
) -> Iterator[bytes | memoryview]:
    """Return the pieces of a ``.safetensors`` file that holds these tensors, which are read as the pieces are taken.

    A tensor whose name another has, too, gets the name ``FILE:NAME``. Tensors that share memory are written apart,
    as the format has no other way. The largest elements come first, so that all values are aligned.

    Raises:
        InvalidArgument: No tensors, or two of the same name.
        Unsupported: A tensor of a type that the format lacks.
    """
    if not tensors:
        raise InvalidArgument(f"{archive.name}: holds no tensors that a {SUFFIX} file could take")
    for entry, tensor in tensors:
        if tensor.dtype not in CODES or numpy_dtype(tensor.dtype) is None:
            raise Unsupported(
                f"{entry.path}:{tensor.name}: {SUFFIX} cannot hold values of type {tensor.dtype}; choose others "
                "with --only"
            )
    counts = Counter(tensor.name for _, tensor in tensors)
    files = {entry.path: number for number, entry in enumerate(archive.files)}

    def place(both: tuple[FileEntry, TensorView]) -> tuple[int, int, int]:
        entry, tensor = both
        return -(width(tensor.dtype) or 1), files[entry.path], tensor.segment

    ordered = sorted(tensors, key=place)
    header = {}
    for entry, tensor in ordered:
        name = tensor.name if counts[tensor.name] == 1 else f"{entry.path}:{tensor.name}"
        if name in header:  # a tensor's own name may be FILE:NAME of another
            raise InvalidArgument(
                f"{archive.name}: two tensors would be called {name!r} in one {SUFFIX} file; take "
                "them out one by one with --only, or restore the files"
            )
        header[name] = (tensor.dtype, tensor.shape, tensor.n_bytes)
    return _pieces(archive, safetensors_header(header, _metadata(archive, ordered)), ordered)


def _pieces(
    archive: ArchiveReader, header: bytes, tensors: Sequence[tuple[FileEntry, TensorView]]
) -> Iterator[bytes | memoryview]:
    yield header
    for entry, tensor in tensors:
        if tensor.segment not in entry.groups:
            yield from (part.data for part in row_major_parts(archive, entry, tensor))
            continue
        data, start = archive.segment_bytes(entry, tensor), tensor.offset * (width(tensor.dtype) or 1)
        yield data[start : start + tensor.n_bytes].data


def _metadata(archive: ArchiveReader, tensors: Sequence[tuple[FileEntry, TensorView]]) -> dict[str, str] | None:
    """Return the framework that the tensors come from, if it is known and one for all."""
    names = set()
    for entry in {entry.path: entry for entry, _ in tensors}.values():
        try:
            name = "pt" if entry.format == "torch" else archive.metadata(entry).get("format")
        except GcodecError:  # a damaged header does not keep the tensors from being taken out
            name = None
        names.add(name)
    name = names.pop() if len(names) == 1 else None
    return {"format": name} if name in FRAMEWORKS else None


def row_major_parts(archive: ArchiveReader, entry: FileEntry, tensor: TensorView) -> Iterator[Bytes]:
    """Yield the values of a tensor in row-major order: part by part where they lie like that, else through memory."""
    if tensor.stride is None:
        yield from archive.tensor_parts(entry, tensor)
        return
    array = archive.array(entry, tensor, archive.segment_bytes(entry, tensor), like="numpy")
    yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)
