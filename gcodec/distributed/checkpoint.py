"""State as any checkpoint takes it: a string, which also a distributed checkpoint restores whatever its length."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np


def pack(state: dict[str, Any]) -> str:
    """Nested dictionaries of numbers, strings, flags and arrays as JSON."""
    return json.dumps(state, default=_of_array)


def unpack(text: str) -> dict[str, Any]:
    """The inverse of :func:`pack`; keys are strings."""
    state: dict[str, Any] = json.loads(text, object_hook=_to_array)
    return state


def _of_array(value: Any) -> dict[str, str]:
    array = np.asarray(value)
    return {"array": array.dtype.str, "base64": base64.b64encode(array.tobytes()).decode()}


def _to_array(value: dict[str, Any]) -> Any:
    if value.keys() != {"array", "base64"}:
        return value
    return np.frombuffer(bytearray(base64.b64decode(value["base64"])), np.dtype(value["array"]))
