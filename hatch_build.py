"""Compile kernels when gcodec is built, so that nobody waits for the compiler at the first call (docs/caches.md).

``GCODEC_COMPILE`` says what for: ``host`` (the default) is this machine's CPU, and the kernels that are met first, on
all cores; ``0`` is nothing; ``all`` is all levels of CPUs, as `make wheel` ships them. Without compiled kernels all
works as well, so that an installation for ``host`` goes on where compiling fails; a wheel for ``all`` is not made then.
That wheel is for one version of Python, as its kernels are: on another one, pip takes the source distribution, which
compiles when it is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: What compiled kernels depend on: they are used only with the very versions that they were compiled by.
_COMPILERS = ("numba", "llvmlite")
_SWITCH = "GCODEC_COMPILE"
#: What is met first is compiled first, and nothing more is begun after this time.
_SECONDS = 75
_CHOICES = ("host", "all", "0")


class CompileKernels(BuildHookInterface[Any]):
    """The build hook of a wheel, an editable one included."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what compiling needs: all that gcodec needs, with numba in the version that is installed, if any."""
        if _choice() == "0":
            return []
        installed = {
            found.name.lower(): found.version
            for found in distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
        }
        pinned = [f"{name}=={installed[name]}" for name in _COMPILERS if name in installed]
        return [*self.metadata.core.dependencies, *pinned]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into ``gcodec/kernels/compiled``, which goes into the wheel.

        Args:
            version: "standard" or "editable".
            build_data: Of hatchling; takes the wheel's tag, if it is for one version of Python.
        """
        choice = _choice()
        if choice == "0":
            return
        self.app.display_info(
            f"gcodec: compiling kernels, for one to three minutes ({_SWITCH}=0 leaves it to the first calls)"
        )
        path = os.pathsep.join(filter(None, [self.root, os.environ.get("PYTHONPATH")]))
        limit = ["--host", str(_SECONDS)] if choice == "host" else []
        command = [sys.executable, "-m", "tools.compile_kernels", *limit]
        try:
            subprocess.run(command, cwd=self.root, env={**os.environ, "PYTHONPATH": path}, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            if choice == "all":
                raise
            self.app.display_warning(f"gcodec: kernels are not compiled, the first calls will do it: {error}")
        if choice == "all":
            build_data["tag"] = f"cp{sys.version_info.major}{sys.version_info.minor}-none-any"


def _choice() -> str:
    """Return what the variable of the environment asks for. Raises ValueError if it is none of the choices."""
    choice = os.environ.get(_SWITCH, "") or _CHOICES[0]
    if choice not in _CHOICES:
        raise ValueError(f"{_SWITCH} must be one of {', '.join(_CHOICES)}, not {choice!r}")
    return choice
