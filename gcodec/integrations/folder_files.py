"""The files of a checkpoint folder, compressed and restored in place: what libraries of Hugging Face write and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..archive.file_state import FileState
from ..archive.layout import SUFFIX
from ..archive.output import Staging, sync_to_disk
from ..archive.reader import ArchiveReader
from ..archive.whole_files import compress_file, restore_files, restored_attributes
from ..errors import GcodecError, InvalidArgument

#: Files that hold tensors, by the ends of their names; smaller ones are left as they are, unless an archive is there.
TENSOR_SUFFIXES = (".safetensors", ".pt", ".bin")
MIN_BYTES = 1 << 14
#: Every rank writes such a file of its own, perhaps later than others read.
PER_RANK = ("rng_state", "random_states")


def compress_files_in(folder: str | os.PathLike[str], threads: int | None = None) -> list[Path]:
    """Compress the tensor files of a folder; each is removed when its archive, ``NAME.gc``, is on the disk.

    The folder keeps its time of last change, by which Hugging Face's Trainer tells which checkpoint is older.

    Args:
        folder: The folder.
        threads: Threads to use at most; as many as the process may use if None.

    Returns:
        Paths of the archives.

    Raises:
        GcodecError, OSError: A file cannot be read or written; it is still there.
    """
    folder = Path(folder)
    files = [path for path in sorted(folder.iterdir()) if _is_tensor_file(path)]
    if not files:
        return []
    times = folder.stat()
    archives = []
    for path in files:
        archive = path.with_name(path.name + SUFFIX)
        state = FileState.of(path)
        compress_file(path, archive, force=True, threads=threads)
        sync_to_disk([archive])
        if change := state.change_at(path):
            archive.unlink()  # it would count where it is newer than the file
            raise GcodecError(f"{path}: {change} while it was compressed; it is kept")
        path.unlink()
        archives.append(archive)
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    return archives


def restore_files_in(folder: str | os.PathLike[str], threads: int | None = None) -> list[Path]:
    """Restore what :func:`compress_files_in` compressed, beside the archives, which stay.

    A file that is newer than its archive, as after a save without gcodec or one that was interrupted, is left as it is.
    One that is not newer must be what the archive restores to: times are lost where a folder is copied.

    Args:
        folder: The folder.
        threads: Threads to use at most; as many as the process may use if None.

    Returns:
        Paths of the files.

    Raises:
        InvalidArgument: An archive has several files, is called ``.gc`` alone, or would replace a folder, a link or a
            file that differs; then nothing is written.
        GcodecError, OSError: An archive is damaged, or a file cannot be written.
    """
    archives = archives_in(Path(folder))
    for path in archives:
        if path.is_symlink():
            raise InvalidArgument(f"{path}: must be a file or free to be restored to, but is a symbolic link")
    for path, archive in archives.items():
        _restore_file(archive, path, threads)
    return list(archives)


@contextmanager
def restored_folder(folder: str | os.PathLike[str], threads: int | None = None) -> Iterator[Path]:
    """Give a temporary folder that has the files of another, those in archives restored, all others linked.

    A file that is newer than its archive counts, and not the archive. One that is not newer must be what the archive
    restores to.

    Args:
        folder: The folder.
        threads: Threads to use at most; as many as the process may use if None.

    Raises:
        InvalidArgument: An archive has several files, is called ``.gc`` alone, or has the name of a folder beside it,
            or of a file that differs.
        GcodecError, OSError: An archive is damaged, or there is no space.
    """
    folder = Path(folder).resolve()
    archives = archives_in(folder)
    with TemporaryDirectory(prefix="gcodec-") as name:
        # Archives come first, while nothing in the new folder is a link: through one, they would be written elsewhere.
        for path, archive in archives.items():
            _restore_file(archive, Path(name, path.name), threads)
        for path in sorted(set(folder.iterdir()) - {*archives, *archives.values()}):
            _link(path, Path(name, path.name))
        yield Path(name)


def archives_in(folder: Path) -> dict[Path, Path]:
    """Return the archives of a folder by the path, beside each, of the file that it restores to; those alone that no
    newer file has replaced.

    Raises:
        InvalidArgument: One does not restore to exactly one file of its own name, or to another than is there.
    """
    archives = {}
    for archive in sorted(folder.glob(f"*{SUFFIX}")):
        name = archive.name.removesuffix(SUFFIX)
        if archive.is_dir():
            continue
        if name in ("", ".", ".."):
            raise InvalidArgument(f"{archive}: must be called after the file that it restores to, NAME{SUFFIX}")
        path = archive.with_name(name)
        if path.exists() and not path.is_file():
            raise InvalidArgument(
                f"{path}: must be a file or free, for {archive.name} restores to it, but is a folder or no regular file"
            )
        if _has_replaced(path, archive):
            continue
        with ArchiveReader(archive, threads=1) as reader:
            if len(reader.files) != 1:
                raise InvalidArgument(
                    f"{archive}: must be of one file to be restored as {name}, not of "
                    f"{len(reader.files)}; gcodec decompress restores it"
                )
            if path.is_file() and not path.is_symlink() and not _restores_to(reader, path):
                raise InvalidArgument(
                    f"{path}: differs from what {archive.name} restores to, and is not newer: remove "
                    "the one that is out of date"
                )
        archives[path] = archive
    return archives


def _has_replaced(path: Path, archive: Path) -> bool:
    """Return True for a file that is newer than its archive, which has the time of the file that it was made of."""
    return path.is_file() and not path.is_symlink() and path.stat().st_mtime_ns > archive.stat().st_mtime_ns


def _restores_to(reader: ArchiveReader, path: Path) -> bool:
    """Return True if the only file of an archive has the bytes of the file at ``path``."""
    entry = reader.files[0]
    if path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        return all(file.read(part.size) == part.data for part in reader.restored(entry))


def _restore_file(archive: Path, path: Path, threads: int | None) -> None:
    """Restore the only file of an archive at exactly this path, where ``decompress_file`` may take it for a folder."""
    with ArchiveReader(archive, threads=threads) as reader:
        if len(reader.files) != 1:  # it was replaced since it was looked at
            raise InvalidArgument(f"{archive}: must be of one file to be restored, not of {len(reader.files)}")
        attributes = restored_attributes(archive, whole=True)
        with Staging(force=True, attributes=attributes) as staging:
            restore_files(reader, {reader.files[0].path: path}, staging)


def _is_tensor_file(path: Path) -> bool:
    if not path.name.endswith(TENSOR_SUFFIXES) or path.name.startswith(PER_RANK) or not path.is_file():
        return False
    # An archive of an earlier save must not stay beside a file of a later one, however small that is.
    return path.stat().st_size >= MIN_BYTES or path.with_name(path.name + SUFFIX).is_file()


def _link(path: Path, target: Path) -> None:
    """Link a file or folder under another name; copy it where there are no symbolic links."""
    try:
        target.symlink_to(path, target_is_directory=path.is_dir())
    except OSError:
        (shutil.copytree if path.is_dir() else shutil.copy2)(path, target)
