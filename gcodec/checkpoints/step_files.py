"""The files of a folder of checkpoints: names that say the step.

There is no list of the steps beside the files: each file says itself what it depends on, and appears, changes and goes
by a single rename or removal. So the folder is whole whenever a process dies.
"""

from __future__ import annotations

from typing import Any

from ..archive.numbered_files import NumberedFiles
from ..errors import check_int

STEP_FILES = NumberedFiles("step-", 8, ".gc")


def step_name(step: int) -> str:
    """Return the name of a step's archive."""
    return STEP_FILES.name(step)


def step_of(name: str) -> int | None:
    """Return the step of an archive's name; None for any other name."""
    return STEP_FILES.number(name)


def check_step(step: Any) -> int:
    """Return a step as an int. Raises InvalidArgument unless it is an integer from 0 to 10^18 - 1."""
    return check_int("step", step, 0, STEP_FILES.limit - 1)
