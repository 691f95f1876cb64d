"""Named inputs: gradients, parameters and optimizer state of recorded dumps, cast or not, whole or by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gcodec.benchmark.inputs import GRADIENTS, PARAMETERS, STATE, Input, gradients, tensors
from gcodec.benchmark.sources import find_dumps
from gcodec.errors import InvalidArgument
from gcodec.recorder import Dump

ROOT = Path(__file__).resolve().parents[1]
#: Where dumps are looked for: those of ``bench.record``, of ``gcodec demo``, else the few megabytes that are committed.
PLACES = (ROOT / ".cache" / "bench" / "dumps", ROOT / "gcodec-demo" / "dumps", ROOT / "tests" / "corpus")
GROUPS = (GRADIENTS, PARAMETERS, STATE)
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
SMALLEST_TENSOR = 1 << 14  #: values; smaller tensors say nothing about a codec

Series = dict[str, list[Dump]]  #: by model, in the order of steps


def default_folder() -> Path:
    """Return the first of ``PLACES`` that is there."""
    results = [place for place in PLACES if place.is_dir()]
    if not results:
        raise InvalidArgument("no dumps: run `make bench`, or record some (docs/recording.md) and give --data DIR")
    return results[0]


def read_series(folder: Path, ends_only: bool = False) -> Series:
    """Return every model's dumps under ``folder``, or of each model the first and the last."""
    series: Series = {}
    for model, dump in find_dumps(folder):
        series.setdefault(model, []).append(dump)
    return {model: [dumps[0], dumps[-1]][: len(dumps)] if ends_only else dumps for model, dumps in series.items()}


def named_inputs(
    series: Series, groups: Sequence[str] = GROUPS, dtypes: Sequence[str] = tuple(DTYPES), with_levels: bool = True
) -> Iterator[tuple[str, list[Input]]]:
    """Yield (title, an input for each step), by model, group and type. The first step may have no state yet."""
    for model, dumps in series.items():
        for group in groups:
            usable = [dump for dump in dumps if group != STATE or set(dump.state_kinds) - {"step"}]
            for dtype in dtypes if usable else ():
                parts = [
                    gradients(dump, model, dtype, with_levels=with_levels)
                    if group == GRADIENTS
                    else tensors(dump, model, group, dtype)
                    for dump in usable
                ]
                yield f"{model} {group} {DTYPES[dtype]}", parts


def single_tensors(series: Series) -> Iterator[Input]:
    """Yield the float32 gradient of every larger tensor of every dump, by itself; its name is the tensor's."""
    for model, dumps in series.items():
        for dump in dumps:
            for name in dump.names:
                if dump.param(name).size >= SMALLEST_TENSOR:
                    yield gradients(dump, f"{model} {name}", names=[name])
