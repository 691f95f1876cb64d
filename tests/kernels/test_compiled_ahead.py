"""The law that nothing is missing: where all that installing compiles is there, what users do compiles nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gcodec
from gcodec.cli import main
from gcodec.compiling import COMPILE, numba_events
from gcodec.kernels.core import shipped_kernels
from tests.support.base_pairs import PAIRS
from tests.support.cases import CASES
from tests.support.encode_modes import modes
from tools import compile_kernels
from tools.compile_kernels import compile_level
from tools.kernel_work import DTYPES, PARTS

#: Ladders of the user's own have kernels of their own (docs/caches.md).
OWN_LADDERS = "uneven ladder", "ladder of one level"
#: Ways of single blocks and references that hardly any array takes, each a second to compile.
RARE = {"choose_codebooks", "weigh_references"}


#: The part before which all is compiled that users meet first.
FIRST_OF_OTHERS = "training with integers from float32"


def _values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def encode_arrays() -> None:
    """Encode and decode the tests' arrays in every mode, and against a base."""
    for case in CASES:
        for mode in modes(case.dtype) if case.dtype in DTYPES else ():
            if mode.name not in OWN_LADDERS:
                arguments = mode.arguments(case)
                known = {key: value for key, value in arguments.items() if key == "known_codebooks"}
                gcodec.decode(gcodec.encode(case.array(), **arguments), **known)
    for pair in PAIRS:
        if pair.dtype in DTYPES:
            base = pair.earlier()
            gcodec.decode(gcodec.encode(pair.array(), base=base, dtype=pair.dtype), base=base)


def compress_a_folder(folder: Path) -> None:
    """Compress files of several kinds, restore and verify them."""
    import torch
    from safetensors.torch import save_file

    rng, files = np.random.default_rng(0), folder / "run"
    files.mkdir()
    np.save(files / "float32.npy", _values(rng, 300, 1000))
    np.savez(files / "several.npz", integers=np.arange(100_000), floats=rng.standard_normal(100_000))
    (files / "notes.txt").write_text("a line of text\n" * 10_000)
    model, state = train(torch)
    torch.save(state, files / "state.pt")
    for name in ("bfloat16", "float16"):
        cast = {key: value.to(getattr(torch, name)) for key, value in model.state_dict().items()}
        save_file(cast, files / f"{name}.safetensors")
    archive = str(folder / "run.gc")
    for arguments in (
        ["compress", "-q", str(files), "-o", archive],
        ["decompress", "-q", archive, "-o", str(folder / "restored")],
        ["verify", "-q", archive, "--against", str(files)],
    ):
        assert main(arguments) == 0


def train(torch: Any) -> tuple[Any, dict[str, Any]]:
    """Return a small model and the state of its training after three steps."""
    model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(64, 200)).square().mean().backward()
        optimizer.step()
    return model, {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def keep_checkpoints(folder: Path) -> None:
    """Save and load an object, and a series of them."""
    import torch

    state = train(torch)[1]
    gcodec.save(state, folder / "state.gc")
    gcodec.load(folder / "state.gc")
    checkpoints = gcodec.Checkpointer(folder / "series")
    for step in range(3):
        checkpoints.save(step, train(torch)[1])
    checkpoints.load()


def send_streams(_: Path) -> None:
    """Encode arrays that share codebooks."""
    encoder, decoder, rng = gcodec.Encoder(), gcodec.Decoder(), np.random.default_rng(0)
    for _step in range(4):
        decoder.decode(encoder.encode(_values(rng, 100_000)))


def use_hooks(folder: Path) -> None:
    """Train with the hook in its modes, as a group of one rank."""
    import torch
    from torch.distributed import destroy_process_group, init_process_group

    from gcodec.distributed import CompressedAllreduce, FixedBits, hook

    init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        for dtype, choose in product((torch.float32, torch.bfloat16), (torch.optim.SGD, torch.optim.AdamW)):
            for arguments in ({}, {"mode": FixedBits(7)}, None):
                model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(512, 512, dtype=dtype))
                optimizer: Any = choose(model.parameters(), lr=0.01)
                state: Any = CompressedAllreduce(**({"optimizer": optimizer} if arguments is None else arguments))
                model.register_comm_hook(state, hook)
                for _step in range(3):
                    model(torch.ones(4, 512, dtype=dtype)).sum().backward()
                    optimizer.step()
    finally:
        destroy_process_group()


def average_integers(folder: Path) -> None:
    """Average gradients in the modes "int8" and "int4"."""
    import torch

    from gcodec.averaging.simulate import Simulation

    gradients = {"few": torch.randn(30, 40), "many": torch.randn(500, 1000)}
    for mode in ("int8", "int4"):
        simulation = Simulation(2, mode)
        for _step in range(2):
            simulation.average([gradients, gradients])


def meet_first(folder: Path) -> None:
    """Save what a first training script has, and encode arrays of the kinds that its tensors are of."""
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Embedding(2000, 128), torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 2000)
    model = torch.nn.Sequential(*layers)
    for parameter in model.parameters():  # uniform ones may look like quantized ones once they are bfloat16
        torch.nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters())
    for _step in range(2):
        words = torch.randint(0, 60, (128,))  # so that most rows of the embedding's gradient are zero
        torch.nn.functional.cross_entropy(model(words), words).backward()
        optimizer.step()
    gcodec.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.gc")
    gcodec.load(folder / "state.gc")
    rows = torch.randn(500, 256)
    arrays = [rows, rows * torch.exp(3 * torch.randn(256)), torch.relu(rows - 1), torch.softmax(rows, 1)]
    for array in (*arrays, *model.state_dict().values(), torch.ones(10**6)):
        for dtype in (torch.float32, torch.bfloat16):
            gcodec.decode(gcodec.encode(array.to(dtype)))
    for array in (*(parameter.grad for parameter in model.parameters()), torch.randint(0, 10**5, (500, 256)).float()):
        gcodec.decode(gcodec.encode(array))
    for kept in (3, 4, 7, 8, 10, 16):
        gcodec.decode(gcodec.encode(rows, mantissa_bits=kept))


def print_what_comes_later(folder: str) -> None:
    """Print the names of kernels that are met first, and that no part has used before those of other work."""
    compile_kernels.note_kernels()
    for part in list(PARTS)[: list(PARTS).index(FIRST_OF_OTHERS)]:
        with compile_kernels.without_torch():
            PARTS[part]()
    compile_kernels._seen.clear()
    meet_first(Path(folder))
    names = {name.split(".")[1] for name, *_ in compile_kernels._seen}
    print("later:", *sorted(names - RARE))


WAYS: dict[str, Callable[[Path], None]] = {
    "arrays": lambda folder: encode_arrays(),
    "a folder": compress_a_folder,
    "checkpoints": keep_checkpoints,
    "streams": send_streams,
    "hooks": use_hooks,
    "integers": average_integers,
}


@contextmanager
def compiled(names: set[str]) -> Iterator[None]:
    """Add the names of the kernels that are compiled for Python meanwhile."""
    within = list[str]()

    def begin(event: Any) -> None:
        within.append(event.data["dispatcher"].py_func.__name__)
        names.update(within[:1])

    def end(event: Any) -> None:
        within.pop()

    with numba_events(COMPILE, begin, end):
        yield


def use(way: str, archives: str, folder: str) -> None:
    """Take a way with the kernels of a folder, and print the names of what was compiled nevertheless."""
    names = set[str]()
    shipped_kernels.FOLDER = Path(archives)
    with compiled(names):
        WAYS[way](Path(folder))
    print("compiled:", *sorted(names - RARE))


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that is compiled ahead for this machine."""
    level = shipped_kernels.level_of_host()
    if level is None:
        pytest.skip("no kernels are compiled ahead for this CPU")
    folder = tmp_path_factory.mktemp("compiled")
    compile_level(level, Path(__file__).parents[2] / "tools" / "kernel_work.py", folder)
    return folder


def test_what_is_met_first_is_compiled_before_other_work(tmp_path):
    """Installing has time for these parts alone, on many machines."""
    program = f"from tests.kernels.test_compiled_ahead import *; print_what_comes_later({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2], timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "later:"


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_what_users_do_compiles_nothing_that_could_have_been_compiled_ahead(way, archives, tmp_path):
    program = f"from tests.kernels.test_compiled_ahead import use; use({way!r}, {str(archives)!r}, {str(tmp_path)!r})"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2], timeout=900)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "compiled:"
