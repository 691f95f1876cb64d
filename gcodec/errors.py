"""The errors gcodec raises: one family, so that ``except gcodec.GcodecError`` catches all of them."""

from __future__ import annotations

import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class GcodecError(Exception):
    """Base of every error that gcodec raises on purpose."""


class InvalidArgument(GcodecError, ValueError):
    """An argument is wrong: its type, its value, or its combination with another one."""


class Corruption(GcodecError):
    """The bytes are not a valid frame or archive: a field out of range, a checksum that differs."""


class InsufficientData(Corruption):
    """The bytes end before the frame or archive does."""


class WrongKind(GcodecError):
    """The bytes are not damaged, as far as can be told, but another kind of file than this call reads: a tensor file in
    place of an archive, an archive in place of a frame, text."""


class Unsupported(GcodecError):
    """The request or the bytes are valid, but not supported here: a later version of the format, a codebook or base
    that is missing, an optimizer without a rule, a device or library that lacks something."""


class LimitExceeded(GcodecError):
    """Decoding would need more memory than the caller allowed (``max_output_bytes``), or than there is."""


class NoMemory(LimitExceeded, MemoryError):
    """Less memory is there than decoding needs: a MemoryError, too, for who makes room and tries again."""


class PeerError(GcodecError):
    """Another rank of a process group has died, has gone silent, has failed, or does not do what this rank does."""


class BrokenChain(GcodecError):
    """A version of weights does not follow the weights that are held: a version between them is missing, or this one is
    older or of another run. The weights stay as they are; apply the missing versions first, or an anchor."""


class DeviceError(GcodecError, RuntimeError):
    """Tells that a device or its driver failed: not the arguments' fault."""


class NotInstalled(GcodecError, ImportError):
    """A package that most of gcodec does without is needed for this, and is not installed."""


class KernelCacheWarning(UserWarning):
    """Compiled kernels are not kept where they last: later processes may have to compile them again, for minutes."""


class CheckpointWarning(UserWarning):
    """A checkpoint is saved, but takes more room than it should: its base cannot be read, or an old one not removed;
    or an earlier run has left steps of higher numbers beside it."""


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise InvalidArgument unless the value of the argument ``name`` is one of ``choices``."""
    if not _is_one_of(value, choices):
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r:.80}")


def check_flag(name: str, value: Any) -> None:
    """Raise InvalidArgument unless the value of the argument ``name`` is True or False, of Python or numpy, or 1 or 0:
    texts such as "False" would count as True."""
    if not _is_one_of(value, (True, False)):
        raise InvalidArgument(f"{name} must be True or False, not {value!r:.80}")


def _is_one_of(value: Any, choices: Collection[Any]) -> bool:
    try:
        return bool(value in choices)
    except (TypeError, ValueError, RuntimeError):  # unhashable, or an array, which compares value by value
        return False


def check_int(name: str, value: Any, minimum: int = 0, maximum: int | None = None) -> int:
    """Return an argument as an int of Python's: numpy's would overflow, and are written in other ways.

    Args:
        name: The argument's name.
        value: The argument.
        minimum: The least value that it may have.
        maximum: The largest; None: there is none.

    Raises:
        InvalidArgument: The argument is no integer, or outside these limits.
    """
    try:
        number = operator.index(value)
    except TypeError:  # of arrays of several values, too, which have the method
        raise InvalidArgument(f"{name} must be an integer, not {value!r:.80}") from None
    if isinstance(value, bool):
        raise InvalidArgument(f"{name} must be an integer, not {value!r:.80}")
    if number < minimum or (maximum is not None and number > maximum):
        limits = f"at least {minimum}" if maximum is None else f"an integer from {minimum} to {maximum}"
        raise InvalidArgument(f"{name} must be {limits}, not {number}")
    return number


def check_optional_int(name: str, value: Any) -> int | None:
    """Return a positive int, or None for None; arguments as for :func:`check_int`. Raises InvalidArgument."""
    return None if value is None else check_int(name, value, 1)


def check_output_limit(limit: object) -> float | None:
    """Return a caller's ``max_output_bytes``, None or a number of Python's: sums with numpy's would overflow. Raises
    InvalidArgument for anything else."""
    if limit is None:
        return None
    if not (isinstance(limit, Real) and limit == limit):
        raise InvalidArgument(f"max_output_bytes must be None or a number of bytes, not {limit!r}")
    return int(limit) if isinstance(limit, Integral) else float(limit)


def check_function(name: str, function: object) -> None:
    """Raise InvalidArgument unless the value of the argument ``name`` is None or can be called."""
    if function is not None and not callable(function):
        raise InvalidArgument(f"{name} must be None or a function that is called, not {function!r:.80}")


#: What values of a field's type are called, and of which classes they may be.
_KINDS: dict[Any, tuple[str, Any]] = {
    int: ("an integer", Integral),
    float: ("a number", Real),
    bool: ("True or False", bool),
    str: ("a string", str),
    tuple: ("a tuple", (tuple, list)),
    type(None): ("None", type(None)),
    Callable: ("a function", Callable),
}


def check_state(state: Any) -> None:
    """Raise InvalidArgument for anything but a mapping, as ``state_dict()`` returns."""
    if not isinstance(state, Mapping):
        raise InvalidArgument(f"state must be what state_dict() returned, not a {type(state).__name__}")


#: What torch says of tensors where it expects others, or numbers.
_OF_OTHER_TENSORS = ("ambiguous", "dtype", "expected", "shape", "size of tensor")


@contextmanager
def naming_damaged_state() -> Iterator[None]:
    """Raise InvalidArgument in place of what Python says of a state that has other things in it than it should."""
    try:
        yield
    except GcodecError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        is_of_torch = isinstance(error, RuntimeError) and not isinstance(error, RecursionError | NotImplementedError)
        if is_of_torch and not any(word in str(error) for word in _OF_OTHER_TENSORS):
            raise  # of memory, threads or a driver
        raise InvalidArgument(
            "state must be what state_dict() returned, in the same version of gcodec, but parts of it are missing or "
            f"of another kind: {type(error).__name__}: {error}"
        ) from error


def check_field_types(settings: Any) -> None:
    """Raise InvalidArgument where a field of a dataclass that ``__init__`` sets is not of its type; of tuples, mappings
    and the like, what they hold is not looked at."""
    for name, kind, accepted in _types_of_fields(settings.__class__):
        value = getattr(settings, name)
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            raise InvalidArgument(f"{name} must be {kind}, not {value!r:.80}")


@cache
def _types_of_fields(dataclass: Any) -> list[tuple[str, str, tuple[Any, ...]]]:
    """Return the name of each such field, what its values are called, and their classes."""
    try:
        hints = typing.get_type_hints(dataclass)
    except NameError:  # types that only a function knows, or a type checker
        return []
    result = []
    for field in fields(dataclass):
        hint = hints[field.name]
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        if field.init and Any not in parts:
            kinds = [_kind_of(typing.get_origin(part) or part) for part in parts]
            names, accepted = zip(*kinds, strict=True)
            result.append((field.name, " or ".join(names), accepted))
    return result


def _kind_of(accepted: Any) -> tuple[str, Any]:
    return _KINDS.get(accepted) or (f"of type {accepted.__name__}", accepted)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that ends an error about an unknown word; empty if nothing that is known is like it.

    The word is written as a shell wants it, for it may be pasted into the command.
    """
    close = _closest(word, known)
    return f"; did you mean {_for_shell(close)}?" if close else ""


def did_you_mean_file(name: str) -> str:
    """Return a question that ends an error about a missing file; empty if no name in its folder is like it."""
    from pathlib import Path

    path = Path(name)
    try:
        others = [other.name for other in path.parent.iterdir() if other.name != path.name]  # a link to nothing has it
        close = _closest(path.name, others)
    except OSError:
        return ""
    return f"; did you mean {_for_shell(f'{path.with_name(close)}')}?" if close else ""


def printable(text: str) -> str:
    """Return a text with each character escaped, as Python writes it, that would not stay on its line, would command a
    terminal, changes the order of others or cannot be seen, or is a byte of a name that is not UTF-8."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def first_few(names: Sequence[str]) -> str:
    """Return up to three names as text, and how many more there are: ``"a, b, c and 4 more"``."""
    return ", ".join(names[:3]) + f" and {len(names) - 3} more" * (len(names) > 3)


def number_of(count: int, noun: str) -> str:
    """Return a number of things in words: ``"1 file"``, ``"3 files"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def link_to_nowhere(path: Path) -> str:
    """Return what is wrong with a link that leads to nothing, to follow its name; empty for all else."""
    import errno

    try:
        if not path.is_symlink():
            return ""
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        try:
            target = path.readlink()
        except OSError:  # such as of another user's process, in /proc
            return "is a link that cannot be read"
        with suppress(OSError, RuntimeError):  # of a link on the way that cannot be read, or a loop
            if (path.parent / target).is_symlink():  # a link to another one: that is there, but not where it leads
                target = path.resolve()
        return f"is a link to {target}, which is not there"
    except OSError as error:
        return "is a link that leads back to itself" if error.errno == errno.ELOOP else ""
    return ""


def _for_shell(word: str) -> str:
    import shlex  # only errors need it

    return shlex.quote(word)


def _closest(word: str, known: Iterable[str]) -> str:
    import difflib  # only errors need it

    names = list(known)
    # Of a path the last parts, as in "weight" for "model/weight".
    below = (name for name in names if word and name.endswith(word) and name[: -len(word)].endswith(("/", ".", ":")))
    return next(iter(difflib.get_close_matches(word, names, 1, 0.7)), "") or next(below, "")


#: Of a file that is not compressed yet.
_PLAIN = ": gcodec.load reads it as it is; gcodec compress, in Python gcodec.compress_file, makes an archive of it"
#: First bytes of what users take for one another, and what reads each.
_BEGINNINGS = (
    (b"\x89GCA", "a gcodec archive: read it with gcodec.load, gcodec.load_file, gcodec.open or gcodec decompress"),
    (b"\x89GCF", "a gcodec frame: read it with gcodec.decode"),
    (
        b"PK\x03\x04",
        f"a zip file, such as those of torch.save and numpy.savez{_PLAIN}",
    ),
    (
        b"\x93NUMPY",
        f"a .npy file{_PLAIN}",
    ),
    (b"GGUF", f"a .gguf file{_PLAIN}"),
    *(
        (b"\x80" + bytes([version]), "a pickle, such as those of torch.save before version 1.6: try gcodec.load")
        for version in range(2, 6)
    ),
    (b"version https://git-lfs", "text that stands for a file of Git LFS: git lfs pull fetches that file"),
)


def what_it_is(head: bytes, size: int = 1 << 27) -> str:
    """Return what begins with these bytes, and what reads it, to be appended to an error; empty if that is not known.

    Args:
        head: The first bytes, 9 or more if there are so many.
        size: How many bytes there are, if that is known: of a .safetensors file, all of its header.
    """
    found = next((text for beginning, text in _BEGINNINGS if head.startswith(beginning)), "")
    if not found and head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= min(size, 1 << 27) - 8:
        found = f"a .safetensors file{_PLAIN}"
    if not found and len(head) > 8 and all(byte in _OF_TEXT for byte in head):
        found = "text"
    return f"; this is {found}" if found else ""


#: The bytes that text in ASCII consists of.
_OF_TEXT = frozenset(b"\t\n\r") | frozenset(range(32, 127))


def missing_torch(what: str, instead: str = "") -> GcodecError:
    """Return the error to raise from the ImportError of torch; ``what`` needs it, and ``instead`` does without."""
    return NotInstalled(f"{what} needs torch: pip install torch{instead and f', or {instead}'}")


def import_with_torch(module: str, what: str) -> types.ModuleType:
    """Return a module of gcodec that imports torch, imported.

    Args:
        module: Its full name.
        what: What needs torch then, for the error.

    Raises:
        NotInstalled: torch is not installed.
    """
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        if missing or isinstance(error, NotInstalled):  # this by a module that it imports in turn
            raise missing_torch(what) from error
        raise


def missing_package(package: str) -> GcodecError:
    """Return the error to raise from the ImportError of an optional package; it names the command that installs it."""
    return NotInstalled(f"the demo needs the {package} package: pip install '.[demo]' in a checkout of gcodec")


def named_device(device: Any) -> torch.device:
    """Return the torch device of a name or number, whether it is there or not. Raises ValueError for what is none."""
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        of_it = "device" in str(error).lower() or isinstance(device, int)  # torch 2.6 of a number that is too large
        if isinstance(error, RuntimeError) and not of_it:
            raise
        raise ValueError(str(error).splitlines()[0]) from error


def check_is_fault_of(value: Any, error: Exception) -> None:
    """Raise an error that is no fault of the array or tensor that could not be read: MemoryError for torch's errors of
    memory that is not there, which are RuntimeErrors on every device; others, such as a driver's, as they are."""
    check_has_memory_for(error)
    if isinstance(error, RuntimeError) and _has_plain_memory(value) and "requires grad" not in str(error):
        raise error


def check_has_memory_for(error: Exception) -> None:
    """Raise MemoryError for an error of torch's that says that there is none, which is a RuntimeError on every
    device."""
    if type(error).__name__ == "OutOfMemoryError" or "allocate memory" in str(error):
        raise MemoryError(str(error)) from error


def _has_plain_memory(value: Any) -> bool:
    """Return True for a numpy array or dense torch tensor that is not made of others, nor hidden by a transform."""
    kind = type(value)
    if (kind.__module__, kind.__name__) not in _PLAIN_KINDS:
        return False
    try:
        return kind.__module__ == "numpy" or (not value.is_nested and value.data_ptr() is not None)
    except RuntimeError:
        return False


_PLAIN_KINDS = (("numpy", "ndarray"), ("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))
