"""Trains the demo's models with DDP, every method in lockstep: the same batches, step after step, in one process.

    torchrun --nnodes 2 --nproc-per-node 1 --node-rank R --master-addr A --master-port P \\
        -m bench.cluster.training --model cnn --steps 300 --out results.json

on every host runs it on any cluster; with the hosts in a file, one a line, from the first of them:

    rank=0; while read -r host; do ssh -n "$host" "cd gcodec && torchrun ... --node-rank $rank ..." & rank=$((rank+1))
    done < hosts; wait

Set GLOO_SOCKET_IFNAME to the interface whose bytes are to be counted. ``python -m bench.cluster.runs`` starts it on the
bed. Each method has a model of its own, which
starts from the same parameters and sees the same batches; each rank draws its own. ``control`` is a dense run whose
parameters were moved by one ulp at the start, each up or down: how far apart two equally good trainings are. A step is
forward, backward with its all-reduces, and the optimizer. Rank 0 writes, for every step, the loss, the bytes that an
interface sent and the processor's seconds (means over ranks) and the seconds of the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from bench.cluster.counters import traffic
from bench.cluster.gpt import PLAN as GPT_PLAN
from bench.cluster.gpt import QUICK_PLAN as QUICK_GPT_PLAN
from bench.cluster.gpt import gpt_task
from bench.cluster.minilm import NAME as MINILM
from bench.cluster.minilm import PLAN as MINILM_PLAN
from bench.cluster.minilm import QUICK_PLAN as QUICK_MINILM_PLAN
from bench.cluster.minilm import minilm_task
from bench.cluster.team import cores
from bench.experiments.gradzip import Setting, of_ratio
from bench.experiments.gravac_methods import METHODS as GRAVAC
from bench.experiments.gravac_methods import Method
from bench.experiments.lgreco.methods import RANKS, UNIFORM, Setup, buckets_of, lgreco, matched, uniform
from bench.experiments.lgreco.methods import Method as LayerwiseMethod
from bench.record import PLANS, QUICK_PLANS
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback
from gcodec.compressors import DGC, Compressor, Dense, GradNA, GradZip, PowerSGD, SparCML, TopK
from gcodec.compressors.lowrank import matrix_shape
from gcodec.demo.train import TASKS, TrainingPlan, TrainingTask, set_rates
from gcodec.distributed import (
    AdaptiveGradients,
    Bypass,
    CompressedAllreduce,
    CompressedGradients,
    CompressedGroup,
    Lossless,
    NearLossless,
    hook,
)
from gcodec.distributed.modes import Mode

FP32, FP16, BF16, LOSSLESS, NEAR = "fp32", "fp16 hook", "bf16 hook", "gcodec lossless", "gcodec near-lossless"
HOOK = "PyTorch's dense hook"  #: the same all-reduce as without one, but begun by Python
BYPASS = f"{NEAR}, bypass"  #: may go around the codec; the other two always use it
BYPASS_BF16 = "gcodec bf16, bypass"  #: at least as accurate as torch's hook; may do what that does
GROUP = "gcodec process group, bypass"  #: DDP without a hook
CONTROL = "control"  #: and a number
EIGHT_BITS = "gcodec fp8"
EIGHT_BIT_INTEGERS, FOUR_BIT_INTEGERS = "gcodec int8", "gcodec int4"
FIXED_BF16 = "gcodec bf16"  #: without a bypass
RANK = "PowerSGD 8"
NOTHING = "no communication"  #: replicas drift apart: for the time of computing alone
#: What GradZip's paper compares, by its names, and others at its ratios; with error feedback.
COMPRESSORS: dict[str, Setting] = {
    "GradZip-10-FP32": of_ratio(GradZip, 10),
    "GradZip-40-FP32": of_ratio(GradZip, 40),
    "GradZip-50-FP16": of_ratio(GradZip, 50, "float16"),
    "GradNA-10-FP32": of_ratio(GradNA, 10),
    "SparCML-40-FP32": lambda shape: SparCML(TopK(1 / 40)),
    "PowerSGD-40": lambda shape: _powersgd(shape, 40),
    "DGC-40": lambda shape: DGC(1 / 40),
}
#: What L-GreCo's experiments compare, on ranks of PowerSGD.
LAYERWISE: dict[str, LayerwiseMethod] = {
    f"{RANK}, {method.name}": method
    for method in (uniform(RANKS, PowerSGD(8)), lgreco(RANKS, PowerSGD(8)), matched(RANKS, PowerSGD(8)))
}
#: What docs/training/which-mode.md compares with the modes, as a user has them.
PLAIN_COMPRESSORS: dict[str, Compressor | str] = {
    EIGHT_BITS: "fp8",
    EIGHT_BIT_INTEGERS: "int8",
    FOUR_BIT_INTEGERS: "int4",
    "PowerSGD 4": PowerSGD(4),
    "Top-k 1 %": TopK(0.01),
}
DECISIONS = 10  #: of L-GreCo in a training
BUCKET_MB = {"cnn": 1.0, "transformer": 4.0, "lstm": 4.0, "gpt": 4.0, MINILM: 25.0}  #: a handful of buckets per step


def _powersgd(shape: tuple[int, ...], ratio: float) -> PowerSGD:
    """Return PowerSGD at a ratio; it sends both factors at every step, so half of GradZip's rank sends as much."""
    m, n = matrix_shape(shape)
    return PowerSGD(max(1, round(m * n / ((m + n) * ratio))))


class WithLoss(torch.nn.Module):
    """A model together with its loss, for DDP must see the forward pass."""

    def __init__(self, task: TrainingTask) -> None:
        super().__init__()
        self.model, self._loss = task.model, task.loss

    def forward(self, batch: int, random: np.random.Generator) -> torch.Tensor:
        return self._loss(batch, random)


@dataclass
class Run:
    """One method's model, and what has been seen of it: a number for every step."""

    name: str
    task: TrainingTask
    ddp: DistributedDataParallel
    random: np.random.Generator
    state: CompressedAllreduce | CompressedGradients | CompressedGroup | None = None
    drops: Sequence[int] = ()  #: steps after which the learning rate falls to a tenth
    losses: list[float] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  #: seconds, of all threads of this rank
    bits: list[float] = field(default_factory=list)  #: per head symbol, with the hook's shared codebooks
    entropies: list[float] = field(default_factory=list)  #: of the same symbols
    calls: list[tuple[float, float]] = field(default_factory=list)  #: all-reduces so far, and those not compressed

    def __post_init__(self) -> None:
        self._rates = [group["lr"] for group in self.task.optimizer.param_groups]

    def step(self, batch: int) -> None:
        """One step of training, timed, its traffic counted."""
        dist.barrier()
        before, start, busy = traffic(), perf_counter(), process_time()
        self.losses.append(self._train(batch))
        self.seconds.append(perf_counter() - start)
        self.processor.append(process_time() - busy)
        dist.barrier()
        self.sent.append((traffic() - before).sent)
        stats = self.state.stats() if self.state else {}
        self.calls.append((stats.get("calls", 0), stats.get("dense", 0)))
        if isinstance(self.state, CompressedAllreduce):
            self.bits.append(stats["bits_per_symbol"])
            self.entropies.append(stats["entropy_per_symbol"])

    def _train(self, batch: int) -> float:
        task = self.task
        set_rates(task, self._rates, len(self.losses) + 1, self.drops)
        self.learning_rates.append(task.optimizer.param_groups[0]["lr"])
        task.optimizer.zero_grad()
        loss: torch.Tensor = self.ddp(batch, self.random)
        loss.backward()
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip)
        task.optimizer.step()
        return loss.item()


def begin(name: str, model: str, plan: TrainingPlan, seed: int, steps: int) -> Run:
    """Return a run of a method (or ``control 1`` and so on), before its first of so many steps."""
    torch.manual_seed(seed)
    tasks = {**TASKS, "gpt": gpt_task, MINILM: lambda _: minilm_task()}
    task = tasks[model](plan)
    if name.startswith(CONTROL):
        perturb(task.model, int(name.split()[-1]))
    group = dist.new_group(backend="gcodec") if name == GROUP else None
    ddp = DistributedDataParallel(
        WithLoss(task), bucket_cap_mb=BUCKET_MB[model], broadcast_buffers=False, process_group=group
    )
    state = group if isinstance(group, CompressedGroup) else register(ddp, name, task.optimizer, steps)
    return Run(name, task, ddp, np.random.default_rng((seed, dist.get_rank())), state)


def register(
    ddp: DistributedDataParallel, name: str, optimizer: torch.optim.Optimizer, steps: int
) -> CompressedAllreduce | CompressedGradients | None:
    """Give DDP the hook of a method; dense runs and controls have none."""
    plain: dict[str, Callable[..., Any]] = {
        NOTHING: debugging_hooks.noop_hook,
        HOOK: default_hooks.allreduce_hook,
        FP16: default_hooks.fp16_compress_hook,
        # By its own name DDP takes it on GPUs only, though Gloo adds bfloat16, too.
        BF16: lambda state, bucket: default_hooks.bf16_compress_hook(state, bucket),
    }
    if name in plain:
        ddp.register_comm_hook(None, plain[name])
    if name in COMPRESSORS:
        compressed = CompressedGradients(ddp, CompressionPlan(Dense(), ErrorFeedback()))
        for parameter_name, parameter in ddp.module.named_parameters():
            compressed.compressors[parameter_name] = COMPRESSORS[name](tuple(parameter.shape))
        ddp.register_comm_hook(compressed, hook)
        return compressed
    if name in PLAIN_COMPRESSORS:
        simple = CompressedGradients(ddp, PLAIN_COMPRESSORS[name])
        ddp.register_comm_hook(simple, hook)
        return simple
    if name in GRAVAC:
        return _controlled(ddp, GRAVAC[name], optimizer, steps)
    if name in LAYERWISE:
        return _layerwise(ddp, LAYERWISE[name], optimizer, steps)
    modes: dict[str, Mode | str] = {
        LOSSLESS: Lossless(),
        NEAR: NearLossless(optimizer),
        FIXED_BF16: "bf16",
        BYPASS: NearLossless(optimizer),
        BYPASS_BF16: "bf16",
    }
    if name not in modes:
        return None
    mode, bypass = modes[name], Bypass() if name in (BYPASS, BYPASS_BF16) else None
    state = CompressedAllreduce(mode=mode, bypass=bypass, threads=threads_here())
    ddp.register_comm_hook(state, hook)
    return state


def threads_here() -> int:
    """This worker's share of the machine: on the bed, whose workers are hosts to torchrun, as it has been told."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return int(os.environ.get("OMP_NUM_THREADS") or max(1, cores() // here))


def _controlled(
    ddp: DistributedDataParallel, method: Method, optimizer: torch.optim.Optimizer, steps: int
) -> CompressedGradients:
    """Return the hook of a compressor by itself, or under a controller."""
    state = (
        AdaptiveGradients(ddp, method.plan, method.controller(steps), optimizer=optimizer)
        if method.controller
        else CompressedGradients(ddp, method.plan, optimizer=optimizer)
    )
    ddp.register_comm_hook(state, hook)
    return state


def _layerwise(
    ddp: DistributedDataParallel, method: LayerwiseMethod, optimizer: torch.optim.Optimizer, steps: int
) -> CompressedGradients:
    """Return the hook of a uniform setting, or of what L-GreCo makes of it."""
    params = dict(ddp.module.named_parameters())
    shapes = {name: tuple(param.shape) for name, param in params.items()}
    controller = method.make(Setup(method.reference, max(steps // DECISIONS, 1), buckets_of(params), shapes, 0.0))
    state = (
        CompressedGradients(ddp, method.plan, optimizer=optimizer)
        if method.name == UNIFORM
        else AdaptiveGradients(ddp, method.plan, controller, optimizer=optimizer)
    )
    ddp.register_comm_hook(state, hook)
    return state


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Move every parameter to its next neighbor, up or down."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            up = torch.rand(parameter.shape, generator=random) < 0.5
            limit = torch.where(up, torch.tensor(float("inf")), torch.tensor(float("-inf")))
            parameter.copy_(torch.nextafter(parameter, limit))


def gathered(runs: Sequence[Run], plan: TrainingPlan, model: str) -> dict[str, Any]:
    """Return all results, on every rank: losses and traffic are means over the ranks, seconds those of the slowest."""
    results: dict[str, Any] = {"model": model, "workers": dist.get_world_size(), "batch": plan.batch, "runs": {}}
    for run in runs:
        means = torch.tensor([run.losses, run.sent, run.processor], dtype=torch.float64)
        slowest = torch.tensor(run.seconds, dtype=torch.float64)
        dist.all_reduce(means)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        losses, sent, processor = (means / dist.get_world_size()).tolist()
        stats = run.state.stats() if run.state else {}
        results["runs"][run.name] = {
            "losses": losses,
            "sent": sent,
            "seconds": slowest.tolist(),
            "processor": processor,
            "bits": run.bits,
            "entropies": run.entropies,
            "calls": run.calls,
            "stats": stats,
        }
    return results


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; the environment is torchrun's."""
    parser = argparse.ArgumentParser(prog="torchrun -m bench.cluster.training", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(BUCKET_MB), required=True)
    parser.add_argument("--method", action="append", help="of these only (default: all, and two controls)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--first", type=int, default=1, help="steps of a method in a row at the start")
    parser.add_argument("--settle", type=int, default=0, help="steps before these, of methods with a bypass only")
    parser.add_argument("--turn", type=int, default=1, help="steps of a method in a row from then on")
    parser.add_argument("--batch", type=int, help="examples per rank and step")
    parser.add_argument(
        "--drop",
        type=int,
        action="append",
        default=[],
        metavar="STEP",
        help="let the learning rate fall to a tenth after this step",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a small vocabulary and small batches")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; rank 0 writes it")
    options = parser.parse_args(arguments)
    torch.set_num_threads(threads_here())
    dist.init_process_group("gloo", timeout=timedelta(minutes=10))
    plans = PLANS | {"gpt": GPT_PLAN, MINILM: MINILM_PLAN}
    if options.quick:
        plans = QUICK_PLANS | {"gpt": QUICK_GPT_PLAN, MINILM: QUICK_MINILM_PLAN}
    plan = plans[options.model]
    plan = replace(plan, batch=options.batch or plan.batch)
    names = options.method or [FP32, FP16, BF16, LOSSLESS, NEAR, f"{CONTROL} 1", f"{CONTROL} 2"]
    runs = [begin(name, options.model, plan, options.seed, options.steps) for name in names]
    for run in runs:
        run.drops = options.drop
        for _ in range(options.settle if run.name in (BYPASS, BYPASS_BF16, GROUP) else 0):
            run.step(plan.batch)
    n_turns, rest = divmod(max(options.steps - options.first, 0), options.turn)
    for turn in [min(options.first, options.steps), *[options.turn] * n_turns, *[1] * rest]:
        for run in runs:
            for _ in range(turn):
                run.step(plan.batch)
        if dist.get_rank() == 0 and len(runs[0].losses) % 50 == 0:
            print(f"step {len(runs[0].losses)}", *(f"{run.name}: {run.losses[-1]:.4f}" for run in runs), flush=True)
    result = gathered(runs, plan, options.model) | {
        "seed": options.seed,
        "drops": options.drop,
        "learning_rates": runs[0].learning_rates,
    }
    if dist.get_rank() == 0:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # without the interpreter's teardown, in which Gloo's threads may still run


if __name__ == "__main__":
    main()
