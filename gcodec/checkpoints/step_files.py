"""The files of a folder of checkpoints: names that say the step.

There is no list of the steps beside the files: each file says itself what it depends on, and appears, changes and goes
by a single rename or removal. So the folder is whole whenever a process dies.
"""

from __future__ import annotations

import contextlib
import operator
import re
from typing import Any

from ..archive.folders import Folder
from ..errors import InvalidArgument

MAX_STEP = 10**18
NAME = re.compile(r"step-([0-9]{8,18})\.gc")
#: What a writer that was killed leaves behind.
LEFT_OVER = re.compile(r"\.step-[0-9]{8,18}\.gc\.[0-9a-f]{8}\.partial")


def step_name(step: int) -> str:
    """Return the name of a step's archive."""
    return f"step-{step:08d}.gc"


def step_of(name: str) -> int | None:
    """Return the step of an archive's name; None for any other name."""
    match = NAME.fullmatch(name)
    step = None if match is None else int(match[1])
    return step if step is not None and step_name(step) == name else None


def check_step(step: Any) -> int:
    """Return a step as an int. Raises InvalidArgument unless it is an integer from 0 to 10^18 - 1."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number < MAX_STEP:
        raise InvalidArgument(f"step must be an integer from 0 to {MAX_STEP - 1}, not {step!r}")
    return number


def steps_in(folder: Folder) -> list[int]:
    """Return the steps in a folder in ascending order; none if there is no such folder."""
    return sorted(step for step in map(step_of, folder.names()) if step is not None)


def remove_left_over(folder: Folder) -> None:
    """Removes what writers that were killed have left; only for the holder of the lock."""
    for name in folder.names():
        if LEFT_OVER.fullmatch(name):
            with contextlib.suppress(OSError):
                folder.remove(name)
