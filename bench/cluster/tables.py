"""The page docs/benchmarks/distributed.md: definitions, tables, pictures, from the CSV files.

    python -m bench.cluster.tables [--results DIR] [--page FILE]

prints it, or puts it into its place on the page, which is made at the end if there is none. Parts whose CSV file is
missing are left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench.cluster import accuracies, allreduce, bits, bypass, compressed, controllers, methods, model, runs
from bench.cluster.definitions import DEFINITIONS, MODEL
from bench.cluster.pictures import unique
from bench.cluster.training import FP32
from bench.codec import RESULTS
from bench.markdown import filled, markdown, source
from gcodec.benchmark.csv_tables import read_table

REACHED = (0.5, 0.75, 0.9, 1.0)  #: parts of the way from the dense run's first loss to its last
SHOWN_WORKERS = ("4", "64", "1024")
SHOWN_GBPS = ("1", "10", "25", "100", "400")
PLACE, TITLE, MAIN_FILE = "cluster", "Distributed training", allreduce.FILE
Row = dict[str, str]


def allreduce_tables(results: Path) -> Iterator[str]:
    """Yield each bed's methods at every rate."""
    comments, rows = read_table(results / allreduce.FILE)
    yield from ("![All-reduce time by method](../images/cluster-allreduce.png)", "")
    columns = [
        "link",
        "method",
        ">time, ms",
        ">quartiles",
        ">normalized",
        ">wire MB",
        ">ratio",
        ">cpu, ms",
        ">encode, ms",
        ">levels, ms",
        ">decode, ms",
        ">wait, ms",
        ">wire alone, ms",
        ">line share",
    ]
    for name, workers in unique((row["model"], row["workers"]) for row in rows):
        selected = [
            row
            for row in rows
            if (row["model"], row["workers"]) == (name, workers)
            and row["method"] != methods.SMALL
            and not row["method"].endswith(methods.WIRE)
        ]
        table = [
            [
                row["rate"],
                row["method"],
                _ms(row["seconds"]),
                f"{_ms(row['seconds_q1'])}-{_ms(row['seconds_q3'])}",
                f"{float(row['normalized']):.2f}",
                f"{float(row['nic_bytes']) / 1e6:.2f}",
                _short(row["ratio"]),
                *(_ms(row[f"{part}_seconds"]) for part in ("processor", "encode", "level", "decode", "wait", "wire")),
                _short(row["line_share"]),
            ]
            for row in selected
        ]
        first = selected[0]
        yield from (f"**{float(first['values']) * 4 / 1e6:.1f} MB, {first['gradients']}, {workers} workers**", "")
        yield from (*markdown(columns, table), "")
    worst = [
        f"{float(row['deviation']):.2f} ({row['model']}, {row['workers']} workers)"
        for row in _once(rows, methods.NEAR)
        if row["deviation"]
    ]
    yield from (f"Deviation, near-lossless: {', '.join(worst)}.", "", f"From {source(comments)}", "")


def _once(rows: Sequence[Row], method: str) -> Iterator[Row]:
    """Yield a method's first row of every bed."""
    seen = set()
    for row in rows:
        bed = row["model"], row["workers"]
        if row["method"] == method and bed not in seen:
            seen.add(bed)
            yield row


def steps_table(results: Path) -> Iterator[str]:
    """Seconds and bytes of a step of training."""
    comments, rows = read_table(results / runs.STEPS)
    table = [
        [
            row["model"],
            row["rate"],
            row["method"],
            row["steps"],
            _ms(row["step_seconds"]),
            _short(row["of_fp32"]),
            f"{float(row['nic_bytes']) / 1e6:.3f}",
            _percent(row["bytes_of_fp32"]),
            _percent(row["bytes_of_bf16"]),
            _ms(row["encode_seconds"]),
            _ms(row["decode_seconds"]),
            row["bits_per_symbol"],
        ]
        for row in rows
    ]
    columns = [
        "model",
        "link",
        "method",
        ">steps",
        ">step, ms",
        ">of fp32",
        ">wire MB",
        ">% of fp32",
        ">% of bf16",
        ">encode, ms",
        ">decode, ms",
        ">bits / head",
    ]
    yield (
        "A step is forward, backward with its all-reduces beside it, and the optimizer; bytes are means once the "
        "training has settled (past step 100, or the second half of a shorter one), refreshes included. "
        "The codec is used whether or not it pays: the bypass is off, and on under [The bypass](#the-bypass) and "
        '[Accuracies](#accuracies). "gcodec bf16" is the hook with `mode="bf16"`.'
    )
    yield from ("", *markdown(columns, table), "", f"{rows[0]['workers']} workers; from {source(comments)}", "")


def training_table(results: Path) -> Iterator[str]:
    """Yield when each method reached given losses."""
    comments, rows = read_table(results / runs.TRAINING)
    yield from ("![Loss over steps and over time](../images/cluster-training.png)", "")
    table = []
    for name in unique(row["model"] for row in rows):
        curves = {
            method: [row for row in rows if (row["model"], row["method"]) == (name, method)] for method in runs.METHODS
        }
        first, last = (float(curves[FP32][at]["loss"]) for at in (0, -1))
        for part in REACHED:
            goal = first + part * (last - first)
            table.append([name, f"{goal:.3f}", *(_reached(curve, goal) for curve in curves.values())])
    columns = ["model", ">loss", *(f">{method}, s" for method in runs.METHODS)]
    yield from (*markdown(columns, table), "")
    yield (
        f"Seconds until the mean loss of {runs.BLOCK} steps was at or below; {rows[0]['workers']} workers at "
        f"{rows[0]['rate']}; a dash: not within the run. From {source(comments)}"
    )
    yield ""


def _reached(curve: Sequence[Row], goal: float) -> str:
    results = (row["elapsed_seconds"] for row in curve if float(row["loss"]) <= goal)
    seconds = next(results, None)
    return "-" if seconds is None else f"{float(seconds):.1f}"


def deviations_table(results: Path) -> Iterator[str]:
    """Yield how far losses are from those of the dense run."""
    comments, rows = read_table(results / runs.DEVIATIONS)
    yield from ("![Deviation of losses](../images/cluster-deviations.png)", "")
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        row = next(row for row in rows if (row["model"], row["method"]) == (name, method))
        table.append(
            [
                name,
                method,
                row["seeds"],
                row["steps"],
                *(f"{float(row[key]):.5f}" for key in ("rms", "q05", "q95", "mean")),
                f"{float(row['final_loss']):.4f}",
            ]
        )
    columns = ["model", "method", ">seeds", ">steps", ">rms", ">5 %", ">95 %", ">mean", ">final loss"]
    yield from (*markdown(columns, table), "")
    yield (
        f"Loss of a step less that of the fp32 run of the same seed and step, which saw the same batches, in nats. "
        f"A control is an fp32 run whose parameters were moved by one ulp before the first step. From "
        f"{source(comments)}"
    )
    yield ""


def bits_table(results: Path) -> Iterator[str]:
    """Means over the training."""
    comments, rows = read_table(results / bits.FILE)
    yield from ("![Bits per exponent](../images/cluster-bits.png)", "")
    sources = (bits.FRESH, bits.BEFORE, bits.REFRESHED, bits.STALE)
    table = []
    for name, code in unique((row["model"], row["code"]) for row in rows):
        selected = [row for row in rows if (row["model"], row["code"]) == (name, code)]
        cells = [_mean([row["bits_per_exponent"] for row in selected if row["table"] == kind]) for kind in sources]
        table.append([name, code, *cells, _mean([row["entropy_bits"] for row in selected])])
    columns = ["model", "code", *(f">table {kind}" for kind in sources), ">entropy"]
    yield from (*markdown(columns, table), "")
    yield (
        f"Bits per exponent, mean over the training; refreshed: every {bits.INTERVAL} steps, from all exponents "
        f"since. From {source(comments)}"
    )
    yield ""


def bypass_table(results: Path) -> Iterator[str]:
    """Steps with the bypass beside plain ones."""
    comments, rows = read_table(results / bypass.FILE)
    table = [
        [
            row["model"],
            row["rate"],
            row["method"],
            row["steps"],
            _ms(row["step_seconds"]),
            f"{_ms(row['step_seconds_q1'])}-{_ms(row['step_seconds_q3'])}",
            row["of_plain"],
            row["paired"],
            row["compressed_share"],
        ]
        for row in rows
    ]
    columns = ["model", "link", "method", ">steps", ">step, ms", ">quartiles", ">of plain", ">paired", ">compressed"]
    yield from (*markdown(columns, table), "", f"{rows[0]['workers']} workers; from {source(comments)}", "")


def accuracies_table(results: Path) -> Iterator[str]:
    """Steps at an accuracy, beside torch's own."""
    comments, rows = read_table(results / accuracies.FILE)
    table = [
        [
            row["model"],
            row["workers"],
            row["rate"],
            row["method"],
            row["steps"],
            _ms(row["step_seconds"]),
            row["of_fp32"],
            row["of_bf16"],
            f"{float(row['nic_bytes']) / 1e6:.2f}",
            row["bytes_of_fp32"],
            row["way"],
        ]
        for row in rows
    ]
    columns = [
        "model",
        ">workers",
        "link",
        "method",
        ">steps",
        ">step, ms",
        ">of fp32",
        ">of bf16",
        ">wire MB",
        ">of fp32's",
        "way",
    ]
    yield (
        f"Methods take turns, {accuracies.BLOCK} steps each; shares are medians over pairs of neighboring turns. "
        "gcodec's hook has its bypass, which has chosen the way. All workers share two cores: with three and four, "
        "steps wait for processors, and what compresses takes these from what computes; trials are among the steps."
    )
    yield from ("", *markdown(columns, table), "", f"From {source(comments)}", "")


def compressed_table(results: Path) -> Iterator[str]:
    """Steps with each compressor, computing and the rest apart."""
    comments, rows = read_table(results / compressed.FILE)
    yield from ("![Steps by compressor](../images/cluster-compressors.png)", "")
    table = [
        [
            row["model"],
            row["rate"],
            row["method"],
            row["steps"],
            _ms(row["step_seconds"]),
            f"{_ms(row['step_seconds_q1'])}-{_ms(row['step_seconds_q3'])}",
            _ms(row["communication_seconds"]),
            f"{float(row['times_faster']):.2f}",
            f"{float(row['nic_bytes']) / 1e6:.3f}",
            row["byte_ratio"],
        ]
        for row in rows
    ]
    columns = [
        "model",
        "link",
        "method",
        ">steps",
        ">step, ms",
        ">quartiles",
        ">beyond computing, ms",
        ">times faster",
        ">wire MB",
        ">ratio",
    ]
    yield (
        f"A step without any communication takes {_ms(rows[0]['compute_seconds'])} ms; what a step takes beyond it "
        "is compressing and waiting, as in GradZip's Figure 3 (a); times faster than fp32 is its Figure 3 (b). All "
        "but the first three have error feedback."
    )
    yield from ("", *markdown(columns, table), "", f"{rows[0]['workers']} workers; from {source(comments)}", "")


def controllers_table(results: Path) -> Iterator[str]:
    """Trainings under controllers, beside static ones."""
    comments, rows = read_table(results / controllers.FILE)
    table = [
        [
            row["model"],
            row["rate"],
            row["method"],
            row["steps"],
            row["loss"],
            f"{float(row['seconds']):.1f}",
            _ms(row["step_seconds"]),
            f"{float(row['times_faster']):.2f}",
            row["byte_ratio"],
            row["float_ratio"],
        ]
        for row in rows
    ]
    columns = [
        "model",
        "link",
        "method",
        ">steps",
        ">loss",
        ">all steps, s",
        ">median step, ms",
        ">times faster",
        ">wire bytes",
        ">floats",
    ]
    yield (
        "GraVAC's Table 2 in seconds, between workers on links of limited rate, without the first "
        f"{runs.IGNORED} steps of a method. Loss is the training's, over its last tenth; times faster than fp32 in "
        "as many steps."
    )
    yield from ("", *markdown(columns, table), "", f"{rows[0]['workers']} workers; from {source(comments)}", "")


def model_table(results: Path) -> Iterator[str]:
    """Times faster than a dense ring, from the model."""
    comments, rows = read_table(results / model.FILE)
    yield from ("![Times faster than a dense ring, modeled](../images/cluster-model.png)", "")
    yield from MODEL.splitlines()
    yield ""
    known = {(row["model"], row["workers"], row["gbps"], row["method"]): row for row in rows}
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        for workers in SHOWN_WORKERS:
            selected = [known[name, workers, gbps, method] for gbps in SHOWN_GBPS]
            table.append(
                [
                    name,
                    method,
                    workers,
                    *(f"{float(row['speedup']):.2f}" for row in selected),
                    _short(selected[0]["break_even_gbps"]),
                ]
            )
    columns = ["model", "method", ">workers", *(f">{gbps} Gb/s" for gbps in SHOWN_GBPS), ">break-even, Gb/s"]
    yield from (*markdown(columns, table), "", f"Times faster than the fp32 ring; from {source(comments)}", "")


def _ms(seconds: str) -> str:
    if not seconds:
        return ""
    number = 1e3 * float(seconds)
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def _short(number: str) -> str:
    return f"{float(number):.2f}" if number else ""


def _percent(share: str) -> str:
    return f"{100 * float(share):.1f}" if share else ""


def _mean(numbers: Sequence[str]) -> str:
    return f"{sum(map(float, numbers)) / len(numbers):.3f}" if numbers else ""


#: Title of a part to what makes it, and the file in bench/results that this reads.
PARTS: dict[str, tuple[Callable[[Path], Iterator[str]], str]] = {
    "All-reduce": (allreduce_tables, allreduce.FILE),
    "Steps": (steps_table, runs.STEPS),
    "Loss over time": (training_table, runs.TRAINING),
    "Deviation of losses": (deviations_table, runs.DEVIATIONS),
    "Bits per exponent": (bits_table, bits.FILE),
    "The bypass": (bypass_table, bypass.FILE),
    "Accuracies": (accuracies_table, accuracies.FILE),
    "Compressors": (compressed_table, compressed.FILE),
    "Controllers": (controllers_table, controllers.FILE),
    "Faster links, more workers": (model_table, model.FILE),
}


def section(results: Path) -> list[str]:
    """Return the lines of all tables that there are."""
    lines = [*DEFINITIONS.splitlines(), ""]
    for title, (make, file) in PARTS.items():
        if (results / file).exists():
            lines += [f"## {title}", "", *make(results)]
    return lines[:-1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.cluster.tables", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV files (default: bench/results)")
    parser.add_argument("--page", type=Path, help="Markdown file to write it to")
    options = parser.parse_args(arguments)
    lines = section(options.results)
    if options.page is None:
        print("\n".join(lines))
    else:
        options.page.write_text(placed(options.page.read_text(), lines))
    return 0


def placed(page: str, lines: Sequence[str]) -> str:
    """Return the page with the section in its place."""
    if f"<!-- begin {PLACE}" not in page:
        page = f"{page.rstrip()}\n\n## {TITLE}\n\n<!-- begin {PLACE} -->\n<!-- end {PLACE} -->\n"
    return filled(page, PLACE, lines)


if __name__ == "__main__":
    sys.exit(main())
