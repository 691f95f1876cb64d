"""The targets of gcodec, beside what was measured: the first table of docs/contributing/performance.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from bench import small_tensors, startup
from bench.markdown import markdown
from bench.scaling import SIDE_BY_SIDE
from bench.sections import MIB, TIE, contests
from bench.speed import AVX2, PORTABLE
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.inputs import PARAMETERS
from gcodec.benchmark.measure import COPY, OURS
from gcodec.benchmark.settings import LOSSLESS, NEAR_LOSSLESS

OVERHEAD = 30  #: microseconds per call
LARGE = 16 * MIB  #: bytes from which two threads are meant to help fully
#: GB/s of one call on an array of so many bytes, lossless float32.
SMALL_SIZES = {4096: 0.25, 65536: 1.5, MIB: 4.5}
CALL_VALUES, CALL_US = 1024, 35
DIRECTIONS = ("encode", "decode")


def targets(results: Path) -> list[str]:
    """Return the table, from the files that are there."""
    table = [[target, result] for rows, file in PARTS if (results / file).exists() for target, result in rows(results)]
    return markdown(["target", "measured"], table)


def _sizes(results: Path) -> Iterator[tuple[str, str]]:
    outcomes = list(contests(results))
    smallest = sum(contest.margin < 0 for contest in outcomes)
    ties = sum(0 <= contest.margin <= TIE and contest.group == PARAMETERS for contest in outcomes)
    yield (
        f"smaller than every peer at any level up to a second per 100 MB, on every dump (on parameters a tie within "
        f"{TIE} % counts)",
        f"{smallest} of {len(outcomes)} dumps smaller, {ties} of parameters tied, "
        f"{len(outcomes) - smallest - ties} not",
    )


#: Of the speed of a copy, by mode and type of the data: encoding, decoding.
SPEEDS = {
    ("lossless", "fp32"): (0.35, 0.35),
    ("near-lossless", "fp32"): (0.35, 0.30),
    ("lossless", "bf16"): (0.18, 0.18),
}
OTHER_PATHS = {AVX2: "with AVX2", PORTABLE: "x86-64 as of 2009"}


def _speeds(results: Path) -> Iterator[tuple[str, str]]:
    rows = read_table(results / "speed.csv")[1]
    native = {(row["data"], row["mode"]): row for row in rows if row["path"] == "native"}
    for (mode, dtype), minimum in SPEEDS.items():
        outcomes = [row for row in native.values() if row["mode"] == mode and row["data"].endswith(dtype)]
        if not outcomes:  # measured on a CPU without AVX-512
            continue
        size = max(int(row["bytes"]) for row in outcomes) // MIB
        for direction, share in zip(DIRECTIONS, minimum, strict=True):
            shares = [float(row[f"{direction}_of_copy"]) for row in outcomes]
            yield (
                f"{direction}: {mode} {dtype} gradients at {share} of a copy's speed or more, one core, {size} MiB",
                f"{min(shares):.2f} to {max(shares):.2f}",
            )
    older = results / "avx2" / "speed.csv"  # of a CPU that has no AVX-512
    rows = read_table(older)[1] if older.exists() else rows
    for direction, column in zip(DIRECTIONS, (0, 1), strict=True):
        for path, name in OTHER_PATHS.items():
            rows_of_path = [row for row in rows if row["path"] == path]
            if not rows_of_path:
                continue
            parts = [
                float(row[f"{direction}_of_copy"]) / minimum[column]
                for (mode, dtype), minimum in SPEEDS.items()
                for row in rows_of_path
                if row["mode"] == mode and row["data"].endswith(dtype)
            ]
            yield (
                f"{direction}: a third of these without AVX-512, {name}, with the same bytes",
                f"{min(parts):.2f} to {max(parts):.2f} of these, "
                + ("the same bytes" if all(row["same_bytes"] == "yes" for row in rows) else "OTHER BYTES"),
            )


def _peers(results: Path) -> Iterator[tuple[str, str]]:
    rows = [row for row in read_table(results / "codec.csv")[1] if row["mode"] in ("raw", LOSSLESS)]
    for direction, times in zip(DIRECTIONS, (5, 1.3), strict=True):
        gains = []
        for data in dict.fromkeys(row["data"] for row in rows if row["data"].endswith("gradients fp32")):
            selected = {row["codec"]: row for row in rows if row["data"] == data}
            ours = selected.pop(OURS)
            near = [
                row
                for codec, row in selected.items()
                if codec != COPY
                and not codec.startswith(OURS)
                and int(row["compressed_bytes"]) <= 1.05 * int(ours["compressed_bytes"])
            ]
            if near:
                fastest = max(float(row[f"{direction}_GBps"]) for row in near)
                gains.append(float(ours[f"{direction}_GBps"]) / fastest)
        if gains:
            yield (
                f"{direction}: at least {times} times as fast as the fastest peer within 5 % of the size, fp32 "
                "gradients",
                f"{min(gains):.1f} to {max(gains):.1f} times",
            )


def _levels(results: Path) -> Iterator[tuple[str, str]]:
    choosing = {row["data"]: float(row["GBps"]) for row in read_table(results / "level-speed.csv")[1]}
    encoding = {
        row["data"]: float(row["encode_GBps"])
        for row in read_table(results / "codec.csv")[1]
        if row["codec"] == OURS and row["mode"] == NEAR_LOSSLESS
    }
    shares = [encoding[data] / speed for data, speed in choosing.items() if data.endswith("fp32") and data in encoding]
    if shares:
        yield (
            "choosing levels, tensor by tensor: less than a third of near-lossless encoding, fp32 gradients",
            f"{min(shares):.2f} to {max(shares):.2f} of it",
        )


def _scaling(results: Path) -> Iterator[tuple[str, str]]:
    rows = [row for row in read_table(results / "scaling.csv")[1] if row["memory"] == "existing"]
    for size, minimum in SMALL_SIZES.items():
        found = [
            float(row["encode_GBps"])
            for row in rows
            if (row["codec"], row["threads"], int(row["bytes"])) == (OURS, "1", size)
        ]
        if found:
            yield f"encode: lossless float32 of {size >> 10} KiB at {minimum} GB/s or more", f"{found[0]:.2f} GB/s"
    for direction in DIRECTIONS:
        one, two, apart = (
            {
                int(row["bytes"]): float(row[f"{direction}_GBps"])
                for row in rows
                if (row["codec"], row["threads"]) == kind and int(row["bytes"]) >= MIB
            }
            for kind in ((OURS, "1"), (OURS, "2"), (SIDE_BY_SIDE, "2"))
        )
        yield (
            f"{direction}: the rate holds from 1 MiB to 1 GiB",
            f"{min(one.values()):.2f} to {max(one.values()):.2f} GB/s",
        )
        large = [size for size in one if size >= LARGE] or [max(one)]
        gains, maximum = ([rate[size] / one[size] for size in large if size in rate] for rate in (two, apart))
        aside = f"; two calls at the same time {min(maximum):.2f} to {max(maximum):.2f}" if maximum else ""
        yield (
            f"{direction}: two threads at least 1.8 times one",
            f"{min(gains):.2f} to {max(gains):.2f} times from {LARGE // MIB} MiB on{aside}",
        )


def _calls(results: Path) -> Iterator[tuple[str, str]]:
    rows = read_table(results / "calls.csv")[1]
    for direction in DIRECTIONS:
        times = [float(row[f"{direction}_us"]) for row in rows if row["values"] == "1"]
        yield f"{direction}: a call costs less than {OVERHEAD} µs beside its values", f"{min(times):.1f} µs"
        times = [float(row[f"{direction}_us"]) for row in rows if row["values"] == str(CALL_VALUES)]
        if times:
            yield f"{direction}: {CALL_VALUES} values in {CALL_US} µs or less", f"{min(times):.1f} µs"


def _memory(results: Path) -> Iterator[tuple[str, str]]:
    for row in read_table(results / "memory.csv")[1]:
        if row["codec"] == OURS:
            encoded, extra = int(row["encoded_bytes"]), int(row["encode_extra_bytes"])
            share = 100 * int(row["decode_extra_bytes"]) / int(row["bytes"])
            yield "decode: extra memory under 10 % of the output and a constant", f"{share:.1f} %"
            yield (
                "encode: extra memory one buffer of the encoded size, and the same",
                f"{100 * extra / encoded:.0f} % of the encoded size",
            )
            yield (
                f"nothing leaks over {row['round_trips']} round trips",
                f"{int(row['growth_bytes']) / 1024:.0f} KiB more",
            )


#: Seconds in which a process is to be done, by case and cache.
START_LIMITS = {
    (startup.INSTALL, startup.EMPTY): 90,
    **{(name, startup.INSTALLED): 1.5 for name in startup.FIRST},
    (startup.COMPRESS, startup.INSTALLED): 1.5,
    (startup.HOOK, startup.INSTALLED): 5.0,
    (startup.COMPRESS, startup.WARM): 0.5,
    (startup.HELP, startup.WARM): 0.15,
}
#: By the cache of a row, what a process finds when it starts.
START_FROM = {
    startup.INSTALLED: "first use after pip install",
    startup.EMPTY: "nothing compiled yet",
    startup.WARM: "any later process",
}


def _startup(results: Path) -> Iterator[tuple[str, str]]:
    for row in read_table(results / "startup.csv")[1]:
        limit = START_LIMITS.get((row["case"], row["cache"]))
        if limit is not None and row["codec"] == startup.OURS:
            yield (
                f"start: {row['case']}, {START_FROM[row['cache']]}: under {limit} s in all",
                f"{float(row['seconds']):.2f} s, of which {float(row['cpu_seconds']):.2f} s of CPU time",
            )


MOST_TIMES = 1.5  #: the time of one array of the same bytes, for many small tensors


def _small_tensors(results: Path) -> Iterator[tuple[str, str]]:
    for row in read_table(results / "small_tensors.csv")[1]:
        if row["through"] != small_tensors.ENCODE:
            yield (
                f"{row['through']} of {row['tensors']} tensors of 1 to 16 Ki values: within {MOST_TIMES} times one "
                "array of the same bytes, CPU time",
                f"{float(row['times']):.1f} times",
            )


def _new_memory(results: Path) -> Iterator[tuple[str, str]]:
    rows = [
        row
        for row in read_table(results / "scaling.csv")[1]
        if (row["codec"], row["threads"]) == (OURS, "1") and int(row["bytes"]) >= 64 * MIB
    ]
    rates = {(row["bytes"], row["memory"]): float(row["decode_GBps"]) for row in rows}
    shares = [rate / rates[size, "existing"] for (size, memory), rate in rates.items() if memory == "new"]
    if shares:
        yield (
            "decode: into a new array within 15 % of existing memory, 64 MiB and more (else what the system takes "
            "to clear pages)",
            f"{min(shares):.2f} to {max(shares):.2f} of it",
        )


PARTS: tuple[tuple[Callable[[Path], Iterator[tuple[str, str]]], str], ...] = (
    (_sizes, "levels.csv"),
    (_speeds, "speed.csv"),
    (_peers, "codec.csv"),
    (_levels, "level-speed.csv"),
    (_scaling, "scaling.csv"),
    (_calls, "calls.csv"),
    (_memory, "memory.csv"),
    (_startup, "startup.csv"),
    (_small_tensors, "small_tensors.csv"),
    (_new_memory, "scaling.csv"),
)
