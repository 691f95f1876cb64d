"""GComp's experiments on a model that was trained for real: MiniLM, of 22.6 million parameters, fine-tuned.

    python -m bench.experiments.minilm [--quick] [--trainings] [--seeds N] [--steps N] [--minutes N] [--resume]
        [--out DIR]

fine-tunes the model to tell sentiments of sentences, as the paper does BERT-base, and writes

* ``experiment-minilm-recorded.csv``: loss and accuracy of the training whose gradients are looked at;
* ``experiment-minilm-trainings.csv``: those of trainings of ``--steps`` with gradients of two ranks as they are,
  rounded to fp16, and near-lossless;
* ``experiment-minilm-exponents.csv``: bits per exponent by what the code's table was made from;
* ``experiment-minilm-sizes.csv``: the size of the gradients at some steps, by method, with and without embeddings;
* ``experiment-minilm-values.csv``: how far gradients are below parameters, and how many are zero;
* ``experiment-minilm-mantissas.csv``: bits per mantissa by strategy;
* ``experiment-minilm-updates.csv``: the optimizer's update from rounded gradients beside that from exact ones.

pip fetches weights and sentences. A step of a training takes a core 1 to 2 s, and none begins after ``--minutes``;
``--resume`` takes the dumps and the trainings of an earlier run, and keeps its trainings of other lengths.
``--trainings`` looks at no gradients and writes the second file only. Nothing here is a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.experiments import gcomp
from bench.experiments.accuracy import CONTROL, DENSE
from bench.experiments.gcomp_drops import ALL, EMBEDDING
from bench.experiments.gcomp_drops import DENSE as WITHOUT
from bench.experiments.minilm.tables import COLUMNS, FILES
from bench.experiments.minilm.trainings import METHODS, NAME, STEPS, Recording, record, trained
from bench.experiments.pool import Job, fill, kept
from gcodec.benchmark.csv_tables import read_table, write_named, write_table
from gcodec.benchmark.inputs import gradients
from gcodec.demo.figures.strategies import mantissa_rows
from gcodec.recorder import Dump, read_dump

SEEDS, MINUTES = 3, 60
QUICK_STEPS = 3
UPDATED = (1, 30, 300)  #: steps whose update is compared


def parts_of(dump: Dump) -> Iterator[tuple[str, Dump]]:
    """Yield a dump as it is, and without embeddings."""
    yield ALL, dump
    yield WITHOUT, replace(dump, names=tuple(name for name in dump.names if EMBEDDING not in name))


def dump_rows(dump: Dump) -> dict[str, list[list[object]]]:
    """Return what a dump's gradients are, by table."""
    rows: dict[str, list[list[object]]] = {"sizes": [], "values": [], "mantissas": [], "updates": []}
    for what, part in parts_of(dump):
        data = gradients(part, NAME)
        rows["sizes"] += [[what, data.bits.size, *row[1:]] for row in gcomp.size_rows(part, data, ())]
        rows["values"].append([what, data.bits.size, *gcomp.value_row(part, data)[1:-3]])  # but for SGD's delta
        if what == ALL:
            rows["mantissas"] += [list(row.values()) for row in mantissa_rows([data])]
            rows["updates"] += gcomp.update_rows(part, data, ()) if dump.step in UPDATED else ()
    return rows


def others_of(path: Path, n_steps: int) -> list[list[object]]:
    """Return the rows of a file that are of another number of steps."""
    rows = read_table(path)[1] if path.exists() else []
    return [[row[column] for column in COLUMNS["trainings"]] for row in rows if row["steps"] != str(n_steps)]


def look(out: Path, quick: bool, resume: bool) -> dict[Job, list[object]]:
    """Write what the gradients of the recorded training are, and return that training's row by its job."""
    recording = Recording(CACHE / "minilm")
    if quick:
        recording = Recording(CACHE / "minilm-quick", QUICK_STEPS, (1, QUICK_STEPS), 1, 1)
    first, recorded = (NAME, DENSE, 0), out / FILES["recorded"]
    done = kept(recorded, [first], recording.steps) if resume else {}
    if not done or not all(dump.exists() for dump in recording.paths):
        done[first], exponents = record(recording)
        write_table(recorded, COLUMNS["recorded"], done.values())
        write_named(out / FILES["exponents"], exponents)
    tables: dict[str, list[list[object]]] = {}
    for dump in recording.paths:
        for name, own in dump_rows(read_dump(dump)).items():
            tables.setdefault(name, []).extend(own)
            write_table(out / FILES[name], COLUMNS[name], tables[name])
        print(*tables["values"][-1], flush=True)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.minilm", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every training ({SEEDS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of every training but the recorded one ({STEPS})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"after which no training begins ({MINUTES})")
    parser.add_argument("--quick", action="store_true", help=f"1 seed, {QUICK_STEPS} steps")
    parser.add_argument("--trainings", action="store_true", help="look at no gradients")
    parser.add_argument("--resume", action="store_true", help="keep what is there")
    parser.add_argument("--out", type=Path, help="where the CSV files go (default: bench/results)")
    options = parser.parse_args(arguments)
    out = options.out or (CACHE / "quick" if options.quick else RESULTS)
    seeds, steps = (1, QUICK_STEPS) if options.quick else (options.seeds, options.steps)
    torch.set_num_threads(1)  # as the other trainings, whose first losses are then the same
    done = {} if options.trainings else look(out, options.quick, options.resume)
    path = out / FILES["trainings"]
    others = others_of(path, steps) if options.resume else []
    every = [(NAME, method, seed) for seed, method in product(range(seeds), METHODS) if method != CONTROL]
    every += [(NAME, CONTROL, seed) for seed in range(seeds)]  # where there is little time they are left out
    rows = kept(path, every, steps) if options.resume else {}
    rows |= {job: row for job, row in done.items() if str(row[COLUMNS["trainings"].index("steps")]) == str(steps)}
    fill(path, COLUMNS["trainings"], every, rows, partial(trained, steps=steps), options.minutes, 1, others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
