"""Codecs that are measured in turn: round trips of all, the peers included, before anything is timed."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from gcodec.benchmark import csv_tables, inputs, measure, peers, settings, timing
from gcodec.errors import GcodecError


@pytest.mark.filterwarnings("ignore")  # a peer's own
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
    assert np.array_equal(bits, kept)  # the input is as it was


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


def test_seconds_are_those_of_the_clock_that_is_given(gradient):
    now = iter(np.cumsum([0, 2, 3, 10, 4, 5, 10, 6, 7]).tolist())  # start, middle and end of three turns
    task = settings.lossless_setting(gradient).task()
    timings, _ = timing.interleave({"one": task}, rounds=3, budget=100, clock=now.__next__)
    assert timings["one"] == timing.Timing([2, 4, 6], [3, 5, 7])


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
    assert names == [
        ("raw", "memory copy"),
        ("lossless", "gcodec"),
        ("lossless", "gcodec, 2 threads"),
        ("lossless", "gcodec, new arrays"),
        ("lossless", "zstd-1"),
        ("near-lossless", "gcodec"),
        ("near-lossless", "gcodec, 2 threads"),
        ("7 mantissa bits", "gcodec"),
    ]
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


def test_sizes_of_peers_at_their_levels_have_rows(gradient):
    from bench import levels, sizes

    names = [peer.name for peer in levels.all_levels()]
    assert len(names) == len(set(names))
    chosen = [peer for peer in levels.all_levels() if peer.name in ("zstd-1", "zstd-9", "shuffle+zstd-1")]
    notes: list[str] = []
    rows = list(sizes.sweep([gradient, gradient], [*chosen, peers.Peer("broken", "", broken)], notes))
    assert len(notes) == 1
    results = {str(row["codec"]): row for row in rows}
    assert results.keys() >= {"gcodec", "shuffle+zstd-1"}
    assert results["gcodec"]["compressed_bytes"] == settings.lossless_setting(gradient).task().verify()
    assert all(row["qualifies"] == int(float(str(row["encode_GBps"])) >= sizes.RATE) for row in rows)
