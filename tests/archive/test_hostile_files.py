"""The laws of files from strangers: whatever is in them, an error of the family, in bounded time and memory.

What could take the process with it runs in a child, which may take a gigabyte more than it starts with, and a minute.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from gcodec.errors import Corruption, GcodecError, LimitExceeded, Unsupported
from gcodec.files import ArraySource, FilePlan, inert_pickle, plan_file, plan_or_bytes
from gcodec.files.file_plan import TensorView, unique_names
from gcodec.files.inert_pickle import Budget, BudgetError
from gcodec.files.torch_pickle import named_tensors, read_pickle
from tests.archive.test_files import npy, npz, torch_file
from tests.support.paths import ROOT

CHILD = """
import base64, json, resource, sys
import numpy as np
from gcodec.errors import GcodecError
from gcodec.files import ArraySource, plan_file
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), -1))
resource.setrlimit(resource.RLIMIT_CPU, (60, -1))
for line in sys.stdin:
    name, path, data = json.loads(line)
    try:
        plan_file(path, ArraySource([np.frombuffer(base64.b64decode(data), np.uint8)])).close()
        outcome = "a plan"
    except GcodecError as error:
        outcome = type(error).__name__
    print(name, outcome, sep=": ", flush=True)
"""


def outcomes(files: Mapping[str, tuple[str, bytes]]) -> dict[str, str]:
    """Plan files, each a path and its bytes, in a child; return what came of each: "a plan" or an error's name."""
    lines = "".join(json.dumps([n, p, base64.b64encode(d).decode()]) + "\n" for n, (p, d) in files.items())
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD], input=lines, text=True, capture_output=True, env=environment
    )
    found = dict(line.split(": ") for line in done.stdout.splitlines())
    assert done.returncode == 0, f"ended after {list(found)} with {done.returncode}: {done.stderr[-2000:]}"
    return found


def plan(data: bytes, path: str = "x", **options: Any) -> FilePlan:
    return plan_file(path, ArraySource([np.frombuffer(data, np.uint8)]), **options)


def torch_zip(pickle: bytes) -> bytes:
    """Return a ``.pt`` file with this pickle and one storage, of 4 floats."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x/data.pkl", pickle)
        archive.writestr("x/data/0", bytes(16))
    return stream.getvalue()


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
#: A tensor of the storage, which stays in place 0 of the memo.
HOOKS = b"\x89ccollections\nOrderedDict\n)R"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00K\x04\x85K\x01\x85" + HOOKS + b"tRq\x00"


def long_paths(depth: int, bottom: bytes = TENSOR) -> bytes:
    """Dictionaries in each other, all under one key of 1,000 characters, and a tensor at the bottom."""
    key = b"X\xe8\x03\x00\x00" + b"k" * 1000 + b"q\x010"
    return b"\x80\x02" + key + b"}h\x01" * depth + bottom + b"s" * depth + b"."


#: Each of these crashed, hung or took memory or time far beyond its size.
PICKLES = {
    "a deep tuple as a key": b"\x80\x02})" + b"\x85" * 150_000 + b"K\x01s.",
    "a deep tuple as a key among several": b"\x80\x02}()" + b"\x85" * 150_000 + b"K\x01u.",
    "a deep tuple in a frozenset": b"\x80\x04()" + b"\x85" * 150_000 + b"\x91.",
    "a deep tuple in a set": b"\x80\x04\x8f()" + b"\x85" * 150_000 + b"\x90.",
    "a tuple of itself twice, often, as a key": b"\x80\x02})" + b"2\x86" * 70 + b"K\x01s.",
    "deep lists": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    "deep lists with a tensor": b"\x80\x02" + b"]" * 50_000 + TENSOR + b"a" * 50_000 + b".",
    "long paths": long_paths(900),
    "longer paths": long_paths(4000),
    "one name many times": b"\x80\x02" + TENSOR + b"0cx\ny\n)R(" + b"K\x01h\x00" * 80_000 + b"u.",
    "one tensor under a long path, often": long_paths(900, TENSOR + b"0](" + b"h\x00" * 100_000 + b"e"),
    "a long tuple, the arguments of many calls": b"\x80\x02cx\ny\nq\x00("
    + b"]" * 100_000
    + b"tq\x010]("
    + b"h\x00h\x01R" * 20_000
    + b"e.",
    "a large state, set often": b"\x80\x02cx\ny\n)R}q\x00(" + b"K\x01]" * 100_000 + b"u" + b"bh\x00" * 20_000 + b"b.",
    "a long tuple as the shape of many tensors": b"\x80\x02("
    + b"K\x01" * 100_000
    + b"tq\x010"
    + STORAGE
    + b"q\x020]("
    + b"ctorch._utils\n_rebuild_tensor_v2\n(h\x02K\x00h\x01h\x01tR" * 10_000
    + b"e.",
    "a long tuple in many lists": b"\x80\x02(" + b"]" * 40_000 + b"tq\x000](" + b"h\x00" * 40_000 + b"e.",
    "functions in each other": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nq\x000)q\x010"
    + b"h\x00Nh\x01\x87q\x010" * 20_000
    + b"h\x00h\x01R.",
    "a place in the memo far out": b"\x80\x02]r\xff\xff\xff\x7f.",
    "a string longer than the file": b"\x80\x02X\xff\xff\xff\x7f.",
    "a number of a million digits": b"\x80\x02}\x8b\x40\x42\x0f\x00" + b"\x7f" * 1_000_000 + TENSOR + b"s.",
    "nothing but marks": b"\x80\x02" + b"(" * 200_000 + b".",
    "nothing but places in the memo": b"\x80\x04]" + b"\x94" * 200_000 + b".",
    "nothing but lists": b"\x80\x02(" + b"]" * 200_000 + b"l.",
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of processes are those of Linux")
def test_hostile_pickles_end_in_bounded_time_and_memory():
    found = outcomes({name: ("x.pt", torch_zip(data)) for name, data in PICKLES.items()})
    assert found.keys() == PICKLES.keys() and set(found.values()) <= {"a plan", "Unsupported"}
    assert found["a tuple of itself twice, often, as a key"] == "a plan"


def test_pickles_hold_no_more_than_their_size_warrants():
    """The budget counts what is held: copies of arguments and states, and the names of tensors."""
    calls = PICKLES["a long tuple, the arguments of many calls"]
    budget = Budget(len(calls))
    with pytest.raises(BudgetError, match="memory that its size warrants"):
        read_pickle(calls, budget)
    assert budget.spent <= budget.limit + 80 * 100_000 + 96
    paths = PICKLES["one tensor under a long path, often"]
    budget = Budget(len(paths))
    with pytest.raises(BudgetError, match="memory that its size warrants"):
        list(named_tensors(read_pickle(paths, budget), "x", budget))


def test_pickles_of_too_many_steps_are_refused(monkeypatch):
    monkeypatch.setattr(inert_pickle, "MAX_STEPS", 100)
    read_pickle(b"\x80\x02" + b"N0" * 48 + b"N.")
    with pytest.raises(BudgetError, match="more than 100 steps"):
        read_pickle(b"\x80\x02" + b"N0" * 60 + b"N.")


def test_containers_of_a_pickle_are_walked_to_a_limited_depth():
    deepest = b"\x80\x02" + b"]" * 999 + TENSOR + b"a" * 999 + b"."
    assert [name for name, _ in named_tensors(read_pickle(deepest), "x")] == ["/".join("0" * 999)]
    with pytest.raises(BudgetError, match="nested more than 1000 deep"):
        list(named_tensors(read_pickle(b"\x80\x02" + b"]" * 1001 + TENSOR + b"a" * 1001 + b"."), "x"))


def test_paths_of_tensors_are_cut():
    [(name, _)] = named_tensors(read_pickle(long_paths(900)), "x")
    assert len(name) == 4096


@pytest.mark.parametrize(
    "function",
    [
        b"ctorch._utils\n_rebuild_tensor_v3\n(" + STORAGE + b"K\x00K\x04\x85K\x01\x85\x89N}tR.",  # not a type
        b"ctorch._utils\n_rebuild_tensor_v3\n(" + STORAGE + b"K\x00K\x04\x85K\x01\x85tR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00K\x04\x85K\x01\x85tR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00K\x04K\x01\x85tR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"K\x00]K\x01\x85tR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(K\x01N)NtR.",
        b"ctorch._tensor\n_rebuild_from_type_v2\n(cx\ny\nN]NtR.",
        b"N)R.",
        b"cx\ny\n]R.",
        b"cx\ny\n)\x81]a}K\x01K\x02su.",
        b"]]b.",
        b"g-1\n.",
        b"p-1\n.",
        b"h\x00.",
        b"K\x01K\x02\x93.",
    ],
)
def test_pickles_that_give_functions_what_they_do_not_take_are_unsupported(function):
    with pytest.raises(Unsupported, match=r"^x\.pt: malformed pickle"):
        plan(torch_zip(b"\x80\x02" + function), "x.pt")


def test_keys_of_any_kind_are_kept_apart():
    torch = pytest.importorskip("torch")
    value = {key: torch.ones(1) for key in ((1, "a"), (2, "b"), None, 2.5, -7)}
    found = plan(torch_file({"nested": value, frozenset([1]): {1, 2}}), "x.pt")
    assert [view.name for view in found.tensors] == [f"nested/{key}" for key in ("?", "?#2", "None", "2.5", "-7")]


def tensors_of(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors in dictionaries, lists and tuples with their paths."""
    torch = pytest.importorskip("torch")
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict | list | tuple):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from tensors_of(child, f"{path}/{key}" if path else str(key))


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_in_the_state_of_every_optimizer_are_found(protocol):
    torch = pytest.importorskip("torch")
    parameters = [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(3, 3))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    for name, kind in vars(torch.optim).items():
        if not isinstance(kind, type) or name in ("Optimizer", "SparseAdam"):
            continue
        optimizer = kind(parameters, lr=0.1)
        optimizer.step((lambda: sum(p.square().sum() for p in parameters)) if name == "LBFGS" else None)
        state = {"optimizer": optimizer.state_dict(), "model": OrderedDict(w=parameters[0].detach())}
        found = plan(torch_file(state, pickle_protocol=protocol), "x.pt")
        shapes = {path: tuple(tensor.shape) for path, tensor in tensors_of(state)}
        assert {view.name: view.shape for view in found.tensors} == shapes, name


def test_equal_names_are_numbered():
    names = ["x", "x#3", "x", "x", "y", "x#3", "x", "y"]
    views = unique_names([TensorView(name, "float32", (), 0) for name in names])
    assert [view.name for view in views] == ["x", "x#3", "x#2", "x#4", "y", "x#3#2", "x#5", "y#2"]


# --------------------------------------------------------------------------------------------------- .npy and .npz


def npy_with(header: bytes, version: int = 1, data: bytes = bytes(12)) -> bytes:
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def header(descr: str = "'<f4'", fortran: bool = False, shape: str = "(3,)") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}}}".encode()


#: Each was another error than of the family, or became an archive that no reader took.
NPY_HEADERS = {
    "a tuple of one as the type": npy_with(header("('<f4',)")),
    "an empty tuple as the type": npy_with(header("()")),
    "an empty list in the type": npy_with(header("[()]")),
    "numbers as the fields": npy_with(header("[(1, 2)]")),
    "text that is not UTF-8": npy_with(b"\xff" * 20, version=3),
    "a dimension of 2^62": npy_with(header(shape=f"({1 << 62}, 0)"), data=b""),
    "a dimension of 2^62 after a 0": npy_with(header(shape=f"(0, {1 << 62})"), data=b""),
    "Fortran strides of 2^62": npy_with(header(fortran=True, shape=f"({1 << 40}, {1 << 40}, 0)"), data=b""),
    "a dimension of many digits": npy_with(header(shape="(" + "9" * 5000 + ",)")),
    "deep brackets": npy_with(b"[" * 60_000),
    "a long sum": npy_with(b"1" + b"+1" * 30_000),
    "many signs": npy_with(b"-" * 60_000 + b"1"),
}


@pytest.mark.parametrize("data", NPY_HEADERS.values(), ids=NPY_HEADERS.keys())
def test_odd_npy_headers_are_refused_alone_and_kept_as_bytes_in_folders_and_zips(data):
    with pytest.raises(Corruption, match=r"^x\.npy: "):
        plan(data, "x.npy")
    source = ArraySource([np.frombuffer(data, np.uint8)])
    kept = plan_or_bytes("x.npy", source)
    assert kept.format == "bytes" and kept.note and not kept.tensors
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        members = {"odd.npy": data, "good.npy": npy(np.arange(5.0))}
        with closing(plan(zip_of(members, method), "x.npz")) as found:
            assert {view.name: view.dtype for view in found.tensors} == {"odd": "unknown", "good": "float64"}


def zip_of(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


METHODS = {"deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
def test_damaged_compressed_zips_raise_gcodec_errors_only(method):
    """Two bytes of a zip are replaced, 400 times: a plan or an error that names the file."""
    rng = np.random.default_rng(method)
    whole = zip_of({"x.npy": npy(rng.standard_normal(60)), "é.npy": npy(np.zeros(500))}, method)
    for _ in range(400):
        damaged = bytearray(whole)
        for at in rng.integers(4, len(whole), 2):
            damaged[at] = rng.integers(256)
        try:
            plan(bytes(damaged), "x.npz").close()
        except GcodecError as error:
            assert str(error).startswith("x.npz: ")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Exception("of a decompressor that is not known yet"), Corruption),
        (OSError("of bz2"), Corruption),
        (OSError(28, "No space left on device"), OSError),
        (MemoryError(), MemoryError),
        (RuntimeError("can't start new thread"), RuntimeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_whatever_a_decompressor_raises_is_corruption_but_faults_of_the_machine_are_not(error, expected, monkeypatch):
    def copy(*args: object) -> None:
        raise error

    monkeypatch.setattr(shutil, "copyfileobj", copy)
    with pytest.raises(expected):
        plan(npz({"x": np.zeros(9)}, compressed=True), "x.npz")


def test_compressed_zips_of_zeros_are_unpacked_without_being_asked():
    """Deflate's best ratio is within the limit."""
    data = npz({"x": np.zeros(5_000_000, np.float32)}, compressed=True)
    assert len(data) < 20_000_000 // 900
    with closing(plan(data, "x.npz")) as found:
        assert found.source.size > 20_000_000


def test_zips_that_unpack_to_more_than_the_limit_are_refused_before_anything_is_unpacked(monkeypatch):
    data = zip_of({"x.npy": npy(np.zeros(5_000_000, np.float32))}, zipfile.ZIP_BZIP2)
    assert len(data) < 500
    copied: list[int] = []
    copy = shutil.copyfileobj

    def counted(old: Any, new: Any, step: int) -> None:
        copied.append(step)
        copy(old, new, step)

    monkeypatch.setattr(shutil, "copyfileobj", counted)
    with pytest.raises(LimitExceeded, match=r"x\.npz: .* 20000128 bytes.*--max-unpacked-bytes"):
        plan(data, "x.npz")
    with pytest.raises(LimitExceeded, match="limit of 20000127;"):
        plan(data, "x.npz", max_unpacked_bytes=20_000_127)
    assert not copied
    with closing(plan(data, "x.npz", max_unpacked_bytes=20_000_128)) as found:
        assert found.tensors[0].shape == (5_000_000,)
    assert copied == [1 << 12]  # a few kilobytes of bzip2 are tens of megabytes, all of which zipfile holds


def test_zips_that_ask_lzma_for_much_memory_are_unsupported():
    data = bytearray(zip_of({"x.npy": npy(np.arange(9.0))}, zipfile.ZIP_LZMA))
    at = 30 + len("x.npy") + 5
    assert int.from_bytes(data[at : at + 4], "little") == 1 << 23
    data[at : at + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(Unsupported, match=r"x\.npz: 'x\.npy' .* dictionary of 2147483648 bytes"):
        plan(bytes(data), "x.npz")


def test_zips_with_a_long_directory_are_read():
    """The directory is read in blocks, some of which end within an entry."""
    members = {f"{n}.npy": npy(np.array(n, np.float32)) for n in range(2000)}
    found = plan(zip_of(members), "x.npz")
    assert len(found.tensors) == 2000 and all(len(segment.crc_at) == 2 for segment in found.segments)
