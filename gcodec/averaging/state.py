"""States packed into strings, which every kind of checkpoint can save and restore.

A distributed checkpoint fills in what the new state has an entry for, tensors by their shape; a residual that is not
there yet would be left out. Strings it restores whatever their length. A tensor in a string is a frame in base64: in
all a few percent more than its bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import codec
from ..errors import Corruption, GcodecError, InvalidArgument, first_few

#: Keys that mark what JSON does not have.
_PAIRS, _TENSOR, _PLAIN, _ARRAY = "gcodec.pairs", "gcodec.tensor", "gcodec.plain_tensor", "array"
SHAPED = {"residual", "momentum"}  #: what feedback keeps of a tensor: a value for each of its own


def pack_state(state: Any) -> str:
    """Return a state as JSON: nested dictionaries and lists of numbers, strings, flags, arrays and tensors."""
    return json.dumps(_plain(state), default=_of_array)


def unpack_state(text: str, device: torch.device | None = None) -> Any:
    """Return the state that :func:`pack_state` was given. Tuples come back as lists.

    Args:
        text: What ``pack_state`` returned.
        device: Where tensors of floats go; default the CPU.

    Raises:
        Corruption: The text is damaged.
    """
    try:
        return json.loads(text, object_hook=partial(_restored, device=device))
    except GcodecError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError, SyntaxError) as error:
        raise Corruption(f"a packed state is damaged: {error}") from error


def pack_by_tensor(state: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the state of an averager as strings: one for each tensor, and one for the rest.

    A distributed checkpoint restores only what the new state has an entry for, so every tensor has a string, also one
    of which nothing is kept.

    Args:
        state: What ``Averager.state_dict`` returned, or that and more numbers.
    """
    rest = {key: value for key, value in state.items() if key != "tensors"}
    tensors = {name: pack_state(state["tensors"].get(name, {})) for name in names}
    return {"averager": pack_state(rest), "tensors": tensors}


def unpack_by_tensor(packed: Mapping[str, Any], params: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Return the state that :func:`pack_by_tensor` was given.

    Args:
        packed: What ``pack_by_tensor`` returned.
        params: The parameters by name; what is kept of each goes to its device.

    Raises:
        Corruption: A string is damaged.
        InvalidArgument: Something is kept of a tensor that is no parameter, or a residual or momentum has another shape
            than its parameter.
    """
    tensors = {}
    for name, text in packed["tensors"].items():
        param = params.get(name)
        memory = tensors[name] = unpack_state(text, None if param is None else param.device)
        if param is None and memory:
            raise InvalidArgument(
                f"the state must be that of a model with the same names: it has values for {name!r}, and there are "
                f"{first_few([*map(repr, params)])} (wrappers, such as torch.compile's, change names)"
            )
        for key in SHAPED & memory.keys():
            if param is not None and memory[key].shape != param.shape:
                raise InvalidArgument(
                    f"the state must be that of a model with the same shapes: the {key} of {name!r} has shape "
                    f"{tuple(memory[key].shape)}, and the parameter {tuple(param.shape)}"
                )
    return {**unpack_state(packed["averager"]), "tensors": tensors}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value):
            return {key: _plain(item) for key, item in value.items()}
        return {_PAIRS: [[key, _plain(item)] for key, item in value.items()]}  # JSON's keys are strings
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if not value.is_floating_point():
            return {_PLAIN: _of_array(value.numpy()), "shape": list(value.shape)}
        return {_TENSOR: base64.b64encode(codec.encode(value)).decode()}
    return value


def _of_array(value: Any) -> dict[str, str]:
    array = np.asarray(value)
    return {_ARRAY: array.dtype.str, "base64": base64.b64encode(array.tobytes()).decode()}


def _restored(value: dict[str, Any], device: torch.device | None) -> Any:
    if value.keys() == {_PAIRS}:
        return dict(value[_PAIRS])
    if value.keys() == {_TENSOR}:
        return codec.decode(base64.b64decode(value[_TENSOR])).to(device=device)
    if value.keys() == {_PLAIN, "shape"}:
        if not isinstance(value[_PLAIN], np.ndarray):
            raise ValueError("a tensor of integers must be made of an array")
        return torch.from_numpy(value[_PLAIN].reshape(value["shape"]))
    if value.keys() != {_ARRAY, "base64"}:
        return value
    return np.frombuffer(bytearray(base64.b64decode(value["base64"])), np.dtype(value[_ARRAY]))
