"""Workers, one in each namespace of a bed: started together, ended together.

A :class:`Team`'s workers answer commands: a line of JSON in, a line of JSON out, so that one process measures at one
rate after another. :func:`run_all` runs any command to its end instead, such as ``torchrun``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from bench.cluster.bed import INTERFACE, Bed
from bench.data import ROOT
from gcodec.errors import GcodecError

PORT = 29500  #: free in every namespace
PATIENCE = 300.0  #: seconds that workers have for an answer
_POLL = 0.05


class WorkerError(GcodecError):
    """A worker failed, or took too long; the others have been ended."""


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(bed: Bed, rank: int) -> dict[str, str]:
    """Return the environment that ``torch.distributed`` reads, for a worker. All share this machine's cores, and are
    told so."""
    threads = max(1, cores() // bed.size)
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(bed.size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(bed.size),
        "MASTER_ADDR": bed.address(0),
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
    }


class Team:
    """Workers that run ``python -m module *arguments`` in every namespace of a bed, while the context lasts."""

    def __init__(self, bed: Bed, module: str, arguments: Sequence[str] = ()) -> None:
        self.bed, self._command = bed, [sys.executable, "-m", module, *arguments]
        self._answers: Queue[tuple[int, str]] = Queue()
        self._workers: list[subprocess.Popen[str]] = []
        self._listeners: list[Thread] = []
        self._logs = Path()

    def __enter__(self) -> Team:
        self._folder = tempfile.TemporaryDirectory(prefix="gcodec-team-")
        self._logs = Path(self._folder.name)
        for rank in range(self.bed.size):
            with (self._logs / f"{rank}.log").open("w") as log:
                worker = subprocess.Popen(
                    [*self.bed.inside(rank), *self._command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment(self.bed, rank),
                    cwd=ROOT,
                    text=True,
                )
            self._workers.append(worker)
            listener = Thread(target=self._listen, args=(rank, worker), daemon=True)
            listener.start()
            self._listeners.append(listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._workers)
        for listener in self._listeners:
            listener.join()
        self._folder.cleanup()

    def ask(self, patience: float = PATIENCE, **command: Any) -> list[Any]:
        """Return every worker's answer to a command, by rank. Raises WorkerError."""
        for worker in self._workers:
            assert worker.stdin is not None
            try:
                worker.stdin.write(json.dumps(command) + "\n")
                worker.stdin.flush()
            except BrokenPipeError:
                continue  # its end is found below
        answers: dict[int, Any] = {}
        deadline = monotonic() + patience
        while len(answers) < self.bed.size:
            try:
                rank, line = self._answers.get(timeout=max(0.0, deadline - monotonic()))
            except Empty:
                silent = sorted(set(range(self.bed.size)) - answers.keys())
                raise WorkerError(f"no answer of ranks {silent} to {command} within {patience:g} s") from None
            if not line:
                raise WorkerError(f"rank {rank} has ended:\n{self._last_words(rank)}")
            answers[rank] = json.loads(line)
        return [answers[rank] for rank in range(self.bed.size)]

    def _listen(self, rank: int, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        with worker.stdout as lines:
            for line in lines:
                self._answers.put((rank, line))
        self._answers.put((rank, ""))

    def _last_words(self, rank: int) -> str:
        return _tail(self._logs / f"{rank}.log")


def serve(answer: Any) -> None:
    """Run a worker's side: ``answer(**command)`` for every command, until there are no more. Leaves without the
    interpreter's teardown, in which Gloo's threads may still run."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        replies.write(json.dumps(answer(**json.loads(line))) + "\n")
        replies.flush()
    os._exit(0)


def run_all(bed: Bed, command: Sequence[str], seconds: float) -> None:
    """Run a command in every namespace. When one fails, or time is up, all are ended. Raises WorkerError.

    ``{rank}`` and ``{size}``, ``{master}`` and ``{port}`` are replaced in the command's words.
    """
    facts = {"size": bed.size, "master": bed.address(0), "port": PORT}
    with tempfile.TemporaryDirectory(prefix="gcodec-run-") as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(bed.size)]
        workers = []
        for rank, path in enumerate(logs):
            words = [word.format(rank=rank, **facts) for word in command]
            with path.open("w") as log:
                workers.append(
                    subprocess.Popen(
                        [*bed.inside(rank), *words],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment(bed, rank),
                        cwd=ROOT,
                        text=True,
                    )
                )
        try:
            _watch(workers, logs, monotonic() + seconds)
        finally:
            end(workers)


def _watch(workers: Sequence[subprocess.Popen[str]], logs: Sequence[Path], deadline: float) -> None:
    while any(worker.poll() is None for worker in workers):
        if monotonic() > deadline:
            raise WorkerError("time is up")
        for rank, worker in enumerate(workers):
            if worker.poll():
                raise WorkerError(f"rank {rank} has failed with status {worker.returncode}:\n{_tail(logs[rank])}")
        sleep(_POLL)
    for rank, worker in enumerate(workers):
        if worker.returncode:
            raise WorkerError(f"rank {rank} has failed with status {worker.returncode}:\n{_tail(logs[rank])}")


def end(workers: Sequence[subprocess.Popen[str]]) -> None:
    """End those that still run, gently, then not."""
    for worker in workers:
        if worker.stdin is not None:
            worker.stdin.close()
        if worker.poll() is None:
            worker.terminate()
    for worker in workers:
        try:
            worker.wait(5)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-60:])
