"""The error for an optional package that is not installed."""

from __future__ import annotations

from ..errors import GcodecError


def missing(package: str) -> GcodecError:
    """The error to raise from the ImportError of ``package``; it names the command that installs it."""
    return GcodecError(f"the demo needs the {package} package: pip install 'gcodec[demo]'")
