"""Hugging Face Accelerate: the state of a training, saved compressed and loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .folder_files import compress_files_in, restore_files_in


def save_accelerator(accelerator: Any, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
    """Save the state of a training as ``accelerator.save_state`` does; then compress its files.

    All processes call it. The main one compresses, in a folder that all reach.

    Args:
        accelerator: an ``accelerate.Accelerator``.
        folder: the folder; with ``automatic_checkpoint_naming`` the accelerator takes one of its own instead.
        threads: threads to use at most; as many as the process may use if None.

    Raises:
        GcodecError, OSError: a file cannot be read or written.
    """
    saved = accelerator.save_state(os.fspath(folder))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        compress_files_in(saved, threads)
    accelerator.wait_for_everyone()


def load_accelerator(accelerator: Any, folder: str | os.PathLike[str], *, threads: int | None = None) -> None:
    """Load what :func:`save_accelerator` saved, as ``accelerator.load_state`` does.

    All processes call it. The main one restores the files beside the archives, and removes them when all have loaded.

    Args:
        accelerator: an ``accelerate.Accelerator``, prepared as it was when the state was saved.
        folder: the folder.
        threads: threads to use at most; as many as the process may use if None.

    Raises:
        GcodecError: an archive is damaged.
        OSError: a file cannot be read or written.
    """
    restored: list[Path] = []
    try:
        if accelerator.is_main_process:
            restored = restore_files_in(folder, threads)
        accelerator.wait_for_everyone()
        accelerator.load_state(os.fspath(folder))
        accelerator.wait_for_everyone()
    finally:
        for path in restored:
            path.unlink(missing_ok=True)
