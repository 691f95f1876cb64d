"""The laws of codebooks that ranks share and of what the bypass measured, without a second process."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gcodec
import gcodec.distributed as gd
from gcodec.distributed.gradients import Gradients, GradientSegment
from gcodec.distributed.modes import Lossless
from gcodec.distributed.reduction import collective_codebooks
from gcodec.distributed.reduction.bypass import NUMBERS, BypassController
from gcodec.distributed.reduction.coder import BufferCodebooks, Coder
from gcodec.distributed.reduction.collective_codebooks import CollectiveCodebooks
from gcodec.distributed.reduction.piece_cache import PieceCache
from gcodec.distributed.reduction.precompile import rows_alike
from gcodec.distributed.reduction.refresh import CodebookRefresh
from gcodec.distributed.reduction.shared_codebooks import SharedCodebooks
from gcodec.distributed.stats import Counters, Stats
from gcodec.dtypes import BY_NAME

FLOAT32 = BY_NAME["float32"]


def counted(books: SharedCodebooks, numbers: list[int], n_levels: int) -> None:
    """Count a step whose symbols were of a few bins, others in each layer."""
    books.prepare(numbers, FLOAT32.head_bits, n_levels)
    for number in numbers:
        books.layers[number].recent[10 + number : 20 + number] += np.uint64(100)
    books.end_step()


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_layer_whose_number_of_levels_changed_gets_no_codebook_of_the_old_form(changed):
    books, undisturbed = SharedCodebooks(gd.Refresh()), SharedCodebooks(gd.Refresh())
    for item in (books, undisturbed):
        counted(item, [0, 1, 2], 1)
    sums = books.take(), undisturbed.take()
    books.prepare([changed], FLOAT32.head_bits, 8)  # the mode is another now
    for item, histograms in zip((books, undisturbed), sums, strict=True):
        item.renew([0, 1, 2], histograms, 2)
    for number in range(3):
        version, wanted = books.layers[number].cycle.current, undisturbed.layers[number].cycle.current
        assert wanted is not None
        assert (version is None) == (number == changed)
        assert version is None or version.codebook.hash == wanted.codebook.hash


def test_a_new_layer_has_a_codebook_after_the_next_refresh():
    lane: Any = SimpleNamespace(size=1)
    books = SharedCodebooks(gd.Refresh(interval=50))
    rounds = CodebookRefresh(books, Stats())
    made = []
    for step in range(40):
        form = 8 if step >= 20 else 1  # another mode
        books.prepare([0], FLOAT32.head_bits, form)
        books.layers[0].recent[10:20] += np.uint64(100)
        rounds.end_step(lane)
        made.append(books.layers[0].cycle.current is not None)
    assert made == [False] + 19 * [True] + [False] + 19 * [True]


def refreshed(books: SharedCodebooks, rounds: CodebookRefresh, form: int) -> None:
    """Make a step with a layer of this many levels, whose symbols are counted where frames are planned anew."""
    books.prepare([0], FLOAT32.head_bits, form)
    planned = books.piece_cache.counts or books.layers[0].cycle.current is None
    books.layers[0].recent[10:20] += np.uint64(100 * planned)
    rounds.end_step(cast(Any, SimpleNamespace(size=1)))


@pytest.mark.parametrize("change", [20, 21, 22, 23])
def test_a_layer_that_is_new_in_any_step_has_a_codebook_within_two(change):
    books = SharedCodebooks(gd.Refresh(interval=50))
    rounds = CodebookRefresh(books, Stats())
    made = []
    for step in range(40):
        refreshed(books, rounds, 8 if step >= change else 1)
        made.append(books.layers[0].cycle.current is not None)
    assert all(made[change + 2 :])


def test_loaded_states_count_in_the_same_steps_as_the_one_that_was_saved():
    """Ranks that have loaded begin sums in the steps in which the others do, whatever they did before."""
    saved, used, fresh = (
        (books, CodebookRefresh(books, Stats())) for books in (SharedCodebooks(gd.Refresh()) for _ in range(3))
    )
    for _ in range(6):
        refreshed(*saved, form=1)
    for step in range(9):
        refreshed(*used, form=1 + step // 8)
    shared, counts = saved[0].state_dict()
    for books, rounds in (used, fresh):
        books.load_state_dict(shared, counts)
        rounds.load_state_dict(saved[1].state_dict())
    seen: list[list[tuple[bool, bool, bool]]] = []
    for books, rounds in (saved, used, fresh):
        seen.append([])
        for step in range(12):
            seen[-1].append((books.piece_cache.counts, books.unmade, rounds._histograms.tensor is None))
            refreshed(books, rounds, form=1 if step < 5 else 8)
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


def test_statistics_forget_three_quarters_at_every_step():
    """GComp's table is of the last iterations; here what was counted n steps ago counts 4^-n."""
    books = SharedCodebooks(gd.Refresh())
    books.prepare([0], FLOAT32.head_bits, 1)
    for place in (10, 20, 30):
        books.layers[0].recent[place] += np.uint64(1600)
        books.end_step()
    histogram = books.take()
    assert [histogram[place] for place in (10, 20, 30)] == [100, 400, 1600]
    assert histogram.sum() == 2100


def test_a_frame_that_shared_codebooks_do_not_suit_has_its_own():
    """Codes that cost half a bit beyond the entropy are not used, so a stale table costs no more than that."""
    rng, books = np.random.default_rng(0), SharedCodebooks(gd.Refresh())
    n_values = 1 << 16
    shared = BufferCodebooks(books, Gradients([GradientSegment(0, n_values, torch.empty(0), (1,))]), np.zeros(1, int))
    books.prepare([0], FLOAT32.head_bits, 1)
    room = np.empty(8 * n_values, np.uint8)

    def send(values: np.ndarray) -> int:
        coder = Coder(FLOAT32, Lossless().bit_layout(FLOAT32), None, shared, [(n_values,)], 1, Counters())
        bits = values.astype(np.float32).view(np.uint32)
        size = coder.encode(bits, 0, 0, room)
        result = np.empty_like(bits)
        coder.decode(room[:size], result)
        assert np.array_equal(result, bits)
        return size

    narrow, wide = (rng.standard_normal(n_values) * np.exp2(rng.normal(0, spread, n_values)) for spread in (0, 6))
    send(narrow)
    books.end_step()
    books.renew([0], books.take(), 1)
    send(narrow)
    spent = books.end_step()
    assert books.n_unsuited == 0 and spent.taken == spent.paid >= spent.entropy
    size = send(wide)
    spent = books.end_step()
    assert books.n_unsuited == 1 and spent.paid > spent.taken + 0.5 * spent.symbols and spent.taken >= spent.entropy
    assert size <= 1.01 * len(gcodec.encode(wide.astype(np.float32)))


def test_codebooks_that_suit_no_frame_from_the_first_are_made_anew():
    """As those of the first step are, where an optimizer has no state yet and chooses other levels than later."""
    books, stats = SharedCodebooks(gd.Refresh(interval=100)), Stats()
    rounds, made = CodebookRefresh(books, stats), []
    for _ in range(60):
        if books.piece_cache.counts:
            books.paid += 1000 * (9.0 if stats.refreshes < 2 else 3.5)
            books.taken += 1000 * 3.5
        refreshed(books, rounds, form=1)
        made.append(stats.refreshes)
    assert made.index(1) <= 2 and made.index(2) <= 15 and made[-1] == 2
    assert stats.bits_per_symbol == 3.5


def test_collectives_that_are_not_repeated_get_no_codebook(monkeypatch):
    monkeypatch.setattr(collective_codebooks, "_MAX_SEEN", 20)
    books = CollectiveCodebooks(gd.Refresh())
    for size in range(100):
        assert books.shared(("reduce", size), 1000, FLOAT32, Lossless()) is None
    assert len(books._seen) <= 20
    assert not books._codebooks.layers


def test_repeated_collectives_get_codebooks_of_their_own_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(collective_codebooks, "_MAX_KINDS", 3)
    books = CollectiveCodebooks(gd.Refresh())
    kinds = ["a", "b", "c", "d"]
    results = [[books.shared(kind, 1000, FLOAT32, Lossless()) for kind in kinds] for _ in range(3)]
    assert results[0] == [None] * 4
    for later in results[1:]:
        assert [shared and int(shared.numbers[0]) for shared in later] == [0, 1, 2, None]


def test_a_resumed_bypass_has_the_numbers_it_had_measured():
    bypass, other = BypassController(gd.Bypass()), BypassController(gd.Bypass())
    bypass.numbers = {name: 1.5 + k for k, name in enumerate(NUMBERS)}
    other.load_state_dict(bypass.state_dict())
    assert other.numbers == bypass.numbers


_USES = """
import importlib, pkgutil, sys
import numpy as np, torch
import gcodec.kernels
from gcodec.distributed import Lossless, NearLossless, Refresh
from gcodec.distributed.reduction.shared_codebooks import SharedCodebooks
from gcodec.distributed.reduction.coder import Coder, BufferCodebooks
from gcodec.distributed.gradients import Gradients, GradientSegment
from gcodec.distributed.stats import Counters
from gcodec.distributed.reduction.precompile import rows_alike, precompile_kernels
from gcodec.dtypes import BY_NAME

def kernels():
    names = [one.name for one in pkgutil.walk_packages(gcodec.kernels.__path__, "gcodec.kernels.")]
    modules = [importlib.import_module(name) for name in names if not name.startswith("gcodec.kernels.cuda")]
    found = {id(one): one for module in modules for one in vars(module).values() if hasattr(one, "overloads")}
    return sum(len(one.overloads) for one in found.values())

class Finest:
    def levels(self, begin, values, kind, out):
        out[:] = 0

dtype, is_near = BY_NAME[sys.argv[1]], sys.argv[2] == "near-lossless"
mode = NearLossless(torch.optim.SGD([torch.zeros(1)])) if is_near else Lossless()
layout, levels = mode.bit_layout(dtype), Finest() if is_near else None
precompile_kernels(dtype, mode, Refresh())
before, shape = kernels(), (200, 300)
bits, room = rows_alike(dtype, *shape), np.empty(1 << 20, np.uint8)
books = SharedCodebooks(Refresh())
books.prepare([0], dtype.head_bits, len(layout.levels))
shared = BufferCodebooks(books, Gradients([GradientSegment(0, len(bits), torch.empty(0), (1,))]), np.zeros(1, np.int64))
sizes = []
for step in range(1, 5):
    coder = Coder(dtype, layout, levels, shared, [shape], 1, Counters())
    sizes.append(coder.encode(bits, 0, 0, room))
    coder.decode(room[:sizes[-1]], np.empty_like(bits))
    books.end_step()
    if step == 1:
        books.renew([0], books.take(), 1)
assert sizes[-1] < 0.9 * sizes[0], sizes
assert kernels() == before, (before, kernels())
"""


@pytest.mark.parametrize(("dtype", "mode"), [("float32", "near-lossless"), ("bfloat16", "lossless")])
def test_predicting_rows_after_precompilation_compiles_nothing(dtype, mode):
    command = [sys.executable, "-c", _USES, dtype, mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_plans_are_used_again_until_symbols_are_counted_or_the_frame_has_grown():
    plans = PieceCache()
    made: list[int] = []
    sizes = iter([1000, 1010, 2000, 2000, 1500, 900, 900, 1])

    def frame() -> int:
        return plans.encode(piece, np.empty(0, np.uint8))

    def make() -> Any:
        made.append(len(made))
        return made[-1]

    piece: Any = SimpleNamespace(key="piece", predicts=False, plan=make, encode=lambda plan, out: next(sizes))
    steps = [(4, True), (5, True), (6, True), (7, True), (8, True), (9, True)]
    results = []
    for step, has_codebooks in steps:
        plans.begin_step(step, has_codebooks)
        results.append((frame(), len(made)))
    # Step 6 finds that the frame has grown, and plans it anew; so does step 7, as the plan is not to be trusted.
    assert results == [(1000, 1), (1010, 1), (2000, 2), (1500, 3), (900, 4), (900, 4)]
    plans.begin_step(10, False)
    assert plans.counts  # without codebooks, symbols are counted in every step
    plans.forget()
    plans.begin_step(11, True)
    frame()
    assert len(made) == 5


@pytest.mark.parametrize("second", [("float32", 150), ("float32", 500), ("bfloat16", 300)])
def test_predictions_are_not_renewed_for_a_range_of_another_length_or_type(second):
    """Ranges change in a group of another size, and types in a model that was cast."""
    books = SharedCodebooks(gd.Refresh())
    room = np.empty(1 << 20, np.uint8)
    for step, (name, n_rows) in enumerate([("float32", 300)] * 3 + [second]):
        dtype, shape = BY_NAME[name], (n_rows, 200)
        bits = rows_alike(dtype, *shape)
        books.prepare([0], dtype.head_bits, 1)
        gradients = Gradients([GradientSegment(0, len(bits), torch.empty(0), (1,))])
        shared = BufferCodebooks(books, gradients, np.zeros(1, np.int64))
        coder = Coder(dtype, Lossless().bit_layout(dtype), None, shared, [shape], 1, Counters())
        size = coder.encode(bits, 0, 0, room)
        result = np.empty_like(bits)
        coder.decode(room[:size], result)
        assert np.array_equal(result, bits)
        books.end_step()
        if step == 0:
            books.renew([0], books.take(), 1)
    assert any(known.tried is not None for known in books.piece_cache._known.values())


@pytest.mark.parametrize(
    ("key", "junk"),
    [
        ("shared", None),
        ("shared", "{}"),
        ("shared", "[]"),
        ("shared", '{"codebooks": {"0": 1}, "rounds": {}}'),
        ("shared", '{"codebooks": {}, "rounds": {"step": "x"}}'),
        ("rank0", "[]"),
        ("rank0", "{}"),
        ("rank0", 3),
    ],
)
def test_states_of_the_hook_with_junk_in_them_are_refused(key, junk):
    state = gd.CompressedAllreduce(bypass=None)
    with pytest.raises(gcodec.GcodecError, match=r"damaged|parts of it are missing or of another kind"):
        state.load_state_dict({**state.state_dict(), key: junk})
