"""Dumps that a recorder wrote, as a report shows them: how well each step compresses, exactly and by the rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from .. import codec
from ..dtypes import BY_NAME
from ..errors import Unsupported, number_of
from ..files import open_source, plan_file
from ..format.ladders import FINE_LADDER
from ..recorder import GRAD, PARAM, Dump, read_dump
from ..tensors import values_of
from ..truncation.optimizers import levels_for, view_from_dump
from .charts import Curve, column_chart, line_chart
from .distributions import entropy
from .page import Page

NEAR_LOSSLESS = "near-lossless"
#: A gradient larger than this is measured by its first values.
MAX_VALUES = 1 << 22


@dataclass
class StepSizes:
    """A recorded step, compressed.

    Attributes:
        step: Its number.
        bytes_in: Bytes of values that were measured, by kind of tensor: ``grad``, ``param`` and kinds of state.
        bytes_out: What they took, lossless; under ``NEAR_LOSSLESS``: the gradients by the optimizer's rule.
        entropy: Bits per exponent of each kind.
        levels: Values of gradients at each level of the fine ladder.
    """

    step: int
    bytes_in: dict[str, int] = field(default_factory=dict)
    bytes_out: dict[str, int] = field(default_factory=dict)
    entropy: dict[str, float] = field(default_factory=dict)
    levels: dict[int, int] = field(default_factory=dict)


def dumps_below(folder: Path) -> dict[str, list[Path]]:
    """Return the dumps in a folder and below, in the order of their names, by folder and by what precedes the step."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*step-*.safetensors")):
        source = open_source(path)
        try:
            plan = plan_file(path.name, source)
            if plan.metadata.get("format", "").startswith("gcodec-dump-"):
                name = (path.parent / path.name.partition("step-")[0]).relative_to(folder).as_posix().rstrip("-")
                found.setdefault(name, []).append(path)
        finally:
            source.close()
    return found


def measure_dump(path: Path) -> StepSizes:
    """Compress a dump's tensors by kind, and its gradients by the optimizer's rule, too.

    Raises:
        GcodecError: It is damaged, or no dump.
    """
    dump = read_dump(path)
    sizes, counts = StepSizes(dump.step), dict[str, np.ndarray]()
    for key in dump.keys:
        kind, _, name = key.partition("/")
        tensor = dump.tensor(key)
        values = values_of(tensor)
        dtype = BY_NAME.get(values.dtype.name)
        if dtype is None or values.bits.size < 2:
            continue
        bits = values.bits.reshape(-1)[:MAX_VALUES]
        _count(sizes, kind, bits.nbytes, len(codec.encode(bits, dtype=dtype.name)))
        fields = (bits >> bits.dtype.type(dtype.mantissa_bits)).astype(np.int64) & ((1 << dtype.exponent_bits) - 1)
        counts[kind] = counts.get(kind, np.zeros(2048, np.int64)) + np.bincount(fields, minlength=2048)
        if kind == GRAD and dtype.name in FINE_LADDER:
            _add_near_lossless(sizes, dump, name, bits, dtype.name)
    sizes.entropy = {kind: entropy(count) for kind, count in counts.items()}
    return sizes


def _add_near_lossless(sizes: StepSizes, dump: Dump, name: str, bits: np.ndarray, dtype: str) -> None:
    try:
        view = view_from_dump(dump.optimizer, dump.hyper(name), dump.state(name))
        levels = levels_for(view, dump.param(name), dump.grad(name)).reshape(-1)[: bits.size]
    except Unsupported:  # an optimizer without a rule
        return
    ladder = FINE_LADDER[dtype]
    _count(sizes, NEAR_LOSSLESS, bits.nbytes, len(codec.encode(bits, dtype=dtype, levels=levels, ladder=ladder)))
    for level, count in enumerate(np.bincount(levels, minlength=len(ladder.drops))):
        sizes.levels[ladder.drops[level]] = sizes.levels.get(ladder.drops[level], 0) + int(count)


def _count(sizes: StepSizes, kind: str, before: int, after: int) -> None:
    sizes.bytes_in[kind] = sizes.bytes_in.get(kind, 0) + before
    sizes.bytes_out[kind] = sizes.bytes_out.get(kind, 0) + after


def add_dumps(page: Page, name: str, steps: list[StepSizes]) -> None:
    """Add the recorded steps of one run, which is in the folder or under the prefix ``name``."""
    many = number_of(len(steps), "dump")
    note = f"{many}, compressed for this page: each tensor by itself, up to {MAX_VALUES:,} values of it."
    page.heading(f"Recorded steps, {name}", note)
    page.charts(_charts(steps))


def _charts(steps: list[StepSizes]) -> Iterator[str]:
    found = {kind for step in steps for kind in step.bytes_in}
    ends = {GRAD: 0, PARAM: 1, NEAR_LOSSLESS: 3}
    kinds = sorted(found, key=lambda kind: (ends.get(kind, 2), kind))
    names = {GRAD: "gradients", PARAM: "parameters"}
    ratios, bits = [], []
    for kind in kinds:
        there = [step for step in steps if kind in step.bytes_in]
        ratios.append(Curve(names.get(kind, kind), [(s.step, s.bytes_in[kind] / s.bytes_out[kind]) for s in there]))
        bits.append(Curve(names.get(kind, kind), [(s.step, s.entropy[kind]) for s in there if kind in s.entropy]))
    yield line_chart(
        "Ratio", ratios, "step", "Lossless, by kind of tensor; near-lossless: gradients by the optimizer's rule."
    )
    yield line_chart("Bits per exponent", bits, "step", "Entropy of the exponents of all tensors of a kind.")
    drops = sorted({drop for step in steps for drop in step.levels})
    if drops:
        totals = {drop: sum(step.levels.get(drop, 0) for step in steps) for drop in drops}
        whole = sum(totals.values()) or 1
        yield column_chart(
            "Levels of gradients",
            {drop: 100 * count / whole for drop, count in totals.items()},
            "mantissa bits dropped",
            "% of values, over all steps, at each level of the fine ladder.",
        )
        means = [
            (step.step, sum(drop * n for drop, n in step.levels.items()) / max(sum(step.levels.values()), 1))
            for step in steps
            if step.levels
        ]
        yield line_chart("Mantissa bits dropped, mean", [Curve("mean", means)], "step", "By the optimizer's rule.")
