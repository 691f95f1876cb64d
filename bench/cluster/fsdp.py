"""Train a model under FSDP2 over 2 and 4 workers, at every rate of the bed: as torch sends it, with gradients
compressed, and with parameters compressed as well, in turn.

    python -m bench.cluster.fsdp [--workers N] [--rate RATE] [--add] [--quick] [--out DIR]

writes ``cluster-fsdp.csv``: for each number of workers and rate a row for each method. The model is a transformer whose
parameters are cast to bfloat16 and whose gradients are summed in float32. All methods train one of their own, from the
same parameters on the same batches, a step each in turn; between two workers, where a sum has one order, all end with
the same bits, which is checked. A step's time is that of its slowest rank.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median, quantiles
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from bench.cluster.allreduce import line_share
from bench.cluster.bed import UNSHAPED, Bed, clean_up_when_told_to_end, obstacle
from bench.cluster.counters import traffic
from bench.cluster.rows import known, write_beside
from bench.cluster.team import Team, serve
from bench.codec import RESULTS
from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import NamedRow, read_table
from gcodec.distributed import Bypass, compress_fsdp

FILE = "cluster-fsdp.csv"
PLAIN, GRADIENTS, BOTH = "FSDP2", "gradients compressed", "gradients and parameters compressed"
CHOSEN = "the same, as the bypass decides"
METHODS = (PLAIN, GRADIENTS, BOTH, CHOSEN)
WORKERS, RATES = (2, 4), ("100mbit", "300mbit", "1gbit", UNSHAPED)
STEPS = {"100mbit": 4, "300mbit": 6}  #: of the slow rates
MOST_STEPS = 10
WARM_UP = 24  #: steps before anything is timed: kernels, codebooks, and the bypass' first trial
WIDTH, LAYERS, VOCABULARY, CONTEXT, BATCH = 512, 4, 8192, 4, 1  #: few tokens: without AMX, bfloat16 is slow


class Decoder(nn.Module):
    """A small language model."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).to(hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


class Run(NamedTuple):
    """One method's model and optimizer."""

    model: nn.Module
    optimizer: torch.optim.Optimizer

    def step(self, number: int) -> None:
        """One step of training on this rank's batch."""
        generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
        tokens = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=generator)
        logits = self.model(tokens[:, :-1]).float()
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Worker:
    """Answers a team's commands."""

    def __init__(self) -> None:
        dist.init_process_group("gloo")
        mesh, policy = (
            init_device_mesh("cpu", (dist.get_world_size(),)),
            MixedPrecisionPolicy(torch.bfloat16, torch.float32),
        )
        self._runs, self._n_steps = dict[str, Run](), 0
        for name in METHODS:
            torch.manual_seed(0)
            model = Decoder()
            for unit in (model.tokens, *model.layers, model.head, model):
                fully_shard(unit, mesh=mesh, mp_policy=policy)
            if name != PLAIN:
                bypass = Bypass() if name == CHOSEN else None
                compress_fsdp(model, parameters=name != GRADIENTS, bypass=bypass)
            self._runs[name] = Run(model, torch.optim.AdamW(model.parameters(), lr=3e-4))

    def __call__(self, command: str, steps: int = 1) -> Any:
        """Do what is asked: "train" for some steps, or "compare"."""
        return self._train(steps) if command == "train" else self._checksums()

    def _train(self, steps: int) -> dict[str, list[dict[str, float]]]:
        found: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
        for _ in range(steps):
            for name, run in self._runs.items():
                dist.barrier()
                before, start = traffic(), perf_counter()
                run.step(self._n_steps)
                seconds = perf_counter() - start
                dist.barrier()
                found[name].append({"seconds": seconds, "sent": (traffic() - before).sent})
            self._n_steps += 1
        return found

    def _checksums(self) -> dict[str, Any]:
        checksums, n_values = {}, 0
        for name, run in self._runs.items():
            parts = [p.detach().full_tensor() for p in run.model.parameters()]  # type: ignore[attr-defined]
            n_values = sum(part.numel() for part in parts)
            checksums[name] = zlib.crc32(b"".join(part.numpy().tobytes() for part in parts))
        return {"checksums": checksums, "values": n_values}


def measured(team: Team, rates: Sequence[str], most: int, warm_up: int) -> Iterator[NamedRow]:
    """Rows of one team; rate after rate, all methods in turn."""
    n_values = team.ask(command="compare", patience=1200.0)[0]["values"]
    team.bed.shape(UNSHAPED)
    team.ask(command="train", steps=warm_up, patience=1200.0)
    for rate in rates:
        team.bed.shape(rate)
        team.ask(command="train", steps=1)  # for connections
        answers = team.ask(command="train", steps=min(STEPS.get(rate, MOST_STEPS), most), patience=1200.0)
        times = {
            name: [max(rank[name][k]["seconds"] for rank in answers) for k in range(len(answers[0][name]))]
            for name in METHODS
        }
        for name in METHODS:
            low, middle, high = quantiles(times[name], n=4)
            sent = mean(step["sent"] for rank in answers for step in rank[name])
            yield {
                "workers": team.bed.size,
                "rate": rate,
                "method": name,
                "parameters": n_values,
                "steps": len(times[name]),
                "seconds": f"{middle:.4f}",
                "seconds_q1": f"{low:.4f}",
                "seconds_q3": f"{high:.4f}",
                "normalized": f"{middle / median(times[PLAIN]):.4f}",
                "nic_bytes": f"{sent:.0f}",
                "line_share": line_share(sent, middle, rate),
            }


def table(results: Path) -> list[str]:
    """Return the table of the page about FSDP2."""
    comments, rows = read_table(results / FILE)
    workers, rates = (
        sorted({row["workers"] for row in rows}),
        [rate for rate in RATES if any(row["rate"] == rate for row in rows)],
    )
    found = {(row["workers"], row["rate"], row["method"]): row for row in rows}
    lines = []
    for n in workers:
        for name in METHODS:
            of_rates = [found[n, rate, name] for rate in rates if (n, rate, name) in found]
            lines.append(
                [
                    n,
                    name,
                    f"{float(of_rates[0]['nic_bytes']) / 1e6:.1f}",
                    *(f"{1e3 * float(row['seconds']):.0f} ({float(row['normalized']):.2f})" for row in of_rates),
                ]
            )
    columns = [">workers", "method", ">MB sent a step", *(f">ms at {rate}" for rate in rates)]
    n_values = int(rows[0]["parameters"])
    return [
        *markdown(columns, lines),
        "",
        f"A transformer of {n_values / 1e6:.1f} million parameters, gathered in bfloat16, gradients in float32; median "
        f"step, and its share of plain FSDP2's; MB per worker at {rates[0]}. From {source(comments)}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.fsdp", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    parser.add_argument("--workers", action="append", type=int, help="of so many only (2 and 4)")
    parser.add_argument("--rate", action="append", help="at these only (" + ", ".join(RATES) + ")")
    parser.add_argument("--add", action="store_true", help="keep the file's rows that are not measured anew")
    parser.add_argument("--quick", action="store_true", help="2 workers, 3 steps")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        serve(Worker())
    if (reason := obstacle()) is not None:
        print(f"skipped: {reason}")
        return 0
    clean_up_when_told_to_end()
    path, rows = options.out / FILE, list[NamedRow]()
    before = known(path) if options.add else []
    for workers in options.workers or (WORKERS[:1] if options.quick else WORKERS):
        with Bed(workers) as bed, Team(bed, "bench.cluster.fsdp", ["--worker"]) as team:
            rates = options.rate or (("1gbit", UNSHAPED) if options.quick else RATES)
            most, warm_up = (3, 3) if options.quick else (MOST_STEPS, WARM_UP)
            for row in measured(team, rates, most, warm_up):
                rows.append(row)
                print(*row.values(), sep=", ", flush=True)
            checksums = team.ask(command="compare", patience=1200.0)[0]["checksums"]
            if workers == 2 and len(set(checksums.values())) > 1:
                print(f"methods end with different parameters: {checksums}", file=sys.stderr)
                return 1
        write_beside(before, path, rows, ("workers", "rate", "method"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
