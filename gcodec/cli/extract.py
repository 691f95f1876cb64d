"""``gcodec decompress --only``: single tensors out of an archive, without reading the rest."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any
from unicodedata import category

from xxhash import xxh3_64_hexdigest

from ..archive import ArchiveReader, FileEntry
from ..archive.named_parts import no_such
from ..archive.output import TENSOR_SUFFIXES, Attributes, Staging, check_free
from ..archive.tensor_names import is_behind_folders, matches
from ..errors import InvalidArgument, Unsupported, did_you_mean
from ..files.all_or_nothing import MAX_NAME_BYTES, cut_name
from ..files.elements import RAW_BITS, numpy_dtype
from ..files.file_plan import TensorView
from ..files.npy import npy_header
from ..files.safetensors import CODES
from ..files.source import naming
from ..files.urls import is_url
from . import UsageError, display
from .file_checks import check_restored_once
from .joined_tensors import is_joined, joined_tensors, row_major_parts
from .outputs import whole_file
from .streams import STDIO

Found = tuple[FileEntry, TensorView]


def extract(archive: ArchiveReader, args: argparse.Namespace, attributes: Attributes | None) -> list[dict[str, Any]]:
    """Writes the tensors that ``--only`` names; what was written, for ``--json``.

    Args:
        archive: Where they are.
        args: The command line.
        attributes: Of the files that are written.

    Raises:
        InvalidArgument: No tensor of a name.
        Unsupported: A type that the file to be written has not.
        UsageError: Several tensors for one file, or the archive itself as the file.
    """
    chosen = find_tensors(archive, args.only)
    if args.output == STDIO:
        _check_single(chosen)
        stream = display.binary_stdout()
        for piece in _npy(archive, *chosen[0]):
            stream.write(piece)
        return []
    if args.output is not None and is_url(args.output):
        return _to_url(archive, args.output, chosen, args)
    if is_joined(args.output):
        targets = [Path(args.output)] * len(chosen)
        _write(archive, {targets[0]: joined_tensors(archive, chosen)}, args, attributes, named=True)
    else:
        folder = args.output is None or args.output.endswith("/") or Path(args.output).is_dir()
        if not folder:
            _check_single(chosen)
            _check_is_npy(args.output)
        targets = _in_folder(Path(args.output or "."), chosen) if folder else [Path(args.output)]
        pieces = {target: _pieces(archive, target, *both) for target, both in zip(targets, chosen, strict=True)}
        _write(archive, pieces, args, attributes, named=not folder)
    return [_report(args, target, *both) for target, both in zip(targets, chosen, strict=True)]


def _to_url(archive: ArchiveReader, url: str, matches: list[Found], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Writes one tensor, or all into one .safetensors file, to a URL."""
    if not is_joined(url):
        _check_single(matches)
        _check_is_npy(url)
    args.places_read.check_targets([url])
    pieces = joined_tensors(archive, matches) if is_joined(url) else _npy(archive, *matches[0])
    with whole_file(url, force=args.force) as file:
        for piece in pieces:
            file.write(piece)
    return [_report(args, url, *both) for both in matches]


def _write(
    archive: ArchiveReader,
    files: Mapping[Path, Iterable[bytes | memoryview]],
    args: argparse.Namespace,
    attributes: Attributes | None,
    *,
    named: bool,
) -> None:
    """Writes files, each of its pieces, which are made as they are written: all files appear, or none."""
    args.files_read.check_targets(files)
    for target in files:
        check_free(target, force=args.force, named=named)
    check_restored_once(files, archive.name, args.restored)
    root = Path(args.output or ".")
    with Staging(force=args.force, attributes=attributes) as staging:
        for target, pieces in files.items():
            if not named:
                staging.make_folder(root, target.parent)
            with naming(target), staging.create(target, named=named) as file:
                for piece in pieces:
                    file.write(piece)


def find_tensors(archive: ArchiveReader, names: Iterable[str]) -> list[Found]:
    """Return the tensors that names, ``FILE:NAME`` or patterns stand for, each once.

    FILE may leave out folders at the front of a path.

    Raises:
        InvalidArgument: A name that no tensor has, or that tensors of several files have.
    """
    found: dict[tuple[str, str], Found] = {}
    for name in names:
        meant = _called(archive, name) or _like(archive, name)
        found |= {(entry.path, tensor.name): (entry, tensor) for entry, tensor in meant}
    return list(found.values())


def find_files(archive: ArchiveReader, names: Iterable[str]) -> list[FileEntry]:
    """Return the files that names stand for, in the archive's order; none where they stand for tensors.

    A name that no tensor has is that of a file, a pattern for paths of files, or, with ``/`` at its end, a folder;
    folders at the front may be left out.

    Raises:
        InvalidArgument: A name that several files have, which are in several folders.
        UsageError: Some names stand for tensors, others for files.
    """
    asked, chosen, of_tensors = list(names), set[str](), list[str]()
    for name in asked:
        paths = [] if _called(archive, name) or _fitting(archive, name) else _paths_of(archive, name)
        chosen.update(paths)
        of_tensors += [] if paths else [name]
    if chosen and of_tensors:
        raise UsageError(
            f"--only must name tensors or files, not both: {of_tensors[0]} is no file, and "
            f"{next(name for name in asked if name not in of_tensors)} is one"
        )
    return [entry for entry in archive.files if entry.path in chosen]


def _paths_of(archive: ArchiveReader, name: str) -> list[str]:
    """Return the paths of the files of this name, in this folder, or that fit this pattern."""
    paths = [entry.path for entry in archive.files]
    if name in paths:
        return [name]
    if name.endswith("/"):
        return [path for path in paths if f"/{name}" in f"/{path}"]
    named = [path for path in paths if f"/{path}".endswith(f"/{name}")]
    if len(named) > 1:
        raise InvalidArgument(
            f"{archive.name}: {len(named)} files are called {name!r}: say which, as in "
            f"--only {quote(named[0])}, or take them all with --only {quote(f'*/{escape(name)}')}"
        )
    return named or [path for path in paths if fnmatchcase(f"/{path}", f"*/{name}")]


def _called(archive: ArchiveReader, name: str) -> list[Found]:
    """Return the one tensor of this name, or none."""
    named = [(f, t) for f, t in archive.tensors() if name in (t.name, f"{f.path}:{t.name}")]
    whole = named or [(f, t) for f, t in archive.tensors() if is_behind_folders(name, f.path, t.name)]
    if len(whole) > 1:
        entry, tensor = whole[0]
        raise InvalidArgument(
            f"{archive.name}: {len(whole)} files have a tensor {tensor.name!r}: say which, as in "
            f"--only {quote(f'{entry.path}:{tensor.name}')}, or take them all with "
            f"--only {quote(f'*:{escape(tensor.name)}')} -o FOLDER/"
        )
    return whole


def _fitting(archive: ArchiveReader, pattern: str) -> list[Found]:
    """Return the tensors that fit a pattern."""
    known = list(archive.tensors())
    return [known[number] for number in matches(pattern, [(entry.path, tensor.name) for entry, tensor in known])]


def _like(archive: ArchiveReader, pattern: str) -> list[Found]:
    found = _fitting(archive, pattern)
    if not found:
        files = [name for entry in archive.files for name in (PurePosixPath(entry.path).name, entry.path)]
        meant = did_you_mean(pattern, [*(tensor.name for _, tensor in archive.tensors()), *files])
        raise InvalidArgument(
            f"{archive.name}: no tensor {no_such(pattern)}, and no file{meant or ' (--list shows the names)'}"
        )
    return found


def _check_single(matches: list[Found]) -> None:
    if len(matches) > 1:
        raise UsageError(f"-o must be a folder (ending in /) or a .safetensors file for {len(matches)} tensors")


def _check_is_npy(output: str) -> None:
    """Raises UsageError for a file that ``-o`` names as a tensor file of a kind that single tensors do not become."""
    suffix = PurePosixPath(output).suffix
    if suffix in TENSOR_SUFFIXES - {".npy", ".safetensors"}:
        raise UsageError(
            f"{output}: would be a .npy file under the name of a {suffix} file; call it "
            f"{quote(f'{output.removesuffix(suffix)}.npy')}, or .safetensors"
        )


def _in_folder(folder: Path, matches: list[Found]) -> list[Path]:
    """Return a path for each tensor; below a folder of its file's path where tensors of several files share a name."""
    names = [_file_name(tensor) for _, tensor in matches]
    counts = Counter(names)
    targets = [
        folder / (PurePosixPath(entry.path) / name if counts[name] > 1 else name)
        for name, (entry, _) in zip(names, matches, strict=True)
    ]
    if len(set(targets)) != len(targets):
        raise UsageError("several tensors would become the same file: take them out one by one, as FILE:NAME")
    return targets


def _file_name(tensor: TensorView) -> str:
    """Return the file name of a tensor: ``grad/fc.weight`` becomes ``grad.fc.weight.npy``; types that numpy lacks
    and .safetensors has become that. Of a name that is too long for a file system, which counts bytes, a hash of all of
    it takes the place of the end: two such names may differ only there."""
    name = "".join("." if c in '/\\:*?"<>|' or category(c) == "Cc" else c for c in tensor.name).lstrip(".") or "tensor"
    if len(os.fsencode(name)) > MAX_NAME_BYTES:
        end = f"~{xxh3_64_hexdigest(tensor.name.encode())}"
        name = f"{cut_name(name, MAX_NAME_BYTES - len(end))}{end}"
    return name + (".safetensors" if tensor.dtype in RAW_BITS and tensor.dtype in CODES else ".npy")


def _pieces(archive: ArchiveReader, target: Path, entry: FileEntry, tensor: TensorView) -> Iterator[bytes | memoryview]:
    if target.suffix == ".safetensors":
        return joined_tensors(archive, [(entry, tensor)])
    return _npy(archive, entry, tensor)


def _npy(archive: ArchiveReader, entry: FileEntry, tensor: TensorView) -> Iterator[bytes | memoryview]:
    dtype = numpy_dtype(tensor.dtype)
    if dtype is None:
        raise Unsupported(f"{entry.path}:{tensor.name}: type {tensor.dtype} can only be restored with its file")
    yield npy_header(dtype, tensor.shape)
    yield from (part.data for part in row_major_parts(archive, entry, tensor))


def _report(args: argparse.Namespace, target: Path | str, entry: FileEntry, tensor: TensorView) -> dict[str, Any]:
    bits = tensor.dtype in RAW_BITS and not str(target).endswith(".safetensors")
    if bits:
        display.note(f"{target}: numpy has no {tensor.dtype}; the file holds its raw bits", quiet=args.quiet)
    shape = "x".join(str(n) for n in tensor.shape) or "scalar"
    if not args.quiet and not args.json:
        display.say(f"{target}: {tensor.name}, {tensor.dtype}, {shape}")
    row = {"output": str(target), "file": entry.path, "name": tensor.name, "dtype": tensor.dtype}
    return {**row, "shape": list(tensor.shape)}
