"""The tables of docs/benchmarks that are made of a CSV file each: ``bench.report`` puts them in their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from bench.data import DTYPES
from bench.markdown import markdown, records, rounded, source
from bench.method_rows import APART
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import COPY, OURS

WORTH = 0.3  #: percent of a size; a feature that saves less everywhere is not worth its code
TIE = 0.5  #: percent of a size; closer is called a tie
MIB = 1 << 20
BATCH, STEP = "16", "20"  #: of the prediction tables
SHOWN_STEPS = ("1", "20", "100", "600")  #: of those that they go through
#: Stages of both directions in the order of tables and bars (bench/stages.py); others come last.
ORDER = (
    "sample",
    "codebooks",
    "rounding",
    "references, symbols",
    "planes",
    "symbol coding",
    "symbol decoding",
    "counting",
    "checksum",
    "Python",
)
Row = dict[str, str]


@dataclass(frozen=True)
class Contest:
    """One dump: what gcodec made of it, and the smallest among all levels of the peers that qualify."""

    model: str
    step: int
    group: str
    dtype: str
    original: int
    ours: int
    best: int
    codec: str

    @property
    def margin(self) -> float:
        """The percentage by which gcodec is larger than the best peer; negative: smaller."""
        return 100 * (self.ours / self.best - 1)


def contests(results: Path) -> Iterator[Contest]:
    """Yield every dump of ``levels.csv`` on which a peer qualifies."""
    _, rows = read_table(results / "levels.csv")
    dumps: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        dumps.setdefault((row["model"], row["step"], row["group"], row["dtype"]), []).append(row)
    for (model, step, group, dtype), result in dumps.items():
        ours = next(row for row in result if row["codec"] == OURS)
        peers = [row for row in result if row["codec"] != OURS and row["qualifies"] == "1"]
        if peers:
            best = min(peers, key=lambda row: int(row["compressed_bytes"]))
            yield Contest(
                model,
                int(step),
                group,
                DTYPES[dtype],
                int(ours["original_bytes"]),
                int(ours["compressed_bytes"]),
                int(best["compressed_bytes"]),
                best["codec"],
            )


def levels_summary(results: Path) -> list[str]:
    """Return on how many dumps gcodec is the smallest, by model, kind and type."""
    comments, _ = read_table(results / "levels.csv")
    kinds: dict[tuple[str, str, str], list[Contest]] = {}
    for contest in contests(results):
        kinds.setdefault((contest.model, contest.group, contest.dtype), []).append(contest)
    table = []
    for (model, group, dtype), result in kinds.items():
        margins = [contest.margin for contest in result]
        ours, best = sum(contest.ours for contest in result), sum(contest.best for contest in result)
        table.append(
            {
                "model": model,
                "kind": group,
                "type": dtype,
                ">dumps": str(len(result)),
                ">gcodec smallest": str(sum(margin < 0 for margin in margins)),
                f">tie within {TIE} %": str(sum(0 <= margin <= TIE for margin in margins)),
                ">a peer smaller": str(sum(margin > TIE for margin in margins)),
                ">all dumps, %": f"{100 * (ours / best - 1):+.2f}",
                ">worst dump, %": f"{max(margins):+.2f}",
            }
        )
    return [
        *records(table),
        "",
        "Percentages: by how much gcodec is larger (+) or smaller (-) than the best qualifying level of any peer, "
        "chosen anew for each dump.",
        "",
        f"Sizes are exact; from {source(comments)}",
    ]


def levels_ahead(results: Path) -> list[str]:
    """Return on how many dumps a peer's level is smaller, and by how much at most, in a sentence."""
    outcomes = list(contests(results))
    ahead = [contest for contest in outcomes if contest.margin > 0]
    if not ahead:
        return [f"No peer is smaller on any of {len(outcomes)} dumps."]
    groups = dict.fromkeys(contest.group for contest in ahead)
    return [
        f"A peer is smaller on {len(ahead)} of {len(outcomes)} dumps, all of {' and '.join(groups)}, by "
        f"{max(contest.margin for contest in ahead):.2f} % at most."
    ]


def stages_table(results: Path) -> list[str]:
    """Nanoseconds per value of each stage, a table for each direction."""
    comments, rows = read_table(results / "stages.csv")
    lines = ["![Stages of encoding and decoding](../images/stages.png)", ""]
    for direction in dict.fromkeys(row["direction"] for row in rows):
        selected = [row for row in rows if row["direction"] == direction]
        ends, stages = ("whole", "floor"), stages_in_order(selected)
        times = {(row["data"], row["mode"], row["stage"]): float(row["ns_per_value"]) for row in selected}
        table = []
        for data, mode in dict.fromkeys((row["data"], row["mode"]) for row in selected):
            whole, floor = (times[data, mode, end] for end in ends)
            largest = max(stages, key=lambda stage: times.get((data, mode, stage), 0.0))
            cells = [f"{times[data, mode, stage]:.3f}" if (data, mode, stage) in times else "" for stage in stages]
            cells[stages.index(largest)] = f"**{cells[stages.index(largest)]}**"
            table.append([f"{data} {mode}", *cells, f"{whole:.3f}", f"{floor:.3f}", f"{whole / floor:.1f}"])
        columns = [direction, *(f">{stage}" for stage in stages), ">whole", ">floor", ">whole / floor"]
        lines += [*markdown(columns, table), ""]
    return [*lines, f"Nanoseconds per value, one thread, the largest stage in bold; from {source(comments)}"]


def entropy_table(results: Path) -> list[str]:
    """Return the table of the symbol stage beside other Huffman coders, on the same heads."""
    comments, rows = read_table(results / "entropy.csv")
    columns = sorted({(row["coder"], row["cpu"]): None for row in rows}, key=lambda column: column[0] != OURS)
    groups: dict[str, dict[tuple[str, str], Row]] = {}
    for row in rows:
        groups.setdefault(row["data"], {})[row["coder"], row["cpu"]] = row
    lines: list[str] = []
    for direction in ("encode", "decode"):
        table = [
            [data, *(rounded(found[column][f"{direction}_gheads_per_s"]) for column in columns)]
            for data, found in groups.items()
        ]
        lines += [*markdown([direction, *(">" + " ".join(column).strip() for column in columns)], table), ""]
    apart = [coder for coder, cpu in columns if not cpu]
    table = [
        [
            data,
            *(
                rounded(next(row["bits_per_head"] for (coder, _), row in found.items() if coder == name))
                for name in (OURS, *apart)
            ),
        ]
        for data, found in groups.items()
    ]
    lines += [*markdown(["bits a head", f">{OURS}", *(f">{name}" for name in apart)], table), ""]
    return [*lines, f"10⁹ heads a second, one thread; from {source(comments)}"]


def features_table(results: Path) -> list[str]:
    """Return what each planning feature is worth: by how much sizes grow without it, in how many groups of arrays."""
    comments, rows = read_table(results / "features.csv")
    table = []
    for feature in dict.fromkeys(row["feature"] for row in rows):
        found = [row for row in rows if row["feature"] == feature]
        most = max(found, key=lambda row: float(row["growth_percent"]))
        least = min(float(row["growth_percent"]) for row in found)
        n_worth = sum(float(row["growth_percent"]) >= WORTH for row in found)
        where = f"{most['group']}, {'in one frame' if most['frames'] == 'one' else 'a frame for each tensor'}"
        growth = f"{float(most['growth_percent']):.2f}"
        table.append([feature, growth, where, f"{least:+.2f}", f"{n_worth} of {len(found)}"])
    columns = ["feature", ">most, %", "where", ">least, %", f">at least {WORTH} %"]
    return [
        *markdown(columns, table),
        "",
        "By how much frames grow without the feature (`smallest`, which is on request only: by how much more they "
        f"take without it). Sizes are exact; from {source(comments)}",
    ]


def quantized_table(results: Path) -> list[str]:
    """Return what files of quantized weights are compressed to, and how fast, by type and method."""
    comments, rows = read_table(results / "quantized.csv")
    names = list(dict.fromkeys(row["method"] for row in rows))
    table = []
    for file, kind in dict.fromkeys((row["file"], row["type"]) for row in rows):
        found = {row["method"]: row for row in rows if (row["file"], row["type"]) == (file, kind)}
        least = min(float(row["percent"]) for row in found.values())
        percents = [found[name]["percent"] for name in names]
        speeds = [f"{found[name]['compress_mb_per_s']}, {found[name]['restore_mb_per_s']}" for name in names]
        size = f"{int(found[names[0]]['bytes']) / 1e6:.0f}"
        table.append([file, kind, size, *(f"**{p}**" if float(p) == least else p for p in percents), *speeds])
    columns = ["file", "type", ">MB", *(f">{name}, %" for name in names), *(f">{name}, MB/s" for name in names)]
    return [
        *markdown(columns, table),
        "",
        "Share of the file, and the speeds of compressing and restoring it with one thread, files included; from "
        f"{source(comments)}",
    ]


def public_models_table(results: Path) -> list[str]:
    """Return what files of published models are compressed to, by method."""
    comments, rows = read_table(results / "public_models.csv")
    names = list(dict.fromkeys(row["method"] for row in rows))
    table = []
    for model, kind in dict.fromkeys((row["model"], row["type"]) for row in rows):
        found = {row["method"]: row for row in rows if (row["model"], row["type"]) == (model, kind)}
        least = min(float(row["percent"]) for row in found.values())
        percents = [found[name]["percent"] if name in found else "" for name in names]
        size = f"{int(found[names[0]]['file_bytes']) / 1e6:.1f}"
        table.append([model, kind, size, *(f"**{p}**" if p and float(p) == least else p for p in percents)])
    packages = ", ".join(f"`{package}`" for package in dict.fromkeys(row["package"] for row in rows))
    return [
        *markdown(["model", "type", ">MB", *(f">{name}, %" for name in names)], table),
        "",
        f"Share of the file. From the packages {packages}; {source(comments)}",
    ]


def stages_in_order(rows: list[Row]) -> list[str]:
    """Return the stages of rows of ``stages.csv``, without the whole and the floor."""
    names = {row["stage"] for row in rows} - {"whole", "floor"}
    return sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def speed_table(results: Path) -> list[str]:
    """Speeds beside that of a copy, of every path."""
    comments, rows = read_table(results / "speed.csv")
    paths = list(dict.fromkeys(row["path"] for row in rows))
    by_path = {(row["data"], row["mode"], row["path"]): row for row in rows}
    table = []
    for data, mode in dict.fromkeys((row["data"], row["mode"]) for row in rows):
        first, *_ = selected = [by_path[data, mode, path] for path in paths]
        percent = f"{100 * int(first['compressed_bytes']) / int(first['bytes']):.1f}"
        speeds = (
            f"{rounded(row[f'{direction}_GBps'])} ({rounded(row[f'{direction}_of_copy'])})"
            for row in selected
            for direction in ("encode", "decode")
        )
        table.append([f"{data} {mode}", percent, *speeds])
    names = [f">{path}, {direction}" for path in paths for direction in ("encode", "decode")]
    same = "the same bytes" if all(row["same_bytes"] == "yes" for row in rows) else "different bytes"
    return [
        *markdown(["data", ">%", *names], table),
        "",
        f"GB/s, and in brackets the speed divided by a copy's. All paths of a row make {same}. From {source(comments)}",
    ]


def scaling_table(results: Path) -> list[str]:
    """Rates by size."""
    comments, rows = read_table(results / "scaling.csv")
    rates = {(int(row["bytes"]), row["codec"], row["threads"], row["memory"]): row for row in rows}
    table = []
    for size in dict.fromkeys(int(row["bytes"]) for row in rows):
        cells = [_size(size)]
        for direction in ("encode", "decode"):
            one, two, new = (
                float(rates[size, OURS, threads, memory][f"{direction}_GBps"])
                for threads, memory in (("1", "existing"), ("2", "existing"), ("1", "new"))
            )
            cells += [f"{one:.2f}", f"{two:.2f}", f"{two / one:.2f}", f"{new:.2f}"]
        table.append([*cells, rounded(rates[size, COPY, "1", "existing"]["encode_GBps"])])
    columns = [
        ">array",
        *(
            f">{direction} {what}"
            for direction in ("encode", "decode")
            for what in ("1 thread", "2 threads", "2 / 1", "1 thread, new arrays")
        ),
        ">copy",
    ]
    picture = "![Rate against the size of the array](../images/scaling.png)"
    return [picture, "", *markdown(columns, table), "", f"GB/s, float32 gradients, lossless; from {source(comments)}"]


def _size(n_bytes: int) -> str:
    units = ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))
    unit, name = next((unit, name) for unit, name in units if n_bytes >= unit)
    return f"{n_bytes // unit} {name}"


def calls_table(results: Path) -> list[str]:
    """Microseconds of small calls."""
    comments, rows = read_table(results / "calls.csv")
    table = [[row["values"], row["memory"], row["encode_us"], row["decode_us"]] for row in rows]
    columns = [">values", "results go to memory that is", ">encode, µs", ">decode, µs"]
    return [*markdown(columns, table), "", f"From {source(comments)}"]


def memory_table(results: Path) -> list[str]:
    """Return the tables of peak memory, and of what stays."""
    comments, rows = read_table(results / "memory.csv")
    table = []
    for row in rows:
        size, encoded = int(row["bytes"]), int(row["encoded_bytes"])
        encode, decode = (int(row[f"{direction}_extra_bytes"]) for direction in ("encode", "decode"))
        table.append(
            {
                "codec": row["codec"],
                ">encoded, MiB": f"{encoded / MIB:.1f}",
                ">encode: extra, MiB": f"{encode / MIB:.1f}",
                ">% of encoded": f"{100 * encode / encoded:.1f}",
                ">decode: extra, MiB": f"{decode / MIB:.1f}",
                ">% of decoded": f"{100 * decode / size:.1f}",
                f">growth over {rows[0]['round_trips']} round trips, KiB": f"{int(row['growth_bytes']) / 1024:.0f}",
            }
        )
    return [
        *records(table),
        "",
        f"Of {int(rows[0]['bytes']) // MIB} MiB of float32; growth on 1 MiB; from {source(comments)}",
    ]


def prediction_table(results: Path) -> list[str]:
    """Return the tables of vocabulary layers by step, then by batch size."""
    comments, rows = read_table(results / "prediction.csv")
    codecs = list(dict.fromkeys(row["codec"] for row in rows))
    lines: list[str] = []
    for varied, fixed, value in (("step", "batch", BATCH), ("batch", "step", STEP)):
        chosen = value if any(row[fixed] == value for row in rows) else rows[-1][fixed]
        outcomes: dict[tuple[str, str, str], dict[str, str]] = {}
        for row in rows:
            if row[fixed] == chosen and (varied == "batch" or row["step"] in SHOWN_STEPS):
                percent = 100 * int(row["compressed_bytes"]) / int(row["original_bytes"])
                outcomes.setdefault((row["model"], row["layer"], row[varied]), {})[row["codec"]] = f"{percent:.2f}"
        table = [
            [f"{model} {layer}", at, *(sizes.get(codec, "") for codec in codecs)]
            for (model, layer, at), sizes in outcomes.items()
        ]
        lines += [
            f"{fixed} {chosen}:",
            "",
            *markdown(["gradient of", f">{varied}", *(f">{codec} %" for codec in codecs)], table),
            "",
        ]
    return [*lines, f"Sizes are exact; from {source(comments)}"]


def checkpoints_table(results: Path) -> list[str]:
    """Return the table of checkpoints: each run by method, then the parts of their states."""
    comments, rows = read_table(results / "checkpoints.csv")
    whole = [row for row in rows if row["part"] == "all"]
    table = [
        [
            row["run"],
            row["learning_rate"],
            row["method"],
            row["percent"],
            row["save_seconds"],
            row["load_seconds"],
            row["load_last_seconds"],
        ]
        for row in whole
    ]
    columns = ["run", ">learning rate", "method", ">% of the state", ">save, s", ">load, s", ">load the last, s"]
    parts: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        if row["part"] != "all":
            parts.setdefault((row["run"], row["part"]), {})[row["method"]] = row["percent"]
    methods = list(dict.fromkeys(method for percents in parts.values() for method in percents))
    split = [[run, part, *(percents.get(method, "") for method in methods)] for (run, part), percents in parts.items()]
    sizes = [int(row["state_bytes"]) / int(row["checkpoints"]) / 1e6 for row in whole]
    by_part = markdown(["run", "part", *(f">{method} %" for method in methods)], split)
    return [
        *markdown(columns, table),
        "",
        *by_part,
        "",
        f"{whole[0]['checkpoints']} checkpoints, {whole[0]['steps_between']} steps apart, of {min(sizes):.0f} to "
        f"{max(sizes):.0f} MB each; from {source(comments)}",
    ]


def integration_table(results: Path, integration: str, data: str = "data") -> list[str]:
    """Return the table of an integration: each of its inputs by method, the smallest in bold."""
    comments, rows = read_table(results / "integrations.csv")
    rows = [row for row in rows if row["integration"] == integration]
    best: dict[str, float] = {}
    for row in rows:
        best[row["data"]] = min(best.get(row["data"], 1e9), float(row["percent"]))
    table = [
        [
            row["data"],
            f"{int(row['original_bytes']) / 1e6:.1f}",
            row["method"],
            f"**{row['percent']}**" if float(row["percent"]) == best[row["data"]] else row["percent"],
            row["save_seconds"],
            row["load_seconds"],
        ]
        for row in rows
    ]
    columns = [data, ">MB", "method", ">% of the original", ">save, s", ">load, s"]
    return [*markdown(columns, table), "", f"From {source(comments)}"]


def files_table(results: Path, file: str = "files.csv") -> list[str]:
    """Return a table of methods by file: size, and seconds to compress and to restore."""
    comments, rows = read_table(results / file)
    files = {name: list(group) for name, group in groupby(rows, key=itemgetter("file"))}
    best = {name: min(int(row["stored_bytes"]) for row in group) for name, group in files.items()}
    table = []
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for name, group in files.items():
            row = next((row for row in group if row["method"] == method), None)
            if row is None:
                cells.append("")
                continue
            percent = f"**{row['percent']}**" if int(row["stored_bytes"]) == best[name] else row["percent"]
            cells.append(f"{percent} ({rounded(row['compress_seconds'])} / {rounded(row['restore_seconds'])})")
        table.append([method, *cells])
    titles = (f">{name}, {g[0]['type']}, {int(g[0]['file_bytes']) / 1e6:.0f} MB" for name, g in files.items())
    return [
        *markdown(["method", *titles], table),
        "",
        "Percent of the file, the smallest in bold, and in brackets the seconds to compress and to restore. "
        f"[{file}](../../bench/results/{file}) also has CPU seconds. Measured on {source(comments)}",
    ]


def weight_sync_table(results: Path) -> list[str]:
    """Return the table of weight sync: what changes, and what versions take."""
    comments, rows = read_table(results / "weight-sync.csv")
    table = [
        {
            "weights": row["weights"],
            "type": row["type"],
            ">learning rate": row["learning_rate"],
            ">changed, %": row["changed_percent"],
            ">difference, %": row["percent"],
            ">anchor, %": f"{100 * int(row['anchor_bytes']) / int(row['raw_bytes']):.1f}",
            ">publish, s": row["publish_seconds"],
            ">send, s": row["send_seconds"],
            ">apply, s": row["apply_seconds"],
        }
        for row in rows
    ]
    large = rows[-1]
    return [
        *records(table),
        "",
        f"The transformer has {int(rows[0]['values']) / 1e6:.1f} million weights, the large state "
        f"{int(large['values']) / 1e6:.0f} million, {int(large['raw_bytes']) / 1e9:.2f} GB, with a peak of "
        f"{int(large['peak_bytes']) / 1e9:.1f} GB for state, publisher, subscriber and messages in one process; "
        f"from {source(comments)}",
    ]


def differences_table(results: Path) -> list[str]:
    """Return the table of what differences take, by method."""
    comments, rows = read_table(results / "differences.csv")
    groups: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in rows:
        key = row["weights"], row["learning_rate"], row["steps"], row["changed_percent"]
        groups.setdefault(key, {})[row["method"]] = row
    names = [
        "gcodec",
        "gcodec, predicted blocks",
        "gaps as varints, values, zstd-3",
        "xor, zstd-3",
        "numpy: index and value",
    ]
    groups = {key: methods for key, methods in groups.items() if APART not in methods}
    table = [
        [
            *key,
            f"{100 * float(methods['gcodec']['bound_bytes']) / (2 * int(methods['gcodec']['values'])):.3f}",
            *(methods[name]["percent"] for name in names),
            methods["gcodec"]["of_bound"],
        ]
        for key, methods in groups.items()
    ]
    columns = [
        "weights",
        ">learning rate",
        ">steps",
        ">changed, %",
        ">bound, %",
        *(f">{name}, %" for name in names),
        ">gcodec / bound",
    ]
    return [*markdown(columns, table), "", f"Percent of the bfloat16 weights' bytes; from {source(comments)}"]


def differences_parts(results: Path) -> list[str]:
    """Return the table of arrays of which one part moved far: one frame, and a frame for each part."""
    comments, rows = read_table(results / "differences.csv")
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(row["weights"], {})[row["method"]] = row
    table = []
    for weights, methods in groups.items():
        if APART in methods:
            one, apart, predicted = methods["gcodec"], methods[APART], methods["gcodec, predicted blocks"]
            table.append(
                {
                    "array": weights,
                    ">one frame, %": one["percent"],
                    ">a frame for each part, %": apart["percent"],
                    ">without sparse blocks, %": predicted["percent"],
                    ">size / parts": f"{int(one['bytes']) / int(apart['bytes']):.3f}",
                    ">encode / parts": f"{float(one['encode_seconds']) / float(apart['encode_seconds']):.2f}",
                    ">decode / parts": f"{float(one['decode_seconds']) / float(apart['decode_seconds']):.2f}",
                }
            )
    return [*records(table), "", f"Percent of the bfloat16 values' bytes; from {source(comments)}"]


def differences_speed(results: Path) -> list[str]:
    """Return the table of how fast differences of a large array are made and applied."""
    comments, rows = read_table(results / "differences.csv")
    large = [row for row in rows if row["weights"] == "large array"]
    size = 2 * int(large[0]["values"])
    table = [
        [
            row["method"],
            row["percent"],
            *(f"{size / float(row[f'{way}_seconds']) / 1e9:.2f}" for way in ("encode", "decode")),
            row["encode_of_copy"],
            row["decode_of_copy"],
        ]
        for row in large
    ]
    columns = ["method", ">%", ">encode, GB/s", ">decode, GB/s", ">encode / copy", ">decode / copy"]
    return [
        *markdown(columns, table),
        "",
        f"{size / 1e6:.0f} MB of bfloat16, of which {large[0]['changed_percent']} % changed, on one core unless a "
        f"row says two threads; from {source(comments)}",
    ]


def sparse_values_table(results: Path) -> list[str]:
    """Return the table of what arrays that are zero in most places take, by method."""
    comments, rows = read_table(results / "sparse_values.csv")
    groups: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["array"], row["dtype"], row["nonzero_percent"]), {})[row["method"]] = row
    names = ["gcodec", "gcodec, no sparse blocks", "zstd-1", "zstd-3", "numpy: index and value"]
    table = [
        [*key, *(methods[name]["percent"] for name in names), methods["gcodec"]["of_bound"]]
        for key, methods in groups.items()
    ]
    columns = ["array", "type", ">not zero, %", *(f">{name}, %" for name in names), ">gcodec / order-0"]
    return [*markdown(columns, table), "", f"Percent of the array's bytes; from {source(comments)}"]


def lane_table(results: Path) -> list[str]:
    """Return where processor time of the lane goes."""
    comments, rows = read_table(results / "lane.csv")
    stages = ("lane", "codec", "encode", "decode", "sum", "wait", "rest")
    lines = [[row["mode"], rounded(row["ratio"]), *(rounded(row[f"{name}_ms"]) for name in stages)] for row in rows]
    columns = ["mode", ">lane over codec", *(f">{name}, ms" for name in stages)]
    return [*markdown(columns, lines), "", f"Processor time of a step; from {source(comments)}"]


def gpu_host_table(results: Path) -> list[str]:
    """Return the table of what the host does for calls on a CUDA device that does nothing."""
    comments, rows = read_table(results / "gpu-host.csv")
    asked = ("launches", "uploads", "upload_bytes", "allocations", "waits")
    table = [[row["what"], rounded(row["host_us"]), *(row[name] for name in asked)] for row in rows]
    columns = ["call", ">host µs", *(f">{name.replace('_', ' ')}" for name in asked)]
    return [*markdown(columns, table), "", f"From {source(comments)}"]


def gpu_instructions_table(results: Path) -> list[str]:
    """Return the table of what the machine code of kernels in CUDA C++ takes."""
    comments, rows = read_table(results / "gpu-instructions.csv")
    table = [
        {
            "kernel": f"`{row['kernel']}`",
            "for": row["architecture"],
            ">instructions per 32 values": row["per_32_values"],
            ">registers": row["registers"],
            ">shared bytes": row["shared_bytes"],
            ">spills": row["local_accesses"],
            ">occupancy": f"{row['occupancy_percent']} %",
            ">barriers per block": row["barriers"],
        }
        for row in rows
    ]
    compilers = " and ".join(dict.fromkeys(row["compiler"] for row in rows))
    return [*records(table), "", f"Compiled by {compilers}, not run; from {source(comments)}"]


def seconds_over_link(row: Row, rate: float, *, whole: bool) -> float:
    """Return the modeled seconds of a version: whole weights, or a difference, of which the work is counted, too.

    Args:
        row: A row of ``weight-sync.csv``.
        rate: Of the link, in 1e9 bits per second.
        whole: Send all weights.
    """
    work = sum(float(row[f"{stage}_seconds"]) for stage in ("publish", "send", "apply"))
    return (0 if whole else work) + 8 * int(row["raw_bytes" if whole else "difference_bytes"]) / (rate * 1e9)


def weight_sync_links(results: Path) -> list[str]:
    """Return a model of a version's time over links: the large state whole and as a difference, from measured parts."""
    _, rows = read_table(results / "weight-sync.csv")
    large = rows[-1]
    table = []
    for rate in (0.1, 1, 10, 25, 100):
        whole, ours = (seconds_over_link(large, rate, whole=whole) for whole in (True, False))
        table.append([f"{rate:g} Gb/s", f"{whole:.2f}", f"{ours:.2f}", f"{whole / ours:.1f}"])
    return [
        *markdown(["link", ">whole, s", ">difference, s", ">times as fast"], table),
        "",
        "A model: bytes over the link's rate, and for the difference the seconds of the first table's row "
        "*large state*, one after the other, on two CPU cores.",
    ]


def level_speed(results: Path) -> list[str]:
    """Return how fast near-lossless levels are chosen."""
    comments, rows = read_table(results / "level-speed.csv")
    table = [[row["data"], row["GBps"], row["ns_per_value"]] for row in rows]
    return [*markdown(["gradients", ">GB/s", ">ns per value"], table), "", f"One core; from {source(comments)}"]


def versions_table(results: Path) -> list[str]:
    """Return on which Pythons, with which packages, tests ran, and how they ended."""
    _, rows = read_table(results / "versions.csv")
    table = []
    for row in rows:
        versions = [row[name] for name in ("numpy", "numba", "zstandard", "torch")]
        if row["n_passed"]:
            versions[-1] = versions[-1] or "none"
            failed = f", {row['n_failed']} failed" if row["n_failed"] != "0" else ""
            ran = f"{row['n_passed']} passed{failed}, {row['n_skipped']} skipped"
        else:
            ran = ""
        table.append([row["python"], row["packages"], *versions, ran, row["note"], row["date"]])
    columns = ["Python", "packages", "numpy", "numba", "zstandard", "torch", "tests", "note", "on"]
    return markdown(columns, table)
