"""A switch to the general layout of planes, which every other layout must agree with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from gcodec.frame import coded_blocks, small_reads
from gcodec.kernels.planes.layout_types import GeneralPlanes


@contextmanager
def general_layout() -> Iterator[None]:
    """Split and merge planes of any type as those of no layout of their own. Small frames are decoded step by step, for
    what decodes them with few calls is kept by the type's own layout."""
    _forget_layouts()
    try:
        with (
            patch.object(coded_blocks, "layout_of", lambda *any_planes: GeneralPlanes),
            patch.object(small_reads, "_form_at", lambda fixed: None),
        ):
            yield
    finally:
        _forget_layouts()


def _forget_layouts() -> None:
    coded_blocks.form_of.cache_clear()
    coded_blocks.coded_form.cache_clear()
