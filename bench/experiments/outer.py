"""Trains a small language model by DiLoCo on two real ranks, in every mode: held-out loss, and bytes.

    python -m bench.experiments.outer [--quick] [--seeds N] [--steps N] [--every N] [--out DIR]

writes ``bench/results/experiment-outer.csv``. All modes of a seed start from the same parameters and see the same
batches. ``sent_bytes``: bytes that a rank sends in all exchanges; ``of_dense``: of a float32 all-reduce of the same
exchanges; ``longest_bytes``: those of the longest exchange. ``STEPWISE`` averages gradients at every step, and sends
what its own all-reduces do. The model is that of ``examples/diloco.py``: bytes of Python's library, 2 layers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing as mp
from torch.nn import functional

import gcodec.distributed as gd
from bench.__main__ import CACHE
from bench.codec import RESULTS
from bench.markdown import records, source
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback
from gcodec.benchmark.csv_tables import read_table, write_table
from gcodec.compressors import Blockwise, TopK
from gcodec.demo.data import read_standard_library
from gcodec.demo.models import Transformer

FILE = "experiment-outer.csv"
COLUMNS = ("mode", "seed", "steps", "every", "loss", "sent_bytes", "of_dense", "longest_bytes", "stepwise_bytes")
RANKS, SEEDS, STEPS, EVERY = 2, 3, 200, 20
QUICK_STEPS, QUICK_EVERY = 24, 12
CONTEXT, BATCH, TEXT, HELD_OUT = 64, 8, 400_000, 64
STEPWISE, DENSE = "average gradients at every step", "dense"
PARTS, OVERLAP = 4, 2  #: parts that take turns; steps while an exchange goes on


class Setting(NamedTuple):
    """A mode, made of the outer optimizer, and the parts that take turns."""

    mode: Callable[[torch.optim.Optimizer], Any]
    parts: int | gd.Streaming = 1


SETTINGS: dict[str, Setting | None] = {
    STEPWISE: None,
    DENSE: Setting(lambda outer: gd.Lossless()),
    "Lossless()": Setting(lambda outer: gd.Lossless()),
    "NearLossless(outer)": Setting(gd.NearLossless),
    "FixedBits(8)": Setting(lambda outer: gd.FixedBits(8)),
    "Visible()": Setting(lambda outer: gd.Visible()),
    '"fp8"': Setting(lambda outer: "fp8"),
    '"int8"': Setting(lambda outer: "int8"),
    '"int4"': Setting(lambda outer: "int4"),
    "Blockwise(3)": Setting(lambda outer: Blockwise(3)),
    "Blockwise(2)": Setting(lambda outer: Blockwise(2)),
    "Blockwise(2), no feedback": Setting(lambda outer: CompressionPlan(Blockwise(2), feedback=None)),
    "Blockwise(2), decay 0.9": Setting(lambda outer: CompressionPlan(Blockwise(2), ErrorFeedback(0.9))),
    "TopK(0.03)": Setting(lambda outer: TopK(0.03)),
    "TopK(0.03, mantissa_bits=1)": Setting(lambda outer: TopK(0.03, mantissa_bits=1)),
    "TopK(0.1, mantissa_bits=1)": Setting(lambda outer: TopK(0.1, mantissa_bits=1)),
    f'"int4", parts={PARTS}': Setting(lambda outer: "int4", PARTS),
    f'"int4", parts=Streaming({PARTS}, {OVERLAP})': Setting(lambda outer: "int4", gd.Streaming(PARTS, OVERLAP)),
    f'"int4", parts=Streaming({PARTS}, {OVERLAP}, 0)': Setting(lambda outer: "int4", gd.Streaming(PARTS, OVERLAP, 0)),
}


def windows(text: torch.Tensor, n: int, random: torch.Generator) -> torch.Tensor:
    """Return some windows of a text, int64[n, CONTEXT + 1]."""
    starts = torch.randint(len(text) - CONTEXT - 1, (n,), generator=random)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the next byte, nats."""
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def trained(name: str, seed: int, steps: int, every: int) -> list[object]:
    """Train on this rank, and return the row of the mode."""
    rank, size, setting = dist.get_rank(), dist.get_world_size(), SETTINGS[name]
    text = torch.frombuffer(bytearray(read_standard_library(TEXT).encode()), dtype=torch.uint8).long()
    held_out, own = text[: TEXT // 10], text[TEXT // 10 :].chunk(size)[rank]
    torch.manual_seed(seed)
    model = Transformer(256, width=64, layers=2, context=CONTEXT)
    params = list(model.parameters())
    inner = torch.optim.AdamW(params, lr=2e-3)
    outer = torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)
    diloco = None
    if setting is not None:
        diloco = gd.DiLoCo(outer, every, mode=setting.mode(outer), parts=setting.parts, threads=1)
    random, longest, before = torch.Generator().manual_seed(1000 * seed + rank), 0.0, 0.0
    for _ in range(steps):
        inner.zero_grad()
        loss_of(model, windows(own, BATCH, random)).backward()
        if diloco is None:
            for param in params:
                assert param.grad is not None
                dist.all_reduce(param.grad)
                param.grad /= size
        inner.step()
        if diloco is not None and diloco.step():
            sent = diloco.stats()["sent_bytes"]
            longest, before = max(longest, sent - before), sent
    dense = 2 * (size - 1) / size * sum(param.nbytes for param in params)  # of one all-reduce of everything
    total = before
    if name in (STEPWISE, DENSE):
        total, longest = dense * (steps if name == STEPWISE else steps // every), dense
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, windows(held_out, HELD_OUT, torch.Generator().manual_seed(7))).item()
    of_dense = total / (dense * (steps // every))
    return [
        name,
        seed,
        steps,
        every,
        f"{loss:.4f}",
        round(total),
        f"{of_dense:.4f}",
        round(longest),
        round(dense * steps),
    ]


def _rank_main(rank: int, store: str, jobs: Sequence[tuple[str, int]], steps: int, every: int, rows: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=120)
    )
    for name, seed in jobs:
        row = trained(name, seed, steps, every)
        if rank == 0:
            rows.put(row)
    gd.close_lanes()
    dist.destroy_process_group()


def measured(jobs: Sequence[tuple[str, int]], steps: int, every: int) -> Iterator[list[object]]:
    """Yield a row for each mode and seed, of ranks that train in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        rows: Any = mp.get_context("spawn").SimpleQueue()
        arguments = (str(Path(folder) / "store"), jobs, steps, every, rows)
        context: Any = mp.spawn(  # type: ignore[attr-defined]
            _rank_main, arguments, RANKS, join=False
        )
        n_rows = 0
        while not context.join(timeout=0.5) or not rows.empty():
            while not rows.empty():
                row = rows.get()
                n_rows += 1
                print(*row, flush=True)
                yield row
        assert n_rows == len(jobs)


def table(results: Path) -> list[str]:
    """Return the table of bytes and losses: of losses the difference from the dense exchange of the same seed."""
    comments, rows = read_table(results / FILE)
    dense = {row["seed"]: float(row["loss"]) for row in rows if row["mode"] == DENSE}
    lines = []
    for name in SETTINGS:
        own = [row for row in rows if row["mode"] == name and row["seed"] in dense]
        if not own:
            continue
        share, longest = (fmean(float(row[key]) for row in own) for key in ("of_dense", "longest_bytes"))
        steps, sent = int(own[0]["steps"]), fmean(float(row["sent_bytes"]) for row in own)
        less = [float(row["loss"]) - dense[row["seed"]] for row in own]
        spread = f" ± {stdev(less):.3f}" if len(less) > 1 else ""
        loss = f"{fmean(dense.values()):.3f}" if name == DENSE else f"{fmean(less):+.3f}{spread}"
        label = name if name in (STEPWISE, DENSE) else f"`{name}`"
        lines.append(
            {
                "mode": label,
                ">kB per step": f"{sent / steps / 1e3:.2f}",
                ">of dense exchanges": f"{share:.3g}",
                ">kB in the longest exchange": f"{longest / 1e3:.1f}",
                ">held-out loss, nats per byte": loss,
            }
        )
    first = rows[0]
    return [
        *records(lines),
        "",
        f"Two ranks, {first['steps']} steps with AdamW, an exchange every {first['every']}. Mean over {len(dense)} "
        f"seeds ± standard deviation, of differences from dense exchanges of the same seed. {source(comments)}",
    ]


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {"outer-modes": (table, FILE)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.experiments.outer", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"of every mode ({SEEDS})")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"inner steps of every training ({STEPS})")
    parser.add_argument("--every", type=int, default=EVERY, help=f"inner steps between exchanges ({EVERY})")
    parser.add_argument(
        "--quick", action="store_true", help=f"1 seed, {QUICK_STEPS} steps, an exchange every {QUICK_EVERY}"
    )
    parser.add_argument("--out", type=Path, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    seeds, steps, every = (
        (1, QUICK_STEPS, QUICK_EVERY) if options.quick else (options.seeds, options.steps, options.every)
    )
    path = (options.out or (CACHE / "quick" if options.quick else RESULTS)) / FILE
    jobs = [(name, seed) for seed in range(seeds) for name in SETTINGS]
    write_table(path, COLUMNS, measured(jobs, steps, every))
    return 0


if __name__ == "__main__":
    sys.exit(main())
