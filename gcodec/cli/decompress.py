"""``gcodec decompress``: archives back into files, their contents as a list, single tensors out of them."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from ..archive import ArchiveReader, FileEntry
from ..archive.output import Staging, check_free, naming
from ..files.elements import width
from ..files.file_plan import TensorView
from . import UsageError, base_option, display
from .compress import add_common
from .extract import extract
from .jobs import STDIO

EXAMPLES = """examples:
  gcodec decompress run/*.gc                     restore the files beside their archives
  gcodec decompress all.gc -o there/             restore into a folder
  gcodec decompress --list all.gc                what is in it; reads the index only
  gcodec decompress all.gc --only grad/fc.weight one tensor, as grad.fc.weight.npy
  gcodec decompress all.gc --only 'exp_avg/*' -o state/
  gcodec decompress x.npy.gc -o - | consumer     to standard output
  gcodec decompress new.pt.gc --base old.pt      what was compressed with --base needs it again"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("archives", nargs="+", metavar="ARCHIVE", help="a .gc archive, or - for standard input")
    add("-o", "--output", metavar="PATH", help="a folder; for an archive of one file also a file, or - for stdout")
    add("-f", "--force", action="store_true", help="replace files that exist")
    add("--list", action="store_true", help="list the contents instead")
    add("--only", action="append", metavar="NAME", help="take out this tensor instead: as .npy, or .safetensors if -o\n"
        "ends so; NAME, FILE:NAME or a pattern with * ? []; may be repeated")
    base_option.add_base(parser, "what the archives were compressed against:")
    add("--rm", action="store_true", help="remove each archive after its files have been restored")
    add("--max-output-bytes", type=_size, metavar="SIZE", help="refuse archives that restore to more (500MB, 2GiB)")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Restores, lists or takes out; returns the exit code."""
    _check_options(args)
    results: list[Any] = []
    with base_option.open_bases(args.base) as base:
        for name in args.archives:
            source: Any = display.stdin_bytes() if name == STDIO else name
            limit = args.max_output_bytes
            with ArchiveReader(source, threads=args.threads, max_output_bytes=limit, base=base) as archive:
                if args.list:
                    results.append(_list(archive, name, args))
                elif args.only:
                    results += extract(archive, args)
                else:
                    results.append(_restore(archive, name, args))
            if args.rm:
                Path(name).unlink()
    if args.json:
        display.print_json(results)
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if args.threads is not None and args.threads < 1:
        raise UsageError(f"--threads must be at least 1, not {args.threads}")
    if args.archives.count(STDIO) > 1:
        raise UsageError("standard input (-) can be read only once")
    if args.list and (args.only or args.output):
        raise UsageError(f"--list restores nothing: leave out {'--only' if args.only else '-o'}")
    if args.json and args.output == STDIO:
        raise UsageError("--json and data cannot both go to standard output")
    if args.rm and (args.list or args.only or STDIO in (*args.archives, args.output)):
        raise UsageError("--rm needs archives that are restored whole, from files to files")
    if len(args.archives) > 1 and args.output is not None and not _is_folder(args.output):
        raise UsageError(f"-o must be a folder that exists, or end in /, with several archives, not {args.output}")


def _restore(archive: ArchiveReader, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Restores all files of an archive: all of them appear, or none."""
    begin = time.perf_counter()
    archive.check_limit()
    output = STDIO if args.output is None and name == STDIO else args.output
    total = sum(entry.size for entry in archive.files)
    with display.progress(Path(name).name, total, quiet=args.quiet) as progress:
        if output == STDIO:
            paths = [Path(_to_stdout(archive, progress))]
        else:
            paths = _to_files(archive, _root(name, output), output, args.force, progress)
    seconds = time.perf_counter() - begin
    if not args.quiet and not args.json and output != STDIO:
        what = paths[0] if len(paths) == 1 else f"{len(paths)} files in {_root(name, output)}"
        display.say(f"{what}: {display.size(total)}, {seconds:.2f} s, {display.rate(total, seconds)}")
    return {"archive": name, "files": [str(path) for path in paths], "bytes": total, "seconds": seconds}


def _to_stdout(archive: ArchiveReader, progress: Any) -> str:
    if len(archive.files) != 1:
        raise UsageError(f"{archive.name}: holds {len(archive.files)} files; only one can go to standard output")
    stream = display.binary_stdout()
    for part in archive.restored(archive.files[0]):
        stream.write(part.data)
        progress(part.size)
    return STDIO


def _to_files(archive: ArchiveReader, root: Path, output: str | None, force: bool, progress: Any) -> list[Path]:
    paths = {entry.path: root / PurePosixPath(entry.path) for entry in archive.files}
    if output is not None and len(archive.files) == 1 and not _is_folder(output):
        root, paths = Path(output).parent, {archive.files[0].path: Path(output)}
    for path in paths.values():
        check_free(path, force=force)
    with Staging(force=force) as staging:
        for entry in archive.files:
            _to_file(archive, entry, paths[entry.path], root, staging, progress)
    return list(paths.values())


def _to_file(
    archive: ArchiveReader, entry: FileEntry, path: Path, root: Path, staging: Staging, progress: Any
) -> None:
    staging.make_folder(root, path.parent)
    with naming(path), staging.create(path) as file:
        for part in archive.restored(entry):
            file.write(part.data)
            progress(part.size)


def _root(name: str, output: str | None) -> Path:
    if output is not None:
        return Path(output)
    return Path() if name == STDIO else Path(name).parent


def _is_folder(name: str) -> bool:
    return name != STDIO and (name.endswith("/") or Path(name).is_dir())


def _list(archive: ArchiveReader, name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Shows the index of an archive; nothing else is read."""
    files = [_file_row(entry) for entry in archive.files]
    if not args.json:
        print(f"{name}: {len(files)} {'file' if len(files) == 1 else 'files'}, {display.size(archive.size)}")
        for file in files:
            remade = "" if file["exact"] else ", not byte for byte the original"
            sizes = f"{display.size(file['bytes'])} -> {display.size(file['stored_bytes'])}"
            print(f"{file['path']}: {file['format']}, {sizes}, ratio {_ratio(file)}{remade}")
            columns: tuple[str, ...] = ("tensor", "dtype", "shape", ">size", ">stored", ">ratio")
            if "base" in file:
                print(f"  {base_option.base_line(file)}")
                columns = (*columns, "base")
            rows = [_text_row(tensor)[: len(columns)] for tensor in file["tensors"]]
            if rows:
                display.print_table(columns, rows, indent=2)
    return {"archive": name, "bytes": archive.size, "files": files}


def _file_row(entry: FileEntry) -> dict[str, Any]:
    row = {"path": entry.path, "format": entry.format, "exact": entry.exact, "bytes": entry.size}
    owners = Counter(tensor.segment for tensor in entry.tensors)
    tensors = [_tensor_row(entry, tensor, owners[tensor.segment] > 1) for tensor in entry.tensors]
    return {**row, "stored_bytes": entry.stored, **base_option.base_summary(entry), "tensors": tensors}


def _tensor_row(entry: FileEntry, tensor: TensorView, shared: bool) -> dict[str, Any]:
    segment = entry.segments[tensor.segment]
    row: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape)}
    row |= {"bytes": segment.bytes} | ({"base": segment.base} if segment.base else {})
    return {**row, "stored_bytes": segment.stored, "shared": shared, "known": width(tensor.dtype) is not None}


def _text_row(tensor: dict[str, Any]) -> tuple[str, ...]:
    shape = "x".join(str(n) for n in tensor["shape"]) or "scalar"
    sizes = display.size(tensor["bytes"]), display.size(tensor["stored_bytes"])
    return (tensor["name"], tensor["dtype"], shape, *sizes, _ratio(tensor), tensor.get("base", ""))


def _ratio(row: dict[str, Any]) -> str:
    return display.ratio(row["bytes"], row["stored_bytes"])


def _size(text: str) -> int:
    try:
        return display.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
