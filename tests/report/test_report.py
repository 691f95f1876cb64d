"""The laws of reports: pages are whole, load nothing, and say what the archive, the log or the dump says."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import gcodec
from gcodec.archive import Bases
from gcodec.checkpoints import Checkpointer
from gcodec.cli import main
from gcodec.cli.inspect import EXAMPLES
from gcodec.files import open_source
from gcodec.frame.kinds import BLOCK_KINDS
from gcodec.report import report_page
from gcodec.report.charts import N_COLORS, REST, Curve, column_chart, divided_bars, line_chart
from gcodec.report.contents import TensorRow, contents_of
from gcodec.report.distributions import Distribution, entropy
from gcodec.report.page import LONG_TEXT, Cell, Page
from gcodec.report.run_log import read_log
from gcodec.report.tensor_sections import COLUMNS, KINDS, SHARED
from tests.archive.test_files import npy, npz, torch_file
from tests.support import commands
from tests.support.commands import run
from tests.support.paths import CORPUS

RNG = np.random.default_rng(8)
X = (RNG.standard_normal((300, 200)) * 1e-3).astype(np.float32)

folder = commands.folder


def parsed(html: str) -> ElementTree.Element:
    """Return a page as a tree, having checked that it is well-formed and asks nothing of anybody."""
    assert html.startswith("<!DOCTYPE html>\n")
    root = ElementTree.fromstring(html.removeprefix("<!DOCTYPE html>\n"))
    assert not re.search(r"https?://|//[a-z]|@import|url\(|\bsrc=|\bhref=", html)
    assert all(tag.tag not in ("link", "img", "iframe", "object", "base", "form") for tag in root.iter())
    [policy] = [tag.get("content") for tag in root.iter("meta") if tag.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None and policy.startswith("default-src 'none'")
    return root


#: The place of each column of a table of tensors.
AT = {name.lstrip(">"): k for k, name in enumerate(COLUMNS)}


def is_sortable(tag: ElementTree.Element) -> bool:
    return "sortable" in tag.get("class", "").split()


def table(root: ElementTree.Element, number: int = 0) -> list[list[ElementTree.Element]]:
    """Return the cells of a sortable table, row by row."""
    found = [tag for tag in root.iter("table") if is_sortable(tag)]
    body = found[number].find("tbody")
    return [] if body is None else [list(row) for row in body]


def text(element: ElementTree.Element) -> str:
    return "".join(element.itertext())


def listed(archive: str, capsys: pytest.CaptureFixture[str]) -> list[dict]:
    capsys.readouterr()
    run("inspect", archive, "--json")
    [found] = json.loads(capsys.readouterr().out)
    return list(found["files"])


# ------------------------------------------------------------------------------------------------------- Archives


def test_a_page_about_an_archive_has_its_tensors_and_numbers(capsys):
    Path("a.npy").write_bytes(npy(X))
    Path("b.npz").write_bytes(npz({"x": X.astype(np.float64), "n": np.arange(50), "h": X[:9].astype(np.float16)}))
    run("compress", "a.npy", "b.npz", "-o", "both.gc", "-q")
    run("report", "both.gc", "-q")
    root = parsed(Path("both.gc.html").read_text("utf-8"))
    files = listed("both.gc", capsys)
    assert [text(row[0]) for row in table(root)] == [file["path"] for file in files]
    rows = {(n, text(row[0])): row for n in range(len(files)) for row in table(root, n + 1)}
    segments = {(n, segment["name"]): segment for n, file in enumerate(files) for segment in file["segments"]}
    assert rows.keys() == segments.keys()
    for name, segment in segments.items():
        cells = rows[name]
        sizes = [float(cells[AT[column]].get("data-v", "nan")) for column in ("size", "stored")]
        assert sizes == [segment["bytes"], segment["stored_bytes"]]
        if segment["stored_bytes"]:
            assert float(cells[AT["ratio"]].get("data-v", "nan")) == segment["bytes"] / segment["stored_bytes"]
        assert text(cells[AT["mode"]]) == ", ".join(segment["modes"])
    body = text(root)
    assert f"{Path('both.gc').stat().st_size / 1e3:.2f} kB" in body and "Exponents of float16" in body
    run("report", "both.gc", "-q", code=1)
    assert "exists already" in capsys.readouterr().err


def test_an_archive_of_files_has_a_table_of_them_and_one_of_tensors_for_each(capsys):
    long = "model.layers.10.self_attention.query_key_value_projection.weight"
    Path("run").mkdir()
    for name in ("first & <best>.npz", "second.npz"):
        Path("run", name).write_bytes(npz({long: X, "n": X[:9]}))
    Path("run/notes.txt").write_text("of the run")
    run("compress", "run", "-q")
    root = parsed(report_page("run.gc"))
    paths = ["run/first & <best>.npz", "run/notes.txt", "run/second.npz"]
    rows = table(root)
    assert [text(row[0]) for row in rows] == paths and [text(row[4]) for row in rows] == ["2", "0", "2"]
    for row, file in zip(rows, listed("run.gc", capsys), strict=True):
        assert (row[1].get("data-v"), row[2].get("data-v")) == (str(file["bytes"]), str(file["stored_bytes"]))
    parts = [part for part in root.iter("details") if any(is_sortable(tag) for tag in part.iter("table"))]
    assert [text(next(part.iter("h3"))) for part in parts] == [paths[0], paths[2]]
    for part in parts:
        [cells] = [row for row in part.iter("tr") if text(row[0]) == long]
        assert cells[0][0].get("title") == long


def test_tables_scroll_in_a_box_of_their_own_and_long_names_are_cut_where_there_is_no_room():
    gcodec.save_file({"short": X, "a.name.that.is.very.long.indeed" * 9: X + 1}, "x.gc")
    root = parsed(report_page("x.gc"))
    boxes = [box for box in root.iter("div") if box.get("class") == "scroll"]
    assert {id(tag) for box in boxes for tag in box.iter("table")} == {id(tag) for tag in root.iter("table")}
    for cells in table(root):
        is_long = len(text(cells[0])) > LONG_TEXT
        assert [tag.get("title") for tag in cells[0]] == [text(cells[0])] * is_long
    style = text(next(root.iter("style")))
    assert re.search(r"\.scroll {[^}]*overflow-x: auto", style)
    assert all(float(cut) <= 40 for cut in re.findall(r"\.long { [^}]*max-width: min\([\d.]+rem, ([\d.]+)vw\)", style))
    assert len(re.findall(r"\.long span {[^}]*text-overflow: ellipsis", style)) == 1


def test_tensors_that_share_bytes_are_counted_once_and_said_so():
    torch = pytest.importorskip("torch")
    weight = torch.randn(60, 50)
    Path("m.pt").write_bytes(torch_file({"w": weight, "tied": weight, "b": torch.randn(9000).bfloat16()}))
    root = parsed(report_page("m.pt"))
    rows = {text(row[0]): row for row in table(root)}
    stored = rows["tied"][AT["stored"]]
    assert text(stored) == "in w" and stored.get("data-v") == "0"
    assert text(rows["tied"][AT["dtype"]]) == "float32" and text(rows["tied"][AT["shape"]]) == "60×50"
    assert "torch file of 3 tensors, not compressed" in text(root) and not list(Path().glob("*.gc*"))


def test_small_tensors_that_share_a_frame_are_said_to():
    gcodec.save_file({f"layer{n}.bias": X[n] for n in range(6)} | {"w": X}, "x.gc")
    page = parsed(report_page("x.gc"))
    rows = {text(row[0]): text(row[AT["blocks"]]) for row in table(page)}
    assert [rows.pop(f"layer{n}.bias") for n in range(6)] == ["1 coded, shared", *["shared"] * 5]
    assert SHARED in text(page)
    assert rows == {"w": "4 coded"}


def test_names_from_an_archive_stay_text():
    name = "<script>alert(1)</script>&\"'\u2028\x07"
    gcodec.save_file({name: X}, "x.gc")
    html = report_page("x.gc")
    root = parsed(html)
    assert [text(tag) for tag in root.iter("script") if "alert" in text(tag)] == []
    assert text(table(root)[0][0]).startswith("<script>alert(1)</script>&\"'")


@pytest.mark.parametrize("suffix", ["", "&<b>", "\udcff", "ü"])
def test_names_of_files_stay_text(suffix):
    path = Path(f"x{suffix}.npy")
    path.write_bytes(npy(X))
    root = parsed(report_page(path))
    assert text(next(root.iter("h1"))).startswith("x")


def test_a_frame_is_described_and_a_large_one_read_in_part():
    frame = gcodec.encode(X)
    Path("x.frame").write_bytes(frame)
    body = text(parsed(report_page("x.frame")))
    assert "a single frame" in body and f"{X.nbytes / len(frame):.3f}" in body
    gcodec.save_file({"x": X, "y": X + 1}, "x.gc")
    body = text(parsed(report_page("x.gc", limit=X.nbytes)))
    assert "first 50 % of every tensor" in body and f"Counted over {X.nbytes / 1000:.2f} kB" in body


def test_a_file_that_is_not_compressed_is_compressed_against_the_base():
    old = np.random.default_rng(0).standard_normal(100_000, dtype=np.float32)
    np.savez("old.npz", x=old)
    np.savez("new.npz", x=old * np.float32(1 + 2**-22))
    run("compress", "new.npz", "--base", "old.npz", "-q")

    def row(name: str, base: Bases | None) -> TensorRow:
        with closing(open_source(name)) as source:
            return contents_of(name, source, limit=1 << 30, base=base).rows[0]

    with Bases("old.npz") as base:
        whole, difference = row("new.npz", None), row("new.npz", base)
        assert difference.stored_bytes == row("new.npz.gc", base).stored_bytes < whole.stored_bytes / 2
    assert whole.exponents is not None and difference.exponents is not None
    assert np.array_equal(difference.exponents, whole.exponents)
    run("report", "new.npz", "--base", "old.npz", "-q")
    assert "with the same --base" in text(parsed(Path("new.npz.html").read_text()))


@pytest.mark.parametrize("kind", ["folder", "log", "frame"])
def test_a_base_for_what_takes_none_is_refused(kind, capsys):
    np.save("old.npy", np.ones(9, np.float32))
    if kind == "folder":
        run("series", "add", "run", "old.npy", "--step", "1", "-q")
    Path("run.jsonl").write_text("{}")
    Path("run.gcf").write_bytes(gcodec.encode(np.ones(9, np.float32)))
    name = {"folder": "run", "log": "run.jsonl", "frame": "run.gcf"}[kind]
    assert main(["report", name, "--base", "old.npy"]) == 1
    assert f"{name}: is a " in (told := capsys.readouterr().err) and kind in told
    assert "only archives and tensor files take a base" in told and not Path(f"{name}.html").exists()


def test_differences_from_a_base_are_read_with_the_base_only():
    Path("old.npy").write_bytes(npy(X))
    Path("new.npy").write_bytes(npy(X + np.float32(1e-9)))
    run("compress", "new.npy", "--base", "old.npy", "-q")
    assert "Not read, as differences from a base: 1 tensor." in text(parsed(report_page("new.npy.gc")))
    run("report", "new.npy.gc", "--base", "old.npy", "-q")
    body = text(parsed(Path("new.npy.gc.html").read_text("utf-8")))
    assert "Exponents of float32" in body and "differences from a base" not in body


@pytest.mark.parametrize("name", ["notes.txt", "cut.gc", "empty", "nowhere", "bad.jsonl"])
def test_what_cannot_be_reported_on_is_an_error_and_leaves_no_page(name, capsys):
    Path("notes.txt").write_text("hello")
    gcodec.save_file({"x": X}, "cut.gc")
    Path("cut.gc").write_bytes(Path("cut.gc").read_bytes()[:500])
    Path("empty").mkdir()
    Path("bad.jsonl").write_text('[1]\nnull\n{}\n{"a": "b"}\n')
    run("report", name, code=1)
    assert name in capsys.readouterr().err and not list(Path().glob("*.html"))


def test_a_damaged_archive_is_an_error_that_names_it(capsys):
    gcodec.save_file({"x": X}, "x.gc")
    data = bytearray(Path("x.gc").read_bytes())
    data[len(data) // 3] ^= 1
    Path("x.gc").write_bytes(data)
    run("report", "x.gc", code=1)
    assert "x.gc" in capsys.readouterr().err and not Path("x.gc.html").exists()


def test_a_page_goes_to_standard_output_and_never_over_its_source(capsys):
    Path("x.npy").write_bytes(npy(X))
    run("report", "x.npy", "-o", "-")
    parsed(capsys.readouterr().out)
    run("report", "x.npy", "-o", "x.npy", "-f", code=2)
    run("report", "x.npy", "-o", "missing/x.html", code=1)
    assert "missing" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------- Distributions


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_exponents_and_mantissa_bits_are_those_of_the_values(dtype):
    values = RNG.standard_normal(5000).astype(dtype) * np.asarray(3, dtype)
    values[:7], values[7], values[8] = 0, np.inf, np.nan
    found = Distribution(dtype)
    found.add(values[:2000].view(np.uint8))
    found.add(values[2000:].view(np.uint8))
    finite = np.abs(values[9:])
    normal = finite[finite >= np.finfo(dtype).smallest_normal].astype(np.float64)
    exponents, counts = np.unique(np.floor(np.log2(normal)).astype(int), return_counts=True)
    shares = {int(e): 100 * n / 5000 for e, n in zip(exponents, counts, strict=True)}
    assert {e: share for e, share in found.exponent_shares().items() if share} == pytest.approx(shares)
    assert "2 infinities and NaN" in found.remark() and found.n_values == 5000
    assert sum(found.used_shares().values()) == pytest.approx(100)


def test_rounded_values_use_no_more_mantissa_bits_than_they_keep():
    kept = gcodec.decode(gcodec.encode(X, mantissa_bits=5))
    found = Distribution("float32")
    found.add(kept.reshape(-1).view(np.uint8))
    assert not found.used_bits[6:].any() and found.used_bits[5] > found.used_bits[4] > 0


@pytest.mark.parametrize("steps", [(5,), (5, 6, 7)])
def test_a_single_step_that_is_stored_whole_is_drawn(steps):
    checkpointer = Checkpointer("series", full_every=10)
    for step in steps:
        checkpointer.save(step, {"w": X * np.float32(1 + step * 2**-20)})
    [chart] = [tag for tag in parsed(report_page(".")).iter("section") if "Size of each step" in text(tag)]
    dots = [
        (float(tag.get("cx", "nan")), tag.get("class")) for tag in chart.iter("circle") if tag.get("class") != "hit"
    ]
    assert [shape for _, shape in dots] == ["dot s0", *["dot s1"] * (len(steps) - 1)]
    assert len({left for left, _ in dots}) == len(steps)
    assert "5" in [tag.text for tag in chart.iter("text")]


def test_no_two_parts_of_a_picture_have_one_color():
    curves = [Curve(f"c{n}", [(0, n), (1, n + 1)]) for n in range(N_COLORS * 2 + 1)]
    charts = line_chart("t", curves, "step")
    root = ElementTree.fromstring(f"<div>{charts}</div>")
    paths = [[str(tag.get("class")) for tag in chart.iter("path")] for chart in root]
    assert [len(names) for names in paths] == [len(set(names)) for names in paths] == [N_COLORS, N_COLORS, 1]
    assert all(f"c{n}" in text(root) for n in range(len(curves)))
    parts = {f"p{n}": float(20 - n) for n in range(12)}
    bars = ElementTree.fromstring(divided_bars("t", {"a": parts, "b": {"p11": 3.0}}, str, ""))
    swatches = [tag.get("class") for tag in bars.iter("i")]
    assert len(swatches) == len(set(swatches)) == N_COLORS and REST in text(bars)
    shares = [tag.get("title", "") for tag in bars.iter("div") if tag.get("title")]
    assert shares[N_COLORS - 1].startswith(f"{REST}: {sum(20.0 - n for n in range(N_COLORS - 1, 12))}")
    assert "p11" in text(next(bars.iter("table")))


def test_columns_open_a_table_of_their_numbers():
    svg = column_chart("t", {-2: 25.0, 0: 0.0, 3: 75.0}, "power of two")
    cells = [[text(cell) for cell in row] for row in ElementTree.fromstring(svg).iter("tr")]
    assert cells == [["power of two", "%"], ["-2", "25"], ["3", "75"]]


def test_entropy_is_shannons():
    assert entropy(np.array([4, 4, 0, 8])) == 1.5 and entropy(np.zeros(3)) == 0


# ------------------------------------------------------------------------------------------------------------ Runs


def line(step: int, **more: object) -> dict:
    sums = {
        "calls": 4 * step,
        "dense": step,
        "dense_bytes": 900.0 * step,
        "sent_bytes": 300.0 * step,
        "encoded_bytes": 10**9 * step,
        "encode_seconds": 0.5 * step,
        "wait_seconds": 0.1 * step,
    }
    return {"steps": step, **sums, "bits_per_symbol": math.nan if step < 3 else 3.5, **more}


def test_lines_of_stats_are_a_log():
    lines = [json.dumps(line(step)) for step in range(1, 6)]
    Path("a.jsonl").write_text("\n".join([lines[0], "torn {", *lines[1:], ""]))
    log = read_log(Path("a.jsonl"))
    assert log.steps == [1, 2, 3, 4, 5] and log.notes == ["line 2 is no JSON object, and was left out"]
    assert log.quotient("dense_bytes", "sent_bytes") == [(step, 3.0) for step in log.steps]
    assert [speed for _, speed in log.quotient("encoded_bytes", "encode_seconds", 1e-9)] == pytest.approx([2.0] * 5)
    assert log.numbers["bits_per_symbol"] == [(step, 3.5) for step in (3, 4, 5)]
    root = parsed(report_page("a.jsonl"))
    titles = {text(tag) for tag in root.iter("h3")}
    assert {"Ratio", "Bits per exponent", "Seconds by stage", "Speed of the codec, GB/s"} <= titles
    assert "Sent uncompressed, %" in titles and "Compression factor" not in titles


def test_numbers_that_are_none_are_left_out():
    odd = (
        '{"step": 2, "a": 1' + "0" * 400 + ', "b": 1e999, "c": true, "d": NaN, "e": 3, '
        '"settings": {"w": {"rank": null}}}'
    )
    Path("a.jsonl").write_text('{"step": 1, "e": 2}\n' + odd)
    assert read_log(Path("a.jsonl")).numbers == {"e": [(1, 2.0), (2, 3.0)]}
    parsed(report_page("a.jsonl"))


def test_a_run_that_was_resumed_at_an_earlier_step_is_told_once():
    steps = [1, 2, 3, 4, 3, 4, 5]
    Path("a.jsonl").write_text(
        "\n".join(json.dumps({"step": n, "loss": 10 * at, "stats": line(n)}) for at, n in enumerate(steps))
    )
    log = read_log(Path("a.jsonl"))
    assert log.numbers["loss"] == [(1, 0), (2, 10), (3, 40), (4, 50), (5, 60)]


def test_controllers_are_drawn_from_their_settings_and_factors():
    tensors = {f"layer{n}.weight": n for n in range(11)}
    entries = [{"step": step, "stats": line(step), "factor": 10 ** (step % 3)} for step in range(1, 7)]
    for at in (0, 3):
        entries[at]["settings"] = {name: {"kind": "PowerSGD", "rank": 1 + (n + at) % 4} for name, n in tensors.items()}
    Path("a.jsonl").write_text("\n".join(map(json.dumps, entries)))
    root = parsed(report_page("a.jsonl"))
    titles = {text(tag) for tag in root.iter("h3")}
    assert {"Compression factor", "Rank of each tensor"} <= titles
    rows = {text(row[0]): [text(cell) for cell in row[1:]] for row in table(root)}
    assert rows.keys() == tensors.keys() and rows["layer2.weight"] == ["rank", "3", "2", "2", "3", "1"]


def test_a_folder_has_its_logs_dumps_and_checkpoints():
    for dump in CORPUS.glob("cnn-*.safetensors"):
        shutil.copy(dump, dump.name)
    Path("stats.jsonl").write_text(json.dumps(line(1)))
    checkpointer = Checkpointer("series")
    for step in (1, 2):
        checkpointer.save(step, {"w": X + step})
    root = parsed(report_page("."))
    headings = [text(tag) for tag in root.iter("h2")]
    assert "Log stats.jsonl" in headings and "Recorded steps, cnn" in headings and "Checkpoints in series" in headings
    [_, ratios, *_] = [tag for tag in root.iter("section") if text(next(tag.iter("h3"))) == "Ratio"]
    cells = [[text(cell) for cell in row] for row in ratios.iter("tr")]
    assert cells[0][:3] == ["step", "gradients", "parameters"] and cells[0][-1] == "near-lossless"
    assert all(float(row[-1]) > float(row[1]) > 1 for row in cells[1:])


LOGGED = """
import torch, torch.distributed as dist
import gcodec.distributed as gd
from gcodec.adaptive import GraVAC, LGreCo
from gcodec.compressors import PowerSGD, TopK
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for name, plan, controller in (("lgreco", PowerSGD(2), LGreCo(PowerSGD(2), period=2)),
                               ("gravac", TopK(0.1), GraVAC(TopK(0.1), window=2))):
    torch.manual_seed(1)
    layers = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    state = gd.AdaptiveGradients(model, plan, controller)
    model.register_comm_hook(state, gd.hook)
    for step in range(6):
        if step in (0, 3):
            log = gd.StatsLog(f"{name}.jsonl", state)
        model(torch.randn(8, 40)).square().sum().backward()
        log.write(step, loss=float("nan"), rate=0.5)
        if step == 2:
            open(f"{name}.jsonl", "a").write('{"torn')
dist.destroy_process_group()
"""


def test_a_log_of_a_real_run_is_drawn():
    pytest.importorskip("torch")
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    subprocess.run([sys.executable, "-W", "ignore", "-c", LOGGED], check=True, env=environment)
    for name, title in (("lgreco", "Rank of each tensor"), ("gravac", "Compression factor")):
        lines = Path(f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == 7 and not any("NaN" in line for line in lines)
        log = read_log(Path(f"{name}.jsonl"))
        assert log.steps == [0, 1, 2, 3, 4, 5] and log.numbers["rate"] == [(step, 0.5) for step in range(6)]
        assert title in {text(tag) for tag in parsed(report_page(f"{name}.jsonl")).iter("h3")}


class PlainState:
    """The least that a log asks of a state."""

    def stats(self) -> dict[str, float]:
        return {"ratio": 2.0}


def test_a_log_takes_numbers_in_every_form_and_names_what_is_none():
    torch = pytest.importorskip("torch")
    from gcodec.distributed import StatsLog

    with StatsLog("log.jsonl", PlainState()) as log:
        for step, loss in enumerate((0.5, torch.tensor(0.5), torch.ones(1, requires_grad=True) / 2, np.float32(0.5))):
            log.write(step, loss=loss)
        for value, kind in ((torch.ones(3), "Tensor of shape (3,)"), (np.ones((2, 2)), "ndarray of"), ({1}, "{1}")):
            text = re.escape(f"loss must be a number, such as loss.item(), not {kind}")
            with pytest.raises(gcodec.InvalidArgument, match=text):
                log.write(9, loss=value)
    assert read_log(Path("log.jsonl")).numbers["loss"] == [(step, 0.5) for step in range(4)]


# ----------------------------------------------------------------------------------------------------------- Charts


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 1.0)],
        [(0.0, 0.0), (5.0, 0.0)],
        [(1.0, -3.0), (2.0, 3.0)],
        [(0.0, 1e-9), (1.0, 1e12)],
        [(float(n), float(n % 7)) for n in range(5000)],
        [(0.0, math.nan), (1.0, 2.0)],
        [(1e308, 1.0), (0.0, 5e-324)],
        [(1.0, 1.0), (1.0 + 2**-52, 1.0 + 2**-52)],
        [(0.0, -1e308), (1.0, 1e308), (2.0, math.inf), (3.0, 1.0)],
    ],
)
@pytest.mark.parametrize("log", [False, True])
def test_curves_stay_within_their_chart(points, log):
    svg = line_chart("t", [Curve("c", points)], "step", log=log)
    if not any(1e-100 < y < 1e100 and x < 1e100 for x, y in points) and log:
        assert svg == ""
        return
    root = ElementTree.fromstring(svg)
    [path] = [tag.get("d") or "" for tag in root.iter("path")]
    spots = [tuple(map(float, spot.split(","))) for spot in path.removeprefix("M").split("L")]
    assert 0 < len(spots) <= 160 and all(0 <= x <= 360 and 0 <= y <= 190 for x, y in spots)


def test_tables_hold_what_they_were_given():
    page = Page("t")
    page.table(("name", ">n"), [[Cell(f"row {n}"), Cell(f"{n} B", n)] for n in range(20)])
    root = parsed(page.html())
    assert [(text(a), b.get("data-v")) for a, b in table(root)] == [(f"row {n}", str(n)) for n in range(20)]
    assert [tag.get("data-table") for tag in root.iter("input")] == [
        tag.get("id") for tag in root.iter("table") if is_sortable(tag)
    ]


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_draws_the_page_and_sorts_its_table(width):
    Path("b.npz").write_bytes(npz({f"x{n}": X[: 10 * n + 10] for n in range(14)}))
    html = report_page("b.npz")
    sort = f"<script>document.querySelectorAll('th button')[{AT['size']}].click()</script></body>"
    Path("page.html").write_text(html.replace("</body>", sort), "utf-8")
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--user-data-dir=profile",
        f"--window-size={width},1000",
    ]
    address = Path("page.html").resolve().as_uri()
    subprocess.run([*command, "--screenshot=shot.png", address], check=True, capture_output=True, timeout=120)
    assert Path("shot.png").read_bytes()[1:4] == b"PNG" and Path("shot.png").stat().st_size > 20_000
    dumped = subprocess.run([*command, "--dump-dom", address], check=True, capture_output=True, timeout=120, text=True)
    shown = re.findall(r"<tr><td>(x\d+)</td>", dumped.stdout)
    assert shown == [f"x{n}" for n in reversed(range(14))]


def test_the_verb_is_quiet_about_modules_it_does_not_need():
    program = "import sys; from gcodec.cli import main; main(['report', 'x.npy', '-q']); print('torch' in sys.modules)"
    Path("x.npy").write_bytes(npy(X))
    environment = {**os.environ, "PYTHONPATH": str(Path(gcodec.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, env=environment, text=True)
    assert done.stdout == "False\n" and main(["report", "x.npy", "-f", "-q"]) == 0


def test_every_kind_of_block_is_explained_in_reports_and_in_the_help_of_inspect():
    for kind in BLOCK_KINDS:
        assert kind.name in KINDS
        assert kind.name in EXAMPLES
