"""The laws of numba's CUDA kernels, those of patches and hashes, and of what stands on all kernels.

Kernels in CUDA C++ have laws of their own (:mod:`tests.gpu.native_laws`). numba's run on the host, in either of two
ways.

Compiled, with one thread to a block (:mod:`tests.gpu.cuda_one_thread`), they take whole law tables, indexes are
checked, and integers are those of compiled code. In numba's simulator they have as many threads as ``THREADS`` says,
which really do wait for each other. Either needs a process of its own: ``python -m tests.gpu.cuda_laws one-thread`` or
``simulator`` prints a line for each law, its name and what went wrong, in JSON.
"""

from tests.gpu.cuda_laws import device_laws, patch_laws  # noqa: F401 - their laws enter the table
from tests.gpu.cuda_laws.law_table import LAWS

__all__ = ["LAWS"]
