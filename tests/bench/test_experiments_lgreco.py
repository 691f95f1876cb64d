"""The laws of L-GreCo's experiments: trainings that repeat, decisions that keep their promise, a consistent model."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from hypothesis import given
from hypothesis import strategies as st

from bench.experiments.lgreco import __main__ as experiments
from bench.experiments.lgreco import errors, methods, pictures, sections, tables
from bench.experiments.lgreco.matched import Matched
from bench.experiments.lgreco.trainings import Job, Training, train
from bench.experiments.lgreco.waiting import Load, step_seconds, waits, wire_seconds
from bench.pictures import draw
from gcodec.adaptive import LGreCo, Planner
from gcodec.benchmark.csv_tables import read_table, write_named

pytestmark = pytest.mark.usefixtures("one_thread")
SHORT = {"steps": 6, "period": 2}


@pytest.fixture(scope="module")
def trained():
    return {
        family: train(Job("pairs", "transformer", family, methods.LGRECO, 0, **SHORT))
        for family in methods.REFERENCES["transformer"]
    }


def test_decisions_lose_no_more_and_send_no_more_than_the_uniform_setting(trained):
    for training in trained.values():
        assert [decision.step for decision in training.decisions] == [2, 4]
        for decision in training.decisions:
            assert decision.error <= 1 + 1e-6
            assert decision.cost <= 1
        assert training.same


def test_the_same_seed_makes_the_same_decisions(trained):
    again = train(trained["PowerSGD"].job)
    assert again.decided == trained["PowerSGD"].decided
    assert again.decisions[-1].settings == trained["PowerSGD"].decisions[-1].settings
    assert again.quality == trained["PowerSGD"].quality
    assert again.total == trained["PowerSGD"].total


@pytest.mark.parametrize("family", methods.REFERENCES["vgg"])
def test_the_control_sends_as_many_bytes_as_lgreco_with_one_setting_for_all(family):
    training = train(Job("pairs", "vgg", family, methods.MATCHED, 0, **SHORT))
    assert len(training.decisions) == 2
    for decision in training.decisions:
        assert len(set(decision.settings)) == 1
    controller = methods.method_of("pairs", "vgg", family, methods.MATCHED).make(
        methods.Setup(methods.REFERENCES["vgg"][family], 2, {}, {}, 0.01)
    )
    assert isinstance(controller, Matched)
    controller.start({name: tuple(mean.shape) for name, mean in training.means.items()}, 2)
    choices = controller.inner.decide(training.means)
    wanted = sum(
        controller.inner.options[name][int(choice)].payload_bytes(mean.shape)
        for choice, (name, mean) in zip(choices, training.means.items(), strict=True)
    )
    (value,) = controller.decide(training.means)
    controller.apply([value])
    assert {setting.value for setting in controller.settings(1, None).values()} == {value}
    values = (value, 0.98 * value) if family == "Top-k" else (round(value), round(value) + 1)
    near = [
        abs(
            sum(controller.inner.reference.at(one).payload_bytes(mean.shape) for mean in training.means.values())
            - wanted
        )
        for one in values
    ]
    assert near[0] <= near[1] + 1e-6 * wanted


def test_sent_bytes_by_tensor_and_by_period_add_up(trained):
    for training in trained.values():
        for parts in (training.tensors.values(), training.periods):
            assert sum(part.payload_bytes for part in parts) == training.total.payload_bytes
        assert set(training.buckets.values()) <= set(range(1, methods.BUCKETS + 1))
        assert training.buckets["head.weight"] == 1
        assert max(training.buckets.values()) == training.buckets["embedding.weight"]


@pytest.mark.parametrize("part", methods.PARTS)
def test_every_method_makes_a_controller_of_its_own(part):
    for problem in methods.REFERENCES:
        result = methods.PARTS[part](problem)
        assert len({(item.family, item.name) for item in result}) == len(result)
        for method in result:
            assert methods.method_of(part, problem, method.family, method.name) is not None
            controller = method.make(methods.Setup(method.reference, 7, {"a": 1}, {"a": (4, 4)}, 0.01))
            assert not isinstance(controller, Planner) or controller.period == 7
            if isinstance(controller, LGreCo):
                assert controller.reference == method.reference


loads = st.builds(
    Load,
    st.floats(1e-3, 1),
    st.floats(0, 0.1),
    st.just((0.25, 0.25, 0.5)),
    st.tuples(*3 * [st.floats(0, 1e6)]),
    st.booleans(),
)


@given(loads, st.sampled_from([2, 4, 16]), st.sampled_from([0.1, 1.0, 10.0]))
def test_modeled_steps_lie_between_no_and_full_overlap(load, workers, gbps):
    seconds, last = step_seconds(load, workers, gbps)
    wires = [wire_seconds(n_bytes, workers, gbps, load.reduced) for n_bytes in load.n_bytes]
    minimum = max(load.compute + load.compress * load.shares[-1] + wires[-1], sum(wires) + load.compress)
    assert minimum * (1 - 1e-9) <= seconds <= (load.compute + load.compress + sum(wires)) * (1 + 1e-9)
    assert last == wires[-1]
    assert step_seconds(load, 1, gbps)[0] == pytest.approx(load.compute)
    assert step_seconds(load, workers, 2 * gbps)[0] <= seconds
    assert step_seconds(load, 2 * workers, gbps)[0] >= seconds
    waited = waits(load, workers, gbps)
    assert all(each >= 0 for each in waited)
    assert sum(waited) == pytest.approx(seconds - load.compute)


def test_power_iteration_comes_nearer_to_the_least_error_with_every_step(trained):
    rows = list(errors.low_rank(trained["PowerSGD"]))
    excess = [float(str(row["mean_excess_percent"])) for row in rows if row["mean_excess_percent"]]
    assert all(-1e-2 <= later <= sooner + 1e-2 for sooner, later in pairwise(excess))
    assert all(float(str(row["error_of_uniform"])) <= 1.1 for row in rows)


def test_a_part_without_time_is_left_out_whole():
    done: Future[Training] = Future()
    done.set_result(Training(Job("", "", "", "", 0, 1, 1)))
    assert experiments.fits(60, [done] * 4, 4, 120)
    assert not experiments.fits(60, [done] * 4, 5, 120)
    assert not experiments.fits(60, [done] * 4 + [Future()], 4, 120)


def test_parts_with_one_seed_are_repeated_only_when_named():
    again = [jobs[0] for _, jobs in experiments.parts_of(False, 2, None, ["replay"])]
    assert [(job.part, job.seed) for job in again] == [("replay", 0), ("replay", 1)]
    unnamed = [jobs[0] for _, jobs in experiments.parts_of(False, 2, None)]
    assert [job.seed for job in unnamed if job.part == "replay"] == [0]
    assert [job.seed for job in unnamed if job.part == "bit sweep"] == [0, 1]
    for wrong in (["--part", "bit sweep"], ["--family", "QSGD"], ["--quick", "--add", "1"]):
        with pytest.raises(SystemExit):
            experiments.main(wrong)


def test_compared_rows_have_seeds_in_common():
    rows = [{"method": method, "seed": seed} for method, seeds in (("a", "012"), ("b", "20")) for seed in seeds]
    assert [row["method"] + row["seed"] for row in sections.in_common(rows)] == ["a0", "a2", "b2", "b0"]


def test_rows_of_a_seed_are_added_once_and_others_stay(tmp_path, trained):
    path = tmp_path / tables.TRAININGS
    first = [tables.training_row(training) for training in trained.values()]
    write_named(path, first)
    comments, rows = read_table(path)
    later = [Training(replace(training.job, seed=2), quality=1.0) for training in trained.values()]
    later.append(Training(replace(later[0].job, part="bit sweep", seed=0)))  # a part that has no row of its seed
    for _ in range(2):
        tables.add_rows(path, [tables.training_row(item, timed=False) for item in later])
        said, result = read_table(path)
        assert result[: len(rows)] == rows
        assert [(row["seed"], row["decide_percent"]) for row in result[len(rows) :]] == [("2", "")] * 3 + [("0", "")]
        assert said[0] == comments[0]
        assert said[1].startswith(comments[1])


def test_untimed_tables_have_nothing_from_a_clock(tmp_path, trained):
    experiments.write(list(trained.values()), tmp_path, timed=False)
    _, rows = read_table(tmp_path / tables.TRAININGS)
    assert [row["decide_percent"] for row in rows] == [""] * len(trained)
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {tables.TRAININGS, tables.PERIODS, tables.TENSORS}


@pytest.mark.slow
def test_experiments_of_lgreco_run_from_end_to_end(tmp_path):
    assert experiments.main(["--quick", "--processes", "1", "--out", str(tmp_path)]) == 0
    _, rows = read_table(tmp_path / tables.TRAININGS)
    assert len(rows) == 1 + 3 * 3
    assert all(row["same_on_ranks"] == "1" for row in rows)
    _, rows = read_table(tmp_path / tables.OVERHEAD)
    assert {row["family"] for row in rows} == set(methods.REFERENCES["transformer"])
    again, left_out = experiments.run_all(list(experiments.parts_of(False, 1, 10))[:2], 1, 0, tmp_path, True)
    assert [training.total.payload_bytes for training in again] and left_out == ["pairs, vgg, seed 0"]
    results = {name: len(make(tmp_path)) for name, (make, _) in sections.PLACES.items()}
    # Of rivals there are none.
    assert all(lines > 1 or name == "lgreco-rivals" for name, lines in results.items()), results
    for name in pictures.PICTURES:
        assert draw(name, tmp_path, tmp_path).stat().st_size > 1000
