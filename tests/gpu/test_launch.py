"""The laws of launches: arguments as compiled code takes them, kernels kept on disk, and what the driver is told; with
stubs in the place of the driver and of compilers."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec.errors import DeviceError
from gcodec.kernels.cuda import compiled, launch, native, nvrtc
from gcodec.kernels.cuda import cuda_driver as driver
from gcodec.kernels.cuda import launch_arguments as arguments
from tests.support.paths import ROOT


@pytest.mark.parametrize(("used", "loaded"), [("gcodec.gpu", False), ("gcodec.gpu.batches", True)])
def test_kernels_for_devices_are_loaded_when_used_and_need_nothing_of_numba_s_cuda(used, loaded):
    program = (
        f"import sys, gcodec, numpy as np; gcodec.decode(gcodec.encode(np.ones(9))); import {used}; "
        "print(*['gcodec.kernels.cuda' in sys.modules, 'numba.cuda' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == [str(loaded), "False"]


class Pair(NamedTuple):
    words: Any
    numbers: Any


class Struct(ctypes.Structure):
    """Arguments as C lays them out: a number of 32 bits, an array of two dimensions, numbers of 32, 64 and 32 bits."""

    _fields_ = (
        ("a", ctypes.c_uint32),
        *[(name, ctypes.c_void_p) for name in ("meminfo", "parent")],
        *[(name, ctypes.c_ssize_t) for name in ("nitems", "itemsize")],
        ("data", ctypes.c_void_p),
        ("shape", ctypes.c_ssize_t * 2),
        ("strides", ctypes.c_ssize_t * 2),
        ("b", ctypes.c_uint32),
        ("c", ctypes.c_uint64),
        ("d", ctypes.c_uint32),
    )


def array_of(*shape: int, dtype: str = "uint16", address: int = 0x7F0000001000) -> arguments.GpuArray:
    return arguments.GpuArray(None, address, np.dtype(dtype), shape)


def packed(args: Any) -> tuple[tuple[Any, ...], bytes]:
    kinds: list[Any] = []
    numbers: list[Any] = []
    arguments.add_arguments(args, kinds, numbers)
    return tuple(kinds), arguments.layout(tuple(kinds)).pack(*numbers)


@pytest.mark.parametrize("flat", [False, True])
def test_arguments_are_packed_as_c_lays_them_out(flat):
    last: Any = Pair(np.uint64(1 << 63), np.uint32(3))
    args = np.uint32(1), Pair(array_of(3, 5), np.uint32(2)), arguments.flat(last) if flat else last
    _, data = packed(args)
    expected = Struct(1, None, None, 15, 2, 0x7F0000001000, (3, 5), (10, 2), 2, 1 << 63, 3)
    assert data == bytes(expected)[: len(data)] and len(data) == Struct.d.offset + 4


@pytest.mark.parametrize("shape", [(0,), (4,), (2, 0), (2, 3, 4)])
def test_arrays_have_the_strides_of_numpy(shape):
    like, own = np.empty(shape, np.uint32), array_of(*shape, dtype="uint32")
    assert own.fields[2:4] == (like.size, 4) and own.nbytes == like.nbytes
    if like.size:
        assert own.fields[5 + like.ndim :] == like.strides


class Compiler:
    """A compiler, which counts."""

    def __init__(self) -> None:
        self.calls = 0

    def make(self) -> bytes:
        self.calls += 1
        return CODE


CODE = b"\x7fELF code\nof a kernel"
ARGS = (array_of(9), np.uint32(4))


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("where no folder can be")
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path / "file" / "below", tmp_path / "a"]))
    return Compiler()


def kept(compiler: Compiler, target: str = "a source") -> bytes:
    return compiled.kept_on_disk("kernel", "cubin", target, compiler.make)


def test_code_is_compiled_once_and_kept_on_disk(compiler, tmp_path):
    assert kept(compiler) == kept(compiler) == CODE and compiler.calls == 1
    assert kept(compiler, "another") == kept(compiler, "a third") == CODE and compiler.calls == 3
    assert [file.suffix for file in (tmp_path / "a").iterdir()] == [".cubin"] * 3


@pytest.mark.parametrize("damage", ["truncated", "a byte", "empty", "another file"])
def test_code_that_is_not_what_was_kept_is_compiled_again(damage, compiler, tmp_path):
    kept(compiler)
    (file,) = (tmp_path / "a").iterdir()
    data = file.read_bytes()
    if damage == "another file":
        kept(compiler, "another source")
        (other,) = set((tmp_path / "a").iterdir()) - {file}
        data, compiler.calls = other.read_bytes(), 1
    file.write_bytes({"truncated": data[:-9], "a byte": data[:-9] + b"?" + data[-8:], "empty": b""}.get(damage, data))
    assert kept(compiler) == CODE and compiler.calls == 2
    assert kept(compiler) == CODE and compiler.calls == 2


def test_code_is_compiled_where_no_folder_can_be_written(compiler, monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path / "file" / "below"]))
    assert kept(compiler) == kept(compiler) == CODE and compiler.calls == 2


class StubDriver:
    """A driver that writes down what it is told, or refuses code."""

    capability, version = (9, 0), 13000

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.loaded: list[bytes] = []
        self.kernels: list[str] = []
        self.launched: list[Any] = []

    def load(self, code: bytes) -> int:
        if self.refuses:
            raise DeviceError("code of a later version")
        self.loaded.append(code)
        return 5

    def kernel_of(self, module: int, name: str) -> int:
        assert module == 5
        self.kernels.append(name)
        return 77

    def launch(self, *told: Any) -> None:
        self.launched.append(told)


@pytest.fixture
def device(monkeypatch):
    stub = StubDriver()
    monkeypatch.setattr(launch, "_launchers", {})
    monkeypatch.setattr(launch, "_functions", {})
    monkeypatch.setattr(launch, "_modules", {})
    monkeypatch.setattr(launch, "driver_of", lambda number: stub)
    return stub


def test_a_kernel_is_loaded_once_and_launched_by_the_driver(device, monkeypatch):
    own = native.NativeKernel("fast", "fast.cu")
    monkeypatch.setattr(native, "cubin_of", lambda file, capability, version: f"{file} {capability}".encode())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda blocks: launch.launch(own, blocks, 0, 5, ARGS), range(1, 9)))
    assert device.loaded == [b"fast.cu (9, 0)"] and device.kernels == ["fast"]
    assert sorted(device.launched) == [(77, blocks, native.THREADS, 5, packed(ARGS)[1]) for blocks in range(1, 9)]
    launch.launch(own, 1, 1, 5, ARGS)  # on another device
    launch.launch(own, 1, 0, 5, (array_of(9, dtype="uint32"), np.uint32(4)))
    assert len(device.loaded) == len(device.kernels) == 2  # once for each device, whatever its arguments are
    launch.launch(native.NativeKernel("slow", "fast.cu"), 1, 0, 5, ARGS)
    assert len(device.loaded) == 2 and device.kernels[2:] == ["slow"]  # which its file had brought
    device.refuses = True
    with pytest.raises(DeviceError, match="later version"):
        launch.launch(own, 3, 2, 5, ARGS)


def test_a_kernel_without_a_compiler_says_what_to_install(device, monkeypatch):
    monkeypatch.setattr(nvrtc, "_libraries", lambda: iter(()))
    nvrtc.newest_library.cache_clear()
    for _ in range(2):
        with pytest.raises(gcodec.Unsupported, match=r"NVRTC of CUDA 13 .*pip install nvidia-cuda-nvrtc'"):
            launch.launch(native.ADAM_CHOOSER, 3, 0, 5, ARGS)
    assert not device.loaded and not device.launched


class Library:
    """The driver's library: every call works but those named, and is written down."""

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            self.calls.append(name)
            if name == "cuGetErrorString":
                ctypes.cast(args[1], ctypes.POINTER(ctypes.c_char_p))[0] = b"what went wrong"
            if name == "cuLaunchKernel":
                extra = args[-1]
                size = ctypes.c_size_t.from_address(extra[3]).value
                self.launched = (args[:9], (extra[0], extra[2], extra[4]), ctypes.string_at(extra[1], size))
            if name == "cuModuleGetFunction":
                ctypes.cast(args[0], ctypes.POINTER(ctypes.c_void_p))[0] = 0x1234567890
            return self.fails.get(name, 0)

        self.__dict__[name] = call
        return call


def driver_with(monkeypatch: Any, **fails: int) -> tuple[Any, Library]:
    own = Library(**fails)
    monkeypatch.setattr(driver, "library", lambda: own)
    return driver.Driver(0), own


def test_the_driver_gets_arguments_in_one_buffer(monkeypatch):
    made, own = driver_with(monkeypatch)
    function = made.kernel_of(made.load(CODE), "kernel")
    arguments_bytes = bytes(range(200)) + b"\0\0"
    made.launch(function, 6, 128, 5, arguments_bytes)
    assert own.launched == ((0x1234567890, 6, 1, 1, 128, 1, 1, 0, 5), (1, 2, None), arguments_bytes)
    assert own.calls.count("cuCtxPushCurrent_v2") == own.calls.count("cuCtxPopCurrent_v2") == 3
    assert own.calls.count("cuFuncLoad") == 1  # at once, and not at the launch


@pytest.mark.parametrize("name", ["cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncLoad", "cuLaunchKernel"])
def test_errors_of_the_driver_are_raised_and_the_context_is_left(name, monkeypatch):
    made, own = driver_with(monkeypatch, **{name: 700})
    with pytest.raises(DeviceError, match=f"{name}: error 700, what went wrong"):
        made.launch(made.kernel_of(made.load(b""), "kernel"), 1, 1, 0, b"")
    assert own.calls.count("cuCtxPushCurrent_v2") == own.calls.count("cuCtxPopCurrent_v2")


def test_a_missing_device_or_driver_is_unsupported(monkeypatch):
    loaded = driver.library
    with pytest.raises(gcodec.Unsupported, match=r"device 0 cannot be used.*100"):
        driver_with(monkeypatch, cuInit=100)

    def missing(name: str) -> Any:
        raise OSError(f"{name} is not there")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(gcodec.Unsupported, match="no driver"):
        loaded.__wrapped__()
