"""Series of checkpoints: archives in a folder, each whole or the difference from the step before."""

from __future__ import annotations

from .checkpointer import Checkpointer
from .step_folder import StepFolder, StepInfo

__all__ = ["Checkpointer", "StepFolder", "StepInfo"]


def __dir__() -> list[str]:
    return __all__
