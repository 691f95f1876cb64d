"""The laws of the benchmarks: bounds known by hand, round trips of codecs, the README's code, whole runs."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from gcodec.benchmark import bounds, csv_tables, inputs, measure, peers, settings, sources, timing
from gcodec.demo.figures import strategies
from gcodec.dtypes import BY_NAME
from gcodec.errors import GcodecError, InvalidArgument
from gcodec.format.ladders import Ladder
from gcodec.recorder import read_dump
from tests.support import reliability
from tests.support.paths import CORPUS, ROOT

FLOAT32 = BY_NAME["float32"]


@pytest.fixture(scope="module")
def gradient() -> inputs.Input:
    """Return 4096 recorded gradients with their levels."""
    dump = read_dump(CORPUS / "cnn-step-000600.safetensors")
    whole = inputs.gradients(dump, "cnn", names=["blocks.3.conv2.weight"])
    levels = {ladder: values[:4096] for ladder, values in whole.levels.items()}
    return inputs.Input(whole.name, whole.dtype, whole.bits[:4096].copy(), levels, "cnn", 600, inputs.GRADIENTS)


def bits_of(*values: float) -> np.ndarray:
    return np.array(values, np.float32).view(np.uint32)


# Bounds

def test_order0_bits_of_known_counts_are_their_entropy():
    assert bounds.order0_bits(np.zeros(100, np.int64)) == 0
    assert bounds.order0_bits(np.arange(256)) == pytest.approx(256 * 8)
    assert bounds.order0_bits(np.array([5] * 3 + [9])) == pytest.approx(4 * 2 - 3 * math.log2(3))
    assert bounds.order0_bits(np.zeros(0, np.int64)) == 0


def test_the_local_bound_has_statistics_of_each_block():
    symbols = np.repeat([1, 7], bounds.BLOCK)
    assert bounds.local_order0_bits(symbols) == 0
    assert bounds.order0_bits(symbols) == 2 * bounds.BLOCK


def test_the_bound_counts_zero_as_a_symbol_without_tail():
    bits = np.tile(bits_of(0.0, 1.0), 500)
    bound = bounds.order0_bound(bits, FLOAT32)
    assert bound.symbols == pytest.approx(1000)
    assert bound.kept == 500 * 24
    assert bound.bytes == pytest.approx((1000 + 12_000) / 8)
    negative = bounds.order0_bound(np.tile(bits_of(-0.0, 1.0), 500), FLOAT32)
    assert negative.kept == 1000 * 24      # -0 has a tail: its sign


def test_the_bound_counts_levels_as_joint_symbols_that_keep_fewer_bits():
    bits = np.tile(bits_of(1.0, 1.0, 2.0, 0.0), 250)
    levels = np.tile(np.array([0, 1, 1, 1], np.uint8), 250)
    bound = bounds.order0_bound(bits, FLOAT32, levels, Ladder((0, 18)))
    assert bound.symbols == pytest.approx(1000 * 2)    # (1.0, 0), (1.0, 1), (2.0, 1), zero
    assert bound.kept == 250 * (24 + 6 + 6)
    fixed = bounds.order0_bound(bits, FLOAT32, None, Ladder((16,)))
    assert fixed.symbols == pytest.approx(1000 * 1.5)
    assert fixed.kept == 750 * 8


@pytest.mark.parametrize(("dtype", "one", "kept"), [("bfloat16", 0x3F80, 8), ("float16", 0x3C00, 8)])
def test_the_bound_has_the_tails_of_each_type(dtype, one, kept):
    bits = np.array([0, one] * 8, np.uint16)
    bound = bounds.order0_bound(bits, BY_NAME[dtype])
    assert bound.symbols == pytest.approx(16)
    assert bound.kept == 8 * kept


def test_the_bound_of_the_papers_layout_is_that_worked_out_by_hand():
    bits = np.concatenate([np.tile(bits_of(1.0, 0.0), bounds.BLOCK), np.tile(bits_of(4.0, 1e-40), bounds.BLOCK)])
    levels = np.tile(np.array([3, 0], np.uint8), 2 * bounds.BLOCK)
    bound = bounds.paper_layout(bits, FLOAT32, levels, inputs.LADDERS["paper"]["float32"])
    # One table for all: a half zeros and denormals, a quarter each of the two exponents.
    assert bound.symbols == pytest.approx(bits.size * 1.5)
    assert bound.kept == bits.size // 2 * (2 + 1 + 5)


def test_frames_are_near_the_bound_and_below_the_papers_layout():
    for path in sorted(CORPUS.glob("*.safetensors")):
        data = inputs.gradients(read_dump(path), path.stem)
        for setting in settings.settings_for(data):
            size, bound = setting.task().verify(), setting.bound().bytes
            assert size < 1.05 * bound, (path.name, setting.mode)       # small inputs: codebooks and headers count
            if paper := settings.paper_bound(setting):
                assert size < 0.95 * paper.bytes, path.name


# Figures 12 and 14

def test_code_tables_have_the_lengths_worked_out_by_hand():
    counts = np.array([0, 8, 4, 2, 1, 1])
    code = strategies.native_table(counts, 8)
    assert code.lengths.tolist() == [0, 1, 2, 3, 4, 4]
    assert code.bits(counts) == 8 + 8 + 6 + 4 + 4
    assert code.bits(np.array([1])) == 4 + 8           # a symbol the table has never seen
    short = strategies.optimized_table(counts, 8, n_theta=2)
    assert short.lengths.tolist() == [0, 1, 2, 0, 0, 0]
    assert short.bits(counts) == 8 + 8 + 4 * (2 + 8)
    assert strategies.native_table(np.array([0, 3]), 8).bits(np.array([0, 3])) == 3


def test_better_coding_strategies_take_fewer_bits(gradient):
    rows = {row["strategy"]: row["bits_per_value"] for row in strategies.mantissa_rows([gradient])}
    native, paper, four, eight = rows.values()
    assert eight < four < paper < native < 23
    rows = {row["strategy"]: row["bits_per_value"] for row in strategies.exponent_rows([gradient])}
    assert rows["native Huffman, one table"] <= rows["optimized (GComp), one table"] < 8
    assert rows["order-0 bound, blocks of 16 Ki"] < rows["native Huffman, one table"]


# Inputs

def test_casts_round_to_even():
    values = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -0.0, np.inf, np.nan, 1e-45], np.float32)
    assert inputs.cast(values, "bfloat16").tolist() == [0x3F80, 0x3F80, 0x3F82, 0x8000, 0x7F80, 0x7FC0, 0]
    assert np.array_equal(inputs.cast(values, "float32"), values.view(np.uint32))
    assert np.array_equal(inputs.cast(values, "float16"), values.astype(np.float16).view(np.uint16))
    with pytest.raises(InvalidArgument, match="no cast"):
        inputs.cast(values, "float64")


def test_gather_repeats_small_inputs_and_thins_out_large_ones():
    small, large = np.arange(10), np.arange(3 * inputs._SLICE)
    assert inputs.gather([small, small], 0).size == 20
    assert inputs.gather([small, small], 50).tolist() == [*range(10)] * 6
    thinned = inputs.gather([large, large], 2 * inputs._SLICE)
    assert thinned.size == 2 * inputs._SLICE
    assert (thinned[0], thinned[-1]) == (0, large[-1])


def test_any_tensor_file_is_an_input(tmp_path):
    values = np.linspace(-1, 1, 999, dtype=np.float32)
    np.save(tmp_path / "a.npy", values)
    np.savez(tmp_path / "b.npz", x=values, y=values.astype(np.float16), n=np.arange(3))
    (only,) = sources.read_file(tmp_path / "a.npy")
    assert (only.dtype, only.levels) == ("float32", {})
    assert np.array_equal(only.values, values)
    assert [part.dtype for part in sources.read_file(tmp_path / "b.npz")] == ["float32", "float16"]
    (part,) = sources.read_file(tmp_path / "a.npy", limit=400)
    assert part.bits.size == 100
    assert "10 % of it" in part.name
    np.save(tmp_path / "c.npy", np.arange(3))
    with pytest.raises(InvalidArgument, match="no floating-point"):
        sources.read_file(tmp_path / "c.npy")


def test_a_dump_gives_gradients_with_levels_parameters_and_state():
    result = sources.read_file(CORPUS / "transformer-step-000020.safetensors")
    assert [part.group for part in result] == [inputs.GRADIENTS, inputs.PARAMETERS, inputs.STATE]
    assert set(result[0].levels) == set(inputs.LADDERS)
    assert all(levels.size == result[0].bits.size for levels in result[0].levels.values())
    short = sources.read_file(CORPUS / "transformer-step-000020.safetensors", limit=4000)
    assert [part.bits.size for part in short] == [1000] * 3
    assert short[0].levels["fine"].size == 1000


def test_float16_gradients_are_scaled_and_keep_their_levels():
    dump = read_dump(CORPUS / "cnn-step-000600.safetensors")
    half, whole = (inputs.gradients(dump, "cnn", dtype) for dtype in ("float16", "float32"))
    scale = half.values[whole.values != 0].astype(np.float64) / whole.values[whole.values != 0]
    assert math.log2(np.median(scale)) == pytest.approx(round(math.log2(np.median(scale))), abs=1e-3)
    assert np.isfinite(half.values).all()


# Codecs

@pytest.mark.filterwarnings("ignore")       # a peer's own
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("peer", (*peers.PEERS, *peers.CHECKED), ids=lambda peer: peer.name)
def test_every_peer_returns_the_bits_it_encoded(peer, dtype, gradient):
    if not peer.installed:
        pytest.skip(f"{peer.package} is not installed")
    bits = inputs.cast(gradient.values, dtype)
    kept = bits.copy()
    task = peer.bind(inputs.Input("", dtype, bits))
    assert task is not None
    sizes = {task.verify() for _ in range(2)}
    assert len(sizes) == 1
    assert 0 < sizes.pop() < bits.nbytes + 1000
    assert np.array_equal(bits, kept)       # the input is as it was


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_setting_of_gcodec_is_verified_by_its_round_trip(reuse, threads, gradient):
    results = [*settings.settings_for(gradient), settings.literal_gcomp_setting(gradient)]
    assert [setting.mode for setting in results] == ["lossless", "near-lossless", "7 mantissa bits", "GComp, literal"]
    sizes = [setting.task(threads, reuse).verify() for setting in results]
    assert sizes[2] < sizes[1] < sizes[3] < sizes[0]


def test_a_wrong_round_trip_is_an_error(gradient):
    good = settings.lossless_setting(gradient).task()
    bad = timing.CodecTask(good.encode, good.decode, gradient.bits + np.uint32(1))
    with pytest.raises(timing.RoundTripError):
        bad.verify()
    timings, errors = timing.interleave({"good": good, "bad": bad}, rounds=3)
    assert len(timings["good"].encode_seconds) == 3
    assert list(errors) == ["bad"]
    assert not timing.same_bytes(gradient.bits[:-1].tobytes(), gradient.bits)


def test_a_task_over_its_budget_sits_out(gradient):
    task = settings.lossless_setting(gradient).task()
    timings, _ = timing.interleave({"slow": task}, rounds=5, budget=0)
    assert len(timings["slow"].encode_seconds) == 0 or timings["slow"].encode > 0


@pytest.mark.parametrize("n_compiling", [0, 2, 100])
def test_turns_that_compile_are_not_timed(n_compiling):
    values, taken = np.arange(8, dtype=np.uint8), [0]

    def encode():
        taken[0] += 1
        if taken[0] <= n_compiling:
            new_kernel: Any = numba.njit(lambda: 1)
            new_kernel()
        return values.tobytes()

    task = timing.CodecTask(encode, bytes, values)
    timings, errors = timing.interleave({"compiles": task}, rounds=3)
    if n_compiling == 100:
        assert timings == {}
        assert isinstance(errors["compiles"], GcodecError)
    else:
        assert errors == {}
        assert taken[0] == n_compiling + 3
        assert len(timings["compiles"].encode_seconds) == len(timings["compiles"].decode_seconds) == 3


def broken(data: inputs.Input) -> timing.CodecTask:
    return timing.CodecTask(lambda: b"", lambda encoded: encoded, data.bits)


def test_a_competition_has_rows_for_every_mode_and_codec(gradient, tmp_path):
    other = inputs.Input("other", "float32", gradient.bits[::-1].copy(), gradient.levels, "cnn", 601, inputs.GRADIENTS)
    both = (peers.PEERS[1], peers.Peer("broken", "", broken))
    plan = measure.MeasurementPlan(both, at_least=1 << 16, rounds=1, fresh=True)
    result = measure.compete("both", [gradient, other], plan)
    assert result.failures == []
    assert len(result.notes) == 2
    assert all("broken fails" in note for note in result.notes)
    names = [(row.mode, row.codec) for row in result.rows]
    assert names == [("raw", "memory copy"), ("lossless", "gcodec"), ("lossless", "gcodec, 2 threads"),
                     ("lossless", "gcodec, new arrays"), ("lossless", "zstd-1"), ("near-lossless", "gcodec"),
                     ("near-lossless", "gcodec, 2 threads"), ("7 mantissa bits", "gcodec")]
    zstd = [size.compressed_bytes for size in result.sizes if size.codec == "zstd-1"]
    assert next(row for row in result.rows if row.codec == "zstd-1").compressed_bytes == sum(zstd)
    assert all(row.encode_speed and row.decode_speed for row in result.rows)
    csv_tables.write_rows(tmp_path / "rows.csv", result.rows)
    csv_tables.write_sizes(tmp_path / "sizes.csv", result.sizes)
    comments, rows = csv_tables.read_table(tmp_path / "rows.csv")
    assert comments[0].startswith("machine: ")
    assert comments[1].startswith("command: ")
    assert float(rows[0]["encode_of_copy"]) == 1
    _, sizes = csv_tables.read_table(tmp_path / "sizes.csv")
    near = [row for row in sizes if row["mode"] == "near-lossless"]
    assert len(near) == 2
    assert all(float(row["saving_percent"]) > 0 for row in near)


# The committed results and pages

def test_marked_places_of_a_page_are_filled():
    from bench.markdown import filled, markdown

    page = "a\n<!-- begin x (note) -->\nold\n<!-- end x -->\nb\n<!-- begin xy -->\n<!-- end xy -->\n"
    longer = "<!-- begin x-model -->\n<!-- end x-model -->\n"
    assert filled(longer + page, "x", ["new"]) == longer + filled(page, "x", ["new"])
    assert filled(page, "x", ["new", "lines"]) == page.replace("old\n", "\nnew\nlines\n\n")
    assert markdown(["a", ">b"], [["1", "2"]]) == ["| a | b |", "| --- | ---: |", "| 1 | 2 |"]


def test_a_row_of_reliability_replaces_the_one_of_its_name(tmp_path, monkeypatch):
    monkeypatch.delenv(reliability.VARIABLE, raising=False)
    reliability.record("nowhere", 1, 0, "it held")
    path = tmp_path / "rows.json"
    monkeypatch.setenv(reliability.VARIABLE, str(path))
    for what, n_cases in (("a", 10), ("b", 20), ("a", 30)):
        reliability.record(what, n_cases, 0, "it held")
    assert [(row["what"], row["n_cases"], row["n_failures"], row["result"]) for row in json.loads(path.read_text())] \
        == [("a", 30, 0, "it held"), ("b", 20, 0, "it held")]


def test_pages_show_the_committed_results_of_benchmarks():
    from bench import report

    assert report.main(["--check"]) == 0, "run python -m bench.report"


def test_the_readmes_links_lead_somewhere():
    for name in ("README.md", "docs/index.md", "docs/benchmarks.md", "docs/experiments-lgreco.md"):
        page = ROOT / name
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), target


# Commands

def run_cli(*arguments: object) -> tuple[int, str]:
    from gcodec.cli import main

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([str(argument) for argument in arguments])
    return code, printed.getvalue()


def test_bench_measures_a_file(tmp_path):
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(0, 1, 50_000).astype(np.float32))
    code, text = run_cli("bench", tmp_path / "a.npy", "--peers", "zstd-1", "--rounds", 1, "--csv", tmp_path / "a.csv")
    assert code == 0
    assert "a.npy" in text
    assert "above the local order-0 bound" in text
    _, rows = csv_tables.read_table(tmp_path / "a.csv")
    assert {"gcodec", "zstd-1", "memory copy"} <= {row["codec"] for row in rows}
    code, text = run_cli("bench", tmp_path / "a.npy", "--sizes", "--peers", "none", "--mantissa-bits", 3, "--json")
    assert code == 0
    assert '"3 mantissa bits"' in text
    assert '"encode_GBps": null' in text


@pytest.mark.parametrize("arguments", [("--peers", "nonesuch"), ("--mantissa-bits", 99), ("--rounds", 0)])
def test_bench_refuses_senseless_arguments(arguments, tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.ones(100, np.float32))
    code, _ = run_cli("bench", tmp_path / "a.npy", *arguments)
    assert code == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_demo_runs_from_end_to_end(tmp_path):
    for package in ("torch", "sklearn", "matplotlib"):
        pytest.importorskip(package)
    code, text = run_cli("demo", "--quick", "--out", tmp_path / "out")
    assert code == 0
    for word in ("cnn fp32", "transformer bf16", "checkpoint fp32", "near-lossless", "zlib-6", "bit", "bound", "paper"):
        assert word in text, word
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"dumps", "results.csv", "sizes.csv", "updates.csv", "gradients.png", "ratios_and_zeros.png",
                     "ratio.png", "exponent_coding.png", "mantissa_coding.png"}
    _, rows = csv_tables.read_table(tmp_path / "out" / "updates.csv")
    assert {row["model"] for row in rows} == {"cnn", "transformer"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_benchmarks_run_from_end_to_end(tmp_path):
    for package in ("torch", "sklearn", "matplotlib", "blosc2", "lz4", "openzl", "pcodec", "zipnn"):
        pytest.importorskip(package)
    from bench import __main__ as everything
    from bench import report, sections, targets

    dumps, out = tmp_path / "dumps", tmp_path / "out"
    assert everything.main(["--quick", "--data", str(dumps), "--out", str(out)]) == 0
    assert {path.name for path in dumps.iterdir()} == {"cnn", "transformer", "lstm", "vocabulary"}
    _, rows = csv_tables.read_table(out / "corruption.csv")
    ours = [row for row in rows if row["codec"].startswith("gcodec")]
    assert len(ours) == 8
    assert all(int(row["detected"]) + int(row["harmless"]) == 20 for row in ours)
    for make, file in report.PLACES.values():
        if (out / file).exists():
            assert len(make(out)) > (1 if make is sections.levels_ahead else 3), file   # no peer need be ahead
    assert len(targets.targets(out)) == 2 + 1 + (6 + 2) + 2 + 1 + 4 + 2 + 3 + 1 + 2
    assert len({contest.model for contest in sections.contests(out)}) == 3


def test_every_part_of_the_benchmarks_is_run_and_shown():
    from bench import __main__ as everything
    from bench import plots, report
    from bench.experiments import gradzip_pictures, gravac_pictures

    for quick in (False, True):
        result = everything.commands(quick, Path("dumps"), report.RESULTS)
        names = [command[0] for command in result]
        modules = {f"bench.{path.stem}" for path in (ROOT / "bench").glob("*.py") if "def main(" in path.read_text()}
        on_devices = {"bench.gpu", "bench.gpu_allreduce"}       # on another machine, by `make bench-gpu`
        apart = {"bench.__main__", "bench.gpu_instructions", *on_devices}   # wants NVIDIA's tools, which few have
        assert modules - apart - set(names) == ({"bench.report"} if quick else set())
    page = "".join(path.read_text() for path in (*report.PAGES, ROOT / "bench/sections.py"))
    for name in report.PLACES:
        assert re.search(f"<!-- begin {name}\\b", page), name
        assert f"<!-- end {name} -->" in page
    for name in (*plots.PICTURES, *gravac_pictures.PICTURES, *gradzip_pictures.PICTURES):
        assert f"images/{name}.png)" in page


@pytest.mark.slow
def test_the_benchmark_of_gpu_allreduces_runs_on_the_host(tmp_path):
    """How it measures a device, tests/gpu/cuda_cases.py tests."""
    from bench import gpu_allreduce
    from gcodec.benchmark.csv_tables import read_table

    assert gpu_allreduce.main(["--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / "gpu-allreduce.csv")
    assert len(rows) == 8 and {row["dtype"] for row in rows} == set(gpu_allreduce.TYPES)
    assert all(float(row["milliseconds"]) > 0 for row in rows)


@pytest.mark.slow
def test_the_benchmark_of_compressors_verifies_and_compares_them(tmp_path):
    from bench import compressors, contests, hooks
    from gcodec.benchmark.csv_tables import read_table

    assert compressors.main(["--quick", "--values", "50000", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / compressors.FILE)
    assert {row["contest"] for row in rows} == set(contests.CONTESTS)
    assert all(float(row["of_best"]) > 0.95 for row in rows if row["contest"] == "choose")
    methods = {row["method"] for row in rows}
    assert methods >= {compressors.TORCH, compressors.PYTORCH, compressors.HALF, hooks.PYTORCH, hooks.HALF, "GradZip"}
    page = contests.compressors_table(tmp_path)
    assert sum(line.startswith("| ") for line in page) == len(rows) + 2 * len(contests.CONTESTS)


def test_the_benchmark_of_controllers_verifies_and_times_them(tmp_path):
    from bench import controllers
    from gcodec.benchmark.csv_tables import read_table

    assert controllers.main(["--quick", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / controllers.FILE)
    assert {row["contest"] for row in rows} == {"decide", "levels"}
    assert all(0 < float(row["bytes_saved"]) < 1 for row in rows if row["contest"] == "decide")


def test_sizes_of_peers_at_their_levels_have_rows(gradient):
    from bench import levels, sizes

    names = [peer.name for peer in levels.all_levels()]
    assert len(names) == len(set(names))
    chosen = [peer for peer in levels.all_levels() if peer.name in ("zstd-1", "zstd-9", "shuffle+zstd-1")]
    notes: list[str] = []
    rows = list(sizes.sweep([gradient, gradient], [*chosen, peers.Peer("broken", "", broken)], notes))
    assert len(notes) == 1
    results = {str(row[4]): row for row in rows}
    assert results.keys() >= {"gcodec", "shuffle+zstd-1"}
    assert results["gcodec"][6] == settings.lossless_setting(gradient).task().verify()
    assert all(row[9] == int(float(str(row[7])) >= sizes.RATE) for row in rows)


def test_the_table_of_smaller_peers_counts_fast_enough_levels_only(tmp_path):
    from bench import sections, sizes, targets

    def row(step: int, codec: str, size: int, qualifies: int, group: str = "parameters") -> list[object]:
        return ["cnn", step, group, "float32", codec, 1000, size, "0.5", "0.5", qualifies]

    csv_tables.write_table(tmp_path / "levels.csv", sizes.COLUMNS, [
        row(1, "gcodec", 500, 1), row(1, "slow", 400, 0), row(1, "fast", 510, 1),
        row(2, "gcodec", 501, 1), row(2, "slow", 400, 0), row(2, "fast", 500, 1),
        row(3, "gcodec", 550, 1, "state"), row(3, "slow", 400, 0, "state"), row(3, "fast", 500, 1, "state"),
    ])
    results = list(sections.contests(tmp_path))
    assert [contest.codec for contest in results] == ["fast"] * 3
    assert [round(contest.margin, 2) for contest in results] == [-1.96, 0.2, 10]
    assert sections.levels_ahead(tmp_path)[0] == "A peer is smaller on 2 of 3 dumps:"
    assert targets.targets(tmp_path)[2].endswith("| 1 of 3 dumps smaller, 1 of parameters tied, 1 not |")


def test_times_of_stages_add_up_to_the_whole(gradient):
    from bench import stages

    for setting, stage in ((settings.lossless_setting(gradient), "planes"),
                           (settings.near_lossless_setting(gradient), "rounding")):
        rows = list(stages.rows_of("a", setting, 1))
        for direction in ("encode", "decode"):
            times = {str(row[3]): float(str(row[5])) for row in rows if row[2] == direction}
            whole, _ = times.pop("whole"), times.pop("floor")
            assert sum(times.values()) == pytest.approx(whole, rel=1e-3, abs=0.01)
            assert stages.PYTHON in times
        assert stage in {row[3] for row in rows}


def test_speeds_are_measured_on_the_native_and_the_portable_path(gradient, tmp_path, monkeypatch):
    from bench import sections, speed, targets

    def inputs(folder, values):
        assert folder == tmp_path
        yield "cnn gradients fp32", [settings.lossless_setting(gradient), settings.near_lossless_setting(gradient)]

    monkeypatch.setattr(speed, "inputs_of", inputs)
    monkeypatch.setattr(speed, "elsewhere", lambda path, *arguments: speed.here(*arguments))
    assert speed.main(["--data", str(tmp_path), "--out", str(tmp_path), "--quick"]) == 0
    _, rows = csv_tables.read_table(tmp_path / "speed.csv")
    assert [(row["mode"], row["path"]) for row in rows] == [
        (mode, path) for path in (speed.NATIVE, speed.PORTABLE) for mode in ("lossless", "near-lossless")]
    assert len(sections.speed_table(tmp_path)) == 8
    monkeypatch.setattr(targets, "SPEEDS", {("lossless", "fp32"): (0.35, 0.35)})
    results = [line for line in targets.targets(tmp_path) if "code:" in line]
    assert len(results) == 4 and results[-1].endswith("the same bytes |")
    changed = iter(["a", "b", "c", "b"])
    monkeypatch.setattr(speed, "xxh3_128_hexdigest", lambda data: next(changed))
    assert speed.main(["--data", str(tmp_path), "--out", str(tmp_path), "--quick"]) == 1


def test_rates_are_measured_for_every_size(gradient):
    from bench import scaling

    rows = list(scaling.rates(gradient.bits, [4096, 1 << 15], 1))
    assert [row[0] for row in rows] == [4096] * 6 + [1 << 15] * 6
    assert len({row[4] for row in rows[1:5]}) == 1
    assert scaling.of_size(gradient.bits, 4).bits.size == 1
    assert [row[:2] for row in scaling.calls_of(gradient.bits, 1)] == [
        [1, "existing"], [1, "new"], [1024, "existing"], [1024, "new"]]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_measured_encoding_and_decoding_need_little_memory():
    from bench import memory

    result = memory.in_child("peaks", "gcodec", 64 << 20)
    assert result["decode_extra_bytes"] < (64 << 20) // 10 + (4 << 20)
    assert result["encode_extra_bytes"] < result["encoded_bytes"] + (64 << 20) // 5 + (4 << 20)
    assert "growth_bytes" in memory.in_child("growth", "gcodec", 1 << 16, 20)


@pytest.mark.slow
def test_vocabulary_layers_are_recorded_and_measured(tmp_path):
    pytest.importorskip("torch")
    from bench import plots, prediction, record, sections

    plan = {"lstm": record.QUICK_PLANS["lstm"]}
    record.record(tmp_path, plan, lambda: record.Watcher((1, 3), (2, 4)), show=False)
    first, last = (read_dump(path) for path in sorted((tmp_path / "lstm").glob("*.safetensors")))
    assert (last.optimizer, last.hyper("head.weight")["momentum"]) == ("SGD", 0.9)
    assert last.state("lstm.weight_hh_l0").keys() == {"momentum_buffer"}
    whole = np.concatenate([gradient.ravel() for _, gradient in first.grads()])
    assert np.linalg.norm(whole) < 0.51     # clipped
    assert prediction.main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    _, rows = csv_tables.read_table(tmp_path / "prediction.csv")
    assert len({(row["layer"], row["step"], row["batch"]) for row in rows}) == 8
    assert len(sections.prediction_table(tmp_path)) > 10
    plots.prediction(tmp_path, tmp_path / "prediction.png")
    assert (tmp_path / "prediction.png").stat().st_size > 1000


def test_optimizer_state_is_scaled_into_float16():
    dump = read_dump(CORPUS / "transformer-step-000400.safetensors")
    state = inputs.tensors(dump, "transformer", inputs.STATE, "float16")
    assert np.isfinite(state.values).all()
    first, second = np.split(state.values.astype(np.float32), 2)
    assert all(2.0**13 <= np.abs(part).max() <= 2.0**15 for part in (first, second))


@pytest.fixture(params=["gcodec", "gcodec near-lossless", "gcodec message", "gcodec archive"])
def damaged(request):
    """Return one of our own contestants of bench.corruption, by name: what makes and reads what is damaged."""
    if sys.platform == "win32":
        pytest.skip("forks")
    from bench import corruption

    if request.param not in corruption.contestants():
        pytest.skip("needs torch")
    return request.param, corruption.contestants()[request.param]


@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_bit_flips_and_truncations_of_frames_messages_and_archives_are_noticed(damaged):
    from bench import corruption

    result = corruption.examine(damaged[1], corruption.sample(CORPUS), 300, 200)
    assert {kind: dict(counts) for kind, counts in result.items()} == {
        "bit flip": {"detected": 300}, "truncation": {"detected": 200}}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded")
def test_ten_thousand_bit_flips_and_every_truncation_are_noticed(damaged):
    from bench import corruption

    name, contestant = damaged
    result = corruption.examine(contestant, corruption.sample(CORPUS), corruption.TRIALS, None)
    n_cases = sum(counts.total() for counts in result.values())
    n_detected = sum(counts["detected"] for counts in result.values())
    reliability.record(f"bit flips and every truncation: {name}", n_cases, n_cases - n_detected,
                       f"{100 * n_detected / n_cases:g} % detected")
    assert result["bit flip"] == {"detected": corruption.TRIALS}
    assert n_detected == n_cases
