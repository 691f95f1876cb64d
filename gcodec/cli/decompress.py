"""``gcodec decompress``: archives back into files, their contents as a list, single tensors out of them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..archive import ArchiveReader, Bases, FileEntry
from ..archive.description import file_summary, origins
from ..archive.file_state import FileState
from ..archive.output import Attributes, Staging, check_free, sync_to_disk
from ..archive.reader import write_restored
from ..archive.whole_files import paths_below, restore_files, restored_attributes, upload_files, urls_below
from ..errors import GcodecError, number_of
from ..files.elements import width
from ..files.file_plan import TensorView
from ..files.urls import is_url, local_path, local_text
from . import UsageError, base_option, display
from .compile_time import compile_clock, import_numba_for
from .compress import add_common, size_argument
from .extract import extract, find_files
from .file_checks import FilesRead, check_removal, check_restored_as, check_restored_once
from .joined_tensors import is_joined, joined_tensors
from .outputs import PlacesRead, whole_file
from .streams import STDIO

EXAMPLES = """examples:
  gcodec decompress run/*.gc                     restore the files beside their archives
  gcodec decompress all.gc -o there/             restore into a folder
  gcodec decompress --list all.gc                what is in it; reads the index only
  gcodec decompress all.gc --only grad/fc.weight one tensor, as grad.fc.weight.npy
  gcodec decompress all.gc --only 'exp_avg/*' -o state/
  gcodec decompress all.gc --only 'param/*' -o params.safetensors
  gcodec decompress model.pt.gc -o model.safetensors   the tensors alone, in another kind of file
  gcodec decompress x.npy.gc -o - | consumer     to standard output
  gcodec decompress s3://bucket/m.gc -o model.safetensors   URLs, where fsspec is installed
  gcodec decompress new.pt.gc --base old.pt      what was compressed with --base needs it again"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("archives", nargs="*", metavar="ARCHIVE", help="a .gc archive, or - for standard input")
    add("-o", "--output", metavar="PATH", help="a folder; for an archive of one file also a file, or - for stdout")
    add("-c", "--stdout", dest="output", action="store_const", const=STDIO, help="as -o -")
    add("-f", "--force", action="store_true", help="replace files that exist")
    add("-l", "--list", action="store_true", help="list the contents instead")
    add(
        "--only",
        action="append",
        metavar="NAME",
        help="extract this tensor instead: to .npy, or all to one\n"
        ".safetensors file if -o names one; NAME, FILE:NAME or a pattern with * ? [];\nor restore only this file, or "
        "this folder (NAME/); may be repeated",
    )
    base_option.add_base(parser, "what the archives were compressed against:")
    add("--rm", action="store_true", help="remove each archive after its files have been restored")
    add("-k", "--keep", dest="rm", action="store_false", help="keep archives (the default)")
    add(
        "--max-output-bytes",
        type=size_argument,
        metavar="SIZE",
        help="refuse archives that restore to more than SIZE (500MB, 2GiB)",
    )
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Restores, lists or takes out; returns the exit code."""
    args.archives = [str(local_path(name)) for name in args.archives]
    args.output = None if args.output is None else local_text(args.output)
    _check_options(args)
    args.files_read = FilesRead(Path(name) for name in args.archives if _is_local(name))
    args.places_read = PlacesRead(args.archives, args.base)
    args.restored = {}  # of each place that was written to, the archive
    results: list[Any] = []
    with base_option.open_bases(args.base) as base:
        for name in args.archives:
            source: Any = display.stdin_bytes() if name == STDIO else name
            limit, state = args.max_output_bytes, FileState.of(Path(name)) if _is_local(name) else None
            with ArchiveReader(source, threads=args.threads, max_output_bytes=limit, base=base) as archive:
                if args.list:
                    results.append(_list(archive, name, args))
                elif args.only and not (files := find_files(archive, args.only)):
                    results += extract(archive, args, archive_attributes(name))
                elif args.only:
                    archive.files = tuple(files)  # as if it had no others
                    results.append(_restore(archive, name, args, base))
                else:
                    results.append(_restore(archive, name, args, base))
            if args.rm and state is not None:
                _remove(Path(name), state, results[-1]["files"])
    if args.json:
        display.print_json(results)
    elif args.list and sum(len(result["files"]) for result in results) > 1:
        display.show(f"total: {display.archives_line(results)}")
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if not args.archives:
        raise UsageError("name an archive, or - for standard input")
    if args.archives.count(STDIO) > 1:
        raise UsageError("standard input (-) can be read only once")
    if args.list and (args.only or args.output):
        raise UsageError(f"--list restores nothing: leave out {'--only' if args.only else '-o'}")
    if args.json and args.output == STDIO:
        raise UsageError("--json and data cannot both go to standard output")
    places = [*args.archives, *([] if args.output is None else [args.output])]
    if args.rm and (args.list or args.only or not all(map(_is_local, places))):
        raise UsageError("--rm needs archives that are restored whole, from files to files")
    if args.rm:
        check_removal([], map(Path, args.archives))
    if len(args.archives) > 1 and args.output is not None and not _is_folder(args.output):
        raise UsageError(f"-o must be a folder that exists, or end in /, with several archives, not {args.output}")


def archive_attributes(name: str, *, whole: bool = False) -> Attributes | None:
    """Return what restored files take from their archive: nobody may read them who may not read that.

    Args:
        name: The archive's path; None is returned for standard input and a URL.
        whole: The archive holds a single file, which is restored: it gets the archive's permissions, owner and times.
    """
    return restored_attributes(Path(name), whole=whole) if _is_local(name) else None


def _remove(archive: Path, state: FileState, restored: list[str]) -> None:
    """Removes an archive whose files are on the disk."""
    sync_to_disk([Path(path) for path in restored])
    if change := state.change_at(archive):
        raise GcodecError(f"{archive}: {change} while it was read; it is kept")
    archive.unlink()


def _restore(archive: ArchiveReader, name: str, args: argparse.Namespace, bases: Bases | None) -> dict[str, Any]:
    """Restores all files of an archive: all of them appear, or none."""
    begin = time.perf_counter()
    archive.check_limit()
    output = _default_output(name) if args.output is None else args.output
    total = sum(entry.size for entry in archive.files)
    import_numba_for(archive)
    with compile_clock() as clock, display.progress(Path(name).name, total, quiet=args.quiet) as progress:
        if is_joined(output) and not _is_same_kind(archive):
            paths = [_to_safetensors(archive, name, args, bases, progress)]
        elif output == STDIO:
            paths = [_to_stdout(archive, progress)]
        elif output is not None and is_url(output):
            paths = _to_urls(archive, output, args, progress)
        else:
            paths = [str(path) for path in _to_files(archive, name, args, bases, progress)]
    seconds = time.perf_counter() - begin
    if not args.quiet and not args.json and output != STDIO:
        where = output if output is not None and is_url(output) else _root(name, output)
        what = paths[0] if len(paths) == 1 else f"{len(paths)} files in {where}"
        display.say(f"{what}: {display.size(total)}, {display.speed(total, seconds, clock.seconds)}")
    row = {"archive": name, "files": paths, "bytes": total, "seconds": seconds}
    return {**row, "compile_seconds": clock.seconds}


def _to_stdout(archive: ArchiveReader, progress: Any) -> str:
    if len(archive.files) != 1:
        raise UsageError(f"{archive.name}: holds {len(archive.files)} files; only one can go to standard output")
    write_restored(archive, archive.files[0], display.binary_stdout(), progress)
    return STDIO


def _to_urls(archive: ArchiveReader, output: str, args: argparse.Namespace, progress: Any) -> list[str]:
    """Writes the files of an archive to a folder at a URL, or its single file to that URL."""
    if len(archive.files) != 1 and not output.endswith("/"):
        raise UsageError(
            f"{archive.name}: holds {len(archive.files)} files; -o must be the URL of a folder, which "
            f"ends in /, not {output}"
        )
    if not output.endswith("/"):
        check_restored_as(archive.files[0], output)
    urls = urls_below(archive, output)
    args.places_read.check_targets(list(urls.values()))
    check_restored_once(urls.values(), archive.name, args.restored)
    upload_files(archive, urls, force=args.force, progress=progress)
    return list(urls.values())


def _to_files(
    archive: ArchiveReader, name: str, args: argparse.Namespace, bases: Bases | None, progress: Any
) -> list[Path]:
    root, whole = _root(name, args.output), len(archive.files) == 1
    paths = paths_below(archive, root)
    named = args.output is not None and whole and not _is_folder(args.output)
    if named:
        check_restored_as(archive.files[0], args.output)
        paths = {archive.files[0].path: Path(args.output)}
    _check_paths(list(paths.values()), args, bases, named)
    check_restored_once(paths.values(), archive.name, args.restored)
    with Staging(force=args.force, attributes=archive_attributes(name, whole=whole)) as staging:
        restore_files(archive, paths, staging, None if named else root, progress)
    return list(paths.values())


def _is_same_kind(archive: ArchiveReader) -> bool:
    """Return True if the archive holds a single .safetensors file, which is restored as it was."""
    return [entry.format for entry in archive.files] == ["safetensors"]


def _to_safetensors(
    archive: ArchiveReader, name: str, args: argparse.Namespace, bases: Bases | None, progress: Any
) -> str:
    """Writes all tensors of an archive of other files to the one ``.safetensors`` file that ``-o`` names."""
    if args.rm:
        raise UsageError(f"--rm needs archives that are restored whole; {args.output} takes only the tensors")
    path, tensors = str(args.output), list(archive.tensors())
    pieces = joined_tensors(archive, tensors)
    if is_url(path):
        args.places_read.check_targets([path])
    else:
        _check_paths([Path(path)], args, bases, named=True)
    with whole_file(path, force=args.force, attributes=archive_attributes(name)) as file:
        for piece in pieces:
            file.write(piece)
            progress(len(piece))
    kinds = ", ".join(sorted({entry.format for entry in archive.files}))
    originals = f"{kinds} file" if len(archive.files) == 1 else f"{len(archive.files)} files ({kinds})"
    held = number_of(len(tensors), "tensor")
    shared = any("shares" in _tensor_row(archive.files, entry, tensor) for entry, tensor in tensors)
    apart = "; tensors that shared memory are stored separately" if shared else ""
    display.note(f"{path}: holds {held}; what else was in the {originals} is left out{apart}", quiet=args.quiet)
    return path


def _check_paths(paths: list[Path], args: argparse.Namespace, bases: Bases | None, named: bool) -> None:
    """Raises UsageError if files would be restored over an archive or a base of this command."""
    args.files_read.check_targets(paths)
    for path in paths:
        if bases is not None and bases.is_at(path):
            raise UsageError(f"{path}: is needed as --base, and would be replaced")
        check_free(path, force=args.force, named=named)
    if args.rm:
        check_removal(paths, [])


def _root(name: str, output: str | None) -> Path:
    if output is not None:
        return Path(output)
    return Path() if name == STDIO else Path(name).parent


def _is_local(name: str) -> bool:
    """Return True for a path on this machine: neither standard input or output, nor a URL."""
    return name != STDIO and not is_url(name)


def _default_output(name: str) -> str | None:
    """Return where an archive is restored to without ``-o``; None: into its folder on this machine."""
    return f"{name.rpartition('/')[0]}/" if is_url(name) else STDIO if name == STDIO else None


def _is_folder(name: str) -> bool:
    return name != STDIO and (name.endswith("/") or Path(name).is_dir())


def _list(archive: ArchiveReader, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Shows the index of an archive; nothing else is read."""
    files = [_file_row(archive, entry) for entry in archive.files]
    if not args.json:
        display.show(display.titled(name, f"{number_of(len(files), 'file')}, {display.size(archive.size)}"))
        for file in files:
            display.show(display.file_line(file))
            columns: tuple[str, ...] = ("tensor", "dtype", "shape", ">size", ">stored", ">ratio")
            for line in base_option.against_lines(file):
                display.show(display.cut_end(f"  {line}"))
            if "base" in file:
                columns = (*columns, "base")
            rows = [_text_row(tensor)[: len(columns)] for tensor in file["tensors"]]
            if rows:
                display.print_table(columns, rows, indent=2)
    return {"archive": name, "bytes": archive.size, "files": files}


def _file_row(archive: ArchiveReader, entry: FileEntry) -> dict[str, Any]:
    row = {"path": entry.path, "format": entry.format, "exact": entry.exact, "bytes": entry.size}
    tensors = [_tensor_row(archive.files, entry, tensor) for tensor in entry.tensors]
    return {**row, "stored_bytes": entry.stored, **file_summary(archive, entry), "tensors": tensors}


def _tensor_row(files: Sequence[FileEntry], entry: FileEntry, tensor: TensorView) -> dict[str, Any]:
    """Return what is known of a tensor. One that lies in the bytes of an earlier tensor, or has the same ones, adds
    nothing to the archive; one of a group of small ones has its share of what the group takes."""
    segment, owner = entry.segments[tensor.segment], entry.label(tensor.segment)
    row: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    row |= origins(files, entry, tensor.segment)
    known = {"shared": len(entry.views[tensor.segment]) > 1, "known": width(tensor.dtype) is not None}
    size = tensor.n_bytes
    if tensor.segment in entry.groups:
        return {**row, "bytes": size, "stored_bytes": entry.share(tensor), **known, "shared": False, "group": owner}
    if owner != tensor.name:
        return {**row, "bytes": size, "stored_bytes": 0, **known, "shares": owner}
    return {**row, "bytes": segment.bytes, "stored_bytes": segment.stored, **known}


def _text_row(tensor: dict[str, Any]) -> tuple[str, ...]:
    shape, size = "x".join(str(n) for n in tensor["shape"]) or "scalar", display.size(tensor["bytes"])
    stored = display.size(tensor["stored_bytes"])
    if "shares" in tensor or "same" in tensor:
        stored = f"in {tensor['shares']}" if "shares" in tensor else f"as {tensor['same']}"
    elif "cast" in tensor:
        stored = f"{stored}, a cast of {tensor['cast']}"
    ratio = "" if "shares" in tensor or "same" in tensor else _ratio(tensor)
    return (tensor["name"], tensor["dtype"], shape, size, stored, ratio, tensor.get("base", ""))


def _ratio(row: dict[str, Any]) -> str:
    return display.ratio(row["bytes"], row["stored_bytes"])
