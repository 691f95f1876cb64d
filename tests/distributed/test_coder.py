"""The laws of one rank's codec with shared codebooks, without a second process: what is encoded is decoded, and what is
predicted stays small."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec.distributed as gd
from gcodec.distributed.gradients import Gradients
from gcodec.distributed.reduction.coder import BufferCodebooks, Coder
from gcodec.distributed.reduction.piece_cache import PieceCache, PieceToEncode
from gcodec.distributed.reduction.shared_codebooks import Refresh, SharedCodebooks
from gcodec.distributed.stats import Counters
from gcodec.dtypes import BY_NAME

SHAPES = ((3, 5), (900, 64), (70_000,), (128, 96))  # the second has rows worth predicting
N_VALUES = sum(int(np.prod(shape)) for shape in SHAPES)
FLOAT32 = BY_NAME["float32"]


class Never(PieceCache):
    """A cache that remembers nothing, and so predicts nothing."""

    def encode(self, piece: PieceToEncode, out: np.ndarray) -> int:
        return piece.encode(piece.plan(), out)


class OneLevel:
    """Gives all values the same level."""

    def __init__(self, level: int) -> None:
        self._level = level

    def levels(self, begin: int, values: np.ndarray, kind: int, out: np.ndarray) -> None:
        out[:] = self._level


class Rank:
    """A coder as a hook makes it for every all-reduce, over shared codebooks that stay; near-lossless with one level
    for all values, or lossless if there is none."""

    def __init__(self, level: int | None = None) -> None:
        params = [torch.zeros(shape) for shape in SHAPES]
        self.books = SharedCodebooks(Refresh())
        self.gradients = Gradients.of(params, N_VALUES)
        self.shared = BufferCodebooks(self.books, self.gradients, np.arange(len(SHAPES)))
        mode = gd.Lossless() if level is None else gd.NearLossless(torch.optim.SGD([torch.zeros(1)]))
        self.bit_layout, self.levels = mode.bit_layout(FLOAT32), None if level is None else OneLevel(level)
        self.drop = 0 if level is None else self.bit_layout.drops[level]
        self.books.prepare(range(len(SHAPES)), FLOAT32.head_bits, len(self.bit_layout.levels))
        self.step = 0

    def coder(self) -> Coder:
        return Coder(FLOAT32, self.bit_layout, self.levels, self.shared, self.gradients.shapes, 1, Counters())

    def send(self, values: np.ndarray, begin: int = 0) -> int:
        """Encode values, check that what is decoded is what the encoder says, within the bound, and return the bytes of
        the frame."""
        bits, room = values.view(np.uint32), np.empty(8 * len(values) + (1 << 20), np.uint8)
        rounded, result = np.empty_like(bits), np.empty_like(bits)
        size = self.coder().encode(bits, begin, 0, room, rounded)
        self.coder().decode(room[:size], result)
        assert np.array_equal(result, rounded)
        off = np.abs(result.view(np.int32).astype(np.int64) - bits.view(np.int32))
        special = ~np.isfinite(values) | (np.abs(values) < np.finfo(np.float32).tiny)
        assert off[~special].max(initial=0) <= (1 << self.drop) // 2
        return size

    def refresh(self) -> None:
        """Make new codebooks from what has been counted."""
        self.step += 1
        self.books.end_step()
        self.books.renew(range(len(SHAPES)), self.books.take(), self.step)


def gradients(seed: int, *, related: bool) -> np.ndarray:
    """Return one buffer of normal values; the rows of the second tensor are multiples of one if ``related``."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(shape) for shape in SHAPES]
    if related:
        rows = rng.standard_normal(SHAPES[1][1]) * rng.lognormal(size=(SHAPES[1][0], 1))
        parts[1] = rows * (1 + 1e-6 * rng.standard_normal(SHAPES[1]))
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


@pytest.mark.parametrize("level", [None, 0, 2])
def test_related_rows_are_predicted_at_every_step(level):
    rank, plain = Rank(level), Rank(level)
    for item in (rank, plain):
        item.send(gradients(0, related=True))
        item.refresh()
    plain.books.piece_cache = Never()
    usual = plain.send(gradients(1, related=True))
    sizes = [rank.send(gradients(seed, related=True)) for seed in range(1, 4)]  # a trial, then from memory
    assert max(sizes) < 0.85 * usual
    assert max(sizes) < 1.02 * min(sizes)


@pytest.mark.parametrize("level", [None, 0, 2])
def test_rows_that_are_no_longer_related_are_no_longer_predicted(level):
    rank, plain = Rank(level), Rank(level)
    plain.books.piece_cache = Never()
    for item in (rank, plain):
        item.send(gradients(0, related=True))
        item.refresh()
        item.send(gradients(1, related=True))
    once, again = (rank.send(gradients(seed, related=False)) for seed in (2, 3))
    usual = plain.send(gradients(3, related=False))
    assert again == usual and once < 1.01 * usual
    rank.refresh()
    rank.send(gradients(4, related=True))
    assert rank.send(gradients(5, related=True)) < 0.85 * usual


@pytest.mark.parametrize("level", [None, 2])
def test_rows_that_become_related_are_predicted_with_the_same_codebooks(level):
    rank, plain = Rank(level), Rank(level)
    plain.books.piece_cache = Never()
    for item in (rank, plain):
        item.send(gradients(0, related=True))
        item.refresh()
        for seed in range(1, 8):
            item.send(gradients(seed, related=False))
    assert rank.send(gradients(8, related=True)) < 0.85 * plain.send(gradients(8, related=True))


def test_rows_stay_predicted_when_finer_levels_make_all_frames_larger():
    rank, plain = Rank(3), Rank(3)
    plain.books.piece_cache = Never()
    for item in (rank, plain):
        item.send(gradients(0, related=True))
        item.refresh()
        item.send(gradients(1, related=True))
        item.levels, item.drop = OneLevel(0), 0
    usual = plain.send(gradients(2, related=True))
    assert max(rank.send(gradients(seed, related=True)) for seed in (2, 3)) < 0.85 * usual


@pytest.mark.parametrize("level", [None, 2])
@pytest.mark.parametrize("spoil", ["nan", "zeros", "infinite", "denormal"])
def test_unusual_values_after_a_trial_of_prediction_are_decoded(spoil, level):
    rank = Rank(level)
    rank.send(gradients(0, related=True))
    rank.refresh()
    rank.send(gradients(1, related=True))
    values = gradients(2, related=True)
    values[100:60_000:7] = {"nan": np.nan, "zeros": 0, "infinite": np.inf, "denormal": 1e-41}[spoil]
    rank.send(values)
    rank.send(np.full_like(values, values[100]))


def test_prediction_is_tried_for_each_piece_on_its_own():
    rank = Rank()
    values = gradients(0, related=True)
    half = len(values) // 2
    for _ in range(3):
        for begin, part in ((0, values[:half]), (half, values[half:])):
            rank.send(part, begin)
        rank.refresh()
    assert rank.send(values[:half]) < 0.9 * half * 4 * 0.9


def test_frames_that_shared_codebooks_do_not_suit_are_counted_and_carry_their_own():
    rank, values = Rank(), gradients(0, related=False)
    rank.send(values)
    rank.refresh()
    usual = rank.send(values)
    suited = rank.books.end_step()
    assert rank.books.n_unsuited == 0 and suited.paid < 1.1 * suited.entropy
    wide = np.ldexp(values, np.random.default_rng(1).integers(-40, 40, len(values))).astype(np.float32)
    assert usual < rank.send(wide) < wide.nbytes  # exponents that the codebooks have hardly seen
    unsuited = rank.books.end_step()
    assert rank.books.n_unsuited == 1 and unsuited.paid > unsuited.entropy + 0.5 * unsuited.symbols
