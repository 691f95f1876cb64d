"""The law of limits of memory: whatever a process may take, a call succeeds or says that there is no memory.

docs/security.md advises such a limit for files of strangers. A call that finds less memory than it needs does not hang,
does not end the process, and takes nothing for damage.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import zstandard

pytest.importorskip("torch")
pytest.importorskip("resource")

import gcodec
from gcodec.archive import zstd_text
from gcodec.archive.folders import folder_at
from gcodec.errors import Corruption, NoMemory
from tests.support.memory_limits import Outcome
from tests.support.paths import ROOT

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or sys.implementation.name != "cpython",
    reason="needs a limit of memory, its size in /proc and glibc's malloc",
)

#: Every fourth call, from the second on, is made with powers of two of pages; with `make slow` all, and with others.
NUMBER, N_PARTS = 1, 4
N_LIMITS = 24
SHARE_THAT_MEETS_ONE = 0.7


def outcomes(folder: Path, n_limits: int, number: int, n_parts: int) -> list[Outcome]:
    command = [sys.executable, "-m", "tests.support.memory_limits", str(folder), *map(str, (n_limits, number, n_parts))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]


def is_right(outcome: Outcome) -> bool:
    kinds = outcome.what.split()
    if outcome.what == "success":
        return True
    if "Corruption" in kinds:
        return False
    is_of_test = outcome.text.startswith("/tests")  # which makes and compares tensors of torch
    return "MemoryError" in kinds or "GcodecError" in kinds or "[Errno 12]" in outcome.text or is_of_test


@pytest.mark.parametrize(
    ("n_limits", "number", "n_parts"), [(0, NUMBER, N_PARTS), pytest.param(N_LIMITS, 0, 1, marks=pytest.mark.slow)]
)
def test_a_call_at_a_limit_of_memory_succeeds_or_says_so(tmp_path, n_limits, number, n_parts):
    found = outcomes(tmp_path, n_limits, number, n_parts)
    assert not [outcome for outcome in found if not is_right(outcome)]
    by_case = defaultdict(set)
    for outcome in found:
        by_case[outcome.case].add(outcome.what == "success")
    n_met = sum(False in of_case for of_case in by_case.values())
    assert len(by_case) >= 60 // n_parts and n_met > SHARE_THAT_MEETS_ONE * len(by_case)
    assert all(True in of_case for of_case in by_case.values())


class Refusing:
    """A compressor or decompressor of a library, without memory."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, *_: Any, **__: Any) -> Refusing:
        return self

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise self.error

    compress = decompress = _refuse
    unconsumed_tail, eof = b"", False


def test_no_memory_for_zstandard_is_no_damage_and_no_error_of_its_own(monkeypatch):
    text = bytes(100_000)
    frame = zstd_text.compressed(text, 3)
    error = zstandard.ZstdError("cannot compress: Allocation error : not enough memory")
    monkeypatch.setattr(zstandard, "ZstdCompressor", Refusing(error))
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Refusing(error))
    with pytest.raises(MemoryError, match="no memory to compress 100000 bytes"):
        zstd_text.compressed(text, 3)
    with pytest.raises(NoMemory, match="not enough memory"):
        zstd_text.decompressed(memoryview(frame), len(text))
    too_large = zstandard.ZstdError("decompression error: Frame requires too much memory for decoding")
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Refusing(too_large))
    with pytest.raises(Corruption):
        zstd_text.decompressed(memoryview(frame), len(text))


def test_no_memory_to_unpack_a_zip_is_no_damage(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", a=np.arange(1000.0))
    error = zlib.error("Error -4 while decompressing data")
    monkeypatch.setattr(zipfile, "_get_decompressor", lambda kind: Refusing(error))
    with pytest.raises(NoMemory, match=r"x\.npz: there is no memory to unpack"):
        gcodec.load(tmp_path / "x.npz")
    error.args = ("Error -3 while decompressing data: invalid distance",)
    with pytest.raises(Corruption, match="cannot unpack"):
        gcodec.load(tmp_path / "x.npz")


def test_a_small_file_takes_little_memory_to_be_read(tmp_path):
    (tmp_path / "index").write_bytes(b"small")
    folder = folder_at(tmp_path)
    tracemalloc.start()
    try:
        assert folder.read("index", 1 << 28) == b"small" and folder.read("index", 3) == b"sma"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
