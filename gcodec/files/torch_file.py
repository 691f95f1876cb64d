"""``.pt`` / ``.pth``: a zip with a pickle and one member per storage; ``.distcp``: many of them, end to end. Every byte
stays in its place."""

from __future__ import annotations

from contextlib import suppress

from ..errors import Unsupported
from .elements import stored_as, width
from .file_plan import FilePlan, FileSegment, SegmentViews, TensorView, assemble, row_major
from .inert_pickle import Budget
from .source import ByteSource
from .torch_pickle import Storage, Tensor, named_tensors, read_pickle
from .zips import Zip, ZipMember, zips_before

PICKLE, STORAGE = "data.pkl", "data/"
MAX_PICKLE = 1 << 28


def is_torch_zip(archive: Zip) -> bool:
    """Return True if the zip has the pickle that ``torch.save`` writes."""
    return _pickle_member(archive) is not None


def plan_torch(path: str, source: ByteSource, archive: Zip, name: str) -> FilePlan:
    """Return the plan of a file that ``torch.save`` wrote; tensors are named by their path (``model/fc.weight``).

    Zips of the same kind that lie before it are taken apart, too; one that cannot be read stays as it is.

    Args:
        archive: The last zip of the file.
        name: For the tensor, if a zip holds a bare one.

    Raises:
        Unsupported: The pickle is malformed, or the members are compressed or big-endian.
    """
    pieces = _pieces(path, source, archive, name)
    for earlier in zips_before(source, path, archive.start):
        with suppress(Unsupported):
            pieces += _pieces(path, source, earlier, name)
    return assemble(path, "torch", source, pieces)


def _pieces(path: str, source: ByteSource, archive: Zip, name: str) -> list[SegmentViews]:
    pickle = _pickle_member(archive)
    if pickle is None or archive.compressed or pickle.stop - pickle.start > MAX_PICKLE:
        raise Unsupported(f"{path}: is not laid out as torch.save writes a .pt file")
    prefix = pickle.name.removesuffix(PICKLE)
    members = {member.name.removeprefix(prefix): member for member in archive.members}
    order = members.get("byteorder")
    if order and source.read(order.start, min(order.stop, order.start + 16)).tobytes() != b"little":
        raise Unsupported(f"{path}: the .pt file is big-endian; only little-endian ones can be read")
    data = source.read(pickle.start, pickle.stop).tobytes()  # what is raised here is no fault of the pickle
    try:
        tensors = _by_storage(data, name)
        return [_piece(members[STORAGE + key], views) for key, views in tensors.items()]
    except (ValueError, KeyError) as error:
        raise Unsupported(f"{path}: {error}") from error


def _pickle_member(archive: Zip) -> ZipMember | None:
    members = [m for m in archive.members if m.name.rpartition("/")[2] == PICKLE and m.name.count("/") <= 1]
    return members[0] if len(members) == 1 else None


def _by_storage(pickle: bytes, name: str) -> dict[str, list[tuple[str, Tensor]]]:
    """Return the tensors on each storage, in the order of the structure."""
    budget = Budget(len(pickle))
    root = read_pickle(pickle, budget)
    tensors: dict[str, list[tuple[str, Tensor]]] = {}
    for path, tensor in named_tensors(root, name, budget):
        tensors.setdefault(tensor.storage.key, []).append((path, tensor))
    return tensors


def _piece(member: ZipMember, tensors: list[tuple[str, Tensor]]) -> SegmentViews:
    """Return a storage as a segment of its own type, or of the first tensor's if it is untyped."""
    first: Storage = tensors[0][1].storage
    dtype = stored_as(first.dtype or tensors[0][1].dtype)
    if dtype and (member.stop - member.start) % (width(dtype) or 1):
        dtype = None
    segment = FileSegment(member.start, member.stop, dtype, member.start, member.crc_at)
    return SegmentViews(segment, tuple(_view(name, tensor, segment) for name, tensor in tensors))


def _view(name: str, tensor: Tensor, segment: FileSegment) -> TensorView:
    last = tensor.offset + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride, strict=True))
    inside = (last + 1) * (width(tensor.dtype) or 1) <= segment.stop - segment.start
    if 0 not in tensor.shape and not inside:
        raise ValueError(f"tensor {name!r} does not fit its storage")
    stride = None if tensor.stride == row_major(tensor.shape) else tensor.stride
    return TensorView(name, tensor.dtype, tensor.shape, 0, tensor.offset, stride)
