"""Limits of the frame format (docs/format.md, section 4)."""

from __future__ import annotations

MAX_DIMENSIONS, MAX_CODEBOOKS = 32, 255
MAX_VALUES = 1 << 48  #: every array has fewer
#: Binary logarithms of the values of a block, and of a sub-stream.
BLOCK_LOG2, STREAM_LOG2 = range(10, 21), range(6, 13)
