"""Hugging Face Accelerate: the state of a training, saved compressed and loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from .folder_files import compress_files_in, restore_files_in


def save_accelerator(
    accelerator: Any, folder: str | os.PathLike[str] | None = None, *, threads: int | None = None
) -> None:
    """Save the state of a training as ``accelerator.save_state`` does; then compress its files.

    All processes call it. The main one compresses, in a folder that all reach.

    Args:
        accelerator: An ``accelerate.Accelerator``.
        folder: The folder; with ``automatic_checkpoint_naming`` the accelerator takes one of its own instead.
        threads: Threads to use at most; as many as the process may use if None.

    Raises:
        InvalidArgument: There is no folder, and the accelerator has none of its own.
        GcodecError, OSError: A file cannot be read or written.
    """
    _check_folder(accelerator, folder)
    # The accelerator expands a ~ only where it loads.
    saved = accelerator.save_state(None if folder is None else os.fspath(Path(folder).expanduser()))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        compress_files_in(saved, threads)
    accelerator.wait_for_everyone()


def load_accelerator(
    accelerator: Any, folder: str | os.PathLike[str] | None = None, *, threads: int | None = None
) -> None:
    """Load what :func:`save_accelerator` saved, as ``accelerator.load_state`` does.

    All processes call it. The main one restores the files beside the archives, and removes them when all have loaded.

    Args:
        accelerator: An ``accelerate.Accelerator``, prepared as it was when the state was saved.
        folder: The folder; None, with ``automatic_checkpoint_naming``: that of the last checkpoint.
        threads: Threads to use at most; as many as the process may use if None.

    Raises:
        InvalidArgument: There is no folder, or no checkpoint where the accelerator puts its own.
        GcodecError: An archive is damaged.
        OSError: A file cannot be read or written.
    """
    _check_folder(accelerator, folder)
    path = _last_checkpoint(accelerator) if folder is None else Path(folder).expanduser()
    restored: list[Path] = []
    try:
        if accelerator.is_main_process:
            restored = restore_files_in(path, threads)
        accelerator.wait_for_everyone()
        accelerator.load_state(os.fspath(path))
        accelerator.wait_for_everyone()
    finally:
        for path in restored:
            path.unlink(missing_ok=True)


def _check_folder(accelerator: Any, folder: str | os.PathLike[str] | None) -> None:
    """Raise InvalidArgument if there is no folder, and the accelerator has none of its own."""
    if folder is None and not accelerator.project_configuration.automatic_checkpoint_naming:
        raise InvalidArgument("folder must be given unless the accelerator has automatic_checkpoint_naming")


def _last_checkpoint(accelerator: Any) -> Path:
    """Return the last folder that the accelerator named. Raises InvalidArgument if there is none."""
    folder = Path(accelerator.project_dir, "checkpoints")
    numbers = [int(match[1]) for path in folder.glob("*") if (match := re.fullmatch("checkpoint_([0-9]+)", path.name))]
    if not numbers:
        raise InvalidArgument(f"{folder}: there is no checkpoint in this folder")
    return folder / f"checkpoint_{max(numbers)}"
