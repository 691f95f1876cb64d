"""The errors gcodec raises: one family, so that ``except gcodec.GcodecError`` catches all of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class GcodecError(Exception):
    """Base of every error that gcodec raises on purpose."""


class InvalidArgument(GcodecError, ValueError):
    """The caller asked for something that has no meaning (shape, dtype, range, combination)."""


class Corruption(GcodecError):
    """The bytes are not a valid frame or archive: a field out of range, a checksum that differs."""


class InsufficientData(Corruption):
    """The bytes end before the frame or archive does."""


class Unsupported(GcodecError):
    """Valid, but not decodable here: a newer version, a codebook id that this decoder does not hold."""


class LimitExceeded(GcodecError):
    """Decoding would need more memory than the caller allowed (``max_output_bytes``)."""


class PeerError(GcodecError):
    """Another rank of a process group has died, gone silent, given up, or does something else than this one."""


class BrokenChain(GcodecError):
    """A version of weights does not follow the weights that are held: one between is missing, or it is older, or of
    another run. What is held stays as it is; apply the missing versions first, or an anchor."""


class KernelCacheWarning(UserWarning):
    """Compiled kernels are not kept where they last: later processes may have to compile them again, for minutes."""


class CheckpointWarning(UserWarning):
    """A checkpoint is saved, but takes more room than it should: its base cannot be read, or an old one not removed."""


def check_choice(name: str, value: Any, choices: Collection[Any]) -> None:
    """Raise InvalidArgument unless the value of the argument ``name`` is one of ``choices``."""
    try:
        known = value in choices
    except TypeError:  # unhashable
        known = False
    if not known:
        raise InvalidArgument(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def missing_package(package: str) -> GcodecError:
    """Return the error to raise from the ImportError of an optional package; it names the command that installs it."""
    return GcodecError(f"the demo needs the {package} package: pip install 'gcodec[demo]'")
