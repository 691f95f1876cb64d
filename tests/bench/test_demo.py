"""The laws of the demo's trainings, text, pictures and table, on short runs."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from gcodec.errors import GcodecError, InvalidArgument
from gcodec.recorder import read_dump

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from rich.console import Console

from gcodec.benchmark import report
from gcodec.demo import data, train
from gcodec.demo.figures import observations, plots
from tools import cut_corpus

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train both models for a few steps: (folder, name to outcome)."""
    folder = tmp_path_factory.mktemp("demo")
    outcomes = train.train_all(folder, train.QUICK_PLANS, show=False)
    return folder, {outcome.model: outcome for outcome in outcomes}


# Training


@pytest.mark.parametrize("model", train.QUICK_PLANS)
def test_training_writes_the_dumps_of_its_plan(trained, model):
    folder, outcomes = trained
    plan, outcome = train.QUICK_PLANS[model], outcomes[model]
    assert len(outcome.losses) == plan.steps
    assert np.isfinite(outcome.losses).all()
    assert [read_dump(path).step for path in outcome.dumps] == list(plan.recorded)
    assert {path.name for path in (folder / model).iterdir()} == {
        observations.OBSERVATIONS_FILE,
        *(path.name for path in outcome.dumps),
    }


def test_a_training_whose_rate_falls_begins_as_the_one_whose_rate_stays(trained, tmp_path):
    plan = train.plans_for(quick=True, drops=True)["cnn"]
    longer, shorter = train.train("cnn", tmp_path, plan), trained[1]["cnn"]
    assert longer.losses[: len(shorter.losses)] == pytest.approx(shorter.losses, rel=1e-4)
    rates = [read_dump(path).hyper("stem.weight")["lr"] for path in longer.dumps]
    assert rates == pytest.approx([0.05, 0.05, 0.005, 0.0005])


def test_the_cnn_trains_with_momentum(trained):
    first, last = (read_dump(path) for path in trained[1]["cnn"].dumps)
    assert last.optimizer == "SGD"
    hyper = last.hyper("stem.weight")
    assert (hyper["momentum"], hyper["weight_decay"]) == (0.9, 5e-4)
    assert first.state("stem.weight").keys() == set()
    assert last.state("stem.weight").keys() == {"momentum_buffer"}
    assert 300_000 < sum(gradient.size for _, gradient in last.grads()) < 1_000_000


def test_the_transformer_trains_with_adamw(trained):
    dump = read_dump(trained[1]["transformer"].dumps[-1])
    assert dump.optimizer == "AdamW"
    assert dump.hyper("head.weight")["weight_decay"] > dump.hyper("norm.weight")["weight_decay"] == 0
    assert dump.state("head.weight").keys() == {"exp_avg", "exp_avg_sq", "step"}
    embedding, head = dump.grad("embedding.weight"), dump.grad("head.weight")
    assert embedding.shape == head.shape
    assert (embedding == 0).all(axis=1).mean() > 0.5  # tokens that are not in the batch
    assert (head == 0).mean() < 0.01


def test_observations_agree_with_the_dumps(trained):
    for outcome in trained[1].values():
        entries = observations.read_observations(outcome.folder / observations.OBSERVATIONS_FILE)
        assert tuple(entries) == outcome.observations
        by_step = {entry.step: entry for entry in entries}
        for dump in map(read_dump, outcome.dumps):
            gradient = np.concatenate([g.ravel() for _, g in dump.grads()])
            entry = by_step[dump.step]
            assert (entry.count, entry.zeros) == (gradient.size, int((gradient == 0).sum()))
            assert entry.loss == outcome.losses[dump.step - 1]
            assert sum(entry.exponents) == gradient.size
            assert sum(entry.values) <= gradient.size - entry.zeros


def test_training_twice_gives_the_same_losses(trained, tmp_path):
    again = train.train("cnn", tmp_path, train.QUICK_PLANS["cnn"])
    assert np.allclose(again.losses, trained[1]["cnn"].losses, rtol=1e-3)


def test_the_train_command_trains_the_models_it_is_told(tmp_path, capsys):
    train.train_command([str(tmp_path), "--quick", "--model", "cnn"])
    assert "cnn: 2 dumps" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["cnn"]


def test_plans_record_within_their_steps():
    for plans in (train.PLANS, train.QUICK_PLANS):
        for plan in plans.values():
            assert 1 <= min(plan.recorded) <= max(plan.recorded) <= plan.steps


# Counting


def test_counts_of_exponents_and_ratios_are_those_made_by_hand():
    gradient = np.array([0.0, -0.0, 1.0, -1.5, 0.25, 1e-40], dtype=np.float32)
    counts = observations.exponent_counts(gradient)
    assert {int(e): int(counts[e]) for e in np.flatnonzero(counts)} == {0: 3, 125: 1, 127: 2}
    ratios = observations.ratio_counts(np.array([1e-3, 5.0, 0.0, 1e30]), np.array([1.0, 0.0, 1.0, 1.0]))
    centers = (observations.RATIO_EDGES[1:] + observations.RATIO_EDGES[:-1]) / 2
    assert ratios.sum() == 2
    assert ratios[-1] == 1
    assert abs(centers[np.flatnonzero(ratios)[0]] + 3) < 0.13


def test_the_range_of_values_stays_that_of_the_first_step():
    observer = observations.Observer()
    ones = np.ones(10, np.float32)
    first = observer.observe(1, 0.0, [(ones, ones), (-ones, ones)])
    second = observer.observe(2, 0.0, [(ones / 8, ones)])
    assert first.value_limit == second.value_limit == observations.VALUE_RANGE
    assert sum(first.values) == 20
    assert [observation.step for observation in observer.observations] == [1, 2]


# Data


@pytest.fixture(scope="module")
def library() -> str:
    return data.read_standard_library()


def test_the_vocabulary_is_large_and_deterministic(library):
    vocabulary = data.build_vocabulary(library)
    assert len(vocabulary) == data.VOCABULARY_SIZE >= 8000
    assert vocabulary == data.build_vocabulary(library)
    assert len(set(vocabulary.pieces)) == len(vocabulary.pieces)


def test_any_text_survives_encoding_into_tokens(library):
    vocabulary = data.build_vocabulary(library[:100_000], 500)
    for sample in (library[50_000:60_000], "", "naïve 日本語 🎉\r\n\t\x00 snake_case __init__ 3.14 "):
        tokens = vocabulary.encode(sample)
        assert tokens.dtype == np.int64
        assert vocabulary.decode(tokens) == sample
        assert tokens.max(initial=0) < len(vocabulary)


def test_frequent_pieces_are_single_tokens(library):
    vocabulary = data.build_vocabulary(library)
    assert len(vocabulary.encode("return self")) == 2
    assert len(vocabulary.encode(library[:100_000])) < 50_000


def test_a_limited_library_is_a_prefix_of_the_whole(library):
    assert data.read_standard_library(5000) == library[:5000]


def test_python_without_sources_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(GcodecError, match="no Python sources"):
        data.read_standard_library()


def test_digits_are_normalized_and_split():
    training, held_out = data.load_digits()
    assert training.images.shape == (1500, 1, 8, 8)
    assert held_out.images.shape == (data.HELD_OUT, 1, 8, 8)
    images = np.concatenate([training.images, held_out.images])
    assert images.dtype == np.float32
    assert abs(images.mean()) < 1e-5
    assert abs(images.std() - 1) < 1e-5


def test_batches_are_shifted_noisy_and_seeded():
    training, _ = data.load_digits()
    images, labels = training.batch(16, np.random.default_rng(1))
    again, _ = training.batch(16, np.random.default_rng(1))
    assert images.shape == (16, 1, 8, 8)
    assert labels.shape == (16,)
    assert images.dtype == np.float32
    assert np.array_equal(images, again)
    assert len(np.unique(images)) > 1000


def test_a_shift_of_an_image_does_not_wrap_around():
    image = np.zeros((1, 8, 8), np.float32)
    image[0, 7, 3] = 1
    assert data._shift(image, 0, 1)[0, 7, 4] == 1
    assert data._shift(image, -1, 0)[0, 6, 3] == 1
    assert data._shift(image, 1, 0).sum() == 0


# Pictures and table


def rows_for(series: str, value: str) -> list[dict[str, object]]:
    return [
        {"model": model, "step": step, series: name, value: 1.0 + index + 0.01 * step}
        for model in ("cnn", "other")
        for index, name in enumerate(("first", "second", "third"))
        for step in (1, 20, 100)
    ]


def check_picture(path) -> None:
    from matplotlib.image import imread

    assert path.read_bytes().startswith(PNG)
    pixels = imread(path)
    assert min(pixels.shape[:2]) > 300
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2])[::7], axis=0)) > 20


@pytest.mark.parametrize(
    ("plot", "series", "value"),
    [
        (plots.plot_ratio, "codec", "ratio"),
        (plots.plot_exponent_coding, "strategy", "bits_per_value"),
        (plots.plot_mantissa_coding, "strategy", "bits_per_value"),
    ],
)
def test_plots_of_series_are_drawn(plot, series, value, tmp_path):
    plot(rows_for(series, value), tmp_path / "new" / "picture.png")
    check_picture(tmp_path / "new" / "picture.png")
    item = [row for row in rows_for(series, value) if row["model"] == "cnn" and row["step"] == 1]
    plot(iter(item), tmp_path / "one.png")
    check_picture(tmp_path / "one.png")
    with pytest.raises(InvalidArgument, match="nothing to plot"):
        plot([], tmp_path / "none.png")


def test_plots_of_distributions_are_drawn(trained, tmp_path, capsys):
    plots.draw_command([str(trained[0]), str(tmp_path / "pictures")])
    printed = capsys.readouterr().out.split()
    assert len(printed) == 2
    for path in (tmp_path / "pictures").iterdir():
        check_picture(path)
    with pytest.raises(InvalidArgument, match="nothing to plot"):
        plots.plot_observations(tmp_path / "pictures", tmp_path)


def test_plotted_stages_run_from_the_first_step_to_the_last(trained):
    entry = trained[1]["cnn"].observations[0]
    many = [dataclasses.replace(entry, step=step) for step in (1, *range(10, 601, 10))]
    steps = [observation.step for observation in plots._spread(many)]
    assert len(steps) == plots.STAGES
    assert (steps[0], steps[-1]) == (1, 600)
    assert [observation.step for observation in plots._spread(many[:2])] == [1, 10]


def printed_at(width: int, table) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_table_of_results_fits_a_narrow_terminal():
    row = report.Row("transformer step 100", "near-lossless", "shuffle+zstd-1", 10**9, 10**8, 10**8, 1, 1)
    printed = printed_at(80, report.summarize([row]))
    assert "…" not in printed
    for number in ("100.00 MB", " 10.0 ", "10.00", "8.00", "1.00    1.00"):
        assert number in printed, printed


def test_the_table_of_results_shows_every_row():
    rows = [
        report.Row("cnn step 1", "lossless", "zlib-6", 4_000_000, 3_200_000, 1_000_000, 0.1, 0.02),
        report.Row("cnn step 1", "lossless", "ours", 4_000_000, 2_000_000, 1_000_000, 0.001, 0.002),
        report.Row("cnn step 20", "near-lossless", "ours", 4_000, 1_000, 1_000),
    ]
    ours = rows[1]
    assert (ours.percent, ours.ratio, ours.bits_per_value) == (50.0, 2.0, 16.0)
    assert (ours.encode_speed, ours.decode_speed) == pytest.approx((4.0, 2.0))
    assert rows[2].encode_speed is None
    table = report.summarize(rows, title="Sizes")
    printed = printed_at(140, table)
    for cell in ("Sizes", "zlib-6", "3.20 MB", "80.0", "2.00", "16.00", "4.00", "1.0 kB", "near-lossless"):
        assert cell in printed
    assert [row.style for row in table.rows] == [None, "bold", "bold"]
    assert [row.end_section for row in table.rows] == [False, True, False]


# The corpus


def test_a_dump_is_cut_to_its_first_rows(trained, tmp_path):
    whole = read_dump(trained[1]["transformer"].dumps[-1])
    rows = {"embedding.weight": 40, "norm.weight": 500}
    cut_corpus.cut_dump(whole, rows, tmp_path / "cut")
    cut = read_dump(tmp_path / "cut")
    assert (cut.step, cut.optimizer, cut.names) == (whole.step, whole.optimizer, tuple(rows))
    assert cut.hyper("embedding.weight") == whole.hyper("embedding.weight")
    assert np.array_equal(cut.grad("embedding.weight"), whole.grad("embedding.weight")[:40])
    assert cut.state("embedding.weight")["exp_avg"].shape == (40, 128)
    assert cut.state("embedding.weight")["step"] == 2
    assert np.array_equal(cut.param("norm.weight"), whole.param("norm.weight"))


def test_the_corpus_command_cuts_the_dumps_of_its_stages(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cut_corpus, "STAGES", {"cnn": (1, 3), "transformer": (3,)})
    cut_corpus.main([str(trained[0]), str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == 3
    names = ["cnn-step-000001", "cnn-step-000003", "transformer-step-000003"]
    assert sorted(path.stem for path in tmp_path.iterdir()) == names
    monkeypatch.setattr(cut_corpus, "SIZE_LIMIT", 1000)
    with pytest.raises(GcodecError, match="cut fewer rows"):
        cut_corpus.cut_corpus(trained[0], tmp_path)
    monkeypatch.setattr(cut_corpus, "STAGES", {"cnn": (2,)})
    with pytest.raises(InvalidArgument, match="missing"):
        cut_corpus.cut_corpus(trained[0], tmp_path)


def test_the_corpus_can_be_cut_from_what_training_records():
    for model, steps in cut_corpus.STAGES.items():
        assert set(steps) <= set(train.PLANS[model].recorded)


# Missing packages


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("gcodec.demo.models", "torch"),
        ("gcodec.demo.figures.plots", "matplotlib.axes"),
        ("gcodec.benchmark.report", "rich"),
    ],
)
def test_a_missing_package_names_the_remedy(module, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(GcodecError, match=r"pip install '\.\[demo\]'"):
        __import__(module)


def test_missing_scikit_learn_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(GcodecError, match="scikit-learn"):
        data.load_digits()
