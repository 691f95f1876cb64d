"""What every test gets: a hypothesis profile, and kernels compiled from the sources as they are now."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

pytest.register_assert_rewrite("tests.laws")     # shared assertions explain a failure as a test's own do

# No deadline: the first example of a test may compile a kernel. In CI the examples are the same on every run.
# `pytest --hypothesis-profile=thorough` chooses another.
settings.register_profile("local", deadline=None, max_examples=50)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("local"), max_examples=2000)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def use_fresh_kernel_cache() -> None:
    """Give numba a cache directory that belongs to the present sources, and drop those of earlier ones.

    numba's own cache looks only at the file in which a kernel is defined: after a change to a function that the kernel
    calls from another file it would go on running the old machine code.
    """
    base = Path(os.environ.get("NUMBA_CACHE_DIR", ROOT / ".cache" / "numba"))
    if base.name.startswith("sources-"):        # a pytest started by a test
        return
    digest = hashlib.sha256()
    for source in sorted((ROOT / "gcodec").rglob("*.py")):
        text = source.read_bytes()
        if source.parent.name == "kernels" or b"jit" in text:
            digest.update(text)
    cache = base / f"sources-{digest.hexdigest()[:16]}"
    for old in base.glob("sources-*"):
        if old != cache:
            shutil.rmtree(old, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = str(cache)


use_fresh_kernel_cache()
