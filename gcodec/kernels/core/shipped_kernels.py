"""Compiled kernels that come with the package, so that a first call need not wait for the compiler (docs/caches.md).

They are an archive for each level of CPUs, ``gcodec/kernels/compiled/LEVEL.zip``, which ``tools/compile_kernels.py``
writes and wheels contain; a checkout has none. An entry is named by a digest of the kernel's name and types and of its
source, and holds, compressed, what numba keeps in its cache.
"""

from __future__ import annotations

import pickle
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_digest, xxh3_128_hexdigest

from .cpu_levels import CpuLevel, level_for
from .numba_private import has_features, named_cpu

FOLDER = Path(__file__).parents[1] / "compiled"


def level_of_host() -> CpuLevel | None:
    """Return the level of the CPU that kernels are compiled for; None of one that has none, or is not x86-64, and of a
    CPU that numba was told by name: what was compiled for others would not be what was asked for."""
    level = level_for(has_features)
    return level if level is None or named_cpu() in ((None, None), (level.cpu, level.flags)) else None


def portable_key(key: Any) -> Any:
    """Return the key of a cache's entry without the CPU: types and digests of the source; None of a key that is not as
    numba's are."""
    if not isinstance(key, tuple) or len(key) != 3:
        return None
    types, _, digests = key
    return types, digests


def entry_name(kernel: str, stamp: str, key: Any) -> str:
    """Return the name of an entry.

    Args:
        kernel: Name of the kernel's files in a cache.
        stamp: Digest of all that it may be compiled from.
        key: As :func:`portable_key` returns it.
    """
    return xxh3_128_hexdigest(f"{kernel}\n{stamp}\n{key[0]}\n{key[1]}".encode())


def entry(kernel: str, stamp: str, key: Any, data: Any, dumps: Any, effort: int = 19) -> tuple[str, bytes]:
    """Return the name and the content of an entry.

    Args:
        kernel: Name of the kernel's files in a cache.
        stamp: Digest of all that it may be compiled from.
        key: The key of numba's cache.
        data: What numba keeps.
        dumps: Pickles it.
        effort: Level of zstd.
    """
    import zstandard

    portable = portable_key(key)
    content = dumps((stamp, portable, data))
    packed = zstandard.ZstdCompressor(effort).compress(content)
    return entry_name(kernel, stamp, portable), xxh3_128_digest(content) + packed


def load(kernel: str, stamp: str, key: Any) -> Any:
    """Return what was shipped for a kernel, or None: there is no such thing, it is for other types, or damaged."""
    portable, archive = portable_key(key), _archive(FOLDER)
    if portable is None or archive is None:
        return None
    try:
        import zstandard

        stored = archive.read(entry_name(kernel, stamp, portable))
        content = zstandard.ZstdDecompressor().decompress(stored[16:])
        # Before it is unpickled, since pickle runs what it reads.
        if xxh3_128_digest(content) != stored[:16]:
            return None
        made_from, made_for, data = pickle.loads(content)
    except Exception:  # there is none, or whatever the libraries make of damage
        return None
    return data if (made_from, made_for) == (stamp, portable) else None


@cache
def _archive(folder: Path) -> zipfile.ZipFile | None:
    """Return the archive of a folder for this machine's CPU, which stays open; None if there is none."""
    level = level_of_host()
    try:
        return None if level is None else zipfile.ZipFile(folder / f"{level.name}.zip")
    except (OSError, zipfile.BadZipFile):
        return None
