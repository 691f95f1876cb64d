"""Cuts a small corpus of real training data out of recorded dumps, for tests that check exact sizes.

    python -m tools.cut_corpus DUMPS OUT

reads what ``gcodec.demo.train`` wrote under ``DUMPS`` and writes one small dump per model and stage of
training. Tensors are cut to their first rows, never thinned out: neighbors stay neighbors.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcodec.errors import GcodecError, InvalidArgument
from gcodec.recorder import Dump, read_dump, write_dump

SUMMARY = "Cuts a small corpus of real training data out of recorded dumps."
SIZE_LIMIT = 3_800_000
STAGES = {"cnn": (20, 600), "transformer": (20, 400)}
ROWS: dict[str, dict[str, int]] = {
    "cnn": {
        "stem.weight": 32,
        "blocks.1.conv2.weight": 16,
        "blocks.3.conv2.weight": 16,
        "blocks.3.norm2.weight": 128,
        "hidden.weight": 48,
        "head.weight": 10,
        "head.bias": 10,
    },
    "transformer": {
        "embedding.weight": 256,
        "layers.1.expand.weight": 64,
        "layers.1.expand.bias": 512,
        "norm.weight": 128,
        "head.weight": 256,
    },
}


def cut_corpus(dumps: Path, out: Path) -> list[Path]:
    """Writes ``out/MODEL-step-000020.safetensors`` and so on; returns the files.

    Raises:
        InvalidArgument: A dump is missing under ``dumps``: train there first.
        GcodecError: The files are larger than ``SIZE_LIMIT`` together.
    """
    written = []
    for model, steps in STAGES.items():
        for step in steps:
            source = dumps / model / f"step-{step:06d}.safetensors"
            if not source.exists():
                raise InvalidArgument(f"{source} is missing: run python -m gcodec.demo.train {dumps}")
            target = out / f"{model}-{source.name}"
            cut_dump(read_dump(source), ROWS[model], target)
            written.append(target)
    total = sum(path.stat().st_size for path in written)
    if total > SIZE_LIMIT:
        raise GcodecError(f"the corpus is {total} bytes, more than {SIZE_LIMIT}: cut fewer rows")
    return written


def cut_dump(dump: Dump, rows: Mapping[str, int], target: Path) -> None:
    """Writes a dump of the first ``rows[name]`` rows of each named parameter, its gradient and its state.

    State of another shape than the parameter (a step count) is kept whole; unnamed parameters are left out.
    """
    tensors: dict[str, Any] = {}
    for name, count in rows.items():
        parameter = dump.param(name)
        arrays = {"grad": dump.grad(name), "param": parameter, **dump.state(name)}
        for kind, array in arrays.items():
            tensors[f"{kind}/{name}"] = array[:count] if array.shape == parameter.shape else array
    groups = [{**group, "params": [n for n in group["params"] if n in rows]} for group in dump.groups]
    write_dump(target, tensors, step=dump.step, optimizer=dump.optimizer, groups=groups)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.cut_corpus", description=SUMMARY)
    parser.add_argument("dumps", type=Path, help="the folder given to gcodec.demo.train")
    parser.add_argument("out", type=Path, help="where the corpus goes")
    options = parser.parse_args(arguments)
    for path in cut_corpus(options.dumps, options.out):
        print(f"{path.stat().st_size:>9,} bytes  {path}")


if __name__ == "__main__":
    main()
