"""The front door: which names are there, what ``help`` says of them, and what errors say of files of other kinds."""

from __future__ import annotations

import inspect
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.errors import InvalidArgument, Unsupported, WrongKind
from tests.test_floors import PACKAGE

pytest.importorskip("torch")  # public names are looked up one by one, and some need it

VALUES = np.linspace(-1, 1, 500, dtype=np.float32)
SECTIONS = ("Args:", "Returns:", "Raises:")
FUNCTIONS = [name for name in dir(gcodec) if inspect.isfunction(getattr(gcodec, name))]
RETURN_NOTHING = {"save", "save_file", "warmup"}


def test_only_public_names_are_listed():
    names = [name for name in dir(gcodec) if not name.startswith("__")]
    assert not [name for name in names if name.startswith("_")]
    for name in names:
        value = getattr(gcodec, name)
        origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "gcodec")
        assert origin.startswith("gcodec"), name
    assert {"encode", "save", "load", "open", "distributed", "sync", "compressors"} <= set(names)
    assert {"Any", "TYPE_CHECKING", "annotations", "import_module"}.isdisjoint(names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = gcodec.nothing


def test_a_star_leaves_open_alone():
    names: dict[str, Any] = {}
    exec("from gcodec import *", names)
    assert names["encode"] is gcodec.encode and "open" not in names and "distributed" not in names


@pytest.mark.parametrize("name", ["adaptive", "archive", "checkpoints", "compressors", "distributed", "gpu", "sync"])
def test_packages_list_what_is_public(name):
    package = getattr(gcodec, name)
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, public) for public in package.__all__)


@pytest.mark.parametrize(
    "name", ["distributed", "adaptive.GraVAC", "adaptive.AdaptiveOptimizer", "compressors.DGC", "compressors.PowerSGD"]
)
def test_what_needs_torch_says_so_where_it_is_not_installed(name):
    program = f"""if True:
        import sys
        sys.modules["torch"] = None
        import gcodec
        try:
            gcodec.{name}
        except ImportError as error:
            assert isinstance(error, gcodec.GcodecError), repr(error)
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"gcodec.{name} needs torch: pip install torch\n"


@pytest.mark.parametrize(
    "package",
    [
        "distributed",
        "sync",
        "compressors",
        "adaptive",
        "checkpoints",
        "errors",
        "integrations",
        "integrations.torch_ops",
        "recorder",
        "report",
    ],
)
def test_packages_need_no_import_of_their_own(package):
    program = f"import gcodec; print(gcodec.{package}.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert done.stdout.strip() == f"gcodec.{package}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_of_functions_is_structured(name):
    function = getattr(gcodec, name)
    lines = (inspect.getdoc(function) or "").splitlines()
    assert lines[0].endswith(".") and (len(lines) == 1 or not lines[1])
    wanted = [section for section in SECTIONS if section != "Returns:" or name not in RETURN_NOTHING]
    assert [line for line in lines if line in SECTIONS] == wanted
    for parameter in inspect.signature(function).parameters:
        assert any(line.startswith((f"    {parameter}:", f"    {parameter} (")) for line in lines), parameter


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a file of each kind that users take for another."""
    torch = pytest.importorskip("torch")
    from safetensors.numpy import save_file

    folder = tmp_path_factory.mktemp("kinds")
    found = {kind: folder / f"x.{kind}" for kind in ("archive", "frame", "zip", "npy", "safetensors")}
    gcodec.save({"x": VALUES}, found["archive"])
    found["frame"].write_bytes(gcodec.encode(VALUES))
    torch.save({"x": torch.ones(3)}, found["zip"])
    with found["npy"].open("wb") as file:
        np.save(file, VALUES)
    save_file({"x": VALUES}, found["safetensors"])
    return found


READERS: dict[str, list[Callable[[Path], Any]]] = {
    "frame": [
        lambda path: gcodec.decode(path.read_bytes()),
        lambda path: gcodec.inspect(path.read_bytes()),
        lambda path: gcodec.decode_range(path.read_bytes(), 0, 1),
    ],
    "archive": [
        gcodec.load_file,
        gcodec.open,
        lambda path: gcodec.load_file(io.BytesIO(path.read_bytes())),
        lambda path: gcodec.decompress_file(path),
    ],
}


@pytest.mark.parametrize("wanted", READERS)
def test_errors_say_what_a_file_is_instead(kinds, wanted):
    texts = {
        "archive": r"a gcodec archive: .*gcodec\.load_file",
        "frame": r"a gcodec frame: .*gcodec\.decode",
        "zip": r"a zip file.*torch\.save.*gcodec\.load",
        "npy": r"a \.npy file.*gcodec\.load",
        "safetensors": r"a \.safetensors.*gcodec\.load",
    }
    for kind, path in kinds.items():
        for reader in READERS[wanted]:
            if kind != wanted:
                with pytest.raises(WrongKind, match=rf"not a gcodec {wanted}.*; this is {texts[kind]}"):
                    reader(path)
    (kinds["npy"].parent / "x.txt").write_bytes(b"some text that is of no kind at all, but long enough " * 3)
    with pytest.raises(WrongKind, match=f"not a gcodec {wanted}[^;]*; this is text$"):
        READERS[wanted][0](kinds["npy"].parent / "x.txt")


ANY: Any = gcodec  # calls of it are not checked
CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: gcodec.decode("x.gc"), "bytes-like.*gcodec.load_file"),
    (lambda: ANY.load(b"bytes"), "a binary stream, not bytes; put bytes into io.BytesIO"),
    (lambda: ANY.load_file(3), "a path or a binary stream, not int"),
    (lambda: ANY.save_file([VALUES], io.BytesIO()), "not a list; gcodec.save takes"),
    (lambda: gcodec.save_file({"m": {"x": VALUES}}, io.BytesIO()), "'m': .*not a dict of .*; gcodec.save takes"),
    (lambda: gcodec.encode(np.ones(3, bool)), "not bool; gcodec.save and gcodec.save_file keep"),
    (lambda: gcodec.encode(np.ones(3, np.int64)), "not int64; gcodec.save"),
    (lambda: gcodec.encode("model.npy"), "x must be an array .*, not a string; gcodec.compress_file takes the path"),
    (lambda: gcodec.encode(np.ones(3, np.complex64)), r"x must be real, not of complex64: pass x\.real and x\.imag"),
    (lambda: gcodec.encode(np.ones(3, np.uint16)), "holds the bits of floats, say dtype='bfloat16'$"),
    (lambda: gcodec.encode(np.ones(3, ">u2")), "holds the bits of floats, say dtype='bfloat16'$"),
    (lambda: gcodec.encode(np.ones(3, np.uint8)), "say dtype='float8_e4m3fn' or 'float8_e5m2'$"),
    (lambda: gcodec.decode(gcodec.encode(VALUES), out=[]), "it is a list$"),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_errors_of_senseless_calls_say_what_would_be_right(number):
    call, text = CALLS[number]
    with pytest.raises(InvalidArgument, match=text):
        call()


def test_tensors_without_values_are_named_as_such():
    torch = pytest.importorskip("torch")
    meta = torch.ones(3, device="meta")
    for call in (
        lambda: gcodec.save({"m": [meta]}, io.BytesIO()),
        lambda: gcodec.save_file({"m": meta}, io.BytesIO()),
        lambda: gcodec.encode(meta),
    ):
        with pytest.raises((InvalidArgument, Unsupported), match="on the device meta has no data"):
            call()
    with pytest.raises(InvalidArgument, match=r"pass data\.numpy\(\)"):
        gcodec.decode(torch.zeros(100, dtype=torch.uint8))
    with pytest.raises(InvalidArgument, match=r"not torch\.bool; gcodec\.save"):
        gcodec.encode(torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("version", "works"), [("2.5.1+cu124", False), ("2.6.0", True), ("2.13.0+cpu", True), ("3.0", True)]
)
def test_a_torch_that_is_too_old_for_training_is_named_with_what_it_can_do(monkeypatch, version, works):
    torch = pytest.importorskip("torch")
    from gcodec.distributed import torch_version

    monkeypatch.setattr(torch, "__version__", version)
    if works:
        torch_version.refuse_old()
        return
    with pytest.raises(ImportError, match=r"needs torch 2\.6 or later, and this is 2\.5\.1\+cu124; tensors, files"):
        torch_version.refuse_old()
