"""``gcodec compress``: files, folders and streams into archives."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..archive import ArchiveReader, ArchiveWriter, Bases, FileEntry
from ..archive.base_tensors import Base
from ..archive.cast_segments import casts_last
from ..archive.encoding_policy import MantissaBits
from ..archive.file_state import FileState
from ..archive.file_versions import WORTH_SAVING, FileVersions, share_saved, step_order, tensors_of
from ..archive.output import (
    Attributes,
    Staging,
    check_archive_name,
    check_free,
    is_special,
    new_file_mode,
    sync_to_disk,
)
from ..archive.whole_files import PolicyMaker, add_file
from ..errors import Corruption, GcodecError, InvalidArgument, Unsupported, number_of
from ..files import open_source, plan_or_bytes
from ..files.elements import width
from ..files.source import naming, open_regular
from ..files.urls import check_free_url, is_url, local_text, open_url
from . import UsageError, display
from .base_option import add_base, open_bases
from .compare import compare_bytes
from .compile_time import compile_clock
from .file_checks import FilesRead, check_removal
from .jobs import ArchiveJob, InputFile, jobs_for
from .outputs import PlacesRead
from .streams import STDIO

EXAMPLES = """examples:
  gcodec compress run/*.safetensors              one archive beside each file
  gcodec compress run -o run.gc                  a folder, with the paths in it
  gcodec compress a.npy b.npz model.pt -o all.gc several files in one archive
  gcodec compress dump.safetensors --mode gcomp  gradients near-lossless, by the optimizer's rule
  gcodec compress weights.npy --mantissa-bits 8  normal values to a relative error of 2^-9 at most
  gcodec compress new.pt --base old.pt           what has changed since; decompress needs old.pt again
  gcodec compress s3://bucket/model.safetensors -o m.gc    URLs, where fsspec is installed
  cat x.npy | gcodec compress - > x.npy.gc       from standard input to standard output"""


class _Added(NamedTuple):
    """A file that has been put into an archive.

    Attributes:
        entry: Its entry.
        source: Where the file is; None for what is no regular file.
        state: Its state when it was opened; None for what is no regular file.
    """

    entry: FileEntry
    source: Path | None
    state: FileState | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        metavar="INPUT",
        help=".npy .npz .safetensors .pt .pth .gguf, any other file, a folder, or -",
    )
    add(
        "-o",
        "--output",
        metavar="PATH",
        help="one archive for all inputs, a folder for an archive of each,\nor - for stdout",
    )
    add("-c", "--stdout", dest="output", action="store_const", const=STDIO, help="as -o -")
    add("-f", "--force", action="store_true", help="replace archives that exist")
    add("--rm", action="store_true", help="remove inputs after comparing the archive with them (lossless only)")
    add("-k", "--keep", dest="rm", action="store_false", help="keep inputs (the default)")
    modes = parser.add_argument_group("modes (lossless unless told otherwise)")
    modes.add_argument(
        "--mode",
        choices=("lossless", "gcomp"),
        help="gcomp: gradients of a dump near-lossless,\nwith"
        " the optimizer's state and rule found in the dump; the rest lossless",
    )
    modes.add_argument("--mantissa-bits", type=int, metavar="K", help="keep K mantissa bits of every value")
    modes.add_argument("--ladder", choices=("fine", "paper"), help="gcomp: levels of our own (default) or the paper's")
    modes.add_argument(
        "--rounding", choices=("nearest", "truncate"), help="rounding of dropped bits (default: nearest)"
    )
    modes.add_argument(
        "--fill-value",
        dest="keep",
        type=float,
        action="append",
        metavar="X",
        help="with --mantissa-bits: values equal to X, which stands for\nmissing ones, keep all bits; may be repeated",
    )
    modes.add_argument(
        "--literal",
        action="store_true",
        help="gcomp just as published: the paper's ladder, one codebook\nand truncation (for comparison)",
    )
    add("--smallest", action="store_true", help="try more ways to store what stays lossless, however slow they are")
    add_base(
        parser,
        "encode tensors against those of the same name in\nearlier files, where that is smaller (lossless only):",
    )
    add(
        "--auto-base",
        action="store_true",
        help="encode files of one archive that are versions of each other, as\n"
        "checkpoints are, against the version before, where that is smaller",
    )
    add(
        "--dtype",
        metavar="T",
        help="the value type of an input without a header, or of a .npy with raw bits\n"
        "(uint16, uint8): bfloat16, float8_e4m3fn ...;\nrefused for .npz, .pt, .safetensors and .gguf files",
    )
    add(
        "--max-unpacked-bytes",
        type=size_argument,
        metavar="SIZE",
        help="limit for the temporary file that\n"
        "a compressed .npz is unpacked to (default: 1032 times its size, the most that deflate can reach)",
    )
    add_common(parser)


def size_argument(text: str) -> int:
    """Return the number of bytes that an argument such as ``500MB`` means."""
    try:
        return display.parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that all verbs that work on archives share."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="number of threads (default: all cores that the process may use)"
    )
    parser.add_argument("--json", action="store_true", help="results as JSON on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Writes the archives; returns 1 if files of a folder were skipped or inputs changed meanwhile, else 0."""
    if not args.inputs:
        raise UsageError("name a file or a folder, or - for standard input")
    args.output = None if args.output is None else local_text(args.output)
    make_policy = policy_maker(args)
    jobs = jobs_for(args.inputs, args.output)
    check_options(args, jobs)
    if any(member.source is None and not member.url for job in jobs for member in job.members):
        display.stdin_bytes()  # a terminal is refused before a bar is shown on it
    for job in jobs:
        if job.target is not None:
            check_free(job.target, force=args.force)
        if job.url:
            check_free_url(job.url, force=args.force)
    results, written = [], list[tuple[Path, FileEntry]]()
    jobs = [replace(job, members=_in_order(job.members, by_step=args.auto_base)) for job in jobs]
    with open_bases(args.base) as bases, Staging() as folders:
        _check_bases(args, jobs, bases)
        _check_names(jobs)
        if args.output and args.output.endswith("/") and not is_url(args.output):
            folders.make_folder(Path(args.output), Path(args.output))
        results += [
            _write(job, args, make_policy, FileVersions() if args.auto_base else bases, written) for job in jobs
        ]
    if not (args.quiet or args.json) and (remark := _remark(args, results, written)):
        display.note(remark, quiet=False)
    if args.json:
        display.print_json(results)
    return 1 if any(result["problems"] for result in results) else 0


def _in_order(members: Sequence[InputFile], *, by_step: bool) -> tuple[InputFile, ...]:
    """Return the files of an archive in the order in which they are added; ``by_step``: as :func:`step_order` has it,
    but for those that files before them may be casts of."""
    if by_step:
        members = sorted(members, key=lambda member: step_order(member.path))
    return tuple(casts_last(members, lambda member: member.source))


def _remark(
    args: argparse.Namespace, results: list[dict[str, Any]], written: list[tuple[Path, FileEntry]]
) -> str | None:
    """Return what differences between the files have saved, or would save; None if there is nothing to be said."""
    if args.auto_base:
        n_files, n_versions = (sum(result[key] for result in results) for key in ("files", "versions"))
        return f"{n_versions} of {number_of(n_files, 'file')} are stored as the difference from an earlier one"
    return None if args.rm else _remark_on_versions(written, len(results) == 1)


def _remark_on_versions(written: Sequence[tuple[Path, FileEntry]], in_one_archive: bool) -> str | None:
    """Return what the user should know of files that have the same tensors and were compressed one by one.

    Args:
        written: Files on the disk, and what archives have of them.
        in_one_archive: Whether they are in the same archive, in which tensors that are equal are stored once.

    Returns:
        The remark; None if no files have the same tensors, or too little would be saved, as far as a sample of the last
        two tells.
    """
    versions = dict[object, list[Path]]()
    for path, entry in written:
        if entry.tensors and entry.exact and not entry.needs_base:
            versions.setdefault(tensors_of(entry.tensors), []).append(path)
    several = max(versions.values(), key=len, default=[])
    if len(several) < 2:
        return None
    *_, earlier, later = sorted(several, key=step_order)
    try:
        saved = _share_saved(earlier, later, in_one_archive)
    except (GcodecError, OSError):  # they have been read once; whoever changes them meanwhile needs no remark
        return None
    if saved < WORTH_SAVING:
        return None
    percent = min(round(100 * saved), 99)
    series = "gcodec series add FOLDER FILE..." if len({path.name for path in several}) == len(several) else "--base"
    how = "--auto-base" if in_one_archive else series
    if len(several) == 2:
        return f"{later} has the tensors of {earlier}: as a difference it would take about {percent} % less ({how})"
    return f"{len(several)} files have the same tensors: as differences they would take about {percent} % less ({how})"


def _share_saved(earlier: Path, later: Path, in_one_archive: bool) -> float:
    """Return the share of a file's size that is saved where it is stored as the difference, by a sample."""
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(closing(plan_or_bytes(path.name, stack.enter_context(closing(open_source(path))))))
            for path in (earlier, later)
        )
        return share_saved(new, Base.of_plan(str(earlier), old), equal_is_free=in_one_archive)


def check_options(args: argparse.Namespace, jobs: list[ArchiveJob]) -> None:
    """Raises UsageError for options that have no meaning, or cannot be given together."""
    streams = [job for job in jobs if job.place is None]
    if streams and args.json:
        raise UsageError("--json and an archive cannot both go to standard output")
    if streams and len(jobs) > 1:
        raise UsageError(f"only one archive can go to standard output, not {len(jobs)}; give -o")
    targets = [job.target for job in jobs if job.target is not None]
    places = [job.place for job in jobs]
    if len(set(places)) != len(places):
        repeated = next(place for place in places if places.count(place) > 1)
        raise UsageError(f"two inputs would become the archive {repeated}; give -o FILE for one archive of both")
    members = [member for job in jobs for member in job.members]
    sources = [member.source for member in members if member.source]
    FilesRead(sources).check_targets(targets)
    urls = [member.url for member in members if member.url]
    PlacesRead(urls, args.base).check_targets([job.url for job in jobs if job.url])
    if args.rm:
        check_removal(targets, sources)
    if args.rm and (
        make_lossy(args)
        or any(not m.named or m.source is None for m in members)
        or any(job.target is None for job in jobs)
    ):
        raise UsageError("--rm needs files that are compressed losslessly, not folders, streams, URLs or lossy modes")
    if args.dtype and width(args.dtype) is None:
        raise UsageError(f"--dtype must be a type such as float32, bfloat16 or float8_e4m3fn, not {args.dtype}")
    if args.auto_base and args.base:
        raise UsageError("--auto-base and --base cannot both be given")
    if args.auto_base and make_lossy(args):
        raise UsageError("--auto-base needs lossless mode")
    if args.auto_base and (alone := [job for job in jobs if len(job.members) == 1 and job.members[0].named]):
        raise UsageError(
            f"--auto-base is for files of one archive, but {alone[0].members[0].path or STDIO} would be alone in its "
            "own: name a folder, or one archive with -o; or give --base, or use gcodec series"
        )
    if args.dtype and not all(member.named for member in members):
        raise UsageError("--dtype needs files, not folders")


def _check_bases(args: argparse.Namespace, jobs: list[ArchiveJob], bases: Bases | None) -> None:
    """Raises UsageError if a base would be gone when it is needed."""
    sources = [member.source for job in jobs for member in job.members if member.source and args.rm]
    for path in (*sources, *(job.target for job in jobs if job.target)):
        if bases is not None and bases.is_at(path):
            fate = "removed" if path in sources else "replaced"
            raise UsageError(f"{path}: is needed as --base, and would be {fate}")


def _check_names(jobs: list[ArchiveJob]) -> None:
    """Raises UsageError for an archive under the name of another kind of file."""
    for job in jobs:
        try:
            check_archive_name(job.place or "")
        except InvalidArgument as error:
            raise UsageError(f"{error}") from error


def make_lossy(args: argparse.Namespace) -> bool:
    """Return True if the options ask for a lossy mode."""
    return args.mode == "gcomp" or args.mantissa_bits is not None


def policy_maker(args: argparse.Namespace) -> PolicyMaker:
    """Return the function that makes the policy of each file, by the options.

    Raises:
        UsageError: Options that cannot be given together.
    """
    if args.mode != "gcomp" and (args.ladder or args.literal):
        raise UsageError(f"{'--ladder' if args.ladder else '--literal'} needs --mode gcomp")
    if args.base and make_lossy(args):
        lossy = "--mantissa-bits" if args.mantissa_bits is not None else "--mode gcomp"
        raise UsageError(f"--base needs lossless mode, not {lossy}")
    if args.rounding and not make_lossy(args):
        raise UsageError("--rounding needs --mode gcomp or --mantissa-bits")
    if args.keep and args.mantissa_bits is None:
        raise UsageError("--fill-value needs --mantissa-bits")
    if args.mantissa_bits is not None:
        if args.mode is not None:
            raise UsageError(f"--mantissa-bits is a mode of its own: leave out --mode {args.mode}")
        if not 1 <= args.mantissa_bits <= 52:
            raise UsageError(f"--mantissa-bits must be 1 to 52, not {args.mantissa_bits}")
        options = {name: getattr(args, name) for name in ("rounding", "keep") if getattr(args, name)}
        return lambda plan: MantissaBits(plan, args.mantissa_bits, options)
    if args.mode != "gcomp":
        return lambda plan: None
    if args.literal and (args.ladder or args.rounding):
        raise UsageError(f"--literal sets the {'ladder' if args.ladder else 'rounding'} itself: leave the option out")
    from .gcomp import DumpPolicy

    return lambda plan: DumpPolicy.for_plan(plan, args.ladder or "fine", args.rounding or "nearest", args.literal)


def _write(
    job: ArchiveJob,
    args: argparse.Namespace,
    make_policy: PolicyMaker,
    bases: Bases | FileVersions | None,
    written: list[tuple[Path, FileEntry]],
) -> dict[str, Any]:
    """Writes one archive, says so, adds its files to ``written``, and removes the inputs if that was asked for."""
    begin = time.perf_counter()
    title = job.target.name if job.target else "compressing"
    target = job.url or job.target or display.binary_stdout()
    problems = list(job.skipped)
    with (
        compile_clock() as clock,
        display.progress(title, job.input_bytes, quiet=args.quiet) as progress,
        ArchiveWriter(
            target,
            threads=args.threads,
            force=args.force,
            smallest=args.smallest,
            attributes=_attributes(job),
            progress=progress,
        ) as archive,
    ):
        added = [row for member in job.members if (row := _add(archive, member, args, make_policy, bases, problems))]
        if not added and problems:
            raise GcodecError(problems[0])
    result = _result(
        job, [row.entry for row in added], archive.bytes_written, time.perf_counter() - begin, clock.seconds
    )
    if not args.quiet and not args.json:
        display.say(_line(result), to_stderr=job.place is None)
    written += [(row.source, row.entry) for row in added if row.source]
    n_skipped = len(problems)
    problems += [
        f"{row.source}: {change} while it was read; the archive holds what was read"
        for row in added
        if row.source and row.state and (change := row.state.change_at(row.source))
    ]
    if args.rm and len(problems) == n_skipped:
        _remove_inputs(job, added, args, bases if isinstance(bases, Bases) else None)
    for line in problems:
        display.fail(line)
    return {**result, "problems": problems}


def _attributes(job: ArchiveJob) -> Attributes | None:
    """Return what the archive of a single file takes from it; that of several is for those who may read all."""
    stats = job.stats()
    if len(job.members) == 1 and stats and job.members[0].named and not is_special(job.members[0].source or Path()):
        return Attributes.like(stats[0])
    return Attributes.within(stats, new_file_mode()) if stats else None


def _add(
    archive: ArchiveWriter,
    member: InputFile,
    args: argparse.Namespace,
    make_policy: PolicyMaker,
    bases: Bases | FileVersions | None,
    problems: list[str],
) -> _Added | None:
    """Adds a file; one of a folder that cannot be opened or read becomes a line in ``problems`` instead."""
    with ExitStack() as stack:
        try:
            if member.url:
                opened = stack.enter_context(closing(open_url(member.url)))
            else:
                opened = stack.enter_context(_opened(member)) if member.source else display.stdin_bytes()
        except (OSError, Corruption) as error:
            if member.named:
                raise
            why = "is not a regular file" if isinstance(error, Corruption) else error.strerror
            problems.append(f"{member.url or member.source}: skipped: {why}")
            return None
        with naming(member.source):
            state = FileState.of(opened.fileno()) if member.source and member.source.is_file() else None
        try:
            entry = add_file(
                archive,
                opened,
                member.path,
                make_policy,
                bases,
                tolerated=Unsupported if member.named else GcodecError,
                note=lambda text: display.note(text, quiet=args.quiet),
                dtype=args.dtype,
                max_unpacked_bytes=args.max_unpacked_bytes,
            )
        except (OSError, GcodecError) as error:
            why = "" if member.named else _why_not_read(error, member, state)
            if not why or not archive.can_go_on:
                raise
            problems.append(f"{member.url or member.source}: skipped: {why}")
            return None
        if not (entry.size or member.source or member.url):  # what feeds a pipeline has failed, or there is nothing
            raise GcodecError("standard input is empty: there is nothing to compress (gcodec --help)")
        return _Added(entry, member.source, state)
    raise AssertionError  # an ExitStack suppresses nothing of its own


def _why_not_read(error: OSError | GcodecError, member: InputFile, state: FileState | None) -> str:
    """Return why a file could not be read that had some state when it was opened; empty if the error is of something
    else, such as the disk with the archive."""
    if isinstance(error, OSError):
        is_own = error.filename is not None and str(error.filename) == (member.url or str(member.source))
        return (error.strerror or str(error)) if is_own else ""
    change = state.change_at(member.source) if state and member.source else ""
    return f"{change} while it was read" if change else ""


def _opened(member: InputFile) -> BinaryIO:
    """Return a file opened for reading; one of a folder may have become a pipe since that was listed, which nobody
    waits for."""
    assert member.source is not None
    return member.source.open("rb") if member.named else open_regular(member.source)


def _result(job: ArchiveJob, entries: list[FileEntry], stored: int, seconds: float, compiling: float) -> dict[str, Any]:
    size = sum(entry.size for entry in entries)
    segments = [segment for entry in entries for segment in entry.segments if segment.dtype]
    values = sum(segment.bytes // (width(segment.dtype or "") or 1) for segment in segments)
    float_bytes = sum(segment.stored for segment in segments)
    return {
        "archive": job.place,
        "files": len(entries),
        "tensors": sum(len(entry.tensors) for entry in entries),
        "exact": all(entry.exact for entry in entries),
        "needs_base": any(entry.needs_base for entry in entries),
        "versions": sum(entry.is_version for entry in entries),
        "input_bytes": size,
        "archive_bytes": stored,
        "ratio": size / stored,
        "float_values": values,
        "bits_per_value": 8 * float_bytes / values if values else None,
        "seconds": seconds,
        "compile_seconds": compiling,
        "bytes_per_second": size / max(seconds - compiling, 1e-9),
    }


def _line(result: dict[str, Any]) -> str:
    bits = f", {result['bits_per_value']:.2f} bits/value" if result["bits_per_value"] else ""
    sizes = f"{display.size(result['input_bytes'])} -> {display.size(result['archive_bytes'])}"
    speed = display.speed(result["input_bytes"], result["seconds"], result["compile_seconds"])
    ratio = display.ratio(result["input_bytes"], result["archive_bytes"])
    return f"{result['archive'] or 'stdout'}: {sizes}, ratio {ratio}{bits}, {speed}"


def _remove_inputs(job: ArchiveJob, added: list[_Added], args: argparse.Namespace, bases: Bases | None) -> None:
    """Decodes the archive once more, compares every file with its input, then removes the inputs.

    Raises:
        GcodecError: An input differs from what is in the archive. All inputs are kept then.
    """
    assert job.target is not None  # check_options has refused streams and URLs
    with ArchiveReader(job.target, threads=args.threads, base=bases) as archive:
        for entry, (_, source, _) in zip(archive.files, added, strict=True):
            assert source is not None
            with (
                closing(open_source(source)) as opened,
                closing(plan_or_bytes(entry.path, opened, max_unpacked_bytes=entry.size)) as plan,
            ):
                compare_bytes(archive, entry, plan.source, str(source), lambda count: None)
    sync_to_disk([job.target])
    for _, path, state in added:
        assert path is not None and state is not None
        if change := state.change_at(path):
            raise GcodecError(f"{path}: {change} while it was compressed; it is kept")
        path.unlink()
