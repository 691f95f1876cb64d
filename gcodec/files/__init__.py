"""Tensor files: what each kind is made of. One small file per format; every one ends in a :class:`FilePlan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ..errors import Corruption, GcodecError, InvalidArgument, WrongKind, what_it_is
from .elements import check_dtype, numpy_dtype, stored_as
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble
from .gguf import MAGIC as GGUF_MAGIC
from .gguf import plan_gguf
from .npy import AS_BYTES, plan_npy
from .npy import MAGIC as NPY_MAGIC
from .npz import check_members, is_npz, plan_npz
from .safetensors import looks_like_safetensors, plan_safetensors
from .source import ArraySource, ByteSource, FileSource, open_source
from .torch_file import is_torch_zip, plan_torch
from .zips import MAGICS as ZIP_MAGICS
from .zips import Zip

__all__ = [
    "ArraySource",
    "ByteSource",
    "FilePlan",
    "FileSegment",
    "FileSource",
    "TensorView",
    "open_source",
    "plan_file",
    "plan_or_bytes",
]

ARCHIVE_MAGIC = b"\x89GCA"
#: What a name promises about its file's first bytes.
PROMISES = {".npy": "npy", ".npz": "zip", ".safetensors": "safetensors", ".gguf": "gguf"}
TORCH_SUFFIXES = (".pt", ".pth")
NOT_ZIP = "its tensors are not told apart: not the zip file that torch.save writes since version 1.6"
SUFFIXES = {"npy": ".npy", "npz": ".npz", "safetensors": ".safetensors", "torch": ".pt", "gguf": ".gguf"}


def plan_file(
    path: str, source: ByteSource, *, dtype: str | None = None, max_unpacked_bytes: int | None = None
) -> FilePlan:
    """Return the plan of a file of any kind, told by its content.

    Args:
        path: Relative, ``/``-separated: under which an archive keeps the file. If it is empty, the file was a stream
            and gets a name after its kind.
        source: The file's bytes; read from while the plan is used.
        dtype: The type of the values of a file without a header, or what the raw bits of a ``.npy`` stand for.
        max_unpacked_bytes: A compressed ``.npz`` may take so many bytes in a temporary file; 1 MiB and 1032 times its
            own size if None, which is the most that deflate makes of it.

    Raises:
        Corruption: The file says it is of a kind but is malformed.
        WrongKind: Its name says that it is of a kind, and it begins as one of another.
        Unsupported: A ``.pt`` file that cannot be read without executing it, or a ``.gguf`` file of another version.
        LimitExceeded: A compressed ``.npz`` is above ``max_unpacked_bytes``.
        InvalidArgument: ``dtype`` does not fit, or is given for a file that has types of its own, or the file is an
            archive already.
    """
    if dtype is not None:
        check_dtype(dtype)
    if not path:
        plan = plan_file("stdin", source, dtype=dtype, max_unpacked_bytes=max_unpacked_bytes)
        return replace(plan, path="stdin" + SUFFIXES.get(plan.format, ""))
    kind, name = _kind(source), PurePosixPath(path).stem
    if kind == "gc":
        raise InvalidArgument(f"{path}: is a gcodec archive already (gcodec -d restores what is in it)")
    promised = PROMISES.get(PurePosixPath(path).suffix.lower(), kind)
    if promised != kind and not dtype:
        what = what_it_is(source.read(0, min(32, source.size)).tobytes(), source.size)
        error = WrongKind if what else Corruption
        raise error(f"{path}: is named {PurePosixPath(path).suffix} but its content is not of that format{what}")
    if kind == "npy":
        return plan_npy(path, source, name, dtype)
    if dtype:
        if _has_types(path, source, kind):
            what = "zip file, such as .npz and .pt" if kind == "zip" else f"{kind} file"
            raise InvalidArgument(
                f"{path}: is a {what}, and has types of its own; dtype is for files without a header "
                "and for raw bits in .npy files: leave it out"
            )
        return _plan_raw(path, source, name, dtype)
    if kind == "safetensors":
        return plan_safetensors(path, source)
    if kind == "gguf":
        return plan_gguf(path, source)
    if kind == "zip":
        return _plan_zip(path, source, name, max_unpacked_bytes)
    torch = PurePosixPath(path).suffix.lower() in TORCH_SUFFIXES
    return assemble(path, "bytes", source, [], note=NOT_ZIP if torch else "")


def plan_or_bytes(
    path: str, source: ByteSource, *, tolerated: type[GcodecError] = GcodecError, **options: Any
) -> FilePlan:
    """Like :func:`plan_file`, with its options, but keep a file that raises ``tolerated`` as plain bytes; the note says
    why. A ``.npz`` file whose members have other checksums than it says is Corruption here."""
    try:
        plan = plan_file(path, source, **options)
        if plan.format == "npz" and plan.source is source:  # of one that had to be unpacked, that was checked
            check_members(plan)
        return plan
    except tolerated as error:
        note = AS_BYTES + str(error).removeprefix(f"{path}: ")
        return assemble(path or "stdin", "bytes", source, [], note=note)


def _kind(source: ByteSource) -> str:
    head = source.read(0, min(16, source.size)).tobytes()
    if head.startswith(NPY_MAGIC):
        return "npy"
    if head.startswith(ZIP_MAGICS):
        return "zip"
    if head.startswith(ARCHIVE_MAGIC):
        return "gc"
    if head.startswith(GGUF_MAGIC):
        return "gguf"
    return "safetensors" if looks_like_safetensors(head, source.size) else "bytes"


def _has_types(path: str, source: ByteSource, kind: str) -> bool:
    """Return True for a file of tensors, or a zip of anything; False for one that only begins like that."""
    if kind not in ("safetensors", "gguf", "zip"):
        return False
    try:
        if kind == "zip":
            Zip.read_from(source, path)
        else:
            (plan_gguf if kind == "gguf" else plan_safetensors)(path, source)
    except GcodecError:
        return False
    return True


def _plan_zip(path: str, source: ByteSource, name: str, max_unpacked_bytes: int | None) -> FilePlan:
    archive = Zip.read_from(source, path)
    if is_torch_zip(archive):
        return plan_torch(path, source, archive, name)
    if is_npz(archive):
        return plan_npz(path, source, archive, max_unpacked_bytes)
    return assemble(path, "bytes", source, [])


def _plan_raw(path: str, source: ByteSource, name: str, dtype: str) -> FilePlan:
    """Return the plan of a file that is nothing but values."""
    element = numpy_dtype(dtype)
    if element is None or source.size % element.itemsize:
        raise InvalidArgument(f"{path}: {source.size} bytes are not a whole number of {dtype} values")
    view = TensorView(name, dtype, (source.size // element.itemsize,), 0)
    return assemble(path, "raw", source, [SegmentViews(FileSegment(0, source.size, stored_as(dtype)), (view,))])
