"""L-GreCo's experiments (Alimohammadi et al., MLSys 2024, section 5 and appendices), on small models among simulated
ranks.

    python -m bench.experiments.lgreco [--quick] [--full] [--seeds N] [--minutes N] [--processes N] [--resume]
                                       [--untimed]
    python -m bench.experiments.lgreco --add SEED [--part NAME ...] [--family NAME ...] [...]
    python -m bench.experiments.lgreco --clock [--quick] [--out DIR]

writes ``bench/results/experiment-lgreco*.csv``; ``python -m bench.pictures`` draws them. Trainings
of one problem and seed start from the same parameters and see the same batches. Parts come in the order of ``ORDER``,
first all of one seed; a part for which there is no time is left out whole, and named. Seconds are of the processor.
Every training is also kept in ``.cache/bench/lgreco``, or in the folder of ``--out``, where ``--resume`` finds it
again, whatever has changed since. ``--untimed`` leaves the columns that come from a clock empty, and the tables of them
as they are, for machines that are busy. ``--add`` trains one more seed, or the named parts and families of one, and
adds the rows to the tables that are there, or replaces them, without the column that comes from a clock. ``--clock``
trains the pairs of the first seed anew, one at a time, and writes only the tables that come from a clock; the machine
should do nothing else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter

import torch

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments.lgreco import errors, tables, throughput
from bench.experiments.lgreco.methods import DENSE, LGRECO, PARTS
from bench.experiments.lgreco.problems import PROBLEMS
from bench.experiments.lgreco.trainings import KEPT, Job, Training, kept, path_of
from gcodec.benchmark.csv_tables import write_named

#: Part and problem, the most important first; those after ``FULL`` need ``--full``.
ORDER = (
    ("pairs", "transformer"),
    ("pairs", "vgg"),
    ("rivals", "transformer"),
    ("sparse rivals", "vgg"),
    ("future work", "transformer"),
    ("replay", "vgg"),
    ("sweep", "transformer"),
    ("bit sweep", "transformer"),
    ("variants", "transformer"),
    ("depth", "small transformer"),
)
FULL = (
    ("pairs", "small transformer"),
    ("pairs", "lstm"),
    ("rivals", "vgg"),
    ("sparse rivals", "transformer"),
    ("sweep", "vgg"),
)
ONE_SEED = ("replay",)  #: are not repeated, unless with --full, or named
SEEDS, MINUTES = 3, 30
DECISIONS = 10  #: in a training


def parts_of(full: bool, seeds: int, steps: int | None, named: Collection[str] = ()) -> Iterator[tuple[str, list[Job]]]:
    """Yield the name and the trainings of every part, or of the named ones, seed by seed."""
    for seed, (part, problem) in product(range(seeds), (*ORDER, *(FULL if full else ()))):
        n_steps = PROBLEMS[problem].steps if steps is None else steps
        if part in named or (not named and (full or not seed or part not in ONE_SEED)):
            yield (
                f"{part}, {problem}, seed {seed}",
                [
                    Job(part, problem, method.family, method.name, seed, n_steps, max(n_steps // DECISIONS, 1))
                    for method in PARTS[part](problem)
                ],
            )


def run_all(
    parts: Sequence[tuple[str, list[Job]]], processes: int, minutes: float, folder: Path, resume: bool
) -> tuple[list[Training], list[str]]:
    """Trainings, in order, and the names of the parts that no time was left for."""
    result, new = list[Future[Training]](), list[Future[Training]]()
    left_out, begin = list[str](), perf_counter()
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for name, jobs in parts:
            while len(open_ones := [item for item in new if not item.done()]) >= processes:
                wait(open_ones, return_when=FIRST_COMPLETED)
            known = [resume and path_of(job, folder).exists() for job in jobs]
            passed = perf_counter() - begin
            if not all(known) and result and not fits(passed, new, known.count(False), 60 * minutes):
                left_out.append(name)
                continue
            print(f"{passed / 60:5.1f} minutes: {name}", flush=True)
            started = [pool.submit(kept, job, folder, resume) for job in jobs]
            result += started
            new += [item for item, is_known in zip(started, known, strict=True) if not is_known]
        wait(result, return_when=ALL_COMPLETED)
    return [item.result() for item in result], left_out


def fits(passed: float, begun: Sequence[Future[Training]], more: int, seconds: float) -> bool:
    """Return True if so many more trainings end in time, if they take as long as those that are done."""
    done = sum(item.done() for item in begun)
    return passed + (len(begun) - done + more) * passed / max(done, 1) <= seconds


def write(trainings: Sequence[Training], out: Path, timed: bool = True) -> None:
    """Write all tables; if not ``timed``, those that no clock is needed for."""
    rows = [tables.training_row(item, timed) for item in trainings]
    write_named(out / tables.TRAININGS, rows)
    write_named(out / tables.PERIODS, tables.period_rows(trainings))
    write_named(out / tables.TENSORS, tables.tensor_rows(trainings))
    if timed:
        write_clock(trainings, out)


def write_clock(trainings: Sequence[Training], out: Path) -> None:
    """Write the tables that come from a clock."""
    first = [item for item in trainings if item.job.seed == 0 and item.job.part != "replay"]
    pairs = [item for item in first if item.job.part == "pairs"]
    write_timed([item for item in pairs if item.job.method == LGRECO], out)
    compared = {item.job.problem for item in first if item.job.method == DENSE}
    rows = [
        row
        for problem in sorted(compared)
        for row in throughput.rows_of([item for item in first if item.job.problem == problem])
    ]
    write_named(out / tables.THROUGHPUT, rows)


def write_timed(adapted: Sequence[Training], out: Path) -> None:
    """The tables of what decisions take. With one thread, as trainings are: processor time counts threads that wait for
    each other, which on a busy machine they mostly do."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        write_named(out / tables.OVERHEAD, map(errors.overhead, adapted))
        write_named(
            out / tables.LOW_RANK,
            (row for item in adapted if item.job.family == "PowerSGD" for row in errors.low_rank(item)),
        )
    finally:
        torch.set_num_threads(before)


def add(trainings: Sequence[Training], out: Path) -> None:
    """Write the tables that no clock is needed for."""
    rows = [tables.training_row(item, timed=False) for item in trainings]
    tables.add_rows(out / tables.TRAININGS, rows)
    tables.add_rows(out / tables.PERIODS, tables.period_rows(trainings))
    if tensors := list(tables.tensor_rows(trainings)):
        tables.add_rows(out / tables.TENSORS, tensors)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.lgreco", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1 seed, 10 steps, the pairs alone")
    parser.add_argument("--full", action="store_true", help="more problems, and seeds of the replay, too")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of trainings ({SEEDS})")
    parser.add_argument("--add", type=int, metavar="SEED", help="train this seed alone, and add it to what is there")
    parser.add_argument("--part", action="append", choices=PARTS, default=[], help="these alone; with --add")
    parser.add_argument("--family", action="append", default=[], help="trainings of these alone; with --add")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"that trainings may take ({MINUTES})")
    parser.add_argument("--processes", type=int, default=2, help="of one thread each (2)")
    parser.add_argument("--resume", action="store_true", help="go on from the trainings that earlier runs have kept")
    parser.add_argument("--untimed", action="store_true", help="leave out what comes from a clock")
    parser.add_argument("--clock", action="store_true", help="write only the tables that come from a clock")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    if (options.part or options.family) and options.add is None:
        parser.error("--part and --family need --add: tables are of all")
    if options.quick and options.add is not None:
        parser.error("--quick: there are no tables to --add its trainings to")
    if options.clock and (options.add is not None or options.resume or options.untimed):
        parser.error("--clock trains anew, and adds nothing: leave out --add, --resume and --untimed")
    seeds, steps = (1, 10) if options.quick else (options.seeds, None)
    if options.add is not None:
        seeds = options.add + 1
    named = ["pairs"] if options.clock else options.part
    parts = list(parts_of(options.full, 1 if options.clock else seeds, steps, named))[: 1 if options.quick else None]
    if options.add is not None:
        parts = [
            (name, [job for job in jobs if job.family in options.family or not options.family])
            for name, jobs in parts
            if jobs[0].seed == options.add
        ]
    out = options.out or (CACHE / "quick" if options.quick else RESULTS)
    folder = KEPT if out == RESULTS else out
    processes = 1 if options.clock else options.processes
    trainings, left_out = run_all(parts, processes, options.minutes, folder, options.resume)
    if options.clock:
        write_clock(trainings, out)
    elif options.add is None:
        write(trainings, out, not options.untimed)
    else:
        add(trainings, out)
    for training in trainings:
        print(*tables.training_row(training))
    if left_out:
        print("no time for", "; ".join(left_out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
