"""Fuzz one target guided by coverage, with atheris, where that is installed (``pip install atheris``).

    python -m tests.fuzz.guided TARGET [--seconds 60] [--found DIR]

prefers cases that reach new branches of the Python code that reads them; kernels are compiled, and so are not seen.
Half of the cases are made as ``python -m tests.fuzz`` makes them, the others by libFuzzer from those that reached
something new. The first case that finds something ends the run with an exit status other than 0, and lies in DIR/TARGET
from then on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz.__main__ import FOUND
from tests.fuzz.mutation import Dice
from tests.fuzz.targets import TARGETS, load
from tests.support.paths import ROOT


def compiled_modules() -> list[str]:
    """Return the modules that numba compiles parts of: it cannot compile instrumented code."""
    sources = {path.relative_to(ROOT): path for path in (ROOT / "gcodec").rglob("*.py")}
    return [
        ".".join(name.with_suffix("").parts).removesuffix(".__init__")
        for name, path in sources.items()
        if "kernels" in name.parts or "@kernel" in path.read_text()
    ]


def main() -> None:
    """Run the command line; libFuzzer ends the process."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--found", type=Path, default=FOUND, help="where the case goes that finds something")
    options = parser.parse_args()
    try:
        import atheris
    except ImportError:
        parser.error("atheris is not installed: pip install atheris")
    from gcodec.errors import GcodecError

    with atheris.instrument_imports(include=["gcodec"], exclude=compiled_modules()):
        target = load(options.target)

    def run(case: bytes) -> None:
        if len(case) < target.n_prefix:
            return
        with suppress(GcodecError):
            target.run(case)

    def mutate(case: bytes, max_size: int, seed: int) -> bytes:
        dice = Dice(seed)
        made = dice.random() < 0.5 or len(case) < 16
        return target.mutate(dice)[:max_size] if made else bytes(atheris.Mutate(case, max_size))

    folder, corpus = options.found / options.target, tempfile.mkdtemp(prefix="gcodec-fuzz-")
    folder.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(target.cases()):
        (Path(corpus) / f"{number}").write_bytes(case)
    flags = {
        "max_total_time": options.seconds,
        "timeout": 10,
        "rss_limit_mb": 4096,
        "max_len": 1 << 16,
        "artifact_prefix": f"{folder}/",
        "print_final_stats": 1,
    }
    arguments: Any = [sys.argv[0], *(f"-{name}={value}" for name, value in flags.items()), corpus]
    atheris.Setup(arguments, run, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
