"""The hooks of low ranks between two ranks of this machine, a thread each: a contest of ``bench.compressors``.

As ``bench.hooks`` has it, but with what ranks say to each other: over Gloo, without a limit on its rate. Small buckets
show what a collective costs that carries next to nothing.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import gcodec.distributed as gd
from bench.hooks import Bucket, layer, low_rank

RANKS = 2
NAME = "hook, two ranks"


def contest(width: int, rounds: int, ranks: Sequence[int]) -> Iterator[dict[str, object]]:
    """Yield rows, with the seconds of the first of the two."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_take_part, (folder, width, rounds, tuple(ranks)), nprocs=RANKS)
        with (Path(folder) / "rows").open(newline="") as file:
            yield from csv.reader(file)


def _take_part(number: int, folder: str, width: int, rounds: int, ranks: Sequence[int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=number, world_size=RANKS)
    model = layer(width)
    bucket = Bucket(model)
    gradient = torch.randn(bucket.buffer().numel(), generator=torch.Generator().manual_seed(4 + number))
    rows = [row for rank in ranks for row in low_rank(NAME, model, bucket, gradient, rounds, rank)]
    if number == 0:
        with (Path(folder) / "rows").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    dist.barrier()
    gd.close_lanes()
    dist.destroy_process_group()
