"""The table of fuzzing targets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module, util
from typing import NamedTuple

from gcodec.errors import GcodecError
from tests.fuzz.runner import Target


class Row(NamedTuple):
    """A target.

    Attributes:
        what: What is read, as docs/reliability.md calls it.
        module: Module of this folder that has the target's class.
        name: Name of the class.
        weight: Its share of all executions.
        n_tested: Cases of it in an ordinary run of the tests.
        needs_torch: True if it needs torch.
        held: What holds for each case, as docs/reliability.md says it.
    """

    what: str
    module: str
    name: str
    weight: float
    n_tested: int
    needs_torch: bool = False
    held: str = "a result or a GcodecError"


TARGETS = {
    "frames": Row("mutated frames", "frames", "Frames", 30, 2500),
    "reference": Row("mutated frames, beside the reference decoder", "frames", "FramesBesideReference", 2, 250),
    "archives": Row("archives, index changed and sealed again: restored and loaded", "containers", "Archives", 3, 1000),
    "indexes": Row("archives, index changed and sealed again: listed", "containers", "ArchiveIndexes", 12, 2500),
    "messages": Row("messages of an all-reduce", "messages", "Messages", 10, 2500, True),
    "payloads": Row("payloads of compressors", "messages", "Payloads", 6, 1000, True),
    "states": Row("packed states", "messages", "PackedStates", 4, 1500, True),
    "objects": Row("structures of objects", "objects", "Objects", 2, 1000, True),
    "codebooks": Row("records of codebooks", "messages", "Codebooks", 8, 2500, True),
    "versions": Row("versions of weights, index or metadata changed and sealed again", "versions", "Versions", 1, 500),
    "manifests": Row("manifests of folders of versions", "versions", "Manifests", 4, 1500),
    "names": Row(
        "names of tensors and files, which `load_file` and `--only` look for",
        "names",
        "Names",
        0.3,
        60,
        held="what the documentation says, or a GcodecError",
    ),
    "series": Row(
        "series of versions, deleted, renamed and damaged",
        "series",
        "Series",
        0.1,
        20,
        True,
        held="every version right; a GcodecError only where its files were tampered with",
    ),
    "store": Row(
        "stores at URLs that fail at some of their calls",
        "stores",
        "Stores",
        0.1,
        20,
        True,
        held="the earlier file or the new one; errors name the URL",
    ),
    "npy": Row("`.npy` files", "containers", "NpyFiles", 8, 2500),
    "npz": Row("`.npz` files", "containers", "NpzFiles", 4, 1000),
    "safetensors": Row("`.safetensors` files", "containers", "SafetensorsFiles", 8, 2500),
    "gguf": Row("`.gguf` files", "containers", "GgufFiles", 6, 2000),
    "pt": Row("`.pt` files", "containers", "TorchFiles", 5, 2000, True),
    "found_values": Row(
        "files of unknown kinds, in which values are found",
        "found_values",
        "FoundValues",
        0.3,
        60,
        held="the same bytes; of a damaged archive those or Corruption",
    ),
    "stored": Row(
        "tensor files, archived and restored",
        "containers",
        "StoredFiles",
        1,
        500,
        True,
        held="the same bytes or a GcodecError",
    ),
    "commands": Row(
        "command lines over hostile folders",
        "command_lines",
        "CommandLines",
        0.1,
        60,
        held="every error one line that names the file",
    ),
}


@cache
def load(name: str) -> Target:
    """Return a target, after its valid cases have been run once, so that all code is compiled."""
    row = TARGETS[name]
    make: Callable[[], Target] = getattr(import_module(f"tests.fuzz.{row.module}"), row.name)
    target = make()
    for case in target.cases():
        with suppress(GcodecError):  # a golden frame may name a codebook that is its own, which `inspect` lacks
            target.run(case)
    return target


def at_hand() -> list[str]:
    """Return the names of the targets that can be run here."""
    has_torch = util.find_spec("torch") is not None
    return [name for name, row in TARGETS.items() if has_torch or not row.needs_torch]
