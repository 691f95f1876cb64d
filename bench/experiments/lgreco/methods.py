"""The methods compared: uniform settings, L-GreCo on them, and what else adapts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from bench.experiments.lgreco.matched import Matched
from bench.experiments.lgreco.waiting import Load, waits
from gcodec.adaptive import (
    Accordion,
    Bytes,
    Controller,
    GlobalThreshold,
    KMeans,
    LGreCo,
    Prioritized,
    Range,
    Seconds,
    Settings,
)
from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.feedback import ErrorFeedback
from gcodec.compressors import QSGD, Compressor, Dense, PowerSGD, TopK

CLUSTERS = 6  #: of k-means, as in the paper's section 5.3
BUCKETS = 6  #: a model's gradients are cut into, in the order in which they become known
SWEEP = (0.01, 0.1)  #: densities of the trade-off curves beside the default
SLOW_GBPS, SLOW_WORKERS = 0.1, 8  #: of the link on which training waits
BIT_SWEEP = (2, 3, 6)  #: QSGD's bits, likewise
DENSE, UNIFORM, LGRECO, MATCHED = "dense", "uniform", "L-GreCo", "uniform, L-GreCo's bytes"
Make = Callable[["Setup"], Controller]


@dataclass(frozen=True)
class Setup:
    """The facts that a controller is made for: its ``reference`` setting, steps between decisions, buckets and shapes
    by tensor, and the seconds that a step computes."""

    reference: Compressor
    period: int
    buckets: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    compute: float


class Fixed(Controller):
    """Decides nothing: every tensor is compressed as the plan says."""

    def settings(self, step: int, rate: float | None) -> Settings:
        return {}


@dataclass(frozen=True)
class Method:
    """A method. ``reference``: the uniform setting that it is or starts from; ``make``: its controller."""

    family: str
    name: str
    reference: Compressor
    make: Make = lambda setup: Fixed()

    @property
    def plan(self) -> CompressionPlan:
        """The plan, without error feedback where what is lost is zero in the mean."""
        unbiased = isinstance(self.reference, QSGD | Dense)
        return CompressionPlan(self.reference, None if unbiased else ErrorFeedback())


def uniform(family: str, reference: Compressor, name: str = UNIFORM) -> Method:
    """Return the method that has one setting everywhere, always."""
    return Method(family, name, reference)


def lgreco(family: str, reference: Compressor, name: str = LGRECO, **options: object) -> Method:
    """Return L-GreCo with the paper's range, unless ``options`` say otherwise."""

    def make(setup: Setup) -> Controller:
        return LGreCo(setup.reference, period=setup.period, **options)  # type: ignore[arg-type]

    return Method(family, name, reference, make)


def matched(family: str, reference: Compressor, name: str = MATCHED) -> Method:
    """Return the control: one setting everywhere, of as many bytes as L-GreCo's choice."""

    def make(setup: Setup) -> Controller:
        return Matched(LGreCo(setup.reference, period=setup.period))

    return Method(family, name, reference, make)


def prioritized(family: str, reference: Compressor) -> Method:
    """Costs times the number of the bucket (appendix B)."""

    def make(setup: Setup) -> Controller:
        return LGreCo(setup.reference, period=setup.period, cost=Prioritized(Bytes(), setup.buckets))

    return Method(family, "L-GreCo, priorities", reference, make)


def timed(family: str, reference: Compressor) -> Method:
    """Return L-GreCo whose costs are seconds that training waits: those that the model of ``waiting`` has for each
    bucket on the slow link, all at the reference, in place of what a run on that link would measure."""

    def make(setup: Setup) -> Controller:
        values, n_bytes = dict.fromkeys(setup.buckets.values(), 0.0), dict.fromkeys(setup.buckets.values(), 0.0)
        for name, bucket in setup.buckets.items():
            values[bucket] += prod(setup.shapes[name])
            n_bytes[bucket] += setup.reference.payload_bytes(setup.shapes[name])
        order, total = sorted(values), sum(values.values())
        load = Load(
            setup.compute,
            0.0,
            tuple(values[bucket] / total for bucket in order),
            tuple(n_bytes[bucket] for bucket in order),
            reduced=True,
        )
        seconds = dict(zip(order, waits(load, SLOW_WORKERS, SLOW_GBPS), strict=True))
        return LGreCo(setup.reference, period=setup.period, cost=Seconds.measured(setup.buckets, seconds, n_bytes))

    return Method(family, "L-GreCo, seconds", reference, make)


def accordion(family: str, reference: Compressor, mild: float, harsh: float) -> Method:
    """Return Accordion of two settings, given as multiples of the reference's."""

    def make(setup: Setup) -> Controller:
        return _accordion(setup, mild, harsh)

    return Method(family, "Accordion", reference, make)


def combined(family: str, reference: Compressor, mild: float, harsh: float) -> Method:
    """Return L-GreCo whose references are Accordion's verdicts, with a range twice as wide on either side (section
    5.3)."""

    def make(setup: Setup) -> Controller:
        return LGreCo(
            setup.reference, Range(2 / harsh, 2 * mild), period=setup.period, accordion=_accordion(setup, mild, harsh)
        )

    return Method(family, "L-GreCo + Accordion", reference, make)


def _accordion(setup: Setup, mild: float, harsh: float) -> Accordion:
    value = setup.reference.value
    whole = setup.reference.knob != "density"
    mild_value, harsh_value = (round(value * factor) if whole else value * factor for factor in (mild, harsh))
    return Accordion(setup.reference.at(mild_value), setup.reference.at(harsh_value), setup.period)


def k_means(family: str, reference: Compressor) -> Method:
    """Return CGX: as many settings as clusters, evenly from twice the reference to half of it."""

    def make(setup: Setup) -> Controller:
        value = setup.reference.value
        steps = [round(2 * value - number * 1.5 * value / (CLUSTERS - 1)) for number in range(CLUSTERS)]
        return KMeans(setup.reference, tuple(setup.reference.at(step) for step in steps), setup.period)

    return Method(family, "k-means", reference, make)


def threshold(family: str, reference: TopK, share: float) -> Method:
    """Return Rethink-GS: one threshold for all, which a share of the reference's density of the first period's mean
    gradient reaches."""

    def make(setup: Setup) -> Controller:
        return GlobalThreshold(reference.at(share * setup.reference.value), period=setup.period)

    return Method(family, f"Rethink-GS, {share:g} × the density", reference, make)


def buckets_of(params: Mapping[str, torch.Tensor], count: int = BUCKETS) -> dict[str, int]:
    """Return the bucket of each tensor, from 1 in the order of transmission: the last layer's gradients come first.
    Buckets are about equally large, and hold whole tensors."""
    total, seen, result = sum(param.numel() for param in params.values()), 0, dict[str, int]()
    for name, param in reversed(list(params.items())):
        result[name] = min(1 + int((seen + param.numel() / 2) * count / total), count)
        seen += param.numel()
    return result


QUANTIZED, SPARSE, RANKS = "QSGD", "Top-k", "PowerSGD"
#: The paper starts from settings "known not to lose accuracy". Of bits those are its defaults; of densities and ranks,
#: which it has for larger models, the harshest tried that recover dense quality here to within about 1 %.
REFERENCES: dict[str, dict[str, Compressor]] = {
    "transformer": {QUANTIZED: QSGD(4), SPARSE: TopK(0.4), RANKS: PowerSGD(8)},
    "small transformer": {QUANTIZED: QSGD(4), SPARSE: TopK(0.1), RANKS: PowerSGD(8)},
    "vgg": {QUANTIZED: QSGD(4), SPARSE: TopK(0.1), RANKS: PowerSGD(12)},
    "lstm": {QUANTIZED: QSGD(4), SPARSE: TopK(0.1), RANKS: PowerSGD(4)},
}


def pairs(problem: str) -> list[Method]:
    """Tables 2 and 3: every family, uniform, by L-GreCo and uniform at as many bytes, and dense."""
    results = [uniform("", Dense(), DENSE)]
    for family, reference in REFERENCES[problem].items():
        results += [uniform(family, reference), lgreco(family, reference), matched(family, reference)]
    return results


def rivals(problem: str) -> list[Method]:
    """Table 4 and Figures 7 and 8: what else adapts ranks."""
    reference = REFERENCES[problem][RANKS]
    return [
        accordion(RANKS, reference, 2, 0.5),
        k_means(RANKS, reference),
        combined(RANKS, reference, 2, 0.5),
        prioritized(RANKS, reference),
    ]


def sparse_rivals(problem: str) -> list[Method]:
    """Table 6: what else adapts densities; uniform ones at the ends of what Accordion has to choose from."""
    reference = REFERENCES[problem][SPARSE]
    assert isinstance(reference, TopK)
    return [
        accordion(SPARSE, reference, 2, 0.1),
        *(threshold(SPARSE, reference, share) for share in (1, 0.1)),
        *(
            uniform(SPARSE, reference.at(reference.value * factor), f"uniform, {factor:g} × the density")
            for factor in (2, 0.1)
        ),
    ]


def sweep(problem: str) -> list[Method]:
    """Figure 2: other densities."""
    return _swept(problem, SPARSE, SWEEP)


def bit_sweep(problem: str) -> list[Method]:
    """Figure 2 with QSGD, which the paper leaves out: other bits. Of 2, the fewest there are, none can be saved."""
    return _swept(problem, QUANTIZED, BIT_SWEEP)


def _swept(problem: str, family: str, values: Sequence[float]) -> list[Method]:
    result = list[Method]()
    for value in values:
        other = REFERENCES[problem][family].at(value)
        result += [
            uniform(family, other, f"{UNIFORM}, {value:g}"),
            lgreco(family, other, f"{LGRECO}, {value:g}"),
            matched(family, other, f"{MATCHED}, {value:g}"),
        ]
    return result


def future(problem: str) -> list[Method]:
    """Return what the paper leaves to future work: the best of three families for each layer, and costs in seconds."""
    reference, *others = (REFERENCES[problem][family] for family in (RANKS, SPARSE, QUANTIZED))
    return [lgreco(RANKS, reference, "L-GreCo, three families", others=tuple(others)), timed(RANKS, reference)]


def variants(problem: str) -> list[Method]:
    """Return what the paper or its code do otherwise: a wider range, as in section 5.3, errors that are not squared,
    one rank's gradients, or all of them; and half the rank."""
    reference = REFERENCES[problem][RANKS]
    half = reference.at(int(reference.value) // 2)
    return [
        uniform(RANKS, half, f"{UNIFORM}, {half.value:g}"),
        lgreco(RANKS, half, f"{LGRECO}, {half.value:g}"),
        matched(RANKS, half, f"{MATCHED}, {half.value:g}"),
        lgreco(RANKS, reference, "L-GreCo, from D/4", range=Range(below=4)),
        lgreco(RANKS, reference, "L-GreCo, plain errors", metric="plain"),
        lgreco(RANKS, reference, "L-GreCo, own gradients", source="own"),
        lgreco(RANKS, reference, "L-GreCo, reduced gradients", source="reduced"),
    ]


def depth(problem: str) -> list[Method]:
    """Ranks alone, on a model of other depth."""
    reference = REFERENCES[problem][RANKS]
    return [uniform(RANKS, reference), lgreco(RANKS, reference), matched(RANKS, reference)]


def replay(problem: str) -> list[Method]:
    """Return L-GreCo once more, to see whether it decides alike."""
    return [lgreco(family, reference) for family, reference in REFERENCES[problem].items()]


#: Every set of methods, by the part of the experiments that it belongs to.
PARTS: dict[str, Callable[[str], list[Method]]] = {
    "pairs": pairs,
    "rivals": rivals,
    "sparse rivals": sparse_rivals,
    "sweep": sweep,
    "bit sweep": bit_sweep,
    "future work": future,
    "variants": variants,
    "depth": depth,
    "replay": replay,
}


def method_of(part: str, problem: str, family: str, name: str) -> Method:
    """Return the method of these names."""
    return next(item for item in PARTS[part](problem) if (item.family, item.name) == (family, name))
