"""``gcodec series``: checkpoint files of a run in a folder, where each is the difference from the one before."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ..archive.entries import unsafe_path
from ..archive.file_state import FileState
from ..archive.found_values import with_found_values
from ..archive.output import Attributes, Staging, check_free
from ..archive.reader import write_restored
from ..archive.state_files import with_views_apart
from ..archive.whole_files import upload_files, urls_below
from ..checkpoints import StepFolder, StepInfo
from ..checkpoints.checkpointer import check_full_every, check_retention, steps_to_prune
from ..checkpoints.step_files import check_step, step_of
from ..errors import GcodecError, InvalidArgument, Unsupported, number_of
from ..files import open_source, plan_or_bytes
from ..files.source import naming
from ..files.urls import is_folder_at, is_url, local_path, local_text, name_at, open_url, path_or_none, resolved
from . import UsageError, display, system_error
from .compare import compare_bytes
from .compress import add_common, size_argument
from .file_checks import FilesRead, check_removal, check_restored_as
from .streams import STDIO

EXAMPLES = """examples:
  gcodec series add run/series run/step-*.pt     each file as the difference from the step before
  gcodec series add run/series step-900.pt --rm  remove the file once its step has been compared with it
  gcodec series list run/series
  gcodec series restore run/series               the last step's file, to this folder
  gcodec series restore run/series 300 600 -o there/
  gcodec series verify run/series                decode every step, check every hash
  gcodec series delete run/series 300            what depends on it is encoded again first
  gcodec series prune run/series --keep-last 5 --keep-every 1000"""

Handler = Callable[[argparse.Namespace], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs of a series, each with its options."""
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="series_verb", metavar="VERB", title="verbs", required=True)

    def verb(name: str, handler: Handler, text: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=argparse.RawTextHelpFormatter
        )
        added.add_argument("folder", metavar="FOLDER", help="the folder of the series, or its URL")
        add_common(added)
        added.set_defaults(series_handler=handler)
        return added

    add = verb("add", _add, "add files, in the order of their steps").add_argument
    add("files", nargs="+", metavar="FILE", help=".pt .pth .safetensors .gguf .npz .npy, or any other")
    add("--step", type=int, metavar="N", help="the step of a single file (default: the last number in its name)")
    add("--full-every", type=int, default=10, metavar="K", help="store one step in K whole (default: 10; at most 64)")
    add("--rm", action="store_true", help="remove each file after comparing its step with it")

    verb("list", _list, "list the steps, with sizes")

    add = verb("restore", _restore, "restore the files of steps, byte for byte").add_argument
    add("steps", nargs="*", type=int, metavar="STEP", help="which (default: the last)")
    add(
        "-o",
        "--output",
        metavar="PATH",
        help="a folder (default: this one); for one step also\na file, or - for stdout; or a URL",
    )
    add("-f", "--force", action="store_true", help="replace files that exist")
    add(
        "--max-output-bytes",
        type=size_argument,
        metavar="SIZE",
        help="refuse steps that restore to more\n(500MB, 2GiB)",
    )

    add = verb("verify", _verify, "decode steps and check every hash").add_argument
    add("steps", nargs="*", type=int, metavar="STEP", help="which (default: all)")

    add = verb("delete", _delete, "delete steps; what depends on them is encoded again first").add_argument
    add("steps", nargs="+", type=int, metavar="STEP", help="which")

    add = verb("prune", _prune, "delete all steps but the last ones").add_argument
    add("--keep-last", type=int, required=True, metavar="N", help="keep the last N steps")
    add("--keep-every", type=int, metavar="M", help="keep the steps that are multiples of M, too")


def run(args: argparse.Namespace) -> int:
    """Runs one of the verbs; returns the exit code."""
    args.folder = str(local_path(args.folder))
    args.output = None if getattr(args, "output", None) is None else local_text(args.output)
    handler: Handler = args.series_handler
    return handler(args)


def _folder(args: argparse.Namespace) -> StepFolder:
    """Return the folder, which must be there.

    Raises:
        GcodecError: There is no such folder.
    """
    if not is_folder_at(args.folder):
        raise GcodecError(f"{args.folder}: no such folder")
    return StepFolder(args.folder, threads=args.threads)


def _add(args: argparse.Namespace) -> int:
    try:
        check_full_every(args.full_every)
    except InvalidArgument as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from None
    if args.step is not None and len(args.files) > 1:
        raise UsageError(f"--step needs a single file, not {len(args.files)}")
    try:
        check_step(0 if args.step is None else args.step)
    except InvalidArgument as error:
        raise UsageError(f"--{error}") from None
    places: dict[int, str] = {}
    for place in args.files:
        step = args.step if args.step is not None else _step_of(place)
        if step in places:
            raise UsageError(f"{places[step]} and {place} are both of step {step}; add them with --step")
        places[step] = place
    if args.rm:
        if urls := [place for place in places.values() if is_url(place)]:
            raise UsageError(f"--rm needs files on this machine, which {urls[0]} is not")
        check_removal([], map(Path, places.values()))
    folder, rows, problems = StepFolder(args.folder, threads=args.threads), list[dict[str, Any]](), list[str]()
    for step in sorted(places):
        rows.append(_add_file(folder, step, places[step], args, problems))
    if args.json:
        display.print_json(rows)
    for line in problems:
        display.fail(line)
    return 1 if problems else 0


def _step_of(place: str) -> int:
    stem = Path(name_at(place)).stem
    numbers = re.findall(r"[0-9]+", stem)
    if re.search(r"[0-9][-_.]of[-_.][0-9]+$", stem):  # as Hugging Face's libraries name the parts of a model
        raise UsageError(
            f"{place}: is one of several shards, whose numbers are no steps; keep a series for each, and give --step"
        )
    if not numbers:
        raise UsageError(f"{place}: has no number in its name that could be its step; give --step")
    return int(numbers[-1])


def _add_file(
    folder: StepFolder, step: int, place: str, args: argparse.Namespace, problems: list[str]
) -> dict[str, Any]:
    """Adds a file; returns what was stored.

    Args:
        folder: Where it goes.
        args: The options.
        problems: Gets a line if the step had to be stored whole, and if the file has changed meanwhile, which is kept.
    """
    begin, path, name = time.perf_counter(), path_or_none(place), name_at(place)
    if why := unsafe_path(name):
        raise GcodecError(f"{place}: its path in the archive {why}; add it under another name")
    with ExitStack() as stack:
        file = stack.enter_context(open_url(place) if path is None else path.open("rb"))
        with naming(path):
            state = None if path is None else FileState.of(file.fileno())
        source = stack.enter_context(closing(open_source(file)))
        plan = stack.enter_context(closing(plan_or_bytes(name, source, tolerated=Unsupported)))
        if plan.note:
            display.note(f"{place}: {plan.note}", quiet=args.quiet)
        attributes = Attributes.like(path.stat()) if path is not None and path.is_file() else None
        with display.progress(name, source.size, quiet=args.quiet) as progress:
            folder.add(
                step,
                with_views_apart(with_found_values(plan)),
                full_every=args.full_every,
                attributes=attributes,
                progress=progress,
                tell=problems.append,
            )
        if args.rm:
            with folder.opened(step) as opened:
                compare_bytes(opened.archive, opened.entry, plan.source, place, lambda count: None)
    row = _row(folder.info(step)) | {"input": place, "seconds": time.perf_counter() - begin}
    if path is not None and state is not None and (change := state.change_at(path)):
        problems.append(f"{path}: {change} while it was read; step {step} holds what was read")
        return row
    if args.rm and path is not None:
        path.unlink()
    if not args.quiet and not args.json:
        display.say(f"{place}: step {step}, {_sizes(row)}, {display.duration(row['seconds'])}")
    return row


def _list(args: argparse.Namespace) -> int:
    rows = [_row(info) for info in _folder(args).overview()]
    if args.json:
        display.print_json(rows)
    else:
        total, stored = (sum(row[key] for row in rows) for key in ("bytes", "stored_bytes"))
        display.show(
            f"{args.folder}: {number_of(len(rows), 'step')}, {display.size(total)} -> "
            f"{display.size(stored)}, ratio {display.ratio(total, stored)}"
        )
        columns = (">step", "stored", ">tensors", ">size", ">stored bytes", ">ratio")
        display.print_table(columns, [_cells(row) for row in rows if not row["problem"]], indent=2)
    for row in rows:
        if row["problem"]:
            display.fail(row["problem"])
    return 1 if any(row["problem"] for row in rows) else 0


def _row(info: StepInfo) -> dict[str, Any]:
    return {
        "step": info.step,
        "archive": str(info.path),
        "base": info.base,
        "tensors": info.n_tensors,
        "bytes": info.state_bytes,
        "stored_bytes": info.file_bytes,
        "problem": info.problem or None,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    how = "whole" if row["base"] is None else f"difference from {row['base']}"
    sizes = display.size(row["bytes"]), display.size(row["stored_bytes"])
    return str(row["step"]), how, str(row["tensors"]), *sizes, display.ratio(row["bytes"], row["stored_bytes"])


def _sizes(row: dict[str, Any]) -> str:
    _, how, _, before, after, ratio = _cells(row)
    return f"{how}, {before} -> {after}, ratio {ratio}"


def _restore(args: argparse.Namespace) -> int:
    folder = _folder(args)
    steps = args.steps or folder.steps()[-1:]
    if not steps:
        raise GcodecError(f"{args.folder}: no step in this folder")
    single = args.output is not None and not args.output.endswith("/") and not Path(args.output).is_dir()
    if single and len(steps) > 1:
        raise UsageError(f"-o must be a folder that exists, or end in /, with several steps, not {args.output}")
    if args.output == STDIO and args.json:
        raise UsageError("--json and data cannot both go to standard output")
    if args.output is not None and is_url(args.output):
        return _restore_to_urls(folder, steps, args)
    root = Path(args.output or ".")
    rows: list[dict[str, Any]] = []
    files_read = FilesRead(info.path for info in folder.overview() if isinstance(info.path, Path))
    with Staging(force=args.force) as staging:
        targets: set[Path] = set()
        for step in dict.fromkeys(steps):
            begin = time.perf_counter()
            with folder.opened(step, max_output_bytes=args.max_output_bytes) as opened:
                size = opened.entry.size
                if args.output == STDIO:
                    write_restored(opened.archive, opened.entry, display.binary_stdout())
                    return 0
                if single:
                    check_restored_as(opened.entry, args.output)
                path = root if single else root / opened.entry.path
                if path in targets:
                    raise UsageError(f"{path}: several of these steps would become this file; restore them one by one")
                files_read.check_targets([path])
                in_series = isinstance(folder.path, Path) and resolved(path).parent == resolved(folder.path)
                if in_series and step_of(path.name) is not None:
                    raise UsageError(f"{path}: is the name of a step in this series; give another with -o")
                targets.add(path)
                check_free(path, force=args.force, named=single)
                staging.make_folder(root.parent if single else root, path.parent)
                with (
                    display.progress(f"step {step}", size, quiet=args.quiet) as progress,
                    naming(path),
                    staging.create(path, named=single) as file,
                ):
                    write_restored(opened.archive, opened.entry, file, progress)
            rows.append({"step": step, "file": str(path), "bytes": size, "seconds": time.perf_counter() - begin})
    return _say_restored(rows, args)


def _restore_to_urls(folder: StepFolder, steps: list[int], args: argparse.Namespace) -> int:
    """Restores steps to a folder at a URL, or one of them to that URL; each file is put when it is complete."""
    rows: list[dict[str, Any]] = []
    for step in dict.fromkeys(steps):
        begin = time.perf_counter()
        with folder.opened(step, max_output_bytes=args.max_output_bytes) as opened:
            if not args.output.endswith("/"):
                check_restored_as(opened.entry, args.output)
            ((path, url),) = urls_below(opened.archive, args.output).items()
            if url in (row["file"] for row in rows):
                raise UsageError(f"{url}: several of these steps would become this file; restore them one by one")
            if url.rpartition("/")[0] == str(folder.path) and step_of(name_at(url)) is not None:
                raise UsageError(f"{url}: is the name of a step in this series; give another with -o")
            with display.progress(f"step {step}", opened.entry.size, quiet=args.quiet) as progress:
                upload_files(opened.archive, {path: url}, force=args.force, progress=progress)
            rows.append({"step": step, "file": url, "bytes": opened.entry.size, "seconds": time.perf_counter() - begin})
    return _say_restored(rows, args)


def _say_restored(rows: list[dict[str, Any]], args: argparse.Namespace) -> int:
    if args.json:
        display.print_json(rows)
    elif not args.quiet:
        for row in rows:
            taken = display.duration(row["seconds"])
            display.say(f"{row['file']}: step {row['step']}, {display.size(row['bytes'])}, {taken}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    folder, rows = _folder(args), []
    for step in args.steps or folder.steps():
        begin, error = time.perf_counter(), None
        try:
            with (
                folder.opened(step) as opened,
                display.progress(f"step {step}", opened.entry.size, quiet=args.quiet) as progress,
            ):
                for part in opened.archive.restored(opened.entry):
                    progress(part.size)
        except (GcodecError, OSError) as problem:
            error = f"step {step}: {system_error(problem)}" if isinstance(problem, OSError) else str(problem)
        seconds = time.perf_counter() - begin
        rows.append({"step": step, "ok": error is None, "error": error, "seconds": seconds})
        if error is None and not args.quiet and not args.json:
            display.show(f"step {step}: good, {display.duration(seconds)}")
    if args.json:
        display.print_json(rows)
    for row in rows:
        if row["error"]:
            display.fail(f"{row['error']}")
    return 0 if all(row["ok"] for row in rows) else 1


def _delete(args: argparse.Namespace) -> int:
    return _deleted(_folder(args), args.steps, args)


def _prune(args: argparse.Namespace) -> int:
    try:
        check_retention(args.keep_last, args.keep_every)
    except InvalidArgument as error:
        raise UsageError(f"--{str(error).replace('_', '-')}") from None
    folder = _folder(args)
    return _deleted(folder, steps_to_prune(folder.steps(), args.keep_last, args.keep_every), args)


def _deleted(folder: StepFolder, steps: list[int], args: argparse.Namespace) -> int:
    """Deletes steps, and says what is left."""
    before = {info.step: info for info in folder.overview()}
    folder.delete(steps)
    left = folder.overview()
    changed = [info.step for info in left if info.step in before and info.base != before[info.step].base]
    stored = sum(info.file_bytes for info in left)
    if args.json:
        display.print_json({"deleted": sorted(set(steps)), "coded_anew": changed, "stored_bytes": stored})
    elif not args.quiet:
        display.say(
            f"{args.folder}: deleted {len(set(steps))}, coded {len(changed)} anew; {len(left)} left, "
            f"{display.size(stored)}"
        )
    return 0
