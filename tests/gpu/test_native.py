"""The kernels in CUDA C++, compiled for the host: the laws of :mod:`tests.gpu.native_laws`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gcodec import Unsupported
from gcodec.kernels.cuda import compiled, nvrtc
from gcodec.kernels.cuda.native import ALL_KERNELS
from tests.gpu import native_laws
from tests.gpu.host_library import build, compiler
from tests.support.paths import ROOT


@pytest.mark.parametrize("law", native_laws.LAWS, ids=lambda law: law.__name__)
def test_native_kernels_obey_every_law(law: Any) -> None:
    law(native_laws.memory_of(build()), 1)


@pytest.mark.slow
@pytest.mark.parametrize("law", native_laws.LAWS, ids=lambda law: law.__name__)
def test_native_kernels_obey_every_law_on_more_cases(law: Any) -> None:
    law(native_laws.memory_of(build()), 2)


@pytest.mark.slow
def test_native_kernels_touch_no_memory_that_is_not_theirs() -> None:
    """With the address sanitizer, which must be loaded before anything else, and that of undefined behavior."""
    found = subprocess.run([compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    if not Path(found.stdout.strip()).is_absolute():
        pytest.skip("the C++ compiler has no address sanitizer")
    environment = {**os.environ, "LD_PRELOAD": found.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.native_laws", "3"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def nvrtc_here() -> Any:
    """Return NVRTC; skip the test where there is none."""
    try:
        return nvrtc.newest_library(13)[0]
    except Unsupported as error:
        pytest.skip(str(error))


class Reader:
    """NVRTC, of which the PTX is read, too, before a program is gone."""

    def __init__(self, library: Any) -> None:
        self.library, self.ptx = library, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.library, name)

    def nvrtcDestroyProgram(self, program: Any) -> int:
        self.ptx = nvrtc._read(self.library, "PTX", program._obj).rstrip(b"\0").decode()
        return int(self.library.nvrtcDestroyProgram(program))


#: What a float operation may be called: exact, or rounded once to the nearest; nothing fused, approximate or flushed.
EXACT = re.compile(r"(ld|st|mov|neg|abs|selp|setp\.\w+)(\.\w+)*\.f32|(add|sub|mul|div|sqrt)\.rn\.f32")


@pytest.mark.parametrize("file", [file for file in nvrtc.sources() if file.endswith(".cu")])
def test_floats_are_rounded_once_and_decide_nothing_but_levels(file: str) -> None:
    reader = Reader(nvrtc_here())
    nvrtc.compile_cubin(reader, file, (9, 0), nvrtc.sources())
    found = set(re.findall(r"\b[a-z][\w.]*\.f(?:16|32|64)\b[\w.]*", reader.ptx))
    assert ".entry" in reader.ptx and bool(found) == (file == "levels.cu")
    assert not [item for item in found if not EXACT.fullmatch(item)], "levels may differ from the host's"
    assert not found or {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "div.rn.f32", "sqrt.rn.f32"} <= found


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_every_nvrtc_that_is_here_compiles_every_file(capability: tuple[int, int]) -> None:
    nvrtc_here()
    texts = nvrtc.sources()
    for library, _ in {version: (library, version) for library, version in nvrtc._libraries()}.values():
        for file in texts if nvrtc.architecture_for(library, capability) else ():
            if file.endswith(".cu"):
                code = nvrtc.compile_cubin(library, file, capability, texts)
                assert code.startswith(b"\x7fELF")
                assert all(f".text.{kernel.name}".encode() in code for kernel in ALL_KERNELS if kernel.file == file)


def test_the_source_has_no_generic_lambda_which_nvrtc_12_takes_for_a_function_of_the_host() -> None:
    for file, text in nvrtc.sources().items():
        assert not re.search(r"\]\s*\([^)]*\bauto\b", text), file


def test_what_nvrtc_refuses_is_unsupported_and_quoted() -> None:
    with pytest.raises(Unsupported, match=r"no such thing|identifier"):
        nvrtc.compile_cubin(nvrtc_here(), "x.cu", (9, 0), {"x.cu": "no such thing"})


class Compiler:
    """NVRTC, which counts what it compiles, or refuses all; it knows some architectures."""

    def __init__(self, refuses: bool = False, known: tuple[int, ...] = (80, 90, 100)) -> None:
        self.compiled, self.refuses, self.known = 0, refuses, known
        self.options: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.compiled += name == "nvrtcCompileProgram"
            if name == "nvrtcCompileProgram":
                self.options = list(args[2])
            if name == "nvrtcGetNumSupportedArchs":
                args[0]._obj.value = len(self.known)
            if name == "nvrtcGetSupportedArchs":
                args[0][:] = self.known
            if name.endswith("Size"):
                args[1]._obj.value = 5
            if name == "nvrtcGetCUBIN":
                args[1].raw = b"cubin"
            if name == "nvrtcGetErrorString":
                return b"it is no C++"
            return 6 if self.refuses and name == "nvrtcCompileProgram" else 0

        self.__dict__[name] = call
        return call


def test_cubins_are_compiled_once_for_an_architecture_and_a_source(monkeypatch: Any, tmp_path: Path) -> None:
    stub = Compiler()
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path]))
    monkeypatch.setattr(nvrtc, "newest_library", lambda most, capability: (stub, (13, most)))
    assert nvrtc.cubin_of("decode.cu", (9, 0), 13020) == nvrtc.cubin_of("decode.cu", (9, 0), 13000) == b"cubin"
    assert stub.compiled == 1
    nvrtc.cubin_of("decode.cu", (8, 0), 13000)
    nvrtc.cubin_of("decode.cu", (9, 0), 12080)
    monkeypatch.setattr(nvrtc, "sources", lambda: {"decode.cu": "another"})
    nvrtc.cubin_of("decode.cu", (9, 0), 13000)
    assert stub.compiled == 4 and len(list(tmp_path.glob("decode-*.cubin"))) == 4
    stub.refuses = True
    with pytest.raises(Unsupported, match="no C"):
        nvrtc.cubin_of("decode.cu", (10, 0), 13000)


@pytest.mark.parametrize(
    ("capability", "known", "architecture"),
    [
        ((9, 0), (80, 90, 100), b"sm_90"),
        ((8, 9), (80, 86, 90), b"sm_86"),
        ((12, 1), (100, 120), b"sm_120"),
        ((10, 3), (100, 103, 120), b"sm_103"),
    ],
)
def test_devices_younger_than_nvrtc_run_code_for_the_first_of_their_kind(
    capability, known, architecture, monkeypatch, tmp_path
):
    stub = Compiler(known=known)
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path]))
    monkeypatch.setattr(nvrtc, "newest_library", lambda most, capability: (stub, (13, 0)))
    nvrtc.cubin_of("decode.cu", capability, 13000)
    assert b"--gpu-architecture=" + architecture in stub.options


@pytest.mark.parametrize(
    ("capability", "says"),
    [
        ((7, 0), "NVRTC 13.0 compiles nothing for .* 7.0.*install"),
        ((13, 0), "NVRTC 13.0 compiles nothing for .* 13.0"),
        ((6, 1), "compute capability 7.0 or later; this one's is 6.1"),
    ],
)
def test_a_device_that_nvrtc_does_not_know_is_unsupported(capability, says, monkeypatch):
    stub = Compiler(known=(60, 61, 75, 80, 90))
    monkeypatch.setattr(nvrtc, "newest_library", lambda most, capability: (stub, (13, 0)))
    with pytest.raises(Unsupported, match=says):
        nvrtc.cubin_of("decode.cu", capability, 13000)
    assert not stub.compiled


def test_an_nvrtc_that_knows_the_device_comes_before_a_later_one_that_does_not(monkeypatch):
    older, newer = Compiler(known=(70, 90)), Compiler(known=(90, 100))
    monkeypatch.setattr(nvrtc, "_libraries", lambda: iter([(newer, (13, 0)), (older, (12, 6))]))
    nvrtc.newest_library.cache_clear()
    try:
        for capability, chosen in {(7, 0): older, (9, 0): newer, (10, 3): newer, (6, 1): newer}.items():
            assert nvrtc.newest_library(13, capability)[0] is chosen
        assert nvrtc.newest_library(12, (10, 0))[0] is older and nvrtc.newest_library(13)[0] is newer
    finally:
        nvrtc.newest_library.cache_clear()


def test_built_in_functions_beside_an_nvrtc_are_loaded_before_it(monkeypatch, tmp_path):
    """NVRTC 13.0's wheel does not find them by itself, and says so only when it compiles."""
    for name in ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0"):
        (tmp_path / name).touch()
    monkeypatch.setattr(nvrtc, "_BUILTINS", "libnvrtc-builtins.so.*")
    loaded: list[str] = []

    def loads(name: str) -> Compiler:
        loaded.append(name)
        return Compiler()

    monkeypatch.setattr("ctypes.CDLL", loads)
    monkeypatch.chdir(tmp_path.parent)
    nvrtc.load(str(tmp_path / "libnvrtc.so.13"))
    nvrtc.load(f"{tmp_path.name}/libnvrtc.so.13")
    nvrtc.load("libnvrtc.so.12")
    both = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"]
    assert [Path(name).name for name in loaded] == [*both, *both, "libnvrtc.so.12"]


def test_without_nvrtc_that_the_driver_could_follow_it_is_unsupported() -> None:
    with pytest.raises(Unsupported, match=r"CUDA 3 .*pip install"):
        nvrtc.newest_library(3)
