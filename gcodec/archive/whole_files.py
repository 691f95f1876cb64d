"""Files into archives and back, as the command line has it: :func:`compress_file` and :func:`decompress_file`."""

from __future__ import annotations

import io
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from operator import itemgetter
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from ..errors import GcodecError, InvalidArgument, Unsupported, check_flag, check_function
from ..files import SUFFIXES, TORCH_SUFFIXES, FilePlan, open_source, plan_or_bytes
from ..files.source import check_not_at_end, naming, open_regular
from ..files.urls import Upload, check_free_url, is_url, open_url, path_or_none, place_of, resolved
from .base_files import Bases
from .base_tensors import Base
from .cast_segments import casts_last
from .encoding_policy import EncodingPolicy, MantissaBits
from .entries import FileEntry, unsafe_path
from .file_state import FilePlace, file_behind
from .file_versions import LITTLE_IN_COMMON, FileVersions, share_in_common, step_order
from .folder_members import members_of, no_files
from .found_values import with_found_values
from .layout import SUFFIX
from .objects import bases_of
from .output import (
    TENSOR_SUFFIXES,
    Attributes,
    Staging,
    check_names_file,
    is_special,
    new_file_mode,
)
from .reader import ArchiveReader, write_restored
from .state_files import with_views_apart
from .tensor_groups import grouped
from .writer import ArchiveWriter

PolicyMaker = Callable[[FilePlan], EncodingPolicy | None]
Progress = Callable[[int], None]
PathOrStream = str | os.PathLike[str] | BinaryIO


class CompressedFile(NamedTuple):
    """The result of :func:`compress_file`.

    Attributes:
        path: The archive; None if it went to a stream or URL.
        input_bytes: Size of the file.
        archive_bytes: Size of the archive.
        exact: Restoring gives the bytes of the file; False after a lossy mode, and for a compressed ``.npz``.
        needs_base: True if it can be restored with its base only.
        note: What the user should know, such as why the file was kept as plain bytes; empty if there is nothing.
        skipped: A line for each thing in a folder that is not in the archive, such as a link to a folder.
    """

    path: Path | None
    input_bytes: int
    archive_bytes: int
    exact: bool
    needs_base: bool
    note: str
    skipped: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The size of the file over that of the archive."""
        return self.input_bytes / self.archive_bytes


def compress_file(
    path: PathOrStream,
    output: PathOrStream | None = None,
    *,
    base: Any = None,
    mantissa_bits: int | None = None,
    dtype: str | None = None,
    smallest: bool = False,
    auto_base: bool = False,
    force: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> CompressedFile:
    """Compress a file, or all files of a folder, into an archive, as ``gcodec compress`` does.

    Nothing is lost unless a mode is given that says so. The archive appears when it is complete, with the permissions
    and times of the file; that of a folder can be read by those who may read every file in it.

    Args:
        path: A folder, or a ``.npy``, ``.npz``, ``.safetensors``, ``.pt``, ``.gguf`` or any other file, told by its
            content; a URL for fsspec, or a stream of its bytes.
        output: Path of the archive, a URL, or a binary stream; by default ``path`` with ``.gc`` appended. It must be
            given where ``path`` is a URL or a stream.
        base: An earlier file or archive, an open archive, or an earlier object: tensors of the same name, type and
            number of values are stored as the difference where that is smaller, and decompressing needs the base again;
            of float32, bfloat16 and float16, the base may have another. Lossless only.
        mantissa_bits: Keep this many mantissa bits of all floating-point tensors of more than one value.
        dtype: Type of the values of a file without a header, or what the raw bits of a ``.npy`` stand for.
        smallest: Try more ways to code what stays lossless, and take the smallest, however slow it is.
        auto_base: Find files of a folder that are versions of each other, as checkpoints of a run are, and store each
            as the difference from the one before, where that is smaller. The archive needs no other. Lossless only.
        force: Replace an archive that exists.
        threads: Threads to use at most; as many as the process may use if None.
        progress: Called with the number of bytes done since the last call.

    Returns:
        Path and sizes, of all files together.

    Raises:
        InvalidArgument: ``path`` is an archive already; or the output would replace it or the base, or
            has the name of a tensor file.
        GcodecError: The archive exists and ``force`` is False; or the file is not what its name says, or damaged.
        OSError: A file cannot be read or written.
    """
    if base is not None and mantissa_bits is not None:
        raise InvalidArgument("base is for lossless mode: leave out mantissa_bits")
    source = _source_of(path, output)
    check_not_at_end(path, "path")
    if path_or_none(output) is not None:
        check_names_file(output)
    is_folder = source is not None and source.is_dir()
    _check_auto_base(auto_base, is_folder, base, mantissa_bits)
    if is_folder:
        source = Path(os.path.abspath(source or ""))  # noqa: PTH100 - resolve() would follow links
        if dtype is not None:
            raise InvalidArgument("dtype is for a file, not for a folder")
    target = source.with_name(source.name + SUFFIX) if source and output is None else path_or_none(output)
    notes, skipped = list[str](), list[str]()
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(bases_of(base))
        members = _members(source, target, skipped) if source is not None and is_folder else []
        attributes = None
        if members:
            attributes = Attributes.within([file.stat() for _, file in members], new_file_mode())
        elif source is not None:
            attributes = None if is_special(source) else Attributes.like(source.stat())
        if target is not None:
            _check_kept([target], None if is_folder else source, bases)
            for _, file in members:
                _check_kept([target], file, None)
        _check_other_place(output, path, bases)
        common = _policy_maker(mantissa_bits), FileVersions() if auto_base else bases
        if auto_base:
            members = sorted(members, key=lambda member: step_order(member[0]))
        # Not in the stack, which an interrupt ends without closing what it has just taken out.
        with ArchiveWriter(
            output if target is None else target,  # type: ignore[arg-type]
            threads=threads,
            force=force,
            smallest=smallest,
            attributes=attributes,
            progress=progress,
        ) as archive:
            if not is_folder:
                with _opened(path, source) as opened:
                    add_file(archive, opened, _name_of(path), *common, note=notes.append, dtype=dtype)
            for name, file in casts_last(members, itemgetter(1)):
                with naming(file), open_regular(file) as opened:
                    add_file(archive, opened, name, *common, tolerated=GcodecError, note=notes.append)
    return CompressedFile(
        target,
        sum(entry.size for entry in archive.files),
        archive.bytes_written,
        all(entry.exact for entry in archive.files),
        any(entry.needs_base for entry in archive.files),
        "; ".join(notes),
        tuple(skipped),
    )


def _members(folder: Path, target: Path | None, skipped: list[str]) -> list[tuple[str, Path]]:
    """Return the files of a folder after their paths in its archive. Raises GcodecError if there are none."""
    members = members_of(folder, folder.parent, target, skipped)
    if not members:
        raise no_files(folder, skipped)
    return members


@contextmanager
def _opened(path: PathOrStream, source: Path | None) -> Iterator[Any]:
    """Give a block what is to be compressed, open; ``source``: where it is, if that is on this machine."""
    if source is not None:
        with source.open("rb") as file:
            yield file
    elif isinstance(path, str) and is_url(path):
        with closing(open_url(path)) as file:
            yield file
    else:
        yield path


def _check_auto_base(auto_base: bool, is_folder: bool, base: Any, mantissa_bits: int | None) -> None:
    """Raise InvalidArgument for ``auto_base`` where it means nothing."""
    check_flag("auto_base", auto_base)
    if auto_base and not is_folder:
        raise InvalidArgument("auto_base is for a folder: a file has no other version in its archive; give base")
    if auto_base and base is not None:
        raise InvalidArgument("auto_base and base cannot both be given")
    if auto_base and mantissa_bits is not None:
        raise InvalidArgument("auto_base is for lossless mode: leave out mantissa_bits")


def decompress_file(
    path: PathOrStream,
    output: PathOrStream | None = None,
    *,
    base: Any = None,
    force: bool = False,
    threads: int | None = None,
    max_output_bytes: int | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Restore the files of an archive, as ``gcodec decompress`` does: all of them appear, or none.

    A single file gets the permissions and times of the archive; nothing is restored with wider permissions than that.

    Args:
        path: Of the archive, a URL for fsspec, or a binary stream.
        output: A folder (that exists, or ends in ``/``) for the files, or the URL of one, which ends in ``/``; for an
            archive of one file also the path or URL of that, or a binary stream. By default the folder of the archive.
        base: What the archive was made against, if it was, in any form that :func:`compress_file` takes.
        force: Replace files that exist.
        threads: Threads to use at most; as many as the process may use if None.
        max_output_bytes: Refuse archives that restore to more, for those of strangers; no limit if None.
        progress: Called with the number of bytes done since the last call.

    Returns:
        Paths of the files; none if they went to URLs or a stream.

    Raises:
        InvalidArgument: Several files for one path or stream, a file would replace the archive or the base, or its
            name says that it is a tensor file of another kind.
        GcodecError: A file exists and ``force`` is False; the archive is damaged, or its base missing or another.
        OSError: A file cannot be read or written.
    """
    source = _source_of(path, output)
    check_function("progress", progress)
    check_flag("force", force)
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(bases_of(base))
        archive = stack.enter_context(
            ArchiveReader(path, threads=threads, max_output_bytes=max_output_bytes, base=bases)
        )
        archive.check_limit()
        _check_other_place(output, path, bases)
        target = source.parent if source and output is None else path_or_none(output)
        url = output if isinstance(output, str) and target is None else ""
        is_folder = url.endswith("/") or (
            target is not None and (output is None or target.is_dir() or str(output).endswith("/"))
        )
        if not is_folder and len(archive.files) != 1:
            raise InvalidArgument(f"output must be a folder (ending in /) for {len(archive.files)} files")
        if not is_folder and (url or target is not None):
            check_restored_name(archive.files[0], url or target or "")
        if url:
            urls = urls_below(archive, url)
            for place in urls.values():
                _check_other_place(place, path, bases)
            upload_files(archive, urls, force=force, progress=progress)
            return []
        if target is None:
            write_restored(archive, archive.files[0], output, progress)
            return []
        paths = paths_below(archive, target) if is_folder else {archive.files[0].path: target}
        _check_kept(paths.values(), source, bases)
        attributes = None if source is None else restored_attributes(source, whole=len(paths) == 1)
        with Staging(force=force, attributes=attributes) as staging:
            restore_files(archive, paths, staging, target if is_folder else None, progress)
        return list(paths.values())
    raise AssertionError  # an ExitStack suppresses nothing of its own


def check_restored_name(entry: FileEntry, place: str | os.PathLike[str]) -> None:
    """Raise InvalidArgument for a restored file under a name that says that it is a tensor file of another kind.

    Args:
        entry: The file in its archive.
        place: Path or URL of the file to be written, as it was given.
    """
    kind, suffix = SUFFIXES.get(entry.format, ""), PurePath(place).suffix
    kinds = TORCH_SUFFIXES if entry.format == "torch" else (kind,)
    if not kind or suffix not in TENSOR_SUFFIXES or suffix in (*kinds, PurePosixPath(entry.path).suffix):
        return
    other = "; gcodec decompress makes a .safetensors file of the tensors" if suffix == ".safetensors" else ""
    raise InvalidArgument(
        f"{place}: would be a {kind} file under the name of a {suffix} file; call it "
        f"{str(place).removesuffix(suffix)}{kind}{other}"
    )


def add_file(
    archive: ArchiveWriter,
    opened: BinaryIO,
    path: str,
    make_policy: PolicyMaker | None = None,
    bases: Bases | FileVersions | None = None,
    *,
    tolerated: type[GcodecError] = Unsupported,
    note: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> FileEntry:
    """Add an open file to an archive, and return its entry.

    Args:
        path: Its path in the archive; empty: a name after its kind.
        make_policy: Makes the policy of a lossy mode; None: lossless.
        bases: Where its base is, or what finds it among the files that the archive has; None: it has none.
        tolerated: Errors of a tensor file that mean that it is kept as plain bytes.
        note: Called with what the user should know.
        options: ``dtype`` and ``max_unpacked_bytes``, as for :func:`gcodec.files.plan_file`.

    Raises:
        GcodecError, OSError: As for :func:`compress_file`.
    """
    with (
        closing(open_source(opened)) as source,
        closing(plan_or_bytes(path, source, tolerated=tolerated, **options)) as plan,
    ):  # whose source may be a copy
        if plan.note:
            note(f"{plan.path}: {plan.note}")
        policy, base = make_policy(plan) if make_policy else None, None
        parts = plan if plan.tensors else with_found_values(plan)
        has_values = bool(plan.tensors) or parts is not plan
        if policy and not plan.tensors:
            policy = None
            if has_values:
                note(f"{plan.path}: stays exact, for lossy modes are for tensors, and its values have no names")
        if isinstance(bases, FileVersions):
            base = None if policy else bases.base_of(plan)
        elif bases and has_values:
            _check_not_own_base(opened, bases.file_of(plan.path))
            base = bases.find(plan.path, options.get("dtype"), needs_tensors=bool(plan.tensors))
        entry = archive.add(parts if policy else grouped(with_views_apart(parts), base), policy, base)
        if isinstance(bases, FileVersions):
            bases.add(entry, len(archive.files) - 1, source, base)
        elif base is not None:
            _note_use(entry, parts, base, note)
        elif bases and has_values:
            note(f"{plan.path}: compressed without a base, for {bases.place} has no file of this path")
        return entry


def _note_use(entry: FileEntry, plan: FilePlan, base: Base, note: Callable[[str], None]) -> None:
    """Say of a base that it saves nothing, or that little of a file has counterparts in it."""
    if not entry.needs_base:
        note(f"{entry.path}: compressed without {base.name}, which would save nothing")
        return
    common = share_in_common(plan, base)
    if common < LITTLE_IN_COMMON:
        n_used = sum(entry.segments[view.segment].base is not None for view in entry.tensors)
        note(
            f"{entry.path}: has little in common with {base.name}: the base has tensors of the name, type and size of "
            f"{100 * common:.2g} % of its bytes, and {n_used} of {len(entry.tensors)} tensors are smaller with it"
        )


def _check_not_own_base(opened: BinaryIO, base: Path | str | None) -> None:
    """Raise InvalidArgument if a file would be its own base: its archive could be restored from that file only."""
    name = getattr(opened, "name", None)
    if not isinstance(base, Path) or not isinstance(name, str | os.PathLike):
        return
    places = [resolved(place.parent) / place.name for place in (Path(name), base)]  # a link elsewhere is another file
    if places[0] == places[1]:
        raise InvalidArgument(f"{base}: is an input, and would be its own base; give an earlier file as the base")


def paths_below(archive: ArchiveReader, folder: Path) -> dict[str, Path]:
    """Return where the files of an archive are restored in a folder, by their paths in the archive."""
    return {entry.path: folder / PurePosixPath(entry.path) for entry in archive.files}


def restore_files(
    archive: ArchiveReader,
    paths: Mapping[str, Path],
    staging: Staging,
    root: Path | None = None,
    progress: Progress | None = None,
) -> None:
    """Restore the files of an archive into a staging area.

    Args:
        paths: Where each file goes, by its path in the archive.
        staging: Gives them their names when all are complete.
        root: The folder that all are in, in which folders are made; None: the caller named the file itself.
        progress: Called with the number of bytes done since the last call.

    Raises:
        GcodecError, OSError: As for :func:`decompress_file`.
    """
    for entry in archive.files:
        path = paths[entry.path]
        if root is not None:
            staging.make_folder(root, path.parent)
        with naming(path), staging.create(path, named=root is None) as file:
            write_restored(archive, entry, file, progress)


def urls_below(archive: ArchiveReader, url: str) -> dict[str, str]:
    """Return the URLs of an archive's files by their paths in it: below a ``url`` that ends in ``/``, else ``url``."""
    return {entry.path: f"{url}{entry.path}" if url.endswith("/") else url for entry in archive.files}


def upload_files(
    archive: ArchiveReader, urls: Mapping[str, str], *, force: bool = False, progress: Progress | None = None
) -> None:
    """Restore the files of an archive to URLs: each of them is put whole, and none before all are complete.

    Args:
        urls: Where each file goes, by its path in the archive.
        force: Replace files that exist.
        progress: Called with the number of bytes done since the last call.

    Raises:
        GcodecError, OSError: As for :func:`decompress_file`.
    """
    for url in urls.values():
        check_free_url(url, force=force)
    with ExitStack() as uploads:
        for entry in archive.files:
            write_restored(archive, entry, uploads.enter_context(Upload(urls[entry.path])), progress)


def restored_attributes(archive: Path, *, whole: bool = False) -> Attributes | None:
    """Return what restored files take from their archive: nobody may read them who may not read that.

    Args:
        archive: The archive's path.
        whole: The archive holds a single file, which is restored: it gets the archive's permissions, owner and times.
    """
    if is_special(archive):
        return None
    found = archive.stat()
    return Attributes.like(found) if whole else Attributes.within([found], new_file_mode())


def _name_of(file: object) -> str:
    """Return the name under which an archive keeps a file; empty for a stream without a name."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
    name = PurePath(name).name if isinstance(name, str | os.PathLike) else ""
    return "" if unsafe_path(name) else name


def _policy_maker(mantissa_bits: int | None) -> PolicyMaker | None:
    return None if mantissa_bits is None else lambda plan: MantissaBits(plan, mantissa_bits)


def _source_of(
    path: str | os.PathLike[str] | BinaryIO, output: str | os.PathLike[str] | BinaryIO | None
) -> Path | None:
    """Return the path that is read, None for a stream or URL; after a check of where from and where to."""
    _check_place("path", path, "read")
    if output is not None:
        _check_place("output", output, "write")
    source = path_or_none(path)
    if source is None and output is None:
        raise InvalidArgument("output must be given for a stream or URL")
    return source


def _check_place(name: str, place: object, method: str) -> None:
    """Raises InvalidArgument for what is neither a path, a URL nor a stream that has the method."""
    if not isinstance(place, str | os.PathLike) and not hasattr(place, method):
        raise InvalidArgument(f"{name} must be a path, a URL or a binary stream, not {reprlib.repr(place)}")
    if isinstance(place, io.TextIOBase):
        raise InvalidArgument(f"{name} must be a binary stream, not a {type(place).__name__}: open it with 'b'")


def _check_other_place(output: object, path: PathOrStream, bases: Bases | None) -> None:
    """Raises InvalidArgument if a URL that is read would be replaced, or a stream would write to a file that is."""
    if isinstance(output, str) and is_url(output):
        is_input = isinstance(path, str | os.PathLike) and place_of(path) == place_of(output)
        if is_input or (bases is not None and bases.is_at(output)):
            raise InvalidArgument(f"{output}: is read, and would be replaced; give another output")
    elif hasattr(output, "write"):
        stream = cast(BinaryIO, output)
        if _is_input(stream, path) or (bases is not None and bases.is_at(stream)):
            name = getattr(stream, "name", "stream")
            raise InvalidArgument(f"{name}: is read, and would be written over; give another output")


def _is_input(stream: BinaryIO, path: PathOrStream) -> bool:
    """Return True if a stream would write to what is read."""
    if isinstance(path, str | os.PathLike):
        return FilePlace(path).is_at(stream)
    read, written = file_behind(path), file_behind(stream)
    return path is stream or (read is not None and written is not None and os.path.samestat(read, written))


def _check_kept(targets: Iterable[Path], source: Path | None, bases: Bases | None) -> None:
    """Raises InvalidArgument if a file that is read would be replaced."""
    for target in targets:
        if source is not None and target.exists() and source.exists() and target.samefile(source):
            raise InvalidArgument(f"{target}: is the input itself, and would be replaced; give another output")
        if bases is not None and bases.is_at(target):
            raise InvalidArgument(f"{target}: is the base, and would be replaced; give another output")
