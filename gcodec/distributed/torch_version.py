"""The versions of torch that the parts of this package need. Importing this refuses one that is too old for all, and
says what to install where there is none."""

from __future__ import annotations

from ..errors import missing_torch

try:
    import torch
except ModuleNotFoundError as error:
    raise missing_torch("gcodec.distributed") from error

OLDEST_FOR_ALL = 2, 6  #: the earliest torch that broadcasts from a rank of a group, and has DTensor as a public name
OLDEST_FOR_GROUPS = 2, 11  #: the earliest torch whose calls of process groups were tried


def is_older(version: tuple[int, int]) -> bool:
    """Return True if torch is older than a version."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) < version


def refuse_old() -> None:
    """Raise ImportError where torch is too old for anything in this package."""
    if is_older(OLDEST_FOR_ALL):
        raise ImportError(
            f"gcodec.distributed needs torch {'.'.join(map(str, OLDEST_FOR_ALL))} or later, and this is "
            f"{torch.__version__}; tensors, files, checkpoints and gcodec.sync over folders work with 2.3"
        )


refuse_old()
