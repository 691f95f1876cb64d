"""Puts measured numbers into README.md and pages of docs/, from the files that demo, benchmarks and tests write.

    python -m bench.report [--demo gcodec-demo] [--check]

With ``--demo`` the demo's tables are taken over into ``bench/results/`` first: ``demo.csv``, ``demo-updates.csv``.
Each page has marked places, ``<!-- begin NAME -->`` to ``<!-- end NAME -->``; what stands between is replaced. A place
whose CSV file is missing is left as it is. ``--check`` only tells whether anything would change.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import array_tables, codec_tables, contests, costs, front_page, gpu_crossover, sections, targets
from bench.cluster import drops, fsdp, layerwise, minilm_steps, scaling
from bench.cluster import tables as cluster
from bench.experiments import accuracy, gcomp, gcomp_drops, gradzip, gravac_bits, gravac_tables, outer
from bench.experiments.lgreco import sections as lgreco
from bench.experiments.minilm import tables as minilm
from bench.markdown import filled, markdown, rounded, signed, source
from gcodec.benchmark.csv_tables import read_table
from gcodec.benchmark.measure import COPY, OURS
from gcodec.benchmark.settings import FIXED_BITS, LITERAL, LOSSLESS, NEAR_LOSSLESS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
TAKEN_OVER = {"results.csv": "demo.csv", "updates.csv": "demo-updates.csv"}
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "benchmarks",
            "costs",
            "experiments-gcomp",
            "experiments-gravac",
            "experiments-lgreco",
            "experiments-gradzip",
            "reliability",
            "checkpoints",
            "compatibility",
            "gpu",
            "tensors",
            "weight-sync",
            "when-not",
            "zarr",
        )
    ),
    *sorted((ROOT / "docs" / "training").glob("*.md")),
    *sorted((ROOT / "docs" / "integrations").glob("*.md")),
    *sorted((ROOT / "docs" / "benchmarks").glob("*.md")),
    *sorted((ROOT / "docs" / "contributing").glob("*.md")),
)
#: Integrations of ``bench.integrations``, whose pages have a table each.
INTEGRATIONS = ("zarr", "torch-checkpoint", "lightning", "huggingface")
SPEED = "transformer fp32"  #: the demo's section whose speeds README shows
FIXED = "mantissa bits"  #: how the names of fixed-bits modes end
SHOWN_BITS = {"fp32": FIXED_BITS["float32"], "bf16": FIXED_BITS["bfloat16"]}
HEADINGS = {"cnn": "CNN", "transformer": "transformer", "checkpoint": "checkpoint"}
MODES = (LOSSLESS, NEAR_LOSSLESS, FIXED)  #: kinds of modes in the order of README's rows
LABELS = {FIXED: ", ".join(f"{bits} ({name})" for name, bits in SHOWN_BITS.items()) + " mantissa bits"}
Row = dict[str, str]


def demo_table(results: Path) -> list[str]:
    """Return the demo's table: percent of the original by codec and data, and speeds on one of the sections."""
    comments, rows = read_table(results / "demo.csv")
    rows = [row for row in rows if row["codec"] != COPY]
    sections = list(dict.fromkeys(row["data"] for row in rows))
    percent = {(row["data"], row["mode"], row["codec"]): float(row["percent"]) for row in rows}
    speeds = {(row["mode"], row["codec"]): row for row in rows if row["data"] == SPEED}
    keys = sorted({(row["mode"], row["codec"]): None for row in rows}, key=lambda key: MODES.index(_kind(key[0])))
    keys = [key for number, key in enumerate(keys) if _kind(key[0]) != FIXED or _kind(keys[number - 1][0]) != FIXED]
    minimum = {
        data: min(p for (d, mode, _), p in percent.items() if d == data and mode == LOSSLESS) for data in sections
    }
    table = []
    for mode, codec in keys:
        if codec.startswith(f"{OURS},"):
            continue
        cells = [_percent(_of_mode(percent, data, mode, codec), mode == LOSSLESS, minimum[data]) for data in sections]
        speed = speeds.get((mode, codec), {})
        ours = f"**{codec}**" if mode == LOSSLESS else f"{codec}, {LABELS.get(_kind(mode), mode)}"
        label = ours if codec == OURS else codec
        table.append([label, *cells, rounded(speed.get("encode_GBps", "")), rounded(speed.get("decode_GBps", ""))])
    columns = ["% of original size", *(f">{_heading(data)}" for data in sections), ">encode GB/s", ">decode GB/s"]
    return [*markdown(columns, table), "", f"Measured on {source(comments)}"]


def _kind(mode: str) -> str:
    """Return the entry of ``MODES`` that a mode belongs to."""
    return FIXED if mode.endswith(FIXED) else NEAR_LOSSLESS if mode.startswith(NEAR_LOSSLESS) else LOSSLESS


def _of_mode(percent: dict[tuple[str, str, str], float], data: str, mode: str, codec: str) -> float | None:
    """Return a size in percent; the fixed-bits modes of the types differ in the number of bits and share a row."""
    if _kind(mode) == FIXED:
        results = (p for (d, m, c), p in percent.items() if (d, c) == (data, codec) and m.endswith(FIXED))
        return next(results, None)
    return percent.get((data, mode, codec))


def _percent(value: float | None, compared: bool, least: float) -> str:
    if value is None:
        return ""
    return f"**{value:.1f}**" if compared and value < least + 0.05 else f"{value:.1f}"


def _heading(data: str) -> str:
    model, _, rest = data.partition(" ")
    return f"{HEADINGS.get(model, model)} {rest}"


def updates(results: Path) -> list[str]:
    """Return what near-lossless gradients did to the parameters, in a sentence per model."""
    _, rows = read_table(results / "demo-updates.csv")
    outcomes: dict[str, dict[str, int]] = {}
    for row in rows:
        outcomes.setdefault(row["model"], {})[row["ulps"]] = int(row["parameters"])
    lines = []
    for model, counts in outcomes.items():
        total = sum(counts.values())
        share = {ulps: 100 * count / total for ulps, count in counts.items()}
        beyond = 100 - share["0"] - share["1"]
        lines.append(
            f"* {HEADINGS.get(model, model)}: {share['0']:.1f} % of the parameters bit for bit as with exact "
            f"gradients, {share['1']:.1f} % one ulp off, {beyond:.4f} % more."
        )
    return lines


def bound_table(results: Path) -> list[str]:
    """Return gcodec's overhead over the bound and its saving against the paper, on every dump's gradients."""
    comments, rows = read_table(results / "sizes.csv")
    ours = {
        (row["data"], row["dtype"], row["mode"]): row
        for row in rows
        if row["codec"] == OURS and row["group"] == "gradients" and row["dtype"] == "float32"
    }
    table = []
    for data in dict.fromkeys(data for data, _, _ in ours):
        exact, near = ours[data, "float32", LOSSLESS], ours[data, "float32", NEAR_LOSSLESS]
        literal = ours.get((data, "float32", LITERAL))
        table.append(
            [
                data.removesuffix(" gradients"),
                exact["percent"],
                signed(exact["overhead_percent"]),
                near["percent"],
                signed(near["overhead_percent"]),
                literal["percent"] if literal else "",
                f"{100 * float(near['paper_bytes']) / float(near['original_bytes']):.3f}",
                near["saving_percent"],
            ]
        )
    columns = [
        "float32 gradients",
        ">lossless %",
        ">against the bound, %",
        ">near-lossless %",
        ">against the bound, %",
        ">GComp, literal, in our format %",
        ">paper's layout %",
        ">saving, %",
    ]
    return [*markdown(columns, table), "", f"Sizes are exact; from {source(comments)}"]


def peers_ahead(results: Path) -> list[str]:
    """Return every tensor on which a peer is smaller than lossless gcodec by more than half a percent of the
    original."""
    comments, rows = read_table(results / "tensors.csv")
    outcomes: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["mode"] == LOSSLESS:
            outcomes.setdefault((row["model"], row["step"]), []).append(row)
    table, ahead = [], 0
    for (model, step), sizes in outcomes.items():
        ours = next(float(row["percent"]) for row in sizes if row["codec"] == OURS)
        best = min(sizes, key=lambda row: float(row["percent"]))
        if float(best["percent"]) < ours - 0.5:
            table.append([model, step, f"{ours:.1f}", best["codec"], f"{float(best['percent']):.1f}"])
        ahead += best["codec"] == OURS
    columns = ["tensor", ">step", ">gcodec %", "smallest peer", ">%"]
    found = (
        f"gcodec is the smallest on {ahead} of {len(outcomes)} tensors. A peer is smaller by more than half a percent"
    )
    if not table:
        return [f"{found} of the original on none. From {source(comments)}"]
    return [f"{found} of the original on these:", "", *markdown(columns, table), "", f"From {source(comments)}"]


def corruption_table(results: Path) -> list[str]:
    """Return the table of what each format makes of damage."""
    comments, rows = read_table(results / "corruption.csv")
    outcomes = ("detected", "silent", "harmless", "crashed", "hung")
    table = [[row["codec"], row["damage"], row["trials"], *(row[outcome] for outcome in outcomes)] for row in rows]
    columns = ["codec", "damage", ">trials", *(f">{outcome}" for outcome in outcomes)]
    return [*markdown(columns, table), "", f"From {source(comments)}"]


def reliability_table(results: Path) -> list[str]:
    """Return the table of what was tried, how often, and what held, and the sum of it."""
    rows = sorted(json.loads((results / "reliability.json").read_text()), key=lambda row: row["what"])
    table = [[row["what"], f"{row['n_cases']:,}", f"{row['n_failures']:,}", row["result"]] for row in rows]
    n_cases, n_failures = (sum(row[key] for row in rows) for key in ("n_cases", "n_failures"))
    return [
        *markdown(["what was tried", ">cases", ">failures", "what held"], table),
        "",
        f"{n_cases:,} cases in all; {n_failures:,} failed.",
    ]


#: Name of a marked place to what fills it, and the file in bench/results that this reads.
PLACES: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "front-table": (front_page.front_table, "cluster-allreduce.csv"),  # it reads three more
    "overview-table": (front_page.overview_table, "codec.csv"),
    "bf16-table": (front_page.bf16_table, "cluster-allreduce.csv"),
    "demo-table": (demo_table, "demo.csv"),
    "updates": (updates, "demo-updates.csv"),
    "codec-table": (codec_tables.codec_table, "codec.csv"),
    "bound-table": (bound_table, "sizes.csv"),
    "peers-ahead": (peers_ahead, "tensors.csv"),
    "corruption-table": (corruption_table, "corruption.csv"),
    "reliability-table": (reliability_table, "reliability.json"),
    "targets": (targets.targets, "levels.csv"),
    "levels-summary": (sections.levels_summary, "levels.csv"),
    "levels-ahead": (sections.levels_ahead, "levels.csv"),
    "stages-table": (sections.stages_table, "stages.csv"),
    "entropy-table": (sections.entropy_table, "entropy.csv"),
    "features-table": (sections.features_table, "features.csv"),
    "speed-table": (sections.speed_table, "speed.csv"),
    "speed-avx2-table": (lambda results: sections.speed_table(results / "avx2"), "avx2/speed.csv"),
    "overview-avx2-table": (lambda results: front_page.overview_table(results / "avx2"), "avx2/codec.csv"),
    "scaling-table": (sections.scaling_table, "scaling.csv"),
    "calls-table": (sections.calls_table, "calls.csv"),
    "memory-table": (sections.memory_table, "memory.csv"),
    "prediction-table": (sections.prediction_table, "prediction.csv"),
    "checkpoints-table": (sections.checkpoints_table, "checkpoints.csv"),
    **{
        f"{name}-table": (partial(sections.integration_table, integration=name), "integrations.csv")
        for name in INTEGRATIONS
    },
    "quantized-table": (sections.quantized_table, "quantized.csv"),
    "public-models-table": (sections.public_models_table, "public_models.csv"),
    "files-table": (sections.files_table, "files.csv"),
    "file-kinds-table": (partial(sections.files_table, file="file_kinds.csv"), "file_kinds.csv"),
    "weight-sync-table": (sections.weight_sync_table, "weight-sync.csv"),
    "differences-table": (sections.differences_table, "differences.csv"),
    "differences-parts": (sections.differences_parts, "differences.csv"),
    "differences-speed": (sections.differences_speed, "differences.csv"),
    **array_tables.PLACES,
    **costs.PLACES,
    "sparse-values-table": (sections.sparse_values_table, "sparse_values.csv"),
    "weight-sync-links": (sections.weight_sync_links, "weight-sync.csv"),
    "lane-table": (sections.lane_table, "lane.csv"),
    "gpu-host-table": (sections.gpu_host_table, "gpu-host.csv"),
    "gpu-instructions-table": (sections.gpu_instructions_table, "gpu-instructions.csv"),
    "gpu-crossover-table": (gpu_crossover.crossover_table, "gpu-instructions.csv"),
    "versions-table": (sections.versions_table, "versions.csv"),
    "levels-speed": (sections.level_speed, "level-speed.csv"),
    "compressors-table": (contests.compressors_table, "compressors.csv"),
    "controllers-table": (contests.controllers_table, "controllers.csv"),
    cluster.PLACE: (cluster.section, cluster.MAIN_FILE),
    **accuracy.PLACES,
    **outer.PLACES,
    **gcomp.PLACES,
    **gcomp_drops.PLACES,
    **gravac_tables.PLACES,
    **gravac_bits.PLACES,
    **gradzip.PLACES,
    **lgreco.PLACES,
    **minilm.PLACES,
    "lgreco-measured": (layerwise.table, layerwise.FILE),
    "gcomp-cluster-drops": (drops.table, drops.FILE),
    "minilm-steps": (minilm_steps.table, minilm_steps.FILE),
    "fsdp-table": (fsdp.table, fsdp.FILE),
    **scaling.PLACES,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; with ``--check`` 1 if a page is not up to date."""
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, help="the folder that `gcodec demo` wrote")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    for source_name, name in TAKEN_OVER.items() if options.demo else ():
        shutil.copyfile(options.demo / source_name, RESULTS / name)
    stale = 0
    places = {name: make(RESULTS) for name, (make, file) in PLACES.items() if (RESULTS / file).exists()}
    for path in PAGES:
        page = old = path.read_text()
        for name, lines in places.items():
            page = filled(page, name, lines)
        stale += page != old
        if not options.check:
            path.write_text(page)
        print(f"{path.name}: {'as it was' if page == old else 'out of date' if options.check else 'updated'}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
