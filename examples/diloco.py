"""DiLoCo on a small language model: every rank trains alone and exchanges what it learned every few steps.

    torchrun --standalone --nproc-per-node 2 examples/diloco.py --steps 200 --every 20 --mode near

Runs on CPUs and Gloo, two ranks or more. On several machines: the same with torchrun's --nnodes and --rdzv-endpoint.
"""

from __future__ import annotations

import argparse
import gc
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import gcodec.distributed as gd
from gcodec.demo.data import read_standard_library
from gcodec.demo.models import Transformer

CONTEXT, BATCH = 64, 8


def batch(text: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Some windows of a text: int64[BATCH, CONTEXT + 1]."""
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=random)
    return torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the next byte, nats."""
    scores = model(tokens[:, :-1])
    return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def train(
    steps: int, every: int, mode: str, lr: float = 2e-3, seed: int = 0
) -> tuple[list[float], dict[str, float], torch.nn.Module]:
    """This rank's part: its losses, what was exchanged, and the model."""
    rank, size = dist.get_rank(), dist.get_world_size()
    bytes_of_text = bytearray(read_standard_library(400_000).encode())
    text = torch.frombuffer(bytes_of_text, dtype=torch.uint8).long().chunk(size)[rank]  # each rank has its own
    torch.manual_seed(seed)
    model = Transformer(256, width=64, layers=2, context=CONTEXT)
    inner = torch.optim.AdamW(model.parameters(), lr=lr)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    modes: dict[str, Any] = {
        "lossless": gd.Lossless(),
        "fixed": gd.FixedBits(8),
        "near": gd.NearLossless(outer),
        "visible": gd.Visible(),
    }
    diloco = gd.DiLoCo(outer, every, mode=modes[mode])
    random = torch.Generator().manual_seed(1000 * seed + rank)
    losses = []
    for step in range(steps):
        loss = loss_of(model, batch(text, random))
        inner.zero_grad()
        loss.backward()
        inner.step()
        losses.append(loss.item())
        if diloco.step() and rank == 0:
            print(f"step {step + 1}: loss {sum(losses[-every:]) / every:.3f}", flush=True)
    return losses, diloco.stats(), model


def main() -> None:
    """Parse the arguments, train, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="inner steps of each rank")
    parser.add_argument("--every", type=int, default=20, help="inner steps between exchanges")
    parser.add_argument("--mode", choices=("lossless", "fixed", "near", "visible"), default="near")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate of the inner optimizer, AdamW")
    parser.add_argument("--seed", type=int, default=0, help="seed of the model and of the order of the text")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(max((os.cpu_count() or 1) // dist.get_world_size(), 1))
    _, counts, _ = train(options.steps, options.every, options.mode, options.lr, options.seed)
    if dist.get_rank() == 0:
        every_step = counts["dense_bytes"] * options.every
        if "visible_share" in counts:
            print(f"{100 * counts['visible_share']:.1f} % of the values were visible, and sent")
        print(
            f"sent {counts['sent_bytes'] / 1e6:.2f} MB per rank: {counts['ratio']:.2f} times less than the same "
            f"exchanges dense, {every_step / counts['sent_bytes']:.0f} times less than averaging every step"
        )
    gd.close_lanes()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # ends Gloo's threads before Python ends: one that lets a tensor go after that aborts the process
