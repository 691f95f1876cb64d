"""The law between the two designs of a reduction, of pieces in CPU memory and of whole parts on devices: the same bits
(docs/contributing/decisions, number 12). Ranks are threads, and the device's codec is the host's."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

import gcodec.distributed as gd
from gcodec.distributed.gradients import Gradients
from gcodec.distributed.modes import Mode
from gcodec.distributed.reduction import gpu_coder, gpu_jobs, gpu_levels, partition
from gcodec.distributed.reduction.allreduce import reduction_of
from gcodec.distributed.reduction.gpu_reduce import GpuReduction, GpuScatter
from gcodec.distributed.reduction.reduce import Reduction
from gcodec.distributed.reduction.reduce_request import ReduceRequest
from gcodec.distributed.reduction.scatter import Scatter
from gcodec.distributed.stats import Counters
from tests.distributed import thread_ranks
from tests.distributed.gpu_allreduce_cases import CODEC
from tests.distributed.rank_basics import dense_sum, same_bits, values_at
from tests.support.covering import each_pair

OPTIMIZERS = {"SGD": {"lr": 0.1, "momentum": 0.9}, "AdamW": {"lr": 0.01}, "Adagrad": {"lr": 0.1}}


def reduced(
    terms: list[torch.Tensor], mode: Mode, gradients: Gradients | None, mean: bool, scatters: bool, on_device: bool
) -> list[torch.Tensor]:
    """Return the result of every rank, by one of the two designs."""
    n_values, n_ranks = len(terms[0]), len(terms)

    def reduce(lane: thread_ranks.ThreadLane) -> torch.Tensor:
        result = torch.empty(n_values // n_ranks if scatters else n_values, dtype=terms[0].dtype)
        request = ReduceRequest(lane, terms[lane.rank].clone(), result, mode, mean, Counters(), gradients)
        if on_device:
            made = gpu_jobs._reduction(request, None, GpuScatter if scatters else GpuReduction)
            made.run(gpu_coder.side_stream_of(result.device)).finish()
        else:
            reduction_of(request, None, 1, Scatter if scatters else Reduction).run()
        return result

    return [result for result, *_ in thread_ranks.run(n_ranks, reduce)]


def by_both(
    terms: list[torch.Tensor], mode: Mode, gradients: Gradients | None, mean: bool, scatters: bool, n_pieces: int
) -> list[list[torch.Tensor]]:
    """Return the results in CPU memory, of so many pieces at most, and those on devices."""
    with (
        mock.patch.object(partition, "MIN_PIECE", max(len(terms[0]) // n_pieces, 1)),
        mock.patch.object(gpu_coder, "gpu", CODEC),
        mock.patch.object(gpu_levels, "gpu", CODEC),
    ):
        return [reduced(terms, mode, gradients, mean, scatters, on_device) for on_device in (False, True)]


def rows_of_a_template(who: int, n_values: int) -> torch.Tensor:
    """Return what a rank brings, of rows that are multiples of one row, which frames from the host predict."""
    n_rows = n_values // 512
    scales = values_at(who, n_rows, torch.float32)[:, None]
    return (100 * scales * values_at(99, 512, torch.float32)).view(-1)


@st.composite
def buffers(draw: st.DrawFn) -> tuple[list[torch.Tensor], Mode, Gradients | None, bool]:
    """Draw each rank's values, the mode, the parameters, and whether ranks keep their own parts only."""
    kinds = ["normal", "sparse", "special", "extreme"]
    n_ranks, dtype = (
        draw(st.sampled_from([3, 2, 5])),
        draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16])),
    )
    kind, scatters = draw(st.sampled_from(kinds)), draw(st.booleans())
    n_values = draw(st.sampled_from([70_001, 20_000, 3_000, 50, 1, 0])) + draw(st.integers(0, 140))
    n_values -= n_values % n_ranks if scatters else 0
    terms = [values_at(who, n_values, dtype, kind) for who in range(n_ranks)]
    how = draw(st.sampled_from(["lossless", "fixed"] if scatters or not n_values else ["lossless", "fixed", "near"]))
    if how == "lossless":
        return terms, gd.Lossless(), None, scatters
    if how == "fixed":
        return terms, gd.FixedBits(draw(st.integers(1, 12))), None, scatters
    first = draw(st.integers(0, n_values))
    params = [torch.nn.Parameter(torch.randn(n) * 0.1) for n in (first, n_values - first) if n]
    name = draw(st.sampled_from(sorted(OPTIMIZERS)))
    made: Any = getattr(torch.optim, name)(params, **OPTIMIZERS[name])
    if draw(st.booleans()):  # else the optimizer has no state yet
        for param in params:
            param.grad = torch.randn(param.shape) * 0.01
        made.step()
    return terms, gd.NearLossless(made), Gradients.of(params, n_values), scatters


@given(buffers(), st.booleans(), st.integers(1, 20))
def test_a_reduction_on_devices_has_the_bits_of_one_in_cpu_memory(drawn, mean, n_pieces):
    terms, mode, gradients, scatters = drawn
    here, there = by_both(terms, mode, gradients, mean, scatters, n_pieces)
    assert all(map(same_bits, here, there))
    assert scatters or all(same_bits(here[0], other) for other in here)


@each_pair(how=("lossless", "fixed", "near"), n_ranks=(2, 3))
def test_of_predicted_rows_near_lossless_sums_alone_are_closer_in_cpu_memory(how, n_ranks):
    """Only the host writes predicted blocks, which keep all bits of values."""
    terms = [rows_of_a_template(who, 512 * 256) for who in range(n_ranks)]
    param = torch.nn.Parameter(10 * values_at(98, 512 * 256, torch.float32).view(256, 512))
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    param.grad = values_at(97, 512 * 256, torch.float32).view(256, 512)
    optimizer.step()
    modes: dict[str, Mode] = {"lossless": gd.Lossless(), "fixed": gd.FixedBits(5), "near": gd.NearLossless(optimizer)}
    here, there = by_both(terms, modes[how], Gradients.of([param], len(terms[0])), True, False, 1)
    wanted = dense_sum(terms, True).double()
    for ours, theirs in zip(here, there, strict=True):
        assert same_bits(ours, here[0]) and same_bits(theirs, there[0])
        if how == "near":
            assert float((ours - wanted).abs().sum()) < float((theirs - wanted).abs().sum())
        else:
            assert same_bits(ours, theirs)
