"""The laws of the kernels in CUDA C++ on their device code, as ``make check-gpu`` asks for by three variables:

``GCODEC_PTX``
    Versions of NVRTC, each with an architecture or, without one, with all that it compiles for: ``13.5:90 12.4``.
``GCODEC_PTX_LAWS``
    Names of laws; all if there are none.
``GCODEC_PTX_SCHEDULES``
    How many orders of blocks, warps and lanes are drawn for each launch: 1 unless it is set. No two architectures have
    the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from gcodec.kernels.cuda import nvrtc
from gcodec.kernels.cuda.native import ALL_KERNELS
from tests.gpu import native_laws
from tests.gpu.ptx import library

ARCHITECTURES = (70, 75, 80, 90, 100, 120)
FILES = sorted({kernel.file for kernel in ALL_KERNELS})


def asked_for() -> Iterator[tuple[str, int]]:
    """Yield versions of NVRTC and architectures."""
    for word in os.environ.get("GCODEC_PTX", "").split():
        version, _, architecture = word.partition(":")
        if version not in library.nvrtcs():
            raise LookupError(f"NVRTC {version} is not in .cache/nvidia; these are: {', '.join(library.nvrtcs())}")
        own, _ = nvrtc.load(str(library.nvrtcs()[version]))
        for number in (int(architecture),) if architecture else ARCHITECTURES:
            if nvrtc.architecture_for(own, divmod(number, 10)) == divmod(number, 10):
                yield version, number


PAIRS = list(asked_for())
LAWS_BY_NAME = {law.__name__: law for law in native_laws.LAWS}
LAWS = os.environ.get("GCODEC_PTX_LAWS", "").split() or list(LAWS_BY_NAME)
SCHEDULES = int(os.environ.get("GCODEC_PTX_SCHEDULES", "1"))


def code_of(pair: tuple[str, int]) -> tuple[str, ...]:
    """Return the device code of a pair in C++: what differs in the PTX alone, such as its version, is no other code."""
    return tuple(library.DeviceCode(*pair).program(file).text for file in FILES)


@pytest.mark.skipif(not PAIRS, reason="GCODEC_PTX names no NVRTC")
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(k, id=f"{version}-{architecture}", marks=pytest.mark.xdist_group(f"{version}-{architecture}"))
        for k, (version, architecture) in enumerate(PAIRS)
    ],
)
def test_device_code_obeys_every_law(number: int, name: Any) -> None:
    """Each byte is what the law says, whatever the order of threads, and no access of memory is at fault."""
    own = code_of(PAIRS[number])
    for version, architecture in PAIRS[:number]:
        if code_of((version, architecture)) == own:
            pytest.skip(f"it is the code that NVRTC {version} makes for compute_{architecture}")
    for schedule in range(SCHEDULES):
        seed = number + schedule * len(PAIRS)
        LAWS_BY_NAME[name](library.WatchedMemory(library.DeviceCode(*PAIRS[number]), seed), 1)


def test_a_mistake_in_what_is_asked_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCODEC_PTX", "9.9:90")
    with pytest.raises(LookupError, match=r"NVRTC 9\.9 is not in"):
        list(asked_for())
