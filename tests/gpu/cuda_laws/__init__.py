"""The laws of the CUDA path. Its kernels run on the host, in either of two ways.

Compiled, with one thread to a block (:mod:`tests.gpu.cuda_one_thread`), they take whole law tables, indexes are
checked, and integers are those of compiled code. In numba's simulator they have as many threads as ``THREADS`` says,
which really do wait for each other. Either needs a process of its own: ``python -m tests.gpu.cuda_laws one-thread`` or
``simulator`` prints a line for each law, its name and what went wrong, in JSON.
"""

from tests.gpu.cuda_laws import block_laws, device_laws, patch_laws  # noqa: F401 - their laws enter the table
from tests.gpu.cuda_laws.law_table import LAWS

__all__ = ["LAWS"]
