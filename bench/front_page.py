"""The README's results, a line for each kind of user, from the CSV files of four benchmarks."""

from __future__ import annotations

from pathlib import Path

from bench.markdown import markdown
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.settings import LOSSLESS

SERIES, EACH_WHOLE, ALL_PARTS = "gcodec series", "gcodec, each whole", "all"
FIXED, BF16, UNLIMITED = "gcodec 7 mantissa bits", "Gloo bf16", "unshaped"
LEARNING_RATE = "1e-06"
Row = dict[str, str]


def front_table(results: Path) -> list[str]:
    """Return the table: what a user has, what gcodec makes of it, and the page to begin with."""
    rows = [
        ["a model file in bfloat16", _weights(results), "[checkpoints](docs/checkpoints.md)"],
        ["checkpoints of training, with AdamW's state", _checkpoints(results),
         "[series](docs/checkpoints.md#series-of-checkpoints)"],
        ["DDP over a slow link", _allreduce(results), "[training](docs/training.md)"],
        ["inference workers that follow a training", _weight_sync(results), "[weight sync](docs/weight-sync.md)"],
    ]
    return markdown(["you have", "you get, measured", "start here"], rows)


def _weights(results: Path) -> str:
    rows = [row for row in read_table(results / "codec.csv")[1]
            if (row["codec"], row["mode"]) == (OURS, LOSSLESS) and row["data"].endswith("parameters bf16")]
    before, after = (sum(int(row[f"{part}_bytes"]) for row in rows) for part in ("original", "compressed"))
    speeds = (before / sum(int(row["original_bytes"]) / float(row[f"{part}_GBps"]) for row in rows)
              for part in ("encode", "decode"))
    return "{:.0f} % of its bytes; in memory, a core encodes {:.1f} and decodes {:.1f} GB/s".format(
        100 * after / before, *speeds)


def _checkpoints(results: Path) -> str:
    rows = [row for row in read_table(results / "checkpoints.csv")[1]
            if row["part"] == ALL_PARTS and row["run"].startswith(("training", "fine-tuning"))]
    whole, series = (sorted(float(row["percent"]) for row in rows if row["method"] == method)
                     for method in (EACH_WHOLE, SERIES))
    return (f"{whole[0]:.0f} to {whole[-1]:.0f} % of their bytes one by one, {series[0]:.0f} to {series[-1]:.0f} % as "
            "a series of differences")


def _allreduce(results: Path) -> str:
    shares = sorted(fixed_of_bf16(results, "nic_bytes").values())
    return (f"the mantissa bits of `bf16_compress_hook` in {shares[0]:.2f} to {shares[-1]:.2f} of its bytes, summed in "
            "float32")


def fixed_of_bf16(results: Path, column: str) -> dict[tuple[str, str, str], float]:
    """Return a column of all-reduces that keep 7 mantissa bits as a share of bfloat16's: by model, workers and link."""
    rows: dict[tuple[str, str, str], Row] = {}
    for row in read_table(results / "cluster-allreduce.csv")[1]:
        rows.setdefault((row["model"], row["workers"], row["rate"]), {})[row["method"]] = row[column]
    return {bed: float(by_method[FIXED]) / float(by_method[BF16]) for bed, by_method in rows.items()}


def _weight_sync(results: Path) -> str:
    row = next(row for row in read_table(results / "weight-sync.csv")[1]
               if (row["type"], row["learning_rate"]) == ("bfloat16", LEARNING_RATE))
    return (f"{float(row['percent']):.1f} % of the bfloat16 weights' bytes for each step at a learning rate of "
            f"{LEARNING_RATE.replace('e-0', 'e-')}, bit for bit")


def bf16_table(results: Path) -> list[str]:
    """Return the all-reduce that keeps bfloat16's mantissa bits beside bfloat16's own: bytes and time."""
    sizes, times = (fixed_of_bf16(results, column) for column in ("nic_bytes", "seconds"))
    links = list(dict.fromkeys(link for *_, link in sizes))
    table = [[model, workers, f"{sizes[model, workers, links[0]]:.2f}",
              *(f"{times[model, workers, link]:.2f}" for link in links)]
             for model, workers in dict.fromkeys(bed[:2] for bed in sizes)]
    names = ["no limit" if link == UNLIMITED else link.replace("mbit", " Mb/s").replace("gbit", " Gb/s")
             for link in links]
    return markdown(["gradients of", ">workers", ">bytes", *(f">time, {name}" for name in names)], table)
