"""Measure what controllers cost: L-GreCo's decisions, and GraVAC's second compression factor.

    python -m bench.controllers [--quick] [--threads N] [--out DIR]

writes ``bench/results/controllers.csv``. Two contests:

* ``decide``: a decision for all layers of a model at once, on gradients whose tails are heavier in some layers than in
  others; ``errors``, what each setting loses of each layer, and ``choose``, the dynamic programming. ``share``: seconds
  over those of 500 steps of one second each; ``bytes_saved``: the share of the uniform setting's;
* ``levels``: two factors, 10 and 1000, tried on one gradient: ``nested``, the second among the values that the first
  has chosen, against ``direct``, both among all (Table 3 of GraVAC's paper). ``share``: seconds over the direct ones.

Everything is verified before it is timed; methods of ``levels`` take turns; medians.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from bench.codec import RESULTS
from bench.compressors import WrongResultError, seconds_of
from gcodec.adaptive import Bytes, Range
from gcodec.adaptive.families import errors_of
from gcodec.adaptive.knapsack import discretized, solve
from gcodec.adaptive.multilevel import Chosen, ProbeResult, probe_settings
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.compressors import DGC, QSGD, Compressor, Place, PowerSGD, RandomK, RedSync, TopK

FILE = "controllers.csv"
PERIOD = 500
BINS = 10000
FACTORS = (10, 1000)
FAMILIES = {"QSGD": QSGD(4), "Top-k": TopK(0.01), "PowerSGD": PowerSGD(4)}


def resnet50() -> list[tuple[int, ...]]:
    """Return the shapes of its convolutions and its last layer."""
    results: list[tuple[int, ...]] = [(64, 3, 7, 7)]
    width = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner = 64 << stage
        for block in range(blocks):
            results += [(inner, width, 1, 1), (inner, inner, 3, 3), (4 * inner, inner, 1, 1)]
            results += [(4 * inner, width, 1, 1)] if block == 0 else []
            width = 4 * inner
    return [*results, (1000, 2048)]


def bert(layers: int = 12, width: int = 768, words: int = 30522) -> list[tuple[int, ...]]:
    """Return the shapes of a base model's matrices."""
    block = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
    return [(words, width), (512, width), *(block * layers), (width, width)]


def gradient(shape: tuple[int, ...], number: int) -> torch.Tensor:
    """Return values that are normal times log-normal, whose sigma differs from layer to layer."""
    random = torch.Generator().manual_seed(number)
    return torch.randn(shape, generator=random) * torch.exp(number % 4 / 2 * torch.randn(shape, generator=random))


def choose(errors: list[np.ndarray], costs: list[np.ndarray], references: list[int]) -> list[int]:
    """Run the dynamic programming, from errors as they are."""
    bins, budget = discretized(errors, references, BINS)
    return solve(bins, costs, budget)


def decisions(model: str, shapes: Sequence[tuple[int, ...]], threads: int) -> Iterator[NamedRow]:
    """Rows of the contest ``decide``."""
    tensors = [gradient(shape, number) for number, shape in enumerate(shapes)]
    n_values = sum(map(math.prod, shapes))
    for family, reference in FAMILIES.items():
        options = [Range().settings(reference, shape) for shape in shapes]
        errors_of(options[0], tensors[0])  # compiles what it needs
        start = perf_counter()
        errors = [errors_of(own, tensor) for own, tensor in zip(options, tensors, strict=True)]
        seconds = perf_counter() - start
        costs = [
            np.array([Bytes().of("", shape, one) for one in own]) for own, shape in zip(options, shapes, strict=True)
        ]
        references = [own.index(reference) for own in options]
        best = choose(errors, costs, references)
        lost, allowed = (sum(float(e[i]) for e, i in zip(errors, ones, strict=True)) for ones in (best, references))
        sent, uniform = (sum(cost[i] for cost, i in zip(costs, ones, strict=True)) for ones in (best, references))
        if lost > allowed * (1 + 1e-9) or sent > uniform:
            raise WrongResultError(f"{family} of {model}: error {lost} of {allowed}, bytes {sent} of {uniform}")
        start = perf_counter()
        choose(errors, costs, references)
        chose = perf_counter() - start
        for method, took in (("errors", seconds), ("choose", chose)):
            yield {
                "contest": "decide",
                "data": f"{model}, {family}, {len(shapes)} layers",
                "values": n_values,
                "threads": threads,
                "method": method,
                "seconds": f"{took:.6f}",
                "share": f"{took / PERIOD:.6f}",
                "bytes_saved": f"{1 - sent / uniform:.4f}",
            }


def chosen(level: ProbeResult) -> torch.Tensor:
    """Return the indices of chosen values."""
    assert isinstance(level.compressor, Chosen)
    return level.compressor.indices


def two_levels(n_values: int, rounds: int, threads: int) -> Iterator[NamedRow]:
    """Rows of the contest ``levels``."""
    flat = gradient((n_values,), 2)
    families: dict[str, Compressor] = {
        "Top-k": TopK(0.1),
        "Top-k, sampled": TopK(0.1, sample=0.01),
        "DGC": DGC(0.1),
        "RedSync": RedSync(0.1),
        "Random-k": RandomK(0.1),
    }
    for name, family in families.items():
        settings = [family.at(1 / factor) for factor in FACTORS]
        methods: dict[str, Callable[[], Any]] = {
            method: partial(probe_settings, flat, settings, {}, Place(), nested)
            for method, nested in (("direct", False), ("nested", True))
        }
        first, second = (method()[1] for method in methods.values())
        if name == "Top-k" and not torch.equal(chosen(first), chosen(second)):
            raise WrongResultError("the nested choice is another than the direct one")
        alike = chosen(first).numel() == chosen(second).numel()  # of Random-k no more can be said
        if not alike if name == "Random-k" else not 0.5 * first.kept < second.kept < 2 * first.kept:
            raise WrongResultError(f"{name}: the nested choice keeps {second.kept}, the direct one {first.kept}")
        times = seconds_of(methods, rounds)
        for method, seconds in times.items():
            yield {
                "contest": "levels",
                "data": name,
                "values": n_values,
                "threads": threads,
                "method": method,
                "seconds": f"{seconds:.6f}",
                "share": f"{seconds / times['direct']:.4f}",
                "bytes_saved": "",
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.controllers", description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--quick", action="store_true", help="small models, 1 round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    models = {"a small BERT": bert(2, 64, 1000)} if options.quick else {"ResNet-50": resnet50(), "BERT base": bert()}
    rows = []
    try:
        for model, shapes in models.items():
            rows += list(decisions(model, shapes, options.threads))
        rows += list(two_levels(100_000 if options.quick else 4_000_000, 1 if options.quick else 9, options.threads))
    finally:
        torch.set_num_threads(before)
    for row in rows:
        print(*row.values())
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
