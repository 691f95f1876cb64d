"""Models that take their tensors out of archives, a few at a time: :func:`load_into`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ..errors import InvalidArgument, check_flag, first_few, missing_torch
from .lazy_file import TensorFile, open

if TYPE_CHECKING:
    import torch

PathOrStream = str | os.PathLike[str] | BinaryIO
#: Bytes of tensors that are in memory beside the model, or one tensor that is larger.
BATCH_BYTES = 1 << 26


class LoadedNames(NamedTuple):
    """The result of :func:`load_into`.

    Attributes:
        missing_keys: Names of tensors that the model has and the archives do not.
        unexpected_keys: Names that the archives have and the model does not.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    model: torch.nn.Module,
    path: PathOrStream | Sequence[PathOrStream],
    *,
    prefix: str = "",
    strict: bool = True,
    device: Any = None,
    base: Any = None,
    threads: int | None = None,
    max_output_bytes: int | None = None,
) -> LoadedNames:
    """Load a model's tensors from an archive, or from several, a few at a time.

    Beside the model's own memory, this takes that of some 100 MB of tensors, or of the largest three.

    ::

        gcodec.load_into(model, "model.safetensors.gc")
        gcodec.load_into(model, sorted(Path("shards").glob("*.gc")))
        gcodec.load_into(model, "last.gc", prefix="model/")  # of gcodec.save({"model": model.state_dict(), ...})

    Names and shapes are compared before anything is loaded. Where a tensor turns out to be damaged, those before it are
    loaded, and it and those after it are not.

    Args:
        model: The model.
        path: The archive, or the archives that have its parts: paths, URLs for fsspec, or binary streams that can seek.
        prefix: What the names in the archives begin with, and the model's do not; other tensors are not read.
        strict: Whether the archives must have exactly the model's tensors. A tensor is not missing where the archives
            have one that shares its memory in the model.
        device: torch device on which loaded tensors, of the types that they have there, take the place of the model's
            own, as ``assign=True`` does it: for a model on the ``meta`` device. None: the model keeps its tensors, and
            the values are copied.
        base: What the archives were made against, if they were, as for :func:`gcodec.load`.
        threads: Threads to use at most; as many as the process may use if None.
        max_output_bytes: Refuse to read larger tensors, for archives from strangers; no limit if None.

    Returns:
        The names of tensors that are missing and unexpected, both empty if ``strict``.

    Raises:
        InvalidArgument: Names or shapes differ; two archives have a tensor of the same name; or the model is on the
            ``meta`` device and ``device`` is None.
        GcodecError: An archive is damaged, or its base is missing or another.
        OSError: An archive cannot be read.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_torch("load_into") from error

    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(f"model must be a torch.nn.Module, not a {type(model).__name__}")
    check_flag("strict", strict)
    if not isinstance(prefix, str):
        raise InvalidArgument(f"prefix must be a string, which may be empty, not {prefix!r:.80}")
    state = model.state_dict(keep_vars=True).items()
    own = {name: value for name, value in state if isinstance(value, torch.Tensor)}
    assign = device is not None
    if not assign and (on_meta := [name for name, tensor in own.items() if tensor.is_meta]):
        raise InvalidArgument(f"device must say where tensors go that are on the meta device: {first_few(on_meta)}")
    paths = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    if not paths:
        raise InvalidArgument("path must name an archive or several, and this is an empty list")
    with ExitStack() as stack:
        limits: dict[str, Any] = {"base": base, "threads": threads, "max_output_bytes": max_output_bytes}
        files = [stack.enter_context(open(one, "pt", device, **limits)) for one in paths]
        places = _places(files, prefix)
        names = _compared(own, places)
        if strict and (names.missing_keys or names.unexpected_keys):
            raise InvalidArgument(_difference(names))
        _check_shapes(own, places)
        batch, n_bytes = dict[str, torch.Tensor](), 0
        for name, others, tensor in _read(_tied(own, places, assign), places):
            if batch and n_bytes + tensor.nbytes > BATCH_BYTES:
                model.load_state_dict(batch, strict=False, assign=assign)
                batch, n_bytes = {}, 0
            if others and isinstance(own[name], torch.nn.Parameter):  # one for all, as the model had it
                tensor = torch.nn.Parameter(tensor, own[name].requires_grad)
            batch.update(dict.fromkeys([name, *others], tensor))
            n_bytes += tensor.nbytes
        model.load_state_dict(batch, strict=False, assign=assign)
    return names


Places = dict[str, tuple[TensorFile, str]]


def _places(files: Sequence[TensorFile], prefix: str) -> Places:
    """Return the file of each tensor and its name there, by the name that the model has for it."""
    places: Places = {}
    for file in files:
        for name in file:
            if name.startswith(prefix) and places.setdefault(name[len(prefix) :], (file, name)) != (file, name):
                raise InvalidArgument(f"{name}: two of the archives have it; each tensor must be in one of them")
    if prefix and not places:
        raise InvalidArgument(f"prefix must begin the names of some tensors, and {prefix!r} begins none")
    return places


def _compared(own: dict[str, torch.Tensor], places: Places) -> LoadedNames:
    """Return the names that only the model has, but for those of memory that is loaded anyway, and that only the files
    have."""
    loaded = {_memory_of(own[name]) for name in places if name in own}
    missing = [name for name, tensor in own.items() if name not in places and _memory_of(tensor) not in loaded]
    return LoadedNames(missing, [name for name in places if name not in own])


def _memory_of(tensor: torch.Tensor) -> object:
    """Return what tensors of the same memory have in common. On the meta device there is none."""
    if tensor.is_meta:
        return id(tensor)
    return tensor.device, tensor.data_ptr() or id(tensor), tensor.shape


def _tied(own: dict[str, torch.Tensor], places: Places, assign: bool) -> dict[str, list[str]]:
    """Return the names of tensors to read, each with others of the model that are the same tensor and must become the
    same again; nothing need be done for these where values are copied."""
    if not assign:
        return {name: [] for name in places}
    groups = dict[object, list[str]]()
    for name, tensor in own.items():
        groups.setdefault(_memory_of(tensor), []).append(name)
    group_of = {name: group for group in groups.values() for name in group}
    result = dict[str, list[str]]()
    for name in places:
        group = group_of.get(name, [name])
        if len(group) == 1 or name == [other for other in places if other in group][-1]:  # as the last copy would be
            result[name] = [other for other in group if other != name]
    return result


def _read(tied: dict[str, list[str]], places: Places) -> Iterator[tuple[str, list[str], torch.Tensor]]:
    """Yield names with those of the same tensors, and the tensors, file by file."""
    for _, run in groupby(tied, lambda name: id(places[name][0])):
        names = list(run)
        with closing(places[names[0]][0].wholes([places[name][1] for name in names])) as values:
            for name, value in zip(names, values, strict=True):
                yield name, tied[name], value


def _check_shapes(own: dict[str, torch.Tensor], places: Places) -> None:
    """Raise InvalidArgument where a tensor has another shape than the model's of that name."""
    for name, (file, in_file) in places.items():
        found, wanted = file.shape(in_file), tuple(own[name].shape) if name in own else None
        if wanted is not None and found != wanted:
            raise InvalidArgument(f"{in_file}: its shape must be {wanted}, as in the model, not {found}")


def _difference(names: LoadedNames) -> str:
    """Return what the error says where names differ."""
    missing, unexpected = names
    parts = [f"lack {first_few(missing)}"] * bool(missing) + [f"have {first_few(unexpected)} besides"] * bool(
        unexpected
    )
    return f"the archives must have the tensors of the model, and {' and '.join(parts)}: strict=False takes what fits"
