"""``gcodec verify``: decodes everything and checks every hash; compares with the original if there is one."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..archive import ArchiveReader, Bases, FileEntry
from ..archive.folder_members import files_in
from ..errors import GcodecError, number_of
from ..files.urls import files_below, is_file_at, is_folder_at, is_url, local_path
from . import UsageError, display, system_error
from .base_option import add_base, open_bases
from .compare import Difference, compare_file
from .compile_time import compile_clock, import_numba_for
from .compress import add_common
from .streams import STDIO

EXAMPLES = """examples:
  gcodec verify run/*.gc
  gcodec verify run.gc --against run             a folder, or the file itself
  gcodec verify run.gc --against s3://bucket/run  where fsspec is installed
  gcodec verify dump.gc --against dump.safetensors --json   how far lossy values are from the original"""

_OF_SPEED = "bytes", "seconds", "compile_seconds"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    parser.add_argument("archives", nargs="*", metavar="ARCHIVE", help="a .gc archive, or - for standard input")
    parser.add_argument(
        "--against", metavar="ORIGINAL", help="compare with this file, or the files in this folder;\na path or a URL"
    )
    add_base(parser, "what the archives were compressed against:")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Verifies all archives, going on after a bad one; 1 if any was bad, or lacks files of the folder it is of."""
    if not args.archives:
        raise UsageError("name an archive, or - for standard input")
    if args.against is not None and len(args.archives) > 1:
        raise UsageError(f"--against needs a single archive, not {len(args.archives)}")
    with open_bases(args.base) as bases:
        results = [_verify(name, args, bases) for name in args.archives]
    if args.json:
        display.print_json(results)
    elif len(results) > 1 and not args.quiet:
        good = [result for result in results if result["ok"] and not result["problems"]]
        sizes = display.size(sum(result["bytes"] for result in good))
        bad = f", {len(results) - len(good)} bad" if len(good) < len(results) else ""
        display.show(f"total: {number_of(len(results), 'archive')}, {len(good)} good with {sizes}{bad}")
    for result in results:
        for line in [result["error"]] if "error" in result else result["problems"]:
            display.fail(line)
    return 1 if any("error" in result or result["problems"] for result in results) else 0


def _verify(name: str, args: argparse.Namespace, bases: Bases | None) -> dict[str, Any]:
    begin, result = time.perf_counter(), {"archive": name, "ok": False}
    source: Any = display.stdin_bytes() if name == STDIO else name
    try:
        with ArchiveReader(source, threads=args.threads, base=bases) as archive:
            total = sum(entry.size for entry in archive.files)
            import_numba_for(archive)
            with compile_clock() as clock, display.progress(Path(name).name, total, quiet=args.quiet) as progress:
                files = [_verify_file(archive, entry, args.against, progress) for entry in archive.files]
            problems = _missing(name, files) if args.against is not None else []
    except (GcodecError, OSError) as error:
        return {**result, "error": _message(error, name)}
    seconds = time.perf_counter() - begin
    result |= {"ok": True, "bytes": total, "seconds": seconds, "compile_seconds": clock.seconds}
    result |= {"files": files, "problems": problems}
    if not args.quiet and not args.json:
        _say(result)
    return result


def _verify_file(archive: ArchiveReader, entry: FileEntry, against: str | None, progress: Any) -> dict[str, Any]:
    row = {"path": entry.path, "bytes": entry.size, "exact": entry.exact}
    if against is None:
        for part in archive.restored(entry):
            progress(part.size)
        return row
    original = _original(against, entry, alone=len(archive.files) == 1)
    differences = compare_file(archive, entry, original, progress)
    return {**row, "original": original, "differences": [difference._asdict() for difference in differences]}


def _original(against: str, entry: FileEntry, *, alone: bool) -> str:
    """Return where the original of a file is, below the folder that was archived, a copy of it, or the one that holds
    it."""
    against = str(local_path(against))
    if not is_folder_at(against):
        if alone:
            return against
        raise GcodecError(f"{against}: is not a folder")
    parent, name = against.rstrip("/").rpartition("/")[::2]
    if not is_url(against):
        against, parent, name = str(Path(against)), str(Path(against).absolute().parent), Path(against).absolute().name
    top, _, rest = entry.path.partition("/")
    # The folder that was archived, or a copy of it of another name; or the folder that holds it.
    places = f"{against.rstrip('/')}/{entry.path}", f"{parent}/{entry.path}" if name == top else f"{against}/{rest}"
    file = next((place for place in places if is_file_at(place)), None)
    if file is None:
        raise GcodecError(f"{against}: has no file {entry.path}")
    return file


def _missing(name: str, files: list[dict[str, Any]]) -> list[str]:
    """Return a line for each file that the archive lacks, though the folder that it is of has it.

    An archive is of a whole folder if all its paths begin with that folder's name: others are of files that the user
    chose, and what lies beside these is no concern of theirs.

    Args:
        name: Of the archive; it may lie in the folder itself.
        files: A row for each file of the archive, with its original.
    """
    tops = {row["path"].partition("/")[0] if "/" in row["path"] else "" for row in files}
    if len(tops) != 1 or tops == {""}:
        return []
    first, (top,) = files[0], tops
    folder = first["original"].removesuffix(first["path"].removeprefix(top))
    originals = {row["original"] for row in files}
    what = "the archive" if name == STDIO else name
    unreadable: list[str] = []
    if is_url(folder):
        known = {*originals, name}
        lacking_urls = [place for _, place in files_below(folder, unreadable) if place not in known]
        return _lines(unreadable, lacking_urls, what)
    there = set(files_in(Path(folder), unreadable)) - {Path(original) for original in originals}
    own = Path(name)
    lacking = sorted(path for path in there if not (own.exists() and path.samefile(own)))
    return _lines(unreadable, lacking, what)


def _lines(skipped: list[str], lacking: Sequence[str | Path], what: str) -> list[str]:
    lines = [line.replace(": skipped: ", ": ", 1) for line in skipped]
    return [*lines, *(f"{place}: is not in {what}" for place in lacking)]


def _say(result: dict[str, Any]) -> None:
    files = result["files"]
    size, speed = display.size(result["bytes"]), display.speed(*(result[key] for key in _OF_SPEED))
    display.show(f"{result['archive']}: good, {number_of(len(files), 'file')}, {size}, {speed}")
    for file in files:
        differences = [Difference(**row) for row in file.get("differences", ())]
        if "original" in file and not differences:
            same = "byte for byte" if file["exact"] else "in every value"
            display.show(f"{file['path']}: equals {file['original']} {same}")
        elif differences:
            rows = [_row(difference) for difference in differences]
            columns = ("changed tensor", ">values", ">changed", ">largest relative change", ">largest change")
            display.show(f"{file['path']}: lossy, against {file['original']}")
            display.print_table(columns, rows, indent=2)


def _row(difference: Difference) -> tuple[str, ...]:
    name, values, changed, relative, absolute = difference
    return name, str(values), str(changed), f"{relative:.3g}", f"{absolute:.3g}"


def _message(error: Exception, name: str) -> str:
    if isinstance(error, OSError):
        return system_error(error) if error.filename else f"{name}: {error.strerror or error}"
    text = str(error)
    return text if name == STDIO or text.startswith(name) else f"{name}: {text}"
