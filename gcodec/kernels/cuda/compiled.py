"""Compiled kernels, kept on disk: what takes seconds to compile, another process reads in a millisecond.

It lies in the folders in which kernels for CPUs are kept, under the same rules (docs/caches.md).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from ..core.cache_folders import lasting_folders, subfolder, temporary_folder
from ..core.numba_private import config

_SOURCE = Path(__file__).parent
_MARK = b"gcodec-gpu-code"


def kept_on_disk(name: str, kind: str, target: str, make: Callable[[], bytes]) -> bytes:
    """Return compiled code from disk, or else what ``make`` compiles, which is then kept there.

    Args:
        name: What its file is called, before a digest.
        kind: The file's ending.
        target: All that the code depends on: its source, its compiler and the device.
    """
    file = f"{name}-{hashlib.sha256(target.encode()).hexdigest()[:24]}.{kind}"
    # The file is named by a part of the digest only; all of it stands inside.
    stamp = _digest(target.encode())
    code = _load(file, stamp)
    if code is None:
        code = make()
        _save(file, stamp, code)
    return code


def _folders(make: bool) -> Iterator[Path]:
    """Yield the folders where code may be, the first choice first."""
    yield from lasting_folders(_SOURCE, str(config.CACHE_DIR or ""), _home())
    temporary = temporary_folder(make)
    if temporary is not None:
        yield temporary / subfolder(_SOURCE)


@cache
def _home() -> Path | None:
    """Return the user's folder for caches of compiled code; None of a user without a home."""
    named = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):
        return (Path(named) if named else Path.home() / ".cache") / "numba"
    return None


def _load(file: str, stamp: bytes) -> bytes | None:
    """Return what was saved under a stamp; None where there is nothing, or something else, or damage."""
    for folder in _folders(make=False):
        with contextlib.suppress(OSError, ValueError):
            # Three times only, as the code is of any bytes.
            mark, found, digest, code = (folder / file).read_bytes().split(b"\n", 3)
            if (mark, found, digest) == (_MARK, stamp, _digest(code)):
                return code
    return None


def _save(file: str, stamp: bytes, code: bytes) -> None:
    """Save code in the first folder that can be written, if there is one."""
    content = b"\n".join((_MARK, stamp, _digest(code), code))
    for folder in _folders(make=True):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            # Written under another name first: other processes find all of the file, or none.
            handle, temporary = tempfile.mkstemp(dir=folder, suffix=".part")
            try:
                with os.fdopen(handle, "wb") as written:
                    written.write(content)
                Path(temporary).replace(folder / file)
            except OSError:
                Path(temporary).unlink(missing_ok=True)
                raise
            return


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
