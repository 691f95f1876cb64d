"""The sections of a page about a run: from its log, the dumps of its recorder, and its series of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..checkpoints import StepInfo
from ..errors import number_of
from .charts import Curve, line_chart
from .page import Cell, Page
from .run_log import SUMS, Points, RunLog
from .tensor_sections import bytes_text

STAGES = {
    "encode_seconds": "encode",
    "level_seconds": "levels (in encode)",
    "decode_seconds": "decode",
    "sum_seconds": "add",
    "wait_seconds": "wait for the network",
}
#: Curves of one chart at most; of more tensors, those whose setting changed most often are shown.
MAX_CURVES = 8


def add_run(page: Page, log: RunLog) -> None:
    """Add everything that a log of statistics tells."""
    page.tiles(_tiles(log))
    for note in log.notes[:5]:
        page.note(note)
    page.heading("What was sent")
    page.charts(_traffic(log))
    page.heading("Where time went")
    page.charts(_times(log))
    if charts := [chart for chart in _bypass(log) if chart]:
        page.heading("Bypass", "The hook compresses only where that makes steps faster; each trial measures it anew.")
        page.charts(charts)
    if charts := [chart for chart in _controller(log) if chart]:
        page.heading("Controller", "What the controller chose, step by step.")
        page.charts(charts)
    if log.settings:
        page.table(("tensor", "knob", ">first", ">last", ">least", ">most", ">changes"), _setting_rows(log))
    if others := [chart for chart in _others(log) if chart]:
        page.heading("What else was logged")
        page.charts(others)


def _tiles(log: RunLog) -> Iterator[tuple[str, str]]:
    yield "last step", f"{log.steps[-1]:.0f}"
    last = {name: points[-1][1] for name, points in log.numbers.items()}
    for name, label in (("sent_bytes", "sent by this rank"), ("dense_bytes", "a dense ring would have sent")):
        if name in last:
            yield label, bytes_text(last[name])
    if last.get("sent_bytes"):
        yield "ratio", f"{last.get('dense_bytes', 0) / last['sent_bytes']:.3f}"
    if "bits_per_symbol" in last:
        yield "bits per exponent, last", f"{last['bits_per_symbol']:.2f}"


def _traffic(log: RunLog) -> Iterator[str]:
    ratio = log.quotient("dense_bytes", "sent_bytes")
    yield line_chart(
        "Ratio",
        [Curve("ratio", ratio)],
        "step",
        "Bytes of a dense ring all-reduce over those sent, since the line before.",
    )
    bits = [
        Curve("bits", log.numbers.get("bits_per_symbol", [])),
        Curve("entropy", log.numbers.get("entropy_per_symbol", [])),
    ]
    yield line_chart("Bits per exponent", bits, "step", "What a symbol took, beside the entropy of the symbols.")
    sent = [(step, value / 1e6) for step, value in log.gains("sent_bytes")]
    yield line_chart("Megabytes sent", [Curve("sent", sent)], "step", "Since the line before, by this rank.")
    unsuited = [Curve("frames", log.gains("own_codebooks"))]
    yield line_chart(
        "Frames with their own codebook",
        [curve for curve in unsuited if any(n for _, n in curve.points)],
        "step",
        "Since the line before: frames that the shared codebooks did not suit.",
    )
    floats = [
        Curve("floats", log.numbers.get("compressor/float_ratio", [])),
        Curve("bytes", log.numbers.get("compressor/ratio", [])),
    ]
    yield line_chart(
        "Ratio of the compressor", floats, "step", "Of all so far: floats as papers count them, and payload bytes."
    )


def _times(log: RunLog) -> Iterator[str]:
    stages = [Curve(label, log.gains(name)) for name, label in STAGES.items() if any(y for _, y in log.gains(name))]
    yield line_chart("Seconds by stage", stages, "step", "Since the line before; stages of several buckets overlap.")
    speeds = [
        Curve("encode", log.quotient("encoded_bytes", "encode_seconds", 1e-9)),
        Curve("decode", log.quotient("decoded_bytes", "decode_seconds", 1e-9)),
    ]
    yield line_chart("Speed of the codec, GB/s", speeds, "step", "Bytes of values over seconds in the codec.")


def _bypass(log: RunLog) -> Iterator[str]:
    dense = log.quotient("dense", "calls", 100)
    if any(share for _, share in dense):
        yield line_chart("Sent uncompressed, %", [Curve("uncompressed", dense)], "step", "Share of all-reduces.")
    gain = log.numbers.get("bypass_gain", [])
    yield line_chart(
        "Gain of compressing",
        [Curve("gain", gain)],
        "step",
        "How many times as fast compressed steps were, at the latest trial.",
    )
    speeds = [
        Curve("link, Gbit/s", log.numbers.get("bypass_link_gbit_per_s", [])),
        Curve("codec, GB/s", log.numbers.get("bypass_codec_gb_per_s", [])),
    ]
    yield line_chart("Speeds found", speeds, "step", "At the latest trial.")
    steps = [
        Curve("compressed", log.numbers.get("bypass_compressed_ms", [])),
        Curve("uncompressed", log.numbers.get("bypass_dense_ms", [])),
    ]
    yield line_chart("Milliseconds of a step", steps, "step", "At the latest trial.")
    yield line_chart(
        "Compressing",
        [Curve("compressing", log.numbers.get("bypass_compressing", []))],
        "step",
        "1: anything is compressed since the latest trial; 0: nothing is.",
    )


def _controller(log: RunLog) -> Iterator[str]:
    yield line_chart(
        "Compression factor",
        [Curve("factor", log.numbers.get("factor", []))],
        "step",
        "Values over floats sent; 1 is a dense step.",
        log=True,
    )
    for knob in ("rank", "bits", "density"):
        names = [name for name in log.settings if log.knobs[name] == knob]
        shown = sorted(names, key=lambda name: -_changes(log.settings[name]))[:MAX_CURVES]
        last = log.steps[-1]
        curves = [Curve(name, _held(log.settings[name], last)) for name in sorted(shown)]
        note = f"The {len(shown)} of {len(names)} tensors that changed most; all are in the table."
        note = "" if len(shown) == len(names) else note
        yield line_chart(f"{knob.capitalize()} of each tensor", curves, "step", note, log=knob == "density")


def _others(log: RunLog) -> Iterator[str]:
    known = {
        "bits_per_symbol",
        "entropy_per_symbol",
        "ratio",
        "factor",
        "refresh_bytes",
        "own_codebooks",
        "elapsed",
        *SUMS,
    }
    for name, points in log.numbers.items():
        if name not in known and not name.startswith(("bypass_", "compressor/")):
            yield line_chart(name, [Curve(name, points)], "step")


def _setting_rows(log: RunLog) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    for name, points in log.settings.items():
        values = [value for _, value in points]
        numbers = (values[0], values[-1], min(values), max(values), _changes(points))
        rows.append([Cell(name), Cell(log.knobs[name]), *(Cell(f"{value:.6g}", value) for value in numbers)])
    return rows


def _changes(points: Points) -> int:
    return sum(a != b for (_, a), (_, b) in pairwise(points))


def _held(points: Points, last: float) -> Points:
    """Return a curve of steps: a setting holds until it changes, and to the end."""
    result: Points = []
    for step, value in points:
        if result and result[-1][1] != value:
            result.append((step, result[-1][1]))
        result.append((step, value))
    return [*result, (last, result[-1][1])]


def add_series(page: Page, name: str, steps: Sequence[StepInfo]) -> None:
    """Add the series of checkpoints in the folder called ``name``, which is ``"."`` for the whole folder."""
    good = [info for info in steps if not info.problem]
    total, stored = sum(info.state_bytes for info in good), sum(info.file_bytes for info in good)
    page.heading(
        "Checkpoints" if name == "." else f"Checkpoints in {name}",
        f"{number_of(len(good), 'step')}: {bytes_text(total)} in {bytes_text(stored)}.",
    )
    curves = []
    for label, whole in (("stored whole", True), ("as a difference", False)):
        shown = [info for info in good if (info.base is None) == whole and info.state_bytes]
        curves.append(Curve(label, [(float(i.step), 100 * i.file_bytes / i.state_bytes) for i in shown]))
    page.charts([line_chart("Size of each step, %", curves, "step", "Of the checkpoint that it restores to.")])
    rows = [
        [
            Cell(str(info.step), info.step),
            Cell("whole" if info.base is None else f"difference from {info.base}"),
            Cell(str(info.n_tensors), info.n_tensors),
            Cell(bytes_text(info.state_bytes), info.state_bytes),
            Cell(bytes_text(info.file_bytes), info.file_bytes),
            Cell(f"{(ratio := info.state_bytes / max(info.file_bytes, 1)):.3f}", ratio),
        ]
        for info in good
    ]
    page.table((">step", "stored", ">tensors", ">size", ">stored bytes", ">ratio"), rows)
    for info in steps:
        if info.problem:
            page.note(info.problem)
