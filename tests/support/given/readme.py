"""What README.md leaves to its reader: a model file."""

from __future__ import annotations

from typing import Any

from tests.support.given.files import arrays


def before_page(names: dict[str, Any]) -> None:
    """Make the file."""
    arrays("model.safetensors")
