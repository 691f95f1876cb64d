"""A switch to the general layout of planes, which every other layout must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from gcodec.frame import coded_blocks
from gcodec.kernels.planes.layout_types import GeneralPlanes


@contextmanager
def general_layout() -> Iterator[None]:
    """Split and merge planes of any type as those of no layout of their own."""
    coded_blocks._form_of.cache_clear()     # it remembers layouts
    try:
        with patch.object(coded_blocks, "layout_of", lambda *any_planes: GeneralPlanes):
            yield
    finally:
        coded_blocks._form_of.cache_clear()
