"""The laws of levels by the optimizers' rules, and of histograms for fresh codebooks: they are the host's."""

from __future__ import annotations

from typing import Any

import numpy as np

import gcodec
from gcodec import FINE_LADDER, PAPER_LADDER, Ladder
from gcodec.dtypes import BY_NAME
from gcodec.format import modes as bit_layouts
from gcodec.gpu import encoder, kernel_tables, level_choice
from gcodec.gpu.encoder import GpuSource
from gcodec.kernels.cuda.launch_tables import Tensors
from gcodec.kernels.cuda.native import counter_for
from gcodec.plan.codebooks import window_of
from gcodec.plan.sampling import SampleSource, take_sample
from gcodec.tensors import kernel_view
from gcodec.truncation.evaluate import Policy
from gcodec.truncation.optimizers import NUMBERS, levels_for, view_from_dump
from tests.gpu.host_library import HostThreads
from tests.gpu.native_laws.law_table import CODING, TYPES, law, outcome
from tests.support import laws
from tests.support.cases import CASES
from tests.support.encode_modes import levels_at_random


@law
def histograms(memory: HostThreads, effort: int) -> None:
    """Counts of heads for a fresh codebook: what the host's sample counts of the same sub-streams."""
    for case in CASES:
        if case.dtype not in TYPES:
            continue
        dtype, bits = BY_NAME[case.dtype], case.bits.reshape(-1).copy()
        ladder = FINE_LADDER[case.dtype]
        for bit_layout, n in ((bit_layouts.lossless(dtype), 1), (bit_layouts.ladder(dtype, ladder), len(ladder.drops))):
            levels = levels_at_random(bits, n) if n > 1 else None
            source = GpuSource(bits, bits.size, bits.shape, levels)
            span = encoder.span_of(memory, [source], dtype)
            table = encoder.table_of([source.n], span.places, dtype, None)
            tensors = Tensors(span.values, span.levels, table.rows, table.owner)
            window, center = window_of(n)
            counts = np.zeros((1, 2 + n * window), np.uint32)
            form = kernel_tables.value_coding_of(dtype, n, len(bit_layout.widths), None, False)
            counter = counter_for(dtype.bits)
            memory.launch(
                counter,
                table.n_blocks,
                tensors,
                form,
                kernel_tables.drops_of(bit_layout),
                np.uint32(window),
                np.uint32(center),
                counts,
            )
            if bits.size:
                graded = np.zeros(0, np.uint8) if levels is None else levels
                sample = take_sample(SampleSource(kernel_view(bits), graded, n, 1 << 14), dtype, 256, every=1)
                assert np.array_equal(counts[0], sample.by_stream.sum(axis=0)), case


#: Rules by name: optimizer, hyperparameters, which state there is.
RULES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "SGD": ("SGD", {"lr": 0.1, "weight_decay": 1e-3}, {}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {"momentum_buffer": "any"}),
    "momentum, first step": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}, {}),
    "Nesterov": ("SGD", {"lr": 0.3, "momentum": 0.9, "nesterov": True}, {"momentum_buffer": "any"}),
    "no step": ("SGD", {"lr": 0.0, "momentum": 0.9}, {"momentum_buffer": "any"}),
    "Adagrad": ("Adagrad", {"lr": 0.01, "lr_decay": 0.1, "weight_decay": 1e-2}, {"step": 7.0, "sum": "square"}),
    "Adagrad, first step": ("Adagrad", {"lr": 0.01, "initial_accumulator_value": 0.1}, {}),
    "RMSprop": ("RMSprop", {"lr": 0.01, "weight_decay": 1e-3, "maximize": True}, {"square_avg": "square"}),
    "RMSprop, momentum": ("RMSprop", {"lr": 0.01, "momentum": 0.8}, {"square_avg": "square", "momentum_buffer": "any"}),
    "Adam": ("Adam", {"lr": 1e-3, "weight_decay": 1e-2}, {"step": 3.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "AMSGrad": (
        "Adam",
        {"lr": 1e-2, "amsgrad": True},
        {"step": 3.0, "exp_avg": "any", "exp_avg_sq": "square", "max_exp_avg_sq": "square"},
    ),
    "AdamW": ("AdamW", {"lr": 1e-3}, {"step": 40.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "AdamW, first step": ("AdamW", {"lr": 1e-3}, {}),
    "NAdam": (
        "NAdam",
        {"lr": 1e-3, "weight_decay": 1e-2},
        {"step": 3.0, "mu_product": 0.1, "exp_avg": "any", "exp_avg_sq": "square"},
    ),
    "RAdam": ("RAdam", {"lr": 1e-3}, {"step": 40.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "RAdam, not rectified": ("RAdam", {"lr": 1e-3}, {"step": 2.0, "exp_avg": "any", "exp_avg_sq": "square"}),
    "Adamax": (
        "Adamax",
        {"lr": 1e-3, "weight_decay": 1e-2},
        {"step": 3.0, "exp_avg": "any", "exp_inf": "square"},
    ),
    "Adadelta": ("Adadelta", {"lr": 1.0, "weight_decay": 1e-2}, {"square_avg": "square", "acc_delta": "square"}),
    "ASGD": ("ASGD", {"lr": 0.1, "weight_decay": 1e-3}, {"eta": 0.07}),
}


def as_type(x: np.ndarray, name: str) -> np.ndarray:
    """Return float32 values in another type, bfloat16 as bits."""
    with np.errstate(over="ignore"):
        return (x.view(np.uint32) >> 16).astype(np.uint16) if name == "bfloat16" else x.astype(name)


def floats_of_all_kinds(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return float32 values of many sizes, zeros, denormals, infinities and NaN."""
    x = rng.choice([-1.0, 1.0], n) * np.exp2(rng.uniform(-30, 4, n)) * (rng.random(n) > 0.1)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 2.0**-126, 6e-5, 3e-8, 1.0, -1.0], np.float32)
    x[: n // 6] = rng.choice(odd, n // 6)
    return rng.permutation(x).astype(np.float32)


@law
def levels_by_the_rules(memory: HostThreads, effort: int) -> None:
    """Levels of every optimizer, before and after its first step, in every type, are the host's, bit for bit; also
    those of tensors of any sizes in one call."""
    rng = np.random.default_rng(8)
    sizes = (16500, 1, 0, 300)
    plain, mixed = [("float32",) * 3], [("bfloat16", "bfloat16", "float32"), ("float16", "float32", "float16")]
    every = ("momentum", "RMSprop, momentum", "AMSGrad", "Adamax", "Adadelta")  # one for each kernel
    ladders: dict[str, tuple[Ladder | None, ...]] = {
        name: (None, PAPER_LADDER[name], Ladder((0, 2, 7)), Ladder((3,))) for name in TYPES
    }
    ladders["float32"] += (Ladder(tuple(range(16))),)
    for number, (title, (name, hyper, state)) in enumerate(RULES.items()):
        for grad_type, param_type, state_type in plain + (mixed if title in every else []):
            asked = []
            for n in sizes:
                kept = {
                    key: value
                    if key in NUMBERS
                    else as_type(
                        abs(floats_of_all_kinds(rng, n)) if value == "square" else floats_of_all_kinds(rng, n),
                        state_type,
                    )
                    for key, value in state.items()
                }
                grad, param = floats_of_all_kinds(rng, n) / 64, floats_of_all_kinds(rng, n)
                asked.append(
                    level_choice.LevelRequest(
                        as_type(grad, grad_type), as_type(param, param_type), view_from_dump(name, hyper, kept)
                    )
                )
            for ladder in ladders[grad_type][number % 2 :: 2]:
                policy = Policy(ladder, number % 3 > 0, 1.5, 4.0)
                waited = memory.waited
                result = level_choice.choose(memory, asked, policy)
                assert memory.waited == waited
                for one, own in zip(asked, result, strict=True):
                    expected = levels_for(
                        one.known,
                        one.param,
                        one.grad,
                        ladder=ladder,
                        in_group=policy.in_group,
                        scale=1.5,
                        loss_scale=4.0,
                    )
                    assert np.array_equal(own, expected), (title, grad_type, param_type, ladder)
    far = view_from_dump("SGD", {"lr": 1e-40}, {})
    x = np.ones(3, np.float32)
    asked = [level_choice.LevelRequest(x, x, far)]
    laws.check_refused(gcodec.Unsupported, lambda: level_choice.choose(memory, asked, Policy()))
    known = view_from_dump("SGD", {"lr": 0.1}, {})
    for wrong in (x[:2], x.astype(np.float64)):
        kind = gcodec.InvalidArgument if wrong.size == 2 else gcodec.Unsupported
        asked = [level_choice.LevelRequest(x, wrong, known)]
        laws.check_refused(kind, lambda: level_choice.choose(memory, asked, Policy()))  # noqa: B023 (runs now)


@law
def gradients_from_levels_to_values(memory: HostThreads, effort: int) -> None:
    """All that a near-lossless frame takes, from a rule to the values again, by these kernels alone."""
    rng = np.random.default_rng(15)
    for name in TYPES:
        dtype, layout = BY_NAME[name], bit_layouts.ladder(BY_NAME[name], FINE_LADDER[name])
        values = rng.standard_normal((2, 40_000)).astype(np.float32)
        grad, param = as_type(values[0] / 100, name), as_type(values[1], name)
        known = view_from_dump("SGD", {"lr": 0.1}, {})
        (levels,) = level_choice.choose(memory, [level_choice.LevelRequest(grad, param, known)], Policy())
        assert len(np.unique(levels)) > 1
        bits = grad.view(dtype.uint)
        source = GpuSource(bits, bits.size, bits.shape, levels)
        shared = encoder.fit_codebook(memory, [source], dtype, layout, CODING)
        frame = bytes(encoder.encode(memory, [source], dtype, layout, True, shared, 0).frames[0])
        expected = gcodec.decode(gcodec.encode(grad, dtype=name, levels=levels, options=CODING), like="numpy")
        assert np.array_equal(outcome(memory, frame), expected.view(dtype.uint)), name
