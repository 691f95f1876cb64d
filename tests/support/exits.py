"""What of torch still runs when a process ends. A thread of Gloo that lets a tensor go then aborts the process."""

from __future__ import annotations

from pathlib import Path

NO_THREADS = "threads of Gloo at exit: 0"  #: what each rank prints where all have ended
_AT_START = """
import atexit, os

def tell():
    tasks = os.listdir("/proc/self/task")
    print("threads of Gloo at exit:", sum("gloo" in open(f"/proc/self/task/{task}/comm").read() for task in tasks))

if "RANK" in os.environ:
    atexit.register(tell)
"""


def counting_threads(folder: Path) -> dict[str, str]:
    """Return the environment in which every rank of torchrun prints how many threads of Gloo live when it ends.

    Args:
        folder: Where to put what Python runs at its start; is made.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_AT_START)
    return {"PYTHONPATH": str(folder)}
