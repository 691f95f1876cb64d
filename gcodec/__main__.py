"""``python -m gcodec``: the command line, where the ``gcodec`` script is not on the path."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
