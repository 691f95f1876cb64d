"""Measure what compressors cost a rank: seconds until its message is there, its bytes, and how much of the gradient is
in it.

    python -m bench.compressors [--quick] [--values N] [--threads N] [--out DIR]

writes ``bench/results/compressors.csv``. Five contests, each of methods that take turns in one process; medians:

* ``choose``: which values to send: torch.topk of sizes, against thresholds from samples and searches;
* ``message``: the whole of it, from the gradient to the bytes, against rounding to float16;
* ``low rank``: the arithmetic of a step on one rank, against that of PyTorch's PowerSGD hook, from the same start;
* ``hook``: DDP hooks on a bucket, error feedback and all, against PyTorch's (``bench.hooks``);
* ``hook, two ranks``: those of low ranks, with what ranks say to each other (``bench.hooks_pair``).

``norm_kept`` is the L2 norm of what a message amounts to over the gradient's, ``of_best`` that over what the exact
choice of as many values keeps. Everything is verified before it is timed. Low ranks have found their subspace by then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import _orthogonalize

from bench import hooks, hooks_pair
from bench.codec import RESULTS
from bench.hooks import WrongResultError as WrongResultError
from gcodec.benchmark.csv_tables import write_named
from gcodec.compressors import ACPSGD, DGC, QSGD, Compressor, GradZip, Place, PowerSGD, RandomK, RedSync, TopK
from gcodec.compressors.batching import request_bytes
from gcodec.compressors.contract import Memory, alone
from gcodec.compressors.lowrank import LowRank
from gcodec.compressors.sparse import Sparsifier, unpack_sparse

FILE = "compressors.csv"
DENSITIES = (0.01, 0.001)
RANKS = (1, 4, 16)
MATRICES = ((1024, 1024), (512, 4608), (2000, 500))
WIDTHS = (768, 160)  #: of the layer whose gradients are a bucket: BERT base's; and one that makes DDP's first, 1 MB
CHOOSE, MESSAGE, QUICK = 25_000_000, 4_000_000, 200_000  #: values
LEAST_OF_BEST = 0.95  #: of the norm that the exact choice keeps: what a threshold must reach to be compared with it
TORCH, PYTORCH, HALF = "torch.topk", "PyTorch PowerSGD", "float16"


def gradients(n_values: int) -> dict[str, torch.Tensor]:
    """Return normal values, and heavy tails, normal times log-normal of sigma 1.5, as layers of very different scale
    have."""
    random = torch.Generator().manual_seed(0)
    normal = torch.randn(n_values, generator=random)
    return {"normal": normal, "heavy tails": normal * torch.exp(1.5 * torch.randn(n_values, generator=random))}


def seconds_of(methods: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each, in turn, after one run that is not timed."""
    results: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():
        method()
    for _ in range(rounds):
        for name, method in methods.items():
            start = perf_counter()
            method()
            results[name].append(perf_counter() - start)
    return {name: median(times) for name, times in results.items()}


def norm(tensor: torch.Tensor) -> float:
    """Return the L2 norm, in double precision."""
    return float(torch.linalg.vector_norm(tensor.double()))


def sparsifiers(density: float) -> dict[str, Sparsifier]:
    """Those that choose k values by themselves."""
    return {
        "Top-k": TopK(density),
        "Top-k, sampled": TopK(density, sample=0.01),
        "DGC": DGC(density),
        "RedSync, trimmed": RedSync(density, method="trimmed"),
        "RedSync, bisection": RedSync(density, method="bisection"),
    }


def exact_choice(flat: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices that PyTorch's own top-k chooses."""
    return torch.topk(flat.abs(), k, sorted=False).indices


def choices(data: str, flat: torch.Tensor, rounds: int) -> Iterator[dict[str, object]]:
    """Rows of the contest ``choose``."""
    for density in DENSITIES:
        k = round(flat.numel() * density)
        settings, memories = sparsifiers(density), dict[str, Memory]()
        methods: dict[str, Callable[[], Any]] = {TORCH: partial(exact_choice, flat, k)}
        for name, setting in settings.items():
            methods[name] = _chooser(setting, flat, memories.setdefault(name, {}))
        whole = norm(flat)
        kept = {}
        for name, method in methods.items():
            indices = method()
            best = norm(torch.topk(flat.abs(), indices.numel(), sorted=False).values)
            kept[name] = norm(flat[indices]) / whole, norm(flat[indices]) / best
            if kept[name][1] < LEAST_OF_BEST or not 0.5 * k <= indices.numel() <= 2 * k:
                raise WrongResultError(f"{name} keeps {indices.numel()} of {k}, {kept[name][1]:.3f} of the best norm")
        times = seconds_of(methods, rounds)
        for name, seconds in times.items():
            yield {
                "contest": "choose",
                "data": f"{data}, density {density}",
                "values": flat.numel(),
                "threads": torch.get_num_threads(),
                "method": name,
                "seconds": f"{seconds:.6f}",
                "times_faster": f"{times[TORCH] / seconds:.2f}",
                "bytes": "",
                "ratio": "",
                "norm_kept": f"{kept[name][0]:.4f}",
                "of_best": f"{kept[name][1]:.4f}",
            }


def _chooser(setting: Sparsifier, flat: torch.Tensor, memory: Memory) -> Callable[[], torch.Tensor]:
    return lambda: setting.select(flat, memory, Place())


def messages(data: str, flat: torch.Tensor, rounds: int) -> Iterator[dict[str, object]]:
    """Rows of the contest ``message``."""
    settings: dict[str, Compressor] = {
        **sparsifiers(DENSITIES[0]),
        "Random-k": RandomK(DENSITIES[0]),
        "QSGD, 4 bits": QSGD(4),
        "QSGD, 2 bits": QSGD(2),
    }
    methods: dict[str, Callable[[], Any]] = {HALF: flat.half}
    for name, setting in settings.items():
        methods[name] = _first_request(setting, flat)
    sizes = {}
    for name, method in methods.items():
        request = method()
        sizes[name] = request.nbytes if name == HALF else request_bytes(request, 0)
        if name in sparsifiers(DENSITIES[0]):
            where, values = unpack_sparse(request.payload, flat)
            if not torch.equal(flat[where], values):
                raise WrongResultError(f"{name}'s payload has other values")
    times = seconds_of(methods, rounds)
    for name, seconds in times.items():
        lossy = flat.half().float() if name == HALF else settings[name].decompressed(flat).contribution
        yield {
            "contest": "message",
            "data": data,
            "values": flat.numel(),
            "threads": torch.get_num_threads(),
            "method": name,
            "seconds": f"{seconds:.6f}",
            "times_faster": f"{times[HALF] / seconds:.2f}",
            "bytes": sizes[name],
            "ratio": f"{flat.nbytes / sizes[name]:.2f}",
            "norm_kept": f"{norm(lossy) / norm(flat):.4f}",
            "of_best": "",
        }


def _first_request(setting: Compressor, flat: torch.Tensor) -> Callable[[], Any]:
    memory: Memory = {}
    return lambda: next(setting.compress(flat, memory, Place()))


def pytorch_powersgd(matrix: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Return the arithmetic of a step of PyTorch's hook, on one rank: P, orthogonalized, Q, and their product."""
    p = torch.matmul(matrix, q).unsqueeze(0)
    _orthogonalize(p, 0)
    q = torch.matmul(matrix.t(), p[0])
    return torch.matmul(p[0], q.t())


def low_ranks(shape: tuple[int, int], rounds: int, ranks: Sequence[int]) -> Iterator[dict[str, object]]:
    """Rows of the contest ``low rank``."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    for rank in ranks:
        settings: dict[str, LowRank] = {"PowerSGD": PowerSGD(rank), "ACP-SGD": ACPSGD(rank), "GradZip": GradZip(rank)}
        q = torch.randn(shape[1], rank, generator=torch.Generator().manual_seed(2))
        ours = alone(settings["PowerSGD"].compress(matrix, {"powersgd.q": q.clone()}, Place())).average
        if norm(ours - pytorch_powersgd(matrix, q)) > 1e-4 * norm(ours):
            raise WrongResultError(f"PowerSGD of rank {rank} differs from PyTorch's")
        methods: dict[str, Callable[[], Any]] = {PYTORCH: partial(pytorch_powersgd, matrix, q)}
        methods |= {name: _step(setting, matrix) for name, setting in settings.items()}
        times = seconds_of(methods, 3 * rounds)
        for name, seconds in times.items():
            floats = settings.get(name, settings["PowerSGD"]).floats(shape)
            kept = norm(methods[name]()) / norm(matrix)
            yield {
                "contest": "low rank",
                "data": f"{shape[0]} × {shape[1]}, rank {rank}",
                "values": matrix.numel(),
                "threads": torch.get_num_threads(),
                "method": name,
                "seconds": f"{seconds:.6f}",
                "times_faster": f"{times[PYTORCH] / seconds:.2f}",
                "bytes": round(4 * floats),
                "ratio": f"{matrix.numel() / floats:.2f}",
                "norm_kept": f"{kept:.4f}",
                "of_best": "",
            }


def _step(setting: LowRank, matrix: torch.Tensor) -> Callable[[], Any]:
    memory: Memory = {}
    return lambda: alone(setting.compress(matrix, memory, Place())).average


def rows_of(n_choose: int, n_message: int, rounds: int, quick: bool) -> Iterator[dict[str, object]]:
    """Yield all contests, of gradients of these numbers of values."""
    for data, flat in gradients(n_choose).items():
        yield from choices(data, flat, rounds)
    for data, flat in gradients(n_message).items():
        yield from messages(data, flat, rounds)
    for shape in MATRICES[:1] if quick else MATRICES:
        yield from low_ranks(shape, rounds, RANKS[:1] if quick else RANKS)
    for width in (64,) if quick else WIDTHS:
        yield from hooks.contest(width, rounds, RANKS[:1] if quick else RANKS)
    for width in (64,) if quick else WIDTHS:
        yield from hooks_pair.contest(width, rounds if quick else 10 * rounds, RANKS[:1] if quick else RANKS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.compressors", description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, help="of a gradient (25 million for choose, 4 for message)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (1)")
    parser.add_argument("--quick", action="store_true", help="few values, 1 round")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    rows = []
    try:
        choose, message = (options.values or (QUICK if options.quick else n) for n in (CHOOSE, MESSAGE))
        for row in rows_of(choose, message, 1 if options.quick else 9, options.quick):
            print(*row.values(), flush=True)
            rows.append(row)
    finally:
        torch.set_num_threads(before)
    write_named(options.out / FILE, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
