"""Dictionaries of tensors in one archive, as safetensors does it: :func:`save_file` and :func:`load_file`."""

from __future__ import annotations

import os
import reprlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, BinaryIO
from weakref import ref

import numpy as np

from ..errors import GcodecError, InvalidArgument, LimitExceeded, did_you_mean
from ..files.elements import check_dtype, width
from ..files.file_plan import LONGEST_NAME, FilePlan, TensorView
from ..files.safetensors import plan_described
from ..files.source import ArraySource, Bytes
from ..tensors import as_plain_array, host_array, is_jax, is_torch
from .arrays import as_bytes
from .base_files import Bases, HoldsArchive, bases_at, no_base
from .devices import Placement, check_kind, device_of
from .encoding_policy import EncodingPolicy, GivenLevels, MantissaBits
from .entries import FileEntry, well_formed
from .lazy_dict import places_of_files
from .reader import ArchiveReader
from .shared_memory import lies_in, memory_of
from .state_files import plan_state
from .structure import STRUCTURE
from .tensor_groups import grouped, in_order, laid_out
from .tensor_names import NamedTensor, TensorNames
from .writer import ArchiveWriter

#: Under this name an archive of a dictionary keeps it: ``gcodec decompress`` restores a .safetensors file.
DICT_PATH = "tensors.safetensors"
#: Arguments of ``gcodec.encode`` that :func:`save_file` takes for tensors that are not lossless.
ENCODE_OPTIONS = ("ladder", "rounding", "keep", "options")
#: What a base may be given as: tensors by name, a path as for :class:`Bases` or a chain of them, or an open archive.
BaseLike = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | ArchiveReader | HoldsArchive

_Array = tuple[str, tuple[int, ...], Bytes]  #: type, shape and bytes


def save_file(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str] | BinaryIO,
    *,
    metadata: Mapping[str, str] | None = None,
    dtype: str | Mapping[str, str] | None = None,
    levels: Mapping[str, Any] | None = None,
    mantissa_bits: int | None = None,
    base: BaseLike | None = None,
    smallest: bool = False,
    threads: int | None = None,
    **encode_options: Any,
) -> None:
    """Write tensors to an archive, replacing the file only when the new one is complete. Lossless by default.

    Args:
        tensors: Name to numpy array, JAX array or torch tensor, of any type that .safetensors has, any shape and
            strides. Those of the same memory, type and shape are stored once, and tied again when they are loaded.
            (The .safetensors file that ``gcodec decompress`` makes has the first of them, and the names of the others
            in its metadata, as ``safetensors.torch.save_model`` has it.)
        path: Of the archive, such as ``weights.gc``, a URL for fsspec, or a binary stream.
        metadata: Strings to keep with the tensors.
        dtype: What unsigned integer arrays really hold (``"bfloat16"``): for each name, or for all of fitting width.
        levels: Name to uint8 level indices, of the tensor's shape or flat; these tensors are near-lossless, all others
            lossless.
        mantissa_bits: Keep this many bits in all floating-point tensors of more than one value; not with ``levels``.
        base: Earlier tensors, such as those of the last checkpoint: a dictionary of them, the path of a tensor file or
            archive, a list of paths (each archive before its own base), or an open archive, as of
            :func:`gcodec.open`. Tensors of the same name, type and number of values are stored as the difference where
            that is smaller, and loading them needs the base again; of float32, bfloat16 and float16, the base may have
            another. Lossless only.
        smallest: Try more ways to code what stays lossless, and take the smallest, however slow it is.
        threads: As many as the process may use if None.
        encode_options: ``ladder``, ``rounding``, ``keep`` and ``options`` as for :func:`gcodec.encode`, for ``levels``
            and ``mantissa_bits``.

    Raises:
        InvalidArgument: A tensor or an option that has no meaning here, or ``path`` has the name of a tensor file.
        OSError: The file cannot be written.
    """
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise InvalidArgument(f"tensors must be a dictionary of tensors, not a {kind}; gcodec.save takes more")
    if STRUCTURE in tensors:  # loading would take it for one, and fail
        raise InvalidArgument(
            f"tensor {STRUCTURE!r}: must have another name, for this one is that of the structure "
            "of a state that gcodec.save wrote"
        )
    if not isinstance(levels, Mapping | None):
        raise InvalidArgument(f"levels must be a dictionary of level indices by name, not a {type(levels).__name__}")
    for name in encode_options:
        if name not in ENCODE_OPTIONS:  # where no tensor is encoded with them, nothing else would say so
            known = did_you_mean(name, (*ENCODE_OPTIONS, *save_file.__annotations__))
            raise InvalidArgument(f"save_file has no argument {name!r}{known}")
    if levels and mantissa_bits is not None:
        raise InvalidArgument("levels and mantissa_bits cannot both be given")
    for name in dtype if isinstance(dtype, Mapping) else ():
        if name not in tensors:
            raise InvalidArgument(f"dtype has the key {name!r}, but there is no such tensor")
    plan = plan_tensors(tensors, metadata, dtype, untied=levels or ())
    policy: EncodingPolicy | None = None
    if levels:
        policy = GivenLevels(plan, levels, encode_options)
    elif mantissa_bits is not None:
        policy = MantissaBits(plan, mantissa_bits, encode_options)
    elif encode_options:
        raise InvalidArgument(f"{', '.join(encode_options)}: of use only with levels or mantissa_bits; give one")
    if base is not None and policy is not None:
        raise InvalidArgument(f"base is for lossless mode: leave out {'levels' if levels else 'mantissa_bits'}")
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(_bases(base, dtype))
        write_alone(plan, path, bases, policy, threads=threads, smallest=smallest)


def write_alone(
    plan: FilePlan,
    path: str | os.PathLike[str] | BinaryIO,
    bases: Bases | None,
    policy: EncodingPolicy | None = None,
    *,
    threads: int | None,
    smallest: bool,
) -> None:
    """Write an archive of one file, in place of what is at ``path``. Raises InvalidArgument if that is the base."""
    if bases is not None and bases.is_at(path):
        name = path if isinstance(path, str | os.PathLike) else getattr(path, "name", "stream")
        raise InvalidArgument(f"{name}: is the base, and would be replaced; write to another file")
    # Not in a stack, which an interrupt ends without closing what it has just taken out.
    with ArchiveWriter(path, threads=threads, force=True, smallest=smallest) as archive:
        earlier = None if bases is None else bases.find(plan.path, needs_tensors=True)
        parts = plan if policy else grouped(plan, earlier)  # a policy has options for each tensor
        archive.add(parts, policy, earlier)


def load_file(
    path: str | os.PathLike[str] | BinaryIO,
    *,
    names: Iterable[str] | str | None = None,
    like: str | None = None,
    device: Any = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
    base: BaseLike | None = None,
) -> dict[str, Any]:
    """Read tensors from an archive, whatever kind of file it was made from.

    Args:
        path: Of the archive, a URL for fsspec, or a binary stream.
        names: Names or patterns (``"model/*.weight"``) of those to read, or one of them; all if None. In an archive of
            several files a name is ``FILE:NAME``.
        like: ``"numpy"`` or ``"torch"`` for all tensors. None: as they were saved; of an archive made from a file, or
            from a dictionary of both kinds, as torch tensors if it was a ``.pt`` file or has a type that numpy lacks,
            such as bfloat16, and torch is installed, else as numpy arrays. In numpy, such types come as those of
            ml_dtypes, or as unsigned integers of the same width where that is not installed.
        device: torch device that all tensors are put on, as torch tensors; None: host memory.
        threads: As many as the process may use if None.
        max_output_bytes: Refuse to decode to more than this; for archives from strangers.
        base: What the tensors were saved against, if they were: the same values, in any of the forms that
            :func:`save_file` takes.

    Returns:
        Name to array. Tensors that shared memory, as tied weights do, share it again. Where many are read, those of up
        to 8 MiB are pieces of larger memory, of up to 32 MiB, which stays while any of them does: name the few that you
        want, or copy those that you keep for longer than the others.

    Raises:
        GcodecError: The archive is damaged, a name is not in it, two tensors would have the same name in the result,
            the limit is exceeded, the base is missing or holds other values, or there is no such device.
        OSError: It cannot be read.
    """
    check_kind(like, device)
    place = Placement(device_of(device))
    like = like if device is None else "torch"
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(_bases(base))
        archive = stack.enter_context(
            ArchiveReader(path, threads=threads, max_output_bytes=max_output_bytes, base=bases)
        )
        wanted = [names] if isinstance(names, str) else names
        found = TensorNames(archive)
        tensors = found.all() if wanted is None else found.matching(wanted)
        with closing(_read_all(archive, tensors, like, max_output_bytes)) as arrays:
            return {name: place(value, is_alone) for name, value, is_alone in arrays}


def _read_all(
    archive: ArchiveReader, wanted: Mapping[str, NamedTensor], like: str | None, max_output_bytes: int | None
) -> Generator[tuple[str, Any, bool], None, None]:
    """Yield names and arrays, and whether an array shares its memory with no other."""
    places = {name: (entry.path, view.segment) for name, (entry, view, _) in wanted.items()}
    first: dict[tuple[str, int], tuple[FileEntry, TensorView]] = {}  # of the tensors on each segment
    for name, (entry, view, _) in wanted.items():
        first.setdefault(places[name], (entry, view))
    total = sum(entry.segments[view.segment].bytes for entry, view in first.values())
    if max_output_bytes is not None and total > max_output_bytes:
        raise LimitExceeded(f"{archive.name}: {total} bytes of tensors are above the limit of {max_output_bytes}")
    n_left: Counter[tuple[str, int]] = Counter(places.values())
    most = {key for key, n in n_left.items() if 2 * n > len(first[key][0].views[key[1]])}
    data: dict[tuple[str, int], Bytes] = {}  # as long as a tensor of the segment is still to come
    with closing(archive.segments_bytes(list(first.values()))) as segments:
        ahead = zip(first, segments, strict=False)
        for name, (entry, view, kind) in wanted.items():
            place = places[name]
            while place not in data:
                found, data[found] = next(ahead)
            array = archive.array(entry, view, data[place], like=like or kind, with_others=place in most)
            n_left[place] -= 1
            if not n_left[place]:
                del data[place]
            yield name, array, view.segment in entry.groups or len(entry.views[view.segment]) == 1


def plan_tensors(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, str] | None = None,
    dtype: str | Mapping[str, str] | None = None,
    untied: Collection[str] = (),
) -> FilePlan:
    """Return the plan of the .safetensors file that would hold ``tensors``; the data stays where it is.

    Args:
        tensors: By name.
        metadata: As for :func:`save_file`.
        dtype: As for :func:`save_file`.
        untied: Names of those that are stored alone, whatever their memory is.

    Raises:
        InvalidArgument: A name or type that .safetensors lacks, or metadata that are no strings.
    """
    if not isinstance(dtype, str | Mapping | None):
        raise InvalidArgument(f"dtype must be the name of a type, or a dictionary of such, not {dtype!r:.80}")
    for kind in () if dtype is None else dtype.values() if isinstance(dtype, Mapping) else (dtype,):
        check_dtype(kind)
    own = _strings(metadata)
    for name in tensors:
        if type(name) is str and len(name) <= LONGEST_NAME and name.isascii():  # most
            continue
        if not _is_text(name):
            raise InvalidArgument(f"a tensor's name must be a string that UTF-8 can encode, not {name!r}")
        if len(name.encode()) > LONGEST_NAME:
            raise InvalidArgument(
                f"a tensor's name must have at most {LONGEST_NAME} bytes of UTF-8, not "
                f"{len(name.encode())}: {name[:40]!r} ..."
            )
    arrays, ties, kinds = _stored_arrays(tensors, dtype, untied)
    given = {name: (element, shape, data.size) for name, (element, shape, data) in arrays.items()}
    order, places = laid_out(given), {name: place for place, name in enumerate(given)}
    pairs = {other: name for name, others in ties.items() for other in others} | own
    plan = plan_described(
        DICT_PATH,
        given,
        [[name] for name in order],
        lambda header: ArraySource([np.frombuffer(header, np.uint8), *(arrays[name][2] for name in order)]),
        metadata=pairs if pairs or metadata is not None else None,
        ties=ties,
        container=None if len(kinds) > 1 else next(iter(kinds), "numpy"),
    )
    return in_order(plan, [places[name] for name in order for _ in (name, *ties[name])])


def _strings(metadata: object) -> dict[str, str]:
    """Return a file's own key-value pairs. Raises InvalidArgument, which names the key, unless all are strings."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata must be a dictionary of strings, not a {type(metadata).__name__}")
    pairs = dict(metadata or {})
    for key, value in pairs.items():
        if not _is_text(key) or not _is_text(value):
            found = f"{key!r}: {reprlib.repr(value)}"
            raise InvalidArgument(f"metadata must map strings to strings that UTF-8 can encode; found {found}")
    return pairs


def _is_text(value: object) -> bool:
    return isinstance(value, str) and well_formed(value)


def _stored_arrays(
    tensors: Mapping[str, Any], dtype: str | Mapping[str, str] | None, untied: Collection[str]
) -> tuple[dict[str, _Array], dict[str, list[str]], set[str]]:
    """Return the arrays to store, for each the other names of the same memory, type and shape, and what kinds there
    are, "numpy" or "torch".

    Each is asked for once: some mappings, as that of an .npz file, make an array whenever one is asked for. Once such
    an array has ended, the next may get its memory, and is another; so only what is still there is the same. An array
    whose bytes are stored as they lie stays until they are written, and one that was copied goes at once.
    """
    first: dict[Hashable, tuple[str, ref[Any]]] = {}
    arrays, ties, kinds, kept = dict[str, _Array](), dict[str, list[str]](), set[str](), []
    of_all = dtype if isinstance(dtype, str) else None
    type_of = dtype if isinstance(dtype, Mapping) else None  # asked once, because Mapping takes a microsecond to tell
    for name, given in tensors.items():
        value = given if type(given) is np.ndarray else host_array(given, f"tensor {name!r}")
        kinds.add("numpy" if value is given and type(value) is np.ndarray else "torch" if is_torch(value) else "numpy")
        memory = None if name in untied else memory_of(value)
        key = memory, None if type_of is None else type_of.get(name)
        if memory is not None and key in first and first[key][1]() is not None:
            ties[first[key][0]].append(name)
            continue
        how = of_all if type_of is None else type_of.get(name)
        arrays[name], ties[name] = _bytes_of(name, value, how, is_for_all=type_of is None), []
        if memory is not None:
            first[key] = name, ref(value)
            if lies_in(value, arrays[name][2]):
                kept.append(value)
    return arrays, ties, kinds


def _bases(base: BaseLike, dtype: str | Mapping[str, str] | None = None) -> Bases:
    bases = bases_at(base)
    if bases is not None:
        return bases
    if not isinstance(base, Mapping):  # an empty one is a base that has none of the names
        raise no_base(base)
    plan = plan_tensors(base, dtype=dtype)
    second = partial(plan_beside, plan, base, partial(plan_state, DICT_PATH))
    return Bases(plan, second=second, places=places_of_files(base))


def plan_beside(plan: FilePlan, tensors: Any, make: Callable[[Any], FilePlan]) -> FilePlan | None:
    """Return another plan of the tensors of a base, as a dictionary or as a state.

    None where it would have the same tensors under the same names, and where that kind of file does not hold them.

    Args:
        plan: The plan of one kind.
        tensors: The base as it was given.
        make: Makes the plan of the other kind.
    """
    if not isinstance(tensors, Mapping) or not all(
        isinstance(t, np.ndarray) or is_torch(t) or is_jax(t) for t in tensors.values()
    ):
        return None
    if _is_plain_state(plan, tensors):  # before tensors of devices are copied to the host
        return None
    try:
        other = make(tensors)
    except GcodecError:
        return None
    return None if _is_plain_state(other, tensors) else other


def _is_plain_state(plan: FilePlan, tensors: Mapping[str, Any]) -> bool:
    """Return True for the plan of a state that holds tensors as a dictionary does, and under the same names."""
    shapes = {view.name: view.shape for view in plan.tensors}
    if shapes.pop(STRUCTURE, None) is None or any(segment.apart for segment in plan.segments):
        return False
    return shapes == {name: tuple(value.shape) for name, value in tensors.items()}


def _bytes_of(name: str, value: Any, type_name: str | None, *, is_for_all: bool) -> _Array:
    """Return what is stored of a tensor; ``type_name``: of the type whose bits it holds, ``is_for_all``: if it is of
    unsigned integers of that width."""
    try:
        if type_name is not None and is_for_all:
            array_type = None if is_torch(value) else as_plain_array(value, "tensor").dtype
            fits = array_type is not None and array_type.kind == "u" and array_type.itemsize == width(type_name)
            type_name = type_name if fits else None
        return as_bytes(value, type_name)
    except InvalidArgument as error:
        raise InvalidArgument(f"tensor {name!r}: {error}") from error
