"""Reports: one HTML page about an archive, a checkpoint, a frame or a run, which opens from a disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ..archive import Bases
from ..checkpoints import StepFolder
from ..checkpoints.step_files import step_of
from ..errors import GcodecError, InvalidArgument
from ..files import open_source
from ..files.urls import is_folder_at, local_copy, local_path, name_at, resolved
from .contents import contents_of
from .dumps import add_dumps, dumps_below, measure_dump
from .page import Page
from .run_log import read_log
from .run_sections import add_run, add_series
from .tensor_sections import add_contents, bytes_text

DEFAULT_LIMIT = 256 << 20


def report_page(
    path: str | os.PathLike[str],
    *,
    limit: int = DEFAULT_LIMIT,
    base: Bases | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> str:
    """Return the page about a file or a folder, as HTML.

    Args:
        path: An archive, a frame, a tensor file, a log of ``state.stats()`` in JSON lines (``.jsonl``), or a folder
            with any of these: such logs, dumps of the recorder, a series of checkpoints. Or a URL for fsspec of one
            of these: files are read there, logs and folders are copied to a temporary folder first.
        limit: Bytes of values to read for distributions: of more, the first part of every tensor.
        base: What an archive was compressed against, or a tensor file is to be compressed against; for nothing else.
        progress: Called with what comes next.

    Raises:
        InvalidArgument: There is a base for something else than an archive or a tensor file.
        GcodecError: There is nothing to report on, or it is damaged.
        OSError: It cannot be read.
    """
    place = os.fspath(local_path(path))
    name = name_at(place)
    is_folder = is_folder_at(place)
    if base is not None and (is_folder or name.endswith(".jsonl")):
        kind = "a folder" if is_folder else "a log"
        raise InvalidArgument(f"{place}: is {kind}, but only archives and tensor files take a base")
    if is_folder:
        with local_copy(place) as folder:
            return _of_folder(folder, progress)
    if name.endswith(".jsonl"):
        page = Page(name, ["a log of a training run"])
        with local_copy(place) as log:
            add_run(page, read_log(log))
        return page.html()
    progress(name)
    with closing(open_source(place)) as source:
        contents = contents_of(place, source, limit=limit, base=base)
        page = Page(name, [f"{contents.kind}, {bytes_text(source.size)}"])
    add_contents(page, contents)
    return page.html()


def _of_folder(folder: Path, progress: Callable[[str], None]) -> str:
    page = Page(resolved(folder).name, ["a folder of a training run"])
    n_found = 0
    for log in sorted(folder.rglob("*.jsonl")):
        progress(log.name)
        page.heading(f"Log {log.relative_to(folder)}")
        add_run(page, read_log(log))
        n_found += 1
    for name, dumps in dumps_below(folder).items():
        steps = []
        for dump in dumps:
            progress(dump.name)
            steps.append(measure_dump(dump))
        add_dumps(page, name, sorted(steps, key=lambda step: step.step))
        n_found += 1
    for series in sorted({path.parent for path in folder.rglob("step-*.gc") if step_of(path.name) is not None}):
        add_series(page, f"{series.relative_to(folder)}", StepFolder(series).overview())
        n_found += 1
    if not n_found:
        raise GcodecError(
            f"{folder}: nothing to report on: no log of state.stats() (*.jsonl), no dump of the recorder "
            "(step-*.safetensors), no series of checkpoints (step-*.gc)"
        )
    return page.html()
