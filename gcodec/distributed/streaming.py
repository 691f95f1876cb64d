"""The turns that the parts of a model take in DiLoCo, and the inner steps that go on during an exchange.

Douillard et al., "Streaming DiLoCo with Overlapping Communication" (2025).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgument, check_field_types, check_int


@dataclass(frozen=True)
class Streaming:
    """DiLoCo's ``parts``, with exchanges that overlap with inner steps.

    Attributes:
        parts: Into so many parts the parameters are divided, at least 1.
        overlap_steps: Inner steps that are taken while an exchange goes on: so many after its beginning it is applied.
            0 to wait for it.
        mixing: From 0 to below 1, where exchanges overlap: the share of its own parameters that a rank goes on with;
            the rest is those after the outer step, which are the same on all ranks.

    Raises:
        InvalidArgument: An attribute has another type or value.
    """

    parts: int = 1
    overlap_steps: int = 0
    mixing: float = 0.5

    def __post_init__(self) -> None:
        check_field_types(self)
        check_int("parts", self.parts, 1)
        check_int("overlap_steps", self.overlap_steps)
        if not 0 <= self.mixing < 1:
            raise InvalidArgument(f"mixing must be from 0 to below 1, not {self.mixing}")
