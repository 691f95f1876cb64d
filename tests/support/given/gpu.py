"""What docs/gpu.md leaves to its reader: parameters, gradients and a patch on a CUDA device."""

from __future__ import annotations

from typing import Any

import torch

import gcodec


def before_block(names: dict[str, Any], text: str) -> None:
    """Make them anew for every block."""
    params = [torch.nn.Parameter(torch.randn(300, 200, device="cuda")) for _ in range(3)]
    for param in params:
        param.grad = torch.randn_like(param) * 1e-3
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    optimizer.step()
    weight = torch.randn(300, 200).bfloat16()
    newer = torch.where(torch.rand(300, 200) < 0.01, weight * 1.01, weight).bfloat16()
    names.update(
        params=params,
        grads=[param.grad for param in params],
        grad=params[0].grad,
        optimizer=optimizer,
        weight=weight.cuda() if "patch" in text else params[0],
        patch=gcodec.encode(newer, base=weight),
    )
