"""Trains the demo's two models, and the benchmarks' third, on the CPU and records their gradients.

    python -m gcodec.demo.train FOLDER [--quick] [--model cnn] [--model transformer]

writes ``FOLDER/cnn/step-000001.safetensors`` and so on, and each model's ``observations.json``, which the
pictures are drawn from. Seeded; results still differ in the last bits between machines and thread counts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import missing_package
from ..recorder import Recorder
from .data import VOCABULARY_SIZE, build_vocabulary, load_digits, read_standard_library
from .figures.observations import OBSERVATIONS_FILE, Observation, Observer, write_observations
from .models import DigitNet, RecurrentModel, Transformer, decay_groups

try:
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from torch.nn import functional
except ImportError as error:
    raise missing_package("torch and rich") from error

SUMMARY = "Trains the demo's models on the CPU and records their gradients."
DROPS_HELP = "go on training for two thirds as long, while the learning rate falls to a tenth twice"
SEED = 20240
CONTEXT = 64


@dataclass(frozen=True)
class TrainingPlan:
    """The length of a training, and what is kept of it.

    Attributes:
        steps: Iterations in all.
        recorded: The iterations to dump.
        observe_every: Iterations between two entries of ``observations.json``; recorded ones are entered too.
        batch: Images, or sequences of ``CONTEXT`` tokens, per iteration.
        corpus: Characters of text to read (None for all); language models only.
        vocabulary: Tokens; language models only.
        drops: Steps after which the learning rate falls to a tenth.
    """

    steps: int
    recorded: tuple[int, ...]
    observe_every: int
    batch: int
    corpus: int | None = None
    vocabulary: int = VOCABULARY_SIZE
    drops: tuple[int, ...] = ()


@dataclass(frozen=True)
class TrainingResult:
    """A finished training.

    Attributes:
        model: Name of the model.
        folder: Folder of its dumps.
        dumps: Paths of its dumps.
        losses: Loss of each step, in nats.
        observations: Entries of ``observations.json``.
    """

    model: str
    folder: Path
    dumps: tuple[Path, ...]
    losses: tuple[float, ...]
    observations: tuple[Observation, ...]


PLANS = {
    "cnn": TrainingPlan(600, (1, 20, 100, 300, 600), 10, batch=64),
    "transformer": TrainingPlan(400, (1, 20, 100, 200, 400), 10, batch=16),
}
QUICK_PLANS = {
    "cnn": TrainingPlan(4, (1, 3), 2, batch=16),
    "transformer": TrainingPlan(3, (1, 3), 2, batch=2, corpus=200_000, vocabulary=1024),
}


def with_drops(plan: TrainingPlan) -> TrainingPlan:
    """Return the plan that goes on for two thirds as long, at a tenth and then a hundredth of the learning rate.

    Up to where the rate first falls, both are the same training.
    """
    more = plan.steps // 3
    ends = plan.steps + more, plan.steps + 2 * more
    return replace(plan, steps=ends[1], recorded=(*plan.recorded, *ends), drops=(plan.steps, ends[0]))


@dataclass(frozen=True)
class TrainingTask:
    """A model and its optimizer.

    Attributes:
        loss: The loss of so many examples drawn at random, to call ``backward()`` on.
        warm_up: Steps over which the learning rate rises.
        clip: The largest norm of all gradients together; None for no limit. What is recorded has been clipped.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int, np.random.Generator], torch.Tensor]
    warm_up: int = 0
    clip: float | None = None


def train(
    name: str,
    folder: Path,
    plan: TrainingPlan | None = None,
    *,
    progress: Progress | None = None,
    watch: Callable[[int, TrainingTask], None] | None = None,
) -> TrainingResult:
    """Trains model ``name`` (a key of ``TASKS``) and writes its dumps under ``folder/name``.

    Args:
        folder: The parent of the model's own folder.
        plan: How long to train; ``PLANS[name]`` if None.
        progress: A running rich progress display to add a bar to, or None for silence.
        watch: Called with each step's number just before the optimizer's step; must change nothing.
    """
    plan = plan or PLANS[name]
    torch.manual_seed(SEED)
    task, random = TASKS[name](plan), np.random.default_rng(SEED)
    recorder = Recorder(task.model, task.optimizer, folder / name, steps=plan.recorded)
    observer, losses, dumps = Observer(), [], []
    bar = progress.add_task(name, total=plan.steps, loss=float("nan")) if progress else None
    base_rates = [group["lr"] for group in task.optimizer.param_groups]
    for step in range(1, plan.steps + 1):
        set_rates(task, base_rates, step, plan.drops)
        task.optimizer.zero_grad()
        loss = task.loss(plan.batch, random)
        loss.backward()
        losses.append(loss.item())
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(task.model.parameters(), task.clip)
        if path := recorder.record():
            dumps.append(Path(path))
        if path or step % plan.observe_every == 0:
            observer.observe(step, losses[-1], _gradients(task.model))
        if watch:
            watch(step, task)
        task.optimizer.step()
        if progress and bar is not None:
            progress.update(bar, advance=1, loss=losses[-1])
    write_observations(observer.observations, folder / name / OBSERVATIONS_FILE)
    return TrainingResult(name, folder / name, tuple(dumps), tuple(losses), tuple(observer.observations))


def plans_for(quick: bool, drops: bool) -> dict[str, TrainingPlan]:
    """Return the demo's plans, or those to try it out; ``drops``: each :func:`with_drops`."""
    plans = QUICK_PLANS if quick else PLANS
    return {name: with_drops(plan) if drops else plan for name, plan in plans.items()}


def train_all(folder: Path, plans: dict[str, TrainingPlan], *, show: bool = True) -> list[TrainingResult]:
    """Trains one model after another, with a progress bar on the terminal if ``show``."""
    with progress_bars(show) as progress:
        return [train(name, folder, plan, progress=progress) for name, plan in plans.items()]


def progress_bars(show: bool) -> Progress:
    """Return the bars of trainings on the terminal, which nobody sees unless ``show``."""
    return Progress(
        TextColumn("{task.description:>12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeElapsedColumn(),
        disable=not show,
    )


def _cnn_task(plan: TrainingPlan) -> TrainingTask:
    digits, _ = load_digits()
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def loss(batch: int, random: np.random.Generator) -> torch.Tensor:
        images, labels = map(torch.from_numpy, digits.batch(batch, random))
        return functional.cross_entropy(model(images), labels)

    return TrainingTask(model, optimizer, loss)


def _transformer_task(plan: TrainingPlan) -> TrainingTask:
    tokens, size = _tokens(plan)
    model = Transformer(size, context=CONTEXT)
    optimizer = torch.optim.AdamW(decay_groups(model, 0.01), lr=1e-3, betas=(0.9, 0.95))
    return TrainingTask(model, optimizer, _next_token_loss(model, tokens), warm_up=20)


def _lstm_task(plan: TrainingPlan) -> TrainingTask:
    tokens, size = _tokens(plan)
    model = RecurrentModel(size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    return TrainingTask(model, optimizer, _next_token_loss(model, tokens), warm_up=20, clip=0.5)


def _tokens(plan: TrainingPlan) -> tuple[torch.Tensor, int]:
    """Return the text that language models learn, and the size of their vocabulary."""
    text = read_standard_library(plan.corpus)
    vocabulary = build_vocabulary(text, plan.vocabulary)
    return torch.from_numpy(vocabulary.encode(text)), len(vocabulary)


def _next_token_loss(
    model: torch.nn.Module, tokens: torch.Tensor
) -> Callable[[int, np.random.Generator], torch.Tensor]:
    def loss(batch: int, random: np.random.Generator) -> torch.Tensor:
        starts = random.integers(len(tokens) - CONTEXT - 1, size=batch)
        windows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        logits = model(windows[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())

    return loss


#: The demo trains those of ``PLANS``, the benchmarks all (bench/record.py).
TASKS: dict[str, Callable[[TrainingPlan], TrainingTask]] = {
    "cnn": _cnn_task,
    "transformer": _transformer_task,
    "lstm": _lstm_task,
}


def set_rates(task: TrainingTask, base_rates: Sequence[float], step: int, drops: Sequence[int] = ()) -> None:
    """Raises the learning rate linearly over the first ``warm_up`` steps, and lets it fall to a tenth after drops.

    Args:
        base_rates: Rate of each group of parameters, where it neither rises nor has fallen.
        step: Number of the step, from 1 on.
    """
    scale = min(1.0, step / task.warm_up) if task.warm_up else 1.0
    for group, rate in zip(task.optimizer.param_groups, base_rates, strict=True):
        group["lr"] = scale * rate * 0.1 ** sum(step > drop for drop in drops)


def _gradients(model: torch.nn.Module) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(p.grad.numpy(), p.detach().numpy()) for p in model.parameters() if p.grad is not None]


def train_command(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m gcodec.demo.train", description=SUMMARY)
    parser.add_argument("folder", type=Path, help="where the dumps go")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to try it out")
    parser.add_argument("--drops", action="store_true", help=DROPS_HELP)
    parser.add_argument("--model", action="append", choices=sorted(PLANS), help="train only this one")
    options = parser.parse_args(arguments)
    plans = plans_for(options.quick, options.drops)
    selected = {name: plan for name, plan in plans.items() if name in (options.model or plans)}
    for outcome in train_all(options.folder, selected):
        dumps, loss = len(outcome.dumps), outcome.losses[-1]
        print(f"{outcome.model}: {dumps} dumps in {outcome.folder}, loss {loss:.3f}")


if __name__ == "__main__":
    train_command()
