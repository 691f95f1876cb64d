"""What runs on a device is there where only torch, numba and what these bring are installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT

#: Dependencies of gcodec, and of its tests, that images with torch for CUDA do not have.
MISSING = ("zstandard", "rich", "safetensors", "hypothesis", "fsspec")
MODULES = ("gcodec.gpu", "bench.gpu", "bench.first_gpu", "bench.gpu_allreduce", "bench.gpu_host", "tests.gpu.test_gpu")
PROGRAM = """
import importlib, sys
sys.modules.update(dict.fromkeys({missing!r}))  # importing one of them raises
importlib.import_module({module!r})
"""


@pytest.mark.parametrize("module", MODULES)
def test_what_needs_a_device_is_imported_without_what_it_does_not_use(module: str) -> None:
    pytest.importorskip("torch")
    program = PROGRAM.format(missing=MISSING, module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
