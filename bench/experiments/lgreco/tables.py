"""Results of trainings, as rows of CSV files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median

from bench.experiments.lgreco.trainings import Training
from gcodec.benchmark.csv_tables import NamedRow, command, read_table, write_named

TRAININGS, PERIODS = "experiment-lgreco.csv", "experiment-lgreco-periods.csv"
TENSORS, THROUGHPUT = "experiment-lgreco-tensors.csv", "experiment-lgreco-throughput.csv"
OVERHEAD, LOW_RANK = "experiment-lgreco-overhead.csv", "experiment-lgreco-lowrank.csv"
KEYS = ("part", "problem", "family", "method", "seed")


def keys(training: Training) -> NamedRow:
    """Return the first columns of a row."""
    return {name: getattr(training.job, name) for name in KEYS}


def training_row(training: Training, timed: bool = True) -> NamedRow:
    """Return a training's row. ``worst_error_of_uniform``: of all decisions, squared, on accumulated gradients;
    ``lost_share``: what compression really lost of error-fed gradients; ``decide_percent`` of the training's time,
    where ``timed``; ``decisions``: a hash."""
    errors = [decision.error for decision in training.decisions]
    seconds = training.train_seconds + training.compress_seconds + training.decide_seconds
    job = training.job
    return {
        **keys(training),
        "steps": job.steps,
        "period": job.period,
        "quality": f"{training.quality:.4f}",
        "loss": f"{training.loss:.4f}",
        "byte_ratio": f"{training.total.ratio:.3f}",
        "adapted_ratio": f"{training.adapted_ratio:.3f}",
        "float_ratio": f"{training.total.float_ratio:.3f}",
        "worst_error_of_uniform": f"{max(errors):.6f}" if errors else "",
        "median_error_of_uniform": f"{median(errors):.6f}" if errors else "",
        "lost_share": f"{training.lost:.4f}",
        "decide_percent": f"{100 * training.decide_seconds / seconds:.3f}" if timed else "",
        "decisions": training.decided if training.decisions else "",
        "same_on_ranks": int(training.same),
    }


def add_rows(path: Path, rows: Iterable[NamedRow]) -> None:
    """Put the rows of more trainings after those of a table that is there, or in place of those that it has of the same
    trainings. The machine stays the one of the other rows."""
    comments, known = read_table(path)
    results = _by_training(known) | _by_training(rows)
    write_named(path, [row for own in results.values() for row in own])
    before = dict(line.split(": ", 1) for line in comments)
    lines = path.read_text().splitlines(keepends=True)
    said = before["command"] if command() in before["command"] else f"{before['command']}; then {command()}"
    path.write_text("".join([f"# machine: {before['machine']}\n", f"# command: {said}\n", *lines[2:]]))


def _by_training(rows: Iterable[Mapping[str, object]]) -> dict[tuple[str, ...], list[Mapping[str, object]]]:
    results: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    for row in rows:
        results.setdefault(tuple(str(row[name]) for name in KEYS), []).append(row)
    return results


def period_rows(trainings: Iterable[Training]) -> Iterator[NamedRow]:
    """Yield every period of every training: what was sent, and the decision that held."""
    for training in trainings:
        decided = {decision.step: decision for decision in training.decisions}
        for number, count in enumerate(training.periods):
            step = number * training.job.period
            decision = decided.get(step)
            yield {
                **keys(training),
                "step": step,
                "byte_ratio": f"{count.ratio:.4f}",
                "error_of_uniform": "" if decision is None else f"{decision.error:.6f}",
                "bytes_of_uniform": "" if decision is None else f"{decision.cost:.6f}",
            }


def tensor_rows(trainings: Iterable[Training]) -> Iterator[NamedRow]:
    """Yield every tensor of the trainings of the first seed, replays apart; ``last_setting``: of its knob, where it is
    compressed."""
    for training in trainings:
        if training.job.seed or training.job.part == "replay":
            continue
        settings = training.decisions[-1].settings if training.decisions else ()
        last = dict(zip(training.compressed, settings, strict=False))  # none were made where there is none
        for name, count in training.tensors.items():
            steps = training.job.steps
            yield {
                **keys(training),
                "tensor": name,
                "shape": "×".join(map(str, training.shapes[name])),
                "bucket": training.buckets[name],
                "values": count.values // steps,
                "floats_per_step": f"{count.floats / steps:.1f}",
                "bytes_per_step": f"{count.payload_bytes / steps:.1f}",
                "last_setting": f"{last[name]:g}" if name in last else "",
            }
