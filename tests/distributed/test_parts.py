"""The laws of an all-reduce's parts that need no second process: pieces, schedules, messages, sums, statistics."""

from __future__ import annotations

import copy
import math
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

import gcodec
import gcodec.distributed as gd
from gcodec.distributed.collectives import Collectives
from gcodec.distributed.ddp.compressor_state import CompressedGradients
from gcodec.distributed.gradients import Gradients, GradientSegment
from gcodec.distributed.reduction.level_chooser import LevelChooser
from gcodec.distributed.reduction.partition import piece_length, shapes_within, shares
from gcodec.distributed.reduction.schedule import Schedule
from gcodec.distributed.reduction.step_detection import StepDetector
from gcodec.distributed.reduction.summation import RankSum
from gcodec.distributed.stats import Counters, Stats
from gcodec.distributed.transport.failures import FailureRecords
from gcodec.distributed.transport.message import ABORT, HEADER, RESULT, Header, abort_message, check
from gcodec.distributed.transport.transfers import Buffers, Transfers
from gcodec.dtypes import BY_NAME
from gcodec.errors import InvalidArgument
from gcodec.truncation.optimizers import levels_for
from tests.support.covering import each_pair

HEADERS = st.builds(
    Header,
    st.integers(0, 2),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.just(0),
)


class GoneGroup:
    """A group whose connections Gloo knows to be closed: it raises at once."""

    def send(self, *_):
        raise RuntimeError("Connection closed by peer\nand more")

    recv = send


@pytest.mark.parametrize(
    "begin",
    [lambda transfers: transfers.post(3, 1, 10), lambda transfers: transfers.send_array(3, 1, np.zeros(10, np.uint8))],
    ids=["receive", "send"],
)
def test_a_closed_connection_is_an_error_that_names_the_rank(begin):
    group: Any = GoneGroup()
    transfers = Transfers(group, timedelta(seconds=1), Buffers(), lambda peer: f"rank {peer} (here)")
    with pytest.raises(gcodec.errors.PeerError, match=r"^rank 3 \(here\): .*closed by peer\)$"):
        begin(transfers)


class Box:
    """A store that may be gone."""

    def __init__(self, gone):
        self.gone, self.kept, self.looks = gone, {}, 0

    def set(self, key, value):
        self.check([key])
        self.kept[key] = value.encode()

    def check(self, keys):
        self.looks += 1
        if self.gone:
            raise RuntimeError("the store is gone")
        return all(key in self.kept for key in keys)

    def get(self, key):
        return self.kept[key]


def test_an_error_names_the_rank_that_failed_first():
    store: Any = Box(gone=False)
    FailureRecords(store, 3).record("rank 1: no answer")
    FailureRecords(store, 3).record("rank 1: no answer")
    here = FailureRecords(store, 2)
    group: Any = GoneGroup()
    transfers = Transfers(group, timedelta(seconds=1), Buffers(), lambda peer: f"rank {peer}", here)
    for again in range(2):
        with pytest.raises(gcodec.errors.PeerError, match=r"^rank 3: .* that rank had aborted: rank 1: no answer$"):
            transfers.post(3, again, 10)
    assert FailureRecords(store, 0).reason_of(2) == "rank 3: the connection has failed (Connection closed by peer)"
    assert here.reason_of(1) is None
    looks = store.looks
    assert here.reason_of(1) is None  # nobody waits twice for a record
    assert store.looks == looks > 1


def test_without_a_store_there_are_no_failure_records():
    store: Any = Box(gone=True)
    failure_records = FailureRecords(store, 1)
    failure_records.record("anything")
    assert failure_records.reason_of(1) is None


@given(st.integers(0, 1 << 26), st.integers(1, 9))
def test_every_value_of_an_allreduce_has_one_owner(n_values, size):
    pieces = sorted(piece for share in shares(n_values, size) for piece in share)
    assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces)][: len(pieces)]
    assert (pieces[-1][1] if pieces else 0) == n_values
    assert all(0 < end - begin <= piece_length(n_values, size) for begin, end in pieces)
    counts = [len(share) for share in shares(n_values, size)]
    assert max(counts) - min(counts) <= 1


@given(st.integers(0, 1 << 23), st.integers(1, 5))
def test_every_message_that_one_rank_sends_another_expects(n_values, size):
    schedules = [Schedule.between(n_values, rank, size) for rank in range(size)]
    sent = sorted((rank, slot.peer, *slot[1:]) for rank, item in enumerate(schedules) for slot in item.outgoing())
    expected = [
        (slot.peer, rank, *slot[1:])
        for rank, item in enumerate(schedules)
        for slots in item.contributions()
        for slot in slots.values()
    ]
    expected += [
        (slot.peer, rank, *slot[1:])
        for rank, item in enumerate(schedules)
        for slot in (*item.results(), *item.receipts())
    ]
    assert sent == sorted(expected)
    assert len(set(sent)) == len(sent)


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1),
    "momentum": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=1e-3),
    "Nesterov": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, lr_decay=0.1),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01, momentum=0.5, weight_decay=1e-3),
    "RMSprop without momentum": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=1e-3),
    "AMSGrad": lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True),
    "NAdam": lambda params: torch.optim.NAdam(params, lr=0.01, weight_decay=1e-3),
    "RAdam": lambda params: torch.optim.RAdam(params, lr=0.01, betas=(0.9, 0.9)),
    "Adamax": lambda params: torch.optim.Adamax(params, lr=0.01, weight_decay=1e-3),
    "Adadelta": lambda params: torch.optim.Adadelta(params, lr=0.5),
    "ASGD": lambda params: torch.optim.ASGD(params, lr=0.1, weight_decay=1e-3),
    "two groups": lambda params: torch.optim.AdamW([{"params": params[::2]}, {"params": params[1::2], "lr": 0.0}]),
    "uneven ladder": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_levels_of_many_tensors_are_those_of_each(name, steps):
    random = torch.Generator().manual_seed(steps)
    shapes = [(7, 300), (1,), (64, 3, 5, 5), (), (999,), (2, 0), (31, 33), (4, 4)]
    tensors = [torch.randn(shape, generator=random) for shape in shapes]
    tensors[2], tensors[6] = tensors[2].to(memory_format=torch.channels_last), tensors[6].double()
    params = [torch.nn.Parameter(tensor) for tensor in tensors]
    optimizer = OPTIMIZERS[name](params[:-1])  # none holds the last
    for _ in range(steps):
        for param in params:
            dead = torch.rand(param.shape, generator=random) < 0.3
            param.grad = (torch.randn(param.shape, generator=random).masked_fill(dead, 0) * 0.01).to(param.dtype)
        optimizer.step()
    ladder = gcodec.Ladder((0, 2, 3, 9)) if name == "uneven ladder" else None
    ends = np.cumsum([param.numel() for param in params])
    segments = [
        GradientSegment(int(end) - param.numel(), int(end), param, param.stride())
        for end, param in zip(ends, params, strict=True)
    ]
    mode = gd.NearLossless(optimizer, ladder=ladder, loss_scale=8.0, scale=0.5)
    level_chooser = LevelChooser(mode, Gradients(segments), BY_NAME["float32"], 3.0)
    values = (torch.randn(int(ends[-1]), generator=random) * 0.1).masked_fill(torch.rand(int(ends[-1])) < 0.1, 0)
    for kind, scale in ((0, 1.5), (1, 0.5)):
        out = np.full(len(values), 99, np.uint8)
        for begin in range(0, len(values), 1000):
            level_chooser.levels(begin, values.numpy()[begin : begin + 1000], kind, out[begin : begin + 1000])
        for begin, end, held, stride in segments:
            grad, result = (
                torch.as_strided(flat[begin:end], held.shape, stride) for flat in (values, torch.from_numpy(out))
            )
            if held is params[-1]:
                assert not result.any()
            else:
                expected = levels_for(optimizer, held, grad, ladder=ladder, loss_scale=8.0, scale=scale)
                assert np.array_equal(result.numpy(), expected)


@pytest.mark.parametrize("scale", [None, "8", 0, math.nan, [8.0]])
def test_a_function_that_returns_no_loss_scale_is_refused(scale):
    param = torch.nn.Parameter(torch.ones(3))
    mode = gd.NearLossless(torch.optim.SGD([param], lr=0.1), loss_scale=lambda: scale)
    with pytest.raises(InvalidArgument, match="loss_scale must be a positive, finite number"):
        LevelChooser(mode, Gradients.of([param], 3), BY_NAME["float32"], 1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("scale", "loss_scale") for value in (0, -1.0, math.nan, math.inf)),
        ("ladder", {"float32": [0, 3]}),
        ("ladder", {"float32": None}),
    ],
)
def test_a_near_lossless_mode_that_no_step_could_use_is_refused_when_it_is_made(name, value):
    with pytest.raises(InvalidArgument, match=f"^{name} must"):
        gd.NearLossless(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1), **{name: value})


def raise_rate(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> None:
    """Multiply the learning rate by a hundred."""
    optimizer.param_groups[0]["lr"] *= 100


def take_step(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> None:
    """Make a step, in place."""
    param.grad = torch.full_like(param, 0.5)
    optimizer.step()


def replace_state(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> None:
    """Load a state whose tensors are others, with other values."""
    saved = copy.deepcopy(optimizer.state_dict())
    for state in saved["state"].values():
        state["exp_avg_sq"] *= 1000
    optimizer.load_state_dict(saved)


def replace_memory(optimizer: torch.optim.Optimizer, param: torch.nn.Parameter) -> None:
    """Give the parameter other memory, and with it other values."""
    param.data = param.data * 1000


@pytest.mark.parametrize("change", [raise_rate, take_step, replace_state, replace_memory])
def test_levels_of_a_kept_layout_follow_the_optimizer(change):
    random = torch.Generator().manual_seed(5)
    param = torch.nn.Parameter(torch.randn(5000, generator=random))
    optimizer = torch.optim.Adam([param], lr=1e-3)
    take_step(optimizer, param)
    gradients, mode = Gradients.of([param], 5000), gd.NearLossless(optimizer)
    values = torch.randn(5000, generator=random) * torch.exp2(torch.randint(-12, 3, (5000,), generator=random))
    seen = []
    for _ in range(2):
        out = np.empty(5000, np.uint8)
        LevelChooser(mode, gradients, BY_NAME["float32"], 1.0).levels(0, values.numpy(), 0, out)
        assert np.array_equal(out, levels_for(optimizer, param, values))
        seen.append(out)
        change(optimizer, param)
    assert not np.array_equal(seen[0], seen[1])


@given(st.lists(st.lists(st.integers(1, 9), max_size=3), max_size=6), st.integers(0, 500), st.integers(0, 500))
def test_shapes_within_a_range_fill_it(shapes, a, b):
    total = sum(map(math.prod, shapes))
    begin, end = sorted((min(a, total), min(b, total)))
    assert sum(map(math.prod, shapes_within(shapes, begin, end))) == end - begin
    assert sum(map(math.prod, shapes_within(shapes, 0, total))) == total


@given(HEADERS, st.integers(0, 8 * HEADER - 1))
def test_a_damaged_header_is_noticed(header, bit):
    message = np.zeros(HEADER, np.uint8)
    header.write_to(message)
    assert Header.read_from(message, "") == header
    message[bit >> 3] ^= 1 << (bit & 7)
    with pytest.raises(gcodec.Corruption, match="rank 7: the message's header is damaged"):
        Header.read_from(message, "rank 7")


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({}, None, ""),
        ({"sequence": 4}, gcodec.PeerError, "all-reduce 4, this one at 3"),
        ({"agreement": 1}, gcodec.PeerError, "differs in dtype, mode"),
        ({"n_values": 11}, gcodec.PeerError, "differs in"),
        ({"piece": 9}, gcodec.Corruption, "instead of"),
        ({"payload": 9}, gcodec.Corruption, "9 bytes of payload where at most 8 fit"),
    ],
)
def test_headers_that_differ_from_the_expected_one_are_refused(change, error, text):
    expected = Header(RESULT, 1, 2, 3, 4, 5, 0)
    message = np.zeros(HEADER + 8, np.uint8)
    expected._replace(**{"payload": 8, **change}).write_to(message)
    if error is None:
        assert len(check(message, expected, "rank 1")) == 8
        return
    with pytest.raises(error, match=f"rank 1: .*{text}"):
        check(message, expected, "rank 1")


def test_an_abort_message_says_why():
    expected = Header(RESULT, 1, 2, 3, 4, 5, 0)
    message = abort_message(expected, ValueError("x" * 1000))
    assert Header.read_from(message, "").kind == ABORT
    with pytest.raises(gcodec.PeerError, match="rank 1: that rank has aborted: ValueError: xxx"):
        check(message, expected, "rank 1")


@each_pair(n_terms=[1, 2, 3, 4], place=["apart", "first", "last"], dtype=["float32", "float64", "float16", "bfloat16"])
def test_narrow_types_are_added_in_float32_and_rounded_once(dtype, place, n_terms):
    values = torch.cat([torch.tensor([1.0, -0.0, 3e4, float("nan"), 1e-41]), torch.linspace(-3, 5, 70_000)])
    terms = [values.to(getattr(torch, dtype)) / (1 + k) for k in range(n_terms)]
    wide = torch.float32 if dtype in ("float16", "bfloat16") else getattr(torch, dtype)
    wanted = terms[0].to(wide)
    for term in terms[1:]:
        wanted = wanted + term.to(wide)
    wanted = wanted / n_terms
    total = RankSum(BY_NAME[dtype], len(values))
    for _ in range(2):
        bits = [
            item.clone().view(getattr(torch, f"int{item.itemsize * 8}")).numpy().view(f"u{item.itemsize}")
            for item in terms
        ]
        out = {"apart": np.empty_like(bits[0]), "first": bits[0], "last": bits[-1]}[place]
        for item in bits[:-1]:
            total.add(item)
        total.finish(bits[-1], n_terms, out)
    result = torch.from_numpy(out.view(f"i{out.itemsize}")).view(getattr(torch, dtype))
    assert torch.equal(result.nan_to_num(7.0), wanted.to(result.dtype).nan_to_num(7.0))
    assert torch.signbit(result[1])
    assert torch.isnan(result[3])


def test_statistics_are_plain_numbers_and_go_to_a_writer():
    stats = Stats()
    stats.add(0, Counters(calls=1, raw_bytes=100, dense_bytes=100.0, sent_bytes=25.0))
    stats.add(1, Counters(calls=1, dense=1, raw_bytes=10, dense_bytes=10.0, sent_bytes=10.0))
    stats.end_step()
    numbers = stats.numbers()
    assert numbers["ratio"] == 110 / 35
    assert numbers["buckets"][0]["ratio"] == 4
    assert numbers["last_step"]["calls"] == numbers["calls"] == 2
    written = {}

    class Writer:
        def add_scalar(self, name, value, step):
            written[name] = value, step

    gd.log_to(Writer(), numbers, 7)
    assert written["gcodec/ratio"] == (110 / 35, 7)
    assert written["gcodec/step/dense"] == (1, 7)
    assert not any("bits_per_symbol" in name for name in written)  # not known yet


def test_tensorboard_has_the_statistics_that_were_written(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    stats = Stats()
    with SummaryWriter(tmp_path) as writer:
        for step in range(3):
            stats.add(0, Counters(calls=1, raw_bytes=100, dense_bytes=100.0, sent_bytes=25.0))
            stats.end_step()
            gd.log_to(writer, stats.numbers(), step, "run")
    read = reading.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(item.step, item.value) for item in read.Scalars("run/sent_bytes")] == [(0, 25), (1, 50), (2, 75)]
    assert [(item.step, item.value) for item in read.Scalars("run/step/ratio")] == [(0, 4), (1, 4), (2, 4)]
    known = {name for name, value in stats.numbers().items() if isinstance(value, int | float) and value == value}
    assert {f"run/{name}" for name in known} < set(read.Tags()["scalars"])


def test_modes_without_a_meaning_are_refused():
    param = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(gcodec.Unsupported, match="Rprop"):
        gd.NearLossless(torch.optim.Rprop([param], lr=0.1))
    with pytest.raises(gcodec.Unsupported, match="centered"):
        gd.NearLossless(torch.optim.RMSprop([param], centered=True))
    with pytest.raises(gcodec.Unsupported, match=r"alpha = 1.5.*Lossless"):
        gd.NearLossless(torch.optim.RMSprop([param], alpha=1.5))
    with pytest.raises(gcodec.Unsupported, match=r"capturable.*Lossless"):
        gd.NearLossless(torch.optim.RAdam([param], capturable=True))
    with pytest.raises(gcodec.InvalidArgument, match="level 0"):
        gd.NearLossless(torch.optim.SGD([param], lr=0.1), ladder=gcodec.Ladder((1, 2)))
    with pytest.raises(gcodec.InvalidArgument):
        gd.CompressedAllreduce(optimizer=torch.optim.SGD([param], lr=0.1), mode=gd.Lossless())
    with pytest.raises(gcodec.InvalidArgument, match="not initialized"):
        gd.allreduce(torch.zeros(3))
    with pytest.raises(gcodec.Unsupported, match="python_reducer"):
        gd.hook(object.__new__(gd.CompressedAllreduce), (param, param))  # type: ignore[arg-type]


PARAM = torch.nn.Parameter(torch.zeros(3))
SGD = torch.optim.SGD([PARAM], lr=0.1)
MADE: dict[str, Any] = {
    "hook": gd.CompressedAllreduce,
    "group": gd.GroupOptions,
    "FSDP": lambda **options: gd.compress_fsdp(torch.nn.Linear(2, 2), **options),
    "DiLoCo": lambda **options: gd.DiLoCo(SGD, **{"every": 2, **options}),
}
SENSELESS: list[tuple[str, Any, str]] = [
    *(("mode", mode, r"Lossless\(\)") for mode in ("lossless", 8, gd.Lossless, SGD)),
    ("timeout", 10, r"timedelta\(seconds=10\)"),
    ("timeout", timedelta(0), "positive"),
    ("min_bytes", 0.5, "an integer, not 0.5"),
    ("min_bytes", -1, "at least 0, not -1"),
    ("threads", 0, "at least 1, not 0"),
    ("bypass", 5, r"a Bypass, such as Bypass\(steps=4"),
    ("refresh", 50, r"a Refresh, such as Refresh\(interval=50"),
    ("every", 2.5, "an integer, not 2.5"),
    ("every", 0, "at least 1, not 0"),
    *(("optimizer", other, "the optimizer that takes the step") for other in ([], [PARAM], iter([PARAM]))),
]
LACKING = {
    "hook": {"every"},
    "group": {"every", "optimizer"},
    "FSDP": {"every", "optimizer"},
    "DiLoCo": {"bypass", "refresh", "optimizer"},
}


@pytest.mark.parametrize(
    ("made", "name", "value", "text"),
    [(made, *case) for made in MADE for case in SENSELESS if case[0] not in LACKING[made]],
)
def test_options_without_a_meaning_are_refused_where_they_are_given(made, name, value, text):
    with pytest.raises(gcodec.InvalidArgument, match=f"(?s)^{name} must be .*{text}"):
        MADE[made](**{name: value})


def test_true_and_false_stand_for_the_default_and_none():
    chosen: Any = {"bypass": True, "refresh": True}
    assert gd.GroupOptions(**chosen) == gd.GroupOptions()
    chosen = {"bypass": False, "refresh": False}
    assert gd.GroupOptions(**chosen) == gd.GroupOptions(bypass=None, refresh=None)
    assert gd.CompressedAllreduce(**chosen)._options() == gd.CompressedAllreduce(bypass=None, refresh=None)._options()


def test_a_mode_without_a_meaning_cannot_be_assigned():
    state: Any = gd.CompressedAllreduce()
    with pytest.raises(gcodec.InvalidArgument, match=r"^mode must be Lossless\(\).* not 8$"):
        state.mode = 8


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("bf16", ": words are for the DDP hook"),
        (gd.GroupOptions(), ": what GroupOptions holds are arguments"),
        (8, "$"),
    ],
)
def test_a_mode_that_groups_do_not_have_is_refused_for_its_own_reason(mode, reason):
    with pytest.raises(gcodec.InvalidArgument, match=rf"^mode must be .* or FixedBits\(k\), not [^:]+{reason}"):
        gd.GroupOptions(mode)


def test_an_accuracy_that_needs_error_feedback_is_refused_where_there_is_none():
    with pytest.raises(gcodec.InvalidArgument, match=r"CompressedGradients\(model, 'fp8'\)"):
        gd.CompressedAllreduce(mode="fp8")


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"version": 2, "shared": ""}])
def test_states_that_are_not_the_hooks_are_refused(state):
    with pytest.raises(gcodec.InvalidArgument, match="a hook's state of version"):
        gd.CompressedAllreduce().load_state_dict(state)


class Couple(torch.distributed.ProcessGroup):
    """A group of two."""

    def __init__(self):
        super().__init__(0, 2)  # type: ignore[call-arg]


def test_unsupported_devices_are_named_by_every_entry():
    """Any other device than the CPU stands for a CUDA device here."""
    there = torch.zeros(100_000, device="meta")
    bucket: Any = SimpleNamespace(buffer=lambda: there, parameters=list)
    refusals: dict[str, Any] = {
        "FSDP: tensors on meta": lambda: Collectives(gd.GroupOptions(), "FSDP").suits([there], Couple()),
        "gradients of torch.float32 on meta": lambda: CompressedGradients._lane_for(None, bucket),  # type: ignore[arg-type]
        "parameters on meta": lambda: gd.DiLoCo(torch.optim.SGD([torch.nn.Parameter(there)], lr=1.0), 5),
    }
    for text, refused in refusals.items():
        with pytest.raises(gcodec.Unsupported, match=text):
            refused()


# Steps among collectives


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_a_step_of_collectives_begins_after_the_longest_gap(first, step, data):
    pause, periods = data.draw(st.integers(0, len(step) - 1)), StepDetector(lambda gaps: 3 * gaps)
    shortest = next(n for n in range(1, len(step) + 1) if len(step) % n == 0 and step == step[:n] * (len(step) // n))
    now, begun = 0.0, []
    for number, call in enumerate(first + step * 60):
        place = (number - len(first)) % len(step)
        now += 5.0 if number >= len(first) and place == pause else 1.0
        if periods.begins(call, now):
            begun.append(place)
    assert begun
    assert periods.known
    if shortest == len(step):
        assert set(begun) == {pause}
    assert not periods.begins(7, now)  # another call than all before
    assert not periods.known


@given(st.integers(5, 9000))
def test_collectives_that_never_repeat_have_no_steps(n_calls):
    periods = StepDetector(lambda gaps: gaps)
    assert not any(periods.begins(number, number) for number in range(n_calls))
