"""Trainings on two single-threaded processes, as many as fit into the minutes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import torch

from gcodec.benchmark.csv_tables import read_table, write_table

Job = tuple[str, str, int]  #: problem, method, seed
Result = TypeVar("Result")
PROCESSES = 2


def results_of(
    jobs: Sequence[Job], work: Callable[[Job], Result], minutes: float, processes: int = PROCESSES
) -> Iterator[tuple[Job, Result]]:
    """Yield jobs' results, in the order in which they end. A job that is longer than the time left, as the longest of
    its problem so far was, is left out, and named."""
    begin = perf_counter()
    longest: dict[str, float] = {}
    running: dict[Future[tuple[float, Result]], Job] = {}
    waiting, left_out = list(jobs), list[Job]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        while waiting or running:
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                if perf_counter() - begin + longest.get(job[0], 0.0) > 60 * minutes:
                    left_out.append(job)
                    continue
                running[pool.submit(_timed, work, job)] = job
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(done)
                seconds, result = done.result()
                longest[job[0]] = max(longest.get(job[0], 0.0), seconds)
                yield job, result
    if left_out:
        print(f"no time for {len(left_out)}:", *("/".join(map(str, job)) for job in left_out), sep="\n    ", flush=True)


def job_of(row: Mapping[str, str]) -> Job:
    """Return the job of a table's row."""
    return row["problem"], row["method"], int(row["seed"])


def kept(
    path: Path, every: Sequence[Job], n_steps: int | None = None, of: Callable[[Mapping[str, str]], Job] = job_of
) -> dict[Job, list[object]]:
    """Return the rows that a table, if it is there, has of these jobs, with so many steps; None: with any."""
    rows = read_table(path)[1] if path.exists() else []
    rows = [row for row in rows if n_steps is None or row["steps"] == str(n_steps)]
    return {of(row): list(row.values()) for row in rows if of(row) in every}


def fill(
    path: Path,
    columns: Sequence[str],
    every: Sequence[Job],
    rows: dict[Job, list[object]],
    work: Callable[[Job], list[object]],
    minutes: float,
    processes: int = PROCESSES,
    others: Sequence[list[object]] = (),
) -> None:
    """Train what ``rows`` lack of ``every`` job, a row each, and write the table, in the order of jobs, after each, so
    that what has ended is kept; ``others`` are rows that it begins with."""
    for job, row in results_of([job for job in every if job not in rows], work, minutes, processes):
        print(*row, flush=True)
        rows[job] = row
        write_table(path, columns, [*others, *(rows[item] for item in every if item in rows)])


def _timed(work: Callable[[Job], Result], job: Job) -> tuple[float, Result]:
    start = perf_counter()
    result = work(job)
    return perf_counter() - start, result
