"""The tables of MiniLM's fine-tunings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from bench.cluster import bits
from bench.experiments import gcomp
from bench.experiments.accuracy import DENSE
from bench.experiments.gcomp_drops import ALL
from bench.experiments.gcomp_drops import DENSE as WITHOUT
from bench.markdown import markdown, source, trained_on
from gcodec.benchmark.csv_tables import read_table

FILES = {
    name: f"experiment-minilm-{name}.csv"
    for name in ("recorded", "trainings", "exponents", "sizes", "values", "mantissas", "updates")
}
TRAINING = ("problem", "method", "seed", "steps", "quality", "unit", "loss", "wire_of_fp32", "losses", "processor")
COLUMNS = {
    "recorded": TRAINING,
    "trainings": TRAINING,
    "sizes": ("gradients", "values", *gcomp.COLUMNS["sizes"][1:]),
    "values": ("gradients", "values", *gcomp.COLUMNS["values"][1:-3]),
    "mantissas": ("model", "step", "strategy", "bits_per_value"),
    "updates": gcomp.COLUMNS["updates"],
}
#: Share of BERT-base's values that are embeddings: 30,522 words, 512 places, 2 types and a normalization of 768 of
#: 109,482,240 (Devlin et al., 2019).
BERT_EMBEDDINGS = (30_522 + 512 + 2 + 2) * 768 / 109_482_240
AS_BERT = "weighed as in BERT-base"
Row = Mapping[str, str]


def sizes(results: Path) -> list[str]:
    """Return sizes by step and method: of all gradients, of those without embeddings, and both weighed as BERT-base has
    them."""
    comments, rows = read_table(results / FILES["sizes"])
    _, values = read_table(results / FILES["values"])
    methods = list(dict.fromkeys(row["method"] for row in rows))
    percent = {(row["step"], row["gradients"], row["method"]): float(row["percent"]) for row in rows}
    table = []
    for step in dict.fromkeys(row["step"] for row in values):
        facts = {row["gradients"]: row for row in values if row["step"] == step}
        rate = facts[ALL]["rate"]
        for what in (ALL, WITHOUT):
            own = facts[what]
            keys = ("orders_median", "zeros_percent")
            cells = [f"{percent[step, what, method]:.2f}" for method in methods]
            table.append([step, rate, what, *(own[key] for key in keys), *cells])
        n_all, n_dense = (int(facts[what]["values"]) for what in (ALL, WITHOUT))
        weighed = []
        for method in methods:
            whole, dense = (percent[step, what, method] for what in (ALL, WITHOUT))
            embeddings = (n_all * whole - n_dense * dense) / (n_all - n_dense)
            weighed.append(f"{BERT_EMBEDDINGS * embeddings + (1 - BERT_EMBEDDINGS) * dense:.2f}")
        table.append([step, rate, AS_BERT, "", "", *weighed])
    columns = [
        ">step",
        ">rate",
        "gradients",
        ">orders below parameters",
        ">zeros, %",
        *(f">{method}" for method in methods),
    ]
    return [*markdown(columns, table), "", f"In percent of float32. From {source(comments)}"]


def trainings(results: Path) -> list[str]:
    """Return loss and accuracy of each method less those of the dense training of the same seed and length."""
    comments, rows = read_table(results / FILES["trainings"])
    dense = {(row["steps"], row["seed"]): row for row in rows if row["method"] == DENSE}
    lines = []
    for steps, method in dict.fromkeys((row["steps"], row["method"]) for row in rows):
        own = [row for row in rows if (row["steps"], row["method"]) == (steps, method)]
        pairs = [(row, dense[steps, row["seed"]]) for row in own if (steps, row["seed"]) in dense]
        if pairs:
            wire = f"{100 * fmean(float(row['wire_of_fp32']) for row, _ in pairs):.1f}"
            lines.append([steps, method, str(len(pairs)), wire, *_beside_dense(pairs)])
    columns = [
        ">steps",
        "gradients",
        ">seeds",
        ">bytes sent, % of fp32",
        ">accuracy, %",
        ">loss of a step beside fp32's, rms",
        ">largest",
        ">loss, last tenth",
    ]
    return [
        *markdown(columns, lines),
        "",
        f"Means over seeds ± standard deviation; below fp32 accuracy and loss are differences from fp32 of the same "
        f"seed. {trained_on(comments, rows)}",
    ]


def _beside_dense(pairs: Sequence[tuple[Row, Row]]) -> list[str]:
    """Return the cells that compare trainings with the dense ones of their seeds."""
    is_dense = pairs[0][0]["method"] == DENSE
    off = [a - b for row, other in pairs for a, b in zip(losses_of(row), losses_of(other), strict=True)]
    rms = fmean(one**2 for one in off) ** 0.5
    cells = []
    for key, digits in (("quality", 1), ("loss", 4)):
        found = [float(row[key]) - (0 if is_dense else float(other[key])) for row, other in pairs]
        spread = f" ± {stdev(found):.{digits}f}" if len(found) > 1 else ""
        cells.append(f"{fmean(found):{'' if is_dense else '+'}.{digits}f}{spread}")
    beside = ["", ""] if is_dense else [f"{rms:.2g}", f"{max(map(abs, off)):.2g}"]
    return [cells[0], *beside, cells[1]]


def losses_of(row: Row) -> list[float]:
    """Return the losses of a training's steps."""
    return [float(loss) for loss in row["losses"].split()]


def exponents(results: Path) -> list[str]:
    """Return bits per exponent by code and by what its table was made from, means over the steps looked at."""
    comments, rows = read_table(results / FILES["exponents"])
    later = [row for row in rows if row["step"] != "1"]  # the first step has no table but its own
    table = []
    for code in bits.CODES:
        own = [row for row in later if row["code"] == code]
        cells = [
            fmean(float(row["bits_per_exponent"]) for row in own if row["table"] == kind)
            for kind in (bits.FRESH, bits.BEFORE, bits.REFRESHED, bits.STALE)
        ]
        table.append([code, *(f"{cell:.2f}" for cell in (*cells, fmean(float(row["entropy_bits"]) for row in own)))])
    columns = ["code", ">table of the step", ">of the step before", ">refreshed", ">of the first step", ">entropy"]
    return [
        *markdown(columns, table),
        "",
        f"Bits per exponent, zeros among them, mean over the training; refreshed: every {bits.INTERVAL} steps. "
        f"From {source(comments)}",
    ]


def updates(results: Path) -> list[str]:
    """Return the update's error by step and method."""
    comments, rows = read_table(results / FILES["updates"])
    lines = [[row[key] for key in COLUMNS["updates"][1:]] for row in rows]
    return [*markdown(gcomp.UPDATE_HEADINGS, lines), "", f"From {source(comments)}"]


PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "minilm-sizes": (sizes, FILES["sizes"]),
    "minilm-trainings": (trainings, FILES["trainings"]),
    "minilm-exponents": (exponents, FILES["exponents"]),
    "minilm-updates": (updates, FILES["updates"]),
}
