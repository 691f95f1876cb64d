"""``gcodec record``: how to record gradients from a training script, and what recorded dumps hold."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import Corruption, GcodecError, printable
from ..files import FilePlan, open_source, plan_file
from ..files.urls import files_below, is_folder_at, is_url, local_path, name_at
from . import UsageError, display

SNIPPET = """from gcodec.recorder import Recorder

recorder = Recorder(model, optimizer, {folder!r}{when})

for inputs, targets in batches:
    optimizer.zero_grad()
    loss(model(inputs), targets).backward()
    recorder.record()          # after backward(), before step(): writes a dump at the chosen iterations
    optimizer.step()
"""

GUIDE = """Three lines record the gradients of a training script, with everything the optimizer's next step depends on:

{snippet}
Each dump is a .safetensors file with grad/NAME, param/NAME and the optimizer's state (exp_avg/NAME ...), and in its
metadata the optimizer, its hyperparameters and the step. It takes as much room as gradients, parameters and state
together, and training is not affected. Then:

{commands}
"""
#: Of commands on the folder of dumps: what stands around its name, and what they do.
COMMANDS = (
    ("gcodec record ", "", "what was recorded"),
    ("gcodec compress ", "/*.safetensors", "lossless"),
    ("gcodec compress ", "/*.safetensors --mode gcomp", "gradients near-lossless, by the optimizer's rule"),
    ("gcodec inspect ", "/*.gc", "sizes, tensor by tensor"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.epilog = """examples:
  gcodec record                                  how to do it
  gcodec record --snippet --every 500 >> train.py
  gcodec record dumps                            what the dumps in a folder hold"""
    add = parser.add_argument
    add("dumps", nargs="*", metavar="DUMP", help="list these dumps, or those in these folders, instead;\npaths or URLs")
    add("--snippet", action="store_true", help="print only the lines to paste")
    add("--folder", default="dumps", metavar="PATH", help="where the snippet's recorder writes (default: dumps)")
    add(
        "--steps",
        type=_steps,
        default=(),
        metavar="N,N,...",
        help="iterations to record (default: 1,20,100;\nnone with --every)",
    )
    add("--every", type=int, metavar="N", help="record each multiple of N")
    add("--json", action="store_true", help="the list as JSON on stdout")


def run(args: argparse.Namespace) -> int:
    """Prints the guide, the snippet or the list; the exit code."""
    if args.every is not None and args.every < 1:
        raise UsageError(f"--every must be at least 1, not {args.every}")
    if args.dumps:
        _list([place for name in args.dumps for place in _dump_files(name)], args)
        return 0
    if args.json:
        raise UsageError("--json lists dumps: name a dump or a folder of dumps")
    snippet = SNIPPET.format(folder=args.folder, when=_when(args.steps, args.every))
    guide = GUIDE.format(snippet=_indented(snippet), commands=_commands(args.folder))
    print(snippet if args.snippet else guide, end="")
    return 0


def _commands(folder: str) -> str:
    """Return the lines with commands on a folder of dumps, to be pasted into a shell."""
    name = printable(quote(folder if not folder.startswith("-") else f"./{folder}"))
    lines = [(f"    {before}{name}{after}", what) for before, after, what in COMMANDS]
    width = max(len(line) for line, _ in lines)
    return "\n".join(f"{line:<{width}}  {what}" for line, what in lines)


def _when(steps: Sequence[int], every: int | None) -> str:
    steps = tuple(steps) if steps or every else (1, 20, 100)
    return (f", steps={tuple(steps)!r}" if steps else "") + (f", every={every}" if every else "")


def _indented(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())


def _dump_files(name: str) -> list[str]:
    """Return the paths or URLs of the dumps that a path or URL stands for."""
    name = str(local_path(name))
    if not is_folder_at(name):
        return [name]
    found = [url for _, url in files_below(name, [])] if is_url(name) else [str(path) for path in Path(name).rglob("*")]
    files = sorted(place for place in found if place.endswith(".safetensors"))
    if not files:
        raise GcodecError(f"{name}: no .safetensors files in this folder")
    return files


def _list(places: list[str], args: argparse.Namespace) -> None:
    rows = [_read(place) for place in places]
    if args.json:
        display.print_json(rows)
        return
    columns = ("dump", ">step", "optimizer", ">lr", ">parameters", ">values", "types", "state", ">size")
    display.print_table(columns, [_text(row) for row in rows])


def _read(place: str) -> dict[str, Any]:
    with closing(open_source(place)) as source:
        plan = plan_file(name_at(place), source)
        metadata = plan.metadata
        try:
            groups = json.loads(metadata.get("groups", "[]"))
            rates = [group.get("lr") for group in groups]
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise Corruption(f"{place}: malformed dump metadata: {error}") from error
        row = {"dump": place, "bytes": source.size, "format": metadata.get("format"), "step": metadata.get("step")}
        return {**row, "optimizer": metadata.get("optimizer"), "learning_rates": rates, **_contents(plan)}


def _contents(plan: FilePlan) -> dict[str, Any]:
    """Count the tensors of a dump: its parameters, and per kind of tensor the bytes."""
    kinds: dict[str, int] = {}
    for view in plan.tensors:
        kind = view.name.partition("/")[0]
        kinds[kind] = kinds.get(kind, 0) + view.n_bytes
    grads = [view for view in plan.tensors if view.name.startswith("grad/")]
    return {
        "parameters": len(grads),
        "values": sum(math.prod(view.shape) for view in grads),
        "dtypes": sorted({view.dtype for view in grads}),
        "bytes_by_kind": kinds,
    }


def _text(row: dict[str, Any]) -> tuple[str, ...]:
    rates = " ".join(f"{rate:g}" if isinstance(rate, int | float) else "?" for rate in row["learning_rates"])
    state = " ".join(kind for kind in row["bytes_by_kind"] if kind not in ("grad", "param"))
    numbers = str(row["parameters"]), str(row["values"])
    if row["optimizer"] is None:
        return (row["dump"], "-", "not a dump", "-", "-", "-", "-", "-", display.size(row["bytes"]))
    who = row["step"] or "-", row["optimizer"], rates or "-"
    return (row["dump"], *who, *numbers, " ".join(row["dtypes"]), state, display.size(row["bytes"]))


def _steps(text: str) -> tuple[int, ...]:
    try:
        steps = tuple(int(step) for step in text.split(","))
    except ValueError:
        steps = ()
    if not steps or min(steps) < 1:
        raise argparse.ArgumentTypeError(f"must be iterations from 1 on, as in 1,20,100, not {text!r}")
    return steps
