"""The tables of docs/costs.md: bytes and time by kind of data, what does not depend on the data's size, the first use,
and what a step of training takes, from the CSV files of other benchmarks."""

from __future__ import annotations

from pathlib import Path

from bench import startup
from bench.codec_tables import kinds
from bench.front_page import Total, totals
from bench.markdown import markdown, source
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import OURS
from gcodec.benchmark.settings import FIXED_BITS, LOSSLESS, NEAR_LOSSLESS

TYPES = ("fp32", "bf16")
#: Modes other than lossless of which there is a row, by the kind of data.
COARSE = {"gradients fp32": (NEAR_LOSSLESS, f"{FIXED_BITS['float32']} mantissa bits")}
#: Cases of ``bench.startup`` that are shown, and what they are called.
CASES = {
    "encode + decode float32": "encode and decode a float32 array",
    "encode + decode bfloat16": "encode and decode a bfloat16 array",
    "encode + decode float32, 7 mantissa bits": "the same of float32 with 7 mantissa bits",
    startup.COMPRESS: "`gcodec`, a 24 MB file",
    startup.HOOK: "import torch and gcodec, one step with the DDP hook",
}
CACHES = {
    startup.EMPTY: "nothing compiled",
    startup.INSTALLED: "first use after `pip install`",
    startup.WARM: "any later process",
}
#: Methods of a training step that are shown, and how a user asks for them.
STEPS = {
    "fp32": "no hook",
    "bf16 hook": "torch's `bf16_compress_hook`",
    "gcodec lossless": '`mode="exact"`',
    "gcodec near-lossless": "`optimizer=o`",
    "gcodec bf16": '`mode="bf16"`',
}


def arrays_table(results: Path) -> list[str]:
    """Return bytes and seconds of a gigabyte by kind of data, and up to which rate of a link or disk they pay."""
    comments, rows = read_table(results / "codec.csv")
    table = []
    for kind, name in kinds(TYPES).items():
        for mode in (LOSSLESS, *COARSE.get(kind, ())):
            total = totals(rows, kind, mode).get(OURS)
            if total is not None:
                speeds = (f"{1 / total.encode:.2f}", f"{1 / total.decode:.2f}")
                table.append([name, mode, f"{100 / total.ratio:.1f}", *speeds, f"{8 * break_even(total):.1f}"])
    columns = ["data", "mode", ">% of the bytes", ">encode, s", ">decode, s", ">pays below, Gb/s"]
    return [*markdown(columns, table), "", f"Seconds per GB of original bytes, one core; from {source(comments)}"]


def break_even(total: Total) -> float:
    """Return the GB/s of a link at which encoding, sending and decoding, one after the other, take as long as sending
    the original."""
    return (1 - 1 / total.ratio) / (1 / total.encode + 1 / total.decode)


def fixed_table(results: Path) -> list[str]:
    """Return what a call costs, what memory is taken, and what many small tensors take more than a large one."""
    (of_calls, calls), (of_memory, memory), (of_small, small) = (
        read_table(results / name) for name in ("calls.csv", "memory.csv", "small_tensors.csv")
    )
    table = [
        [
            f"a call with float32[{row['values']}]",
            *(f"{float(row[key]):.0f} µs" for key in ("encode_us", "decode_us")),
        ]
        for row in calls
        if row["memory"] == "new"
    ]
    ours = next(row for row in memory if row["codec"] == OURS)
    table.append(
        [
            "memory besides the result",
            f"{100 * int(ours['encode_extra_bytes']) / int(ours['encoded_bytes']):.0f} % of the encoded bytes",
            f"{100 * int(ours['decode_extra_bytes']) / int(ours['bytes']):.1f} % of the decoded bytes",
        ]
    )
    times = {row["through"]: f"{float(row['times']):.1f} times as long as one array" for row in small}
    for name, pair in (
        ("500 tensors of 1 to 16 Ki values, one by one", ("encode, one by one", "decode, one by one")),
        ("the same tensors by `save_file` and `load_file`", ("save_file", "load_file")),
    ):
        table.append([name, *(times[key] for key in pair)])
    return [
        *markdown(["what", ">encode", ">decode"], table),
        "",
        f"Calls: {source(of_calls)} Memory: {source(of_memory)} Tensors: {source(of_small)}",
    ]


def first_use_table(results: Path) -> list[str]:
    """Return the seconds of fresh processes by what has been compiled before."""
    comments, rows = read_table(results / "startup.csv")
    seconds = {
        (row["case"], row["cache"]): f"{float(row['seconds']):.1f}" for row in rows if row["codec"] == startup.OURS
    }
    table = [[name, *(seconds.get((case, cache), "") for cache in CACHES)] for case, name in CASES.items()]
    installing = seconds.get((startup.INSTALL, startup.EMPTY), "")
    return [
        *markdown(["a fresh process", *(f">{name}, s" for name in CACHES.values())], table),
        "",
        f"`pip install` took {installing} s, most of it to compile; two cores; from {source(comments)}",
    ]


def steps_table(results: Path) -> list[str]:
    """Return processor time and bytes of a training step with each of the hook's modes."""
    comments, rows = read_table(results / "cluster-step-costs.csv")
    found = {row["method"]: row for row in rows}
    plain = float(found["fp32"]["processor_seconds"])
    table = [
        [
            name,
            f"{1e3 * float(found[method]['processor_seconds']):.0f}",
            f"{1e3 * (float(found[method]['processor_seconds']) - plain):+.0f}",
            f"{100 * float(found[method]['bytes_of_fp32']):.0f}",
        ]
        for method, name in STEPS.items()
        if method in found
    ]
    columns = ["hook", ">processor time, ms", ">more than without, ms", ">bytes sent, %"]
    return [*markdown(columns, table), "", f"Of one rank of two; from {source(comments)}"]


#: Name of a marked place to what fills it, and the file in bench/results that this reads.
PLACES = {
    "costs-arrays": (arrays_table, "codec.csv"),
    "costs-fixed": (fixed_table, "calls.csv"),
    "costs-first-use": (first_use_table, "startup.csv"),
    "costs-steps": (steps_table, "cluster-step-costs.csv"),
}
