"""The laws of kernels that come with the package: used without compiling, on the right CPUs only, never if damaged."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from math import inf
from pathlib import Path
from typing import Any

import pytest

from gcodec.errors import GcodecError
from gcodec.kernels.core import kernel_cache, numba_private, shipped_kernels
from gcodec.kernels.core.cpu_levels import CHOICES, LEVELS, level_for
from tests.kernels.test_kernel_cache import TWO_KERNELS, counts, module_at
from tools.compile_kernels import compile_level

LEVEL = shipped_kernels.level_of_host()
on_known_cpu = pytest.mark.skipif(
    LEVEL is None or numba_private.named_cpu() != (None, None), reason="needs a CPU of a level, not one by name"
)
AVX512_LEVEL, V3, V2 = LEVELS
USE = """
from pathlib import Path
from gcodec.kernels.core import shipped_kernels
shipped_kernels.FOLDER = Path({folder!r})
import numpy as np
from gcodec.kernels.core.checksum import partial_checksum
print(partial_checksum(np.arange(64, dtype=np.uint8), 0, 16))
print(sum(partial_checksum.stats.cache_hits.values()), sum(partial_checksum.stats.cache_misses.values()))
"""
WORK = """
import numpy as np
from gcodec.kernels.core.checksum import partial_checksum
PARTS = {"use": lambda: partial_checksum(np.arange(64, dtype=np.uint8), 0, 16)}
"""


# Levels


@pytest.mark.parametrize(("features", "level"), [
    (AVX512_LEVEL.features, AVX512_LEVEL),
    ({*AVX512_LEVEL.features, "avx512bf16", "gfni"}, AVX512_LEVEL),
    (set(AVX512_LEVEL.features) - {"avx512vbmi2"}, V3),
    (set(AVX512_LEVEL.features) - {"avx512bitalg"}, None),  # kernels choose AVX-512 there, and V3's do not
    (V3.features, V3),
    (set(V3.features) - {"fma"}, None),  # likewise BMI2
    (set(V3.features) - {"bmi2"}, None),  # likewise AVX2
    (set(V3.features) - {"avx2", "bmi2"}, V2),
    (V2.features, V2),
    (set(V2.features) - {"ssse3"}, None),
    ((), None),
])  # fmt: skip
def test_a_cpu_gets_the_highest_level_at_which_kernels_make_the_same_choices(features, level):
    assert level_for(lambda feature: feature in features) is level


def test_levels_are_told_to_numba_with_all_features_that_kernels_ask_for():
    for level in LEVELS:
        named = level.flags.split(",")
        for choice in CHOICES:
            assert all(f"+{feature}" in named for feature in choice) == (set(choice) <= set(level.features))


# Archives


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Return a file of two kernels, of which one has been shipped, and that archive; nothing else is cached."""
    source, folder = tmp_path / "two_kernels.py", tmp_path / "compiled"
    source.write_text(TWO_KERNELS.format(jit="gcodec.kernels.core.jit"))
    monkeypatch.setattr(numba_private.config, "CACHE_DIR", str(tmp_path / "first"))
    first = module_at(source).first
    entries: dict[str, bytes] = {}
    save = kernel_cache._CheckedFiles.save

    def record(self: Any, key: Any, data: Any) -> None:
        name, content = shipped_kernels.entry(self._name, self._release, key, data, kernel_cache._dumps())
        entries[name] = content
        save(self, key, data)

    monkeypatch.setattr(kernel_cache._CheckedFiles, "save", record)
    assert first(1) == 2
    monkeypatch.undo()
    monkeypatch.setattr(numba_private.config, "CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setattr(shipped_kernels, "FOLDER", folder)
    folder.mkdir()
    assert LEVEL is not None
    archive = folder / f"{LEVEL.name}.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for name, content in entries.items():
            written.writestr(zipfile.ZipInfo(name), content)
    shipped_kernels._archive.cache_clear()
    yield source, archive
    shipped_kernels._archive.cache_clear()


@on_known_cpu
def test_what_was_shipped_is_not_compiled_and_all_else_is(shipped):
    source, _ = shipped
    module = module_at(source)
    assert module.first(1) == 2
    assert counts(module.first) == (1, 0)
    assert module.second(1) == 3
    assert counts(module.second) == (0, 1)
    assert module.first(1.5) == 2.5  # another type
    assert counts(module.first) == (1, 1)


@on_known_cpu
def test_an_edit_of_the_source_is_not_overlooked(shipped):
    source, _ = shipped
    source.write_text(source.read_text().replace("n + 1", "n + 1 + 4"))
    module = module_at(source)
    assert module.first(1) == 6
    assert counts(module.first) == (0, 1)


@on_known_cpu
def test_no_damage_is_used(shipped, tmp_path, monkeypatch):
    source, archive = shipped
    whole = archive.read_bytes()
    spoilt = [b"", whole[: len(whole) // 2], bytes(len(whole))]
    spoilt += [whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :] for at in range(0, len(whole), len(whole) // 24)]
    for number, content in enumerate(spoilt):
        monkeypatch.setattr(numba_private.config, "CACHE_DIR", str(tmp_path / f"cache {number}"))
        archive.write_bytes(content)
        shipped_kernels._archive.cache_clear()
        assert module_at(source).first(1) == 2


@on_known_cpu
@pytest.mark.parametrize("seconds", [inf, 60])
def test_the_tool_ships_what_some_work_uses(tmp_path, seconds):
    assert LEVEL is not None
    work, folder = tmp_path / "work.py", tmp_path / "compiled"
    work.write_text(WORK)
    compile_level(LEVEL, work, folder, seconds)
    results = []
    for place in (tmp_path / "missing", folder):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / f"cache of {place.name}")}
        run = subprocess.run([sys.executable, "-c", USE.format(folder=str(place))], env=environment, check=True,
                             capture_output=True, text=True, timeout=300)  # fmt: skip
        results.append(run.stdout.splitlines())
    assert results[0][0] == results[1][0]
    assert [line[1] for line in results] == ["0 1", "1 0"]
    assert Path(folder / f"{LEVEL.name}.zip").stat().st_size < 100_000


@on_known_cpu
def test_parts_that_fail_or_are_late_are_left_out_and_what_is_shipped_is_not_compiled_again(tmp_path, capfd):
    assert LEVEL is not None
    work, folder = tmp_path / "work.py", tmp_path / "compiled"
    work.write_text(f"""{WORK}
from pathlib import Path
from gcodec.kernels.core import shipped_kernels
shipped_kernels.FOLDER = Path({str(folder)!r})
use = PARTS["use"]
def good():
    use()
    print("compiled", sum(partial_checksum.stats.cache_misses.values()))
def bad():
    raise MemoryError
PARTS = dict(bad=bad, good=good)
""")
    for n_compiled in (1, 0):
        compile_level(LEVEL, work, folder, 60)
        assert f"compiled {n_compiled}" in capfd.readouterr().out
        with zipfile.ZipFile(folder / f"{LEVEL.name}.zip") as archive:
            assert len(archive.namelist()) == 1
    with pytest.raises(GcodecError, match="bad"):
        compile_level(LEVEL, work, folder)
    compile_level(LEVEL, work, folder, 0)
    with zipfile.ZipFile(folder / f"{LEVEL.name}.zip") as archive:
        assert archive.namelist() == []
    work.write_text(work.read_text() + "PARTS = dict(bad=bad)")
    with pytest.raises(GcodecError, match="bad"):
        compile_level(LEVEL, work, folder, 60)
