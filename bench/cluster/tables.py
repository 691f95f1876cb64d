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

from bench.cluster import accuracies, allreduce, bed, bits, bypass, compressed, controllers, methods, model, runs
from bench.cluster.definitions import DEFINITIONS, MODEL
from bench.cluster.pictures import unique
from bench.cluster.training import FP32
from bench.codec import RESULTS
from bench.markdown import filled, markdown, source
from gcodec.benchmark.csv_tables import read_table

REACHED = (0.5, 0.75, 0.9, 1.0)  #: parts of the way from the dense run's first loss to its last
SHOWN_WORKERS = ("4", "64")
SHOWN_METHODS = (model.TREE, model.HALF, methods.LOSSLESS, methods.NEAR)  #: of the model
WORK_RATE = "1gbit"  #: the link at which bytes and the codec's work are shown, if there are several
SHOWN_GBPS = ("1", "10", "25", "100", "400")
PLACE, TITLE, MAIN_FILE = "cluster", "Distributed training", allreduce.FILE
Row = dict[str, str]


def allreduce_tables(results: Path) -> Iterator[str]:
    """Yield each bed's methods: bytes, time at every rate, and the codec's work."""
    comments, rows = read_table(results / allreduce.FILE)
    yield from ("![All-reduce time by method](../images/cluster-allreduce.png)", "")
    yield from (f"Times are in ms; wire MB, encode, levels and decode are those at {_rate(WORK_RATE)}.", "")
    rates = list(unique(row["rate"] for row in rows))
    columns = [
        "method",
        ">wire MB",
        *(f">{_rate(rate)}" for rate in rates),
        *(f">{part}, ms" for part in ("encode", "levels", "decode")),
    ]
    for name, workers in unique((row["model"], row["workers"]) for row in rows):
        bed_rows = [row for row in rows if (row["model"], row["workers"]) == (name, workers)]
        table = []
        for method in unique(row["method"] for row in bed_rows):
            if method == methods.SMALL or method.endswith(methods.WIRE):
                continue
            by_rate = {row["rate"]: row for row in bed_rows if row["method"] == method}
            work = _at_work_rate(by_rate)
            table.append(
                [
                    method,
                    f"{float(work['nic_bytes']) / 1e6:.2f}",
                    *(_ms(by_rate[rate]["seconds"]) if rate in by_rate else "" for rate in rates),
                    *(_ms(work[f"{part}_seconds"]) for part in ("encode", "level", "decode")),
                ]
            )
        first = bed_rows[0]
        yield from (f"**{float(first['values']) * 4 / 1e6:.1f} MB, {first['gradients']}, {workers} workers**", "")
        yield from (*markdown(columns, table), "")
    worst = [
        f"{float(row['deviation']):.2f} ({row['model']}, {row['workers']} workers)"
        for row in _once(rows, methods.NEAR)
        if row["deviation"]
    ]
    yield from (f"Deviation, near-lossless: {', '.join(worst)}.", "", f"{_also(allreduce.FILE)} {_from(comments)}", "")


def _once(rows: Sequence[Row], method: str) -> Iterator[Row]:
    """Yield a method's first row of every bed."""
    seen = set()
    for row in rows:
        bed = row["model"], row["workers"]
        if row["method"] == method and bed not in seen:
            seen.add(bed)
            yield row


def steps_table(results: Path) -> Iterator[str]:
    """Yield the milliseconds of a step of training at every rate, and its bytes."""
    comments, rows = read_table(results / runs.STEPS)
    rates = [rate for rate in bed.RATES if any(row["rate"] == rate for row in rows)]
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        by_rate = {row["rate"]: row for row in rows if (row["model"], row["method"]) == (name, method)}
        sent = _at_work_rate(by_rate)
        table.append(
            [
                name,
                method,
                f"{float(sent['nic_bytes']) / 1e6:.3f}",
                _percent(sent["bytes_of_fp32"]),
                *(
                    f"{_ms(by_rate[rate]['step_seconds'])} ({_short(by_rate[rate]['of_fp32'])})"
                    if rate in by_rate
                    else ""
                    for rate in rates
                ),
            ]
        )
    columns = ["model", "method", ">wire MB", ">% of fp32", *(f">{_rate(rate)}" for rate in rates)]
    yield (
        "A step is forward, backward with its all-reduces beside it, and the optimizer. Times are in ms, and in "
        f"brackets as a share of fp32's; bytes are those at {_rate(WORK_RATE)}, means once the training has settled "
        "(past step 100, or the second half of a shorter one), refreshes included. "
        "The codec is used whether or not it pays: the bypass is off, and on under [The bypass](#the-bypass) and "
        '[Accuracies](#accuracies). "gcodec bf16" is the hook with `mode="bf16"`.'
    )
    yield from ("", *markdown(columns, table), "")
    yield from (f"{rows[0]['workers']} workers. {_also(runs.STEPS)} {_from(comments)}", "")


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
    """Yield the steps with the bypass beside plain ones."""
    comments, rows = read_table(results / bypass.FILE)
    others = [method for method in unique(row["method"] for row in rows) if method != FP32]
    table = []
    for name, rate in unique((row["model"], row["rate"]) for row in rows):
        by_method = {row["method"]: row for row in rows if (row["model"], row["rate"]) == (name, rate)}
        cells = (f"{float(by_method[other]['paired']):.3f}{_compressed(by_method[other])}" for other in others)
        table.append([name, _rate(rate), _ms(by_method[FP32]["step_seconds"]), *cells])
    columns = ["model", "link", f">{FP32}, ms", *(f">{other}" for other in others)]
    yield (
        "Steps with a hook or in the process group, as a share of plain DDP's beside them (medians of pairs); "
        "*compressed* where the bypass chose to compress."
    )
    yield from ("", *markdown(columns, table), "")
    yield from (f"{rows[0]['workers']} workers. {_also(bypass.FILE)} {_from(comments)}", "")


def _compressed(row: Row) -> str:
    return ", compressed" if row["compressed_share"] and float(row["compressed_share"]) > 0.5 else ""


def accuracies_table(results: Path) -> Iterator[str]:
    """Yield the steps at an accuracy, beside torch's own."""
    comments, rows = read_table(results / accuracies.FILE)
    rates = list(unique(row["rate"] for row in rows))
    table = []
    for name, workers, method in unique((row["model"], row["workers"], row["method"]) for row in rows):
        by_rate = {
            row["rate"]: row for row in rows if (row["model"], row["workers"], row["method"]) == (name, workers, method)
        }
        shares = (
            f"{_short(by_rate[rate]['of_fp32'])} ({_short(by_rate[rate]['bytes_of_fp32'])})" if rate in by_rate else ""
            for rate in rates
        )
        table.append([name, workers, method, *shares])
    yield (
        "A step's time, and in brackets the bytes it sends, as shares of fp32's. "
        f"Methods take turns, {accuracies.BLOCK} steps each; shares of time are medians over pairs of neighboring "
        "turns. gcodec's hook has its bypass, which has chosen the way. All workers share two cores: with three and "
        "four, steps wait for processors, and what compresses takes these from what computes; trials are among the "
        "steps."
    )
    columns = ["model", ">workers", "method", *(f">{_rate(rate)}" for rate in rates)]
    yield from ("", *markdown(columns, table), "", f"{_also(accuracies.FILE)} {_from(comments)}", "")


def compressed_table(results: Path) -> Iterator[str]:
    """Yield the steps with each compressor."""
    comments, rows = read_table(results / compressed.FILE)
    yield from ("![Steps by compressor](../images/cluster-compressors.png)", "")
    rates = list(unique(row["rate"] for row in rows))
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        by_rate = {row["rate"]: row for row in rows if (row["model"], row["method"]) == (name, method)}
        table.append(
            [
                name,
                method,
                next(iter(by_rate.values()))["byte_ratio"],
                *(
                    f"{_ms(by_rate[rate]['step_seconds'])} ({_short(by_rate[rate]['times_faster'])})"
                    if rate in by_rate
                    else ""
                    for rate in rates
                ),
            ]
        )
    columns = ["model", "method", ">times fewer bytes", *(f">{_rate(rate)}" for rate in rates)]
    yield (
        "A step's time in ms, and in brackets how many times as fast it is as fp32's (GradZip's Figure 3 (b)). "
        f"Without any communication a step takes {_ms(rows[0]['compute_seconds'])} ms; the rest is compressing and "
        "waiting, as in its Figure 3 (a). All but the first three have error feedback."
    )
    yield from ("", *markdown(columns, table), "")
    yield from (f"{rows[0]['workers']} workers. {_also(compressed.FILE)} {_from(comments)}", "")


def controllers_table(results: Path) -> Iterator[str]:
    """Yield trainings under controllers, beside static ones."""
    comments, rows = read_table(results / controllers.FILE)
    rates = list(unique(row["rate"] for row in rows))
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        by_rate = {row["rate"]: row for row in rows if (row["model"], row["method"]) == (name, method)}
        first = next(iter(by_rate.values()))
        times = (
            f"{_ms(by_rate[rate]['step_seconds'])} ({_short(by_rate[rate]['times_faster'])})" if rate in by_rate else ""
            for rate in rates
        )
        table.append([name, method, first["loss"], first["byte_ratio"], *times])
    columns = ["model", "method", ">loss", ">times fewer bytes", *(f">{_rate(rate)}" for rate in rates)]
    yield (
        "GraVAC's Table 2 in seconds, between workers on links of limited rate, without the first "
        f"{runs.IGNORED} steps of a method: the median step in ms, and in brackets how many times as fast as fp32 all "
        f"{rows[0]['steps']} steps are. Loss and bytes are those at {_rate(rates[0])}; the loss is that of the "
        "training's last tenth."
    )
    yield from ("", *markdown(columns, table), "")
    yield from (f"{rows[0]['workers']} workers. {_also(controllers.FILE)} {_from(comments)}", "")


def model_table(results: Path) -> Iterator[str]:
    """Yield times faster than a dense ring, from the model."""
    comments, rows = read_table(results / model.FILE)
    yield from ("![Times faster than a dense ring, modeled](../images/cluster-model.png)", "")
    yield from MODEL.splitlines()
    yield ""
    known = {(row["model"], row["workers"], row["gbps"], row["method"]): row for row in rows}
    table = []
    for name, method in unique((row["model"], row["method"]) for row in rows):
        if method not in SHOWN_METHODS:
            continue
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
    yield from (
        *markdown(columns, table),
        "",
        f"Times faster than the fp32 ring. {_also(model.FILE)} {_from(comments)}",
    )
    yield ""


def _rate(rate: str) -> str:
    """Return a link's rate as people write it."""
    return "no limit" if rate == bed.UNSHAPED else rate.replace("mbit", " Mb/s").replace("gbit", " Gb/s")


def _at_work_rate(by_rate: dict[str, Row]) -> Row:
    """Return the row at ``WORK_RATE``; the first if there is none."""
    return by_rate.get(WORK_RATE) or next(iter(by_rate.values()))


def _also(file: str) -> str:
    """Return the sentence that links the file, which has more rows and columns."""
    return f"[{file}](../../bench/results/{file}) has the rest."


def _from(comments: Sequence[str]) -> str:
    return f"From {source(comments)}"


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
