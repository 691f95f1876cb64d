"""The laws of launches: arguments as compiled code takes them, kernels kept on disk, and what the driver is told; with
stubs in the place of the driver and of numba's compiler."""

from __future__ import annotations

import ctypes
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gcodec
from gcodec.errors import DeviceError
from gcodec.kernels.cuda import compiled, grid, launch, native, nvrtc
from gcodec.kernels.cuda import cuda_driver as driver
from gcodec.kernels.cuda import launch_arguments as arguments

PTX = ".visible .entry kernel_7(\n\t.param .u64 kernel_7_param_0,\n{}\t.param .u32 kernel_7_param_8\n)\n{{ ret; }}\n"


class Pair(NamedTuple):
    words: Any
    numbers: Any


class Struct(ctypes.Structure):
    """Arguments as C lays them out: a number of 32 bits, an array of two dimensions, numbers of 32, 64 and 32 bits."""

    _fields_ = (("a", ctypes.c_uint32), *[(name, ctypes.c_void_p) for name in ("meminfo", "parent")],
                *[(name, ctypes.c_ssize_t) for name in ("nitems", "itemsize")], ("data", ctypes.c_void_p),
                ("shape", ctypes.c_ssize_t * 2), ("strides", ctypes.c_ssize_t * 2), ("b", ctypes.c_uint32),
                ("c", ctypes.c_uint64), ("d", ctypes.c_uint32))


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
    kinds, data = packed(args)
    expected = Struct(1, None, None, 15, 2, 0x7F0000001000, (3, 5), (10, 2), 2, 1 << 63, 3)
    assert data == bytes(expected)[: len(data)] and len(data) == Struct.d.offset + 4
    assert arguments.declared(kinds) == ["u32", *["u64"] * 9, "u32", "u64", "u32"]


def test_signatures_name_the_types_that_numba_sees():
    from numba import typeof, types

    bundle = Pair(np.zeros((2, 2), np.int8), np.zeros(3, np.uint64))
    assert typeof(bundle) == arguments.signature(
        [Pair(array_of(2, 2, dtype="int8"), array_of(3, dtype="uint64"))])[0]
    assert arguments.signature([np.uint32(1), arguments.flat(Pair(np.uint32(1), np.uint32(2)))]) == (
        types.uint32, types.NamedUniTuple(types.uint32, 2, Pair))


@pytest.mark.parametrize("shape", [(0,), (4,), (2, 0), (2, 3, 4)])
def test_arrays_have_the_strides_of_numpy(shape):
    like, own = np.empty(shape, np.uint32), array_of(*shape, dtype="uint32")
    assert own.fields[2:4] == (like.size, 4) and own.nbytes == like.nbytes
    if like.size:
        assert own.fields[5 + like.ndim :] == like.strides


class Compiler:
    """numba's compiler, which counts."""

    def __init__(self, text: str) -> None:
        self.text, self.calls = text, 0
        self.__file__ = "numba"

    def compile_ptx(self, function: Any, signature: Any, cc: Any) -> tuple[str, Any]:
        self.calls += 1
        return self.text + "\0", None


def kernel(words: Any, number: Any) -> None:
    """A kernel, which is never run."""


KERNEL: Any = type("Kernel", (), {"py_func": staticmethod(kernel)})()
ARGS = (array_of(9), np.uint32(4))
TEXT = PTX.format("".join(f"\t.param .u64 kernel_7_param_{k},\n" for k in range(1, 7)))     # an array has seven fields


@pytest.fixture
def numba_stub(monkeypatch, tmp_path):
    stub = Compiler(TEXT)
    monkeypatch.setattr(compiled, "_cuda", stub)
    (tmp_path / "file").write_text("where no folder can be")
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path / "file" / "below", tmp_path / "a"]))
    stamp = compiled._stamp
    stamp.cache_clear()
    yield stub
    stamp.cache_clear()


def ptx(capability: tuple[int, int] = (9, 0), args: Any = ARGS) -> str:
    return compiled.ptx_of(KERNEL, arguments.signature(args), capability)


def test_ptx_is_compiled_once_and_kept_on_disk(numba_stub, tmp_path):
    assert ptx() == ptx() == TEXT and numba_stub.calls == 1
    assert ptx((8, 0)) == ptx(args=(array_of(2, 2), np.uint32(1))) == TEXT and numba_stub.calls == 3
    assert [file.suffix for file in (tmp_path / "a").iterdir()] == [".ptx"] * 3


@pytest.mark.parametrize("damage", ["truncated", "a byte", "empty", "another file", "another source"])
def test_ptx_that_is_not_what_was_kept_is_compiled_again(damage, numba_stub, tmp_path, monkeypatch):
    ptx()
    (file,) = (tmp_path / "a").iterdir()
    data = file.read_bytes()
    if damage == "another file":
        ptx((8, 0))
        (other,) = set((tmp_path / "a").iterdir()) - {file}
        data, numba_stub.calls = other.read_bytes(), 1
    elif damage == "another source":
        monkeypatch.setattr(compiled, "_stamp", lambda: "of another source")
    file.write_bytes({"truncated": data[:-9], "a byte": data[:-9] + b"?" + data[-8:], "empty": b""}.get(damage, data))
    assert ptx() == TEXT and numba_stub.calls == 2
    assert ptx() == TEXT and numba_stub.calls == 2


def test_ptx_is_compiled_where_no_folder_can_be_written(numba_stub, monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "_folders", lambda make: iter([tmp_path / "file" / "below"]))
    assert ptx() == ptx() == TEXT and numba_stub.calls == 2


class StubDriver:
    """A driver that writes down what it is told, or refuses code."""

    capability, version = (9, 0), 13000

    def __init__(self, refuses: bool = False) -> None:
        self.refuses = refuses
        self.loaded: list[Any] = []
        self.launched: list[Any] = []

    def load(self, code: bytes, name: str) -> int:
        if self.refuses:
            raise DeviceError("PTX of a later version")
        self.loaded.append((code, name))
        return 77

    def launch(self, *told: Any) -> None:
        self.launched.append(told)


@pytest.fixture
def device(monkeypatch, numba_stub):
    stub = StubDriver()
    monkeypatch.setattr(launch, "_launchers", {})
    monkeypatch.setattr(launch, "driver_of", lambda number: stub)
    return stub


def test_a_kernel_is_loaded_once_and_launched_by_the_driver(device, numba_stub):
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda blocks: launch.launch(KERNEL, blocks, 0, 5, ARGS), range(1, 9)))
    assert device.loaded == [(TEXT.encode(), "kernel_7")] and numba_stub.calls == 1
    assert sorted(device.launched) == [(77, blocks, grid.THREADS, 5, packed(ARGS)[1]) for blocks in range(1, 9)]
    launch.launch(KERNEL, 1, 1, 5, ARGS)        # on another device
    launch.launch(KERNEL, 1, 0, 5, (array_of(9, dtype="uint32"), np.uint32(4)))
    assert len(device.loaded) == 3


def test_a_kernel_in_cuda_cpp_is_loaded_once_and_launched_by_the_driver(device, monkeypatch):
    own = native.NativeKernel("fast", "fast.cu")
    monkeypatch.setattr(native, "cubin_of", lambda file, capability, version: f"{file} {capability}".encode())
    launch.launch(own, 3, 0, 5, ARGS)
    launch.launch(own, 4, 0, 6, ARGS)
    assert device.loaded == [(b"fast.cu (9, 0)", "fast")]
    assert device.launched == [(77, blocks, native.THREADS, stream, packed(ARGS)[1])
                               for blocks, stream in ((3, 5), (4, 6))]
    device.refuses = True
    with pytest.raises(DeviceError, match="later version"):
        launch.launch(own, 3, 1, 5, ARGS)


def test_a_kernel_in_cuda_cpp_without_a_compiler_says_what_to_install(device, monkeypatch):
    monkeypatch.setattr(nvrtc, "_libraries", lambda: iter(()))
    nvrtc.newest_library.cache_clear()
    for _ in range(2):
        with pytest.raises(gcodec.Unsupported, match=r"NVRTC of CUDA 13 .*pip install nvidia-cuda-nvrtc'"):
            launch.launch(native.ADAM_CHOOSER, 3, 0, 5, ARGS)
    assert not device.loaded and not device.launched


class Dispatcher:
    """numba's, which writes down what it is told."""

    py_func = staticmethod(kernel)

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.launched: list[Any] = []

    def specialize(self, *args: Any) -> Any:
        if self.fails:
            raise OSError("no NVVM")
        return self

    def __getitem__(self, shape: Any) -> Any:
        return lambda *args: self.launched.append((shape, args))


@pytest.mark.parametrize("reason", ["refused by the driver", "declared otherwise"])
def test_what_the_driver_cannot_launch_is_left_to_numba(reason, device, numba_stub, monkeypatch, caplog):
    device.refuses = reason == "refused by the driver"
    if not device.refuses:
        numba_stub.text = PTX.format("")
    as_numba = SimpleNamespace(external_stream=lambda handle: f"stream {handle}", as_cuda_array=lambda a, sync: a.kind)
    monkeypatch.setattr(launch, "cuda", as_numba)
    own = Dispatcher(fails=False)
    with caplog.at_level(logging.INFO, "gcodec"):
        launch.launch(own, 3, 0, 0, ARGS)
        launch.launch(own, 4, 0, 9, ARGS)
    assert own.launched == [((blocks, grid.THREADS, stream), (ARGS[0].kind, ARGS[1]))
                            for blocks, stream in ((3, "stream 1"), (4, "stream 9"))]
    assert "launched by numba" in caplog.text and not device.launched


def test_a_kernel_that_nothing_compiles_is_unsupported(device, monkeypatch):
    device.refuses = True
    monkeypatch.setattr(launch, "cuda", SimpleNamespace(as_cuda_array=lambda a, sync: a.kind))
    with pytest.raises(gcodec.Unsupported, match=r"later version.*no NVVM"):
        launch.launch(Dispatcher(fails=True), 1, 0, 0, ARGS)


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
    function = made.load(TEXT.encode(), "kernel_7")
    arguments_bytes = bytes(range(200)) + b"\0\0"
    made.launch(function, 6, 128, 5, arguments_bytes)
    assert own.launched == ((0x1234567890, 6, 1, 1, 128, 1, 1, 0, 5), (1, 2, None), arguments_bytes)
    assert own.calls.count("cuCtxPushCurrent_v2") == own.calls.count("cuCtxPopCurrent_v2") == 2


@pytest.mark.parametrize("name", ["cuModuleLoadDataEx", "cuModuleGetFunction", "cuLaunchKernel"])
def test_errors_of_the_driver_are_raised_and_the_context_is_left(name, monkeypatch):
    made, own = driver_with(monkeypatch, **{name: 700})
    with pytest.raises(DeviceError, match=f"{name}: error 700, what went wrong"):
        made.launch(made.load(b"", "kernel"), 1, 1, 0, b"")
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
