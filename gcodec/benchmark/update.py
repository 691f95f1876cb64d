"""The effect of near-lossless gradients on a training run: torch's own optimizer step, taken with and without them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..errors import missing_package
from ..recorder import Dump
from ..truncation.reference import ulp_histogram

try:
    import torch
except ImportError as error:
    raise missing_package("torch") from error

LIMIT = 2  #: ulps that are counted one by one; key LIMIT + 1 is everything beyond


def update_ulps(dump: Dump, decoded: Mapping[str, np.ndarray]) -> Counter[int]:
    """Count parameters of a dump by how many ulps they end up from where exact gradients would have put them.

    Args:
        dump: The recorded step.
        decoded: For each name the gradient as decoded, float32 of the parameter's shape.
    """
    counts: Counter[int] = Counter()
    for name in dump.names:
        exact, near = (step(dump, name, gradient) for gradient in (dump.grad(name), decoded[name]))
        counts.update(ulp_histogram(exact, near, LIMIT))
    return counts


def step(dump: Dump, name: str, gradient: np.ndarray) -> np.ndarray:
    """Return parameter ``name`` after the recorded optimizer's next step with this gradient."""
    parameter = torch.nn.Parameter(_tensor(dump.param(name)))
    parameter.grad = _tensor(gradient)
    optimizer = getattr(torch.optim, dump.optimizer)([{"params": [parameter], **dump.hyper(name)}])
    state = {key: _tensor(value) for key, value in dump.state(name).items()}
    if state:
        optimizer.state[parameter] = state
    optimizer.step()
    return np.asarray(parameter.detach().numpy())


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))  # a copy: the step writes to it
