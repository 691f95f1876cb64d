"""Bounds known by hand, and the code tables of GComp's figures 12 and 14."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gcodec.benchmark import bounds, inputs, settings
from gcodec.benchmark.measure import Result, Size
from gcodec.benchmark.report import distance
from gcodec.benchmark.settings import NEAR_LOSSLESS
from gcodec.demo.figures import strategies
from gcodec.dtypes import BY_NAME
from gcodec.format.ladders import Ladder
from gcodec.recorder import read_dump
from tests.support.paths import CORPUS

FLOAT32 = BY_NAME["float32"]


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
    assert negative.kept == 1000 * 24  # -0 has a tail: its sign


def test_the_bound_counts_levels_as_joint_symbols_that_keep_fewer_bits():
    bits = np.tile(bits_of(1.0, 1.0, 2.0, 0.0), 250)
    levels = np.tile(np.array([0, 1, 1, 1], np.uint8), 250)
    bound = bounds.order0_bound(bits, FLOAT32, levels, Ladder((0, 18)))
    assert bound.symbols == pytest.approx(1000 * 2)  # (1.0, 0), (1.0, 1), (2.0, 1), zero
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
            assert size < 1.05 * bound, (path.name, setting.mode)  # small inputs: codebooks and headers count
            if paper := settings.paper_bound(setting):
                assert size < 0.95 * paper.bytes, path.name


# Figures 12 and 14


def test_code_tables_have_the_lengths_worked_out_by_hand():
    counts = np.array([0, 8, 4, 2, 1, 1])
    code = strategies.native_table(counts, 8)
    assert code.lengths.tolist() == [0, 1, 2, 3, 4, 4]
    assert code.bits(counts) == 8 + 8 + 6 + 4 + 4
    assert code.bits(np.array([1])) == 4 + 8  # a symbol the table has never seen
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


@pytest.mark.parametrize(("stored", "words"), [(740, "26.0 % below"), (1000, "0.0 % above"), (1260, "26.0 % above")])
def test_a_size_is_said_to_be_below_or_above_and_never_a_negative_distance_above(stored, words):
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    from gcodec.demo.run import Findings, lines_of

    size = Size(
        "x", "cnn", 1, "gradients", "float32", NEAR_LOSSLESS, "gcodec", 250, 1000, stored, bound=1000.0, paper=1000.0
    )
    result = Result([], sizes=[size], failures=[])
    lines = [line for line in lines_of(Findings(result, {}, {}, [])) if line.startswith("Size against")]
    assert lines == [
        f"Size against the {what}: cnn {NEAR_LOSSLESS} {words} to {words}."
        for what in ("local order-0 bound", "GComp paper's layout")
    ]
    assert distance(-26.04) == "26.04 % below" and distance(0.5, 1) == "0.5 % above"
