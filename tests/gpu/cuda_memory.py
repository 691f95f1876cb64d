"""The host in the place of a device, for tests of the CUDA path: what :class:`gcodec.gpu.gpu_memory.Memory` asks
for, in numpy arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from gcodec.dtypes import BY_NAME, DType
from gcodec.errors import InvalidArgument
from gcodec.gpu.gpu_memory import PackedArrays, PendingCopy


class _At:
    """Memory by its address, for numpy."""

    def __init__(self, address: int, n: int, dtype: np.dtype) -> None:
        self.__array_interface__ = {"shape": (n,), "typestr": dtype.str, "data": (address, False), "version": 3}


class HostMemory:
    """``names``: types that arrays of these types stand for.

    Kernels are those of ``library`` (:mod:`tests.gpu.host_library`). Their threads take turns in an order that is drawn
    by the number of the launch: rising, falling, or any. ``arguments`` are those of the last launch.
    """

    library: Any = None
    arguments: Any = ()

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.tables: dict[Any, Any] = {}
        self.waited = 0
        self.launched = 0

    def empty(self, n: int, dtype: str) -> np.ndarray:
        array = np.empty(max(n, 1), dtype)
        array.view(np.uint8)[:] = 0xA5
        return array[:n]

    def rooms(self, *rooms: tuple[int, str]) -> list[np.ndarray]:
        return [self.empty(n, dtype) for n, dtype in rooms]

    def zeros(self, n: int, dtype: str) -> np.ndarray:
        return np.zeros(n, dtype)

    def slices_on_host(self, parts: Sequence[tuple[np.ndarray, slice]], dtype: DType) -> list[np.ndarray]:
        self.waited += 1
        return [tensor.reshape(-1)[part].view(dtype.uint).copy() for tensor, part in parts]

    def full(self, n: int, value: float) -> np.ndarray:
        return np.full(n, value, np.float32)

    def send(self, array: np.ndarray) -> np.ndarray:
        return np.array(array, order="C")

    def send_all(self, *arrays: np.ndarray) -> list[np.ndarray]:
        return [self.send(array) for array in arrays]

    def send_packed(self, packed: PackedArrays) -> list[np.ndarray]:
        sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape in packed.places]
        return [
            packed.data[begin : begin + size].copy().view(dtype).reshape(shape)
            for size, (begin, dtype, shape) in zip(sizes, packed.places, strict=True)
        ]

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.tables:
            self.tables[key] = make()
        return self.tables[key]

    def fetch(self, array: np.ndarray) -> np.ndarray:
        self.waited += 1
        return array.copy()

    def fetch_all(self, *arrays: np.ndarray) -> list[np.ndarray]:
        self.waited += 1
        return [array.copy() for array in arrays]

    def begin_fetch(self, array: np.ndarray) -> PendingCopy:
        return PendingCopy(array.copy())

    def heads(self, tensors: Sequence[np.ndarray], sizes: Sequence[int]) -> list[np.ndarray]:
        self.waited += 1
        return [tensor[:size].copy() for tensor, size in zip(tensors, sizes, strict=True)]

    def begin_heads(self, tensors: Sequence[np.ndarray], sizes: Sequence[int]) -> PendingCopy:
        self.waited += 1  # when its result is asked for, which all do
        return PendingCopy(np.concatenate([tensor[:size] for tensor, size in zip(tensors, sizes, strict=True)]))

    def part(self, array: np.ndarray, begin: int, end: int) -> np.ndarray:
        return array.reshape(-1).view(np.uint8)[begin:end]

    def span(self, tensors: Sequence[np.ndarray], dtype: str) -> tuple[np.ndarray, list[int]]:
        kind = np.dtype(dtype)
        addresses = [tensor.__array_interface__["data"][0] for tensor in tensors]
        lowest = min(addresses)
        end = max(a + t.nbytes for a, t in zip(addresses, tensors, strict=True))
        array = np.asarray(_At(lowest, -(-(end - lowest) // kind.itemsize), kind))
        return array, [(address - lowest) // kind.itemsize for address in addresses]

    def see(self, x: np.ndarray, argument: str = "x") -> tuple[np.ndarray, DType, tuple[int, ...]]:
        return np.ascontiguousarray(x), BY_NAME[self.names.get(x.dtype.name, x.dtype.name)], x.shape

    def levels_of(self, levels: np.ndarray, n: int) -> np.ndarray:
        assert levels.dtype == np.uint8 and levels.size == n
        return np.ascontiguousarray(levels)

    def bytes_of(self, data: Any) -> np.ndarray:
        room = np.empty(len(data) // 8 + 1, np.uint64).view(np.uint8)
        room[: len(data)] = np.frombuffer(data, np.uint8)
        return room[: len(data)]

    def host_bytes(self, data: Any) -> None:
        return None

    def new(self, kinds: Iterable[tuple[DType, tuple[int, ...]]]) -> list[np.ndarray]:
        arrays = [np.empty(shape, dtype.uint) for dtype, shape in kinds]
        for array in arrays:
            array.reshape(-1).view(np.uint8)[:] = 0x5A
        return arrays

    def put(self, array: np.ndarray, target: np.ndarray) -> None:
        target.reshape(-1)[:] = array

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        target.reshape(-1)[:] = source.reshape(-1).view(target.dtype)

    def values_on_host(self, tensor: np.ndarray, dtype: DType) -> np.ndarray:
        self.waited += 1
        return tensor.reshape(-1).view(dtype.uint).copy()

    def target_of(self, out: np.ndarray, dtype: DType, n: int) -> np.ndarray:
        if out.dtype.itemsize != dtype.itemsize or out.size != n or not out.flags.c_contiguous:
            raise InvalidArgument("out")
        return out

    def launch(self, kernel: Any, blocks: int, *args: Any) -> None:
        from tests.gpu import host_library

        self.launched += 1
        self.arguments = args
        order = Random(self.launched).choice((0, 1, 2 + self.launched))
        host_library.run(self.library or host_library.build(), kernel, blocks, args, order)
