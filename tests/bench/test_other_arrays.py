"""The benchmark of arrays other than gradients and weights: what the arrays are, and what its tables make of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from bench import array_kinds, array_tables, other_arrays, report
from gcodec import codec
from gcodec.benchmark import csv_tables
from gcodec.benchmark.inputs import Input
from gcodec.dtypes import BY_NAME

Kinds = dict[str, list[array_kinds.ArrayKind]]


@pytest.fixture(scope="module")
def kinds() -> Kinds:
    """Return the arrays of a quick run by name."""
    found: Kinds = {}
    for kind in array_kinds.array_kinds(quick=True):
        found.setdefault(kind.name, []).append(kind)
    return found


def values_of(kinds: Kinds, name: str) -> list[np.ndarray]:
    """Return the only kind's tensors of arrays whose name begins so."""
    (kind,) = next(kinds[full] for full in kinds if full.startswith(name))
    return list(kind.tensors)


def is_rows_of_few(matrices: list[np.ndarray], length: int, at_most: int) -> bool:
    """Return True if each piece of ``length`` values, or each row for 0, has at most so many different values."""
    return all(
        len(np.unique(piece)) <= at_most
        for matrix in matrices
        for piece in matrix.reshape(-1, length or matrix.shape[1])
    )


def is_multiples(values: np.ndarray, scale: float) -> bool:
    """Return True if all values are integers times a scale, rounded to float32."""
    return np.array_equal((np.rint(values.astype(np.float64) / scale) * scale).astype(np.float32), values)


def test_no_array_and_type_is_measured_twice_and_shapes_hold_all_values(kinds):
    names = [(kind.name, data.dtype) for group in kinds.values() for kind in group for data in kind.inputs()]
    assert len(names) == len(set(names))
    for group in kinds.values():
        for kind in group:
            assert kind.source in (
                array_kinds.MODEL,
                array_kinds.PHOTOGRAPHS,
                array_kinds.COMPUTED,
                array_kinds.SYNTHETIC,
            )
            for data in kind.inputs():
                assert sum(int(np.prod(shape)) for shape in data.shapes) == data.bits.size > 0
                assert data.bits.dtype == BY_NAME[data.dtype].uint


def test_every_name_that_the_page_shows_is_that_of_an_array(kinds):
    for prefix, dtype in array_tables.SHOWN:
        assert any(name.startswith(prefix) and dtype in kind.dtypes for name, group in kinds.items() for kind in group)


def test_arrays_are_what_their_names_say(kinds):
    (relu,), (gelu,), (gate,) = (values_of(kinds, f"outputs of {name}") for name in ("ReLU", "GELU", "sigmoid"))
    assert relu.min() == 0 < relu.max() and 0.1 < np.mean(relu == 0) < 0.9
    assert -0.17 < gelu.min() < 0 < gelu.max()
    assert 0 < gate.min() < gate.max() < 1
    (scores,), (softmax,), (mask,) = (values_of(kinds, name) for name in ("scores", "softmax", "causal mask"))
    later = np.triu(np.ones(scores.shape[-2:], bool), 1)
    assert np.isneginf(scores[..., later]).all() and np.isfinite(scores[..., ~later]).all()
    assert (softmax[..., later] == 0).all() and np.allclose(softmax.sum(-1), 1, atol=1e-5)
    assert set(np.unique(mask)) == {-np.inf, 0}
    (repeated,), (rotary,), (unit,) = (values_of(kinds, name) for name in ("keys, rep", "rotary", "embeddings"))
    assert np.array_equal(repeated[:, :, 0], repeated[:, :, 3])
    assert np.array_equal(rotary[..., :64], rotary[..., 64:]) and np.allclose((rotary**2).sum(0), 1, atol=1e-6)
    assert np.allclose(np.linalg.norm(unit, axis=-1), 1, atol=1e-5)


def test_dequantized_weights_have_few_different_values(kinds):
    length = array_kinds.QUANTIZED_GROUP
    for name, piece, at_most in (
        ("weights from int8", 0, 255),
        ("weights from int4", length, 15),
        ("weights from NF4", length, 16),
    ):
        dequantized = values_of(kinds, name)
        assert is_rows_of_few(dequantized, piece, at_most)
        assert not is_rows_of_few(dequantized, piece, at_most // 4)
        for matrix in dequantized:
            assert np.isfinite(matrix).all()


def test_a_matrix_on_the_levels_of_a_quantization_is_not_changed_by_it():
    random = np.random.default_rng(0)
    bytes_ = random.integers(-127, 128, (4, 256)).astype(np.float32)
    bytes_[:, 0] = 127
    assert np.array_equal(array_kinds.by_rows(bytes_ * 0.5), bytes_ * 0.5)
    nibbles = random.integers(-7, 8, (4, 256)).astype(np.float32)
    nibbles[:, ::64] = 7
    assert np.array_equal(array_kinds.by_groups(nibbles * 0.5), nibbles * 0.5)
    levels = np.array(array_kinds.NF4, np.float32)[random.integers(0, 16, (4, 256))]
    levels[:, ::64] = 1
    assert np.array_equal(array_kinds.by_levels(levels), levels)


def test_masked_and_shortened_values_are_so(kinds):
    (signed, *_), (unsigned, *_) = (values_of(kinds, f"weights times a mask, {name}") for name in ("half", "zeros"))
    assert np.array_equal(signed, unsigned)
    zeros = signed == 0
    assert 0.4 < zeros.mean() < 0.6
    assert np.signbit(signed[zeros]).any() and not np.signbit(unsigned[zeros]).any()
    (short, *_), (single, *_) = (values_of(kinds, f"weights that were {name}") for name in ("bfloat16", "float32"))
    assert not (short.view(np.uint32) & 0xFFFF).any()
    assert single.dtype == np.float64 and np.array_equal(single.astype(np.float32), single)
    for kind in kinds["normal values, a third NaN"]:
        assert 0.3 < np.isnan(kind.tensors[0]).mean() < 0.36
    for kind in kinds["sorted normal values"]:
        assert (np.diff(kind.tensors[0]) >= 0).all()


def test_values_on_a_grid_are_multiples_of_its_step(kinds):
    (images,), (audio,) = values_of(kinds, "images"), values_of(kinds, "audio")
    assert is_multiples(images, 1 / 255) and 0 <= images.min() < images.max() <= 1
    assert is_multiples(audio, 1 / 32768) and len(np.unique(audio)) > 1000
    for kind in kinds["normal values with two decimals"]:
        assert is_multiples(kind.tensors[0].astype(np.float32), 0.01)


def test_the_same_seeds_make_the_same_arrays(kinds):
    def bits(inputs: list[Input]) -> list[bytes]:
        return [data.bits.tobytes() for data in inputs]

    for kind in array_kinds.array_kinds(quick=True):
        first = next(known for known in kinds[kind.name] if known.dtypes == kind.dtypes)
        assert bits(list(kind.inputs())) == bits(list(first.inputs())), kind.name


def test_a_run_writes_a_row_for_each_codec_that_takes_a_type(kinds, tmp_path, monkeypatch):
    few = [*kinds["outputs of ReLU"], *kinds["weights that were float32"], *kinds["normal values, a third NaN"]]
    monkeypatch.setattr(other_arrays, "array_kinds", lambda quick: few)
    monkeypatch.setattr(other_arrays, "NAMES", ("zstd-3", "shuffle+zstd-3"))
    assert other_arrays.main(["--quick", "--out", str(tmp_path)]) == 0
    _, rows = csv_tables.read_table(tmp_path / array_tables.FILE)
    expected = [
        (kind.name, dtype, codec)
        for kind in few
        for dtype in kind.dtypes
        for codec in ("gcodec", "zstd-3", "shuffle+zstd-3")
    ]
    assert [(row["array"], row["dtype"], row["codec"]) for row in rows] == expected
    for row in rows:
        assert int(row["compressed_bytes"]) > 0 and float(row["encode_GBps"]) > 0 and float(row["decode_GBps"]) > 0
        assert float(row["percent"]) == pytest.approx(
            100 * int(row["compressed_bytes"]) / int(row["original_bytes"]), abs=1e-3
        )
    assert sum(line.startswith("| outputs") for line in array_tables.other_arrays_table(tmp_path)) == 1


def test_a_run_in_which_gcodec_gives_back_other_values_fails_and_writes_nothing(kinds, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(other_arrays, "array_kinds", lambda quick: kinds["biases, near 0"])
    monkeypatch.setattr(other_arrays, "NAMES", ("zstd-3",))
    monkeypatch.setattr(codec, "decode", lambda encoded, out, **options: np.zeros_like(out))
    assert other_arrays.main(["--quick", "--out", str(tmp_path)]) == 1
    assert "ROUND TRIP FAILED: biases, near 0 float32" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def rows_for(array: str, group: str, dtype: str, **sizes: int) -> list[csv_tables.NamedRow]:
    """Return rows of the CSV file for one array of 1000 bytes, by codec."""
    return [
        {
            "group": group,
            "array": array,
            "source": "synthetic",
            "dtype": dtype,
            "values": 250,
            "codec": name.replace("_", "-"),
            "original_bytes": 1000,
            "compressed_bytes": size,
            "percent": f"{size / 10:.3f}",
            "encode_GBps": "2.0",
            "decode_GBps": "3.0",
            "encode_of_copy": "0.1",
            "decode_of_copy": "0.2",
        }
        for name, size in sizes.items()
    ]


def test_tables_count_and_mark_the_smallest_codec(tmp_path: Path):
    csv_tables.write_named(
        tmp_path / array_tables.FILE,
        [
            *rows_for("outputs of ReLU", "a", "bfloat16", gcodec=500, pcodec_8=400, zstd_3=450),
            *rows_for("logits", "b", "bfloat16", gcodec=500, pcodec_8=501, zstd_3=600),  # within half a percent
            *rows_for("images", "a", "float32", gcodec=300, pcodec_8=400),  # zstd-3 does not take it
        ],
    )
    table = array_tables.other_arrays_table(tmp_path)
    assert "Of 3 arrays, each type counted, gcodec is within 0.5 % of the smallest peer on 1, smaller than" in table[0]
    assert "than that on 1, and larger on 1." in table[0]
    lines = [line for line in table if " synthetic " in line]
    assert [line.split(" | ")[0].lstrip("| ") for line in lines] == ["outputs of ReLU", "images", "logits"]
    assert [line.removesuffix(" |").split(" | ")[2:] for line in lines] == [
        ["50.0 / **40.0** pcodec-8", ""],
        ["", "**30.0** / 40.0 pcodec-8"],
        ["**50.0** / 50.1 pcodec-8"],
    ]
    assert [line for line in table if line.startswith("**")] == ["**a**", "**b**"]
    shown = [line for line in array_tables.when_not_table(tmp_path) if "float" in line]
    assert shown == ["| outputs of ReLU | bfloat16 | 50.0 | 2.00 / 3.00 | pcodec-8 | 40.0 | 2.00 / 3.00 |"]


def test_the_committed_file_has_all_arrays_of_the_benchmark(kinds):
    _, found = array_tables.outcomes(report.RESULTS)
    measured = [(outcome.ours["array"], outcome.ours["source"], outcome.ours["dtype"]) for outcome in found]
    every = [kind for group in kinds.values() for kind in group]
    assert measured == [(kind.name, kind.source, dtype) for kind in every for dtype in kind.dtypes]
    for outcome in found:
        takes = set(other_arrays.NAMES) - ({"ZipNN"} if outcome.ours["dtype"] == "float64" else set())
        assert set(outcome.peers) == takes
