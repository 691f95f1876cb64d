"""The limit that a caller sets on what is read from a file."""

from __future__ import annotations

from pathlib import PurePath

from ..errors import LimitExceeded, check_output_limit
from .layout import FREE_INDEX


class LimitedOutput:
    """A file that gives out no more bytes than a caller wants.

    Attributes:
        name: Of the file, in errors.
        output_limit: The bytes, None for any number.

    Raises:
        InvalidArgument: ``max_output_bytes`` is neither None nor a number.
    """

    def __init__(self, name: str, max_output_bytes: object) -> None:
        self.name, self.output_limit = name, check_output_limit(max_output_bytes)

    def check_size(self, size: int, what: str = "") -> None:
        """Raise LimitExceeded if so many bytes, of what errors call ``what``, are above the limit; "": of the file."""
        if self.output_limit is not None and size > self.output_limit:
            where = self.name if what in ("", PurePath(self.name).name) else f"{self.name}: {what}"
            raise LimitExceeded(f"{where}: {size} bytes are above the limit of {self.output_limit} bytes")

    def check_beside(self, size: int, what: str) -> None:
        """Raise LimitExceeded if what is made beside the tensors takes more than the text of an index may."""
        if self.output_limit is not None and size > FREE_INDEX + self.output_limit:
            raise LimitExceeded(
                f"{self.name}: {what} takes {size} bytes, above the limit of {FREE_INDEX} + {self.output_limit}"
            )
