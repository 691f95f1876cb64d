"""Names of controllers that stand in checkpoints, or that ranks compare, do not change with the code's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import gcodec.adaptive
from gcodec.adaptive import Accordion, Controller, GlobalThreshold, GraVAC, KMeans, LGreCo, gravac_bits
from gcodec.compressors import TopK
from gcodec.errors import InvalidArgument
from tests.support.compressor_settings import is_described
from tests.support.controller_settings import is_controller

CONTROLLERS: dict[str, Controller] = {
    "Accordion": Accordion(TopK(0.1), TopK(0.01)),
    "GraVAC": GraVAC(TopK(0.1)),
    "LGreCo": LGreCo(TopK(0.1)),
    "KMeans": KMeans(TopK(0.1), (TopK(0.2), TopK(0.05))),
    "GlobalThreshold": GlobalThreshold(TopK(0.1)),
}
KEYS = {
    "Accordion": ["kind", "norms", "critical", "rate", "dropped"],
    "GraVAC": ["kind", "floor", "candidate", "step", "ideal", "gains", "anew", "throughputs", "log"],
    "LGreCo": ["kind", "choices"],
    "KMeans": ["kind", "choices"],
    "GlobalThreshold": ["kind", "found"],
}


def test_every_public_controller_is_here_and_has_its_page():
    public = {value for name in gcodec.adaptive.__all__ if is_controller(value := getattr(gcodec.adaptive, name))}
    assert public - set(map(type, CONTROLLERS.values())) == set()
    assert CONTROLLERS.keys() == KEYS.keys()
    assert [kind for kind in KEYS if not is_described(kind)] == []


@pytest.mark.parametrize("kind", CONTROLLERS)
def test_controllers_states_have_the_keys_that_checkpoints_have(kind):
    controller = CONTROLLERS[kind]
    controller.start({"x": (60, 70)}, 2)
    state = controller.state_dict()
    assert list(state) == KEYS[kind]
    assert state["kind"] == type(controller).kind == kind
    if isinstance(controller, LGreCo | KMeans):
        controller.choices = [0]
        assert list(controller.state_dict()) == [*KEYS[kind], "chosen"]


def test_a_controller_without_kind_is_saved_by_the_name_of_its_class():
    class Milder(Accordion):
        pass

    milder = Milder(TopK(0.1), TopK(0.01))
    milder.start({"x": (60, 70)}, 2)
    assert milder.state_dict()["kind"] == "Milder"
    with pytest.raises(InvalidArgument):
        milder.load_state_dict({**milder.state_dict(), "kind": "Accordion"})


def test_controllers_have_the_reprs_that_ranks_compare():
    top = "TopK(density=0.1, mantissa_bits=None, sample=None, least=100, most=1.5, seed=0)"
    assert repr(GraVAC(TopK(0.1))) == (
        f"GraVAC(compressor={top}, least=10.0, most=1000.0, epsilon=0.7, window=500, omega=0.01, "
        "policy=Exponential(base=2.0), weight=None, denominator='fed', metric='squared', nested=True, dense=Dense(), "
        "settle=False)"
    )
    assert repr(gravac_bits((3, 1))).endswith(
        "policy=Listed(values=(3.2,)), weight=None, denominator='fed', "
        "metric='squared', nested=True, dense=Frames(bits=None, optimizer=None), "
        "settle=False)"
    )
    assert repr(Accordion(TopK(0.1), TopK(0.1))) == (
        f"Accordion(mild={top}, harsh={top}, period=100, threshold=0.5, drop=0.0, source='average')"
    )
    assert repr(LGreCo(TopK(0.1))) == (
        f"LGreCo(reference={top}, range=Range(below=2.0, above=2.0, share=10, least=None, most=None), others=(), "
        "cost=Bytes(dtype=torch.float32), period=500, bins=10000, metric='squared', method='auto', steps=5, warmup=0, "
        "accordion=None, source='average')"
    )
    assert (
        repr(KMeans(TopK(0.1), (TopK(0.1),))) == f"KMeans(reference={top}, ranked=({top},), period=500, "
        "source='average')"
    )
    assert repr(GlobalThreshold(TopK(0.1))) == f"GlobalThreshold(initial={top}, threshold=None, period=1, source='own')"
