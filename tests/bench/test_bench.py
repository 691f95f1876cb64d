"""Whole runs of the benchmarks, and of the commands ``gcodec bench`` and ``gcodec demo``."""

from __future__ import annotations

import contextlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcodec.benchmark import csv_tables, measure, settings
from gcodec.recorder import read_dump

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


def test_bench_of_a_few_bytes_takes_few_calls(tmp_path, monkeypatch):
    turns = []

    def interleave(tasks: dict[str, Any], rounds: int, budget: float, calls: int, *others: Any) -> tuple[Any, Any]:
        turns.append(calls)
        return {}, {}

    monkeypatch.setattr(measure, "interleave", interleave)
    for n, calls in ((2, measure.MAX_CALLS), (1 << 20, 8)):
        np.save(tmp_path / "a.npy", np.ones(n, np.float32))
        assert run_cli("bench", tmp_path / "a.npy", "--peers", "none", "--json")[0] == 0
        assert turns.pop() == calls


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
    assert names >= {
        "dumps",
        "results.csv",
        "sizes.csv",
        "updates.csv",
        "gradients.png",
        "ratios_and_zeros.png",
        "ratio.png",
        "exponent_coding.png",
        "mantissa_coding.png",
    }
    _, rows = csv_tables.read_table(tmp_path / "out" / "updates.csv")
    assert {row["model"] for row in rows} == {"cnn", "transformer"}


# Benchmarks of a checkout


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
            in_a_sentence = make in (sections.levels_ahead, report.peers_ahead)
            assert len(make(out)) > (0 if in_a_sentence else 3), file
    assert len(targets.targets(out)) == 2 + 1 + (6 + 2) + 2 + 1 + 7 + 4 + 3 + 1 + 5
    assert len({contest.model for contest in sections.contests(out)}) == 3


@pytest.mark.slow
def test_the_benchmark_of_gpu_allreduces_runs_on_the_host(tmp_path):
    """Measuring a device is tested in tests/gpu/test_pretended_device.py."""
    from bench import gpu_allreduce
    from gcodec.benchmark.csv_tables import read_table

    assert gpu_allreduce.main(["--quick", "--device", "cpu", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / "gpu-allreduce.csv")
    assert len(rows) == 14 and {row["dtype"] for row in rows} == set(gpu_allreduce.TYPES)
    assert {"DDP bucket, lossless, kept codebook", "DDP bucket, lossless, fresh codebook"} <= {
        row["mode"] for row in rows
    }
    assert all(float(row["milliseconds"]) > 0 for row in rows)


@pytest.mark.slow
def test_the_benchmark_of_compressors_verifies_and_compares_them(tmp_path):
    from bench import compressors, contests, hooks
    from gcodec.benchmark.csv_tables import read_table

    assert compressors.main(["--quick", "--values", "50000", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / compressors.FILE)
    assert {row["contest"] for row in rows} == {*contests.CONTESTS, "low rank"}
    assert all(float(row["of_best"]) > 0.95 for row in rows if row["contest"] == "choose")
    methods = {row["method"] for row in rows}
    assert methods >= {compressors.TORCH, compressors.PYTORCH, compressors.HALF, hooks.PYTORCH, hooks.HALF, "GradZip"}
    page = "\n".join(contests.compressors_table(tmp_path))
    assert page.count(" thread:") == len(contests.CONTESTS)
    assert all(f"| {row['method']} | " in page for row in rows if row["contest"] in contests.CONTESTS)


def test_the_benchmark_of_controllers_verifies_and_times_them(tmp_path):
    from bench import controllers
    from gcodec.benchmark.csv_tables import read_table

    assert controllers.main(["--quick", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / controllers.FILE)
    assert {row["contest"] for row in rows} == {"decide", "levels"}
    assert all(0 < float(row["bytes_saved"]) < 1 for row in rows if row["contest"] == "decide")


def test_times_of_stages_add_up_to_the_whole(gradient):
    from bench import stages

    for setting, stage in (
        (settings.lossless_setting(gradient), "planes"),
        (settings.near_lossless_setting(gradient), "rounding"),
    ):
        rows = list(stages.rows_of("a", setting, 1))
        for direction in ("encode", "decode"):
            own = [row for row in rows if row["direction"] == direction]
            times = {str(row["stage"]): float(str(row["ns_per_value"])) for row in own}
            whole, _ = times.pop("whole"), times.pop("floor")
            assert sum(times.values()) == pytest.approx(whole, rel=1e-3, abs=0.01)
            assert stages.PYTHON in times
        assert stage in {row["stage"] for row in rows}


def test_the_symbol_stage_is_measured_beside_other_coders_on_the_same_heads(gradient, tmp_path):
    from bench import entropy, sections

    with_peers = find_spec("openzl") is not None
    rows = list(entropy.rows_of(settings.lossless_setting(gradient), "x86-64-v3", 1, with_peers))
    assert [row["coder"] for row in rows] == [entropy.OURS, *(entropy.GRAPHS if with_peers else ())]
    assert all(0 < float(str(row["bits_per_head"])) <= 9 for row in rows)
    csv_tables.write_named(tmp_path / "entropy.csv", rows)
    assert sum(line.startswith(f"| {gradient.name} |") for line in sections.entropy_table(tmp_path)) == 3


def test_speeds_are_measured_on_the_native_and_the_portable_path(gradient, tmp_path, monkeypatch):
    from bench import sections, speed, targets

    def inputs(folder, values):
        assert folder == tmp_path
        yield "cnn gradients fp32", [settings.lossless_setting(gradient), settings.near_lossless_setting(gradient)]

    monkeypatch.setattr(speed, "inputs_of", inputs)
    monkeypatch.setattr(speed, "OWN", speed.NATIVE)  # on every CPU
    monkeypatch.setattr(speed, "elsewhere", lambda path, *arguments: speed.here(*arguments))
    assert speed.main(["--data", str(tmp_path), "--out", str(tmp_path), "--quick"]) == 0
    _, rows = csv_tables.read_table(tmp_path / "speed.csv")
    assert [(row["mode"], row["path"]) for row in rows] == [
        (mode, path) for path in (speed.NATIVE, speed.PORTABLE) for mode in ("lossless", "near-lossless")
    ]
    assert len(sections.speed_table(tmp_path)) == 6
    monkeypatch.setattr(targets, "SPEEDS", {("lossless", "fp32"): (0.35, 0.35)})
    results = [line for line in targets.targets(tmp_path) if "code:" in line]
    assert len(results) == 4 and results[-1].endswith("the same bytes |")
    changed = iter(["a", "b", "c", "b"])
    monkeypatch.setattr(speed, "xxh3_128_hexdigest", lambda data: next(changed))
    assert speed.main(["--data", str(tmp_path), "--out", str(tmp_path), "--quick"]) == 1


def test_rates_are_measured_for_every_size(gradient):
    from bench import scaling

    rows = list(scaling.rates(gradient.bits, [4096, 1 << 15], 1))
    assert [row["bytes"] for row in rows] == [4096] * 6 + [1 << 15] * 6
    assert len({row["compressed_bytes"] for row in rows[1:5]}) == 1
    assert scaling.of_size(gradient.bits, 4).bits.size == 1
    calls = [(row["values"], row["memory"]) for row in scaling.calls_of(gradient.bits, 1)]
    assert calls == [(1, "existing"), (1, "new"), (1024, "existing"), (1024, "new")]


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
    assert np.linalg.norm(whole) < 0.51  # clipped
    assert prediction.main(["--data", str(tmp_path), "--out", str(tmp_path)]) == 0
    _, rows = csv_tables.read_table(tmp_path / "prediction.csv")
    assert len({(row["layer"], row["step"], row["batch"]) for row in rows}) == 8
    assert len(sections.prediction_table(tmp_path)) > 10
    plots.prediction(tmp_path, tmp_path / "prediction.png")
    assert (tmp_path / "prediction.png").stat().st_size > 1000
