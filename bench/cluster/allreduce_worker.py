"""One rank of ``bench.cluster.allreduce``: makes its buffer, then measures what it is told to, again and again.

It is started in a namespace of the bed, and answers commands (``bench.cluster.team``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
import torch.distributed as dist

from bench.cluster import checks, methods
from bench.cluster.buffers import SETS, Share, share_of
from bench.cluster.coders import count_processor_time, noting
from bench.cluster.counters import traffic
from bench.cluster.team import serve

WARM_UP = 4  #: runs before the first check, after which codebooks are shared


class Worker:
    """The rank's buffer and methods."""

    def __init__(self, share: Share) -> None:
        self.share = share
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.methods = methods.methods_for(share)
        self._values, self._room = (torch.zeros_like(share.sets[0]) for _ in range(2))  # for all methods in turn

    def answer(self, command: str, **options: Any) -> Any:
        """Do what the driver asks."""
        return self.check(**options) if command == "check" else self.measure(**options)

    def check(self, names: Sequence[str]) -> dict[str, Any]:
        """Return every method's results on every set of gradients. Raises WrongResultError."""
        deviations: dict[str, float] = {}
        for values in self.share.sets:
            parts = checks.gathered(values)
            for name in names:
                method = self.methods[name]
                if isinstance(method, methods.Hook):
                    self._warm_up(method)
                self._prepare(method, values)
                with noting(sizes_of(method)):
                    result = method.run()
                if not name.endswith(methods.WIRE) and name != methods.SMALL:
                    outcome = checks.check(name, result, parts, self.share)
                    deviations[name] = max(outcome, deviations.get(name, 0.0))
        return {"origin": self.share.origin, "values": len(self.share.sets[0]), "deviations": deviations}

    def _warm_up(self, method: methods.Hook) -> None:
        for number in range(WARM_UP):
            self._prepare(method, self.share.sets[number % SETS])
            method.run()

    def _prepare(self, method: methods.Method, values: torch.Tensor) -> None:
        self._values.copy_(values)
        method.prepare(self._values, self._room)

    def measure(self, names: Sequence[str], number: int) -> dict[str, Any]:
        """One round: each method in turn. Seconds, traffic and tally of this rank."""
        answer: dict[str, Any] = {}
        for name in names:
            method = self.methods[name]
            self._prepare(method, self.share.sets[number % SETS])
            dist.barrier()
            before = traffic()
            with noting(sizes_of(method)):
                processor, start = process_time(), perf_counter()
                method.run()
                seconds, processor = perf_counter() - start, process_time() - processor
            dist.barrier()  # all have received what this rank sent
            moved, tally = traffic() - before, method.tally()
            answer[name] = {
                "seconds": seconds,
                "processor": processor,
                "sent": moved.sent,
                "received": moved.received,
                **({} if tally is None else {"tally": tally.numbers()}),
            }
        return answer


def sizes_of(method: methods.Method) -> methods.Sizes:
    """Where the sizes of its payloads go: with them the wire alone is measured later in the same round."""
    return method.sizes if isinstance(method, methods.Hook) else {}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line, which ``bench.cluster.allreduce`` writes."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.allreduce_worker")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    count_processor_time()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    share = share_of(options.data, options.model, options.bytes, dist.get_rank(), options.quick)
    serve(Worker(share).answer)


if __name__ == "__main__":
    main()
