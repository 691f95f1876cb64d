"""The methods that GraVAC's experiments compare, by name: plans, and controllers over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.experiments.pool import Job
from bench.experiments.traffic import LINK, SLOW, Link
from gcodec.adaptive import Accordion, Controller, Exponential, Geometric, GraVAC
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback, Feedback
from gcodec.compressors import DGC, Compressor, Dense, PowerSGD, RandomK, RedSync, TopK

FEEDBACK = ErrorFeedback()
#: RedSync by bisection, as in the authors' code: its other search, for small tensors, chooses as Top-k does.
COMPRESSORS: dict[str, Compressor] = {
    "Top-k": TopK(0.1),
    "DGC": DGC(0.1),
    "RedSync": RedSync(0.1, method="bisection"),
    "Random-k": RandomK(0.1),
}
FACTORS = (10, 1000)
EPSILONS = (0.7, 0.9)
CHECKS = 20  #: windows in a run: the paper's exponential policy has about 40, its geometric one about 10
WEIGHT = 0.32  #: of a new gain with Random-k: N / 100 of the paper's 32 workers; with 0.04 windows end too soon
DENSE, UNFED = "dense", "Random-k 10x, no feedback"


@dataclass(frozen=True)
class Method:
    """A method: ``compressor`` by itself, with ``feedback``; or what ``controller`` makes of it, given the number of
    steps. ``link``: on which the controller believes to be."""

    compressor: Compressor
    controller: Callable[[int], Controller] | None = None
    feedback: Feedback | None = FEEDBACK
    link: Link = SLOW

    @property
    def plan(self) -> CompressionPlan:
        """The plan, by which every tensor is compressed, biases too, as in the authors' code: in small models they are
        not few."""
        return CompressionPlan(self.compressor, self.feedback, min_values=0, vectors=True)


def window(steps: int, checks: int = CHECKS) -> int:
    """Steps between checks, in a run of so many."""
    return max(steps // checks, 1)


def exponential(
    name: str,
    epsilon: float,
    denominator: str = "fed",
    metric: str = "squared",
    link: Link = SLOW,
    settle: bool = False,
) -> Method:
    """Return GraVAC from 10 to 1000 by 2^1, 2^2, 2^4 ... (section IV-B-1)."""
    return Method(
        COMPRESSORS[name],
        lambda steps: GraVAC(
            COMPRESSORS[name],
            10,
            1000,
            epsilon,
            window(steps),
            policy=Exponential(),
            denominator=denominator,
            metric=metric,
            settle=settle,
        ),
        link=link,
    )


def geometric(
    name: str, least: float, most: float, denominator: str = "fed", metric: str = "squared", weight: float | None = None
) -> Method:
    """Return GraVAC by powers of 2, with windows twice as long (sections IV-B-2 and IV-D-1)."""
    return Method(
        COMPRESSORS[name],
        lambda steps: GraVAC(
            COMPRESSORS[name],
            least,
            most,
            0.7,
            window(steps, CHECKS // 2),
            policy=Geometric(),
            weight=weight,
            denominator=denominator,
            metric=metric,
        ),
    )


def accordion(mild: Compressor, harsh: Compressor) -> Method:
    """Return Accordion with two settings (section IV-D)."""
    return Method(mild, lambda steps: Accordion(mild, harsh, window(steps)))


STATIC = {
    f"{name} {factor}x": Method(one.at(1 / factor)) for factor in (10, 100, 1000) for name, one in COMPRESSORS.items()
}
METHODS: dict[str, Method] = {
    DENSE: Method(Dense(), feedback=None),
    **STATIC,
    UNFED: Method(RandomK(0.1), feedback=None),
    **{f"GraVAC {epsilon}, DGC": exponential("DGC", epsilon) for epsilon in EPSILONS},
    "GraVAC 0.7, Top-k": exponential("Top-k", 0.7),
    **{f"GraVAC {epsilon}, DGC, raw": exponential("DGC", epsilon, "raw") for epsilon in EPSILONS},
    **{f"GraVAC {epsilon}, DGC, plain": exponential("DGC", epsilon, metric="plain") for epsilon in EPSILONS},
    "GraVAC 0.7, DGC, settling": exponential("DGC", 0.7, settle=True),
    "GraVAC 0.7, DGC, 1 Gb/s": exponential("DGC", 0.7, link=LINK),
    "GraVAC 0.7, RedSync, geometric": geometric("RedSync", 10, 2000),
    **{
        f"GraVAC 0.7, Random-k, {denominator}, {metric}": geometric("Random-k", 1.5, 1000, denominator, metric, WEIGHT)
        for denominator in ("raw", "fed")
        for metric in ("plain", "squared")
    },
    "Accordion, PowerSGD 4/1": accordion(PowerSGD(4), PowerSGD(1)),
    "Accordion, Top-k 10x/1000x": accordion(TopK(1 / 10), TopK(1 / 1000)),
    "Accordion, Random-k 1.5x/1000x": accordion(RandomK(1 / 1.5), RandomK(1 / 1000)),
}
TABLE_2 = (
    DENSE,
    "GraVAC 0.7, DGC",
    "GraVAC 0.9, DGC",
    "GraVAC 0.7, DGC, settling",
    *(f"{name} {factor}x" for name in COMPRESSORS for factor in FACTORS),
)
GAINS = (
    *(f"GraVAC {epsilon}, DGC, {way}" for way in ("raw", "plain") for epsilon in EPSILONS),
    "GraVAC 0.7, DGC, 1 Gb/s",
)
#: What is trained, the most important first: problems, methods.
GROUPS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("lstm", "cnn"), TABLE_2),
    (("cnn",), (UNFED, *(name for name in METHODS if "Random-k, " in name), "Accordion, Random-k 1.5x/1000x")),
    (
        ("lstm", "cnn"),
        (
            "Accordion, PowerSGD 4/1",
            "Accordion, Top-k 10x/1000x",
            "GraVAC 0.7, Top-k",
            "GraVAC 0.7, RedSync, geometric",
        ),
    ),
    (("lstm",), GAINS),
    (("transformer", "vgg"), TABLE_2),
    (("cnn",), GAINS),
    (("lstm", "cnn"), tuple(f"{name} 100x" for name in COMPRESSORS)),
)


def jobs(seeds: int) -> list[Job]:
    """Return (problem, method, seed), each once: all groups with seed 0, then with the next."""
    results = [
        (problem, method, seed)
        for seed in range(seeds)
        for problems, methods in GROUPS
        for problem in problems
        for method in methods
    ]
    return list(dict.fromkeys(results))
