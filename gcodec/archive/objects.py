"""Objects in archives, in place of ``torch.save`` and ``torch.load``: :func:`save` and :func:`load`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, TypedDict, Unpack

from ..errors import (
    Corruption,
    GcodecError,
    InvalidArgument,
    Unsupported,
    WrongKind,
    check_choice,
    check_flag,
    did_you_mean,
)
from ..files import NOT_ZIP, TORCH_SUFFIXES
from ..files.urls import is_url
from .base_files import Bases, bases_at, no_base
from .devices import check_kind, placement_of
from .dicts import plan_beside, plan_tensors, write_alone
from .entries import FileEntry, unsafe_path
from .held_file import HeldFile
from .layout import SUFFIX
from .lazy_dict import places_of_files
from .named_parts import listed_names
from .own_classes import Classes, KnownClasses
from .plain_files import PlainFile, opened_plain
from .reader import ArchiveReader
from .state_files import NAMES_OF_TORCH, Wanted, load_state, plan_state
from .structure import STRUCTURE

#: Under this name an archive in a stream keeps its object; one at a path keeps it under a name like its own.
STATE_PATH = "state.safetensors"
#: What a path may end in, before ``.gc``, that is no part of its name.
OBJECT_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors")


class LoadOptions(TypedDict, total=False):
    """Further arguments of :func:`load`: ``lazy``, and those of ``torch.load`` that it takes under the same names.

    Attributes:
        lazy: Read tensors when they are first used.
        map_location: The device of all torch tensors, as ``device`` of :func:`load`: a name, a ``torch.device``, a
            dictionary of places that all lead to the same one, or a function of a storage and ``"cpu"``.
        weights_only: True or None, for nothing in a file is executed.
        mmap: True: as ``lazy``; a plain ``.pt`` file must then be one that torch can map.
    """

    lazy: bool
    map_location: Any
    weights_only: bool | None
    mmap: bool | None


def save(
    obj: Any,
    file: str | os.PathLike[str] | BinaryIO,
    *,
    base: Any = None,
    smallest: bool = False,
    threads: int | None = None,
) -> None:
    """Save an object of tensors, as ``torch.save`` would, lossless and compressed; nothing is pickled.

    A file is replaced only when the new one is complete. It is an ordinary archive: ``gcodec decompress`` makes a
    .safetensors file of it, :func:`gcodec.load_file` reads single tensors, by their paths in the object
    (``"optimizer/state/0/exp_avg"``).

    Args:
        obj: Containers of Python (dictionaries, lists, tuples, sets, ``state_dict()``, ``defaultdict``, ``deque``,
            ``argparse.Namespace`` and the like), dataclasses, named tuples and enumerations, in each other, of torch
            tensors on any device, dense, sparse or quantized, this rank's parts of ``DTensor``, JAX arrays, numpy
            arrays and scalars, Python numbers, strings, bytes, paths, dates, and types and devices of torch;
            docs/checkpoints.md has the list. Tensors of the same memory are stored once. It must not change until this
            returns.
        file: Path to write to, such as ``last.gc`` or ``last.pt.gc``, a URL for fsspec, or a binary stream, which need
            not seek.
        base: An earlier object, the path of its archive (or of any tensor file), or an open
            :class:`gcodec.archive.ArchiveReader`. Tensors of the same path, type and size are stored as the difference
            where that is smaller, and loading needs the base again; of float32, bfloat16 and float16, the base may have
            another. Where the base is a difference itself, a list of paths: each archive before its own base. An
            object in memory must stay in some other file than the one that is written.
        smallest: Try more ways to code tensors, and take the smallest, however slow it is.
        threads: Threads to use at most; as many as the process may use if None.

    Raises:
        InvalidArgument: ``obj`` holds something else, which the error names with its place; or ``file`` is the base,
            has the name of a tensor file, such as ``last.pt``, or is nothing that can be written to; or ``base`` has
            no tensors.
        OSError: The file cannot be written.
    """
    if not isinstance(file, str | os.PathLike) and not hasattr(file, "write"):
        given: object = file
        advice = ': the object comes first, as in save(state, "last.gc")'
        if isinstance(given, bytes):
            advice = "; os.fsdecode makes text of a path in bytes"
        raise InvalidArgument(f"file must be a path, a URL or a binary stream, not {type(file).__name__}{advice}")
    plan = plan_state(_path_in_archive(file), obj)
    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(bases_of(base))
        write_alone(plan, file, bases, threads=threads, smallest=smallest)


def load(
    file: str | os.PathLike[str] | BinaryIO,
    *,
    names: Iterable[str] | str | None = None,
    base: Any = None,
    like: str | None = None,
    device: Any = None,
    classes: Classes = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
    **options: Unpack[LoadOptions],
) -> Any:
    """Load an object that :func:`save` has saved, bit for bit; no code of the file is executed, and nothing imported.

    Tensor files are loaded too, those in an archive and those that were never compressed: ``.pt`` and ``.pth`` as
    ``torch.load(weights_only=True)`` does it, others (``.safetensors``, ``.npy``, ``.npz``, ``.gguf``) as a dictionary
    of arrays.

    Args:
        file: Path of the archive or tensor file, a URL for fsspec, or a binary stream.
        names: Paths in the object, or patterns (``"model"``, ``"model/layers.0.*"``), or one of them: what is not
            named is not decoded, and left out of dictionaries; lists and tuples have None in its place, and other
            containers are whole if something in them is named. None: all.
        base: What the object was saved against, if it was, in any form that :func:`save` takes.
        like: ``"numpy"`` or ``"torch"`` for all tensors; None: each as it was saved.
        device: torch device that the torch tensors are put on, as ``map_location`` of ``torch.load``; None: host
            memory.
        classes: Dataclasses, named tuples and enumerations that the object has and that are not imported under the
            names that they were saved under, in a list, or in a dictionary by those names, in which ``dict`` and
            ``str`` stand for any of them; also the classes of tensors that are made of others (``torchao``), whose
            ``__tensor_unflatten__`` is called, and the ``DeviceMesh`` of an object with ``DTensor``.
        threads: Threads to use at most; as many as the process may use if None.
        max_output_bytes: Refuse larger objects, for archives from strangers; no limit if None. Numpy arrays in
            big-endian order count twice: they are copies of what is stored.
        options: Arguments of ``torch.load``: ``map_location`` (as ``device``), ``weights_only`` (True or None) and
            ``mmap`` (True: as ``lazy``); and ``lazy``, to read tensors when they are first used. Dictionaries with
            tensors in them, at any depth, then come as dictionaries that read an item when it is asked for, keep it
            from then on, and keep the file open; other containers are read whole when they are reached. A plain ``.pt``
            file is mapped by torch where it can be, else read whole, and so is one in an archive. Not for streams.

    Returns:
        The object; types come back as they were, those of subclasses such as ``Parameter`` as
        plain tensors, none of which requires a gradient, and JAX arrays as numpy arrays. Tensors of the same memory
        are so again.

    Raises:
        Corruption: The archive or tensor file is damaged.
        GcodecError: It is neither an archive nor a tensor file, and not damaged, as far as can be told.
        Unsupported: It holds no object but several files, or a tensor of a type that neither numpy nor torch has, such
            as quantized weights of a ``.gguf`` file; or an object of a class that is not known, or has other fields
            now; or its base is missing or another.
        InvalidArgument: ``like``, ``device``, ``classes`` or an argument of ``torch.load`` is none, nothing has a name
            of ``names``, or ``lazy`` is True for a stream.
        LimitExceeded: The object is above ``max_output_bytes``.
        OSError: It cannot be read.
        GcodecError: ``lazy`` is True, and the file was written to before all was read; the use of an item raises this.
    """
    where, must_map = _checked(options).get("map_location"), bool(options.get("mmap"))
    lazy = bool(options.get("lazy")) or must_map
    check_kind(like, where if device is None else device)
    known, names = KnownClasses(classes), listed_names(names)

    def loaded(opened: ArchiveReader | PlainFile, entry: FileEntry) -> Any:
        wanted = Wanted(placement_of(device, where), like, names, known)
        if not lazy:
            return load_state(opened, entry, wanted)
        if not isinstance(file, str | os.PathLike):
            raise InvalidArgument(
                f"lazy must be False for a stream, as this {type(file).__name__} is, which whoever opened it may close "
                "before all is read; give a path or a URL"
            )
        held = HeldFile(opened)
        state = load_state(opened, entry, wanted._replace(held=held))
        held.keep(stack.pop_all())
        return state

    with ExitStack() as stack:
        bases = None if base is None else stack.enter_context(bases_of(base))
        found: ArchiveReader | Corruption | WrongKind
        try:
            found = ArchiveReader(file, threads=threads, max_output_bytes=max_output_bytes, base=bases)
        except (Corruption, WrongKind) as error:
            found = error
        if not isinstance(found, ArchiveReader):  # out of its handler, lest errors of a tensor file show it, too
            plain = stack.enter_context(opened_plain(file, max_output_bytes))
            if plain is None or plain.kind == "archive":
                raise found
            if plain.kind == "torch" and like is None:
                if names is not None:
                    raise Unsupported(f"{plain.name}: {NAMES_OF_TORCH}")
                if device is not None or not (callable(where) or isinstance(where, Mapping)):
                    where = placement_of(device, where).map_location
                if must_map and not plain.is_zip:
                    raise Unsupported(f"{plain.name}: {NOT_ZIP}, and torch maps no other: leave out mmap")
                may_map = lazy and plain.is_zip and isinstance(file, str | os.PathLike) and not is_url(file)
                return plain.load_torch(file, where, must_map or may_map)
            entry = stack.enter_context(plain.planned())
            if entry.format == "bytes" and plain.kind == "torch":
                raise Unsupported(f"{plain.name}: {NOT_ZIP}, so that only torch reads it: leave out like")
            if entry.format == "bytes" and plain.why_bytes:
                raise Unsupported(f"{plain.name}: is {plain.why_bytes}, of which gcodec reads none")
            if entry.format == "bytes":
                raise _neither(found, plain)
            return loaded(plain, entry)
        archive = stack.enter_context(found)
        if len(archive.files) != 1:
            raise Unsupported(
                f"{archive.name}: an object is one file, but {len(archive.files)} files are in this "
                "archive; read their tensors with gcodec.load_file"
            )
        return loaded(archive, archive.files[0])


def _neither(found: Corruption | WrongKind, plain: PlainFile) -> GcodecError:
    """Return the error that a file is neither an archive nor a tensor file; ``found``: why it is no archive."""
    begin = f"{found}" if isinstance(found, Corruption) else f"{plain.name}: not a gcodec archive"
    has_lost_its_begin = not plain.what and Path(plain.name).suffix.lower() in TORCH_SUFFIXES
    kind = Corruption if has_lost_its_begin else type(found)
    return kind(f"{begin}; nor is it a .pt, .safetensors, .npy, .npz or .gguf file{plain.what}")


def _checked(options: LoadOptions) -> LoadOptions:
    """Return further arguments of :func:`load`. Raises InvalidArgument for one that means nothing here."""
    for name in options:
        if name not in LoadOptions.__annotations__:
            known = did_you_mean(name, (*LoadOptions.__annotations__, *load.__annotations__))
            raise InvalidArgument(f"load has no argument {name!r}{known}")
    try:
        check_choice("weights_only", options.get("weights_only"), (True, None))
    except InvalidArgument:
        raise InvalidArgument(
            "weights_only must be True or None, for nothing in a file is executed; torch.load(weights_only=False) "
            "reads a .pt file that you trust, and gcodec.save takes what it returns"
        ) from None
    check_flag("lazy", options.get("lazy", False))
    if options.get("mmap") is not None:
        check_flag("mmap", options["mmap"])
    return options


def bases_of(base: Any) -> Bases:
    """Return what finds the base of an object: at a path or a list of them, in an open archive, or another object.

    Raises:
        InvalidArgument: An object without tensors.
        GcodecError: There is no such file.
    """
    bases = bases_at(base)
    if bases is not None:
        return bases
    places = places_of_files(base)  # before dictionaries are read
    plan = plan_state(STATE_PATH, base)
    if all(view.name == STRUCTURE for view in plan.tensors):
        raise no_base(base)
    return Bases(plan, second=lambda: plan_beside(plan, base, plan_tensors), places=places)


def _path_in_archive(file: object) -> str:
    """Return the path under which an archive keeps its object: ``run/last.gc`` has ``last.safetensors``."""
    if not isinstance(file, str | os.PathLike):
        return STATE_PATH
    name = Path(file).name.removesuffix(SUFFIX)
    path = (Path(name).stem if Path(name).suffix in OBJECT_SUFFIXES else name) + ".safetensors"
    return STATE_PATH if unsafe_path(path) or path == ".safetensors" else path
