"""``gcodec decompress --only``: single tensors out of an archive, without reading the rest."""

from __future__ import annotations

import argparse
import fnmatch
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..archive import ArchiveReader, FileEntry
from ..archive.output import Attributes, Staging, check_free, naming
from ..errors import InvalidArgument, Unsupported
from ..files.elements import RAW_BITS, numpy_dtype
from ..files.file_plan import TensorView
from ..files.npy import npy_header
from ..files.safetensors import CODES, safetensors_header
from ..files.source import Bytes
from . import UsageError, display
from .file_state import check_targets
from .jobs import STDIO

Found = tuple[FileEntry, TensorView]


def extract(archive: ArchiveReader, args: argparse.Namespace, attributes: Attributes | None) -> list[dict[str, Any]]:
    """Writes the tensors that ``--only`` names; what was written, for ``--json``.

    Args:
        archive: where they are.
        args: the command line.
        attributes: of the files that are written.

    Raises:
        InvalidArgument: no tensor of a name.
        Unsupported: a type that the file to be written has not.
        UsageError: several tensors for one file, or the archive itself as the file.
    """
    matches = _matches(archive, args.only)
    if args.output == STDIO:
        _check_single(matches)
        stream = display.binary_stdout()
        for piece in _npy(archive, *matches[0]):
            stream.write(piece)
        return []
    folder = args.output is None or args.output.endswith("/") or Path(args.output).is_dir()
    if not folder:
        _check_single(matches)
    targets = [Path(args.output or ".", _file_name(tensor)) if folder else Path(args.output) for _, tensor in matches]
    if len(set(targets)) != len(targets):
        raise UsageError("several files have tensors of the same name: take them out one by one, as FILE:NAME")
    check_targets(targets, (Path(name) for name in args.archives if name != STDIO))
    for target in targets:
        check_free(target, force=args.force, named=not folder)
    with Staging(force=args.force, attributes=attributes) as staging:
        for target, (entry, tensor) in zip(targets, matches, strict=True):
            staging.make_folder(target.parent, target.parent)
            pieces = _safetensors if target.suffix == ".safetensors" else _npy
            with naming(target), staging.create(target, named=not folder) as file:
                for piece in pieces(archive, entry, tensor):
                    file.write(piece)
    return [_report(args, target, *both) for target, both in zip(targets, matches, strict=True)]


def _matches(archive: ArchiveReader, names: list[str]) -> list[Found]:
    found: dict[tuple[str, str], Found] = {}
    for name in names:
        exact = [(f, t) for f, t in archive.tensors() if name in (t.name, f"{f.path}:{t.name}")]
        matches = [archive.find(name)] if exact else _like(archive, name)
        found |= {(entry.path, tensor.name): (entry, tensor) for entry, tensor in matches}
    return list(found.values())


def _like(archive: ArchiveReader, pattern: str) -> list[Found]:
    def fits(entry: FileEntry, tensor: TensorView) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for name in (tensor.name, f"{entry.path}:{tensor.name}"))

    matches = [both for both in archive.tensors() if fits(*both)]
    if not matches:
        raise InvalidArgument(f"{archive.name}: no tensor is called {pattern!r} (--list shows the names)")
    return matches


def _check_single(matches: list[Found]) -> None:
    if len(matches) > 1:
        raise UsageError(f"-o must be a folder (ending in /) for {len(matches)} tensors, not a file")


def _file_name(tensor: TensorView) -> str:
    """Return the file name of a tensor: ``grad/fc.weight`` becomes ``grad.fc.weight.npy``; types that numpy lacks
    become .safetensors."""
    name = "".join("." if c in '/\\:*?"<>|' or ord(c) < 32 else c for c in tensor.name).lstrip(".")[:200] or "tensor"
    return name + (".safetensors" if tensor.dtype in RAW_BITS else ".npy")


def _npy(archive: ArchiveReader, entry: FileEntry, tensor: TensorView) -> Iterator[bytes | memoryview]:
    dtype = numpy_dtype(tensor.dtype)
    if dtype is None:
        raise Unsupported(f"{entry.path}:{tensor.name}: type {tensor.dtype} can only be restored with its file")
    yield npy_header(dtype, tensor.shape)
    yield from (part.data for part in _row_major(archive, entry, tensor))


def _safetensors(archive: ArchiveReader, entry: FileEntry, tensor: TensorView) -> Iterator[bytes | memoryview]:
    dtype = numpy_dtype(tensor.dtype)
    if dtype is None or tensor.dtype not in CODES:
        raise Unsupported(f"{entry.path}:{tensor.name}: .safetensors cannot hold values of type {tensor.dtype}")
    size = math.prod(tensor.shape) * dtype.itemsize
    yield safetensors_header({tensor.name: (tensor.dtype, tensor.shape, size)}, None)
    yield from (part.data for part in _row_major(archive, entry, tensor))


def _row_major(archive: ArchiveReader, entry: FileEntry, tensor: TensorView) -> Iterator[Bytes]:
    """Yield the values in row-major order: part by part where they lie like that, else through memory."""
    if tensor.stride is None:
        yield from archive.tensor_parts(entry, tensor)
        return
    array = archive.array(entry, tensor, archive.segment_bytes(entry, tensor), like="numpy")
    yield np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _report(args: argparse.Namespace, target: Path, entry: FileEntry, tensor: TensorView) -> dict[str, Any]:
    bits = tensor.dtype in RAW_BITS and target.suffix != ".safetensors"
    if bits:
        display.note(f"{target}: numpy has no {tensor.dtype}; the file holds its raw bits", quiet=args.quiet)
    shape = "x".join(str(n) for n in tensor.shape) or "scalar"
    if not args.quiet and not args.json:
        display.say(f"{target}: {tensor.name}, {tensor.dtype}, {shape}")
    row = {"output": str(target), "file": entry.path, "name": tensor.name, "dtype": tensor.dtype}
    return {**row, "shape": list(tensor.shape)}
