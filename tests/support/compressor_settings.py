"""The compressors that laws run over, with what each promises; and gradients to run them on."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from gcodec.averaging.averager import NAMED_PLANS, CompressionPlan
from gcodec.averaging.feedback import WarmUp
from gcodec.averaging.simulate import Simulation
from gcodec.compressors import (
    ACPSGD,
    DGC,
    QSGD,
    Blockwise,
    Cast,
    Compressor,
    Dense,
    Frames,
    GradNA,
    GradZip,
    PowerSGD,
    RandomK,
    RedSync,
    SparCML,
    TopK,
    contract,
)
from tests.support.paths import ROOT

SHAPES: Mapping[str, tuple[int, ...]] = {"linear": (60, 70), "bias": (70,), "images": (16, 9, 3, 3), "wide": (8, 400)}


INDICES, ESTIMATED = 0.2, 0.6  #: where some of what is sent are indices, and where how much is sent is not known before


@dataclass(frozen=True)
class Promise:
    """``lossless``: the setting that equals dense training, and how far from it averages may lie, as a share of their
    norm; ``square``: for square matrices only (one known factor of m or n columns spans no more than these);
    ``rounding``: how far contributions and averages may be apart, as a share of the norm; ``off``: how far the bytes of
    payloads may be from those predicted, where they depend on the values."""

    setting: Compressor
    lossless: Compressor | None = None
    apart: float = 0.0
    rounding: float = 1e-6
    square: bool = False
    off: float = 5e-3


def shown_in(contract: ModuleType, heading: str) -> ModuleType:
    """Return the module that a contract's docstring shows whole below a heading, as if it were a file beside it."""
    _, _, rest = (contract.__doc__ or "").partition(heading)
    package = contract.__name__.rpartition(".")[0]
    module = ModuleType(f"{package}.shown_in_contract")
    module.__package__ = package
    sys.modules[module.__name__] = module  # where dataclasses look up types
    exec(textwrap.dedent(rest.partition("\n")[2]), vars(module))
    return module


#: A line here has the laws of tests/compressors and of tests/distributed/test_compressors.py tested on a compressor.
PROMISES: dict[str, Promise] = {
    "dense": Promise(Dense(), Dense()),
    "float16": Promise(Cast("float16"), rounding=2e-3),
    "bfloat16": Promise(Cast("bfloat16"), rounding=2e-2),
    "topk": Promise(TopK(0.05), TopK(1.0), off=INDICES),
    "topk sampled": Promise(TopK(0.05, sample=0.1), TopK(1.0, sample=0.1), off=ESTIMATED),
    "topk rounded": Promise(TopK(0.05, mantissa_bits=4), TopK(1.0, mantissa_bits=23), off=ESTIMATED),
    "random-k": Promise(RandomK(0.05), RandomK(1.0)),
    "dgc": Promise(DGC(0.05), DGC(1.0), off=ESTIMATED),
    "dgc raising": Promise(DGC(0.05, reselect=False), DGC(1.0, reselect=False), off=ESTIMATED),
    "dgc warming up": Promise(WarmUp(DGC(0.02), steps=2, stages=2), WarmUp(DGC(1.0), steps=2), off=ESTIMATED),
    "redsync trimmed": Promise(RedSync(0.05, method="trimmed"), RedSync(1.0), off=ESTIMATED),
    "redsync bisection": Promise(RedSync(0.05, method="bisection"), RedSync(1.0, method="bisection"), off=ESTIMATED),
    "redsync same sign": Promise(RedSync(0.05, same_sign=True), off=ESTIMATED),
    "qsgd": Promise(QSGD(4), QSGD(8, bucket=1), 1e-6),
    "qsgd l2": Promise(QSGD(4, bucket=100, norm="l2"), QSGD(2, bucket=1, norm="l2"), 1e-6),
    "qsgd nearest": Promise(QSGD(5, stochastic=False), QSGD(8, bucket=1, stochastic=False), 1e-6),
    "powersgd": Promise(PowerSGD(4), PowerSGD(400, always=True), 1e-5),
    "powersgd twice": Promise(PowerSGD(2, iterations=2), PowerSGD(400, always=True, iterations=2), 1e-5),
    "acp-sgd": Promise(ACPSGD(4), ACPSGD(400, always=True), 1e-5, square=True),
    "gradzip": Promise(GradZip(4), GradZip(400, always=True, regularization=0.0), 1e-3, square=True),
    "gradzip float16": Promise(GradZip(4, dtype="float16"), rounding=5e-3),
    "gradzip moving": Promise(GradZip(4, average=0.5, relative=True)),
    "gradna": Promise(GradNA(4), GradNA(400, always=True, regularization=0.0), 1e-5, square=True),
    "sparcml": Promise(SparCML(TopK(0.05)), SparCML(TopK(1.0)), off=ESTIMATED),
    "sparcml dense sums": Promise(SparCML(TopK(0.3), switch=0.4), SparCML(DGC(1.0)), off=ESTIMATED),
    "lossless frames": Promise(Frames(), Frames(), off=ESTIMATED),
    "int8": Promise(NAMED_PLANS["int8"].compressor, off=ESTIMATED),
    "int4": Promise(NAMED_PLANS["int4"].compressor, off=ESTIMATED),
    "blockwise 2 bits": Promise(Blockwise(2, block=50), off=ESTIMATED),
    "blockwise 3 bits": Promise(Blockwise(3), off=ESTIMATED),
    "fp8": Promise(NAMED_PLANS["fp8"].compressor, Frames(23), off=ESTIMATED),
    "example of the contract": Promise(shown_in(contract, "A complete compressor").MeanSign()),
}


def is_described(name: str) -> bool:
    """Tell whether a page about algorithms names a compressor or a controller."""
    pages = [path for path in (ROOT / "docs/algorithms").glob("*.md") if path.name != "writing.md"]
    return any(re.search(rf"\b{name}\b", path.read_text()) for path in pages)


def gradients_at(
    step: int,
    size: int,
    *,
    scale: float = 0.01,
    shapes: Mapping[str, Sequence[int]] = SHAPES,
    dtype: torch.dtype = torch.float32,
) -> list[dict[str, torch.Tensor]]:
    """Return each rank's gradients of a step, by name: what all have in common, and noise."""
    common = torch.Generator().manual_seed(step)
    shared = {name: torch.randn(*shape, generator=common) * scale for name, shape in shapes.items()}
    gradients = []
    for rank in range(size):
        generator = torch.Generator().manual_seed(1000 * step + rank + 1)
        gradients.append(
            {
                name: (value + torch.randn(value.shape, generator=generator) * scale).to(dtype)
                for name, value in shared.items()
            }
        )
    return gradients


def mean_of(gradients: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return what dense training would use, added up in the order of ranks."""
    totals = {name: value.clone() for name, value in gradients[0].items()}
    for other in gradients[1:]:
        for name, value in other.items():
            totals[name] += value
    return {name: total / len(gradients) for name, total in totals.items()}


Averages = dict[str, torch.Tensor]


def run(plan: CompressionPlan | Compressor, size: int, steps: int, **options: Any) -> tuple[Simulation, list[Averages]]:
    """Return a simulation after some steps, and the averages of each. Asserts that all ranks have the same."""
    simulation = Simulation(size, plan)
    return simulation, [one_step(simulation, step, **options) for step in range(steps)]


def one_step(simulation: Simulation, step: int, **options: Any) -> dict[str, torch.Tensor]:
    """Return the averages of one more step."""
    by_rank = simulation.average(gradients_at(step, len(simulation.ranks), **options))
    for other in by_rank[1:]:
        assert all(same(other[name], by_rank[0][name]) for name in other)
    return by_rank[0]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare values, NaN where NaN is, and dtype and shape."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())


def norm(tensor: torch.Tensor) -> float:
    """Return the L2 norm, in double precision."""
    return float(torch.linalg.vector_norm(tensor.double()))
