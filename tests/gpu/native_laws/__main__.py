"""Runs all laws, watched: ``python -m tests.gpu.native_laws N``."""

from __future__ import annotations

import sys

from tests.gpu.host_library import SANITIZERS, build
from tests.gpu.native_laws import LAWS, memory_of


def main(effort: str) -> None:
    """Run them, each with this effort."""
    memory = memory_of(build(*SANITIZERS))
    for item in LAWS:
        item(memory, int(effort))


if __name__ == "__main__":
    main(*sys.argv[1:])
