"""Folders where compiled kernels are kept: which, in what order, and whom they are trusted to (docs/caches.md).

What is in a cache is machine code. Whoever can write to one of these folders can run code in every process that reads
it, so that a folder in a place that all users share is used only if nobody else can write to it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import warnings
from functools import cache
from pathlib import Path

from ...errors import KernelCacheWarning

_NAME_IT = "name one that can be written by NUMBA_CACHE_DIR (docs/caches.md)"


@cache
def subfolder(source: Path) -> str:
    """Return the name, as numba would choose it, of a folder below one that many packages share.

    Args:
        source: Folder of the kernels' source.
    """
    return f"{source.name}_{hashlib.sha1(str(source).encode()).hexdigest()}"


@cache
def lasting_folders(source: Path, named: str, home: Path | None) -> tuple[Path, ...]:
    """Return where kernels may be kept for good, the first choice first. None of the folders need exist.

    A named folder that can be written is the only one: what was compiled with other settings of numba's, such as
    ``NUMBA_BOUNDSCHECK``, is kept apart by it.

    Args:
        named: The folder that ``NUMBA_CACHE_DIR`` or numba's file of settings names; empty for none.
        home: The user's folder for caches.
    """
    folders = [Path(named) / subfolder(source)] if named else []
    if named and can_be_written(folders[0]):
        return tuple(folders)
    folders.append(source / "__pycache__")
    if home is not None:
        folders.append(home / subfolder(source))
    return tuple(folders)


def can_be_written(folder: Path) -> bool:
    """Return whether this process may write to a folder, or make it."""
    # What is not there can be made if the nearest folder above it that is there can be written to.
    there = (path for path in (folder.absolute(), *folder.absolute().parents) if os.access(path, os.F_OK))
    return os.access(next(there, folder), os.W_OK)


def temporary_folder(make: bool) -> Path | None:
    """Return a folder for this user alone among the temporary files; None if there is none that is safe.

    Args:
        make: Make the folder if it is missing.
    """
    try:
        parent = Path(tempfile.gettempdir())
        if not hasattr(os, "geteuid"):  # on Windows, each user has a folder for temporary files
            return parent / "gcodec"
        folder = parent / f"gcodec-{os.geteuid()}"
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        # Not what a link leads to: it may be another user's, who can then lead it elsewhere.
        above, here = parent.stat(), folder.lstat()
    except OSError:
        return None
    # Who may write to the folder above may put another folder in the place of ours. Not if it is sticky, as /tmp is:
    # there, only owners may rename or remove what is theirs.
    replaceable = above.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not above.st_mode & stat.S_ISVTX
    own = stat.S_ISDIR(here.st_mode) and here.st_uid == os.geteuid() and not here.st_mode & 0o077
    return folder if own and not replaceable and above.st_uid in (0, os.geteuid()) else None


@cache
def warn_of_temporary_folder(folder: Path) -> None:
    """Warn, once, that kernels are kept among the temporary files."""
    text = f"compiled kernels are kept in {folder}, as no lasting folder can be written; {_NAME_IT}"
    warnings.warn(text, KernelCacheWarning, stacklevel=2)


@cache
def warn_of_no_folder() -> None:
    """Warn, once, that each process has to compile."""
    text = f"compiled kernels cannot be kept, so every process compiles them: no folder can be written; {_NAME_IT}"
    warnings.warn(text, KernelCacheWarning, stacklevel=2)
