"""State as a checkpoint wants it: nested dictionaries of tensors, numbers and strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_plain(state: Any) -> Any:
    """Arrays become tensors, at any depth; everything else stays."""
    if isinstance(state, dict):
        return {key: to_plain(value) for key, value in state.items()}
    return torch.from_numpy(state.copy()) if isinstance(state, np.ndarray) else state


def from_plain(state: Any) -> Any:
    """The inverse of :func:`to_plain`."""
    if isinstance(state, dict):
        return {key: from_plain(value) for key, value in state.items()}
    return state.detach().cpu().numpy().copy() if isinstance(state, torch.Tensor) else state
