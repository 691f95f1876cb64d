"""Results of trainings, as rows of CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from bench.experiments.lgreco.trainings import Training
from gcodec.benchmark.csv_tables import command, read_table, write_table

TRAININGS, PERIODS = "experiment-lgreco.csv", "experiment-lgreco-periods.csv"
TENSORS, THROUGHPUT = "experiment-lgreco-tensors.csv", "experiment-lgreco-throughput.csv"
OVERHEAD, LOW_RANK = "experiment-lgreco-overhead.csv", "experiment-lgreco-lowrank.csv"
KEYS = ("part", "problem", "family", "method", "seed")
TRAINING_COLUMNS = (
    *KEYS,
    "steps",
    "period",
    "quality",
    "loss",
    "byte_ratio",
    "adapted_ratio",
    "float_ratio",
    "worst_error_of_uniform",
    "median_error_of_uniform",
    "lost_share",
    "decide_percent",
    "decisions",
    "same_on_ranks",
)
PERIOD_COLUMNS = (*KEYS, "step", "byte_ratio", "error_of_uniform", "bytes_of_uniform")
TENSOR_COLUMNS = (*KEYS, "tensor", "shape", "bucket", "values", "floats_per_step", "bytes_per_step", "last_setting")


def keys(training: Training) -> list[object]:
    """Return the first entries of a row."""
    job = training.job
    return [job.part, job.problem, job.family, job.method, job.seed]


def training_row(training: Training, timed: bool = True) -> list[object]:
    """Return a training's row. ``worst_error_of_uniform``: of all decisions, squared, on accumulated gradients;
    ``lost_share``: what compression really lost of error-fed gradients; ``decide_percent`` of the training's time,
    where ``timed``; ``decisions``: a hash."""
    errors = [decision.error for decision in training.decisions]
    seconds = training.train_seconds + training.compress_seconds + training.decide_seconds
    job = training.job
    return [
        *keys(training),
        job.steps,
        job.period,
        f"{training.quality:.4f}",
        f"{training.loss:.4f}",
        f"{training.total.ratio:.3f}",
        f"{training.adapted_ratio:.3f}",
        f"{training.total.float_ratio:.3f}",
        *([f"{max(errors):.6f}", f"{median(errors):.6f}"] if errors else ["", ""]),
        f"{training.lost:.4f}",
        f"{100 * training.decide_seconds / seconds:.3f}" if timed else "",
        training.decided if training.decisions else "",
        int(training.same),
    ]


def add_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Put the rows of more trainings after those of a table that is there, or in place of those that it has of the same
    trainings. The machine stays the one of the other rows."""
    comments, known = read_table(path)
    results: dict[tuple[str, ...], list[Sequence[object]]] = {}
    for before in known:
        results.setdefault(tuple(before[name] for name in KEYS), []).append(list(before.values()))
    new: dict[tuple[str, ...], list[Sequence[object]]] = {}
    for row in rows:
        new.setdefault(tuple(map(str, row[: len(KEYS)])), []).append(row)
    write_table(path, columns, [row for own in {**results, **new}.values() for row in own])
    before = dict(line.split(": ", 1) for line in comments)
    lines = path.read_text().splitlines(keepends=True)
    said = before["command"] if command() in before["command"] else f"{before['command']}; then {command()}"
    path.write_text("".join([f"# machine: {before['machine']}\n", f"# command: {said}\n", *lines[2:]]))


def period_rows(trainings: Iterable[Training]) -> Iterator[list[object]]:
    """Yield every period of every training: what was sent, and the decision that held."""
    for training in trainings:
        decided = {decision.step: decision for decision in training.decisions}
        for number, count in enumerate(training.periods):
            step = number * training.job.period
            decision = decided.get(step)
            judged = ["", ""] if decision is None else [f"{decision.error:.6f}", f"{decision.cost:.6f}"]
            yield [*keys(training), step, f"{count.ratio:.4f}", *judged]


def tensor_rows(trainings: Iterable[Training]) -> Iterator[list[object]]:
    """Yield every tensor of the trainings of the first seed, replays apart; ``last_setting``: of its knob, where it is
    compressed."""
    for training in trainings:
        if training.job.seed or training.job.part == "replay":
            continue
        settings = training.decisions[-1].settings if training.decisions else ()
        last = dict(zip(training.compressed, settings, strict=False))  # none were made where there is none
        for name, count in training.tensors.items():
            steps = training.job.steps
            setting = f"{last[name]:g}" if name in last else ""
            yield [
                *keys(training),
                name,
                "×".join(map(str, training.shapes[name])),
                training.buckets[name],
                count.values // steps,
                f"{count.floats / steps:.1f}",
                f"{count.payload_bytes / steps:.1f}",
                setting,
            ]
