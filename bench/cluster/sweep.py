"""Trainings on the bed, model after model and rate after rate: the command line of every table of steps.

Rows are written after each training, those of the trainings before it among them, so that nothing is lost when a sweep
is cut off.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cluster.bed import RATES, clean_up_when_told_to_end, obstacle
from bench.cluster.rows import known, write_beside
from bench.cluster.runs import Result, train
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow


@dataclass(frozen=True)
class Training:
    """A model and the length of its training; ``small``: a small version of it; ``more``: arguments for
    ``bench.cluster.training``."""

    model: str
    steps: int
    small: bool = False
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """A table of trainings, with all ``methods`` in lockstep.

    Attributes:
        name: Of the module, whose docstring's first line is ``summary``.
        file: The CSV file, of which ``rows_of`` makes the rows of one training.
        rates: Of the bed.
        trainings: Of all models that ``--model`` may name; those of ``usual`` run without it.
        quick: The only training, at the first rate only, to try it out.
        prepare: Called before the first training, for what workers cannot do, who reach each other only.
    """

    name: str
    summary: str
    file: str
    rows_of: Callable[[Result], Iterator[NamedRow]]
    methods: tuple[str, ...]
    rates: tuple[str, ...]
    trainings: tuple[Training, ...]
    usual: tuple[str, ...]
    quick: Training
    prepare: Callable[[], object] = lambda: None

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command line."""
        options = self._parser().parse_args(arguments)
        if (reason := obstacle()) is not None:
            print(f"skipped: {reason}")
            return 0
        clean_up_when_told_to_end()
        self.prepare()
        path, rows = options.out / self.file, list[NamedRow]()
        before = known(path) if options.add else []
        for training, rate in self.chosen(options):
            result = train(training.model, rate, training.steps, 1, self.methods, training.small, training.more)
            for row in self.rows_of(result):
                print(*row.values(), sep=", ", flush=True)
                rows.append(row)
            write_beside(before, path, rows, ("model", "rate"))
        return 0

    def chosen(self, options: argparse.Namespace) -> list[tuple[Training, str]]:
        """Return what to train, at which rates."""
        models = options.model or ([self.quick.model] if options.quick else self.usual)
        rates = options.rate or self.rates[: 1 if options.quick else None]
        results = []
        for model in models:
            of_model = next(training for training in self.trainings if training.model == model)
            training = replace(self.quick, model=model) if options.quick else of_model
            results.append(replace(training, steps=options.steps or training.steps))
        return [(training, rate) for training in results for rate in rates]

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m bench.cluster.{self.name}", description=self.summary)
        models = [training.model for training in self.trainings]
        parser.add_argument("--model", action="append", choices=models, help=f"of these only ({_listed(self.usual)})")
        known = tuple(dict.fromkeys((*self.rates, *RATES)))
        parser.add_argument("--rate", action="append", choices=known, help=f"at these only ({_listed(self.rates)})")
        steps = ", ".join(dict.fromkeys(str(training.steps) for training in self.trainings))
        parser.add_argument("--steps", type=int, help=f"of each method ({steps})")
        parser.add_argument("--add", action="store_true", help="keep the rows of other models and rates")
        parser.add_argument("--quick", action="store_true", help=f"{self.quick.steps} steps at {self.rates[0]}")
        parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (bench/results)")
        return parser


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
