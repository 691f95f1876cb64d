"""The kernels for CUDA devices, and what launches them.

Those of blocks and levels are in CUDA C++ (``source/``, :mod:`native`), those of patches and hashes are numba's. For
the latter the kernel contract holds (:mod:`gcodec.kernels`), and besides:

* Only shared memory and barriers; no warp is told what another does. ``grid.THREADS`` may be any power of two, and the
  bytes are the same: 128 on a device, a few in numba's simulator, one where kernels are compiled for the CPU by tests.
* Numbers are 32 bits wide where 32 bits are enough, and cast after every operation (see
  :mod:`gcodec.kernels.core.scalar`).

Importing this package needs numba's CUDA target, of which nothing else in gcodec knows.
"""

from __future__ import annotations

from ...errors import Unsupported

try:
    from numba import cuda as cuda
except Exception as error:  # numba-cuda raises many things where a library is missing
    raise Unsupported(f"numba's CUDA target cannot be loaded: {error}") from error
