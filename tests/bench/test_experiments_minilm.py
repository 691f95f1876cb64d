"""The laws of MiniLM's fine-tunings: the model is BERT, words are cut as BERT cuts them, and dumps are a rank's own
gradients. No weights are fetched: models are small and new."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import torch
from torch import nn

from bench import pictures
from bench.cluster import minilm_steps
from bench.cluster.runs import IGNORED
from bench.experiments.accuracy import CONTROL, DENSE
from bench.experiments.gcomp_drops import ALL, FP32
from bench.experiments.gcomp_drops import DENSE as WITHOUT
from bench.experiments.minilm import __main__ as minilm
from bench.experiments.minilm import fine_tuning, sentences, tables, trainings
from bench.experiments.minilm import pictures as minilm_pictures
from bench.experiments.minilm.model import RENAMED, Embeddings, SentenceClassifier, Size, renamed
from bench.experiments.minilm.sentences import Examples, pieces, rated, tokens_of, words
from bench.experiments.pool import Job, fill, kept
from gcodec.benchmark.csv_tables import read_table, write_named, write_table
from gcodec.benchmark.settings import LOSSLESS, NEAR_LOSSLESS
from gcodec.recorder import read_dump

SMALL = Size(vocabulary=400, width=8, layers=2, heads=2, inner=16, places=12)
NUMBERS = {
    word: number for number, word in enumerate("[PAD] [UNK] [CLS] [SEP] cafe is n't film ##s ##y un ' t".split())
}


def small_model() -> SentenceClassifier:
    return SentenceClassifier(SMALL)


@pytest.fixture
def problem(monkeypatch):
    """Return the problem with a small model on a few sentences of random tokens."""
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, SMALL.vocabulary, (40, 10), generator=random)
    tokens[::2, 6:] = 0
    few = Examples(tokens, tokens[:, 0] % 2)
    monkeypatch.setattr(fine_tuning, "examples", lambda: (few, few))
    return replace(trainings.PROBLEM, model=small_model, batch=4)


# The model


@pytest.mark.parametrize("padding", [0, 4])
def test_the_model_is_a_stack_of_torchs_layers(padding):
    torch.manual_seed(0)
    model = small_model().eval()
    layers = [
        nn.TransformerEncoderLayer(SMALL.width, SMALL.heads, SMALL.inner, 0.1, "gelu", 1e-12, batch_first=True).eval()
        for _ in model.layers
    ]
    tokens = torch.randint(1, SMALL.vocabulary, (3, 10))
    tokens[1, 10 - padding :] = 0
    with torch.no_grad():
        values = model.embeddings(tokens)
        for theirs, ours in zip(layers, model.layers, strict=True):
            attention, theirs_own = ours.state_dict(), theirs.state_dict()
            for kind in ("weight", "bias"):
                own = [attention[f"{part}.{kind}"] for part in ("query", "key", "value")]
                theirs_own[f"self_attn.in_proj_{kind}"] = torch.cat(own)
                for name, part in (
                    ("self_attn.out_proj", "output"),
                    ("linear1", "rise"),
                    ("linear2", "fall"),
                    ("norm1", "attention_norm"),
                    ("norm2", "norm"),
                ):
                    theirs_own[f"{name}.{kind}"] = attention[f"{part}.{kind}"]
            theirs.load_state_dict(theirs_own)
            values = theirs(values, src_key_padding_mask=tokens == 0)
        means = [row[: int((own != 0).sum())].mean(0) for row, own in zip(values, tokens, strict=True)]
        assert torch.allclose(model.embed(tokens), torch.stack(means), atol=1e-5)


def test_words_places_and_types_are_added_and_normalized():
    torch.manual_seed(0)
    embeddings = Embeddings(SMALL).eval()
    tokens = torch.tensor([[5, 7, 5]])
    expected = embeddings.norm(
        embeddings.word_embeddings.weight[tokens[0]]
        + embeddings.position_embeddings.weight[:3]
        + embeddings.token_type_embeddings.weight[:1]
    )
    assert torch.allclose(embeddings(tokens)[0], expected)


def test_published_names_are_all_known():
    own = small_model().state_dict()
    published = {"pooler.dense.weight": torch.zeros(1), "embeddings.position_ids": torch.zeros(1)}
    for name, tensor in own.items():
        place, _, kind = name.rpartition(".")
        if place.startswith("layers."):
            _, number, part = place.split(".")
            theirs = {ours: key for key, ours in RENAMED.items() if key[0] not in "e"}
            part = theirs.get(f"{part}.", f"attention.self.{part}.")
            published[f"encoder.layer.{number}.{part}{kind}"] = tensor
        elif place != "head":
            published[name.replace("embeddings.norm.", "embeddings.LayerNorm.")] = tensor
    found = renamed(published)
    assert set(found) == {name for name in own if not name.startswith("head.")}
    assert all(found[name] is own[name] for name in found)


# Sentences


def test_words_are_cut_as_bert_cuts_them():
    assert list(words("Café, isn't\tIT?\n -- $5")) == ["cafe", ",", "isn", "'", "t", "it", "?", "-", "-", "$", "5"]
    assert pieces("films", NUMBERS) == [NUMBERS["film"], NUMBERS["##s"]]
    assert pieces("unfilm", NUMBERS) == [NUMBERS["[UNK]"]]  # its rest begins a word only
    assert pieces("film" + "s" * 97, NUMBERS) == [NUMBERS["[UNK]"]]
    assert len(pieces("film" + "s" * 96, NUMBERS)) == 97
    assert tokens_of("Films, is", NUMBERS) == [2, 7, 8, 1, 5, 3]
    assert tokens_of("Films, is", NUMBERS, 4) == [2, 7, 8, 3]


def test_sentences_are_read_from_the_package_and_those_rated_0_are_left_out(tmp_path, monkeypatch):
    lines = "".join(f"{n}\t{(n % 3) - 1}.5\tfilm\tis {n}\n" for n in range(20)) + "20\t0.0\tfilm\n"
    inner = tmp_path / "hutto_ICWSM_2014.tar.gz"
    with tarfile.open(inner, "w:gz") as archive:
        info = tarfile.TarInfo(sentences.FILE)
        info.size = len(lines)
        archive.addfile(info, io.BytesIO(lines.encode()))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as package:
        package.write(inner, "x/additional/hutto_ICWSM_2014.tar.gz")

    def pip(command: tuple[str, ...], check: bool) -> None:
        shutil.copy(tmp_path / "x.zip", command[command.index("--dest") + 1])

    monkeypatch.setattr(subprocess, "run", pip)
    found = rated(tmp_path / "models")
    assert found[:2] == [("film\tis 0", -1.5), ("film\tis 1", 0.5)]
    assert found[-1] == ("film", 0.0)
    monkeypatch.setattr(sentences, "rated", lambda: found)
    monkeypatch.setattr(sentences, "vocabulary", lambda: NUMBERS)
    learned, held_out = sentences.examples.__wrapped__()
    assert [len(part.labels) for part in (learned, held_out)] == [18, 2]
    assert held_out.labels.tolist() == [0, 1]  # of the sentences 0 and 10
    assert learned.tokens.shape == (18, sentences.LENGTH)
    assert learned.tokens[0, :6].tolist() == [2, 7, 5, 1, 3, 0]


# Trainings


def test_the_rate_rises_and_falls_in_straight_lines():
    factors = [trainings.PROBLEM.factor(step, 300) for step in range(300)]
    assert factors[:2] == pytest.approx([1 / 30, 2 / 30])
    assert max(factors) == factors[29] == 1
    assert np.diff(factors[30:]) == pytest.approx([factors[-1] - factors[-2]] * 269)
    assert factors[-1] == pytest.approx(1 / 271)
    assert all(0 < trainings.PROBLEM.factor(step, 3) <= 1 for step in range(3))


def test_a_recorded_training_is_the_dense_one_and_keeps_what_the_last_rank_had(problem, tmp_path):
    recording = trainings.Recording(tmp_path, 3, (1, 3), 2, 1)
    row, exponents = trainings.record(recording, problem=problem)
    plain = trainings.trained((trainings.NAME, DENSE, 0), 3, problem)
    assert row == plain
    assert {row["step"] for row in exponents} == {1, 2, 3}
    torch.manual_seed(0)
    model = problem.model()
    problem.loss(model, problem.batch, np.random.default_rng((0, 0))).backward()  # the first rank's, for its dropout
    model.zero_grad()
    problem.loss(model, problem.batch, np.random.default_rng((0, 1))).backward()
    dump = read_dump(recording.paths[0])
    assert set(dump.names) == {name for name, _ in model.named_parameters()}
    for name, param in model.named_parameters():
        assert np.array_equal(dump.grad(name), param.grad.numpy()), name
        assert np.array_equal(dump.param(name), param.detach().numpy()), name
    assert dump.optimizer == "AdamW"


def test_methods_of_a_seed_see_the_same_batches_and_near_lossless_sends_less(problem):
    rows = {method: trainings.trained((trainings.NAME, method, 0), 3, problem) for method in (DENSE, NEAR_LOSSLESS)}
    losses = {method: [float(loss) for loss in str(row[8]).split()] for method, row in rows.items()}
    assert losses[DENSE] == pytest.approx(losses[NEAR_LOSSLESS], abs=1e-5)
    assert float(str(rows[DENSE][7])) == 1 > float(str(rows[NEAR_LOSSLESS][7])) > 0
    assert trainings.problem_of(CONTROL, problem).model is trainings.perturbed
    assert trainings.problem_of(NEAR_LOSSLESS, problem) is problem


# Tables


def test_tables_and_pictures_are_made_of_dumps(problem, tmp_path):
    recording = trainings.Recording(tmp_path / "dumps", 2, (1, 2), 1, 1)
    row, exponents = trainings.record(recording, problem=problem)
    write_named(tmp_path / tables.FILES["exponents"], exponents)
    made = dict[str, list[list[object]]]()
    for path in recording.paths:
        for name, rows in minilm.dump_rows(read_dump(path)).items():
            made.setdefault(name, []).extend(rows)
    near = list(row)
    near[1], near[7] = NEAR_LOSSLESS, "0.25"
    near[8] = " ".join(str(float(loss) + 0.5) for loss in str(row[8]).split())
    near[4] = str(float(str(row[4])) + 2)
    made["recorded"] = [row]
    made["trainings"] = [row, near, [*near[:2], 7, *near[3:]]]  # no dense one of seed 7
    made["trainings"] += [[*one[:3], 9, *one[4:]] for one in (near, row)]  # longer ones
    for name, rows in made.items():
        write_table(tmp_path / tables.FILES[name], tables.COLUMNS[name], rows)
    assert {row[0] for row in made["sizes"]} == {ALL, WITHOUT}
    whole, dense = (next(int(str(row[1])) for row in made["values"] if row[0] == what) for what in (ALL, WITHOUT))
    embeddings = (SMALL.vocabulary + SMALL.places + 2 + 2) * SMALL.width
    assert whole == sum(param.numel() for param in small_model().parameters()) == dense + embeddings
    for make, file in tables.PLACES.values():
        assert (tmp_path / file).exists()
        assert len(make(tmp_path)) > 3
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.trainings(tmp_path)]
    assert cells[2][:3] == ["2", FP32.replace("float", "fp"), "1"]
    assert cells[3][:4] == ["2", NEAR_LOSSLESS, "1", "25.0"]
    assert cells[3][4].startswith("+2.0")
    assert cells[3][5] == "0.5"
    assert [line[:3] for line in cells[4:6]] == [["9", line[1], "1"] for line in cells[3:1:-1]]
    assert cells[4][3:] == cells[3][3:]
    write_named(tmp_path / minilm_steps.FILE, minilm_steps.rows_of(timed()))
    assert len(minilm_steps.table(tmp_path)) == 2 + len(minilm_steps.METHODS) + 2
    for name in minilm_pictures.PICTURES:
        assert pictures.draw(name, tmp_path, tmp_path).stat().st_size > 1000
    for drawn in minilm_pictures.draw(recording.folder, tmp_path):
        assert drawn.stat().st_size > 1000
    first = {(trainings.NAME, DENSE, 0): [str(cell) for cell in row]}
    assert kept(tmp_path / tables.FILES["trainings"], list(first), 2) == first
    assert kept(tmp_path / tables.FILES["trainings"], list(first), 3) == {}
    assert [row[3] for row in minilm.others_of(tmp_path / tables.FILES["trainings"], 2)] == ["9", "9"]
    assert len(minilm.others_of(tmp_path / tables.FILES["trainings"], 3)) == 5


def timed() -> dict[str, Any]:
    """Return a result of the bed, whose methods take 1, 2, 3 ... times as long, and in whose first steps all take as
    long."""
    runs = {
        name: {
            "seconds": [9.0] * IGNORED + [0.1 * (1 + number) * (1 + step) for step in range(4)],
            "sent": [100] * IGNORED + [1_000_000 // (1 + number)] * 4,
            "processor": [9.0] * IGNORED + [0.05] * 4,
        }
        for number, name in enumerate(minilm_steps.METHODS)
    }
    return {"model": "minilm", "workers": 2, "rate": "100mbit", "batch": 8, "runs": runs}


def test_steps_are_compared_with_those_beside_them_once_they_have_settled(tmp_path):
    write_named(tmp_path / minilm_steps.FILE, minilm_steps.rows_of(timed()))
    rows = {row["method"]: row for row in read_table(tmp_path / minilm_steps.FILE)[1]}
    assert [float(row["of_fp32"]) for row in rows.values()] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert [float(row["of_bf16"]) for row in rows.values()] == [0.5, 1.0, 1.5, 2.0, 2.5]
    assert [row["bytes_of_fp32"] for row in rows.values()] == ["1.0000", "0.5000", "0.3333", "0.2500", "0.2000"]
    first = rows[minilm_steps.METHODS[0]]
    assert (first["steps"], first["step_seconds"], first["processor_seconds"]) == ("4", "0.2500", "0.0500")
    assert first["line_share"] == "0.3200"  # 8 million bits in a quarter of a second


def test_trainings_of_other_lengths_are_kept(tmp_path):
    """A file's rows of other lengths come first."""
    job = (trainings.NAME, DENSE, 0)
    fill(tmp_path / "x.csv", ("number",), [job], {job: [3]}, lambda _: [0], 1, 1, [[1], [2]])
    assert not (tmp_path / "x.csv").exists()  # nothing was trained
    fill(tmp_path / "x.csv", ("number",), [job], {}, length_of, 1, 1, [[1], [2]])
    assert [row["number"] for row in read_table(tmp_path / "x.csv")[1]] == ["1", "2", "3"]


def length_of(job: Job) -> list[object]:
    return [len(job)]


def test_the_last_column_of_sizes_weighs_parts_as_bert_base_has_them(tmp_path):
    """A fifth of BERT-base are embeddings, more than half of MiniLM."""
    own = {(ALL, 20): 50.0, (WITHOUT, 10): 80.0}  # so embeddings are 20 %
    write_table(
        tmp_path / tables.FILES["sizes"],
        tables.COLUMNS["sizes"],
        [[*part, 1, 0.1, method, size] for part, size in own.items() for method in (LOSSLESS, NEAR_LOSSLESS)],
    )
    write_table(
        tmp_path / tables.FILES["values"],
        tables.COLUMNS["values"],
        [[*part, 1, 0.1, *[1.0] * 4] for part in own],
    )
    expected = 20 * tables.BERT_EMBEDDINGS + 80 * (1 - tables.BERT_EMBEDDINGS)
    line = tables.sizes(tmp_path)[-3]
    assert line.split("|")[3].strip() == tables.AS_BERT
    assert line.split("|")[-2].strip() == f"{expected:.2f}"
