"""The laws of the kernels in CUDA C++, for any library of them (:mod:`tests.gpu.host_library`).

``python -m tests.gpu.native_laws N`` runs them in a process whose memory is watched, ``N`` times as long as tests do.
"""

from tests.gpu.native_laws import (  # noqa: F401 - their laws enter the table
    decoding_laws,
    encoding_laws,
    level_laws,
    patch_laws,
)
from tests.gpu.native_laws.law_table import LAWS, memory_of

__all__ = ["LAWS", "memory_of"]
