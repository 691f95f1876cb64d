"""Compressors that keep some values: Top-k, Random-k, DGC, RedSync and SparCML."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest import mock

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from gcodec.averaging.averager import CompressionPlan
from gcodec.averaging.simulate import Simulation, run_conversations
from gcodec.compressors import DGC, Place, RandomK, RedSync, SparCML, TopK
from gcodec.compressors.contract import AllGather, Memory, alone, n_kept
from gcodec.compressors.magnitudes import BinnedMagnitudes, Magnitudes, magnitudes_in
from gcodec.compressors.outcome import SparseValues
from gcodec.compressors.randomk import random_subset
from gcodec.compressors.selection import count_above, magnitude_bits
from gcodec.compressors.sparse import unpack_sparse
from tests.support.compressor_settings import gradients_at, norm, run

pytestmark = pytest.mark.usefixtures("one_thread")


def test_topk_keeps_the_largest_values():
    gradient = gradients_at(0, 1)[0]["linear"]
    outcome = TopK(0.1).decompressed(gradient)
    left = (gradient - outcome.contribution).abs().max()
    assert outcome.indices is not None
    assert outcome.indices.numel() == 420
    assert bool((gradient.view(-1)[outcome.indices].abs() >= left).all())


@pytest.mark.parametrize(
    "setting", [TopK(0.01, sample=0.01), DGC(0.01), RedSync(0.01), RedSync(0.01, method="bisection")], ids=repr
)
@pytest.mark.parametrize("kind", ["normal", "heavy", "clustered", "mostly zero"])
def test_thresholds_keep_about_as_much_as_exact_topk(setting, kind):
    random = torch.Generator().manual_seed(5)
    values = torch.randn(400, 1000, generator=random)
    if kind == "heavy":
        values = values * torch.exp(2 * torch.randn(values.shape, generator=random))
    elif kind == "clustered":
        values[:4] *= 100
    elif kind == "mostly zero":
        values = values * (torch.rand(values.shape, generator=random) < 0.005)
    best, result = TopK(0.01).decompressed(values), setting.decompressed(values)
    limit = 2.0 if isinstance(setting, RedSync) else 1.5
    assert norm(result.contribution) >= 0.93 * norm(best.contribution)
    assert result.floats <= limit * best.floats


def test_binned_magnitudes_agree_with_counting():
    """Thresholds lie between and within the bins, for any number of values."""
    random = torch.Generator().manual_seed(0)
    flat = torch.randn(300_001, generator=random) ** 3
    flat[:5] = torch.tensor([0.0, -0.0, 1e-42, 3.5, -3.5])
    bits = magnitude_bits(flat)
    assert bits is not None
    assert isinstance(magnitudes_in(flat), BinnedMagnitudes)
    assert not isinstance(magnitudes_in(flat[:1000]), BinnedMagnitudes)
    counted, binned = Magnitudes(flat), BinnedMagnitudes(flat, bits)
    assert binned.mean == pytest.approx(counted.mean, rel=1e-5)
    assert binned.max == counted.max
    for threshold in (0.0, 1e-42, 1e-3, 0.5, 0.5009765625, 3.5, 3.5 + 1e-6, counted.max, 1e30):
        count = count_above(flat, threshold)
        assert binned.max_above(threshold) >= count
        for k in (1, count - 1, count, count + 1, count + 50, len(flat)):
            assert binned.reached(threshold, k) == (count >= k)
    for bad in (math.nan, -math.inf):
        flat[7] = bad
        assert BinnedMagnitudes(flat, bits).max == math.inf


@pytest.mark.parametrize("method", ["trimmed", "bisection"])
def test_redsync_chooses_by_histogram_what_it_chooses_by_counting(method):
    flat = torch.randn(300_001, generator=torch.Generator().manual_seed(1)) ** 3
    for density in (0.5, 0.01, 1e-5):
        setting = RedSync(density, method=method)
        result = setting.select(flat, {}, Place())
        with mock.patch("gcodec.compressors.redsync.magnitudes_in", Magnitudes):
            assert torch.equal(setting.select(flat, {}, Place()), result)


@pytest.mark.parametrize("method", ["trimmed", "bisection"])
@pytest.mark.parametrize(
    ("size", "dtype"), [(0.1, torch.float32), (0.1, torch.float64), (1e30, torch.float32), (3e38, torch.float32)]
)
def test_redsync_ends_on_equal_values_whose_mean_is_rounded_above_them(method, size, dtype):
    for n in (2000, 5000, 100_000, 200_000):
        values = torch.full((n,), size, dtype=dtype)
        indices = RedSync(0.01, method=method).decompressed(values).indices
        assert indices is not None
        assert indices.numel() == n // (50 if method == "bisection" else 100)


def test_redsync_ends_where_values_of_two_sizes_are_neighbors():
    values = torch.ones(2000, dtype=torch.float64)
    values[::10] = math.nextafter(1, 2)
    indices = RedSync(0.2, method="bisection").decompressed(values).indices
    assert indices is not None
    assert indices.numel() == 800
    assert bool(torch.isin(torch.arange(0, 2000, 10), indices).all())


def test_redsync_with_same_sign_sends_one_mean_of_alternating_sign():
    setting = RedSync(0.05, same_sign=True)
    memory: Memory = {}
    gradient = gradients_at(0, 1)[0]["linear"]
    for sign in (1, -1, 1):
        result = alone(setting.compress(gradient, memory, Place()))
        sent = result.contribution.view(-1)[result.indices]
        assert bool((sent * sign > 0).all())
        assert float(sent[0]) == pytest.approx(float(gradient.view(-1)[result.indices].mean()), rel=1e-5)
        assert result.floats == 1


@given(st.integers(1, 2000), st.floats(0.01, 1.0), st.integers(0, 100))
def test_a_random_subset_has_the_size_and_order_it_should(n, density, seed):
    k = n_kept(n, density)
    subset = random_subset(n, k, seed)
    assert subset.numel() == k
    assert bool((subset[1:] > subset[:-1]).all())
    assert int(subset[0]) >= 0
    assert int(subset[-1]) < n


def test_random_k_is_uniform_and_unbiased():
    """Each of 40 positions is kept with probability 1/4: over 4000 steps 1000 times, standard deviation 27.4. All lie
    within 5 of these with probability 1 - 40 * 5.7e-7: a false alarm in 40,000 seeds, and the seed is fixed."""
    gradient = torch.linspace(-1, 1, 40).view(8, 5)
    counts, total = torch.zeros(40), torch.zeros(8, 5, dtype=torch.float64)
    memory: Memory = {}
    for _ in range(4000):
        outcome = alone(RandomK(0.25, unbiased=True).compress(gradient, memory, Place()))
        counts[outcome.indices] += 1
        total += outcome.average
    assert bool(((counts - 1000).abs() < 5 * 27.4).all())
    deviation = gradient.double().abs() * (3 / 4000) ** 0.5
    assert bool(((total / 4000 - gradient).abs() <= 5 * deviation + 1e-9).all())


def test_names_and_seeds_alone_decide_random_choices():
    gradient = gradients_at(0, 1)[0]["linear"]
    chosen = {
        alone(replace(RandomK(0.05), seed=seed).compress(gradient, {}, Place(name=name))).indices.sum().item()
        for seed in (0, 1)
        for name in ("a", "b")
    }
    assert len(chosen) == 4
    state = torch.get_rng_state()
    run(RandomK(0.05), 2, 2)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("alike", [True, False])
def test_sparcml_hands_over_what_payload_bytes_says_and_more_where_choices_differ(size, alike):
    gradients, setting = [torch.zeros(80, 100) for _ in range(size)], SparCML(TopK(0.05))
    for rank, gradient in enumerate(gradients):  # 400 values for each rank, the same ones or others
        gradient.view(-1)[(0 if alike else rank) :: 20] = torch.randn(400, generator=torch.Generator().manual_seed(1))
    simulation = Simulation(size, CompressionPlan(setting, min_values=0))
    simulation.average([{"x": gradient} for gradient in gradients])
    share = simulation.ranks[0].total.payload_bytes / setting.payload_bytes((80, 100))
    assert share == pytest.approx(1 if alike else 2 - 1 / size, rel=0.2)


@pytest.mark.parametrize(("density", "switch", "dense"), [(0.3, 0.4, True), (0.3, 0.9, False), (0.05, 0.4, False)])
def test_sparcml_sends_sums_without_indices_from_the_density_of_its_switch_on(density, switch, dense):
    """Four ranks' 30 % are three quarters of a sum: below the switch only these values are sent, above it all."""
    gathered: list[tuple[torch.Tensor, torch.Tensor]] = []
    like = torch.zeros(1050, dtype=torch.float32)

    def overheard(conversation):
        reply = None
        try:
            while True:
                request = conversation.send(reply)
                if isinstance(request, AllGather):
                    gathered.append(unpack_sparse(request.payload, like))
                reply = yield request
        except StopIteration as end:
            return end.value

    gradients = [own["linear"] for own in gradients_at(0, 4)]
    setting = SparCML(TopK(density), switch=switch)
    run_conversations(
        [overheard(setting.compress(gradient, {}, Place(rank, 4, "x"))) for rank, gradient in enumerate(gradients)]
    )
    chosen = torch.zeros(4200, dtype=torch.bool)
    for gradient in gradients:
        chosen[gradient.flatten().abs().topk(round(density * 4200)).indices] = True
    parts = chosen.view(4, 1050).sum(1).tolist()
    assert [len(indices) for indices, _ in gathered] == ([1050] * 4 if dense else parts)
    assert all((part >= switch * 1050) == dense for part in parts)


def test_refining_a_milder_choice_of_topk_is_choosing_anew():
    """Choosing among the chosen finds what choosing among all does, for exact Top-k."""
    flat = gradients_at(0, 1)[0]["linear"].view(-1)
    coarse = TopK(0.1).select(flat, {}, Place())
    fine = TopK(0.01)
    result = fine.refine(SparseValues(coarse, flat[coarse]), flat.numel(), {}, Place())
    assert torch.equal(result.indices, fine.select(flat, {}, Place()))
    assert torch.equal(result.values, flat[result.indices])


@pytest.mark.parametrize("n_values", [0, 1, 3])
def test_refining_no_more_values_than_may_be_kept_returns_them(n_values):
    """A second choice among no more values than it may keep is the first one."""
    flat = torch.arange(float(n_values))
    chosen = SparseValues(torch.arange(n_values), flat)
    assert TopK(0.1).refine(chosen, n_values, {}, Place()).indices.numel() == min(n_values, 1)
