"""Real ranks for tests: a group of Gloo processes that run cases together. They are copies of one process, in which
torch has been imported and the kernels loaded (:mod:`tests.support.rank_template`).

A case is a function of a module that ranks can import: it is pickled, which sends its module and name.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

Case = Callable[..., Any]
PATIENCE = 300  #: seconds after which a case counts as hanging


@cache
def rank_context() -> Any:
    """Return a context that starts processes as copies of one that has imported and compiled what every rank needs.

    Doing so in every rank would take seconds for each.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.rank_template"])
    return context


class Ranks:
    """A group of ``size`` processes; :meth:`run` has each call ``case(**arguments)`` and returns what they returned."""

    def __init__(self, size: int, backend: str = "gloo") -> None:
        self.size, self.backend = size, backend
        self._members: list[tuple[Any, Any]] = []
        self._store = Path()

    def _start(self) -> None:
        context = rank_context()
        store = Path(tempfile.gettempdir()) / f"gcodec-test-{os.getpid()}-{os.urandom(4).hex()}"
        self._store = store
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            arguments = theirs, self.backend, rank, self.size, str(store)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, ours))

    def run(self, case: Case, **arguments: Any) -> list[Any]:
        """Run a case on all ranks and return the results by rank.

        Fails with the traceback of the first rank that raised, or names those that hang.
        """
        if not self._members:
            self._start()
        for _, pipe in self._members:
            pipe.send((case, arguments))
        answers = [self._answer(pipe) for _, pipe in self._members]
        if any(kind in ("silent", "dead") for kind, _ in answers):
            self.close()
        faults = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind != "done"]
        assert not faults, "\n".join(faults)
        return [value for _, value in answers]

    @staticmethod
    def _answer(pipe: Any) -> tuple[str, Any]:
        try:
            return pipe.recv() if pipe.poll(PATIENCE) else ("silent", "no answer")
        except (EOFError, OSError):
            return "dead", None

    def run_with_deaths(self, case: Case, **arguments: Any) -> list[Any]:
        """Return the results of a case that ends some ranks, None for those. The others are ended, too."""
        if not self._members:
            self._start()
        for _, pipe in self._members:
            pipe.send((case, arguments))
        answers = [self._answer(pipe) for _, pipe in self._members]
        self.close()
        faults = [f"rank {rank}: {value}" for rank, (kind, value) in enumerate(answers) if kind in ("raised", "silent")]
        assert not faults, "\n".join(faults)
        return [value for _, value in answers]

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._members:
            pipe.close()
            process.kill()
            process.join()
        if self._members:
            self._store.unlink(missing_ok=True)
        self._members.clear()


class Members:
    """The first ranks of a group, in a process group of their own, which a case gets as ``group``."""

    def __init__(self, ranks: Ranks, size: int) -> None:
        self.ranks, self.size = ranks, size

    def run(self, case: Case, **arguments: Any) -> list[Any]:
        """Run a case on the members and return the results by rank."""
        return self.ranks.run(run_members, case_of_members=case, members=self.size, **arguments)[: self.size]


_groups: dict[int, Any] = {}


def run_members(case_of_members: Case, members: int, **arguments: Any) -> Any:
    """Return what a case returns on this rank, run by the first ``members`` ranks in their own group, else None."""
    import torch.distributed as dist

    if members not in _groups:
        _groups[members] = dist.new_group(list(range(members)))
    if dist.get_rank() >= members:
        return None
    return case_of_members(_groups[members], **arguments)


def agreed(values: list[Any]) -> Any:
    """Return the value that all ranks found."""
    assert all(value == values[0] for value in values), values
    return values[0]


def _serve(pipe: Any, backend: str, rank: int, size: int, store: str) -> None:
    """Run cases on one rank until the pipe closes.

    The process leaves without the interpreter's teardown, in which Gloo's threads may still run.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=180)
    )
    while True:
        try:
            case, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(_outcome(case, arguments))


def _outcome(case: Case, arguments: dict[str, Any]) -> tuple[str, Any]:
    try:
        return "done", case(**arguments)
    except BaseException:
        return "raised", traceback.format_exc()
