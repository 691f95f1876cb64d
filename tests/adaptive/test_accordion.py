"""The laws of Accordion: when a regime is critical, and what it sends then."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from gcodec.adaptive import Accordion, ranks
from gcodec.averaging.simulate import run_conversations
from gcodec.compressors import TopK
from tests.adaptive.simulated_ranks import of
from tests.support.compressor_settings import gradients_at, mean_of, norm

pytestmark = pytest.mark.usefixtures("one_thread")


def accordion(**options):
    controller = Accordion(TopK(0.5), TopK(0.01), **options)
    controller.start({"a": (10, 10), "b": (10, 10)}, 2)
    return controller


def test_accordion_calls_a_regime_critical_where_norms_change_by_half():
    controller = accordion()
    assert controller.settings(0, None) == {"a": TopK(0.5), "b": TopK(0.5)}
    controller.apply([1.0, 1.0])  # nothing to compare with
    assert controller.settings(1, None) == {"a": TopK(0.5), "b": TopK(0.5)}
    controller.apply([0.51, 0.5])
    assert controller.settings(2, None) == {"a": TopK(0.01), "b": TopK(0.5)}
    controller.apply([0.76, 0.76])
    assert controller.critical == {"a": False, "b": True}
    controller.apply([0.77, math.nan])
    assert controller.critical == {"a": False, "b": True}


def test_accordion_is_critical_to_the_end_of_a_period_in_which_the_rate_fell():
    controller = accordion(drop=0.1)
    for _ in range(2):
        controller.apply([1.0, 1.0])
    assert controller.settings(0, 1.0)["a"] == TopK(0.01)
    assert controller.settings(1, 0.95)["a"] == TopK(0.01)  # falls, but not by a tenth
    assert controller.settings(2, 0.1)["a"] == TopK(0.5)
    assert controller.settings(3, 0.1)["a"] == TopK(0.5)
    controller.apply([1.0, 1.0])
    assert controller.settings(4, 0.1)["a"] == TopK(0.01)
    assert controller.settings(5, 1.0)["a"] == TopK(0.01)  # rises


@pytest.mark.parametrize("source", ["average", "own", "reduced"])
def test_accordion_on_ranks_compresses_harder_while_gradients_stay_the_same(source):
    """Gradients that stay the same are no critical regime; ten times as large they are one."""
    controller = Accordion(TopK(1.0), TopK(0.5), period=2, source=source)
    group = ranks(2, TopK(0.1), controller)
    gradients, settings = gradients_at(0, 2), []
    for step in range(10):
        scaled = [{name: one * (10 if step >= 6 else 1) for name, one in own.items()} for own in gradients]
        run_conversations([rank.average(own) for rank, own in zip(group, scaled, strict=True)])
        settings.append(group[0].averager.compressors["linear"])
        assert of(group).state_dict() == of(group[1:]).state_dict()
    assert settings == [TopK(1.0)] * 4 + [TopK(0.5)] * 4 + [TopK(1.0)] * 2
    if source == "reduced":
        exact = norm(mean_of(gradients)["linear"]) * 10
        assert of(group).norms["linear"] == pytest.approx(exact, rel=1e-5)
