"""The laws of the build hook, which compiles kernels when gcodec is installed. Environments for tests leave that out,
so that nothing else here calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location
from math import inf
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gcodec.kernels.core import shipped_kernels
from gcodec.kernels.core.cpu_levels import LEVELS
from tests.support.paths import ROOT
from tools import compile_kernels

if not (ROOT / "hatch_build.py").exists():
    pytest.skip("not a checkout: there is no build hook", allow_module_level=True)


class Interface:
    """What a hook has from hatchling, which only environments have that build."""

    root = str(ROOT)

    def __class_getitem__(cls, _: Any) -> type[Interface]:
        return cls

    def __init__(self) -> None:
        self.said, self.warned = list[str](), list[str]()
        self.app = SimpleNamespace(display_info=self.said.append, display_warning=self.warned.append)
        self.metadata = SimpleNamespace(core=SimpleNamespace(dependencies=["numpy>=2.0", "numba>=0.61"]))


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the hook, as hatchling makes it."""
    names = "hatchling.builders.hooks.plugin.interface".split(".")
    for n in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:n]), ModuleType(names[n - 1]))
    vars(sys.modules[".".join(names)])["BuildHookInterface"] = Interface
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CompileKernels()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """Return the levels that a hook has compiled from now on, and the seconds in which it began all of it."""
    found: list[tuple[str, float]] = []

    def run(command: list[str], *, cwd: str, env: dict[str, str], check: bool) -> None:
        assert command[:3] == [sys.executable, "-m", "tools.compile_kernels"]
        assert (cwd, env["PYTHONPATH"].split(os.pathsep)[0], check) == (str(ROOT), str(ROOT), True)
        assert compile_kernels.main(command[3:]) == 0

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(shipped_kernels, "level_of_host", lambda: LEVELS[1])
    monkeypatch.setattr(compile_kernels, "has_features", lambda feature: True)
    monkeypatch.setattr(
        compile_kernels, "compile_level", lambda level, work, out, seconds: found.append((level.name, seconds))
    )
    return found


@pytest.mark.parametrize("choice", [None, "", "host"])
def test_an_installation_compiles_for_this_cpu_in_a_time_that_it_has(choice, hook, compiled, monkeypatch):
    monkeypatch.delenv("GCODEC_COMPILE", raising=False)
    if choice is not None:
        monkeypatch.setenv("GCODEC_COMPILE", choice)
    build_data: dict[str, Any] = {}
    hook.initialize("editable", build_data)
    assert build_data == {}
    ((name, seconds),) = compiled
    assert name == LEVELS[1].name and 30 <= seconds <= 90
    assert "minute" in hook.said[0] and not hook.warned


def test_a_release_compiles_all_for_all_cpus_and_for_the_python_that_compiles(hook, compiled, monkeypatch):
    monkeypatch.setenv("GCODEC_COMPILE", "all")
    build_data: dict[str, Any] = {}
    hook.initialize("standard", build_data)
    assert compiled == [(level.name, inf) for level in LEVELS]
    assert build_data == {"tag": "cp{}{}-none-any".format(*sys.version_info)}


def test_nothing_is_compiled_nor_needed_for_it_where_nobody_wants_it(hook, compiled, monkeypatch):
    monkeypatch.setenv("GCODEC_COMPILE", "0")
    hook.initialize("editable", {})
    assert (compiled, hook.said, hook.dependencies()) == ([], [], [])


def test_a_choice_that_there_is_not_is_an_error_that_names_the_choices(hook, compiled, monkeypatch):
    monkeypatch.setenv("GCODEC_COMPILE", "some")
    for call in (hook.dependencies, lambda: hook.initialize("editable", {})):
        with pytest.raises(ValueError, match=r"GCODEC_COMPILE must be one of host, all, 0, not 'some'"):
            call()
    assert not compiled


def test_kernels_are_compiled_by_the_numba_that_will_use_them(hook, monkeypatch):
    monkeypatch.setenv("GCODEC_COMPILE", "host")
    pinned = [f"{name}=={version(name)}" for name in ("numba", "llvmlite")]
    assert hook.dependencies() == [*hook.metadata.core.dependencies, *pinned]


@pytest.mark.parametrize("error", [OSError("no memory"), subprocess.CalledProcessError(1, "compile")])
def test_an_installation_goes_on_where_compiling_fails_but_a_release_does_not(error, hook, monkeypatch):
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setenv("GCODEC_COMPILE", "host")
    hook.initialize("editable", {})
    assert len(hook.warned) == 1 and str(error) in hook.warned[0]
    monkeypatch.setenv("GCODEC_COMPILE", "all")
    with pytest.raises(type(error)):
        hook.initialize("standard", {})
