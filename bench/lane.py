"""Processor time of the lane's thread, beside that of the codec's own work on it.

    python -m bench.lane [--quick] [--mode exact] [--steps 24] [--profile] [--out DIR]

trains a model like GPT by DDP on two ranks of this machine, over Gloo without a limit, a thread each. For each mode of
the hook it prints, and writes to ``bench/results/lane.csv``, the milliseconds of processor time that the lane's thread
takes in a step, a mean over ranks, and where they went. ``ratio`` is all of it over the codec's: encoding, with levels
and plans, and decoding. Processor time of a thread does not count what others do on the machine, but caches and memory
are shared: run it where little else runs. It takes about a minute.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

import gcodec.distributed as gd
from bench.cluster.gpt import PLAN, QUICK_PLAN, gpt_task
from bench.cluster.training import WithLoss
from bench.codec import RESULTS
from gcodec.benchmark.csv_tables import NamedRow, write_named
from gcodec.demo.train import TrainingPlan, TrainingTask
from gcodec.distributed.reduction import coder, reduce
from gcodec.distributed.transport import transfers
from gcodec.distributed.transport.lane import lane_of

BUCKET_MB = 1.0  #: four buckets or so, of which one has the embeddings
CORPUS = 600_000  #: characters to learn: what they are matters little, and they are read before each run
MODES = ("exact", "optimizer", "bf16")
SETTLE = 12  #: steps that do not count: buckets are rebuilt, codebooks made, and prediction tried
#: What the hook's counters call seconds of stages, here of processor time; levels are part of encoding.
STAGES = ("encode", "decode", "sum", "wait")
FILE = "lane.csv"


def _train(task: TrainingTask, ddp: DistributedDataParallel, batch: int, random: np.random.Generator) -> None:
    task.optimizer.zero_grad()
    ddp(batch, random).backward()
    task.optimizer.step()


def measure(mode: str, plan: TrainingPlan, steps: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Return milliseconds of processor time per step of this rank's lane: ``lane``, all of it, and by stage.

    Args:
        mode: The hook's.
        plan: The training's.
        steps: Steps that count, best a multiple of four: symbols are counted in every fourth.
        profile: Profiles the lane's thread in these steps; None for none, as it takes time itself.
    """
    torch.manual_seed(1)
    task, random = gpt_task(plan), np.random.default_rng(dist.get_rank())
    ddp = DistributedDataParallel(WithLoss(task), bucket_cap_mb=BUCKET_MB)
    options: dict[str, Any] = {"optimizer": task.optimizer} if mode == "optimizer" else {"mode": mode}
    state = gd.CompressedAllreduce(**options, bypass=None, threads=1)
    ddp.register_comm_hook(state, gd.hook)
    for _ in range(SETTLE):
        _train(task, ddp, plan.batch, random)
    lane, before = lane_of(None, None), state.stats()
    begin = lane.submit(thread_time).wait()
    if profile is not None:
        lane.submit(profile.enable).wait()
    for _ in range(steps):
        _train(task, ddp, plan.batch, random)
    if profile is not None:
        lane.submit(profile.disable).wait()
    seconds, after = {"lane": lane.submit(thread_time).wait() - begin}, state.stats()
    seconds |= {stage: after[f"{stage}_seconds"] - before[f"{stage}_seconds"] for stage in STAGES}
    return {name: 1e3 * each / steps for name, each in seconds.items()}


def _take_part(
    rank: int, folder: str, modes: Sequence[str], plan: TrainingPlan, steps: int, profiles: bool, out: Path
) -> None:
    torch.set_num_threads(1)
    rows = []
    for module in (coder, reduce, transfers):
        module.perf_counter = thread_time  # type: ignore[attr-defined]
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=rank, world_size=2)
    for mode in modes:
        profile = cProfile.Profile(thread_time) if profiles else None
        numbers = measure(mode, plan, steps, profile)
        total = torch.tensor(list(numbers.values()), dtype=torch.float64)
        dist.all_reduce(total)
        if rank == 0:
            rows.append(row_of(mode, dict(zip(numbers, (total / 2).tolist(), strict=True))))
            print(", ".join(f"{column} {cell}" for column, cell in rows[-1].items()), flush=True)
            write_named(out / FILE, rows)
            if profile is not None:
                pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    dist.barrier()
    gd.close_lanes()
    dist.destroy_process_group()


def row_of(mode: str, numbers: dict[str, float]) -> NamedRow:
    """Return the row of a mode."""
    lane, codec = numbers["lane"], numbers["encode"] + numbers["decode"]
    stages = {f"{stage}_ms": numbers[stage] for stage in STAGES}
    columns = {
        "ratio": lane / codec,
        "lane_ms": lane,
        "codec_ms": codec,
        **stages,
        "rest_ms": lane - sum(stages.values()),
    }
    return {"mode": mode, **{name: f"{number:.3f}" for name, number in columns.items()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.lane", description=__doc__.splitlines()[0])
    parser.add_argument("--mode", action="append", choices=MODES, help="of these only (all)")
    parser.add_argument("--steps", type=int, default=24, help="steps that count, in each mode (24)")
    parser.add_argument("--quick", action="store_true", help="a small model")
    parser.add_argument("--profile", action="store_true", help="print what Python's profiler finds in the lane")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the CSV file goes (default: bench/results)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        plan = QUICK_PLAN if options.quick else replace(PLAN, corpus=CORPUS)
        modes = options.mode or MODES
        spawn(_take_part, (folder, modes, plan, options.steps, options.profile, options.out), nprocs=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
