"""The laws of the distributed benchmarks, without their network: rows, formulas, checks, tables, pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.paths import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from bench.cluster import (  # noqa: E402
    __main__,
    accuracies,
    allreduce,
    bed,
    bits,
    buffers,
    bypass,
    checks,
    coders,
    compressed,
    controllers,
    counters,
    definitions,
    drops,
    layerwise,
    methods,
    model,
    pictures,
    runs,
    scaling,
    step_costs,
    sweep,
    tables,
    team,
    training,
)
from bench.experiments import gravac_methods  # noqa: E402
from bench.pictures import main as draw_stale  # noqa: E402
from gcodec.benchmark.csv_tables import read_table, write_named  # noqa: E402
from gcodec.distributed.stats import Counters  # noqa: E402

# The bed


def test_rates_are_read_as_tc_writes_them():
    assert bed.bits_per_second("100mbit") == 1e8
    assert bed.bits_per_second("2.5gbit") == 2.5e9
    assert bed.bits_per_second(bed.UNSHAPED) == float("inf")
    with pytest.raises(bed.BedError, match="no rate"):
        bed.bits_per_second("fast")


def test_cluster_benchmarks_are_skipped_without_root(monkeypatch, capsys):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    sweeps = bypass.SWEEP, compressed.SWEEP, controllers.SWEEP
    for main in (__main__.main, allreduce.main, runs.main, *(item.main for item in sweeps)):
        assert main([]) == 0
        assert capsys.readouterr().out == "skipped: network namespaces need root\n"


def test_cluster_benchmarks_are_skipped_without_tools(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "tc" else "/sbin/ip")
    assert bed.obstacle() == "there is no tc here (package iproute2)"


def test_test_beds_do_not_share_namespaces():
    item, other = bed.Bed(2), bed.Bed(2)
    assert {item.namespace(rank) for rank in range(2)}.isdisjoint(other.namespace(rank) for rank in range(2))
    assert item.inside(1) == ["ip", "netns", "exec", item.namespace(1)]


def test_workers_are_told_rank_and_size_in_their_environment():
    outcome = team.environment(bed.Bed(4), 3)
    assert (outcome["RANK"], outcome["WORLD_SIZE"], outcome["LOCAL_WORLD_SIZE"]) == ("3", "4", "4")
    assert outcome["MASTER_ADDR"] == bed.Bed(4).address(0)


class Here(bed.Bed):
    """A bed of workers without a network: commands run as they are."""

    def inside(self, rank: int) -> list[str]:
        return ["env", f"HERE={rank}"]


def test_a_failing_worker_ends_the_others():
    script = "import os, sys, time; time.sleep(60 * (os.environ['HERE'] == '0')); sys.exit('it was me')"
    with pytest.raises(team.WorkerError, match=r"rank 1 has failed with status 1:\nit was me"):
        team.run_all(Here(2), [sys.executable, "-c", script], 50)
    with pytest.raises(team.WorkerError, match="time is up"):
        team.run_all(Here(2), [sys.executable, "-c", "import time; time.sleep(60)"], 0.5)
    team.run_all(Here(2), [sys.executable, "-c", "assert '{rank}' in '01' and '{size}' == '2'"], 50)


def test_workers_of_a_team_answer_by_rank(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    (tmp_path / "echo.py").write_text(
        "import os\nfrom bench.cluster.team import serve\n"
        "def answer(command, **more):\n    print('noise')\n    return [os.environ['RANK'], command, 1 // more['by']]\n"
        "serve(answer)\n"
    )
    with team.Team(Here(2), "echo") as members:
        assert members.ask(command="a", by=1) == [["0", "a", 1], ["1", "a", 1]]
        with pytest.raises(team.WorkerError, match="ZeroDivisionError"):
            members.ask(command="b", by=0)


def test_traffic_is_read_by_interface_and_subtracted():
    assert counters.traffic("lo").sent >= 0
    assert counters.traffic("no such interface") == counters.Traffic(0, 0)
    assert counters.Traffic(5, 7) - counters.Traffic(2, 3) == counters.Traffic(3, 4)


# Other codecs in the exchange


@pytest.mark.parametrize("name", coders.CODECS)
def test_coders_of_peers_return_every_bit(name):
    values = np.random.default_rng(1).normal(size=5000).astype(np.float32)
    values[:2000] = 0
    words, out, back = values.view(np.uint32), np.empty(30_000, np.uint8), np.empty(5000, np.uint32)
    rounded = np.empty_like(back)
    coder = coders.PeerCoder(coders.CODECS[name](), Counters())
    size = coder.encode(words, 0, 0, out, rounded)
    coder.decode(out[:size], back)
    assert np.array_equal(back, words)
    assert np.array_equal(rounded, words)
    assert (size < words.nbytes) == (name != "no codec")
    assert coder.counters.encoded_bytes == coder.counters.decoded_bytes == words.nbytes


# Verification


def share() -> Any:
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 100))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.state[parameter]["momentum_buffer"] = torch.zeros(100)
    return buffers.Share([parameter], optimizer, [], "none")


def test_deviations_of_a_step_are_those_worked_out_by_hand():
    parts = torch.full((2, 100), 1e-3)
    exact = checks.ordered_mean(parts)
    assert checks.step_deviation(exact, parts, share()) == 0
    error = 3 * 2.0**-24 / 0.1  # of a gradient: three half ulps of a parameter of 1 at a rate of 0.1
    moved = exact.clone()
    moved[0] += error
    assert checks.step_deviation(moved, parts, share()) == pytest.approx(3, rel=0.01)


def test_checks_find_wrong_results_of_every_method(monkeypatch):
    monkeypatch.setattr(checks, "_alike", lambda result: True)
    parts = torch.randn((2, 100), generator=torch.Generator().manual_seed(1))
    exact = checks.ordered_mean(parts)
    for name in (methods.LOSSLESS, methods.FP32, methods.FP16, methods.BF16, methods.BF16_MODE, methods.NEAR, "zstd-1"):
        assert checks.check(name, exact, parts, share()) == 0
        wrong = exact.clone()
        wrong[3] += 0.1
        with pytest.raises(checks.WrongResultError, match=name):
            checks.check(name, wrong, parts, share())
    nudged = torch.nextafter(exact, torch.tensor(9.0))
    checks.check(methods.FP32, nudged, parts, share())
    with pytest.raises(checks.WrongResultError, match="bit for bit"):
        checks.check("zlib-1", nudged, parts, share())
    monkeypatch.setattr(checks, "_alike", lambda result: False)
    with pytest.raises(checks.WrongResultError, match="different bits"):
        checks.check(methods.FP32, exact, parts, share())


def test_a_perturbed_model_is_one_ulp_away():
    module = torch.nn.Linear(30, 30)
    before = module.weight.detach().clone()
    training.perturb(module, 1)
    apart = module.weight.detach().view(torch.int32) - before.view(torch.int32)
    assert set(apart.unique().tolist()) == {-1, 1}


# Rows


def answers(seconds: float) -> list[dict[str, Any]]:
    tally = Counters(sent_bytes=40.0, encode_seconds=seconds / 4).numbers()
    return [
        {"seconds": seconds * factor, "processor": seconds, "sent": 100, "received": 100, "tally": tally}
        for factor in (1, 2)
    ]


def test_rows_of_an_all_reduce_are_medians_of_the_slowest_ranks():
    results = {name: allreduce.Series() for name in (methods.FP32, methods.NEAR, methods.NEAR + methods.WIRE)}
    for seconds in (1.0, 2.0, 3.0):
        for series in results.values():
            series.add(answers(seconds))
    row = allreduce.row_of(methods.NEAR, results, "1gbit", 50, 2)
    assert (row["rounds"], row["seconds"], row["normalized"]) == (3, "4.00000", "1.0000")
    assert (row["nic_bytes"], row["ratio"], row["encode_seconds"]) == ("100", "2.0000", "0.50000")
    assert row["line_share"] == f"{800 / 4 / 1e9:.4f}"
    assert allreduce.line_share(1.0, 1.0, bed.UNSHAPED) == ""
    assert allreduce.wire_seconds("zlib-1", {"zlib-1": allreduce.Series()}) is None


def result(steps: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(2)
    curves = {}
    for number, name in enumerate((*runs.ALL, training.BYPASS)):
        losses = np.linspace(3, 1, steps) + (name != training.FP32) * 1e-3 * random.normal(size=steps)
        stats = {"bits_per_symbol": 3.0} if "gcodec" in name else {}
        stats |= dict.fromkeys(("sent_bytes", "refresh_bytes", "encode_seconds", "decode_seconds", "wait_seconds"), 8.0)
        curves[name] = {
            "losses": losses.tolist(),
            "seconds": [0.1 + number / 100] * steps,
            "sent": [1000 - 100 * number] * steps,
            "calls": [(8 * n, 2 * n) for n in range(steps)],
            "bits": [3.0] * steps * ("gcodec" in name),
            "entropies": [2.9] * steps * ("gcodec" in name),
            "stats": stats if "gcodec" in name else {},
        }
    return {"model": "cnn", "workers": 2, "rate": "1gbit", "seed": 1, "batch": 8, "runs": curves}


def accurate() -> dict[str, Any]:
    """Return runs of three blocks: float32 takes 0.1 s a step, torch's hook 0.08, near-lossless 0.1, "bf16" 0.06."""
    of = dict(
        zip(
            accuracies.METHODS,
            ((0.1, 400, ""), (0.08, 200, ""), (0.1, 400, "uncompressed"), (0.06, 100, "compressed")),
            strict=True,
        )
    )
    block, settle = accuracies.BLOCK, accuracies.SETTLE
    return {
        "model": "gpt",
        "workers": 2,
        "rate": "1gbit",
        "runs": {
            name: {
                "seconds": [9.0] * (block + settle * bool(way)) + [seconds] * 2 * block,
                "sent": [7] * (block + settle * bool(way)) + [n_bytes] * 2 * block,
                "stats": {"bypass_way": way},
            }
            for name, (seconds, n_bytes, way) in of.items()
        },
    }


def test_steps_at_an_accuracy_are_compared_block_by_block():
    rows = list(accuracies.rows_of(accurate()))
    assert [row["of_fp32"] for row in rows] == ["1.000", "0.800", "1.000", "0.600"]
    assert [row["of_bf16"] for row in rows] == ["1.250", "1.000", "1.250", "0.750"]
    assert [row["bytes_of_fp32"] for row in rows] == ["1.000", "0.500", "1.000", "0.250"]
    assert {row["steps"] for row in rows} == {2 * accuracies.BLOCK}


def test_costs_of_a_step_are_medians_without_the_first_steps():
    first, rest = [9.0] * runs.IGNORED, [1.0, 2.0, 6.0]
    found = {
        "model": "gpt",
        "workers": 2,
        "rate": bed.UNSHAPED,
        "runs": {
            name: {
                "processor": [*first, *rest],
                "seconds": [*first, *(2 * seconds for seconds in rest)],
                "sent": [7.0] * runs.IGNORED + [n_bytes] * 3,
            }
            for name, n_bytes in ((training.FP32, 100.0), (training.EIGHT_BITS, 20.0))
        },
    }
    rows = list(step_costs.rows_of(found))
    assert [(row["processor_seconds"], row["step_seconds"], row["bytes_of_fp32"]) for row in rows] == [
        ("2.00000", "4.00000", "1.0000"),
        ("2.00000", "4.00000", "0.2000"),
    ]


def controlled() -> dict[str, Any]:
    """Return the dense run, and the same with counts of a controller's."""
    dense = result()["runs"][training.FP32]
    gravac = {**dense, "stats": {"compressor": {"float_ratio": 8.0}}}
    return {**result(), "runs": {training.FP32: {**dense, "stats": {}}, controllers.METHODS[4]: gravac}}


def test_rows_of_a_training_compare_methods_with_fp32():
    rows = list(runs.step_rows(result()))
    assert [row["method"] for row in rows] == [*runs.TIMED, training.BYPASS]
    assert (rows[0]["of_fp32"], rows[4]["bytes_of_fp32"], rows[4]["bytes_of_bf16"]) == ("1.0000", "0.6000", "0.7500")
    curve = [row for row in runs.training_rows(result()) if row["method"] == training.FP32]
    assert [row["step"] for row in curve] == [10, 20, 30, 40]
    assert float(str(curve[-1]["elapsed_seconds"])) == pytest.approx(4.0)
    results = list(runs.deviation_rows([result(), result()]))
    assert {row["method"] for row in results} == {*runs.ALL, training.BYPASS} - {training.FP32}
    assert sum(int(str(row["count"])) for row in results if row["method"] == training.NEAR) == 80
    assert runs.settled([*[0.0] * runs.SETTLED, 2.0, 4.0] + [3.0] * 98) == pytest.approx(3.0)
    moved = result()
    moved["runs"] = {training.NOTHING: {**moved["runs"][training.FP32], "seconds": [0.05] * 40}, **moved["runs"]}
    results = list(compressed.rows_of(moved))
    assert [row["method"] for row in results] == list(moved["runs"])[1:]
    assert {row["compute_seconds"] for row in results} == {"0.05000"}
    assert [row["communication_seconds"] for row in results[:2]] == ["0.05000", "0.06000"]
    assert [row["times_faster"] for row in results[:2]] == ["1.000", "0.909"]
    table = list(controllers.rows_of(controlled()))
    assert [(row["method"], row["times_faster"], row["float_ratio"]) for row in table] == [
        (training.FP32, "1.000", "1.00"),
        (controllers.METHODS[4], "1.000", "8.00"),
    ]
    assert all(name in gravac_methods.METHODS for name in controllers.METHODS[1:])
    assert list(bypass.rows_of(result()))[-1]["compressed_share"] == "0.750"


def test_a_sweep_that_is_cut_off_keeps_its_rows(monkeypatch, tmp_path):
    asked = []

    def train(model, rate, steps, seed, methods, small, more):
        asked.append((model, rate, steps, small))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return result() if methods == bypass.SWEEP.methods else controlled()

    monkeypatch.setattr(sweep, "obstacle", lambda: None)
    monkeypatch.setattr(sweep, "clean_up_when_told_to_end", lambda: None)
    monkeypatch.setattr(sweep, "train", train)
    with pytest.raises(KeyboardInterrupt):
        controllers.SWEEP.main(["--out", str(tmp_path), "--steps", "9"])
    assert asked == [("lstm", runs.RATE, 9, False), ("lstm", controllers.SLOW_RATE, 9, False)]
    assert len(read_table(tmp_path / controllers.FILE)[1]) == 2
    assert bypass.SWEEP.main(["--quick", "--out", str(tmp_path)]) == 0
    assert asked[2:] == [("cnn", bed.UNSHAPED, 60, False)]


def test_a_sweep_adds_to_what_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "obstacle", lambda: None)
    monkeypatch.setattr(sweep, "clean_up_when_told_to_end", lambda: None)
    monkeypatch.setattr(sweep, "train", lambda model, rate, *_: controlled() | {"model": model, "rate": rate})
    for arguments, rates in (
        (["--rate", runs.RATE], [runs.RATE]),
        (["--rate", "100mbit", "--add"], [runs.RATE, "100mbit"]),
        (["--rate", runs.RATE, "--add"], ["100mbit", runs.RATE]),
        (["--rate", "100mbit"], ["100mbit"]),
    ):
        assert controllers.SWEEP.main([*arguments, "--out", str(tmp_path)]) == 0
        rows = read_table(tmp_path / controllers.FILE)[1]
        assert list(dict.fromkeys(row["rate"] for row in rows)) == rates
        assert len(rows) == 2 * len(rates)


def test_all_reduces_add_to_what_is_there(monkeypatch, tmp_path):
    def measured(options, _data, model, workers):
        names, values = ("model", "workers", "method", "values"), (model, workers, methods.FP32, len(options.rate))
        return ({**dict(zip(names, values, strict=True)), "rate": rate} for rate in options.rate)

    for name, stand_in in (
        ("obstacle", lambda: None),
        ("clean_up_when_told_to_end", lambda: None),
        ("dumps_of", lambda *_: None),
        ("_of_bed", measured),
    ):
        monkeypatch.setattr(allreduce, name, stand_in)
    for arguments, outcome in (
        (["--rate", "1gbit"], [("1gbit", "1")]),
        (["--rate", "2gbit", "--rate", "1gbit", "--add"], [("2gbit", "2"), ("1gbit", "2")]),
        (["--rate", "100mbit", "--add"], [("2gbit", "2"), ("1gbit", "2"), ("100mbit", "1")]),
    ):
        command = [*arguments, "--model", "lstm", "--workers", "4", "--out", str(tmp_path)]
        assert allreduce.main(command) == 0
        assert [(row["rate"], row["values"]) for row in read_table(tmp_path / allreduce.FILE)[1]] == outcome


def test_bits_of_exponents_are_counted_by_table():
    watcher = bits.Watcher("m", 1)
    counts = np.zeros(bits.SYMBOLS, np.int64)
    counts[[0, 120]] = 8, 8
    for step in range(1, bits.INTERVAL + 3):
        watcher.count(step, counts if step == 1 else np.roll(counts, 1))
    rows = [row for row in watcher.rows if row["step"] == bits.INTERVAL + 2 and row["code"] == "native Huffman"]
    results = {row["table"]: float(str(row["bits_per_exponent"])) for row in rows}
    assert (results[bits.FRESH], results[bits.BEFORE], results[bits.STALE]) == (1, 1, 9)  # an escape bit and 8 more
    assert 1 < results[bits.REFRESHED] <= 2  # made of the first step, too
    zeros = bits.exponent_counts([np.array([0.0, 1.0, -1.0, 2.0], np.float32)])
    assert (zeros[0], zeros[128], zeros[129]) == (1, 2, 1)


# The model


def test_formulas_of_the_model_agree_with_hand_calculation():
    assert model.ring(1e6, 4, 1e-3, 8e-9) == pytest.approx(6e-3 + 1.5 * 8e-3)
    assert model.tree(1e6, 4, 1e-3, 8e-9) == pytest.approx(4e-3 + 4 * 8e-3)
    costs = model.Costs(encode=1e9, decode=2e9, ratio=4.0)
    assert costs.codec_seconds(1e9, 2) == pytest.approx(1 + 0.5)
    best, serial = model.compressed(1e9, 2, 0, 8e-9, costs)
    assert serial == pytest.approx(2.0 + 1.5)
    assert best == pytest.approx(2.0 + 1.5 / model.PIECES)
    limit = model.break_even(2, costs)
    assert limit == pytest.approx(8 * 0.75 / 1.5e-9)
    assert model.compressed(1e9, 2, 0, 8 / limit, costs)[1] == pytest.approx(model.ring(1e9, 2, 0, 8 / limit))


def test_modeled_steps_wait_for_what_the_backward_pass_does_not_hide():
    """On a link without cost only the codec's time is left; on one that costs all, the traffic's."""
    costs = model.Costs(encode=1e9, decode=2e9, ratio=4.0)
    assert scaling.step_seconds(3.0, 1e9, 2, 0.0, 0.0) == pytest.approx(3.0)
    assert scaling.step_seconds(3.0, 1e9, 2, 0.0, 0.0, costs) == pytest.approx(3.0 + 1.5)
    first = 1.0 + 2.0 / scaling.BUCKETS
    assert scaling.step_seconds(3.0, 1e9, 2, 0.0, 1e-7) == pytest.approx(first + model.ring(1e9, 2, 0.0, 1e-7))
    assert scaling.step_seconds(3.0, 1e9, 2, 0.0, 1e-7, costs) < scaling.step_seconds(3.0, 1e9, 2, 0.0, 1e-7)
    steps = [scaling.step_seconds(3.0, 1e9, n, 1e-3, 8e-9) for n in scaling.MODELED_WORKERS]
    assert steps == sorted(steps)


# Tables and pictures


def test_steps_of_more_workers_are_compared_with_steps_that_send_nothing(tmp_path):
    seconds = {training.NOTHING: 0.05, training.FP32: 0.2, training.NEAR: 0.1}
    found = {**result(), "runs": {name: {"seconds": [each] * 9} for name, each in seconds.items()}}
    write_named(tmp_path / scaling.FILE, scaling.rows_of(found))
    _, rows = read_table(tmp_path / scaling.FILE)
    assert [(row["efficiency"], row["times_faster"]) for row in rows] == [("0.2500", "1.0000"), ("0.5000", "2.0000")]
    assert len(scaling.measured_table(tmp_path)) == 2 + len(rows) + 2
    assert scaling.main(["--modeled", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / scaling.MODEL)
    assert len(rows) == 2 * 2 * len(scaling.MODELED_WORKERS) * len(scaling.GBPS)
    assert any(line.startswith("| cnn | 10 Gb/s |") for line in scaling.model_table(tmp_path))


def test_layerwise_settings_are_compared_with_the_uniform_one(tmp_path):
    run = {"losses": [1.0] * 9, "sent": [8] * 9, "stats": {"compressor": {"ratio": 4.0}}}
    found = {
        **result(),
        "runs": {name: {**run, "seconds": [0.1 / (1 + number)] * 9} for number, name in enumerate(layerwise.METHODS)},
    }
    found["runs"][training.FP32]["stats"] = {}
    write_named(tmp_path / layerwise.FILE, layerwise.rows_of(found))
    _, rows = read_table(tmp_path / layerwise.FILE)
    assert [row["of_uniform"] for row in rows] == ["0.500", "1.000", "1.500", "2.000"]
    assert [row["payload_ratio"] for row in rows] == ["1.00", "4.00", "4.00", "4.00"]
    assert len(layerwise.table(tmp_path)) == 2 + len(rows) + 2


def test_steps_of_each_learning_rate_are_compared_with_dense_ones_of_the_same(tmp_path):
    begun = {
        name: {
            "losses": [3.0] * 50 + [2.0] * 50,
            "sent": [100] * 50 + [100 - 10 * number] * 50,
            "seconds": [0.1 * (1 + number)] * 50 + [0.2] * 50,
            "stats": {},
        }
        for number, name in enumerate(drops.METHODS)
    }
    found = {**result(), "runs": begun, "drops": [50], "learning_rates": [0.1] * 50 + [0.01] * 50}
    write_named(tmp_path / drops.FILE, drops.rows_of(found))
    _, rows = read_table(tmp_path / drops.FILE)
    by_rate = {rate: [row for row in rows if row["learning_rate"] == rate] for rate in ("0.1", "0.01", "all")}
    assert [len(part) for part in by_rate.values()] == [len(drops.METHODS)] * 3
    assert [row["bytes_of_fp32"] for row in by_rate["0.1"]] == ["1.0000"] * len(drops.METHODS)
    assert [float(row["bytes_of_fp32"]) for row in by_rate["0.01"]] == [1.0, 0.9, 0.8, 0.7, 0.6]
    assert [float(row["of_fp32"]) for row in by_rate["0.1"]] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert {row["loss"] for row in by_rate["0.01"]} == {row["loss"] for row in by_rate["all"]} == {"2.00000"}
    assert len(drops.table(tmp_path)) == 2 + len(rows) + 2


def made_up_results(folder: Path) -> None:
    names = allreduce.NAMES
    rows = []
    for rate in bed.RATES:
        results = {name: allreduce.Series() for name in names}
        for seconds in (0.1, 0.2, 0.3):
            for name, series in results.items():
                ranks = answers(seconds)
                for rank in ranks:
                    rank["tally"] |= {"decode_seconds": 0.01}
                    if name in (methods.FP32, methods.SMALL):
                        del rank["tally"]
                series.add(ranks)
        rows += [
            {"model": "cnn", "workers": 2, "rate": rate, "method": name, "values": 50}
            | allreduce.row_of(name, results, rate, 50, 2)
            | {"deviation": "1.5", "load": "0.1", "gradients": "cnn, step 600"}
            for name in names
        ]
    write_named(folder / allreduce.FILE, rows)
    write_named(folder / runs.TRAINING, runs.training_rows(result()))
    write_named(folder / runs.DEVIATIONS, runs.deviation_rows([result()]))
    write_named(folder / runs.STEPS, runs.step_rows(result()))
    write_named(folder / bypass.FILE, bypass.rows_of(result()))
    write_named(folder / accuracies.FILE, accuracies.rows_of(accurate()))
    still = result()
    still["runs"][training.NOTHING] = still["runs"][training.FP32]
    write_named(folder / compressed.FILE, compressed.rows_of(still))
    write_named(folder / controllers.FILE, controllers.rows_of(controlled()))
    watcher = bits.Watcher("cnn", 1)
    for step in (1, 2, 3):
        watcher.count(step, np.arange(bits.SYMBOLS))
    write_named(folder / bits.FILE, watcher.rows)


@pytest.mark.filterwarnings("ignore")
def test_tables_and_pictures_are_made_of_results(tmp_path, capsys):
    made_up_results(tmp_path)
    assert model.main(["--results", str(tmp_path)]) == 0
    assert draw_stale(["--results", str(tmp_path), "--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.glob("*.png")} == set(pictures.PICTURES)
    page = "\n".join(tables.section(tmp_path))
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(tables.PARTS)
    for name in pictures.PICTURES:
        assert f"images/{name}.png)" in page
    assert "| cnn | 2.000 |" in page
    assert tables.section(tmp_path / "nothing") == definitions.DEFINITIONS.splitlines()
    capsys.readouterr()
    once = tables.placed("# Page\n", ["a"])
    assert once == "# Page\n\n## Distributed training\n\n<!-- begin cluster -->\n\na\n\n<!-- end cluster -->\n"
    assert tables.placed(once, ["b"]) == once.replace("\na\n", "\nb\n")


def test_every_part_of_the_cluster_benchmarks_is_run():
    for quick in (False, True):
        names = [command[0] for command in __main__.commands(quick, Path("dumps"), Path("out"))]
        mains = {
            f"bench.cluster.{path.stem}"
            for path in (ROOT / "bench" / "cluster").glob("*.py")
            if '__name__ == "__main__"' in path.read_text()
        }
        assert mains - set(names) == {
            "bench.cluster.__main__",
            "bench.cluster.allreduce_worker",
            "bench.cluster.training",
        }
