"""Compile the codec's kernels before tests start: ``python -m tests.support.precompile [TYPE,TYPE ...]``.

Each argument is compiled by a process of its own. Test processes would otherwise all compile the same kernels at the
same time: what one compiles, another finds on disk only if it comes later.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

#: Of about equal work; the 16-bit types share most of their kernels.
GROUPS = ("float32,float64", "bfloat16,float16,float8_e4m3fn,float8_e5m2")


def main(arguments: Sequence[str]) -> int:
    """Compile each group of value types; 1 if that fails."""
    program = "import sys, gcodec; gcodec.warmup(sys.argv[1].split(','))"
    running = [subprocess.Popen([sys.executable, "-c", program, group]) for group in arguments or GROUPS]
    codes = [process.wait() for process in running]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
