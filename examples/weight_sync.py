"""Weight sync on a small language model: one process trains, two generate text with its bfloat16 weights.

    torchrun --standalone --nproc-per-node 3 examples/weight_sync.py --steps 60

Rank 0 takes AdamW steps on float32 masters. Rank 1 reads each version from a folder, rank 2 from a broadcast; both have
the trainer's weights bit for bit, or the run stops. CPUs and Gloo are enough.
"""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
from torch.nn import functional

import gcodec.distributed as gd
from gcodec import sync
from gcodec.demo.data import read_standard_library
from gcodec.demo.models import Transformer

CONTEXT, BATCH = 64, 8


def train(folder: sync.VersionFolder, broadcast: gd.WeightBroadcast, steps: int, warmup: int) -> None:
    """Train float32 masters, at first fast and alone, then publish what bfloat16 shows of them after every step."""
    text = torch.frombuffer(bytearray(read_standard_library(400_000).encode()), dtype=torch.uint8).long()
    torch.manual_seed(0)
    model = Transformer(256, width=64, layers=2, context=CONTEXT)
    publisher, n_bytes = sync.Publisher(dtype="bfloat16", anchor_every=20), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(1 - warmup, steps + 1):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,)).tolist()
        tokens = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        loss = functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step < 1:
            optimizer.param_groups[0]["lr"] = 1e-6 if step == 0 else 4e-3     # as in reinforcement learning
            continue
        version = publisher.publish(model.state_dict(), metadata={"step": str(step)})
        n_bytes += folder.send(version)
        broadcast.send(version)
        dist.broadcast_object_list([version.state])
        print(f"version {step}: loss {loss:.3f}, {version.stats}", flush=True)
    print(f"{n_bytes} bytes in the folder, {steps * version.stats.raw_bytes} without differences", flush=True)


def generate(folder: sync.VersionFolder, broadcast: gd.WeightBroadcast | None, steps: int) -> None:
    """Follow the trainer, and write a little with the weights of the last version."""
    model = Transformer(256, width=64, layers=2, context=CONTEXT).to(torch.bfloat16)
    subscriber = sync.Subscriber(model.state_dict())
    for number in range(1, steps + 1):
        if broadcast is not None:
            broadcast.receive(subscriber)
        dist.broadcast_object_list(told := [None])      # the trainer has published
        if broadcast is None:
            subscriber.catch_up(folder, to=number)
        subscriber.verify()     # the model's own tensors, read again
        assert [subscriber.state] == told, f"version {number} is not the trainer's"
    tokens = torch.tensor([list(b"def ")])
    for _ in range(CONTEXT - tokens.shape[1]):
        with torch.no_grad():
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    print(f"rank {dist.get_rank()}, bit for bit at {steps} versions: {bytes(tokens[0].tolist())!r}", flush=True)


def main() -> None:
    """Parse the arguments, and train or generate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps that are published")
    parser.add_argument("--warmup", type=int, default=300, help="steps before them")
    parser.add_argument("--folder", help="where versions are kept; a temporary folder by default")
    options = parser.parse_args()
    os.environ.setdefault("MKL_CBWR", "COMPATIBLE")     # else equal matrices may have other products elsewhere
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    dist.broadcast_object_list(place := [options.folder or tempfile.mkdtemp()])
    folder, pair = sync.VersionFolder(place[0]), dist.new_group([0, 2])
    broadcast = None if dist.get_rank() == 1 else gd.WeightBroadcast(pair)
    if dist.get_rank() == 0 and broadcast is not None:
        train(folder, broadcast, options.steps, options.warmup)
    else:
        generate(folder, broadcast, options.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
