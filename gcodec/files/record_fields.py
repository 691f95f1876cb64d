"""Records: what blocks of quantized weights consist of, which archives store field by field (docs/archive.md,
section 3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordFields:
    """The make-up of a record.

    Attributes:
        sizes: Bytes of each field, in their order in the record.
        kinds: The codec's type of each field, None for bytes.
        scale: Number of the float16 field that is the scale of all integers of the record.
        minimum: Number of the float16 field that is the least of its values; None if it has none.
        integers: Number of the field of integers; None if their distribution depends on no scale.
    """

    sizes: tuple[int, ...]
    kinds: tuple[str | None, ...]
    scale: int = 0
    minimum: int | None = None
    integers: int | None = None

    @property
    def record_bytes(self) -> int:
        """Return the bytes of a record."""
        return sum(self.sizes)

    def offset(self, field: int) -> int:
        """Return where a field begins in the record."""
        return sum(self.sizes[:field])
