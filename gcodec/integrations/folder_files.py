"""The files of a checkpoint folder, compressed and restored in place: what libraries of Hugging Face write and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..archive.base_files import SUFFIX
from ..archive.output import sync_to_disk
from ..archive.whole_files import compress_file, decompress_file

#: Files that hold tensors, by the ends of their names; smaller ones are left as they are.
TENSOR_SUFFIXES = (".safetensors", ".pt", ".bin")
MIN_BYTES = 1 << 14
#: Every rank writes such a file of its own, perhaps later than others read.
PER_RANK = ("rng_state", "random_states")


def compress_files_in(folder: str | os.PathLike[str], threads: int | None = None) -> list[Path]:
    """Compress the tensor files of a folder; each is removed when its archive, ``NAME.gc``, is on the disk.

    The folder keeps its time of last change, by which Hugging Face's Trainer tells which checkpoint is older.

    Args:
        folder: the folder.
        threads: threads to use at most; as many as the process may use if None.

    Returns:
        Paths of the archives.

    Raises:
        GcodecError, OSError: a file cannot be read or written; it is still there.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.iterdir()) if _is_tensor_file(path)]
    if not files:
        return []
    times = folder.stat()
    archives = []
    for path in files:
        archive = path.with_name(path.name + SUFFIX)
        compress_file(path, archive, force=True, threads=threads)
        sync_to_disk([archive])
        path.unlink()
        archives.append(archive)
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    return archives


def restore_files_in(folder: str | os.PathLike[str], threads: int | None = None) -> list[Path]:
    """Restore what :func:`compress_files_in` compressed, beside the archives, which stay.

    Args:
        folder: the folder.
        threads: threads to use at most; as many as the process may use if None.

    Returns:
        Paths of the files.

    Raises:
        GcodecError, OSError: an archive is damaged, or a file cannot be written.
    """
    restored = []
    for archive in sorted(Path(folder).glob(f"*{SUFFIX}")):
        path = archive.with_name(archive.name.removesuffix(SUFFIX))
        decompress_file(archive, path, force=True, threads=threads)
        restored.append(path)
    return restored


@contextmanager
def restored_folder(folder: str | os.PathLike[str], threads: int | None = None) -> Iterator[Path]:
    """Give a temporary folder that has the files of another, those in archives restored, all others linked.

    Args:
        folder: the folder.
        threads: threads to use at most; as many as the process may use if None.

    Raises:
        GcodecError, OSError: an archive is damaged, or there is no space.
    """
    with TemporaryDirectory(prefix="gcodec-") as name:
        for path in sorted(Path(folder).resolve().iterdir()):
            target = Path(name, path.name.removesuffix(SUFFIX))
            if path.name.endswith(SUFFIX):
                decompress_file(path, target, force=True, threads=threads)
            elif not target.exists():
                _link(path, target)
        yield Path(name)


def _is_tensor_file(path: Path) -> bool:
    named = path.name.endswith(TENSOR_SUFFIXES) and not path.name.startswith(PER_RANK)
    return named and path.is_file() and path.stat().st_size >= MIN_BYTES


def _link(path: Path, target: Path) -> None:
    """Link a file or folder under another name; copy it where there are no symbolic links."""
    try:
        target.symlink_to(path, target_is_directory=path.is_dir())
    except OSError:
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, target)
