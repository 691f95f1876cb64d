"""Files of ``torch.save``, loaded by torch, which executes nothing in them."""

from __future__ import annotations

import io
import pickletools
import re
import struct
from collections.abc import Callable
from pathlib import Path
from pickle import PickleError
from typing import Any

from ..errors import Corruption, GcodecError, NoMemory, missing_torch

#: What torch raises on a file with other objects than it loads, or that it finds malformed.
_UNREADABLE = (
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
    PickleError,
    struct.error,
)
#: Parts of what torch says in a RuntimeError of a file that it does not read; others are of memory and devices.
_OF_FILES = ("TorchScript", "PytorchStreamReader", "Invalid magic number", "corrupt")
#: What it says where values are missing at the end of a file.
_NO_VALUES = "unexpected EOF"
#: The first pickle of a file of torch.save of the form before version 1.6; four more follow it, and then the values.
_OLD_HEAD, _N_PICKLES = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", 5
#: Stands before what its unpickler does not take; and what a terminal is commanded by.
_BEFORE_REASON, _BOLD = "WeightsUnpickler error:", re.compile(r"\x1b\[[0-9;]*m")
#: What torch says in a RuntimeError where host memory is not there; on devices the error is one of its own.
_NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"


def load_torch(
    file: Any,
    map_location: Any,
    where: str,
    advice: str,
    *,
    mmap: bool = False,
    check_was_read: Callable[[BaseException], None] = lambda error: None,
) -> Any:
    """Return what ``torch.load(weights_only=True)`` makes of a file.

    Args:
        file: Path or binary stream.
        where: Name of the file in errors.
        advice: What the error says of a file that torch does not read.
        check_was_read: Raises what reading the file has raised, if that is behind an error of torch's.

    Raises:
        Corruption: It is cut.
        GcodecError: torch does not read it, or is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise missing_torch(
            f"{where} is a file of torch.save, which",
            "read its tensors as numpy arrays with like='numpy'",
        ) from error

    try:
        return torch.load(file, map_location=map_location, weights_only=True, mmap=mmap)
    except (*_UNREADABLE, RuntimeError) as error:
        is_of_file = isinstance(error, _UNREADABLE) or any(words in str(error) for words in _OF_FILES)
        check_was_read(error)
        if _NO_HOST_MEMORY in str(error):
            raise NoMemory(f"{where}: there is no memory to load it: {error}") from error
        if isinstance(error, GcodecError) or not is_of_file:
            raise
        if _NO_VALUES in str(error) or _ends_in_pickle(file):
            raise Corruption(f"{where}: is cut: it ends before its tensors do; copy or save it anew") from error
        reason = _reason_of(error)
        raise GcodecError(f"{where}: torch.load(weights_only=True) does not read it: {reason}; {advice}") from error


def _reason_of(error: Exception) -> str:
    """Return what torch says is wrong with a file, in one line: which class it does not know, if that is why. What it
    says before and after that is advice for those who call it themselves, in bold."""
    text = _BOLD.sub("", str(error))
    lines = (text.partition(_BEFORE_REASON)[2].strip() or text).splitlines()
    return lines[0].partition(". Please ")[0] if lines else repr(error)


def _ends_in_pickle(file: Any) -> bool:
    """Return True if a file ends within the pickle that it begins with, or those of the form before version 1.6."""
    if not hasattr(file, "read"):
        with Path(file).open("rb") as opened:
            return _ends_in_pickle(opened)
    file.seek(0)
    reader = io.BufferedReader(file)
    try:
        is_old = reader.peek(len(_OLD_HEAD)).startswith(_OLD_HEAD)
        if not reader.peek(1).startswith(b"\x80"):
            return False
        for _ in range(_N_PICKLES if is_old else 1):
            for _ in pickletools.genops(reader):
                pass
    except ValueError:  # the pickle is cut, if that is the end, or damaged
        return not reader.read(1)
    finally:
        reader.detach()
    return False
