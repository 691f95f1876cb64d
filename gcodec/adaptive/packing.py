"""The state of a controller at work, as a distributed checkpoint takes it: that one restores what the new state has an
entry for, so there is a string for each tensor, whether there is anything to say of it or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..averaging.state import pack_state, unpack_state
from ..errors import InvalidArgument
from .driver import Adaptive

_ENTRIES = {"averager", "tensors", "adaptive", "sums"}


def packed(adaptive: Adaptive, names: Iterable[str]) -> dict[str, Any]:
    """This rank's state, of tensors of these names: strings, by the same keys whatever has happened so far."""
    names, state = list(names), adaptive.state_dict()
    averager, sums = state.pop("averager"), state.pop("sums")
    tensors = averager.pop("tensors")
    return {
        "averager": pack_state(averager),
        "tensors": {name: pack_state(tensors.get(name, {})) for name in names},
        "adaptive": pack_state(state),
        "sums": {name: pack_state(sums.get(name)) for name in names},
    }


def load_packed(adaptive: Adaptive, state: Mapping[str, Any], params: Mapping[str, torch.Tensor]) -> None:
    """Go on from :func:`packed`, with tensors where the parameters of their names are. Raises InvalidArgument for what
    it has not made, another rank's or controller's."""
    if not state.keys() >= _ENTRIES:
        raise InvalidArgument(f"a state without a controller's {sorted(_ENTRIES - state.keys())}")
    devices = {name: param.device for name, param in params.items()}
    tensors = {name: unpack_state(text, devices.get(name)) for name, text in state["tensors"].items()}
    sums = {name: unpack_state(text, devices.get(name)) for name, text in state["sums"].items()}
    sums = {name: found for name, found in sums.items() if found is not None}
    averager = {**unpack_state(state["averager"]), "tensors": tensors}
    adaptive.load_state_dict({**unpack_state(state["adaptive"]), "averager": averager, "sums": sums})
