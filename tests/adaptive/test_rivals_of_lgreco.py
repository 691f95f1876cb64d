"""The laws of what the L-GreCo paper compares with: clusters of tensors, and one threshold for all of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from gcodec.adaptive import (
    GlobalThreshold,
    HardThreshold,
    KMeans,
)
from gcodec.adaptive.families import errors_of
from gcodec.adaptive.kmeans import k_means
from gcodec.compressors import QSGD, TopK
from gcodec.errors import InvalidArgument
from tests.adaptive.uneven_model import MODEL, gradients

pytestmark = pytest.mark.usefixtures("one_thread")


def test_clusters_may_hold_empty_tensors():
    controller = KMeans(TopK(0.05), (TopK(0.2), TopK(0.02)))
    means = {"empty": torch.zeros(0, 4), "full": torch.ones(40, 50)}
    controller.start({name: tuple(mean.shape) for name, mean in means.items()}, 1)
    controller.apply(controller.decide(means))
    assert all(isinstance(setting, TopK) for setting in controller.settings(0, None).values())


def test_the_reference_of_clusters_stays_in_force_until_gradients_are_finite():
    controller = KMeans(QSGD(4), (QSGD(6), QSGD(3)))
    controller.start(MODEL, 2)
    bad = {**gradients(), "b": gradients()["b"] * math.nan}
    controller.apply(controller.decide(bad))
    assert set(controller.settings(1, None).values()) == {QSGD(4)}
    controller.apply(controller.decide(gradients()))
    before = controller.choices
    assert len(before) == len(MODEL)
    controller.apply(controller.decide(bad))
    assert controller.choices == before


def test_k_means_finds_separate_clusters():
    random = np.random.default_rng(0)
    middles = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = np.concatenate([middle + random.normal(size=(20, 2)) for middle in middles])
    clusters, centers = k_means(points, 3)
    for number in range(3):
        assert len(set(clusters[20 * number : 20 * number + 20])) == 1
    assert len(set(clusters)) == 3
    assert np.abs(np.sort(centers.sum(1)) - [0, 10, 10]).max() < 1
    assert len(k_means(np.zeros((4, 2)), 3)[1]) == 1


def test_kmeans_compresses_large_tensors_of_little_error_most():
    ranked = (TopK(0.2), TopK(0.1), TopK(0.02))
    controller = KMeans(TopK(0.05), ranked)
    shapes = {"small": (10, 10), "also small": (12, 10), "large": (300, 300), "also large": (280, 300)}
    controller.start(shapes, 2)
    assert controller.settings(0, None) == dict.fromkeys(shapes, TopK(0.05))
    means = {name: torch.randn(*shape, generator=torch.Generator().manual_seed(1)) for name, shape in shapes.items()}
    means["large"], means["also large"] = means["large"] ** 7, means["also large"] ** 7
    controller.apply(controller.decide(means))
    settings = controller.settings(1, None)
    assert settings["large"] == settings["also large"] == TopK(0.02)
    assert TopK(0.02) not in (settings["small"], settings["also small"])
    means["small"] *= math.nan
    assert controller.decide(means) == controller.choices
    with pytest.raises(InvalidArgument):
        KMeans(TopK(0.05), ())


def test_one_global_threshold_keeps_the_density_that_was_asked_for():
    controller = GlobalThreshold(TopK(0.02))
    controller.start(MODEL, 2)
    assert controller.settings(0, None)["a"] == TopK(0.02)
    controller.apply(controller.decide(gradients()))
    settings: dict[str, Any] = {**controller.settings(1, None)}
    assert len(set(settings.values())) == 1
    counts = {name: len(settings[name].select(item.reshape(-1), {}, None)) for name, item in gradients().items()}
    n = sum(math.prod(shape) for shape in MODEL.values())
    assert sum(counts.values()) == pytest.approx(0.02 * n, rel=0.05)
    assert counts["a"] > 10 * counts["c"] / math.prod(MODEL["c"])
    assert controller.decide({name: item * 9 for name, item in gradients().items()}) == [controller.found]
    with pytest.raises(InvalidArgument):
        GlobalThreshold(TopK(0.02), threshold=0.0)
    assert GlobalThreshold(TopK(0.02), threshold=0.5).found == 0.5


def test_a_given_threshold_stays_in_force_when_a_run_is_resumed_that_had_found_another():
    before = GlobalThreshold(TopK(0.02))
    before.start(MODEL, 2)
    before.apply(before.decide(gradients()))
    for threshold, wanted in ((None, before.found), (2 * before.found, 2 * before.found)):
        after = GlobalThreshold(TopK(0.02), threshold=threshold)
        after.start(MODEL, 2)
        after.load_state_dict(before.state_dict())
        assert after.found == wanted


def test_a_global_threshold_of_empty_tensors_is_left_open():
    controller = GlobalThreshold(TopK(0.02))
    controller.start({"empty": (0, 4)}, 1)
    controller.apply(controller.decide({"empty": torch.zeros(0, 4)}))
    assert controller.settings(1, None) == {"empty": TopK(0.02)}


def test_a_hard_threshold_sends_the_values_that_reach_it():
    tensor = torch.tensor([[0.1, -2.0, 3.0], [0.0, 1.0, -0.5]])
    outcome = HardThreshold(threshold=1.0, density=0.5).decompressed(tensor)
    assert outcome.contribution.tolist() == [[0, -2, 3], [0, 1, 0]]
    outcome = HardThreshold(threshold=9.0, density=0.5).decompressed(tensor)
    assert outcome.contribution.tolist() == [[0, 0, 3], [0, 0, 0]]
    assert errors_of([HardThreshold(threshold=1.0, density=0.5)], tensor)[0] == pytest.approx(0.26)  # not top-k's
    assert torch.equal(HardThreshold(threshold=0.0, density=1.0).decompressed(tensor).contribution, tensor)
    with pytest.raises(InvalidArgument):
        HardThreshold(0.5, threshold=-1.0)
