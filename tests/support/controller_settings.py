"""The controllers that laws run over."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from typing import Any

from gcodec.adaptive import Accordion, Controller, GlobalThreshold, GraVAC, KMeans, LGreCo, contract, gravac_bits
from gcodec.averaging.averager import CompressionPlan
from gcodec.compressors import QSGD, Frames, PowerSGD, RandomK, TopK
from tests.support.compressor_settings import shown_in

#: A line here has the laws of tests/adaptive/test_every_controller.py tested on a controller, and those of DDP's hook
#: in tests/distributed/test_adaptive.py, on real ranks. Within six steps it must change what is sent.
CONTROLLERS: dict[str, Controller] = {
    "gravac": GraVAC(TopK(0.1), 2, 32, 0.3, window=2, omega=0.0),
    "gravac random-k": GraVAC(RandomK(0.1), 1.5, 6, 0.2, window=2, omega=0.0),
    "gravac bits": gravac_bits((9, 5, 3, 1), epsilon=0.9, window=2, omega=0.0),
    "lgreco": LGreCo(PowerSGD(3), others=(TopK(0.02),), period=2, accordion=Accordion(PowerSGD(4), PowerSGD(2))),
    "accordion": Accordion(TopK(0.2), TopK(0.05), period=2, source="reduced"),
    "clusters": KMeans(QSGD(4), (QSGD(6), QSGD(3)), period=2, source="own"),
    "threshold": GlobalThreshold(TopK(0.05), period=2),
    "example of the contract": shown_in(contract, "A complete controller").Stepped(TopK(0.2), TopK(0.05), at=3),
}
#: Plans of controllers whose settings are not Top-k's.
PLANS: dict[str, CompressionPlan] = {"gravac bits": CompressionPlan(Frames())}


def decisions(controller: Any) -> dict[str, Any]:
    """Return a controller's state, but for what a clock has a part in."""
    return {key: value for key, value in controller.state_dict().items() if key != "throughputs"}


def is_controller(value: Any) -> bool:
    """Tell whether something is a class of controllers that can be made."""
    return isinstance(value, type) and issubclass(value, Controller) and not inspect.isabstract(value)


def places_in(state: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of everything in a state, as keys and numbers."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places_in(value, (*path, key))


def with_junk(state: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of a state with another value at a place."""
    changed = copy.deepcopy(state)
    part = changed
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return changed
