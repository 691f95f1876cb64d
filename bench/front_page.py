"""What the first pages show: results for each kind of user, and codecs side by side, from several CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from bench.markdown import markdown
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.settings import LOSSLESS

SERIES, EACH_WHOLE, ALL_PARTS = "gcodec series", "gcodec, each whole", "all"
FIXED, BF16, UNLIMITED = "gcodec bf16", "Gloo bf16", "unshaped"
STEPS_AT_BF16 = "gcodec bf16"  #: steps of training with ``mode="bf16"``, without the bypass
LEARNING_RATE = "1e-06"
FEW_VALUES = "TopK(0.1, mantissa_bits=1)"
#: How kinds of data end in codec.csv, and what they are called.
KINDS = {
    f"{group} {dtype}": f"{name}, {dtype}"
    for group, name in (("parameters", "weights"), ("gradients", "gradients"), ("state", "optimizer state"))
    for dtype in ("fp32", "bf16")
}
NEAR = 1.05  #: as large as a result of about the same size may be
Row = dict[str, str]


class Total(NamedTuple):
    """What a codec made of all data of a kind: ratio, and GB/s on one core."""

    ratio: float
    encode: float
    decode: float


def front_table(results: Path) -> list[str]:
    """Return the table: what a user has, what gcodec makes of it, and the page to begin with."""
    rows = [
        ["a model file in bfloat16", _weights(results), "[checkpoints](docs/checkpoints.md)"],
        [
            "a published model, such as all-MiniLM-L6-v2",
            _published(results),
            "[files](docs/benchmarks/files.md#models-that-others-published)",
        ],
        [
            "bfloat16 weights that were fp8 before",
            _dequantized(results),
            "[tensors](docs/tensors.md#few-values-and-quantized-weights)",
        ],
        [
            "checkpoints of training, with AdamW's state",
            _checkpoints(results),
            "[series](docs/checkpoints.md#series-of-checkpoints)",
        ],
        ["DDP over a slow link", _allreduce(results), "[training](docs/training.md)"],
        [
            "parameters that are exchanged now and then (DiLoCo)",
            _outer(results),
            "[DiLoCo](docs/training/diloco.md#few-bits-or-few-values)",
        ],
        ["inference workers that follow a training run", _weight_sync(results), "[weight sync](docs/weight-sync.md)"],
    ]
    return markdown(["you have", "you get, measured", "start here"], rows)


def _weights(results: Path) -> str:
    total = totals(read_table(results / "codec.csv")[1], "parameters bf16")[OURS]
    return (
        f"{100 / total.ratio:.0f} % of its bytes; in memory, a core encodes {total.encode:.1f} and decodes "
        f"{total.decode:.1f} GB/s"
    )


def _published(results: Path) -> str:
    rows = read_table(results / "public_models.csv")[1]
    found = {(row["model"], row["type"]): float(row["percent"]) for row in rows if row["method"] == OURS}
    model, quantized = "all-MiniLM-L6-v2", ("SmolLM2-135M-Instruct", "Q4_1")
    return (
        f"{found[model, 'float32']:.0f} % of its file in float32, {found[model, 'bfloat16']:.0f} % in bfloat16; "
        f"{found[quantized]:.0f} % of {quantized[0]} in llama.cpp's {quantized[1]}"
    )


def _dequantized(results: Path) -> str:
    row = next(
        row
        for row in read_table(results / "other_arrays.csv")[1]
        if row["array"].startswith("weights from fp8") and (row["dtype"], row["codec"]) == ("bfloat16", OURS)
    )
    return f"{100 * int(row['compressed_bytes']) / int(row['original_bytes']):.0f} % of their bytes, bit for bit"


def _checkpoints(results: Path) -> str:
    rows = [
        row
        for row in read_table(results / "checkpoints.csv")[1]
        if row["part"] == ALL_PARTS and row["run"].startswith(("training", "fine-tuning"))
    ]
    whole, series = (
        sorted(float(row["percent"]) for row in rows if row["method"] == method) for method in (EACH_WHOLE, SERIES)
    )
    return (
        f"{whole[0]:.0f} to {whole[-1]:.0f} % of their bytes one by one, {series[0]:.0f} to {series[-1]:.0f} % as "
        "a series of differences"
    )


def _allreduce(results: Path) -> str:
    steps = [
        float(row["bytes_of_bf16"])
        for row in read_table(results / "cluster-steps.csv")[1]
        if row["method"] == STEPS_AT_BF16
    ]
    shares = sorted([*fixed_of_bf16(results, "nic_bytes").values(), *steps])
    return (
        f"the accuracy of `bf16_compress_hook` in {shares[0]:.2f} to {shares[-1]:.2f} of its bytes, summed in float32"
    )


def fixed_of_bf16(results: Path, column: str) -> dict[tuple[str, str, str], float]:
    """Return a column of all-reduces of mode="bf16" as a share of bfloat16's: by model, workers and link."""
    rows: dict[tuple[str, str, str], Row] = {}
    for row in read_table(results / "cluster-allreduce.csv")[1]:
        rows.setdefault((row["model"], row["workers"], row["rate"]), {})[row["method"]] = row[column]
    return {bed: float(by_method[FIXED]) / float(by_method[BF16]) for bed, by_method in rows.items()}


def _outer(results: Path) -> str:
    own, dense = (
        {row["seed"]: row for row in read_table(results / "experiment-outer.csv")[1] if row["mode"] == mode}
        for mode in (FEW_VALUES, "dense")
    )
    share = fmean(float(row["of_dense"]) for row in own.values())
    loss = fmean(float(row["loss"]) - float(dense[seed]["loss"]) for seed, row in own.items())
    return f"{share:.2f} of the bytes of a float32 exchange, at a loss that is {loss:+.2f} nats off in small runs"


def _weight_sync(results: Path) -> str:
    row = next(
        row
        for row in read_table(results / "weight-sync.csv")[1]
        if (row["type"], row["learning_rate"]) == ("bfloat16", LEARNING_RATE)
    )
    return (
        f"{float(row['percent']):.1f} % of the bfloat16 weights' bytes for each step at a learning rate of "
        f"{LEARNING_RATE.replace('e-0', 'e-')}, bit for bit"
    )


def overview_table(results: Path) -> list[str]:
    """Return gcodec beside the smallest peer and the fastest of about its size, on each kind of data."""
    rows = read_table(results / "codec.csv")[1]
    table = []
    for kind, name in KINDS.items():
        peers = totals(rows, kind)
        ours = peers[OURS]
        peers = {codec: total for codec, total in peers.items() if not codec.startswith(OURS)}
        smallest = max(peers, key=lambda codec: peers[codec].ratio)
        near = [codec for codec, total in peers.items() if total.ratio >= ours.ratio / NEAR]
        fastest = max(near, key=lambda codec: peers[codec].encode, default=None)
        table.append(
            [
                name,
                *_cells(ours),
                f"{smallest}: {100 / peers[smallest].ratio:.1f}",
                f"{fastest}: {peers[fastest].encode:.2f} / {peers[fastest].decode:.2f}" if fastest else "none",
            ]
        )
    columns = [
        "lossless",
        ">gcodec, %",
        ">encode GB/s",
        ">decode GB/s",
        "smallest peer, %",
        "fastest peer within 5 %, GB/s, encode / decode",
    ]
    return markdown(columns, table)


def _cells(total: Total) -> list[str]:
    return [f"{100 / total.ratio:.1f}", f"{total.encode:.2f}", f"{total.decode:.2f}"]


def totals(rows: Sequence[Row], data: str, mode: str = LOSSLESS) -> dict[str, Total]:
    """Return every codec's results in a mode, on all data of a kind together."""
    sums: dict[str, list[float]] = {}
    for row in rows:
        if row["mode"] == mode and row["data"].endswith(data) and row["encode_GBps"]:
            before = int(row["original_bytes"])
            times = (before / float(row[f"{direction}_GBps"]) for direction in ("encode", "decode"))
            selected = (before, int(row["compressed_bytes"]), *times)
            sums[row["codec"]] = [a + b for a, b in zip(sums.get(row["codec"], [0.0] * 4), selected, strict=True)]
    return {
        codec: Total(before / after, before / encode, before / decode)
        for codec, (before, after, encode, decode) in sums.items()
    }


def bf16_table(results: Path) -> list[str]:
    """Return the all-reduce that keeps bfloat16's mantissa bits beside bfloat16's own: bytes and time."""
    sizes, times = (fixed_of_bf16(results, column) for column in ("nic_bytes", "seconds"))
    links = list(dict.fromkeys(link for *_, link in sizes))
    table = [
        [
            model,
            workers,
            f"{sizes[model, workers, links[0]]:.2f}",
            *(f"{times[model, workers, link]:.2f}" for link in links),
        ]
        for model, workers in dict.fromkeys(bed[:2] for bed in sizes)
    ]
    names = [
        "no limit" if link == UNLIMITED else link.replace("mbit", " Mb/s").replace("gbit", " Gb/s") for link in links
    ]
    return markdown(["gradients of", ">workers", ">bytes", *(f">time, {name}" for name in names)], table)
